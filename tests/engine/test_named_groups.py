"""Groups that the user names: merged whole or not at all, with a reason, and found again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.engine.random_graphs import close

import treadle as mge
import treadle.functional as F
from treadle.base.errors import GraphError, TraceError
from treadle.engine.pipeline import Stages
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph
from treadle.graph.parser import parse
from treadle.graph.printer import to_text
from treadle.graph.verify import verify
from treadle.inspect import Inspected
from treadle.ops.softmax import Softmax

HEAD = """
graph g(%x: float32[4,6], %w: float32[6,6], %b: float32[6]) {
  %0 = matmul{transpose_x=False, transpose_y=False}(%x, %w) : float32[4,6] in "head"
  %1 = add(%0, %b) : float32[4,6] in "head"
  %2 = relu(%1) : float32[4,6] in "head"
  return %2
}
"""


def said(program: Inspected) -> dict[str, tuple[str, str]]:
    """Outcome and reason by group."""
    return {
        d.subject.split('"')[1]: (d.outcome, d.reason)
        for d in program.report.decisions
        if d.subject.startswith('group "')
    }


def inputs(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [mge.tensor(rng.standard_normal(s).astype("float32")) for s in shapes]


def test_the_text_form_reads_back_and_the_digest_tells_groups_apart() -> None:
    graph = parse(HEAD)
    verify(graph)
    assert [n.group for n in graph.nodes] == ["head"] * 3
    assert parse(to_text(graph)) == graph
    without = parse(HEAD.replace(' in "head"', ""))
    other = parse(HEAD.replace('"head"', '"a \\"name\\""'))
    assert other.nodes[0].group == 'a "name"'
    assert parse(to_text(other)) == other
    assert len({graph.digest, without.digest, other.digest}) == 3


def test_a_group_without_a_name_in_quotes_is_an_error() -> None:
    with pytest.raises(GraphError, match="expected a string"):
        parse(HEAD.replace('"head"', "head"))


def test_a_group_is_one_node_of_its_name() -> None:
    program = Inspected(Stages(parse(HEAD)))
    optimized = program.lower()
    assert [(n.op.name, n.group) for n in optimized.nodes] == [("fused", "head")]
    assert parse(to_text(optimized)) == optimized
    assert said(program) == {"head": ("one contraction kernel", "of matmul, add, relu")}


def test_composites_rules_and_regions_keep_groups() -> None:
    builder = GraphBuilder("g")
    builder.group = "g"
    x = builder.input(parse(HEAD).input_types[0], "x")
    builder.output(Softmax(1)(x * x))
    program = Inspected(Stages(builder.build()))
    program.lower()
    assert program.prepared is not None
    groups = {n.group for n in program.prepared.nodes if n.inputs}
    assert groups == {"g"} and len(program.prepared.nodes) > 5
    assert [n.group for n in program.lower().nodes] == ["g"]


def test_fuse_is_recorded_from_op_to_group() -> None:
    def body(x: mge.Tensor, w: mge.Tensor) -> Any:
        with mge.jit.fuse("scores"):
            y = F.softmax(x * 2.0)
        return F.exp(y.sum(axis=1)), F.matmul(y, w)

    layer, args = mge.jit.compile(body), inputs((4, 6), (6, 6))
    for found, wanted in zip(layer(*args), body(*args), strict=True):
        assert close(found.numpy(), wanted.numpy())
    explained = layer.explain(form="json")
    (group,) = [g for g in explained["groups"] if g["name"] == "scores"]
    assert group["kind"] == "loop"
    wanted_ops = [op for op in explained["ops"] if op["wanted"] == "scores"]
    assert [op["name"] for op in wanted_ops] == ["mul", "softmax"]
    assert all(tuple(op["groups"]) == (group["number"],) for op in wanted_ops)
    assert 'loop "scores"' in layer.explain()


def refused(body: Any, *shapes: tuple[int, ...]) -> tuple[str, str]:
    """What is said of group "a"; the results are right all the same."""
    step, args = mge.jit.compile(body), inputs(*shapes)
    assert close(step(*args).numpy(), body(*args).numpy())
    program = Inspected(Stages(step.graph(*args)))
    program.lower()
    return said(program)["a"]


def test_a_way_through_an_op_outside_is_no_group() -> None:
    def body(x: mge.Tensor) -> mge.Tensor:
        with mge.jit.fuse("a"):
            y = F.exp(x)
        z = F.sort(y)[0]
        with mge.jit.fuse("a"):
            return y * z

    outcome, reason = refused(body, (4, 6))
    assert outcome == "is not one kernel"
    assert reason == "an op outside needs one result of it and feeds another op of it"


def test_what_no_kernel_computes_is_no_group() -> None:
    def body(x: mge.Tensor) -> mge.Tensor:
        with mge.jit.fuse("a"):
            return F.matmul(F.matmul(x, x), x)

    outcome, reason = refused(body, (6, 6))
    assert outcome == "is not one kernel" and "contraction" in reason


def test_one_op_is_no_group() -> None:
    def body(x: mge.Tensor) -> mge.Tensor:
        with mge.jit.fuse("a"):
            y = F.exp(x)
        return F.sort(y)[0]

    assert refused(body, (4, 6)) == ("is not one kernel", "it is exp alone")


def test_moves_that_layouts_put_between_and_around_are_part_of_the_group() -> None:
    def body(x: mge.Tensor, w: mge.Tensor, b: mge.Tensor) -> mge.Tensor:
        with mge.jit.fuse("a"):
            y = F.relu(F.conv2d(x, w, b, padding=1))
        return F.max_pool2d(y, 2)

    step = mge.jit.compile(body)
    args = inputs((1, 8, 8, 8), (8, 8, 3, 3), (1, 8, 1, 1))
    program = step.lower(*args)
    assert said(program)["a"][0] == "one contraction kernel"
    assert [n.group for n in program.lower().nodes if n.group] == ["a"]


def test_blocks_nest_and_need_a_name() -> None:
    @mge.jit.compile
    def nested(x: mge.Tensor) -> mge.Tensor:
        with mge.jit.fuse("outer"):
            x = F.exp(x)
            with mge.jit.fuse("inner"):
                x = F.sin(x)
            return F.cos(x)

    groups = [n.group for n in nested.graph(*inputs((3,))).nodes]
    assert groups == ["outer", "inner", "outer"]
    with pytest.raises(TraceError, match="has no name"), mge.jit.fuse(""):
        pass
    with mge.jit.fuse("eager"):  # Nothing is captured.
        assert F.exp(mge.tensor([0.0])).item() == 1.0


def test_a_graph_without_names_is_left_alone() -> None:
    graph: Graph = parse(HEAD.replace(' in "head"', ""))
    program = Inspected(Stages(graph))
    assert [n.group for n in program.lower().nodes] == [""]
    assert said(program) == {}
