"""Kernels as C: plain C11, or a dialect of it for other devices.

C11 is made to be read and to run anywhere, not to be fast: a second opinion on what kernels mean,
and the ground that dialects grow from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treadle.backends.codegen.kernel.c_dialect import C11, Dialect
from treadle.backends.codegen.kernel.c_instructions import HANDLERS
from treadle.backends.codegen.kernel.c_printer import Handler, TranslationUnit
from treadle.backends.codegen.kernel.ir import KernelModule
from treadle.backends.codegen.kernel.language import INDEX, KernelError
from treadle.backends.codegen.kernel.text import symbol_of
from treadle.backends.codegen.target import Target


def c_source(
    kernels: Sequence[KernelModule],
    target: Target,
    dialect: Dialect = C11,
    handlers: Mapping[str, Handler] = HANDLERS,
) -> str:
    """A translation unit that defines a function for every kernel, named by `symbol_of`.

    In C11 it is `void <symbol>(const int64_t *args, int64_t lo, int64_t hi)`; `args` has one slot
    of 8 bytes per parameter. In other dialects it is what their `Dialect.entry` writes.

    Raises:
        KernelError: a kernel is not of the language.
    """
    unit = TranslationUnit(dialect, handlers, target.fma)
    for symbol, kernel in {symbol_of(k): k for k in kernels}.items():
        try:
            _check(kernel)
            body = unit.kernel(kernel, symbol)
        except KernelError as error:
            raise KernelError(f"{kernel.name}: {error}") from None
        unit.lines += dialect.entry(symbol, body, kernel.parameters)
    return "\n".join((dialect.prelude, *filter(None, unit.vectors.values()), "", *unit.lines, ""))


def _check(kernel: KernelModule) -> None:
    for parameter in kernel.parameters:
        if not parameter.type.pointer and parameter.type != INDEX:
            raise KernelError(f"a parameter of type {parameter.type}")
