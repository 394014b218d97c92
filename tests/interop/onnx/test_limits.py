"""What a file may ask for: memory, turns of loops, files of other kinds."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.onnx

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from tests.interop.onnx import models  # noqa: E402

import treadle as mge  # noqa: E402
from treadle.base.errors import LoadError, TreadleError, UnsupportedOp  # noqa: E402
from treadle.interop.onnx import load  # noqa: E402
from treadle.interop.onnx.stored import FREE  # noqa: E402


@pytest.fixture(autouse=True)
def _on_the_cpu() -> None:
    mge.set_default_device("cpux")


def added(*more: onnx.NodeProto, weights: list[onnx.TensorProto] | None = None) -> onnx.ModelProto:
    nodes = [*more, helper.make_node("Add", ["x", "w"], ["y"])]
    return models.model(nodes, {"x": (2,)}, {"y": (None,)}, weights)


def with_sparse(*dims: int, index: int = 0) -> onnx.ModelProto:
    values = numpy_helper.from_array(np.ones(1, np.float32), "w")
    places = numpy_helper.from_array(np.array([index], np.int64), "places")
    made = added()
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, list(dims)))
    return made


def constant_of(size: int) -> onnx.ModelProto:
    size_of = numpy_helper.from_array(np.array([size], np.int64), "n")
    return added(helper.make_node("ConstantOfShape", ["n"], ["w"]), weights=[size_of])


def expanded(size: int) -> onnx.ModelProto:
    given = [
        numpy_helper.from_array(np.ones(1, np.float32), "one"),
        numpy_helper.from_array(np.array([size, 1], np.int64), "n"),
    ]
    return added(helper.make_node("Expand", ["one", "n"], ["w"]), weights=given)


def calling(depth: int) -> onnx.ModelProto:
    """Functions that each call the next one twice."""
    made = models.model(
        [helper.make_node("F0", ["x"], ["y"], domain="own")], {"x": (2,)}, {"y": (2,)}
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    for i in range(depth):
        inner = ("Relu", "") if i == depth - 1 else (f"F{i + 1}", "own")
        nodes = [
            helper.make_node(inner[0], ["a"], ["b"], domain=inner[1]),
            helper.make_node(inner[0], ["b"], ["c"], domain=inner[1]),
        ]
        made.functions.append(helper.make_function("own", f"F{i}", ["a"], ["c"], nodes, opsets))
    made.opset_import.append(helper.make_opsetid("own", 1))
    return made


GREEDY: dict[str, Callable[[], onnx.ModelProto]] = {
    "sparse": lambda: with_sparse(1 << 28),
    "sparse beyond addresses": lambda: with_sparse(1 << 40, 1 << 40),
    "a constant of a shape": lambda: constant_of(1 << 28),
    "an expanded constant": lambda: expanded(1 << 28),
}


@pytest.mark.parametrize("name", GREEDY)
def test_a_small_file_cannot_ask_for_much_memory(name: str) -> None:
    with pytest.raises(LoadError, match="limit"):
        load(GREEDY[name]().SerializeToString())


def test_the_limit_can_be_set() -> None:
    size = (FREE >> 2) + (1 << 20)
    assert load(with_sparse(8), limit=1000)(np.ones(1, np.float32)).shape == (8,)
    with pytest.raises(LoadError, match="limit"):
        load(with_sparse(size))
    with pytest.raises(LoadError, match="limit of 10"):
        load(with_sparse(8), limit=10)


@pytest.mark.parametrize("index", [8, -1])
def test_places_of_sparse_tensors_are_checked(index: int) -> None:
    with pytest.raises(TreadleError, match=r"do not fit|malformed"):
        load(with_sparse(8, index=index))


# -- data beside the file ----------------------------------------------------------------------


def beside(folder: Path, location: str, count: int = 1, size: int = 4) -> Path:
    tensors = []
    for i in range(count):
        tensor = TensorProto(name="w" if i == 0 else f"w{i}", data_type=TensorProto.FLOAT)
        tensor.dims.append(size)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
        tensors.append(tensor)
    path = folder / "model.onnx"
    path.write_bytes(added(weights=tensors).SerializeToString())
    return path


def test_data_that_is_named_often_counts_as_often(tmp_path: Path) -> None:
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(32 << 20)
    with pytest.raises(LoadError, match="limit"):
        load(beside(tmp_path, "w.bin", 40, 8 << 20))


@pytest.mark.timeout(60)
def test_neither_pipes_nor_devices_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LoadError):
        load(beside(tmp_path, "pipe"))
    for source in (tmp_path / "pipe", "/dev/zero", tmp_path):
        with pytest.raises(LoadError, match="not a plain file"):
            load(source)


def test_data_of_functions_and_of_sparse_attributes_stays_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(16))
    folder = tmp_path / "model"
    folder.mkdir()
    tensor = TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    made = models.model(
        [helper.make_node("F", ["x"], ["y"], domain="own")], {"x": (4,)}, {"y": (4,)}
    )
    nodes = [
        helper.make_node("Constant", [], ["c"], value=tensor),
        helper.make_node("Add", ["a", "c"], ["b"]),
    ]
    opsets = [helper.make_opsetid("", 21)]
    made.functions.append(helper.make_function("own", "F", ["a"], ["b"], nodes, opsets))
    made.opset_import.append(helper.make_opsetid("own", 1))
    (folder / "model.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(LoadError, match="folder"):
        load(folder / "model.onnx")


# -- what would not end ------------------------------------------------------------------------


def loop(condition: str, turns: int | None = (1 << 63) - 1) -> onnx.ModelProto:
    """Doubles x turn by turn; goes on as the named node says."""
    if condition == "Constant":
        true = numpy_helper.from_array(np.array(True))
        test = helper.make_node("Constant", [], ["again"], value=true)
    elif condition == "Identity":
        test = helper.make_node("Identity", ["on"], ["again"])
    else:
        test = helper.make_node("Less", ["turn", "last"], ["again"])
    body = helper.make_graph(
        [test, helper.make_node("Add", ["a", "a"], ["b"])],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, ()),
            helper.make_tensor_value_info("on", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("a", TensorProto.FLOAT, (2,)),
        ],
        [
            helper.make_tensor_value_info("again", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, (2,)),
        ],
    )
    given = [numpy_helper.from_array(np.array(3), "last")]
    if turns is not None:
        given.append(numpy_helper.from_array(np.array(turns), "most"))
    node = helper.make_node("Loop", ["" if turns is None else "most", "", "x"], ["y"], body=body)
    return models.model([node], {"x": (2,)}, {"y": (2,)}, given)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("turns", [(1 << 63) - 1, None])
def test_a_loop_without_end_is_refused(turns: int | None) -> None:
    x = np.ones(2, np.float32)
    for condition in ("Constant", "Identity"):
        with pytest.raises(UnsupportedOp, match="condition never changes"):
            load(loop(condition, turns))(x)
    np.testing.assert_array_equal(load(loop("Less", turns))(x).numpy(), [16.0, 16.0])


@pytest.mark.timeout(60)
def test_numbers_of_pieces_and_lengths_of_grams_end() -> None:
    """Lists of 2^62 extents and of 2^31 lengths were gone through one by one."""
    split = helper.make_node("Split", ["x"], ["y", "z"], num_outputs=1 << 62)
    with pytest.raises(UnsupportedOp, match="num_outputs"):
        load(models.model([split], {"x": (4,)}, {"y": (2,), "z": (2,)}))(np.ones(4, np.float32))
    grams = helper.make_node(
        "TfIdfVectorizer",
        ["x"],
        ["y"],
        mode="TF",
        min_gram_length=1,
        max_gram_length=(1 << 62),
        max_skip_count=(1 << 62),
        ngram_counts=[0, 2],
        ngram_indexes=[1, 0, 2, 3],
        pool_int64s=[7, 8, 5, 6, 5, 8],
    )
    x = helper.make_tensor_value_info("x", TensorProto.INT64, (4,))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (4,))
    made = helper.make_model(helper.make_graph([grams], "g", [x], [y]))
    found = load(made)(np.array([5, 5, 6, 8])).numpy()
    np.testing.assert_array_equal(found, [1, 0, 2, 2])


@pytest.mark.timeout(120)
def test_functions_that_call_functions_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.interop.onnx.runner.MOST_STEPS", 3000)
    with pytest.raises(UnsupportedOp, match="nodes have run"):
        load(calling(30))(np.ones(2, np.float32))


def test_the_kernel_an_attribute_names_is_that_of_the_weights() -> None:
    for op, shape in (("Conv", (1, 1, 2, 2)), ("ConvTranspose", (1, 1, 2, 2))):
        node = helper.make_node(op, ["x", "w"], ["y"], kernel_shape=[9, 9], name="stem")
        made = models.model(
            [node], {"x": (1, 1, 12, 12)}, {"y": (None,)}, [models.array("w", *shape)]
        )
        with pytest.raises(UnsupportedOp, match=r"kernel_shape is \[9, 9\].*'stem'"):
            load(made)(np.zeros((1, 1, 12, 12), np.float32))


def test_what_an_empty_optional_holds_is_refused() -> None:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, (2,)))
    empty = helper.make_node("Optional", [], ["o"], type=kind)
    with pytest.raises(UnsupportedOp, match="the optional is empty"):
        load(added(empty, helper.make_node("OptionalGetElement", ["o"], ["w"])))
    full = helper.make_node("Optional", ["x"], ["o"])
    made = load(added(full, helper.make_node("OptionalGetElement", ["o"], ["w"])))
    np.testing.assert_array_equal(made(np.array([1, 2], np.float32)), [2, 4])
