"""Functions of MegEngine's C++ run time that programs import from `core._imperative_rt`.

What has a meaning here does what it says. What steers a run time that there is none of here does
nothing, and says so once.
"""

from __future__ import annotations

import itertools
import logging
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import treadle.functional as F
from treadle import amp, config
from treadle.autodiff import Function
from treadle.base.errors import DeviceError
from treadle.device import coalesce_free_memory
from treadle.engine.devices.lifetime import synchronize
from treadle.engine.devices.names import CompNode, resolve
from treadle.interop.megengine.builtin import MEMBERS
from treadle.logger import set_mgb_log_level
from treadle.random import seed as set_global_rng_seed
from treadle.tensor import Tensor
from treadle.utils.naming import AutoNaming

TensorWeakRef = weakref.ref
AsyncError = DeviceError
"""Error that a device reports late; the host's errors are raised by the op at fault."""


def without_effect(name: str, result: Any = None, why: str = "") -> Callable[..., Any]:
    """A function of MegEngine's that means nothing here: it warns once, and returns `result`."""
    told: list[bool] = []

    def accepted(*args: Any, **kwargs: Any) -> Any:
        if not told:
            told.append(True)
            text = f"megengine's {name} has no effect" + (f": {why}" if why else "")
            warnings.warn(text, UserWarning, stacklevel=2)
        return result

    accepted.__name__ = accepted.__qualname__ = name.rpartition(".")[2]
    accepted.__doc__ = f"No effect. {why}"
    return accepted


def config_async_level(level: int) -> None:
    """Set how far devices may fall behind: `config.async_level`."""
    config.async_level = level


def get_async_level() -> int:
    """Return the level that `config_async_level` set."""
    return config.async_level


def push_scope(name: str) -> None:
    """Enter a scope of names."""
    AutoNaming.scopes.append(name)


def pop_scope(name: str) -> None:
    """Leave the innermost scope of names.

    Raises:
        ValueError: it has another name.
    """
    if not AutoNaming.scopes or AutoNaming.scopes[-1] != name:
        raise ValueError(f"pop_scope: {name!r} is not the innermost of {AutoNaming.scopes}")
    AutoNaming.scopes.pop()


def create_complex(real: Tensor, imag: Tensor) -> Tensor:
    """A complex tensor of its parts."""
    made: Tensor = F.complex(real, imag)
    return made


def _get_amp_high_prec_dtype() -> str:
    """The type of many bits of mixed precision."""
    return amp.high_prec_dtype


def _get_amp_low_prec_dtype() -> str:
    """The type of few bits of mixed precision."""
    return amp.low_prec_dtype


class Device:
    """A device by name, as MegEngine's core wraps one."""

    def __init__(self, device: Any = None) -> None:
        self._place: CompNode = resolve("xpux" if device is None else str(device))

    def to_c(self) -> CompNode:
        """The device itself."""
        return self._place

    def __repr__(self) -> str:
        return str(self._place)

    def __eq__(self, other: object) -> bool:
        return str(self._place) == str(other) or self._place == other

    def __hash__(self) -> int:
        return hash(self._place)


def _call_stack() -> str:
    """Return the call stack of the caller, outermost first, a line for each frame."""
    frames = traceback.extract_stack()[:-1]
    return "".join(f'File "{f.filename}", line {f.lineno}, in {f.name}\n' for f in frames)


class _Thread(threading.local):
    """A number of its own for each thread that asks."""

    numbers: ClassVar = itertools.count()

    def __init__(self) -> None:
        self.number = next(self.numbers)


_THREAD = _Thread()


class TensorAttr:
    """Shape, element type and device, to be filled in."""

    shape: tuple[int, ...] | None = None
    dtype: Any = None
    comp_node: Any = None


class OperatorNodeConfig:
    """Name, element type and devices of an operator, to be filled in."""

    def __init__(self) -> None:
        self.name = ""
        self.dtype: Any = None
        self.comp_node_arr: list[Any] = []

    @property
    def comp_node(self) -> Any:
        """The device.

        Raises:
            ValueError: there is not exactly one.
        """
        if len(self.comp_node_arr) != 1:
            raise ValueError(f"comp_node: there are {len(self.comp_node_arr)} devices")
        return self.comp_node_arr[0]

    @comp_node.setter
    def comp_node(self, node: Any) -> None:
        self.comp_node_arr = [node]


class Logger:
    """The level of Treadle's own logger, as MegEngine's C++ part has one."""

    LogLevel: ClassVar = SimpleNamespace(
        Debug=logging.DEBUG, Info=logging.INFO, Warn=logging.WARNING, Error=logging.ERROR
    )

    @staticmethod
    def set_log_level(level: int) -> int:
        """Set it; the one before."""
        return set_mgb_log_level(level)


# -- seeds ---------------------------------------------------------------------------------

_SEED = [0]


def set_seed(seed: int) -> None:
    """Seed the stream of the module-level functions."""
    _SEED[0] = int(seed)
    set_global_rng_seed(seed)


def get_seed() -> int:
    """Return the seed that `set_global_rng_seed` was given last."""
    return _SEED[0]


# -- subgraphs -----------------------------------------------------------------------------

_SYMBOLS = {
    "+": "ADD",
    "-": "SUB",
    "*": "MUL",
    "/": "TRUE_DIV",
    "//": "FLOOR_DIV",
    "**": "POW",
    "max": "MAX",
    "min": "MIN",
    "=": "EQ",
    "<=": "LEQ",
    "<": "LT",
    "fma3": "FUSE_MUL_ADD3",
    "fma4": "FUSE_MUL_ADD4",
    "additive": "ADD",
    "exp": "EXP",
}


def _run(op: Any, *inputs: Tensor) -> Any:
    """One op of a subgraph: a definition, a symbol, or the name of an elementwise function."""
    if isinstance(op, str):
        mode = "NEGATE" if op == "-" and len(inputs) == 1 else _SYMBOLS.get(op, op.upper())
        op = MEMBERS["Elemwise"](mode)
    found = op(*inputs)
    return found[0] if len(found) == 1 else tuple(found)


def subgraph_fn(
    name: str,
    dtype: Any = None,
    device: Any = None,
    nr_inputs: int = 1,
    gopt_level: int | None = None,
    jit_fusion: bool = False,
    custom_grad: bool = False,
    *,
    interpret: bool = False,
    dyn_typeinfer: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make an op of a function that puts together others, as MegEngine's core does.

    The decorated function gets (inputs, f, c): `f(op, *operands)` applies an op by definition,
    symbol or name, `c(value)` is a constant. It returns (outputs, whether each has a gradient),
    or yields outputs, is sent their gradients, and yields those of the inputs (`custom_grad`).

    Args:
        name: of the op.
        dtype, device: of constants.
        nr_inputs: how many operands there are.
        custom_grad: whether the function brings its own gradient.
        gopt_level, jit_fusion, interpret, dyn_typeinfer: choose how MegEngine runs it; its ops
            run one by one here, and fuse where the caller is compiled.
    """

    def constant(value: Any, dtype: Any = dtype, device: Any = device) -> Tensor:
        return Tensor(value, dtype=dtype, device=None if device is None else str(device))

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if not custom_grad:

            def plain(*inputs: Tensor) -> tuple[Tensor, ...]:
                outputs, _ = function(list(inputs), _run, constant)
                return tuple(outputs)

            return plain

        class Subgraph(Function):
            def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
                self.steps = function(list(inputs), _run, constant)
                return tuple(next(self.steps))

            def backward(self, *dys: Tensor) -> tuple[Tensor | None, ...]:
                return tuple(self.steps.send(dys))

        Subgraph.__name__ = Subgraph.__qualname__ = name

        def differentiable(*inputs: Tensor) -> tuple[Tensor, ...]:
            found = Subgraph()(*inputs)
            return found if isinstance(found, tuple) else (found,)

        return differentiable

    return decorate


def subgraph(*args: Any, **kwargs: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate as `subgraph_fn` does; the result returns an op that is applied to tensors."""
    make = subgraph_fn(*args, **kwargs)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        op = make(function)
        return lambda: op

    return decorate


CORE2: dict[str, Any] = {
    "AsyncError": AsyncError,
    "TensorWeakRef": TensorWeakRef,
    "config_async_level": config_async_level,
    "create_complex": create_complex,
    "full_sync": synchronize,
    "get_async_level": get_async_level,
    "_get_frame_cache_id": lambda: _THREAD.number,
    "_mge_backtrace": _call_stack,
    "pop_scope": pop_scope,
    "push_scope": push_scope,
    "record_scope": lambda frame, name: None,
    "_get_amp_dtype_autocast": lambda: bool(amp.enabled),
    "_get_amp_high_prec_dtype": _get_amp_high_prec_dtype,
    "_get_amp_low_prec_dtype": _get_amp_low_prec_dtype,
    "_get_convert_inputs": lambda: True,
    "_set_convert_inputs": without_effect("_set_convert_inputs", True, "operands are converted"),
    **{
        name: without_effect(f"core2.{name}", result, "there is no interpreter in C++")
        for name, result in (
            ("_clear_algorithm_cache", None),
            ("_set_defrag", None),
            ("_set_drop_flag", None),
            ("_set_swap_flag", None),
            ("close", None),
        )
    },
}
"""Members of `core._imperative_rt.core2`."""
UTILS: dict[str, Any] = {
    "Logger": Logger,
    "_set_defrag": CORE2["_set_defrag"],
    "_try_coalesce_all_free_memory": coalesce_free_memory,
}
"""Members of `core._imperative_rt.utils`."""


__all__ = [
    "CORE2",
    "UTILS",
    "Logger",
    "OperatorNodeConfig",
    "TensorAttr",
    "get_seed",
    "set_seed",
    "subgraph",
    "subgraph_fn",
    "without_effect",
]
