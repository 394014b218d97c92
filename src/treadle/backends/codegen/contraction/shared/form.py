"""Rows and columns of the result of a channels-last convolution, from its axes."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.backends.codegen.views import Dims, Strided
from treadle.base.shape import product
from treadle.base.symbol import Dim
from treadle.ops.movement import Reshape, Transpose


@dataclass(frozen=True, slots=True)
class ResultForm:
    """The way from the axes [N,C,*S] of a result to (*batch, row, column).

    `flat`: the images follow one another in the rows; else they are a batch axis. With a `block`,
    so are the blocks of the channels, whose axes are [N,C / block,block,*S]; there are as many
    images as `images` says, one of them flat.
    """

    images: Dim
    groups: int
    channels: int
    positions: Dims
    flat: bool
    block: int = 0

    @property
    def batch(self) -> Dims:
        """Extents of the batch axes."""
        groups = (self.groups,) if self.flat else (self.images, self.groups)
        return (*groups, self.channels // self.block) if self.block else groups

    @property
    def m(self) -> Dim:
        """The number of rows."""
        return product(self.positions) * (self.images if self.flat else 1)

    @property
    def columns(self) -> int:
        """Columns, which are neighbors."""
        return self.block or self.channels

    def pull(self, view: Strided) -> Strided | None:
        """A view in the shape [N,C,*S], or with channels split, made one of rows and columns."""
        parts = (self.channels // self.block, self.block) if self.block else (self.channels,)
        split = (self.images, self.groups, *parts, *self.positions)
        last = tuple(range(2 + len(parts), len(split)))
        lead = tuple(range(2, 1 + len(parts)))
        order = (1, *lead, 0, *last) if self.flat else (0, 1, *lead, *last)
        found = view.after(Reshape(split))
        found = None if found is None else found.after(Transpose((*order, 1 + len(parts))))
        return None if found is None else found.after(Reshape((*self.batch, self.m, self.columns)))
