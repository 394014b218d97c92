"""Catalog of what a trace keeps whole: functions, methods of tensors, and modules; and their names
in files.

A name in a file is looked up here and nowhere else, so that reading a file imports nothing but
Treadle's own modules and runs no code but theirs and what the program itself has registered.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import treadle.functional as F
from treadle import random
from treadle.module.module import Module
from treadle.module.qat.module import QATModule
from treadle.tensor import Tensor
from treadle.traced_module import extent

C = TypeVar("C", bound=type)
Fn = TypeVar("Fn", bound=Callable[..., Any])

_OPAQUE: set[type] = set()
"""Modules that users registered as built in."""
_WRAPPED: dict[str, FunctionType] = {}
"""Functions that users wrapped, by name."""
_TRACEABLE: set[str] = {"Sequential", "ModuleList", "ModuleDict"}
"""Modules of Treadle that are only containers, and so are looked into."""
_MODULE_HOMES = ("treadle.module.", "treadle.quantization.", "treadle.traced_module.fake_quant.")
_OWN_HOMES = ("treadle.functional.", "treadle.random.")


def wrap(func: Fn) -> Fn:
    """Record calls of a function as one expression, in place of what it does inside.

    Works as a decorator. The function's arguments and results may be tensors and what tensors are
    nested in. To load a file in which it is used, wrap it before loading.

    Raises:
        TypeError: it is not a function written in Python.
    """
    if not isinstance(func, FunctionType):
        raise TypeError(f"wrap takes a function written in Python, got {func!r}")
    name = f"{func.__module__}:{func.__qualname__}"
    before = _WRAPPED.get(name)
    if before is not None and before is not func:
        _WRAPPED[f"{name}#{len(_WRAPPED)}"] = before  # The newest has the name.
    _WRAPPED[name] = func
    return func


_DEFINITIONS: dict[str, type] = {}
"""Definitions of ops that files may name, by name."""


def register_definitions(found: Mapping[str, type]) -> None:
    """Register definitions of ops, which graphs hold and files name: classes with named parameters.

    What they make is called with tensors and returns a list of them; `__getstate__` gives the
    parameters.
    """
    _DEFINITIONS.update(found)


def definitions() -> Iterable[type]:
    """Definitions of ops that were registered."""
    return _DEFINITIONS.values()


def definition_named(name: str) -> type | None:
    """The definition of an op that was registered under a name."""
    return _DEFINITIONS.get(name)


def is_wrapped(func: Any) -> bool:
    """Return whether users wrapped a function."""
    return any(func is known for known in _WRAPPED.values())


def register_as_builtin(module_cls: C) -> C:
    """Keep modules of a class whole: a trace records the call, and does not look inside.

    Works as a decorator. Classes derived from it are not included. To load a file with such
    modules, register the class before loading.

    Raises:
        TypeError: it is not a class of modules.
    """
    given: Any = module_cls
    if not isinstance(given, type) or not issubclass(given, Module):
        raise TypeError(f"register_as_builtin takes a class of modules, got {module_cls!r}")
    _OPAQUE.add(module_cls)
    return module_cls


def is_builtin(module: Module) -> bool:
    """Return whether a trace keeps a module whole: Treadle's layers, and registered classes."""
    kind = type(module)
    if kind in _OPAQUE:
        return True
    return f"{kind.__module__}.".startswith(_MODULE_HOMES) and kind.__name__ not in _TRACEABLE


# -- functions -----------------------------------------------------------------------------------


def _public(module: ModuleType, prefix: str, seen: set[str]) -> Iterator[tuple[str, FunctionType]]:
    """Functions of a module and of the modules it shows, under the shortest name first."""
    inner: list[tuple[str, ModuleType]] = []
    for name, value in list(vars(module).items()):
        if name.startswith("_"):
            continue
        if isinstance(value, FunctionType):
            home = value.__module__ + "."
            if home.startswith(_OWN_HOMES) and not home.endswith(".arguments."):
                yield f"{prefix}.{name}", value
        elif isinstance(value, ModuleType) and value.__name__.startswith("treadle.functional."):
            inner.append((name, value))
    for name, value in inner:
        if value.__name__ not in seen:
            seen.add(value.__name__)
            yield from _public(value, f"{prefix}.{name}", seen)


_UNRECORDED = frozenset({"random.seed", "random.default_generator", "random.shuffle"})
_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg")


def functions() -> dict[str, FunctionType]:
    """All functions whose calls are recorded, by the name they have in files."""
    found: dict[str, FunctionType] = {}
    held: set[int] = set()
    named = [*_public(F, "functional", {"treadle.functional.arguments"})]
    named += _public(random, "random", set())
    for name, func in named:
        if id(func) not in held and name not in _UNRECORDED:
            held.add(id(func))
            found[name] = func
    return found | _WRAPPED


_EXTRA: dict[str, Callable[..., Any]] = {
    "Tensor": Tensor,
    "extent": extent.extent,
    "qat.apply": QATModule._apply_fakequant_with_observer,
    **{f"operator.{name}": getattr(operator, name) for name in _ARITHMETIC},
}


def named_functions() -> dict[str, Callable[..., Any]]:
    """All functions that files may name, by these names."""
    return {**functions(), **_EXTRA}


# -- classes -------------------------------------------------------------------------------------


def class_name(kind: type) -> str:
    """The name of a class in files."""
    return f"{kind.__module__}:{kind.__qualname__}"


def class_named(name: str) -> type | None:
    """A class of Treadle's modules or quantization, or one registered by the program."""
    for kind in _OPAQUE:
        if class_name(kind) == name:
            return kind
    home, _, qualname = name.partition(":")
    if not f"{home}.".startswith(_MODULE_HOMES) or not qualname.isidentifier():
        return None
    try:
        found = getattr(importlib.import_module(home), qualname, None)
    except ImportError:
        return None
    is_own = isinstance(found, type) and found.__module__ == home
    return found if is_own else None


# -- methods -------------------------------------------------------------------------------------

_NOT_RECORDED = frozenset(
    [
        "apply",
        "constant",
        "is_operand",
        "is_contiguous",
        "numpy",
        "item",
        "tolist",
        "sum_to",
        "contiguous",
    ]
)
_OPERATORS = frozenset(
    [
        "neg",
        "pos",
        "abs",
        "invert",
        "getitem",
        "setitem",
        "lt",
        "le",
        "gt",
        "ge",
        "eq",
        "ne",
        "round",
        "floor",
        "ceil",
    ]
    + [
        prefix + name
        for prefix in ("", "r", "i")
        for name in [
            "add",
            "sub",
            "mul",
            "truediv",
            "floordiv",
            "mod",
            "pow",
            "matmul",
            "lshift",
            "rshift",
            "and",
            "or",
            "xor",
        ]
    ]
)
HOST_READS = ("__bool__", "__int__", "__float__", "__index__", "item", "tolist", "numpy")
"""Methods through which Python sees the value of a tensor."""


def methods() -> list[str]:
    """Names of the methods of tensors whose calls are recorded."""
    plain = [
        name
        for name in dir(Tensor)
        if not name.startswith("_")
        and name not in _NOT_RECORDED
        and isinstance(getattr(Tensor, name, None), FunctionType)
    ]
    special = [f"__{n}__" for n in sorted(_OPERATORS) if f"__{n}__" in dir(Tensor)]
    return [*plain, *special]
