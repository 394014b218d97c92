"""Learning rates by the course of training: one cycle over all steps, and drops on plateaus."""

from __future__ import annotations

import math

from treadle.optimizer.lr_scheduler import LRScheduler
from treadle.optimizer.optimizer import Optimizer


class OneCycleLR(LRScheduler):
    """A rise from max_lr / div_factor to `max_lr`, then a fall to far below the start.

    Smith and Topin, "Super-convergence", 2018. `step()` is called after each batch. The learning
    rates that the optimizer had are not used.

    Args:
        optimizer: whose learning rates are set.
        max_lr: the largest learning rate.
        total_steps: steps of the whole cycle, at least 2.
        pct_start: the share of them that goes up, in (0, 1).
        anneal: "cos" or "linear".
        div_factor: `max_lr` over the first learning rate.
        final_div_factor: the first learning rate over the last one.
        current_epoch: the last step that is done; -1 to begin.

    Raises:
        ValueError: an argument is out of its range, or the cycle is over.
    """

    _saved = (
        "max_lr",
        "total_steps",
        "pct_start",
        "anneal",
        "div_factor",
        "final_div_factor",
        "current_epoch",
    )

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float,
        total_steps: int,
        pct_start: float = 0.3,
        anneal: str = "cos",
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        current_epoch: int = -1,
    ) -> None:
        if total_steps < 2 or not 0.0 < pct_start < 1.0:
            raise ValueError(
                "OneCycleLR: total_steps must be at least 2 and pct_start in (0, 1), got "
                f"{total_steps} and {pct_start}"
            )
        if not (div_factor > 0.0 and final_div_factor > 0.0):
            saw = f"{div_factor} and {final_div_factor}"
            raise ValueError(f"OneCycleLR: div_factor and final_div_factor are above 0, got {saw}")
        if anneal not in ("cos", "linear"):
            raise ValueError(f"OneCycleLR: anneal must be 'cos' or 'linear', got {anneal!r}")
        self.max_lr = max_lr
        self.total_steps = total_steps
        self.pct_start = pct_start
        self.anneal = anneal
        self.div_factor = div_factor
        self.final_div_factor = final_div_factor
        super().__init__(optimizer, current_epoch)

    def get_lr(self) -> list[float]:
        """Learning rates of all groups at step `current_epoch`."""
        now, last = self.current_epoch, self.total_steps - 1
        if now > last:
            raise ValueError(
                f"OneCycleLR: step {now + 1} of a cycle of {self.total_steps}; make total_steps "
                "epochs * len(loader)"
            )
        first = self.max_lr / self.div_factor
        top = self.pct_start * self.total_steps - 1
        if now < top:
            lr = self._between(first, self.max_lr, now / top)
        else:
            share = (now - top) / (last - top)
            lr = self._between(self.max_lr, first / self.final_div_factor, share)
        return [lr] * len(self.base_lrs)

    def _between(self, start: float, end: float, share: float) -> float:
        bent = (1.0 - math.cos(math.pi * share)) / 2.0 if self.anneal == "cos" else share
        return start + (end - start) * bent


class ReduceLROnPlateau(LRScheduler):
    """Learning rates that drop by `factor` once a quantity has stopped improving.

    `step(value)` is called after each epoch with the quantity; the trainer passes the loss of
    the validation, or that of the training where there is no validation.

    Args:
        optimizer: whose learning rates are set.
        mode: "min" if less is better, "max" if more is.
        factor: what learning rates are multiplied by, in (0, 1).
        patience: epochs without a better value that are let pass.
        threshold: the share of the best value by which a better one must differ.
        cooldown: epochs after a drop that do not count.
        min_lr: where learning rates end.

    Raises:
        ValueError: `factor` is not in (0, 1), or there is no such mode.
    """

    _saved = ("current_epoch", "best", "bad_epochs", "resting")

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
    ) -> None:
        if not 0.0 < factor < 1.0:
            raise ValueError(f"ReduceLROnPlateau: factor must be in (0, 1), got {factor}")
        if mode not in ("min", "max"):
            raise ValueError(f"ReduceLROnPlateau: mode must be 'min' or 'max', got {mode!r}")
        self.mode = mode
        self.factor = factor
        self.patience = patience
        self.threshold = threshold
        self.cooldown = cooldown
        self.min_lr = min_lr
        self.best = math.inf if mode == "min" else -math.inf
        self.bad_epochs = 0
        self.resting = 0
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        """Learning rates of all groups, which only `step` changes."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def step(self, value: float | None = None) -> None:
        """Record the quantity after an epoch, and set the learning rates.

        Raises:
            TypeError: no value is given.
        """
        if value is None:
            if self.current_epoch >= 0:  # The constructor's own call has none.
                raise TypeError("ReduceLROnPlateau.step: missing value, such as the epoch's loss")
            self.current_epoch = 0
            return
        self.current_epoch += 1
        now = float(value)
        if self._is_better(now):  # NaN never is.
            self.best, self.bad_epochs = now, 0
        else:
            self.bad_epochs += 1
        if self.resting:
            self.resting, self.bad_epochs = self.resting - 1, 0
        if self.bad_epochs > self.patience:
            for group in self.optimizer.param_groups:
                group["lr"] = max(group["lr"] * self.factor, self.min_lr)
            self.resting, self.bad_epochs = self.cooldown, 0

    def _is_better(self, now: float) -> bool:
        if self.mode == "min":
            return now < self.best * (1.0 - self.threshold)
        return now > self.best * (1.0 + self.threshold)
