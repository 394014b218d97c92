"""A course of training: updates over packed examples, measured, saved, taken up again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.base.errors import CheckpointError
from treadle.llm.tuning.examples import Example, packed
from treadle.llm.tuning.files import write_adapter
from treadle.llm.tuning.tuner import Rows, Tuner
from treadle.serialization import load, save

STATE = "training.safetensors"
"""Names of what a course needs to go on, beside the adapter."""


@dataclass(frozen=True)
class Course:
    """Settings of a course of training.

    Attributes:
        length: tokens of a row, into which examples are packed.
        rows: that an update learns from.
        epochs: how often every example is learned.
        held: share of the examples that is not learned, but measured.
        seed: of the order, and of what is held back.
    """

    length: int = 512
    rows: int = 1
    epochs: int = 1
    held: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Progress:
    """Figures of an update; `held` is the mean loss of what is not learned, after epochs."""

    update: int
    updates: int
    loss: float
    rate: float
    tokens: int
    seconds: float
    held: float | None = None


class Batches:
    """Rows that each update learns from; they follow from the examples and the course alone."""

    def __init__(self, examples: Sequence[Example], course: Course) -> None:
        self._course = course
        order = np.random.default_rng(course.seed).permutation(len(examples))
        apart = int(len(examples) * course.held)
        self._learned = [examples[i] for i in order[apart:]]
        self.held = packed([examples[i] for i in order[:apart]], course.length)
        self._epochs = [self._epoch(n) for n in range(course.epochs)]

    @property
    def updates(self) -> int:
        """All of them."""
        return sum(map(len, self._epochs))

    def __iter__(self) -> Iterator[tuple[list[Rows], bool]]:
        """The rows of every update, and whether it ends an epoch."""
        for epoch in self._epochs:
            for i, batch in enumerate(epoch):
                yield batch, i == len(epoch) - 1

    def _epoch(self, number: int) -> list[list[Rows]]:
        rng = np.random.default_rng((self._course.seed, number))
        rows = packed(
            [self._learned[i] for i in rng.permutation(len(self._learned))], self._course.length
        )
        # An example that was cut before its answer has nothing to learn.
        rows = [r for r in rows if r.weights.any()]
        count = self._course.rows
        return [rows[i : i + count] for i in range(0, len(rows), count)]


def take(tuner: Tuner, plan: Batches, folder: str, base: str, every: int = 0) -> Iterator[Progress]:
    """Take all updates that are left, and leave adapter and state in a folder.

    Args:
        tuner: what learns; it goes on where it stands.
        plan: from what.
        folder: where the adapter is written, after all updates and after `every` of them.
        base: the name of the model below.
        every: 0: only after all.
    """
    for number, (batch, ends) in enumerate(plan):
        if number < tuner.updates:
            continue
        begun, rate = time.perf_counter(), tuner.schedule.at(number)
        loss = tuner.step(batch)
        seconds = time.perf_counter() - begun
        tokens = sum(int((rows.segments > 0).sum()) for rows in batch)
        if not np.isfinite(loss):
            hint = "take a smaller learning rate"
            raise CheckpointError(
                "finetune", f"the loss of update {number + 1} is {loss}", hint=hint
            )
        held = tuner.evaluate(plan.held) if ends and plan.held else None
        if tuner.updates == plan.updates or (every and tuner.updates % every == 0):
            keep(tuner, folder, base)
        yield Progress(number + 1, plan.updates, loss, rate, tokens, seconds, held)


def keep(tuner: Tuner, folder: str, base: str) -> None:
    """Write the adapter, and what going on needs."""
    write_adapter(folder, tuner.adapter(), base)
    save(tuner.state(), os.path.join(folder, STATE))


def resume(tuner: Tuner, folder: str) -> None:
    """Go on where the course in a folder stopped.

    Raises:
        CheckpointError: the folder holds no course, or one of another adapter.
        OSError: it cannot be read.
    """
    path = os.path.join(folder, STATE)
    state: Any = load(path)
    if not tuner.restore(state):
        hint = "take the rank, targets and model that it was begun with"
        raise CheckpointError(path, "the course belongs to another adapter", hint=hint)
