"""Windows that move over spatial axes: the geometry convolution, pooling and patches share.

A kernel tap knows for which outputs it falls inside the input, so nothing is ever padded in
memory and a cell of the padding is never read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from treadle.base.errors import ShapeError
from treadle.base.guards import require
from treadle.base.shape import Shape, format_shape, require_equal
from treadle.base.symbol import Dim, less_equal, minimum

Padding: TypeAlias = tuple[tuple[int, int], ...]
Index: TypeAlias = tuple[Any, ...]
"""Integers and slices, as NumPy takes them."""

PLANES: Index = (slice(None), slice(None))
"""The index of the two leading axes, batch and channels."""


class Tap(NamedTuple):
    """One kernel cell: which outputs read an input cell through it, and which cells those are."""

    cell: Index
    outputs: Index
    inputs: Index


@dataclass(frozen=True, slots=True)
class Window:
    """A kernel of `kernel` cells, `dilation` apart, moved in steps of `strides`.

    `padding` holds (before, after) per spatial axis. `ceil_mode` adds a last, incomplete window
    where the steps do not fit, unless it would start beyond the input and its leading padding.
    """

    kernel: Shape
    strides: tuple[int, ...]
    padding: Padding
    dilation: tuple[int, ...]
    ceil_mode: bool = False

    def __str__(self) -> str:
        text = f"kernel {format_shape(self.kernel)}, strides {format_shape(self.strides)}, "
        text += f"padding {list(self.padding)}, dilation {format_shape(self.dilation)}"
        return text + (", ceil_mode" if self.ceil_mode else "")

    @property
    def is_pointwise(self) -> bool:
        """True if every output sees exactly the input cell at its own position."""
        return (
            all(k == 1 for k in self.kernel)
            and all(s == 1 for s in self.strides)
            and all(p == (0, 0) for p in self.padding)
        )

    def extents(self, op: str, spatial: Shape, saw: str) -> Shape:
        """Number of window positions along each axis of an input with extents `spatial`.

        Raises:
            ShapeError: an attribute is out of range, or the kernel is larger than the input.
        """
        self._check_attributes(op, spatial, saw)
        fail = self._failure(op, spatial, saw)
        return tuple(self._extent(axis, n, fail) for axis, n in enumerate(spatial))

    def check_extents(self, op: str, spatial: Shape, found: Shape, saw: str) -> None:
        """Raise `ShapeError` unless windows over `spatial` give exactly the extents `found`."""
        expected = self.extents(op, spatial, saw)
        fail = self._failure(op, spatial, saw)
        problem = f"windows over {format_shape(spatial)} give {format_shape(expected)} positions"
        problem += f", not {format_shape(found)}"
        if len(expected) != len(found):
            raise fail(problem)
        for want, have in zip(expected, found, strict=True):
            require_equal(want, have, lambda: fail(problem))

    def _check_attributes(self, op: str, spatial: Shape, saw: str) -> None:
        fail = self._failure(op, spatial, saw)
        if not _are_pairs(self.padding):
            raise fail("padding is not a tuple of pairs", "give padding as ((before, after), ...)")
        parts: tuple[tuple[str, tuple[object, ...]], ...] = (
            ("kernel", self.kernel),
            ("strides", self.strides),
            ("padding", self.padding),
            ("dilation", self.dilation),
        )
        for name, values in parts:
            if len(values) != len(spatial):
                raise fail(
                    f"{name} has {len(values)} entries for {len(spatial)} spatial axes",
                    f"give {name} one entry per spatial axis",
                )
        for name, steps in (("strides", self.strides), ("dilation", self.dilation)):
            if min(steps, default=1) < 1:
                raise fail(f"{name} must be positive", f"use {name} of 1 or more")
        if min((p for pair in self.padding for p in pair), default=0) < 0:
            raise fail("padding must not be negative", "slice the input instead")

    def _extent(self, axis: int, n: Dim, fail: Callable[..., ShapeError]) -> Dim:
        kernel, step, low = self.kernel[axis], self.strides[axis], self.padding[axis][0]
        reach = self.dilation[axis] * (kernel - 1) + 1
        padded = n + low + self.padding[axis][1]
        require(less_equal(1, kernel), lambda: fail("the kernel is empty"))
        require(
            less_equal(reach, padded),
            lambda: fail(
                f"the kernel reaches over {reach} cells, more than the {padded} of the padded "
                f"input on spatial axis {axis}",
                "use a smaller kernel or dilation, or more padding",
            ),
        )
        if not self.ceil_mode:
            return (padded - reach) // step + 1
        positions = (padded - reach + step - 1) // step + 1
        return minimum(positions, (n + low - 1) // step + 1)

    def _failure(self, op: str, spatial: Shape, saw: str) -> Callable[..., ShapeError]:
        """A maker of errors that show the operands, the input's extents and the window."""

        def fail(problem: str, hint: str = "check the sizes of the window") -> ShapeError:
            seen = f"{saw}; input extents {format_shape(spatial)}; {self}"
            return ShapeError(op, problem, saw=seen, hint=hint)

        return fail


def _are_pairs(padding: object) -> bool:
    return isinstance(padding, (tuple, list)) and all(
        isinstance(pair, (tuple, list))
        and len(pair) == 2
        and not any(n is None or isinstance(n, (str, float)) for n in pair)
        for pair in padding
    )


def transposed_extents(window: Window, spatial: Shape, output_padding: tuple[int, ...]) -> Shape:
    """Extents of a transposed convolution's result: what `ConvGradInput.spatial` must be.

    step * (n - 1) + reach - padding + output_padding, per axis.
    """
    axes = zip(
        spatial,
        window.kernel,
        window.strides,
        window.padding,
        window.dilation,
        output_padding,
        strict=True,
    )
    return tuple(s * (n - 1) + d * (k - 1) + 1 - p[0] - p[1] + e for n, k, s, p, d, e in axes)


@lru_cache(maxsize=512)
def positions_and_taps(
    window: Window, spatial: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[Tap, ...]]:
    """The number of window positions per axis, and every tap that falls inside the input."""
    extents = tuple(int(n) for n in window.extents("window", spatial, ""))
    per_axis = [
        axis_taps(window, axis, spatial[axis], extents[axis]) for axis in range(len(spatial))
    ]
    taps = [
        Tap(*(tuple(part) for part in zip(*cells, strict=True)))
        for cells in itertools.product(*per_axis)
    ]
    return extents, tuple(taps)


def axis_taps(window: Window, axis: int, n: int, extent: int) -> list[tuple[int, slice, slice]]:
    """(cell, outputs, inputs) of the taps along one axis that ever fall inside the input."""
    step, apart, before = window.strides[axis], window.dilation[axis], window.padding[axis][0]
    # Most cells of a large window lie on its padding in every place: those are not gone through.
    low = max(0, -((step * (extent - 1) - before) // apart))
    high = min(int(window.kernel[axis]), (before + n - 1) // apart + 1)
    taps = []
    for cell in range(low, high):
        offset = cell * apart - before
        first = max(0, -(offset // step))
        last = min(extent - 1, (n - 1 - offset) // step)
        if first <= last:
            inputs = slice(first * step + offset, last * step + offset + 1, step)
            taps.append((cell, slice(first, last + 1), inputs))
    return taps
