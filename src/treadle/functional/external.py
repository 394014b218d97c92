"""Models of other engines inside of a program.

`extern_opr_subgraph` runs in any process that has registered its loader with
`treadle.ops.custom.blob_engine`. The others are models compiled by vendors of accelerators: nothing
but the vendor's runtime knows their results, and no backend has one of these yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from treadle.base.dtype import as_dtype, float32
from treadle.base.errors import UnsupportedOp
from treadle.base.types import TensorType
from treadle.functional.arguments import as_tensor, ints
from treadle.ops.custom import RuntimeBlob, store_blob
from treadle.tensor import Tensor

__all__ = [
    "atlas_runtime_opr",
    "cambricon_runtime_opr",
    "extern_opr_subgraph",
    "magicmind_runtime_opr",
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
        dump_name: the name under which `treadle.ops.custom.blob_engine` registered a loader.
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
