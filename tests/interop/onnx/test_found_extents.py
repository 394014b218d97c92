"""Models whose data decide extents, compiled whole, beside ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.onnx

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
runtime = pytest.importorskip("onnxruntime", reason="needs ONNX Runtime to compare with")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import treadle as mge  # noqa: E402
from treadle.base.errors import TreadleError, UnsupportedOp  # noqa: E402
from treadle.interop.onnx import load  # noqa: E402

make = helper.make_node
KINDS = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "b": TensorProto.BOOL}


def model(
    nodes: list[Any],
    inputs: dict[str, Any],
    outputs: dict[str, str],
    known: dict[str, Any],
    axes: tuple[str, ...] = (),
) -> Any:
    """A model; inputs are arrays such as it gets, outputs an element type and as many axes.

    Of all inputs the first axes are open where they have names.
    """
    given = [
        helper.make_tensor_value_info(
            n, helper.np_dtype_to_tensor_dtype(a.dtype), (*axes, *a.shape[len(axes) :])
        )
        for n, a in inputs.items()
    ]
    made = [
        helper.make_tensor_value_info(n, KINDS[kind[0]], [f"{n}{i}" for i in range(int(kind[1]))])
        for n, kind in outputs.items()
    ]
    arrays = [numpy_helper.from_array(np.asarray(a), n) for n, a in known.items()]
    graph = helper.make_graph(nodes, "tail", given, made, arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def agree(built: Any, feeds: list[dict[str, Any]], phases: int | None = 2) -> list[list[Any]]:
    """Compare both ways to run a model with ONNX Runtime; what that gives."""
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(built.SerializeToString(), options)
    network = load(built)
    compiled = mge.jit.compile(network)
    found = []
    for feed in feeds:
        wanted = session.run(None, feed)
        tensors = [mge.tensor(a, dtype=a.dtype) for a in feed.values()]
        for run in (network, compiled):
            made = run(*tensors)
            for got, want in zip(made if isinstance(made, tuple) else (made,), wanted, strict=True):
                assert got.shape == want.shape and got.numpy().dtype == want.dtype
                np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)
        found.append(wanted)
    assert phases is None or compiled.counters.phases == phases * len(feeds)
    return found


def detector(count: int, most: int, least: float = 0.6) -> list[Any]:
    """Sigmoids, suppression per class, a gather of what is kept, and the best ten of it."""
    return [
        make("Sigmoid", ["raw"], ["scores"]),
        make("NonMaxSuppression", ["boxes", "scores", "most", "iou", "least"], ["kept"],
             center_point_box=1),
        make("GatherND", ["scores", "kept"], ["best"]),
        make("Gather", ["kept", "two"], ["column"], axis=1),
        make("Squeeze", ["column", "two_axis"], ["place"]),
        make("Squeeze", ["boxes", "zero_axis"], ["flat"]),
        make("Gather", ["flat", "place"], ["rows"], axis=0),
        make("Shape", ["best"], ["count"]),
        make("Concat", ["count", "ten"], ["both"], axis=0),
        make("ReduceMin", ["both"], ["fewer"], keepdims=1),
        make("TopK", ["best", "fewer"], ["top", "at"]),
        make("Gather", ["rows", "at"], ["chosen"], axis=0),
        make("Slice", ["chosen", "zero_axis", "two", "two_axis"], ["centers"]),
    ]  # fmt: skip


KNOWN: dict[str, Any] = {
    "iou": np.float32([0.45]),
    "two": np.array([2]),
    "two_axis": np.array([1]),
    "zero_axis": np.array([0]),
    "ten": np.array([10]),
}


def feed_of(count: int, shift: float, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    boxes = np.concatenate([rng.random((1, count, 2)) * 40, rng.random((1, count, 2)) * 15 + 1], 2)
    raw = rng.standard_normal((1, 3, count)) + shift
    return {"boxes": boxes.astype("float32"), "raw": raw.astype("float32")}


OUTPUTS = {"top": "f1", "centers": "f2", "kept": "i2", "count": "i1"}


def test_a_detectors_tail_with_no_box_one_few_and_many() -> None:
    feeds = [feed_of(60, s, i) for i, s in enumerate((0.0, -9.0, -2.2, -1.0, 3.0, 0.5, -9.0))]
    known = {**KNOWN, "most": np.array([20]), "least": np.float32([0.6])}
    found = agree(model(detector(60, 20), feeds[0], OUTPUTS, known), feeds)
    counts = [len(kept) for _, _, kept, _ in found]
    assert min(counts) == 0 and 0 < sorted(counts)[2] < 10 < max(counts)


def test_hostile_scores_boxes_and_limits() -> None:
    feed = feed_of(12, 1.0, 0)
    feed["raw"][0, :, ::3] = np.nan
    feed["boxes"][0, 1] = (5, 5, -3, -3)
    feed["boxes"][0, 2] = (np.inf, 5, 1, 1)
    feed["boxes"][0, 4] = 0
    known = {**KNOWN, "least": np.float32([0.1])}
    for most, iou in ((5, 0.45), (1 << 40, 0.0), (3, 1.0)):
        given = {**known, "most": np.array([most]), "iou": np.float32([iou])}
        agree(model(detector(12, most), feed, OUTPUTS, given), [feed])
    for most in (0, -3):
        given = {**known, "most": np.array([most])}
        (found,) = agree(model(detector(12, most), feed, OUTPUTS, given), [feed], phases=0)
        assert found[2].shape == (0, 3)
    wrong = model(
        detector(12, 1), feed, OUTPUTS, {**known, "most": np.array([1]), "iou": np.float32([2])}
    )
    with pytest.raises(UnsupportedOp, match="iou_threshold is 2"):
        load(wrong)(*map(mge.tensor, feed.values()))


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("is_sorted", [0, 1])
def test_unique_values_and_rows(axis: int | None, is_sorted: int) -> None:
    shape, attributes = (5, 3) if axis == 0 else (3, 5), {} if axis is None else {"axis": axis}
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.integers(0, k, shape).astype("float32")} for k in (2, 1, 3, 50)]
    nodes = [
        make("Unique", ["x"], ["y", "first", "inverse", "counts"], sorted=is_sorted, **attributes)
    ]
    outputs = {"y": "f1" if axis is None else "f2", "first": "i1", "inverse": "i1", "counts": "i1"}
    agree(model(nodes, feeds[0], outputs, {}), feeds)


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("is_sorted", [0, 1])
def test_unique_of_nan_and_zeros_of_both_signs(axis: int | None, is_sorted: int) -> None:
    """As ONNX's reference has it: NaN is one value, a row with NaN is none like it."""
    from onnx.reference import ReferenceEvaluator

    rows = np.float32([[1, np.nan], [0.0, 2], [1, np.nan], [-0.0, 2]])
    if axis is None:  # The reference fails for what it has to flatten.
        rows = rows.reshape(-1)
    attributes = {} if axis is None else {"axis": axis}
    node = make("Unique", ["x"], ["y", "at", "inverse", "counts"], sorted=is_sorted, **attributes)
    outputs = {"y": "f1" if axis is None else "f2", "at": "i1", "inverse": "i1", "counts": "i1"}
    built = model([node], {"x": rows}, outputs, {})
    wanted = ReferenceEvaluator(built).run(None, {"x": rows})
    network = load(built)
    for run in (network, mge.jit.compile(network)):
        for got, want in zip(run(mge.tensor(rows)), wanted, strict=True):
            np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("width", [2, 7, 65])
def test_unique_rows_of_any_width(width: int) -> None:
    """Rows that differ in one column, any one, or in none."""
    rng = np.random.default_rng(width)
    feeds = []
    for share in (0.0, 0.5, 1.0):
        rows = np.zeros((9, width), np.float32)
        changed = rng.random(9) < share
        rows[changed, rng.integers(0, width, changed.sum())] = rng.integers(-2, 3, changed.sum())
        feeds.append({"x": rows})
    outputs = {"y": "f2", "at": "i1", "inverse": "i1", "counts": "i1"}
    agree(model([make("Unique", ["x"], [*outputs], axis=0)], feeds[0], outputs, {}), feeds)


def test_unique_rows_without_elements() -> None:
    rows = np.zeros((3, 0), np.float32)
    network = load(model([make("Unique", ["x"], ["y"], axis=0)], {"x": rows}, {"y": "f2"}, {}))
    assert network(mge.tensor(rows)).shape == np.unique(rows, axis=0).shape
    with pytest.raises(UnsupportedOp, match="whose rows have no elements, must be known"):
        mge.jit.compile(network)(mge.tensor(rows))


def test_conditions_that_do_not_fit() -> None:
    x = np.arange(6, dtype="float32").reshape(2, 3)
    node, outputs = make("Compress", ["x", "mask"], ["y"], axis=1), {"y": "f2"}
    table = {"x": x, "mask": np.ones((2, 3), bool)}
    given = [{"x": x, "mask": np.array(m)} for m in ([True], [False, True, True, True])]
    for feed, problem in ((table, "condition has 2 axes"), (given[1], "3 is out of range")):
        for known in ({}, feed):
            network = load(model([node], {} if known else feed, outputs, known))
            with pytest.raises(TreadleError, match=problem):
                network(*(() if known else map(mge.tensor, feed.values())))
    agree(model([node], given[0], outputs, {}), given[:1])


def test_masks_and_places_that_are_not_zero() -> None:
    feeds = shares((6, 3))
    nodes = [
        make("Compress", ["x", "mask"], ["rows"], axis=0),
        make("ReduceMax", ["rows"], ["most"], axes=[0], keepdims=0),
        make("ReduceMean", ["rows"], ["mean"], axes=[1], keepdims=0),
        make("NonZero", ["mask"], ["places"]),
        make("Size", ["rows"], ["size"]),
    ]
    outputs = {"rows": "f2", "most": "f1", "mean": "f1", "places": "i2", "size": "i0"}
    agree(model(nodes, feeds[0], outputs, {}), feeds)


def test_a_branch_for_nothing_is_that_for_some() -> None:
    """Exporters of PyTorch's detectors guard the maximum of no boxes so."""
    empty = helper.make_graph(
        [make("Constant", [], ["none"], value=numpy_helper.from_array(np.zeros(0, np.int64)))],
        "nothing", [], [helper.make_tensor_value_info("none", TensorProto.INT64, ["k"])],
    )  # fmt: skip
    some = helper.make_graph(
        [
            make("ReduceMax", ["rows"], ["most"], keepdims=0),
            make("Less", ["rows", "most"], ["below"]),
            make("Reshape", ["below", "flat"], ["line"]),
            make("NonZero", ["line"], ["at"]),
            make("Squeeze", ["at", "zero"], ["found"]),
        ],
        "some", [], [helper.make_tensor_value_info("found", TensorProto.INT64, ["k"])],
    )  # fmt: skip
    nodes = [
        make("Compress", ["x", "mask"], ["rows"], axis=0),
        make("Shape", ["rows"], ["shape"]),
        make("ReduceProd", ["shape"], ["size"], keepdims=0),
        make("Equal", ["size", "nothing"], ["is_empty"]),
        make("If", ["is_empty"], ["y"], then_branch=empty, else_branch=some),
    ]
    feeds = shares((6, 3))
    known = {"flat": np.array([-1]), "zero": np.array([0]), "nothing": np.array(0)}
    agree(model(nodes, feeds[0], {"y": "i1"}, known), feeds, phases=3)


def shares(*shapes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Feeds with masks that choose some, none, few and all rows."""
    rng = np.random.default_rng(0)
    return [
        {"x": rng.standard_normal(shape).astype("float32"), "mask": rng.random(shape[0]) < share}
        for shape in shapes
        for share in (0.5, 0.0, 0.2, 1.0)
    ]


def test_shapes_of_what_has_been_found() -> None:
    """Exporters write reshapes, expansions and ends of slices so, of RoIs for one."""
    known = {
        "all": np.array([-1]), "one": np.array([1]), "zero": np.array([0]), "four": np.array([4]),
        "minus": np.array(-1), "end": np.array([np.iinfo(np.int64).max]), "row": np.float32([[2]]),
    }  # fmt: skip
    nodes = [
        make("Compress", ["x", "mask"], ["rows"], axis=0),
        make("Shape", ["rows"], ["shape"]),
        make("Slice", ["shape", "zero", "one"], ["count"]),
        make("Concat", ["count", "four"], ["table"], axis=0),
        make("Expand", ["row", "table"], ["twos"]),
        make("Reshape", ["table", "all"], ["list"]),
        make("Shape", ["list"], ["length"]),
        make("ConstantOfShape", ["length"], ["ones"],
             value=numpy_helper.from_array(np.array([1]))),
        make("Mul", ["ones", "minus"], ["none"]),
        make("Equal", ["list", "none"], ["open"]),
        make("Where", ["open", "ones", "list"], ["target"]),
        make("Slice", ["rows", "zero", "end", "one"], ["same"]),
        make("Reshape", ["same", "target"], ["again"]),
        make("Add", ["again", "rows"], ["sum"]),
        make("Add", ["sum", "twos"], ["y"]),
    ]  # fmt: skip
    feeds = shares((6, 4), (9, 4))
    agree(model(nodes, feeds[0], {"y": "f2", "table": "i1"}, known, ("n",)), feeds)


def test_quotients_and_questions_of_extents() -> None:
    """A quotient of extents as floating point is no extent, whether the call or data decide it."""
    known = {"zero": np.array(0), "half": np.float32(0.5), "one": np.array(1)}
    nodes = [
        make("Compress", ["x", "mask"], ["rows"], axis=0),
        *(
            node
            for i, name in enumerate(("x", "rows"))
            for node in (
                make("Shape", [name], [f"shape{i}"]),
                make("Gather", [f"shape{i}", "zero"], [f"count{i}"]),
                make("Cast", [f"count{i}"], [f"float{i}"], to=TensorProto.FLOAT),
                make("Mul", [f"float{i}", "half"], [f"half{i}"]),
                make("Sqrt", [f"half{i}"], [f"root{i}"]),
            )
        ),
        make("Div", ["float1", "float0"], ["ratio"]),
        make("Equal", ["count1", "zero"], ["is_empty"]),
        make("Where", ["is_empty", "one", "count1"], ["least"]),
        make("Cast", ["is_empty"], ["number"], to=TensorProto.INT64),
        make("Shape", ["x"], ["whole"]),
        make("Cast", ["whole"], ["sizes"], to=TensorProto.FLOAT),
        make("Div", ["sizes", "float0"], ["sides"]),
    ]
    outputs = {"half0": "f0", "root1": "f0", "ratio": "f0", "least": "i0", "number": "i0"}
    feeds = shares((6, 4), (9, 4), (7, 4))
    agree(model(nodes, feeds[0], {**outputs, "sides": "f1"}, known, ("n",)), feeds)


def test_a_branch_in_which_data_decide_an_extent() -> None:
    """`If` on a value of the model: the branch runs in phases of its own."""
    chosen = helper.make_graph(
        [
            make("Compress", ["x", "mask"], ["rows"], axis=0),
            make("ReduceSum", ["rows"], ["found"], keepdims=0),
        ],
        "chosen", [], [helper.make_tensor_value_info("found", TensorProto.FLOAT, [])],
    )  # fmt: skip
    whole = helper.make_graph(
        [make("ReduceMean", ["x"], ["mean"], keepdims=0)],
        "whole", [], [helper.make_tensor_value_info("mean", TensorProto.FLOAT, [])],
    )  # fmt: skip
    nodes = [
        make("ReduceSum", ["x"], ["sum"], keepdims=0),
        make("Greater", ["sum", "zero"], ["is_more"]),
        make("If", ["is_more"], ["y"], then_branch=chosen, else_branch=whole),
    ]
    feeds = [{**feed, "x": feed["x"] + shift} for feed in shares((6, 4)) for shift in (1, -1)]
    agree(model(nodes, feeds[0], {"y": "f0"}, {"zero": np.float32(0)}), feeds, phases=None)


def test_a_branch_that_gives_what_data_decide() -> None:
    """Its rows are a new extent behind `If`, in both results one, and few or all of them."""

    def branch(name: str, *nodes: Any) -> Any:
        ends = [
            helper.make_tensor_value_info(f"{name}_rows", TensorProto.FLOAT, ["n", 4]),
            helper.make_tensor_value_info(f"{name}_firsts", TensorProto.FLOAT, ["n"]),
        ]
        first = make("Gather", [f"{name}_rows", "place"], [f"{name}_firsts"], axis=1)
        return helper.make_graph([*nodes, first], name, [], ends)

    few = branch("few", make("Compress", ["x", "mask"], ["few_rows"], axis=0))
    whole = branch("all", make("Neg", ["x"], ["all_rows"]))
    nodes = [
        make("ReduceSum", ["x"], ["sum"], keepdims=0),
        make("Greater", ["sum", "zero"], ["is_more"]),
        make("If", ["is_more"], ["rows", "firsts"], then_branch=few, else_branch=whole),
        make("Unsqueeze", ["firsts", "last"], ["column"]),
        make("Mul", ["rows", "column"], ["scaled"]),
        make("Shape", ["firsts"], ["count"]),
        make("MatMul", ["scaled", "square"], ["y"]),
    ]
    known = {
        "zero": np.float32(0),
        "place": np.int64(0),
        "last": np.array([1], np.int64),
        "square": np.arange(16, dtype=np.float32).reshape(4, 4),
    }
    feeds = [
        {**feed, "x": feed["x"] + shift, "mask": feed["mask"] & kept}
        for feed in shares((6, 4), (9, 4))
        for shift in (1, -1)
        for kept in (True, False)
    ]
    outputs = {"y": "f2", "count": "i1"}
    agree(model(nodes, feeds[0], outputs, known, ("n",)), feeds, phases=None)
