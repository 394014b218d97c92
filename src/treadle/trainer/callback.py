"""Callbacks of a trainer, and two of them: checkpoints, early stopping."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

Logs = dict[str, float]


class Run(Protocol):
    """The view of a `Trainer` that callbacks get."""

    step: int
    epoch: int
    batch: int
    batches_in_epoch: int | None
    is_interrupted: bool

    def stop(self) -> None:
        """End `fit` after the running step."""

    def save(self, path: str | Path) -> None:
        """Write a checkpoint."""


class Callback:
    """Base of what can be given to a `Trainer`; each method does nothing unless overridden.

    Methods are called in the order of the trainer's list. `trainer.stop()` in any of them ends
    `fit` after the running step. What a callback keeps between runs goes through `state_dict`.
    """

    def on_fit_start(self, trainer: Run) -> None:
        """Called once, after a checkpoint was loaded, if one is."""

    def on_epoch_start(self, trainer: Run) -> None:
        """Called before an epoch's first batch, or the first after resuming."""

    def on_step_end(self, trainer: Run, logs: Logs) -> None:
        """Called after each update, with "loss" and "lr" of the step."""

    def on_epoch_end(self, trainer: Run, logs: Logs) -> None:
        """Called after each epoch and its validation, with means over the epoch."""

    def on_fit_end(self, trainer: Run) -> None:
        """Called at the end of `fit`, however it ends."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs, as plain values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""


class _Monitor:
    """Remembers the best value of a quantity."""

    def __init__(self, name: str, mode: str, min_delta: float) -> None:
        if mode not in ("min", "max"):
            raise ValueError(f"mode should be 'min' or 'max', got {mode!r}")
        self.name = name
        self.sign = 1.0 if mode == "min" else -1.0
        self.min_delta = min_delta
        self.best = math.inf

    def improves(self, logs: Logs) -> bool:
        if self.name not in logs:
            raise KeyError(f"there is no {self.name!r} to look at, only {sorted(logs)}")
        value = self.sign * logs[self.name]
        if not value < self.best - self.min_delta:
            return False
        self.best = value
        return True


class Checkpoint(Callback):
    """Writes checkpoints, each whole or not at all.

    Args:
        path: the file of the latest state, from which `fit(resume=path)` continues.
        every_steps: updates between two; None for only the ends of epochs.
        monitor: a quantity of an epoch, such as "val_loss"; the state in which it was best is
            kept in a second file, `best_path` (`run.ckpt` and `run.best.ckpt`).
        mode: whether the least ("min") or the greatest ("max") value is best.

    Raises:
        ValueError: a number or mode is out of range.
        KeyError: at the end of an epoch, if it has no such quantity.
    """

    def __init__(
        self,
        path: str | Path,
        every_steps: int | None = None,
        monitor: str | None = None,
        mode: str = "min",
    ) -> None:
        if every_steps is not None and every_steps < 1:
            raise ValueError(f"every_steps should be positive, got {every_steps}")
        self.path = Path(path)
        self.best_path = self.path.with_name(f"{self.path.stem}.best{self.path.suffix}")
        self.every_steps = every_steps
        self._monitor = _Monitor(monitor, mode, 0.0) if monitor is not None else None

    def on_step_end(self, trainer: Run, logs: Logs) -> None:
        """Save, if it is time."""
        is_due = self.every_steps is not None and trainer.step % self.every_steps == 0
        if is_due or trainer.is_interrupted:
            self._save(trainer, self.path)

    def on_epoch_end(self, trainer: Run, logs: Logs) -> None:
        """Save, and save the best."""
        is_best = self._monitor is not None and self._monitor.improves(logs)
        self._save(trainer, self.path)
        if is_best:
            self._save(trainer, self.best_path)

    def state_dict(self) -> dict[str, Any]:
        """The best value so far."""
        return {} if self._monitor is None else {"best": self._monitor.best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        if self._monitor is not None and "best" in state:
            self._monitor.best = state["best"]

    def _save(self, trainer: Run, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        trainer.save(path)


class EarlyStopping(Callback):
    """Ends training when a quantity has stopped getting better.

    Args:
        monitor: a quantity of an epoch, such as "val_loss".
        patience: epochs without an improvement that are let pass.
        mode: whether the least ("min") or the greatest ("max") value is best.
        min_delta: smaller changes are not an improvement.

    Raises:
        ValueError: a number or mode is out of range.
        KeyError: at the end of an epoch, if it has no such quantity.
    """

    def __init__(
        self, monitor: str = "val_loss", patience: int = 3, mode: str = "min", min_delta: float = 0
    ) -> None:
        if patience < 0 or min_delta < 0:
            raise ValueError("patience and min_delta should not be negative")
        self.patience = patience
        self._monitor = _Monitor(monitor, mode, min_delta)
        self._waited = 0

    def on_epoch_end(self, trainer: Run, logs: Logs) -> None:
        """Check the quantity, and stop if it has not improved for too long."""
        self._waited = 0 if self._monitor.improves(logs) else self._waited + 1
        if self._waited > self.patience:
            trainer.stop()

    def state_dict(self) -> dict[str, Any]:
        """The best value so far, and the epochs since."""
        return {"best": self._monitor.best, "waited": self._waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self._monitor.best, self._waited = state["best"], state["waited"]
