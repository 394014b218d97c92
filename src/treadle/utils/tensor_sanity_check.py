"""`TensorSanityCheck`: does an op change what it was given?"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from treadle.base.observer import observe
from treadle.ops.op import Op
from treadle.runtime.array import to_host


class TensorSanityCheck:
    """Checks that every op that runs in eager mode in the block leaves its operands alone.

    Arrays are immutable, so a difference is a fault of a kernel or of foreign code (a custom op,
    for instance). Slow: operands are hashed before and after.

    Raises:
        RuntimeError: at the op that changed an operand, by name; or another checker or profiler
            is running.

    Example:
        >>> import treadle as mge
        >>> with TensorSanityCheck():
        ...     _ = mge.tensor([1.0]) + 1
    """

    def __enter__(self) -> TensorSanityCheck:
        observe(self)
        return self

    def __exit__(self, *_: object) -> None:
        observe(None)

    def launch(self, op: Op, launch: Callable[..., Any], /) -> Callable[..., Any]:
        """Return a launch that checks its operands afterwards."""

        def checked(*payloads: Any) -> Any:
            before = [_digest(p) for p in payloads]
            made = launch(*payloads)
            for i, (payload, digest) in enumerate(zip(payloads, before, strict=True)):
                if _digest(payload) != digest:
                    raise RuntimeError(f"{op.name} changed its operand {i}, {np.shape(payload)}")
            return made

        return checked

    def program(self, name: str, run: Callable[[], Any], /) -> Any:
        """Run a program unchecked: it updates state in place by design."""
        return run()

    def module(self, module: Any, inputs: tuple[Any, ...], forward: Callable[[], Any], /) -> Any:
        """Run a module: only its ops are checked."""
        return forward()


def _digest(payload: Any) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(to_host(payload)).tobytes()).digest()


__all__ = ["TensorSanityCheck"]
