"""Partition: the cheapest assignment, segments that can run, borders that can be taken out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from treadle.backends.api import Support, no, yes
from treadle.base import dtype as dt
from treadle.base.errors import GraphError
from treadle.base.types import TensorType
from treadle.engine.options import Options
from treadle.engine.partition import check_partition, partition, without_borders
from treadle.engine.partition.assign import Assigner
from treadle.engine.partition.candidates import Candidates
from treadle.engine.partition.model import CostModel, MemoryLink, Rates
from treadle.engine.partition.segments import Segmented
from treadle.engine.report import CompileReport
from treadle.graph.builder import GraphBuilder, trace_body
from treadle.graph.evaluate import evaluate
from treadle.graph.ir import Graph
from treadle.graph.parser import parse
from treadle.graph.printer import to_text
from treadle.graph.verify import verify
from treadle.ops.elementwise import Add, Mul, Neg
from treadle.ops.matmul import Matmul
from treadle.ops.op import Op
from treadle.ops.unary import Exp, Tanh


@dataclass(frozen=True)
class FakeEngine:
    """Runs the ops it lists (all but those it refuses, where it lists none)."""

    name: str
    serves: tuple[str, ...]
    only: tuple[type[Op], ...] = ()
    never: tuple[type[Op], ...] = ()
    priority: int = 1

    def prepare(self, op: Op, types: Sequence[TensorType], /) -> Callable[..., Any] | Support:
        if (self.only and type(op) not in self.only) or type(op) in self.never:
            return no("op", f"{self.name} has no {op.name}")
        return op.reference


HOST = FakeEngine("host", ("cpu",))
CARD = FakeEngine("card", ("card",))
SLOW = Rates(1e9, 1e9, 1e-6)
FAST = Rates(1e12, 1e12, 1e-6)
MODEL = CostModel(
    {"host": SLOW, "card": FAST, "other": Rates(1e11, 1e11, 1e-6)}, link=MemoryLink(1e-5, 1e10)
)


def run(
    graph: Graph, engines: Sequence[Any], model: CostModel = MODEL
) -> tuple[Segmented, CompileReport]:
    report = CompileReport()
    parts = partition(graph, engines, Options(check=True), report, model)
    check_partition(parts, graph)
    verify(parts.graph)
    return parts, report


def layered(width: int = 256) -> Graph:
    """A chain of products with an op in the middle that a card may lack."""
    t = TensorType(dt.float32, (width, width))

    def body(x: Any, y: Any) -> Any:
        return Matmul()(Exp()(Matmul()(Matmul()(x, y), y)), y)

    return trace_body(body, [t, t], "layered")


def engines_of(parts: Segmented) -> list[str]:
    found = parts.engines()
    return [f"{n.op.name}:{found[n]}" for n in parts.graph.nodes]


def test_work_goes_to_the_fast_engine_and_comes_back() -> None:
    parts, _ = run(layered(), (HOST, CARD))
    assert [s.engine for s in parts.segments] == ["host", "card", "host"]
    assert without_borders(parts.graph) == layered()


def test_small_work_is_not_worth_the_way() -> None:
    parts, _ = run(layered(4), (HOST, CARD))
    assert [s.engine for s in parts.segments] == ["host"]


def test_a_refused_op_in_the_middle(golden: Any) -> None:
    parts, report = run(layered(), (HOST, replace(CARD, never=(Exp,))))
    golden(f"{to_text(parts.graph)}\n{' '.join(map(repr, parts.segments))}\n\n{report}\n")
    assert parse(to_text(parts.graph)) == parts.graph


def test_refusals_are_reported() -> None:
    first = FakeEngine("cpu", ("cpu",), never=(Exp,))
    parts, report = run(layered(), (first, HOST))
    reasons = [d.reason for d in report.decisions]
    assert "cpu op: cpu has no exp" in reasons
    assert engines_of(parts) == ["matmul:cpu", "matmul:cpu", "exp:host", "matmul:cpu"]


def test_nobody_runs_it() -> None:
    with pytest.raises(GraphError, match="no engine runs it"):
        run(layered(), (FakeEngine("cpu", ("cpu",), never=(Exp,)),))


def test_engines_that_share_memory_have_no_borders() -> None:
    parts, _ = run(layered(), (FakeEngine("cpu", ("cpu",), never=(Exp,)), HOST))
    assert parts.graph.nodes == layered().nodes or parts.graph == layered()
    assert len(parts.segments) == 3


def test_a_segment_that_does_not_pay_is_given_up() -> None:
    costly = CostModel({"host": SLOW, "card": replace(FAST, segment=1.0)}, link=MODEL.link)
    parts, _ = run(layered(), (HOST, CARD), costly)
    assert [s.engine for s in parts.segments] == ["host"]


def test_a_value_is_sent_once() -> None:
    t = TensorType(dt.float32, (128, 128))

    def body(x: Any) -> Any:
        y = Exp()(x)
        return Matmul()(Matmul()(y, y), Matmul()(y, y) + y)

    parts, _ = run(
        trace_body(body, [t], "g"), (replace(HOST, never=(Matmul,)), replace(CARD, only=(Matmul,)))
    )
    names = [n.op.name for n in parts.graph.nodes]
    assert names.count("end") == names.count("placeholder")
    sent = [n.inputs[0] for n in parts.graph.nodes if n.op.name == "end"]
    assert len(sent) == len(set(sent))


# -- the optimum -------------------------------------------------------------------------------


def random_graph(seed: int, count: int = 7) -> Graph:
    rng = np.random.default_rng(seed)
    builder = GraphBuilder("g")
    t = TensorType(dt.float32, (64, 64))
    values = [builder.input(t), builder.input(t)]
    for _ in range(count):
        op = (Matmul(), Add(), Mul(), Exp(), Neg(), Tanh())[rng.integers(6)]
        inputs = [values[rng.integers(max(0, len(values) - 4), len(values))] for _ in op.operands]
        values += builder.apply(op, inputs)
    builder.output(values[-1], values[int(rng.integers(2, len(values)))])
    return builder.build()


def random_model(seed: int) -> CostModel:
    rng = np.random.default_rng(seed)

    def rates() -> Rates:
        return Rates(*(10 ** rng.uniform(8, 11, 2)), 1e-6)

    named = {name: rates() for name in ("host", "card", "other")}
    return CostModel(named, link=MemoryLink(1e-6, 10 ** rng.uniform(8, 10)))


def brute_force(assigner: Assigner) -> float:
    choices = [assigner.choices[n] for n in assigner.graph.nodes]
    return min(
        assigner.total(dict(zip(assigner.graph.nodes, pick, strict=True)))
        for pick in itertools.product(*choices)
    )


@pytest.mark.parametrize("seed", range(25))
def test_two_engines_are_optimal(seed: int) -> None:
    engines = (HOST, replace(CARD, never=(Exp,) if seed % 3 else ()))
    assigner = Assigner(random_graph(seed), Candidates(engines), random_model(seed))
    assert assigner.total(assigner.best()) == pytest.approx(brute_force(assigner))


@pytest.mark.parametrize("seed", range(12))
def test_three_engines_are_near_the_optimum(seed: int) -> None:
    other = FakeEngine("other", ("other",), never=(Tanh,))
    assigner = Assigner(random_graph(seed, 6), Candidates((HOST, CARD, other)), random_model(seed))
    found = assigner.total(assigner.best())
    assert brute_force(assigner) <= found <= 1.1 * brute_force(assigner)


@pytest.mark.parametrize("seed", range(12))
def test_no_baseline_is_better(seed: int) -> None:
    engines = (HOST, CARD, FakeEngine("other", ("other",)))
    for some in (engines[:2], engines):
        assigner = Assigner(random_graph(seed, 30), Candidates(some), random_model(seed))
        found = assigner.total(assigner.best())
        nodes = assigner.graph.nodes
        baselines = [dict.fromkeys(nodes, i) for i in range(len(some))]
        baselines.append(assigner.first_supporting())
        rng = np.random.default_rng(seed)
        baselines.append({n: int(rng.integers(len(some))) for n in nodes})
        assert all(found <= assigner.total(b) * (1 + 1e-9) for b in baselines)


@pytest.mark.parametrize("seed", range(10))
def test_random_programs_run_as_before(seed: int) -> None:
    graph = random_graph(seed, 20)
    parts, _ = run(graph, (HOST, replace(CARD, never=(Neg, Exp))), random_model(seed))
    arrays = [np.full(t.shape, 0.01, np.float32) for t in graph.input_types]
    for x, y in zip(evaluate(graph, arrays), evaluate(parts.graph, arrays), strict=True):
        np.testing.assert_array_equal(x, y)
    # Run segment by segment, each seeing only what it declares.
    known = dict(zip(parts.graph.inputs, arrays, strict=True))
    for segment in parts.segments:
        results = evaluate(segment.graph, [known[v] for v in segment.inputs])
        known.update(zip(segment.outputs, results, strict=True))
    for value, expected in zip(parts.graph.outputs, evaluate(graph, arrays), strict=True):
        np.testing.assert_array_equal(known[value], expected)


# -- the checker -------------------------------------------------------------------------------


def damaged(parts: Segmented, how: str) -> Segmented:
    first, *rest = parts.segments
    if how == "missing":
        return replace(parts, segments=(replace(first, nodes=first.nodes[1:]), *rest))
    if how == "twice":
        return replace(parts, segments=(*parts.segments, first))
    if how == "order":
        return replace(parts, segments=parts.segments[::-1])
    other = trace_body(lambda x, y: x, list(parts.graph.input_types), parts.graph.name)
    return Segmented(other, ())


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", "is in no segment"),
        ("twice", "is in two segments"),
        ("order", "needs a later segment"),
        ("program", "differs from the program"),
    ],
)
def test_the_checker_sees_damage(how: str, message: str) -> None:
    graph = layered()
    parts, _ = run(graph, (HOST, replace(CARD, never=(Exp,))))
    with pytest.raises(GraphError, match=message):
        check_partition(damaged(parts, how), graph)


def test_the_model_answers_yes() -> None:
    assert Candidates((HOST,)).support(layered().nodes[0], HOST) == yes()
