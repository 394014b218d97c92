"""From indices or raw samples to a batch; the same code here and in the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from treadle.data.collator import Collator
from treadle.data.dataset import Dataset, StreamDataset
from treadle.data.failure import abbreviate
from treadle.data.transform import Transform

T = TypeVar("T")
Indices = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Dataset, transform and collator of a loader: what a worker needs."""

    dataset: Dataset | Sequence[Any]
    transform: Transform
    collator: Collator

    def load(self, indices: Indices) -> Any:
        """Read the samples of a map-style dataset and make a batch of them."""
        return self.merge([self._read(index) for index in indices], "dataset indices", indices)

    def merge(self, samples: list[Any], kind: str, numbers: Indices) -> Any:
        """Make a batch of samples; `kind` and `numbers` say in errors which ones they are."""
        try:
            transformed = no_stop(lambda: self.transform.apply_batch(samples), "the transform")
        except Exception as error:
            error.add_note(f"while transforming {kind} {abbreviate(numbers)}")
            raise
        try:
            return no_stop(lambda: self.collator.apply(transformed), "the collator")
        except Exception as error:
            error.add_note(f"while collating {kind} {abbreviate(numbers)}")
            if len(transformed) == len(numbers):
                position = self._first_misfit(transformed)
                error.add_note(f"sample {position} of the batch is number {numbers[position]}")
            raise

    def merge_stream(self, samples: list[Any], start: int) -> Any:
        """Make a batch of the samples of a stream that follow number `start`."""
        return self.merge(samples, "stream samples", range(start, start + len(samples)))

    def _first_misfit(self, transformed: Sequence[Any]) -> int:
        """The first sample that cannot be merged with the first; found by trying each pair."""
        for position, sample in enumerate(transformed[1:], start=1):
            try:
                self.collator.apply([transformed[0], sample])
            except Exception:
                return position
        return 0

    def _read(self, index: Any) -> Any:
        try:
            return no_stop(lambda: self.dataset[index], f"dataset[{index}]")
        except IndexError as error:
            error.add_note(f"raised by dataset[{index}], while len(dataset) is {self._length()}")
            raise
        except Exception as error:
            error.add_note(f"raised by dataset[{index}]")
            raise

    def _length(self) -> int | str:
        try:
            return len(self.dataset)
        except Exception as error:
            return f"unknown ({error!r})"


def no_stop(call: Callable[[], T], what: str) -> T:
    """Call user code in which a stray StopIteration must not pass for the end of the epoch."""
    try:
        return call()
    except StopIteration as error:
        raise RuntimeError(f"{what} raised StopIteration") from error


class StreamReader:
    """Takes groups of samples from one pass over a stream."""

    def __init__(self, dataset: Dataset | Sequence[Any]) -> None:
        if not isinstance(dataset, StreamDataset):
            raise TypeError(f"{type(dataset).__name__} is not a StreamDataset")
        self._samples: Iterator[Any] = iter(dataset)
        self.position = 0

    def take(self, size: int) -> list[Any]:
        """Return the next `size` samples, fewer at the end of the stream."""
        group: list[Any] = []
        try:
            group.extend(islice(self._samples, size))
        except Exception as error:
            error.add_note(f"raised by the stream after sample {self.position + len(group) - 1}")
            raise
        self.position += len(group)
        return group
