"""Base of tools that look at every eager op, and know in which layer of a network it ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from treadle.base.dtype import as_dtype
from treadle.base.layers import current_layer, depth, within
from treadle.base.modes import capturing
from treadle.base.observer import observe
from treadle.base.types import TensorType
from treadle.ops.op import Op
from treadle.runtime.array import DeviceArray

W = TypeVar("W", bound="Watcher")


class Watcher:
    """Sees every op inside of its block: a subclass says what becomes of it in `ran`.

    Ops of compiled programs are not seen, their layers are: `jit.compare` looks into programs.

    Raises:
        RuntimeError: another watcher or profiler is running.
    """

    def __enter__(self: W) -> W:
        observe(self)
        return self

    def __exit__(self, *_: object) -> None:
        observe(None)

    @property
    def layer(self) -> str:
        """The layer that runs on this thread: its path in the outermost module, and its class."""
        return current_layer()

    def ran(self, op: Op, given: Sequence[Any], made: Sequence[Any]) -> None:
        """An op has run: its operands' and its results' payloads."""

    def failed(self, op: Op, given: Sequence[Any], error: Exception) -> None:
        """An op has raised, which goes on after this."""

    def entered(self, depth: int, inputs: tuple[Any, ...]) -> None:
        """A layer is about to run; `self.layer` names it."""

    def left(self, depth: int, outputs: Any) -> None:
        """A layer has run; `self.layer` still names it."""

    # -- what dispatch and modules tell ----------------------------------------------------

    def launch(self, op: Op, launch: Callable[..., Any], /) -> Callable[..., Any]:
        """A launch that is looked at."""

        def watched(*payloads: Any) -> Any:
            try:
                made = launch(*payloads)
            except Exception as error:
                self.failed(op, payloads, error)
                raise
            self.ran(op, payloads, made if isinstance(made, tuple) else (made,))
            return made

        return watched

    def program(self, name: str, run: Callable[[], Any], /) -> Any:
        """Programs run as they are."""
        return run()

    def module(self, module: Any, inputs: tuple[Any, ...], forward: Callable[[], Any], /) -> Any:
        """One call of a module; while a program is captured there are no values to look at."""
        if capturing() is not None:
            return forward()

        def watched() -> Any:
            self.entered(depth(), inputs)
            outputs = forward()
            self.left(depth(), outputs)
            return outputs

        return within(module, watched)


def type_of(payload: Any) -> TensorType:
    """Element type, shape and device of a payload; host arrays have no device here."""
    dtype = as_dtype(np.dtype(payload.dtype))
    device = payload.device.name if isinstance(payload, DeviceArray) else ""
    return TensorType(dtype, tuple(payload.shape), f"{device}:0" if device else "")


__all__ = ["Watcher", "type_of"]
