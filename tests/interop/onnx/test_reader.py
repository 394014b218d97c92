"""Damaged and hostile files: an error of ours, in bounded time, and no file outside the folder."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.onnx

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from tests.interop.onnx import models  # noqa: E402

import treadle as mge  # noqa: E402
from treadle.base.errors import LoadError, TreadleError  # noqa: E402
from treadle.interop.onnx import load  # noqa: E402


@pytest.fixture(autouse=True)
def _on_the_cpu() -> None:
    mge.set_default_device("cpux")


def relu() -> onnx.ModelProto:
    return models.model([helper.make_node("Relu", ["x"], ["y"])], {"x": (2,)}, {"y": (2,)})


def with_node(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node(op, inputs, outputs, **attributes)
    return models.model([node], {"x": (2, 2)}, {"y": (2, 2)})


def cycle() -> onnx.ModelProto:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    return models.model(nodes, {"x": (2,)}, {"b": (2,)})


def duplicate_output() -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["y"])]
    return models.model(nodes, {"x": (2,)}, {"y": (2,)})


def with_tensor(change: Callable[[onnx.TensorProto], None]) -> onnx.ModelProto:
    tensor = models.array("w", 2, 2)
    change(tensor)
    node = helper.make_node("Add", ["x", "w"], ["y"])
    return models.model([node], {"x": (2, 2)}, {"y": (2, 2)}, [tensor])


def extents(*dims: int) -> Callable[[onnx.TensorProto], None]:
    def change(tensor: onnx.TensorProto) -> None:
        del tensor.dims[:]
        tensor.dims.extend(dims)

    return change


def short(tensor: onnx.TensorProto) -> None:
    tensor.raw_data = tensor.raw_data[:7]


def nested(depth: int) -> onnx.ModelProto:
    inner = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["r0"])],
        "g0",
        [],
        [helper.make_tensor_value_info("r0", TensorProto.FLOAT, (2,))],
    )
    for i in range(1, depth):
        node = helper.make_node("If", ["c"], [f"r{i}"], then_branch=inner, else_branch=inner)
        out = helper.make_tensor_value_info(f"r{i}", TensorProto.FLOAT, (2,))
        inner = helper.make_graph([node], f"g{i}", [], [out])
        if inner.ByteSize() > 1 << 20:
            break
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    true = numpy_helper.from_array(np.array(True), "c")
    return models.model([node], {"x": (2,)}, {"y": (2,)}, [true])


def future() -> onnx.ModelProto:
    made = relu()
    made.opset_import[0].version = 99
    return made


BAD: dict[str, Callable[[], onnx.ModelProto]] = {
    "cycle": cycle,
    "undefined input": lambda: with_node("Relu", ["nothing"], ["y"]),
    "duplicate output": duplicate_output,
    "unknown operator": lambda: with_node("Nonsense", ["x"], ["y"]),
    "unknown domain": lambda: with_node("Relu", ["x"], ["y"], domain="nobody"),
    "opset of the future": future,
    "negative extent": lambda: with_tensor(extents(-2, 2)),
    "overflowing extents": lambda: with_tensor(extents(1 << 40, 1 << 40)),
    "other extents": lambda: with_tensor(extents(3, 3)),
    "short data": lambda: with_tensor(short),
    "no graph": onnx.ModelProto,
    "wrong attribute type": lambda: with_node("Softmax", ["x"], ["y"], axis="last"),
    "pool without extent": lambda: with_node("MaxPool", ["x"], ["y"], kernel_shape=[0, 0]),
    "stride 0": lambda: models.model(
        [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[1, 1], strides=[0, 0])],
        {"x": (1, 1, 2, 2)},
        {"y": (1, 1, 2, 2)},
    ),
    "huge result": lambda: models.model(
        [helper.make_node("ConstantOfShape", ["n"], ["y"])],
        {"x": (2,)},
        {"y": (None,)},
        [numpy_helper.from_array(np.array([1 << 40]), "n")],
    ),
    "index out of range": lambda: models.model(
        [helper.make_node("Gather", ["x", "i"], ["y"])],
        {"x": (2, 2)},
        {"y": (2, 2)},
        [numpy_helper.from_array(np.array([10**9, 0]), "i")],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_model_is_an_error_of_ours(name: str) -> None:
    proto = BAD[name]()
    shape = (
        [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
        if (proto.graph.input)
        else [2]
    )
    with pytest.raises(TreadleError):
        load(proto.SerializeToString())(np.ones(shape, np.float32))


def test_graphs_inside_of_graphs_have_a_limit() -> None:
    x = np.array([-1.0, 1.0], np.float32)
    np.testing.assert_array_equal(load(nested(6))(x).numpy(), [0.0, 1.0])


# -- data beside the file ----------------------------------------------------------------------


def external(folder: Path, location: str, **more: str) -> Path:
    tensor = models.array("w", 2, 2)
    (folder / "w.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=value)
    node = helper.make_node("Add", ["x", "w"], ["y"])
    proto = models.model([node], {"x": (2, 2)}, {"y": (2, 2)}, [tensor])
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_data_beside_the_file_is_read(tmp_path: Path) -> None:
    made = load(external(tmp_path, "w.bin"))(np.zeros((2, 2), np.float32))
    np.testing.assert_array_equal(made.numpy(), numpy_helper.to_array(models.array("w", 2, 2)))


@pytest.mark.parametrize(
    ("location", "more"),
    [
        ("../w.bin", {}),
        ("/etc/hostname", {}),
        ("sub/../../w.bin", {}),
        ("missing.bin", {}),
        ("link.bin", {}),
        ("hard.bin", {}),
        ("", {}),
        ("w.bin", {"offset": "-4"}),
        ("w.bin", {"offset": "1000"}),
        ("w.bin", {"length": str(1 << 60)}),
        ("w.bin", {"length": "four"}),
    ],
)
def test_no_other_file_is_opened(tmp_path: Path, location: str, more: dict[str, str]) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "w.bin").write_bytes(bytes(16))
    (tmp_path / "secret").write_bytes(bytes(16))
    (folder / "link.bin").symlink_to(tmp_path / "secret")
    os.link(tmp_path / "secret", folder / "hard.bin")
    with pytest.raises(LoadError):
        load(external(folder, location, **more))
