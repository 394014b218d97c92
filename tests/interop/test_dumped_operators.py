"""Operators of models that MegEngine's runtime dumped: files of one operator, and what they give.

Layouts are those of files that MegEngine 1.13 wrote of the same functions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.interop.test_dumped import Fields, root

import treadle as mge
import treadle.functional as F
from treadle.interop.megengine import read_model
from treadle.interop.megengine.dumped import as_model
from treadle.interop.megengine.dumped.operators import xxh64
from treadle.lite import LiteNetwork
from treadle.tensor import Tensor
from treadle.utils.comp_graph_tools import GraphInference
from treadle.utils.network import Network

Step = tuple[str, list[int], Fields | None, int]
"""An operator: type, numbers of the values it takes, parameters, how many results it has."""

DTYPES = {"float32": 0, "uint8": 1, "int8": 2, "int32": 4, "bool": 18}
R = np.random.RandomState(0)
X = R.randn(2, 3, 8, 8).astype("float32")
V = R.randn(3, 5).astype("float32")
INDEX = np.array([2, 0, 1], "int32")
EYES = np.tile(np.eye(3, dtype="float32"), (2, 1, 1))
ROIS = np.array([[0, 1, 1, 6, 5], [1, 2, 0, 4, 4]], "float32")


def tensor(value: Any, first: bool) -> tuple[Fields, bytes]:
    """A named shape, or the values of a constant."""
    raw = value.tobytes() if isinstance(value, np.ndarray) else b""
    shape, dtype = (value.shape, value.dtype) if raw else (value[1], value[2])
    fields: Fields = {1: ("structs I", [(n,) for n in shape])}
    fields[3] = ("table", {0: ("b", DTYPES[str(dtype)])})
    if not raw:
        fields[0] = ("text", value[0])
    fields |= {4: ("I", len(raw))} if first else {6: ("raw", raw)}
    return fields, raw


def file_of(
    inputs: Sequence[Any],
    constants: Sequence[Any],
    steps: Sequence[Step],
    wanted: Sequence[int],
    first: bool = False,
    result: Fields | None = None,
) -> bytes:
    """A model: inputs, constants, then steps; values are numbered in this order."""
    ends = [
        *(("Host2DeviceCopy", (f"arg_{i}", x.shape, x.dtype)) for i, x in enumerate(inputs)),
        *(("ImmutableTensor", c) for c in constants),
    ]
    operators, values, count = [], b"", 0
    listed = [(kind, [], {}, 1, value) for kind, value in ends]
    for kind, given, parameters, results, value in [*listed, *((*s, None) for s in steps)]:
        made: Fields = {0: ("Q", xxh64(kind.encode()))} if first else {0: ("text", kind)}
        at = 0 if first else 2
        made[3 + 2 * at] = ("structs I", [(n,) for n in given])
        if not first:
            made[8] = ("structs I", [(count + i,) for i in range(results)])
        if parameters is not None:
            made |= {1 + at: ("B", 1), 2 + at: ("table", parameters)}
        if value is not None:
            fields, raw = tensor(value, first)
            values += raw
            made[7 if first else 11] = ("tables", [fields])
        elif result is not None:
            made[6 if first else 10] = ("table", result)
        operators.append(made)
        count += results
    if first:
        graph: Fields = {0: ("I", 100900), 3: ("tables", operators)}
        graph[4] = ("structs II", [(n, 0) for n in wanted])
        head = b"MGBC" + struct.pack("<IQQ", 0, 0, len(values))
        return head + values + root(graph, b"mgb1")
    names: list[Fields] = [{0: ("text", f"v{i}")} for i in range(count)]
    graph = {0: ("I", 101300), 1: ("I", 2), 2: ("tables", operators), 3: ("tables", names)}
    graph[4] = ("tables", [{0: ("I", n)} for n in wanted])
    return root(graph, b"mgv2")


def channels(low: float) -> np.ndarray[Any, Any]:
    return (np.arange(3, dtype="float32") + low).reshape(1, 3, 1, 1)


def normalized_in_training(x: Tensor) -> list[np.ndarray[Any, Any]]:
    """The new mean and variance, and the result, with a share of 0.25 of the batch's."""
    axes, array = (0, 2, 3), x.numpy().astype("float64")
    mean, var = array.mean(axes, keepdims=True), array.var(axes, keepdims=True)
    unbiased = array.var(axes, ddof=1, keepdims=True)
    y = (array - mean) / np.sqrt(var + 0.5) * channels(1) + channels(2)
    return [0.75 * channels(3) + 0.25 * mean, 0.75 * channels(4) + 0.25 * unbiased, y]


def numbers(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, "int32")


CASES: dict[str, tuple[Any, ...]] = {
    # inputs, constants, type, parameters, number of results, which are wanted, what is expected
    "Argsort": ([V], [], "Argsort", {0: ("I", 1)}, 2, (0, 1), lambda x: F.sort(x, descending=True)),
    "CondTake": ([V, V > 0], [], "CondTake", {}, 2, (0, 1), lambda x, m: F.cond_take(m, x)),
    "TopK": ([V], [numbers(-2)], "TopK", {0: ("I", 2)}, 2, (0, 1), lambda x: F.topk(x, 2)),
    "Cumsum": (
        *([V], [], "CumsumV1", {0: ("i", 1), 1: ("?", False)}, 1, (0,)),
        lambda x: [F.cumsum(x, 1)],
    ),
    "IndexingOneHot": (
        *([V, INDEX], [], "IndexingOneHot", {0: ("i", 1)}, 1, (0,)),
        lambda x, i: [F.indexing_one_hot(x, i, 1, keepdims=True)],
    ),
    "Split": (
        *([V], [numbers(2), numbers(3)], "Split", {0: ("i", 1)}, 2, (0, 1)),
        lambda x: F.split(x, [2], 1),
    ),
    "Subtensor": (
        # x[0:2:1, 3]: MegEngine writes ranges from the last axis on.
        *([V], [numbers(3), numbers(0), numbers(2), numbers(1)], "Subtensor"),
        *({0: ("structs b????", [(1, 0, 0, 0, 1), (0, 1, 1, 1, 0)])}, 1, (0,)),
        lambda x: [x[0:2, 3]],
    ),
    "SetSubtensor": (
        *([V, V[:2, 3]], [numbers(3), numbers(0), numbers(2), numbers(1)], "SetSubtensor"),
        *({0: ("structs b????", [(1, 0, 0, 0, 1), (0, 1, 1, 1, 0)])}, 1, (0,)),
        lambda x, v: [x],
    ),
    "IndexingMultiAxisVec": (
        *([V, INDEX], [], "IndexingMultiAxisVec"),
        *({0: ("structs b????", [(0, 0, 0, 0, 1)])}, 1, (0,)),
        lambda x, i: [x[i]],
    ),
    "Padding": (
        *([V], [], "Padding", {1: ("I", 1), 7: ("I", 2), 14: ("f", 3.0), 15: ("I", 2)}, 1, (0,)),
        lambda x: [F.pad(x, ((0, 2), (1, 0)), constant_value=3.0)],
    ),
    "LayerNorm": (
        *([V], [], "LayerNorm", {0: ("?", False), 3: ("Q", 5)}, 3, (0,)),
        lambda x: [F.layer_norm(x, (5,), False)],
    ),
    "BatchNorm, training": (
        *([X], [channels(low) for low in (1, 2, 3, 4)], "BatchNorm"),
        *({0: ("I", 2), 1: ("I", 0), 2: ("d", 0.5), 3: ("d", 0.25)}, 6, (0, 1, 5)),
        normalized_in_training,
    ),
    "BatchNorm": (
        *([X], [channels(low) for low in (1, 2, 3, 4)], "BatchNorm"),
        *({0: ("I", 2), 1: ("I", 1), 2: ("d", 0.5)}, 4, (0, 3)),
        lambda x: [
            channels(3),
            (x - channels(3)) / np.sqrt(channels(4) + 0.5) * channels(1) + channels(2),
        ],
    ),
    "GroupNorm": (
        *([X], [], "GroupNorm", {0: ("?", False), 2: ("I", 3)}, 3, (0,)),
        lambda x: [F.group_norm(x, 3, False)],
    ),
    "Resize": (
        *([X], [numbers(5, 9)], "ResizeV2", {1: ("I", 0)}, 1, (0,)),
        lambda x: [F.vision.resize(x, (5, 9))],
    ),
    "WarpPerspective": (
        *([X, EYES], [numbers(4, 5)], "WarpPerspectiveV2", {1: ("I", 4), 3: ("f", 2.0)}, 1, (0,)),
        lambda x, m: [
            F.vision.warp_perspective(x, m, (4, 5), border_mode="constant", border_val=2.0)
        ],
    ),
    "ROIAlign": (
        *([X, ROIS], [], "ROIAlignV1"),
        *({0: ("I", 1), 3: ("f", 0.5), 4: ("I", 2), 5: ("I", 3)}, 2, (0,)),
        lambda x, r: [F.vision.roi_align(x, r, (2, 3))],
    ),
    "Eye": ([], [numbers(3, 4)], "Eye", {0: ("i", 1)}, 1, (0,), lambda: [F.eye(5)[1:4, 1:5] * 0]),
    "ConvBias": (
        *([X], [np.ones((4, 3, 3, 3), "float32"), np.ones((1, 4, 1, 1), "float32")]),
        *("ConvBiasForwardV4", {0: ("I", 1), 4: ("I", 1), 5: ("I", 1)}, 1, (0,)),
        lambda x: [F.relu(F.conv2d(x, F.ones((4, 3, 3, 3)), None, 1, 1) + 1)],
    ),
    "Convolution3D": (
        *([X[:, :, None]], [np.ones((2, 3, 1, 3, 3), "float32")], "Convolution3D", {}, 1, (0,)),
        lambda x: [F.conv3d(x, F.ones((2, 3, 1, 3, 3)))],
    ),
    "SVD": (
        *([V], [], "SVD", {1: ("?", False)}, 1, (0,)),
        lambda x: [F.svd(x, compute_uv=False)],
    ),
}
CASES["Eye"] = (*CASES["Eye"][:-1], lambda: [np.eye(3, 4, 1)])
CASES["SetSubtensor"] = (*CASES["SetSubtensor"][:-1], lambda x, v: [x])


@pytest.mark.parametrize("first", [False, True], ids=["second", "first"])
@pytest.mark.parametrize("name", CASES)
def test_operators_of_files(name: str, first: bool, tmp_path: Path) -> None:
    """Files of the first version do not say how many results an operator has."""
    inputs, constants, kind, parameters, results, wanted, expected = CASES[name]
    before = len(inputs) + len(constants)
    steps: list[Step] = [(kind, list(range(before)), parameters, results)]
    # Somebody reads what follows, so that a wrong count would be noticed.
    steps.append(("PowC", [before], {0: ("f", 1.0)}, 1))
    asked = [before + n for n in wanted] + [before + results]
    path = tmp_path / "model.mge"
    path.write_bytes(file_of(inputs, constants, steps, asked, first))
    model = read_model(path)
    found = model(*map(mge.tensor, inputs))
    each = list(expected(*map(mge.tensor, inputs)))
    for got, want in zip(found, [*each, each[0]], strict=True):
        array = want.numpy() if isinstance(want, Tensor) else want
        np.testing.assert_allclose(got.numpy().reshape(array.shape), array, rtol=1e-5, atol=1e-5)
    if name not in ("Eye",):
        assert as_model(model).outputs[0] == ("output0" if first else f"v{before}")


def test_quantized_results_have_the_scale_of_the_file(tmp_path: Path) -> None:
    x = np.array([1, -2, 3], "int8")
    scale: Fields = {0: ("b", 12), 1: ("B", 1), 2: ("table", {0: ("f", 2.0)})}
    path = tmp_path / "model.mge"
    path.write_bytes(
        file_of([x, x], [], [("ElemwiseMultiType", [0, 1], {0: ("I", 6)}, 1)], [2], result=scale)
    )
    (found,) = read_model(path)(mge.tensor(x), mge.tensor(x))
    assert found._kind.quantized.scale == 2.0 and found.numpy().tolist() == [1, -2, 3]
    path.write_bytes(file_of([V], [], [("TypeCvtV2", [0], scale, 1)], [1]))
    (found,) = read_model(path)(mge.tensor(V))
    np.testing.assert_array_equal(found.numpy(), np.rint(V / 2).astype("int32"))


def flattening() -> bytes:
    """x.reshape(len(x), -1) * 2: the shape is taken apart and joined again by operators."""
    first = {0: ("structs b????", [(0, 0, 0, 0, 1)])}
    steps: list[Step] = [
        ("GetVarShapeV1", [0], {}, 1),
        ("Subtensor", [4, 1], first, 1),
        ("Concat", [5, 2], {0: ("i", 0)}, 1),
        ("ReshapeV1", [0, 6], {0: ("i", 1)}, 1),
        ("Elemwise", [7, 3], {0: ("I", 21)}, 1),
    ]
    two = np.array([2.0], "float32")
    return file_of([X], [numbers(0), numbers(1), two], steps, [8])


def test_dumped_models_run_wherever_models_do_at_any_size(tmp_path: Path) -> None:
    path = tmp_path / "model.mge"
    path.write_bytes(flattening())
    infer, other = GraphInference(path), R.randn(5, 3, 4, 6).astype("float32")
    for x in (X, other):
        np.testing.assert_allclose(infer.run(x)["v8"], 2 * x.reshape(len(x), -1))
    net = Network.load(path)
    assert [v.name for v in net.input_vars] == ["arg_0"] and net.output_vars[0].shape == (2, 192)
    var = net.get_var_by_name("v8")
    net.replace_vars({var: F.relu(var)})
    net.dump(tmp_path / "edited.mge")
    found = GraphInference(tmp_path / "edited.mge").run(other)["v8"]
    np.testing.assert_allclose(found, np.maximum(2 * other.reshape(5, -1), 0))
    lite = LiteNetwork()
    lite.load(str(path))
    lite.get_io_tensor("arg_0").set_data_by_copy(other)
    lite.forward()
    lite.wait()
    np.testing.assert_allclose(lite.get_io_tensor("v8").to_numpy(), 2 * other.reshape(5, -1))
