"""Convolution by Winograd's algorithm, as an op of its own so that programs show the choice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import ShapeError
from treadle.base.shape import Shape, require_equal
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.conv import Conv, ConvGradInput, ConvGradWeight, Convolution, Side, WideConv
from treadle.ops.conv_numpy import convolve, correlate_for_weight
from treadle.ops.op import BadSample, Op, Sample, family, op
from treadle.ops.precision import compute_type, widen_array
from treadle.ops.windows import Padding, Window

TILES = (2, 4)
"""Results per axis that are computed together."""
_ONES = (1, 1)
_KERNEL = (3, 3)


@family
class Winograd(Convolution):
    """A 3x3 convolution, or a gradient of one, in tiles of `tile` x `tile`; made for kernels.

    Tiles of bfloat16 are transformed, multiplied and summed in float32; results are rounded once.
    """

    tile: int

    dtypes = (dt.float32, dt.bfloat16)
    no_gradient = "is made after differentiation"


@op
class WinogradConv(Winograd):
    """A 3x3 convolution, or its gradient in x, computed in tiles of `tile` x `tile` results.

    The result is that of `Conv`, with `transposed` that of `ConvGradInput`, of the same padding;
    kernels differ in rounding, and where an input is not finite a whole tile may become NaN.
    Strides, dilation and groups are 1. With `wide` the result has the type of its sums, as that of
    `WideConv`. It is made from the three after differentiation.
    """

    transposed: bool
    wide: bool = False

    name = "winograd_conv"
    operands = ("x", "weight")
    torch = (
        "torch.convolution(F.pad(x, [2 - p if op.transposed else p for pair in op.padding[::-1] "
        "for p in pair]), weight.swapaxes(0, 1).flip(2, 3) if op.transposed else weight, None, "
        "[1, 1], [0, 0], [1, 1], False, [0, 0], 1)"
    )

    @property
    def side(self) -> Side:
        return "input" if self.transposed else "forward"

    @property
    def effective_padding(self) -> Padding:
        """Padding of the convolution it computes; `transposed`: of that with the turned kernel."""
        if not self.transposed:
            return self.padding
        return tuple((2 - low, 2 - high) for low, high in self.padding)

    @property
    def direct(self) -> Conv | WideConv:
        """The convolution whose results it has, where it is not a gradient."""
        direct = WideConv if self.wide else Conv
        return direct(self.strides, self.padding, self.dilation, self.groups)

    def direct_gradient(self, spatial: Shape) -> ConvGradInput:
        """The gradient whose results it has, where it is one."""
        return ConvGradInput(self.strides, self.padding, self.dilation, self.groups, spatial)

    def infer(self, x: TensorType, weight: TensorType) -> tuple[TensorType, ...]:
        types = (x, weight)
        self.check_dtype(types)
        self.check_same_dtype(types)
        self.check_operands(types)
        _check_attributes(self, self.tile, types)
        for extent in weight.shape[2:]:
            require_equal(extent, 3, lambda: self.fail("the kernel is not 3x3", types))
        if self.wide and self.transposed:
            raise self.fail("a gradient has the type of what it is of", types)
        outputs, inputs = weight.shape[:2]
        if self.transposed:
            outputs, inputs = inputs, outputs
        self.check_channels("x", x.shape[1], inputs, types)
        window = Window((3, 3), _ONES, self.effective_padding, _ONES)
        spatial = window.extents(self.name, x.shape[2:], self.saw(types))
        made = x.with_shape((x.shape[0], outputs, *spatial))
        return (made.with_dtype(compute_type(x.dtype)) if self.wide else made,)

    def reference(self, x: Array, weight: Array) -> Array:
        window = Window((3, 3), _ONES, self.effective_padding, _ONES)
        if self.transposed:
            weight = np.flip(weight.swapaxes(0, 1), (2, 3))
        weight = np.ascontiguousarray(widen_array(weight))
        y = convolve(widen_array(x), weight, window, 1)
        return y if self.wide else y.astype(x.dtype, copy=False)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        made = (
            ("two by two", 2, "", ((1, 1), (1, 1)), (2, 2, 4, 4), (3, 2, 3, 3)),
            ("four by four", 4, "", ((1, 1), (1, 1)), (1, 3, 8, 4), (2, 3, 3, 3)),
            ("ragged, wide", 4, "wide", ((0, 2), (1, 0)), (2, 2, 5, 7), (2, 2, 3, 3)),
            ("gradient in x", 2, "back", ((1, 1), (1, 1)), (2, 3, 4, 3), (3, 2, 3, 3)),
            ("gradient, uneven", 4, "back", ((0, 2), (1, 0)), (1, 2, 5, 3), (2, 3, 3, 3)),
        )
        return tuple(
            Sample(
                cls(_ONES, padding, _ONES, 1, tile, how == "back", how == "wide"),
                (Arg(x), Arg(w)),
                label=label,
            )
            for label, tile, how, padding, x, w in made
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        even = ((1, 1), (1, 1))

        def made(
            strides: tuple[int, int] = _ONES,
            padding: Padding = even,
            tile: int = 2,
            transposed: bool = False,
            wide: bool = False,
        ) -> Callable[[], Op]:
            return lambda: cls(strides, padding, _ONES, 1, tile, transposed, wide)

        x, weight = (1, 2, 4, 4), (3, 2, 3, 3)
        cases: tuple[tuple[Callable[[], Op], tuple[int, ...], tuple[int, ...], str], ...] = (
            (made(strides=(2, 1)), x, weight, "must be 1"),
            (made(tile=3), x, weight, "2 or 4 results per axis, not 3"),
            (made(), x, (3, 2, 2, 3), "not 3x3"),
            (made(), (1, 2, 4), (3, 2, 3), "two spatial axes"),
            (made(transposed=True), x, weight, "x has 2 channels, expected 3"),
            (made(transposed=True, wide=True), (1, 3, 4, 4), weight, "has the type of"),
            (made(padding=((3, 1), (1, 1)), transposed=True), (1, 3, 4, 4), weight, "negative"),
        )
        return tuple(
            BadSample(make, (Arg(a), Arg(b)), ShapeError, message) for make, a, b, message in cases
        )


@op
class WinogradConvGradWeight(Winograd):
    """The gradient of a 3x3 `Conv` in the weight, summed from tiles of `tile` x `tile` of dy.

    The result is that of `ConvGradWeight` of the same padding; kernels differ in rounding, and
    where an input is not finite, any tap of its channel may become NaN. Strides, dilation and
    groups are 1. It is made from the other op after differentiation.
    """

    name = "winograd_conv_grad_weight"
    operands = ("x", "dy")
    torch = (
        "torch.ops.aten.convolution_backward(dy, F.pad(x, [p for pair in op.padding[::-1] for p "
        "in pair]), x.new_zeros((dy.shape[1], x.shape[1], 3, 3)), None, [1, 1], [0, 0], [1, 1], "
        "False, [0, 0], 1, (False, True, False))[1]"
    )

    @property
    def side(self) -> Side:
        return "weight"

    @property
    def direct(self) -> ConvGradWeight:
        """The gradient whose results it has."""
        return ConvGradWeight(self.strides, self.padding, self.dilation, self.groups, _KERNEL)

    def infer(self, x: TensorType, dy: TensorType) -> tuple[TensorType, ...]:
        types = (x, dy)
        self.check_dtype(types)
        self.check_same_dtype(types)
        self.check_operands(types)
        _check_attributes(self, self.tile, types)
        require_equal(
            x.shape[0],
            dy.shape[0],
            lambda: self.fail(f"batches of {x.shape[0]} and {dy.shape[0]} differ", types),
        )
        window = self.window(_KERNEL)
        window.check_extents(self.name, x.shape[2:], dy.shape[2:], self.saw(types))
        return (x.with_shape((dy.shape[1], x.shape[1], *_KERNEL)),)

    def reference(self, x: Array, dy: Array) -> Array:
        dw = correlate_for_weight(widen_array(x), widen_array(dy), self.window(_KERNEL), 1)
        return dw.astype(x.dtype, copy=False)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        made = (
            ("two by two", 2, ((1, 1), (1, 1)), (2, 2, 4, 4), (2, 3, 4, 4)),
            ("four by four", 4, ((1, 1), (1, 1)), (1, 3, 8, 4), (1, 2, 8, 4)),
            ("ragged", 4, ((0, 2), (1, 0)), (2, 2, 5, 7), (2, 3, 5, 6)),
        )
        return tuple(
            Sample(cls(_ONES, padding, _ONES, 1, tile), (Arg(x), Arg(dy)), label=label)
            for label, tile, padding, x, dy in made
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        even = ((1, 1), (1, 1))

        def made(tile: int = 2, groups: int = 1) -> Callable[[], Op]:
            return lambda: cls(_ONES, even, _ONES, groups, tile)

        x = (1, 2, 4, 4)
        cases: tuple[tuple[Callable[[], Op], tuple[int, ...], tuple[int, ...], str], ...] = (
            (made(groups=2), x, x, "must be 1"),
            (made(tile=3), x, x, "2 or 4 results per axis, not 3"),
            (made(), (1, 2, 4), (1, 2, 4), "two spatial axes"),
            (made(), x, (2, 2, 4, 4), "batches of 1 and 2"),
            (made(), x, (1, 2, 4, 5), "give [4,4] positions, not [4,5]"),
        )
        return tuple(
            BadSample(make, (Arg(a), Arg(b)), ShapeError, message) for make, a, b, message in cases
        )


def _check_attributes(op: Convolution, tile: int, types: tuple[TensorType, ...]) -> None:
    if types[0].ndim != 4:
        raise op.fail("there are two spatial axes", types)
    if op.strides != _ONES or op.dilation != _ONES or op.groups != 1:
        raise op.fail("strides, dilation and groups must be 1", types)
    if tile not in TILES:
        raise op.fail(f"tiles have 2 or 4 results per axis, not {tile}", types)
