"""Functions, methods and definitions of ops by MegEngine's names, and arguments that moved."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import treadle.functional as F
from treadle import random
from treadle.serialization.pickle_machine import Malformed
from treadle.traced_module import catalog

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def function(home: str, name: str) -> Callable[..., Any] | None:
    """The function of a module and a name; None for one that files may not name."""
    wrapped = catalog.functions().get(f"{home}:{name}")
    if wrapped is not None:
        return wrapped
    package, *inner = home.split(".")
    if package != "megengine" or not inner:
        return None
    if name == "QATModule._apply_fakequant_with_observer":
        return catalog.named_functions()["qat.apply"]
    known = {id(func) for func in catalog.functions().values()}
    places: list[Any] = [F, random]
    if inner[0] == "functional" and inner[1:]:
        places.insert(0, getattr(F, inner[1], None))
    if inner[0] == "distributed":
        places = [F.distributed]
    if inner[0] == "random":
        places = [random]
    for place in places:
        found = vars(place).get(name) if isinstance(place, ModuleType) else None
        if id(found) in known:
            return found
    return None


@functools.cache
def _methods() -> frozenset[str]:
    return frozenset({*catalog.methods(), "_broadcast"})


def is_method(name: str) -> bool:
    """Return whether files may call a method of tensors."""
    return name in _methods()


# -- definitions of ops --------------------------------------------------------------------------


def definition(name: str) -> Any:
    """The class of a definition; None for one that has no counterpart."""
    return catalog.definition_named(name)


_CHOICES = frozenset(
    {
        *("strategy", "workspace_limit", "compute_mode", "data_type", "dimA", "dimB"),
        *("rank", "is_root", "dtype", "comp_node", "backend", "nr_devices", "addr", "port"),
        "local_grad",
    }
)
"""Parameters that choose algorithms, or places of processes."""
_NEUTRAL: tuple[Any, ...] = (
    None,
    False,
    0,
    1,
    "",
    [],
    (),
    "DEFAULT",
    "FLOAT",
    "NCHW",
    "NCDHW",
    "CROSS_CORRELATION",
)


def made(cls: Any, state: dict[str, Any], where: str) -> Any:
    """A definition with parameters.

    Raises:
        Malformed: one that ours does not have says something.
    """
    taken = {key: value for key, value in state.items() if key in cls.parameters}
    for key in state.keys() - taken.keys() - _CHOICES:
        if state[key] not in _NEUTRAL:
            raise Malformed(f"{where} has a parameter {key}, which ours does not have")
    try:
        return cls(**taken)
    except (TypeError, ValueError) as error:
        raise Malformed(f"{where} has other parameters: {error}") from None


# -- arguments of earlier versions ---------------------------------------------------------------

_TRANSPOSED = ("stride", "padding", "dilation", "groups", "conv_mode", "compute_mode")
_MOVED: dict[str, tuple[str, ...]] = {
    "matmul": ("inp1", "inp2", "transpose_a", "transpose_b", "compute_mode", "format"),
    "conv_transpose2d": ("inp", "weight", "bias", *_TRANSPOSED),
    "quantized.conv_transpose2d": ("inp", "weight", "bias", "dtype", *_TRANSPOSED),
    "conv_transpose3d": ("inp", "weight", "bias", *_TRANSPOSED[:4]),
    "ones": ("shape", "dtype", "device"),
    "zeros": ("shape", "dtype", "device"),
    "full": ("shape", "value", "dtype", "device"),
    "linspace": ("start", "stop", "num", "dtype", "device"),
    "arange": ("start", "stop", "step", "dtype", "device"),
}
"""Arguments by position as earlier versions had them, of functions that have others there now."""
_RENAMED = {
    "pad": {"pad_witdth": "pad_width"},
    "prelu": {"inp": "x", "weight": "y"},
    "sign": {"inp": "x"},
}
_GONE = {"batch_norm": ("compute_mode", "param_dim"), "matmul": ("format",)}
"""Arguments that had one value that anybody gave."""
_UNSAID = ("default", "dim_1c11", None)


def adapted(
    func: Callable[..., Any], name: str, given: Arguments, version: str | None, where: str
) -> Arguments:
    """The arguments of a call as a version of MegEngine wrote it, as they are given now.

    Raises:
        Malformed: the function takes no such arguments.
    """
    args, kwargs = given
    renamed = _RENAMED.get(name, {})
    kwargs = {renamed.get(key, key): value for key, value in kwargs.items()}
    quantized = func.__module__.rpartition(".")[2] == "quantized"
    names = _MOVED.get(f"quantized.{name}" if quantized else name)
    # Later versions write all that can be given by position so.
    given_all = names is not None and len(args) == len(names)
    if names is not None and (given_all or (version is None and len(args) < len(names))):
        kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
        args = ()
    for key in _GONE.get(name, ()):
        if kwargs.pop(key, None) not in _UNSAID:
            raise Malformed(f"{where} has another {key} than there is")
    try:
        bound = inspect.signature(func).bind(*args, **kwargs)
    except TypeError as error:
        raise Malformed(f"{where} has other arguments: {error}") from None
    return (args, kwargs) if args or not kwargs else (bound.args, bound.kwargs)


def casts_squares(name: str, version: str | None) -> bool:
    """Return whether a function gave float32 of any type: squares, until 1.11.1."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version or "0")[:3])
    return name == "square" and numbers <= (1, 11, 1)
