"""Making functions, methods and modules tell the tracer of their calls, while there is one.

Python programs hold functions in many places: `F.relu`, `from treadle.functional import relu`,
`self.act = F.relu`, dicts of activations. So it is not the names that are replaced but what the
function object runs: for the time of a trace its code is a detour that asks for the thread's
tracer, and runs the original where there is none. Outside of a trace nothing is different and
nothing costs. Methods and `Module.__call__` are replaced in their classes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

from treadle.module.module import Module
from treadle.random import RNG
from treadle.tensor import Tensor
from treadle.traced_module import catalog
from treadle.traced_module.extent import HostNumber, extent, traced
from treadle.traced_module.recording import SLOT, listening

_LOCK = threading.RLock()
"""One thread traces at a time, as the detours are the process's; others' calls pass through."""
_MARK = "the route of a detour"


def _detour(*args: Any, **kwargs: Any) -> Any:
    route: Any = "the route of a detour"
    return route(*args, **kwargs)


def _detour_code(route: Callable[..., Any], like: CodeType) -> CodeType:
    """Code that calls `route` with whatever it is called with, and needs no globals for it."""
    code = _detour.__code__
    return code.replace(
        co_consts=tuple(route if c == _MARK else c for c in code.co_consts),
        co_freevars=like.co_freevars,  # A function's code must have as many as its closure.
    )


def _twin(func: FunctionType) -> FunctionType:
    """Another function object that runs the original code."""
    made = FunctionType(
        func.__code__, func.__globals__, func.__name__, func.__defaults__, func.__closure__
    )
    made.__kwdefaults__ = func.__kwdefaults__
    return made


def _function_route(func: FunctionType, twin: FunctionType) -> Callable[..., Any]:
    def route(*args: Any, **kwargs: Any) -> Any:
        recorder = listening()
        if recorder is None:
            return twin(*args, **kwargs)
        return recorder.call_function(func, twin, args, kwargs)

    return route


def _method_route(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def route(*args: Any, **kwargs: Any) -> Any:
        recorder = listening()
        if recorder is None:
            return original(*args, **kwargs)
        return recorder.call_method(name, original, args, kwargs)

    return route


def _read_route(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def route(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder: Any = listening()
        if recorder is not None:
            recorder.host_read(self, name)
        return original(self, *args, **kwargs)

    return route


def _init_route(original: Callable[..., None]) -> Callable[..., None]:
    """`Tensor(other)` is a copy that must stay connected with the tensor it was made of."""

    def route(self: Tensor, *args: Any, **kwargs: Any) -> None:
        recorder: Any = listening()
        source = args[0] if args else kwargs.get("data")
        if recorder is None or not _is_traced(source):
            original(self, *args, **kwargs)
            if recorder is not None:
                recorder.born(self)
        else:
            recorder.construct(self, original, args, kwargs)

    return route


def _is_traced(source: Any) -> bool:
    """Return whether data for a tensor comes from tensors."""
    if isinstance(source, (list, tuple)):
        return any(_is_traced(item) for item in source)
    return isinstance(source, (Tensor, HostNumber))


def _call_route(original: Callable[..., Any]) -> Callable[..., Any]:
    def route(self: Module, *args: Any, **kwargs: Any) -> Any:
        recorder: Any = listening()
        if recorder is None:
            return original(self, *args, **kwargs)
        return recorder.call_module(self, original, args, kwargs)

    return route


def _shape(self: Tensor) -> tuple[int, ...]:
    shape: tuple[int, ...] = self._data.shape
    recorder: Any = listening()
    if recorder is None:
        return shape
    recorder.met(self)
    return tuple(traced(n, extent, (self, axis)) for axis, n in enumerate(shape))


def _size(self: Tensor) -> int:
    product: int = 1
    for n in self.shape:
        product = n * product
    return product


def _replacements() -> list[tuple[Any, str, Any]]:
    """(class, attribute, replacement) of methods."""
    found: list[tuple[Any, str, Any]] = [
        (Tensor, name, _method_route(name, getattr(Tensor, name))) for name in catalog.methods()
    ]
    found += [
        (Tensor, name, _read_route(name, getattr(Tensor, name))) for name in catalog.HOST_READS
    ]
    found += [
        (RNG, name, _read_route(name, method))
        for name, method in vars(RNG).items()
        if isinstance(method, FunctionType) and not name.startswith("_") and "stat" not in name
    ]
    found.append((Tensor, "__init__", _init_route(Tensor.__init__)))
    found.append((Tensor, "shape", property(_shape)))
    found.append((Tensor, "size", property(_size)))
    found.append((Module, "__call__", _call_route(Module.__call__)))
    return found


@contextmanager
def detours(recorder: Any) -> Iterator[None]:
    """Show a recorder the calls that this thread makes in the block."""
    with _LOCK:
        functions = [
            (f, f.__code__, _detour_code(_function_route(f, _twin(f)), f.__code__))
            for f in catalog.functions().values()
        ]
        methods = [(*each, vars(each[0]).get(each[1])) for each in _replacements()]
        try:
            for func, _, code in functions:
                func.__code__ = code
            for cls, name, replacement, _ in methods:
                setattr(cls, name, replacement)
            SLOT.recorder = recorder
            yield
        finally:
            SLOT.recorder = None
            for cls, name, _, before in methods:
                if before is None:
                    delattr(cls, name)  # inherited
                else:
                    setattr(cls, name, before)
            for func, original, _ in functions:
                func.__code__ = original
