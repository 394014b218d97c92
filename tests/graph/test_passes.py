"""Passes: text files with a graph, a pipeline and the result; the manager; what passes promise.

A file of tests/golden/graph/passes holds a graph, a line `--- pass <pipeline>` and the expected
graph; `pytest --update-golden` rewrites the latter.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.graph.samples import graph_of

from treadle.base import dtype as dt
from treadle.base.errors import GraphError
from treadle.base.symbol import symbol
from treadle.base.types import TensorType
from treadle.graph import passes as passes_module
from treadle.graph.builder import GraphBuilder, trace_body
from treadle.graph.cleanup import DeadCode, Expand, Fold, Share
from treadle.graph.evaluate import evaluate
from treadle.graph.ir import Graph
from treadle.graph.parser import parse
from treadle.graph.pass_text import parse_passes
from treadle.graph.passes import (
    PASSES,
    PassReport,
    pass_text,
    register,
    run_passes,
)
from treadle.graph.printer import to_text
from treadle.graph.regions import map_regions
from treadle.graph.simplify import Simplify
from treadle.ops import REGISTRY
from treadle.ops.collective import AllReduce
from treadle.ops.composite import Composite
from treadle.ops.constant import Constant
from treadle.ops.creation import Full
from treadle.ops.custom import custom_op
from treadle.ops.elementwise import Add, Neg
from treadle.ops.gather import Take
from treadle.ops.movement import Concat

FILES = sorted((Path(__file__).parents[1] / "golden/graph/passes").glob("*.txt"))
F2 = TensorType(dt.float32, (2,))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_file(file: Path, request: pytest.FixtureRequest) -> None:
    before, pipeline, expected = split(file.read_text(encoding="utf-8"))
    after = to_text(run_passes(parse(before), parse_passes(pipeline)))
    if request.config.getoption("--update-golden"):
        file.write_text(f"{before}--- pass {pipeline}\n{after}", encoding="utf-8")
    else:
        assert after == expected


def split(text: str) -> tuple[str, str, str]:
    before, _, rest = text.partition("--- pass ")
    pipeline, _, expected = rest.partition("\n")
    return before, pipeline, expected


def test_there_are_files() -> None:
    assert len(FILES) >= 10


def names(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


# -- passes as text ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "", "dce", "simplify{fuel=7}", "simplify{level='fast', fuel=7},dce,cse",
        "expand{keep=('softmax', 'gelu')},fold{limit=10}",
    ],
)  # fmt: skip
def test_passes_print_and_parse(text: str) -> None:
    parsed = parse_passes(text)
    assert ",".join(pass_text(p) for p in parsed) == text
    assert parse_passes(",".join(pass_text(p) for p in parsed)) == parsed


def test_defaults_are_left_out() -> None:
    assert pass_text(Simplify(fuel=50)) == "simplify"
    assert parse_passes("simplify{fuel=50}") == (Simplify(),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("simplfy", "no pass is named simplfy"),
        ("dce{x=1}", "pass dce: has no option x"),
        ("dce cse", "expected ',' or the end of the text"),
        ("dce,", "expected the name of a pass"),
        ("simplify{fuel}", "expected '='"),
        ("simplify{fuel=graph g() { return }}", "an option is neither a graph"),
    ],
)
def test_malformed_pipelines(text: str, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        parse_passes(text)


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(GraphError, match="level 'wild' is none of"):
        Simplify(level="wild")(trace_body(lambda x: x, [F2]))


# -- the manager -------------------------------------------------------------------------------


def test_report() -> None:
    report: list[PassReport] = []
    graph = trace_body(lambda x: (Neg()(Neg()(x)), x + x)[0], [F2])
    run_passes(graph, (DeadCode(), Simplify()), report=report)
    assert [(r.name, r.before, r.after) for r in report] == [("dce", 3, 2), ("simplify", 2, 0)]
    assert report[1].hits == (("neg(neg(x)) => x", 1),)
    assert all(r.seconds >= 0 for r in report)


@dataclass(frozen=True, slots=True)
class Scramble:
    """Breaks graphs."""

    name: ClassVar[str] = "scramble"

    def __call__(self, graph: Graph, /) -> Graph:
        return graph.with_nodes(reversed(graph.nodes), graph.outputs)


def test_a_pass_that_breaks_the_graph_is_named() -> None:
    graph = trace_body(lambda x: -(x + x), [F2], "g")
    with pytest.raises(GraphError, match="pass scramble: broke the graph: line 2") as caught:
        run_passes(graph, (DeadCode(), Scramble()))
    assert caught.value.saw == "%0 = neg(%?) : float32[2]" or "neg" in caught.value.saw
    assert run_passes(graph, (Scramble(),), check=False).nodes == graph.nodes[::-1]


def test_a_graph_that_was_broken_before_blames_no_pass() -> None:
    broken = Scramble()(trace_body(lambda x: -(x + x), [F2], "g"))
    with pytest.raises(GraphError, match=r"^graph g: line 2"):
        run_passes(broken, (DeadCode(),))


def test_two_passes_of_one_name_are_refused() -> None:
    @dataclass(frozen=True)
    class Other:
        name: ClassVar[str] = "dce"

        def __call__(self, graph: Graph, /) -> Graph:
            return graph

    with pytest.raises(GraphError, match="two passes are named dce"):
        register(Other)
    assert PASSES["dce"] is DeadCode


def test_dumps_parse_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes_module, "DUMP_FOLDER", tmp_path / "dump")
    graph = trace_body(lambda x: Neg()(Neg()(x)) + np.arange(2), [F2], "my graph")
    for wanted, files in (
        ("", set()),
        ("simplify, partition", {"my_graph.01.simplify.txt"}),
        ("all", {"my_graph.00.dce.txt", "my_graph.01.simplify.txt"}),
    ):
        monkeypatch.setenv("TREADLE_DUMP", wanted)
        after = run_passes(graph, (DeadCode(), Simplify()))
        found = {f.name for f in (tmp_path / "dump").glob("*")}
        assert found == files
    assert parse((tmp_path / "dump/my_graph.01.simplify.txt").read_text()) == after


# -- each pass ---------------------------------------------------------------------------------


def in_branch(body) -> Graph:
    builder = GraphBuilder()
    go, x = builder.input(TensorType(dt.bool_, ())), builder.input(F2)
    builder.output(*builder.cond(go, body, lambda x: x, [x]))
    return builder.build()


@pytest.mark.parametrize("step", [DeadCode(), Share(), Fold(), Simplify()])
def test_regions_are_cleaned_too(step) -> None:
    def wasteful(x):
        x.constant(1.0) + x.constant(2.0)
        y = Neg()(Neg()(x)) + (x + 1) * (x + 1)
        return y - x.constant(3.0) * x.constant(2.0)

    graph = in_branch(wasteful)
    after = run_passes(graph, (step,))
    (before,) = map(len, [graph.nodes[0].op.then.nodes])
    assert len(after.nodes[0].op.then.nodes) < before
    assert after.nodes[0].op.otherwise == graph.nodes[0].op.otherwise


def test_graphs_without_regions_are_not_copied() -> None:
    graph = trace_body(lambda x: -x, [F2])
    assert map_regions(graph, Scramble()) is graph


def test_zeros_of_both_signs_are_not_shared() -> None:
    graph = trace_body(lambda x: (x.constant(0.0), x.constant(-0.0), x.constant(0.0)), [F2])
    assert len(Share()(graph).nodes) == 2


def test_swapped_inputs_are_shared_where_order_does_not_matter() -> None:
    graph = trace_body(lambda x, y: (x + y, y + x, x - y, y - x), [F2, F2])
    assert names(Share()(graph)) == ["add", "sub", "sub"]


def test_folding_keeps_64_bit_integers_exact() -> None:
    big = 2**53 + 1
    graph = trace_body(lambda x: x.constant(np.int64(big)) + x.constant(np.int64(2)), [F2])
    (node,) = Fold()(graph).nodes
    assert isinstance(node.op, Constant)
    assert node.op.data.array == big + 2


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize(
    ("first", "dtype", "expected"),
    [
        ([[2**53 + 1, -(2**62) - 3]], "int64", [2**53 + 1, -(2**62) - 3]),
        ([[2**40 + 5, -(2**31) - 1]], "int32", [5, 2**31 - 1]),  # narrower types wrap
        ([[2**53 + 1, -3]], "float64", [2**53, -3]),
    ],
)
def test_casts_and_concatenations_of_64_bit_integers_fold_exactly(
    first: list[list[int]], dtype: str, expected: list[int], axis: int
) -> None:
    values = np.array(first, np.int64)

    def body(x):
        wide = x.constant(values).astype(dt.as_dtype(dtype)).astype(dt.int64)
        return Concat(axis)(wide, x.constant(values))

    (node,) = run_passes(trace_body(body, [F2]), parse_passes("expand,fold,dce")).nodes
    assert isinstance(node.op, Constant)
    found = node.op.data.array
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, np.concatenate([[expected], values], axis))


def test_large_results_are_not_folded() -> None:
    graph = trace_body(lambda x: x.constant(np.ones((1, 9))) + x.constant(np.ones((9, 1))), [F2])
    assert names(Fold()(graph)) == ["constant"]
    assert names(Fold(limit=8)(graph)) == ["constant", "constant", "add"]


def test_broadcasts_stay_lazy() -> None:
    graph = trace_body(lambda x: (-x.constant(1.0)).broadcast_to((1000,)), [F2])
    assert names(Fold()(graph)) == ["constant", "broadcast"]
    assert names(Fold(lazy=1000)(graph)) == ["constant"]


def test_ops_that_make_arrays_from_nothing_stay_lazy() -> None:
    def body(x):
        return x.builder.apply(Full((1000,), 2.5), ())[0] * x.constant(2.0)

    assert names(Fold()(trace_body(body, [F2]))) == ["full", "constant", "mul"]
    assert names(Fold(lazy=1000)(trace_body(body, [F2]))) == ["constant"]


def test_what_fails_on_constants_is_left_to_the_run() -> None:
    def body(x):
        return Take(0)(x.constant(np.zeros((3, 4))), x.constant(np.array([99], np.int32)))

    assert names(Fold()(trace_body(body, [F2]))) == ["constant", "constant", "take"]


def test_collectives_stay_even_if_nobody_reads_them() -> None:
    def body(x):
        AllReduce()(x), AllReduce()(x), AllReduce()(x.constant(2.0))
        return x

    graph = trace_body(body, [F2])
    after = run_passes(graph, parse_passes("dce,cse,fold,simplify"))
    assert names(after) == names(graph) == ["all_reduce"] * 2 + ["constant", "all_reduce"]
    kept = run_passes(in_branch(body), parse_passes("dce"))
    assert len(kept.nodes[0].op.then.nodes) == 4


def test_foreign_code_is_neither_folded_nor_shared() -> None:
    kernel = custom_op("plus_one", lambda a, x: (x,), lambda a, x: x + 1)

    def body(x):
        one = x.constant(np.ones(2))
        return kernel()(one), kernel()(one)

    after = run_passes(trace_body(body, [F2]), parse_passes("cse,fold"))
    assert names(after) == ["constant", "custom", "custom"]


class Triple(Composite):
    """Three times x, for these tests."""

    name = "triple_for_tests"
    dtypes = dt.FLOATS

    def body(self, x):
        return x + x + x

    @classmethod
    def samples(cls):
        return ()


class Nine(Composite):
    """Nine times x, for these tests."""

    name = "nine_for_tests"
    dtypes = dt.FLOATS

    def body(self, x):
        return Triple()(Triple()(x))

    @classmethod
    def samples(cls):
        return ()


def test_expanding_composites() -> None:
    graph = trace_body(lambda x: Nine()(x), [F2])
    assert names(graph) == ["nine_for_tests"]
    assert names(Expand()(graph)) == ["add"] * 4
    assert names(Expand(keep=("triple_for_tests",))(graph)) == ["triple_for_tests"] * 2
    assert names(Expand(keep=("nine_for_tests",))(graph)) == ["nine_for_tests"]


def test_a_composite_that_is_kept_by_name_may_be_expanded_for_its_types() -> None:
    graph = trace_body(lambda x: Nine()(x), [F2])
    kept = ("nine_for_tests", "triple_for_tests")
    asked = []

    def takes(op: Any, types: tuple[TensorType, ...]) -> bool:
        asked.append(types)
        return op.name != "nine_for_tests"

    assert names(Expand(kept, takes)(graph)) == ["triple_for_tests"] * 2
    assert set(asked) == {(F2,)}


def test_a_composite_whose_type_rule_lies_is_named() -> None:
    class Liar(Triple):
        def infer(self, *types):
            return (TensorType(dt.int8, ()),)

    with pytest.raises(GraphError, match=r"its type rule gives int8\[\], its body float32\[2\]"):
        Expand()(trace_body(lambda x: Liar()(x), [F2]))


def test_symbolic_graphs_pass_through() -> None:
    n, m = symbol("n"), symbol("m")
    types = [TensorType(dt.float32, (n, 2)), TensorType(dt.float32, (m, 2))]
    graph = trace_body(
        lambda x, y: Add()(Neg()(Neg()(x)), y).reshape((n * 2,)).reshape((2 * n, 1)), types
    )
    after = run_passes(graph, parse_passes("simplify,cse,fold,dce"))
    assert names(after) == ["add", "reshape"]
    assert after.guards == graph.guards


COMPOSITES = sorted(n for n, cls in REGISTRY.items() if issubclass(cls, Composite))


@pytest.mark.parametrize("name", COMPOSITES)
def test_expanding_keeps_results(name: str) -> None:
    for sample in REGISTRY[name].samples()[:4]:
        dtype = sample.element_types()[-1]
        graph = graph_of(sample, dtype)
        after = run_passes(graph, (Expand(),))
        assert not any(isinstance(n.op, Composite) for n in after.nodes)
        arrays = sample.arrays(dtype)
        with np.errstate(all="ignore"):
            before, results = evaluate(graph, arrays), evaluate(after, arrays)
        # The oracle of a composite may be another formula than its body.
        tolerance = 1e-9 if dtype is dt.float64 else 2e-2
        for x, y in zip(before, results, strict=True):
            x, y = (a.astype(np.float64) for a in (x, y))
            np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)
