"""MegEngine's `partial_trace` and `xla_trace`: one region of a program, with its backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treadle.engine.options import Options
from treadle.jit.compiled import Compiled

_OPTIONS = ("capture_as_const", "opt_level", "profiling", "symbolic", "symbolic_shape")


def partial_trace(
    func: Callable[..., Any] | None = None,
    *,
    backend: str = "default",
    without_host: bool = True,
    trace_gmcallback: bool = True,
    **trace_options: Any,
) -> Any:
    """Trace a function that is a part of a step; its backward is a program as well.

    The same as `jit.compile`: called while a `GradManager` records, the function is one op to it.

    Args:
        func: what to trace; without it, the result is a decorator.
        backend: "default" or "xla", both of which are Treadle's engine.
        without_host: the body runs once per signature in either case.
        trace_gmcallback: accepted; callbacks of managers run in Python.
        trace_options: `opt_level` as in `trace`; others of its options are accepted.

    Raises:
        ValueError: there is no such backend.
        TypeError: there is no such option.
    """
    if backend not in ("default", "xla"):
        raise ValueError(f"partial_trace: backend {backend!r} is neither 'default' nor 'xla'")
    for name in trace_options:
        if name not in _OPTIONS:
            raise TypeError(f"partial_trace: unknown option {name!r}; there are {_OPTIONS}")
    options = Options(level=min(int(trace_options.get("opt_level", 2)), 3))
    if func is None:
        return lambda wrapped: Compiled(wrapped, options)
    return Compiled(func, options)


def xla_trace(func: Callable[..., Any] | None = None, **trace_options: Any) -> Any:
    """`partial_trace` by MegEngine's other name; it runs on Treadle's engine, not on XLA."""
    return partial_trace(func, **trace_options)


__all__ = ["partial_trace", "xla_trace"]
