"""Interface of transforms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any


class Transform(ABC):
    """A function of one sample, run before the samples of a batch are merged.

    Subclasses give `apply`; those that look at several samples at once override `apply_batch`.

    Attributes:
        order: what the fields of a sample are ("image", "mask", ...), for those that ask.
    """

    order: tuple[str, ...] | None = None

    def apply_batch(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Transform every sample of a batch."""
        return tuple(self._apply_at(position, sample) for position, sample in enumerate(inputs))

    @abstractmethod
    def apply(self, input: Any) -> Any:
        """Transform one sample."""

    def set_order(self, order: Sequence[str]) -> None:
        """Take over the order of fields from an enclosing `Compose`."""
        self.order = tuple(order)

    def _apply_at(self, position: int, sample: Any) -> Any:
        try:
            return self.apply(sample)
        except Exception as error:
            error.add_note(f"in transform {self!r}, sample {position} of the batch")
            raise

    def __repr__(self) -> str:
        return type(self).__name__


class PseudoTransform(Transform):
    """Returns each sample as it is."""

    def apply_batch(self, inputs: Sequence[Any]) -> Sequence[Any]:
        return inputs

    def apply(self, input: Any) -> Any:
        return input


class CudaTransform(Transform):
    """A transform of merged batches on the default device, whatever that is.

    A subclass gives `apply`, which takes a batch of the loader with its arrays turned into Tensors
    and returns the batch to yield; the class itself returns it as it is. A `DataLoader` runs it in
    its own process, after the workers and the collator are done; in a `Compose` such transforms
    come last. The name is MegEngine's.
    """

    def apply(self, input: Any) -> Any:
        return input
