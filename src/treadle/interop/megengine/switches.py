"""Functions that are not public in MegEngine's modules, and that programs call all the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle import config, random
from treadle.base.env import CUSTOM_OP_DIR, cache_directory
from treadle.interop.megengine.builtin import MEMBERS
from treadle.module.module import Module, expand
from treadle.tensor import Parameter, Tensor


def get_auto_format_convert() -> bool:
    """Return the value that `set_auto_format_convert` set."""
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


def gaussian(shape: Any, mean: float = 0, std: float = 1) -> Tensor:
    """Normal numbers of a shape, as MegEngine had them before 1.0."""
    return random.normal(mean, std, shape)


def _expand_structure(prefix: str, obj: Any) -> list[tuple[str, Any]]:
    """Tensors and modules in nested lists, tuples and dictionaries by their dotted names."""
    return list(expand(prefix, obj))


def _is_parameter(obj: Any) -> bool:
    return isinstance(obj, Parameter)


def _is_tensor(obj: Any) -> bool:
    return isinstance(obj, Tensor)


def _is_buffer(obj: Any) -> bool:
    """Return whether it is a tensor that is not trained."""
    return isinstance(obj, Tensor) and not isinstance(obj, Parameter)


def _is_module(obj: Any) -> bool:
    return isinstance(obj, Module)


__all__ = [
    "_expand_structure",
    "_get_default_build_root",
    "_is_buffer",
    "_is_module",
    "_is_parameter",
    "_is_tensor",
    "gaussian",
    "get_auto_format_convert",
    "multi_type",
    "set_auto_format_convert",
]


def expand_hw(x: Any) -> tuple[int, int]:
    """Two ints from one number, or from a sequence of at least two."""
    first, second, *_ = x if isinstance(x, Sequence) else (x, x)
    return int(first), int(second)


def expand_dhw(x: Any) -> tuple[int, int, int]:
    """Three ints from one number, or from a sequence of at least three."""
    first, second, third, *_ = x if isinstance(x, Sequence) else (x, x, x)
    return int(first), int(second), int(third)
