"""Choices that users force for debugging: this implementation runs the op, whoever else could."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from treadle.base.env import FORCE_FALLBACK, KERNEL, Variable
from treadle.base.errors import UnsupportedOp
from treadle.base.process import RUNTIME
from treadle.ops.op import REGISTRY

HOST = "host"
"""The implementation that every op has: on a device, the host's engines; there, NumPy."""

_BLOCKS: list[Mapping[str, str]] = []


def forced(op: str) -> tuple[str, str]:
    """The implementation that an op has to have, and who says so; ("", "") where nobody does.

    The innermost `force` block decides, then TREADLE_KERNEL, then TREADLE_FORCE_FALLBACK.
    """
    for block in reversed(_BLOCKS):
        if op in block:
            return block[op], "force()"
    named = pairs(KERNEL)
    if op in named:
        return named[op], KERNEL.source()
    if op in _names(FORCE_FALLBACK):
        return HOST, FORCE_FALLBACK.source()
    return "", ""


@contextmanager
def force(**choices: str) -> Iterator[None]:
    """Run eager ops by one implementation each inside the block, on all threads.

    Args:
        choices: by op, the name of a kernel or engine as `explain` shows it; "host" for the host's
            engines, and on the host for NumPy.

    Raises:
        UnsupportedOp: there is no such op; inside the block, at ops for which there is no such
            implementation, or whose implementation refuses.

    Example:
        >>> with mge.force(add="reference"):
        ...     print(mge.tensor([1.0], device="cpux") + 1)
        Tensor([2.], device=cpux:0)
    """
    for op in choices:
        if op not in REGISTRY:
            raise UnsupportedOp("force", f"there is no op {op!r}", hint=near(op))
    _BLOCKS.append(choices)
    RUNTIME.invalidate("launches")
    try:
        yield
    finally:
        _BLOCKS.remove(choices)
        RUNTIME.invalidate("launches")


def near(op: str) -> str:
    """A name like one that no op has, as a hint; "" if there is none."""
    found = difflib.get_close_matches(op, REGISTRY, n=1)
    return f"did you mean {found[0]}?" if found else ""


def pairs(variable: Variable) -> dict[str, str]:
    """Parse a variable of the form `op=name,...`."""
    parts = [part.partition("=") for part in variable.get().split(",")]
    return {op.strip(): name.strip() for op, sign, name in parts if sign}


def _names(variable: Variable) -> list[str]:
    return [name.strip() for name in variable.get().split(",") if name.strip()]


def mistakes() -> list[str]:
    """Ops named by the environment that do not exist, in words for the user."""
    named = {name: KERNEL for name in pairs(KERNEL)}
    named |= {name: FORCE_FALLBACK for name in _names(FORCE_FALLBACK)}
    return [
        f"{variable.source()} names {op!r}, which is not an op; {near(op)}".rstrip("; ")
        for op, variable in named.items()
        if op not in REGISTRY
    ]
