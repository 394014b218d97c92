"""Explanations: every op accounted for, sums that agree, text that fits; and dumps of stages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.engine.python_compiler import PythonCompiler
from tests.engine.workloads import arrays, gpt_step, mlp_step

import treadle as mge
import treadle.functional as F
from treadle.base import dtype as dt
from treadle.base.loc import Loc
from treadle.base.types import TensorType
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.engine.plan.text import plan_text
from treadle.engine.targets import compiled
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph
from treadle.graph.parser import parse
from treadle.inspect import Inspected
from treadle.inspect.explanation import Explanation
from treadle.inspect.origins import joined, whereabouts
from treadle.inspect.text import to_text
from treadle.ops.unary import Exp, Relu, Tanh

X = TensorType(dt.float32, (4, 6))


@pytest.fixture(scope="module")
def explained() -> tuple[Graph, Explanation]:
    """A training step, lowered for the native engine but not compiled."""
    graph = mlp_step(8, (12, 10, 10, 4))
    return graph, Inspected(Stages(graph)).explain()


def test_all_stages_are_told_in_order(explained: tuple[Graph, Explanation]) -> None:
    found = explained[1]
    names = [s.name for s in found.stages]
    assert names == ["prepare", "partition", "optimize", "compile", "load", "execute"]
    assert all(s.seconds is not None and s.seconds > 0 for s in found.stages[:4])
    assert found.stages[5].seconds is None


def test_every_captured_op_is_accounted_for(explained: tuple[Graph, Explanation]) -> None:
    graph, found = explained
    assert [op.name for op in found.ops] == [n.op.name for n in graph.nodes]
    numbers = {g.number for g in found.groups}
    for op in found.ops:
        assert set(op.groups) <= numbers
        assert bool(op.groups) == (op.fate in ("fused", "alone", "rewritten", "on the host"))
    products = [op for op in found.ops if op.name == "matmul"]
    assert len(products) == 8
    assert all(len(op.groups) == 1 and op.engine == "cpu" for op in products)
    assert {op.fate for op in found.ops if op.name == "constant"} <= {"constant"}


def test_sums_agree(explained: tuple[Graph, Explanation]) -> None:
    found = explained[1]
    captured, prepared, compiled = found.sizes
    assert (captured.graph, prepared.graph, compiled.graph) == ("captured", "prepared", "compiled")
    told = next(s.did for s in found.stages if s.name == "compile")
    launches, merged, inside = map(int, re.findall(r"\d+", told)[:3])
    runs = sum(g.launches for g in found.groups)
    assert compiled.launches == launches == runs - inside + merged
    assert compiled.nbytes == sum(g.nbytes for g in found.groups)
    assert compiled.kernels <= runs and compiled.launches < runs < prepared.launches
    assert compiled.nbytes < prepared.nbytes
    assert compiled.memory == found.memory["arena"] >= found.memory["bound"]
    assert sum(found.streams["steps"]) == compiled.launches
    assert sum(g.predicted for g in found.groups) == pytest.approx(found.streams["makespan"])


@pytest.mark.parametrize("full", [False, True])
def test_the_text_fits_the_page(full: bool) -> None:
    text = to_text(Inspected(Stages(gpt_step(2, 8, 16, 2, 2, 11))).explain(), full=full)
    assert max(map(len, text.splitlines())) <= 120
    assert full or len(text.splitlines()) < 90
    for word in ("prepare", "optimize", "execute", "bytes moved", "launches", "memory", "streams"):
        assert word in text
    assert ("captured ops" in text) == full


def test_data_is_plain(explained: tuple[Graph, Explanation]) -> None:
    found = explained[1]
    data = found.data()
    assert json.loads(json.dumps(data))["sizes"][2]["launches"] == found.sizes[2].launches
    assert set(data) >= {"name", "stages", "sizes", "groups", "ops", "memory", "streams"}


def test_ops_are_found_by_line_and_order() -> None:
    builder = GraphBuilder("lines")
    builder.loc = Loc("dir/net.py", 3)
    x = builder.input(X, "x")
    one = Tanh()(x)
    builder.loc = Loc("dir/net.py", 4)
    two = Tanh()(Exp()(one))
    builder.output(two)
    graph = builder.build()
    found = whereabouts(graph, graph)
    assert [found[n] for n in graph.nodes] == [(0,), (1,), (2,)]
    shorter = graph.with_nodes(graph.nodes[:2], (graph.nodes[1].output,))
    assert whereabouts(graph, shorter)[graph.nodes[2]] == ()
    assert joined(["net.py:3", "net.py:5", "net.py:4", "a.py:9"]) == "net.py:3-5 a.py:9"


def test_what_is_left_to_the_host_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = PythonCompiler(("tanh",))
    monkeypatch.setattr(compiled, "find_compiler", lambda options, kind: compiler)
    builder = GraphBuilder("mixed")
    x = builder.input(X, "x")
    builder.output(Relu()(Tanh()(x)))
    found = Inspected(Stages(builder.build(), options=Options(level=0))).explain()
    tanh, relu = found.ops
    assert (tanh.fate, tanh.engine, tanh.why) == ("on the host", "reference", "refused by the test")
    assert relu.fate == "alone"
    assert "refused by the test" in to_text(found)


def test_regions_pass_the_stages_and_are_counted() -> None:
    @mge.jit.compile
    def power(x: mge.Tensor) -> mge.Tensor:
        return mge.jit.while_loop(lambda s: s.sum() < 100.0, lambda s: (s * 2.0,), (x,))[0]

    found = power.explain(mge.tensor(np.ones(3, "float32")), form="json")
    assert [s["regions"] for s in found["sizes"]] == [2, 2, 2]
    assert any("while" in g["ops"] for g in found["groups"])


def test_functions_explain_themselves() -> None:
    @mge.jit.compile
    def f(x: mge.Tensor) -> mge.Tensor:
        return F.relu(x * 2 + 1).sum()

    with pytest.raises(TypeError, match="missing 1 required"):
        f.explain()
    x = mge.tensor(np.ones((3, 4), "float32"))
    text = f.explain(x)
    assert text.startswith("program f: ")
    assert "test_explain.py" in text
    assert f(x).item() == 36.0
    assert f.explain().splitlines()[0] == text.splitlines()[0]


# -- dumps -------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "treadle-dump"


def test_graphs_of_the_stages_are_written_and_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_DUMP", "prepare,partition,optimize")
    graph = mlp_step(4, (6, 5, 3))
    Stages(graph).lowered.graph
    files = sorted(p.name for p in folder.iterdir())
    stages = ("optimize", "partition", "prepare")
    assert files == [f"{graph.name}.00.{stage}.txt" for stage in stages]
    inputs = arrays(graph)
    wanted = graph.evaluate(inputs)
    for file in files:
        again = parse((folder / file).read_text(encoding="utf-8"))
        for x, y in zip(again.evaluate(inputs), wanted, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_plans_and_kernels_are_written_on_request(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_DUMP", "compile,kernels")
    builder = GraphBuilder("small")
    x = builder.input(X, "x")
    builder.output(Exp()(x))
    program = Inspected(Stages(builder.build()))
    plan = program.planned()
    written = {p.name: p.read_text(encoding="utf-8") for p in folder.iterdir()}
    assert written.pop("small.00.compile.txt") == plan_text(plan, "small")
    assert sorted(n.rsplit(".", 1)[1] for n in written) == ["ll", "s", "txt"]
    by_form = {n.rsplit(".", 1)[1]: text for n, text in written.items()}
    assert "define" in by_form["ll"] and "kernel" in by_form["txt"]
    assert by_form["s"].count("\n") > 10


def test_a_plan_as_text_tells_addresses_streams_and_events() -> None:
    builder = GraphBuilder("branches")
    x = builder.input(X, "x")
    y, z = Exp()(x), Tanh()(x)
    for _ in range(5):
        y, z = Exp()(y), Tanh()(z)
    builder.output(y + z)
    options = Options(level=0, streams=2, reuse_memory=False)
    plan = Stages(builder.build(), options=options).planned.plan
    text = plan_text(plan, "branches")
    rows = text.splitlines()
    assert rows[0] == f"plan branches: {len(plan.steps)} steps, 1 inputs, 1 outputs"
    steps = [line for line in rows[2:] if re.match(r"\d+:", line)]
    assert {line.split()[1] for line in steps} == {"s0", "s1"}
    assert "[wait e0]" in text and "[record e0]" in text
    assert "reads in0:96" in text and "writes out0:96" in text


def test_streams_on_the_cpu_are_said_to_be_planned_and_not_run() -> None:
    weight = mge.tensor(np.ones((64, 64), "float32"))

    def branches(x: mge.Tensor) -> mge.Tensor:
        return F.matmul(F.matmul(x, weight), weight) + F.matmul(F.matmul(x * 2, weight), weight)

    x = mge.tensor(np.ones((64, 64), "float32"))
    options = Options(level=0, streams=2, reuse_memory=False)
    text = str(mge.jit.compile(branches, options=options).explain(x))
    assert "1 stream, 2 planned" in text
    assert "streams: 1 in use, 2 planned" in text
    assert "here the steps run one after the other" in text
