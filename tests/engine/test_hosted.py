"""Who was chosen runs it: programs on the reference engine, op by op, whole, and mixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.engine.random_graphs import close
from tests.engine.workloads import arrays, f32, mlp_step

from treadle.backends import registry
from treadle.backends.api import Support, no
from treadle.backends.program import Host, Run
from treadle.base.errors import CompileError, GraphError
from treadle.base.types import TensorType
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface
from treadle.graph.builder import trace_body
from treadle.graph.ir import Graph
from treadle.graph.parser import parse
from treadle.graph.printer import to_text
from treadle.inspect import Inspected
from treadle.ops.op import Op
from treadle.ops.softmax import Softmax
from treadle.ops.unary import Exp, Relu, Tanh

REFERENCE = Options(engines=("reference",))


def branches() -> Graph:
    """Ops before, in and after a branch."""

    def body(x: Any, y: Any) -> Any:
        choice = (x.builder.cond)(
            x.sum() > 1.0, lambda a: Tanh()(a) + 1.0, lambda a: Softmax(1)(a), [Exp()(x)]
        )
        return Relu()(choice[0] * y)

    return trace_body(body, [f32(4, 6), f32(4, 6)], "branches")


def run(graph: Graph, options: Options, seed: int = 0) -> tuple[list[Any], Inspected]:
    program = Inspected(Stages(graph, options=options))
    return program.compile().run(arrays(graph, seed)), program


def hosted(program: Inspected) -> list[str]:
    plan = program.planned()
    return [plan.host[s.task].op.name for s in plan.steps if isinstance(s, Host)]


@pytest.mark.parametrize("graph", [mlp_step(8, (12, 10, 4)), branches()], ids=["mlp", "branches"])
@pytest.mark.parametrize("level", [0, 2])
def test_the_reference_alone_gives_the_native_results(graph: Graph, level: int) -> None:
    native, _ = run(graph, Options(level=level))
    found, program = run(graph, Options(level=level, engines=("reference",)))
    for x, y in zip(found, native, strict=True):
        assert close(x, y)
    assert all(isinstance(s, Host) for s in program.planned().steps)
    assert {g.engine for g in program.explain().groups} == {"reference"}
    optimized = program.lower()
    assert parse(to_text(optimized)) == optimized


def test_one_op_is_forced_to_the_reference_inside_branches_too() -> None:
    native, _ = run(branches(), Options())
    found, program = run(branches(), Options(force_fallback=("softmax", "relu")))
    assert all(close(x, y) for x, y in zip(found, native, strict=True))
    assert sorted(hosted(program)) == ["relu", "softmax"]
    assert any(isinstance(s, Run) for s in program.planned().steps)
    explained = program.explain()
    (relu,) = [op for op in explained.ops if op.name == "relu"]
    assert (relu.fate, relu.engine) == ("on the host", "reference")
    assert relu.why == "cpu policy: force_fallback names relu"
    assert {g.engine for g in explained.groups} == {"cpu", "reference"}


def test_the_environment_forces_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_FORCE_FALLBACK", "exp, relu")
    assert Options().force_fallback == ("exp", "relu")


def test_names_that_are_not_there() -> None:
    with pytest.raises(CompileError, match="no engine on the host is called 'cuda'") as error:
        Stages(branches(), options=Options(engines=("cuda",))).running
    assert "cpu, reference" in error.value.hint
    with pytest.raises(GraphError, match="there is no op 'sofmax'") as problem:
        Stages(branches(), options=Options(force_fallback=("sofmax",))).running
    assert "softmax" in problem.value.hint


class Doubtful:
    """A plug-in that runs one op, and is expected to be quick; it notes what it ran."""

    name = "doubtful"
    serves = ("cpu",)
    priority = 200

    def __init__(self) -> None:
        self.ran: list[str] = []

    def prepare(self, op: Op, types: Sequence[TensorType], /) -> Callable[..., Any] | Support:
        if not isinstance(op, Exp):
            return no("op", f"doubtful has no {op.name}")

        def launch(*xs: Any) -> Any:
            self.ran.append(op.name)
            return op.reference(*xs)

        return launch


def test_another_engine_of_the_host_runs_what_it_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other, known = Doubtful(), registry.engines("cpu")
    monkeypatch.setattr(registry, "engines", lambda kind: (other, *known))
    graph = trace_body(lambda x: Relu()(Exp()(x) + x), [f32(64, 64)], "g")
    found, program = run(graph, Options(engines=("doubtful", "reference")))
    assert other.ran == ["exp"]
    assert close(found[0], graph.evaluate(arrays(graph))[0])
    assert [g.engine for g in program.explain().groups] == ["doubtful", "reference", "reference"]


def test_state_is_updated_by_host_programs() -> None:
    graph = trace_body(lambda w, g: w - g * 0.5, [f32(4), f32(4)], "g")
    executor = Stages(graph, Interface((False, False), ((0, 0),)), REFERENCE).running
    w = np.ones(4, np.float32)
    for _ in range(2):
        assert executor.run([w, np.ones(4, np.float32)]) == []
    assert w.tolist() == [0.0] * 4


def test_a_program_without_ops() -> None:
    graph = parse("graph(%x: float32[3]) { return %x }")
    (found,), _ = run(graph, REFERENCE)
    assert found.tobytes() == arrays(graph)[0].tobytes()
