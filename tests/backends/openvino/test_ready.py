"""A ready OpenVINO model as one op: eager, compiled, in files."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.base.errors import LoadError, ShapeError
from treadle.engine.package.models import read_models
from treadle.functional.external import extern_opr_subgraph, openvino_model, openvino_runtime_opr
from treadle.jit import trace
from treadle.module.external import OpenVINORuntimeSubgraph
from treadle.ops import custom

ov: Any = pytest.importorskip("openvino", reason="needs the openvino extra")
opset: Any = importlib.import_module("openvino.opset15")

X = np.arange(8, dtype=np.float32).reshape(2, 4) - 4


def model() -> Any:
    """x to 2 x and relu(x)."""
    x = opset.parameter([2, 4], ov.Type.f32)
    twice = opset.matmul(x, opset.constant(np.eye(4, dtype=np.float32) * 2), False, False)
    return ov.Model([opset.result(twice), opset.result(opset.relu(x))], [x], "two")


def files(folder: Path) -> bytes:
    ov.save_model(model(), str(folder / "two.xml"), compress_to_fp16=False)
    return openvino_model(folder / "two.xml")


def exported(folder: Path) -> bytes:
    data: bytes = ov.Core().compile_model(model(), "CPU").export_model().getvalue()
    return data


BOTH = pytest.mark.parametrize("make", [files, exported], ids=["xml and bin", "exported"])


@BOTH
def test_it_runs_eagerly(make: Callable[[Path], bytes], tmp_path: Path) -> None:
    layer = OpenVINORuntimeSubgraph(make(tmp_path))
    for given in ((mge.tensor(X),), ([mge.tensor(X)],)):
        twice, positive = layer(*given)
        assert (twice.numpy() == 2 * X).all()
        assert (positive.numpy() == np.maximum(X, 0)).all()


@BOTH
def test_it_survives_dump_and_load(
    make: Callable[[Path], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = OpenVINORuntimeSubgraph(make(tmp_path))

    @trace(symbolic=True, capture_as_const=True)
    def predict(x: mge.Tensor) -> mge.Tensor:
        twice, positive = layer(x + 1)
        return F.relu(twice) - positive

    wanted = predict(mge.tensor(X)).numpy()
    assert (wanted == np.maximum(X + 1, 0)).all()
    predict.dump(str(tmp_path / "with.mge"), arg_names=["data"])
    monkeypatch.setattr(custom, "_BLOBS", {})  # As in another process.
    (read,) = read_models(tmp_path / "with.mge")
    assert [n.op.name for n in read.graph.nodes].count("runtime_blob") == 1
    model = mge.utils.comp_graph_tools.GraphInference(str(tmp_path / "with.mge"))
    assert (next(iter(model.run(X).values())) == wanted).all()


def test_the_loader_serves_extern_opr_subgraph(tmp_path: Path) -> None:
    shapes = [(2, 4), (2, 4)]
    twice, _ = extern_opr_subgraph([mge.tensor(X)], shapes, "openvino", files(tmp_path))
    assert (twice.numpy() == 2 * X).all()


def test_inputs_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match="the openvino model takes"):
        openvino_runtime_opr([mge.tensor(X.T.copy())], data=files(tmp_path))
    with pytest.raises(ValueError, match="needs inputs"):
        openvino_runtime_opr([], data=files(tmp_path))


@BOTH
def test_a_truncated_model_is_refused(make: Callable[[Path], bytes], tmp_path: Path) -> None:
    data = make(tmp_path)
    with pytest.raises(LoadError, match=r"OpenVINO 20\S+ does not read it|is cut off") as error:
        openvino_runtime_opr([mge.tensor(X)], data=data[: len(data) // 2])
    assert "openvino model" in str(error.value)


def test_open_extents_are_refused(tmp_path: Path) -> None:
    x = opset.parameter([-1, 4], ov.Type.f32)
    made = ov.Model([opset.result(opset.relu(x))], [x], "open")
    ov.save_model(made, str(tmp_path / "open.xml"), compress_to_fp16=False)
    with pytest.raises(LoadError, match="static shapes"):
        openvino_runtime_opr([mge.tensor(X)], data=openvino_model(tmp_path / "open.xml"))


def test_without_the_package_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = files(tmp_path) + b"\0"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(LoadError, match="openvino is not installed"):
        openvino_runtime_opr([mge.tensor(X)], data=data)
