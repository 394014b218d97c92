"""Functions that are not public in MegEngine's modules, and that programs call all the same."""

from __future__ import annotations

from typing import Any

from treadle import config
from treadle.base.env import CUSTOM_OP_DIR, cache_directory
from treadle.interop.megengine.builtin import MEMBERS
from treadle.tensor import Tensor


def get_auto_format_convert() -> bool:
    """What `set_auto_format_convert` set."""
    return bool(config._auto_format_convert)


def set_auto_format_convert(option: bool) -> None:
    """Set `config._auto_format_convert`."""
    config._auto_format_convert = option


def _get_default_build_root() -> str:
    """The folder below which custom ops are built."""
    return str(CUSTOM_OP_DIR.get() or cache_directory() / "custom_ops")


def multi_type(*args: Any, mode: str, dtype: Any = None) -> Tensor:
    """An elementwise function of quantized tensors by MegEngine's name of its mode."""
    found: Tensor = MEMBERS["ElemwiseMultiType"](mode=mode, dtype=dtype)(*args)[0]
    return found


__all__ = [
    "_get_default_build_root",
    "get_auto_format_convert",
    "multi_type",
    "set_auto_format_convert",
]
