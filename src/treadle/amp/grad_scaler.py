"""Scaling of losses, so that small gradients survive float16."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import treadle.functional as F
from treadle.autodiff import GradManager, no_grad
from treadle.autodiff.finite import drop, mark_usable, usable
from treadle.base.modes import capturing
from treadle.tensor import Tensor


class GradScaler:
    """Multiplies what `backward` starts from by a factor, and gradients by its inverse.

    Where a gradient is not finite, all are dropped, so that the optimizer's step does nothing, and
    the factor is multiplied by `backoff_factor`; after `growth_interval` good updates it is
    multiplied by `growth_factor`. The factor is state: in a compiled step the program updates it,
    and the optimizer's step keeps the old values where gradients were dropped.

    Args:
        init_scale: the first factor.
        growth_factor: by which it grows.
        backoff_factor: by which it shrinks.
        growth_interval: good updates before it grows; 0 keeps it, and checks nothing.

    Example:
        >>> import treadle as mge
        >>> from treadle.autodiff import GradManager
        >>> w = mge.Parameter([1., 2.])
        >>> gm, scaler = GradManager().attach(w), mge.amp.GradScaler()
        >>> with gm:
        ...     scaler.backward(gm, (w * w).sum())
        >>> w.grad.tolist(), scaler.scale_factor
        ([2.0, 4.0], 16.0)

    Source: Micikevicius et al., Mixed precision training, ICLR 2018.
    """

    def __init__(
        self,
        init_scale: float = 2.0**4,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        self.growth_factor = float(growth_factor)
        self.backoff_factor = float(backoff_factor)
        self.growth_interval = growth_interval
        # Tensors, so that compiled steps read and write them as state.
        self._scale = Tensor(np.array(init_scale, np.float64), dtype="float64")
        self._tracker = Tensor(np.array(0, np.int32))
        self._found = Tensor(np.array(False))

    @property
    def scale_factor(self) -> Any:
        """The factor: a float, and while a step is captured a tensor of one number."""
        return self._scale if capturing() is not None else float(self._scale)

    @scale_factor.setter
    def scale_factor(self, value: float) -> None:
        self._scale._reset(Tensor(np.array(value, np.float64), dtype="float64"))

    @property
    def _growth_tracker(self) -> int:
        return int(self._tracker)

    @property
    def _found_non_finite(self) -> bool:
        return bool(self._found)

    def backward(
        self,
        gm: GradManager,
        y: Tensor | Sequence[Tensor] | None = None,
        dy: Tensor | Sequence[Tensor] | None = None,
        *,
        unscale_grad: bool = True,
        update_scale: bool | str = "if_unscale_grad",
    ) -> None:
        """`gm.backward` of scaled outputs.

        Args:
            gm: the manager.
            y: one output or several.
            dy: cotangents of the same number and shapes, ones if left out; they are scaled.
            unscale_grad: call `unscale` afterwards; False to accumulate several batches first.
            update_scale: call `update` afterwards, if gradients are unscaled.

        Raises:
            AutodiffError: the manager is not recording.
        """
        outputs = _listed(y)
        with no_grad():
            if dy is None:
                seeds = [self._like(out).broadcast_to(out.shape) for out in outputs]
            else:
                seeds = [given * self._like(given) for given in _listed(dy)]
        gm.backward(outputs, seeds)
        if unscale_grad:
            self.unscale(gm.attached_tensors())
            if update_scale:
                self.update()

    def _like(self, x: Tensor) -> Tensor:
        """The factor in the type, and on the device, of another tensor."""
        return self._scale.to(x.device).astype(x.dtype)

    def unscale(self, grad_tensors: Iterable[Tensor]) -> GradScaler:
        """Divide the gradients of some tensors by the factor, or drop all if one is not finite.

        Args:
            grad_tensors: all tensors that gradients were taken of.

        Returns:
            The scaler.
        """
        tensors = [t for t in grad_tensors if t.grad is not None]
        with no_grad():
            if self.growth_interval and tensors:
                self._look_for_overflow([t.grad for t in tensors])
            if capturing() is None and bool(self._found):
                drop(tensors)
                return self
            for tensor in tensors:
                grad = tensor.grad
                grad._reset(grad * (1.0 / self._scale).to(grad.device).astype(grad.dtype))
            if self.growth_interval:
                self._mark(tensors)
        return self

    def _mark(self, tensors: list[Tensor]) -> None:
        """Count gradients in a capture only where all are finite; elsewhere they are left at 0."""
        capture = capturing()
        if capture is None:
            return
        for tensor in tensors:
            mark_usable(tensor.grad, ~self._found.to(tensor.grad.device))
        capture.endings.append(lambda: _drop_unusable(tensors))

    def _look_for_overflow(self, grads: list[Tensor]) -> None:
        finite = [F.all(F.isfinite(g)).to(self._found.device) for g in grads]
        self._found._reset(F.logical_or(self._found, ~F.all(F.stack(finite))))

    def update(self, new_scale: float | None = None) -> None:
        """Adapt the factor to what `unscale` has found, or set it.

        Args:
            new_scale: the factor from now on.
        """
        if self.growth_interval == 0:
            return
        with no_grad():
            if new_scale is not None:
                self.scale_factor = new_scale
            else:
                self._adapt()
            self._found._reset(F.zeros_like(self._found))

    def _adapt(self) -> None:
        """One step of the rule."""
        self._depend_on_rule()
        good = self._tracker + 1
        grows = good >= self.growth_interval
        factor = F.where(grows, self._number(self.growth_factor), self._number(1.0))
        factor = F.where(self._found, self._number(self.backoff_factor), factor)
        self._scale._reset(self._scale * factor)
        kept = F.logical_and(~self._found, ~grows)
        self._tracker._reset(F.where(kept, good, F.zeros_like(good)))

    def _number(self, value: float) -> Tensor:
        return self._scale.constant(value)

    def _depend_on_rule(self) -> None:
        """A program that is being captured holds for these numbers only."""
        capture = capturing()
        if capture is not None:
            capture.guard(self._rule, self._rule())

    def _rule(self) -> tuple[float, ...]:
        return self.growth_factor, self.backoff_factor, self.growth_interval

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers that a resumed run needs, by name."""
        return {
            "scale_factor": float(self._scale),
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called.

        Raises:
            KeyError: a number is missing.
        """
        tracker, scale = state["_growth_tracker"], state["scale_factor"]
        self.growth_factor = state["growth_factor"]
        self.backoff_factor = state["backoff_factor"]
        self.growth_interval = state["growth_interval"]
        self.scale_factor = scale
        self._tracker._reset(Tensor(np.array(tracker, np.int32)))


class Xla_GradScaler(GradScaler):
    """`GradScaler` under the name MegEngine has for compiled steps; ours needs no other class."""


def _drop_unusable(tensors: list[Tensor]) -> None:
    """Zero the gradients that outlive a program where they do not count."""
    with no_grad():
        for tensor in tensors:
            grad = tensor.grad
            flag = usable(grad)
            if flag is not None:
                grad._reset(F.where(flag, grad, F.zeros_like(grad)))


def _listed(given: Tensor | Sequence[Tensor] | None) -> list[Tensor]:
    if given is None:
        return []
    return [given] if isinstance(given, Tensor) else list(given)
