"""Quantities in files: CSV, and events for TensorBoard."""

from __future__ import annotations

import csv
import importlib
import io
import os
from pathlib import Path
from typing import Any

from treadle.base.files.atomic import write_atomically
from treadle.trainer.callback import Callback, Logs, Run

_KEY = ("step", "epoch", "name", "value")


class CSVLogger(Callback):
    """Appends a row (step, epoch, name, value) to a file for each quantity.

    A run that is resumed first takes back rows of steps that it will do again.

    Args:
        path: the file; its directory is made.
        every_steps: steps between two rows of a quantity of single steps.

    Raises:
        ValueError: `every_steps` is not positive.
    """

    def __init__(self, path: str | Path, every_steps: int = 1) -> None:
        self.path = Path(path)
        self.every_steps = _positive(every_steps)

    def on_fit_start(self, trainer: Run) -> None:
        """Keep the rows up to the step that the run is at; begin anew at step 0."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        rows = self._rows() if trainer.step else []
        # A run that was killed while writing may have left half a row, of a later step.
        kept = [r for r in rows if len(r) == len(_KEY) and r[0].isdecimal()]
        data = _text([_KEY, *(r for r in kept if int(r[0]) <= trainer.step)]).encode()
        write_atomically(str(self.path), [data], len(data))

    def on_step_end(self, trainer: Run, logs: Logs) -> None:
        """Write the step's rows."""
        if trainer.step % self.every_steps == 0:
            self._append(trainer, logs)

    def on_epoch_end(self, trainer: Run, logs: Logs) -> None:
        """Write the epoch's rows, whose names begin with "epoch_" or "val_"."""
        self._append(trainer, {_epoch_name(name): value for name, value in logs.items()})

    def _rows(self) -> list[list[str]]:
        if not self.path.exists():
            return []
        with open(self.path, newline="", encoding="utf-8") as file:
            return list(csv.reader(file))[1:]

    def _append(self, trainer: Run, logs: Logs) -> None:
        rows = [(trainer.step, trainer.epoch, name, repr(float(v))) for name, v in logs.items()]
        with open(self.path, "a", newline="", encoding="utf-8") as file:
            file.write(_text(rows))


class TensorBoardLogger(Callback):
    """Writes quantities as events that TensorBoard shows.

    Args:
        folder: where event files go.
        every_steps: steps between two values of a quantity of single steps.

    Raises:
        ImportError: tensorboardX is not installed.
        ValueError: `every_steps` is not positive.
    """

    def __init__(self, folder: str | Path, every_steps: int = 1) -> None:
        self.folder = os.fspath(folder)
        self.every_steps = _positive(every_steps)
        self._library = _tensorboard()
        self._writer: Any = None

    def on_fit_start(self, trainer: Run) -> None:
        """Open a file; TensorBoard drops what an earlier one says of later steps."""
        purge = trainer.step + 1 if trainer.step else None
        self._writer = self._library.SummaryWriter(self.folder, purge_step=purge)

    def on_step_end(self, trainer: Run, logs: Logs) -> None:
        """Write the step's values."""
        if trainer.step % self.every_steps == 0:
            self._write(trainer, logs)

    def on_epoch_end(self, trainer: Run, logs: Logs) -> None:
        """Write the epoch's values, whose names begin with "epoch_" or "val_"."""
        self._write(trainer, {_epoch_name(name): value for name, value in logs.items()})
        self._writer.flush()

    def on_fit_end(self, trainer: Run) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self, trainer: Run, logs: Logs) -> None:
        for name, value in logs.items():
            self._writer.add_scalar(name, value, trainer.step)


def _epoch_name(name: str) -> str:
    return name if name.startswith("val_") else f"epoch_{name}"


def _positive(every_steps: int) -> int:
    if every_steps < 1:
        raise ValueError(f"every_steps should be positive, got {every_steps}")
    return every_steps


def _text(rows: Any) -> str:
    target = io.StringIO()
    csv.writer(target, lineterminator="\n").writerows(rows)
    return target.getvalue()


def _tensorboard() -> Any:
    try:
        return importlib.import_module("tensorboardX")
    except ImportError as error:
        raise ImportError(
            "TensorBoardLogger writes with tensorboardX, which is not installed\n"
            "  hint: pip install 'treadle[tensorboard]'",
            name="tensorboardX",
        ) from error
