"""Patches of images (im2col) and their adjoint (col2im)."""

from __future__ import annotations

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import ShapeError
from treadle.base.shape import Shape, format_shape, require_equal
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.op import BadSample, Op, Pullback, Sample, V, family, op
from treadle.ops.precision import widen_array
from treadle.ops.windows import PLANES, Padding, Window, positions_and_taps


@family
class Patches(Op):
    """Attributes of moving windows; `padding` is (before, after) per spatial axis."""

    dtypes = dt.REALS
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding: Padding
    dilation: tuple[int, ...]

    @property
    def window(self) -> Window:
        """The moving window."""
        return Window(self.kernel, self.strides, self.padding, self.dilation)


@op
class SlidingWindow(Patches):
    """Every window of x [N,C,*S], [N,C,*P,*kernel]; cells of the padding are 0."""

    name = "sliding_window"
    homogeneous = True

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x,))
        self.check_ndim((x,), 0, 3, 4, 5)
        extents = self.window.extents(self.name, x.shape[2:], self.saw((x,)))
        return (x.with_shape((*x.shape[:2], *extents, *self.kernel)),)

    def reference(self, x: Array) -> Array:
        extents, taps = positions_and_taps(self.window, x.shape[2:])
        y = np.zeros((*x.shape[:2], *extents, *self.kernel), x.dtype)
        for tap in taps:
            y[PLANES + tap.outputs + tap.cell] = x[PLANES + tap.inputs]
        return y

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        spatial = at.inputs[0].type.shape[2:]
        return (SlidingWindowTranspose(**self.attributes, spatial=spatial)(at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(*attributes), (Arg(x),)) for attributes, x, _ in _CASES)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(
                lambda: cls((5,), (1,), ((0, 0),), (1,)),
                (Arg((1, 1, 4)),),
                ShapeError,
                "reaches over 5 cells",
            ),
            BadSample(
                lambda: cls((2,), (0,), ((0, 0),), (1,)),
                (Arg((1, 1, 4)),),
                ShapeError,
                "strides must be positive",
            ),
        )


@op
class SlidingWindowTranspose(Patches):
    """Adjoint of `SlidingWindow`: patches [N,C,*P,*kernel] added up in [N,C,*spatial].

    16-bit floats accumulate in float32; integers wrap.
    """

    spatial: Shape

    name = "sliding_window_transpose"
    operands = ("patches",)

    def infer(self, patches: TensorType) -> tuple[TensorType, ...]:
        types, axes = (patches,), len(self.spatial)
        self.check_dtype(types)
        self.check_ndim(types, 0, 2 + 2 * axes)
        positions, kernel = patches.shape[2 : 2 + axes], patches.shape[2 + axes :]
        self.window.check_extents(self.name, self.spatial, positions, self.saw(types))
        for found, wanted in zip(kernel, self.kernel, strict=True):
            require_equal(
                found,
                wanted,
                lambda: self.error(
                    f"patches of {format_shape(kernel)} for a kernel of "
                    f"{format_shape(self.kernel)}",
                    types,
                    "the last axes of the operand are the kernel's",
                ),
            )
        return (patches.with_shape((*patches.shape[:2], *self.spatial)),)

    def reference(self, patches: Array) -> Array:
        spatial = tuple(int(n) for n in self.spatial)
        given = widen_array(patches)
        total = np.zeros((*given.shape[:2], *spatial), given.dtype)
        # From the last tap on, a cell meets the patches in their order.
        for tap in reversed(positions_and_taps(self.window, spatial)[1]):
            total[PLANES + tap.inputs] += given[PLANES + tap.outputs + tap.cell]
        return total.astype(patches.dtype, copy=False)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        forward = {k: v for k, v in self.attributes.items() if k != "spatial"}
        return (SlidingWindow(**forward)(at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(
            Sample(cls(k, s, p, d, x[2:]), (Arg((*x[:2], *positions, *k)),))
            for (k, s, p, d), x, positions in _CASES
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        def make() -> Op:
            return cls((2,), (1,), ((0, 0),), (1,), (4,))

        return (
            BadSample(make, (Arg((1, 1, 4, 2)),), ShapeError, "give [3] positions, not [4]"),
            BadSample(make, (Arg((1, 1, 3, 3)),), ShapeError, "patches of [3] for a kernel of [2]"),
        )


# (kernel, strides, padding, dilation), shape of x, positions
_CASES = (
    (((2, 3), (1, 2), ((0, 1), (1, 1)), (1, 1)), (1, 2, 3, 4), (3, 2)),
    (((2, 2), (1, 1), ((0, 0), (0, 0)), (2, 1)), (2, 1, 3, 3), (1, 2)),
    (((3,), (2,), ((1, 0),), (1,)), (1, 1, 5), (2,)),
    (((1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1)), (1, 1, 1, 1), (1, 1)),
    (((2, 2), (1, 1), ((0, 0), (0, 0)), (1, 1)), (0, 2, 3, 3), (2, 2)),
)
