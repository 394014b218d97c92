"""Requests as parts of one run: one behind the other, and shorter ones padded to the longest."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from treadle.base.array import Array

Arrays = Sequence[Array]
"""The inputs of a request, or its outputs."""


class Rows:
    """Joins requests whose extents are equal, but for axis 0."""

    def alike(self, arrays: Arrays) -> Hashable:
        """Return what requests have in common that may be joined."""
        return tuple(array.shape[1:] for array in arrays)

    def chosen(self, first: Arrays, others: Sequence[Arrays], most: int) -> list[int]:
        """Return places of requests that run together with the first one.

        Args:
            first: a request.
            others: some that are alike, in the order in which they came.
            most: rows of all.
        """
        found, rows = [], len(first[0])
        for place, arrays in enumerate(others):
            if rows + len(arrays[0]) <= most:
                found.append(place)
                rows += len(arrays[0])
        return found

    def joined(self, requests: Sequence[Arrays]) -> list[Array]:
        """Return the inputs of one run."""
        return [np.concatenate(column) for column in zip(*requests, strict=True)]

    def parted(self, requests: Sequence[Arrays], outputs: Arrays) -> list[list[Array]]:
        """Return the outputs of each request."""
        parts, end = [], 0
        for arrays in requests:
            begin, end = end, end + len(arrays[0])
            parts.append([output[begin:end] for output in outputs])
        return parts


class Padded(NamedTuple):
    """An end of a model whose rows may be of several lengths.

    Attributes:
        axes: names of the extents that may differ, by axis.
        value: what pads it.
    """

    axes: Mapping[int, str]
    value: float = 0


class PaddedRows(Rows):
    """Joins requests of several lengths: all have the longest one's, and results their own.

    Args:
        inputs, outputs: of the model.
        price: elements of inputs that take as long as a run without any. Requests are joined if
            they need no more padding than the runs that this saves are worth.
    """

    def __init__(
        self, inputs: Sequence[Padded], outputs: Sequence[Padded], price: float = 0
    ) -> None:
        self._inputs, self._outputs, self.price = inputs, outputs, price

    def alike(self, arrays: Arrays) -> Hashable:
        """Return what requests have in common that may be joined: other extents and ranks."""
        return tuple(
            tuple(0 if axis in end.axes else d for axis, d in enumerate(array.shape) if axis)
            for end, array in zip(self._inputs, arrays, strict=True)
        )

    def chosen(self, first: Arrays, others: Sequence[Arrays], most: int) -> list[int]:
        """Return places of requests that run together with the first one, nearest in length first.

        Those whose padding would take longer than the run that they save are left out.
        """
        own = self._lengths(first)

        def distance(place: int) -> int:
            lengths = self._lengths(others[place])
            return sum(abs(lengths[name] - length) for name, length in own.items())

        found, together = list[int](), [first]
        for place in sorted(range(len(others)), key=distance):
            tried = [*together, others[place]]
            if sum(len(arrays[0]) for arrays in tried) <= most and self._pays(tried):
                found.append(place)
                together = tried
        return sorted(found)

    def joined(self, requests: Sequence[Arrays]) -> list[Array]:
        """Return the inputs of one run, padded to the longest."""
        shapes = self._shapes(requests)
        columns = zip(self._inputs, zip(*requests, strict=True), shapes, strict=True)
        return [_laid(column, shape, end.value) for end, column, shape in columns]

    def parted(self, requests: Sequence[Arrays], outputs: Arrays) -> list[list[Array]]:
        """Return the outputs of each request, cut to its lengths."""
        whole = super().parted(requests, outputs)
        return [
            [
                np.ascontiguousarray(part[_corner(part, end.axes, self._lengths(arrays))])
                for end, part in zip(self._outputs, parts, strict=True)
            ]
            for arrays, parts in zip(requests, whole, strict=True)
        ]

    def _lengths(self, arrays: Arrays) -> dict[str, int]:
        return {
            name: array.shape[axis]
            for end, array in zip(self._inputs, arrays, strict=True)
            for axis, name in end.axes.items()
        }

    def _shapes(self, requests: Sequence[Arrays]) -> list[tuple[int, ...]]:
        """Shapes of the inputs of one run."""
        rows = sum(len(arrays[0]) for arrays in requests)
        known = [self._lengths(arrays) for arrays in requests]
        longest = {name: max(lengths[name] for lengths in known) for name in known[0]}
        return [
            (rows, *(longest[end.axes[a]] if a in end.axes else d for a, d in _behind(array)))
            for end, array in zip(self._inputs, requests[0], strict=True)
        ]

    def _pays(self, requests: Sequence[Arrays]) -> bool:
        asked = sum(array.size for arrays in requests for array in arrays)
        padding = sum(map(prod, self._shapes(requests))) - asked
        return padding <= self.price * (len(requests) - 1)


def _behind(array: Array) -> list[tuple[int, int]]:
    """Axes behind the rows, and their extents."""
    return [*enumerate(array.shape)][1:]


def _laid(column: Arrays, shape: tuple[int, ...], value: float) -> Array:
    """Arrays one behind the other in a larger one."""
    made = np.full(shape, value, column[0].dtype) if value else np.zeros(shape, column[0].dtype)
    at = 0
    for array in column:
        made[(slice(at, at + len(array)), *(slice(d) for d in array.shape[1:]))] = array
        at += len(array)
    return made


def _corner(array: Array, axes: Mapping[int, str], lengths: Mapping[str, int]) -> tuple[slice, ...]:
    """The part of a result that belongs to these lengths."""
    return tuple(slice(lengths[axes[a]] if a in axes else None) for a in range(array.ndim))


__all__ = ["Arrays", "Padded", "PaddedRows", "Rows"]
