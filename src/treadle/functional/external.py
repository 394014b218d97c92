"""Models of other engines inside of a program.

`extern_opr_subgraph` runs in any process that has registered its loader: a function of Python with
`treadle.ops.custom.blob_engine`, those of a C library with `utils.custom.load_engines`. The loader
"openvino" is registered here. The others are models compiled by vendors of accelerators: nothing
but the vendor's runtime knows their results, and no backend has one of these yet.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from treadle.backends import registry
from treadle.base.dtype import as_dtype, float32
from treadle.base.errors import LoadError, UnsupportedOp
from treadle.base.files.source import PathLike
from treadle.base.types import TensorType
from treadle.functional.arguments import as_tensor, ints
from treadle.ops.custom import RuntimeBlob, blob_engine, store_blob
from treadle.tensor import Tensor

__all__ = [
    "atlas_runtime_opr",
    "cambricon_runtime_opr",
    "extern_opr_subgraph",
    "magicmind_runtime_opr",
    "openvino_model",
    "openvino_runtime_opr",
    "tensorrt_runtime_opr",
]


def extern_opr_subgraph(
    inputs: Sequence[Tensor],
    output_shapes: Sequence[Any],
    dump_name: str,
    dump_data: bytes,
    output_dtypes: Sequence[Any] | None = None,
) -> list[Tensor]:
    """The results of a model that the engine `dump_name` keeps as bytes.

    Args:
        inputs: tensors of any shapes.
        output_shapes: one shape per result.
        dump_name: the name of the loader, perhaps with more behind a colon.
        dump_data: the model.
        output_dtypes: one element type per result, float32 if left out.

    Raises:
        UnsupportedOp: no loader of that name is registered in this process.
        ValueError: there are not as many element types as shapes, or no inputs.
    """
    given = [as_tensor(x) for x in inputs]
    kinds = [float32] * len(output_shapes) if output_dtypes is None else list(output_dtypes)
    if len(kinds) != len(output_shapes) or not given:
        raise ValueError("extern_opr_subgraph needs inputs, and an element type for each result")
    takes = tuple(TensorType(x._kind.dtype, x.shape) for x in given)
    gives = tuple(
        TensorType(as_dtype(k), ints(shape)) for k, shape in zip(kinds, output_shapes, strict=True)
    )
    op = RuntimeBlob(dump_name, store_blob(bytes(dump_data)), takes, gives)
    return list(given[0].apply(op, tuple(given)))


OPENVINO = "openvino"
_PACKED = b"TREADLE OPENVINO MODEL 1\n"


def openvino_model(graph: PathLike, weights: PathLike | None = None) -> bytes:
    """The two files of a model in OpenVINO's own format as one piece, for `openvino_runtime_opr`.

    Args:
        graph: path of the .xml file.
        weights: path of the .bin file; beside the other one, if left out.

    Raises:
        OSError: a file cannot be read.
    """
    text = Path(os.fsdecode(graph))
    data = Path(os.fsdecode(weights)) if weights is not None else text.with_suffix(".bin")
    xml = text.read_bytes()
    return b"".join((_PACKED, b"%d\n" % len(xml), xml, data.read_bytes()))


def openvino_runtime_opr(inputs: Sequence[Tensor], *, data: bytes) -> list[Tensor]:
    """The results of a ready OpenVINO model, which is one op of the program.

    Args:
        inputs: tensors of the model's input types, in its order.
        data: what `CompiledModel.export_model` gave, or `openvino_model` of two files.

    Raises:
        LoadError: OpenVINO does not read the model, or is not installed.
        ShapeError: the inputs are not of the types that the model takes.
    """
    given = [as_tensor(x) for x in inputs]
    if not given:
        raise ValueError("openvino_runtime_opr needs inputs")
    return list(given[0].apply(_openvino_op(bytes(data)), tuple(given)))


@functools.lru_cache(maxsize=16)
def _openvino_op(data: bytes) -> RuntimeBlob:
    """The op of a model."""
    takes, gives = _openvino().model_types(data)
    return RuntimeBlob(OPENVINO, store_blob(data), takes, gives)


def _openvino() -> Any:
    """The backend.

    Raises:
        LoadError: OpenVINO is not installed.
    """
    found = registry.load(OPENVINO)
    answer = found.probe()
    if not answer.ok:
        raise LoadError("openvino_runtime_opr", answer.reason, hint="pip install openvino")
    return found


blob_engine(OPENVINO, lambda blob, arrays: tuple(_openvino().run_model(blob, arrays)))


def tensorrt_runtime_opr(inputs: Sequence[Tensor], *, data: Any = None) -> NoReturn:
    """A TensorRT engine; raises `UnsupportedOp`, as no backend has TensorRT's runtime."""
    _refuse("tensorrt_runtime_opr", "TensorRT", inputs)


def cambricon_runtime_opr(
    inputs: Sequence[Tensor], data: Any, symbol: str, tensor_dim_mutable: bool
) -> NoReturn:
    """A Cambricon model; raises `UnsupportedOp`, as no backend has Cambricon's runtime."""
    _refuse("cambricon_runtime_opr", "Cambricon", inputs)


def atlas_runtime_opr(inputs: Sequence[Tensor], data: Any) -> NoReturn:
    """An Ascend (Atlas) model; raises `UnsupportedOp`, as no backend has Ascend's runtime."""
    _refuse("atlas_runtime_opr", "Ascend", inputs)


def magicmind_runtime_opr(inputs: Sequence[Tensor], data: Any) -> NoReturn:
    """A MagicMind model; raises `UnsupportedOp`, as no backend has MagicMind's runtime."""
    _refuse("magicmind_runtime_opr", "MagicMind", inputs)


def _refuse(name: str, engine: str, inputs: Sequence[Tensor]) -> NoReturn:
    raise UnsupportedOp(
        name,
        f"needs the runtime of {engine}, which no installed backend has",
        saw=", ".join(str(as_tensor(x).type) for x in inputs),
        hint="convert the model to ONNX, or run it by extern_opr_subgraph and a loader of yours",
    )
