"""A line per epoch, and a bar while it runs where there is a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from treadle.distributed.group import get_rank
from treadle.trainer.callback import Callback, Logs, Run

# The weight of the past in the loss that the bar shows.
_SMOOTHING = 0.9


class ProgressBar(Callback):
    """Shows how far training is.

    On a terminal: a bar with speed, time left and the smoothed loss. Everywhere: one line per
    epoch, on standard error. In a group of processes only the first one shows anything.

    Args:
        console: where to; standard error if None.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = Console(stderr=True) if console is None else console
        self._console.quiet |= get_rank() > 0
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._loss: float | None = None

    def on_epoch_start(self, trainer: Run) -> None:
        """Begin a bar."""
        if not self._console.is_terminal:
            return
        columns = (
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]} it/s"),
            TimeRemainingColumn(),
            TextColumn("loss {task.fields[loss]}"),
        )
        self._progress = Progress(*columns, console=self._console, transient=True)
        self._progress.start()
        self._task = self._progress.add_task(
            "fit",
            total=trainer.batches_in_epoch,
            completed=trainer.batch,
            epoch=trainer.epoch + 1,
            speed="-",
            loss="-",
        )

    def on_step_end(self, trainer: Run, logs: Logs) -> None:
        """Move the bar."""
        loss = logs["loss"]
        before = loss if self._loss is None else self._loss
        self._loss = _SMOOTHING * before + (1 - _SMOOTHING) * loss
        if self._progress is None:
            return
        speed = self._progress.tasks[0].speed
        self._progress.update(
            self._task,
            completed=trainer.batch,
            loss=f"{self._loss:.4g}",
            speed="-" if speed is None else f"{speed:.3g}",
        )

    def on_epoch_end(self, trainer: Run, logs: Logs) -> None:
        """Write the epoch's line."""
        self._close()
        text = "   ".join(f"{name} {value:.4g}" for name, value in logs.items())
        self._console.print(f"epoch {trainer.epoch}   {text}", highlight=False)

    def on_fit_end(self, trainer: Run) -> None:
        """Remove the bar."""
        self._close()

    def _close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
