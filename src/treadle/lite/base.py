"""Enumerations, element types, log level and version of Lite."""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import Any

import numpy as np

from treadle.base.log import get_logger
from treadle.base.version import VERSION


class LiteBackend(IntEnum):
    """Engines that run a network."""

    LITE_DEFAULT = 0


class LiteDeviceType(IntEnum):
    """Kinds of devices; all but the host need a backend. `LITE_OPENCL` is Treadle's own."""

    LITE_CPU = 0
    LITE_CUDA = 1
    LITE_OPENCL = 2
    LITE_ATLAS = 3
    LITE_NPU = 4
    LITE_CAMBRICON = 5
    LITE_AX = 6
    LITE_DEVICE_DEFAULT = 7


class LiteDataType(IntEnum):
    """Element types."""

    LITE_FLOAT = 0
    LITE_HALF = 1
    LITE_INT = 2
    LITE_INT16 = 3
    LITE_INT8 = 4
    LITE_UINT8 = 5
    LITE_UINT = 6
    LITE_UINT16 = 7
    LITE_INT64 = 8


class LiteTensorPhase(IntEnum):
    """Kinds of a network's tensors."""

    LITE_IO = 0
    LITE_INPUT = 1
    LITE_OUTPUT = 2


class LiteIOType(IntEnum):
    """Kinds of inputs and outputs: a value or, for outputs only, its shape."""

    LITE_IO_VALUE = 0
    LITE_IO_SHAPE = 1


class LiteAlgoSelectStrategy(IntEnum):
    """Choices of kernels; flags that may be combined. Treadle's model chooses in any case."""

    LITE_ALGO_HEURISTIC = 1
    LITE_ALGO_PROFILE = 2
    LITE_ALGO_REPRODUCIBLE = 4
    LITE_ALGO_OPTIMIZED = 8


class LiteLogLevel(IntEnum):
    """Levels of logging."""

    DEBUG = 0
    INFO = 1
    WARN = 2
    ERROR = 3


_NUMPY: dict[LiteDataType, np.dtype[Any]] = {
    LiteDataType.LITE_FLOAT: np.dtype(np.float32),
    LiteDataType.LITE_HALF: np.dtype(np.float16),
    LiteDataType.LITE_INT: np.dtype(np.int32),
    LiteDataType.LITE_INT16: np.dtype(np.int16),
    LiteDataType.LITE_INT8: np.dtype(np.int8),
    LiteDataType.LITE_UINT8: np.dtype(np.uint8),
    LiteDataType.LITE_UINT: np.dtype(np.uint32),
    LiteDataType.LITE_UINT16: np.dtype(np.uint16),
    LiteDataType.LITE_INT64: np.dtype(np.int64),
}
_LITE = {dtype: lite for lite, dtype in _NUMPY.items()}

_KINDS = {
    LiteDeviceType.LITE_CUDA: "gpu",
    LiteDeviceType.LITE_OPENCL: "opencl",
    LiteDeviceType.LITE_ATLAS: "atlas",
    LiteDeviceType.LITE_NPU: "npu",
    LiteDeviceType.LITE_CAMBRICON: "cambricon",
    LiteDeviceType.LITE_AX: "ax",
}

_LEVELS = {
    LiteLogLevel.DEBUG: logging.DEBUG,
    LiteLogLevel.INFO: logging.INFO,
    LiteLogLevel.WARN: logging.WARNING,
    LiteLogLevel.ERROR: logging.ERROR,
}


def lite_dtype_2_numpy(dtype: LiteDataType) -> np.dtype[Any]:
    """NumPy's element type.

    Raises:
        ValueError: there is no such type.
    """
    return _NUMPY[LiteDataType(dtype)]


def to_lite(dtype: Any) -> LiteDataType:
    """Lite's element type of NumPy's.

    Raises:
        TypeError: Lite has none.
    """
    found = _LITE.get(np.dtype(dtype))
    if found is None:
        raise TypeError(f"Lite has no element type {np.dtype(dtype)}; cast the model's output")
    return found


def device_kind(device_type: LiteDeviceType) -> str:
    """Return Treadle's name for devices of a type: `gpu`, for example; "" for those on the host."""
    return _KINDS.get(LiteDeviceType(device_type), "")


def set_log_level(level: LiteLogLevel) -> None:
    """Log messages of this level and above."""
    get_logger("lite").setLevel(_LEVELS[LiteLogLevel(level)])


def get_log_level() -> LiteLogLevel:
    """The level that was set, WARN at first."""
    now = get_logger("lite").getEffectiveLevel()
    return next((lite for lite, std in reversed(_LEVELS.items()) if std <= now), LiteLogLevel.DEBUG)


version = VERSION
"""Of Treadle."""
