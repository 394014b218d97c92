"""Values of parameters of MegEngine's op definitions: `Elemwise.Mode.ADD` and its like.

Each is the text of its name, so `Elemwise.Mode.ADD == "ADD"`, and either may be given.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

from treadle.module.elemwise import METHODS

HOME = "megengine.core._imperative_rt.ops"
"""Module that MegEngine's definitions give as their own."""

_SPARSE = ("DENSE", "GROUP")
_PLACES = ("NCHW", "NHWC", "NHWCD4", "NCHW4", "NCHW8", "NCHW32", "NCHW88", "NCHW44", "CHWN4")
_COMPUTE = ("DEFAULT", "FLOAT32")
_BORDER = ("REPLICATE", "REFLECT", "REFLECT_101", "WRAP", "CONSTANT", "TRANSPARENT", "ISOLATED")
_BETWEEN = ("NEAREST", "LINEAR", "AREA", "CUBIC", "LANCZOS4")
_WINDOWS = ("MAX", "AVERAGE", "AVERAGE_COUNT_EXCLUDE_PADDING")
_CONVOLUTION = {
    "Mode": ("CROSS_CORRELATION", "CONVOLUTION"),
    "Sparse": _SPARSE,
    "Format": _PLACES,
    "ComputeMode": _COMPUTE,
}
_PRODUCT = {"ComputeMode": _COMPUTE, "Format": ("DEFAULT", "MK4", "MK8", "MK4_DOT")}
_FUSED = (
    *("FUSE_MUL_ADD3_INT16x32x32x32", "FUSE_MUL_ADD3_IXxF32xF32xI8", "ROUND_SHR_SATURATE_IXxI8xI8"),
    *("QRELU", "QABS", "QACOS", "QASIN", "QCEIL", "QCOS", "QEXP", "QEXPM1", "QFLOOR", "QLOG"),
    *("QLOG1P", "QNEGATE", "QSIGMOID", "QSIN", "QTANH", "QFAST_TANH", "QROUND", "QERF", "QERFINV"),
    *("QERFC", "QERFCINV", "QABS_GRAD", "QADD", "QFLOOR_DIV", "QMAX", "QMIN", "QMOD", "QMUL"),
    *("QPOW", "QSUB", "QTRUE_DIV", "QFUSE_ADD_RELU", "QFUSE_ADD_SIGMOID", "QFUSE_ADD_TANH"),
    *("QLT", "QLEQ", "QEQ", "QH_SWISH", "QFUSE_ADD_H_SWISH", "QFUSE_MUL_ADD3", "QFUSE_MUL_ADD4"),
)

CHOICES: dict[str, Mapping[str, Sequence[str]]] = {
    "AdaptivePooling": {"Mode": _WINDOWS, "Format": _PLACES},
    "Argsort": {"Order": ("ASCENDING", "DESCENDING")},
    "BatchConvBias": _CONVOLUTION,
    "BatchNorm": {
        "ParamDim": ("DIM_11HW", "DIM_1CHW", "DIM_1C11", "DIM_111C"),
        "FwdMode": ("TRAINING", "INFERENCE"),
    },
    "BatchedMatrixMul": _PRODUCT,
    "CollectiveComm": {
        "Mode": (
            *("REDUCE_SUM", "BROADCAST", "ALL_GATHER", "REDUCE_SCATTER_SUM", "ALL_REDUCE_SUM"),
            *("ALL_REDUCE_MAX", "ALL_REDUCE_MIN", "ALL_REDUCE_PROD", "GATHER", "SCATTER"),
            "ALL_TO_ALL",
        )
    },
    "ConvBias": _CONVOLUTION,
    "Convolution": _CONVOLUTION,
    "Convolution3D": _CONVOLUTION,
    "Convolution3DBackwardData": _CONVOLUTION,
    "ConvolutionBackwardData": _CONVOLUTION,
    "Elemwise": {"Mode": tuple(METHODS)},
    "ElemwiseMultiType": {"Mode": _FUSED},
    "MatrixMul": _PRODUCT,
    "Padding": {"PaddingMode": ("REPLICATE", "REFLECT", "CONSTANT")},
    "Pooling": {"Mode": _WINDOWS, "Format": _PLACES},
    "ROIAlign": {"Mode": ("MAX", "AVERAGE"), "Format": _PLACES},
    "ROIPooling": {"Mode": ("MAX", "AVERAGE")},
    "Reduce": {
        "Mode": ("SUM", "SUM_SQR", "PRODUCT", "MIN", "MAX", "MEAN"),
        "DataType": ("DEFAULT", "FLOAT_O32xC32", "FLOAT_O16xC32", "QUINT_I8xO32", "QINT_I8xO32"),
    },
    "Remap": {"InterpolationMode": _BETWEEN, "BorderMode": _BORDER, "Format": _PLACES},
    "Resize": {"InterpolationMode": _BETWEEN, "Format": _PLACES},
    "TopK": {"Mode": ("KTH_ONLY", "VALUE_IDX_NOSORT", "VALUE_IDX_SORTED")},
    "WarpAffine": {"InterpolationMode": _BETWEEN, "BorderMode": _BORDER, "Format": _PLACES},
    "WarpPerspective": {"InterpolationMode": _BETWEEN, "BorderMode": _BORDER, "Format": _PLACES},
}
"""By definition: its enumerations, and their values."""


class Strategy(enum.IntFlag):
    """Choices of kernels; the engine chooses, whatever is asked for."""

    HEURISTIC = 1
    PROFILE = 2
    REPRODUCIBLE = 4
    OPTIMIZED = 8


def add_choices(definition: type[Any]) -> None:
    """Give a definition its enumerations, and the home that MegEngine's has."""
    definition.__module__, definition.__qualname__ = HOME, definition.__name__
    for name, values in CHOICES.get(definition.__name__, {}).items():
        body = {"__module__": HOME, "__qualname__": f"{definition.__name__}.{name}"}
        made: type[str] = type(name, (str,), body)
        for value in values:
            setattr(made, value, made(value))
        setattr(definition, name, made)
    if "strategy" in definition.parameters:
        definition.Strategy = Strategy
