"""Convolution of one to three spatial axes and its two gradients.

The three are adjoints of one another, so each one's gradient is written with the other two and
every order of differentiation stays within them. ONNX writes padding as all begins, then all
ends, so none of them maps one to one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, TypeVar

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.base.errors import DTypeError, ShapeError
from treadle.base.shape import Shape, require_equal
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.conv_numpy import convolve, convolve_transposed, correlate_for_weight
from treadle.ops.op import BadSample, Op, Pullback, Sample, V, family, op
from treadle.ops.precision import compute_type, widen_array
from treadle.ops.windows import Padding, Window

_LAYOUT = "the layouts are x [N,C,*S], weight [O,C/groups,*K], result [N,O,*P]"


def _channels_last(shape: Shape, expected: Dim) -> str:
    """Return a hint where the channels seem to be the last axis."""
    if shape[-1] != expected:
        return ""
    pattern = (0, len(shape) - 1, *range(1, len(shape) - 1))
    return f"of channels that come last F.transpose(x, {pattern}) makes the second axis"


T = TypeVar("T")
Side: TypeAlias = Literal["forward", "input", "weight"]


@family
class Convolution(Op):
    """Attributes and checks of a convolution seen from any of its three sides.

    `strides` and `dilation` have one entry per spatial axis, `padding` one (before, after) pair.
    The layouts are x [N,C,*S], weight [O,C/groups,*K] and result [N,O,*P]. float16 and bfloat16
    accumulate in float32.
    """

    work = "product"
    contraction = True
    dtypes = dt.FLOATS
    strides: tuple[int, ...]
    padding: Padding
    dilation: tuple[int, ...]
    groups: int

    @property
    def side(self) -> Side:
        """The one of x, weight and result that it computes; "forward" stands for the result."""
        return "forward"

    def roles(self, operands: Sequence[T], made: T) -> tuple[T, T, T]:
        """Return what stands for x, weight and result among the operands and what is computed."""
        first, second = operands[:2]
        if self.side == "input":
            return made, second, first
        return (first, made, second) if self.side == "weight" else (first, second, made)

    def window(self, kernel: Shape) -> Window:
        """The window of a kernel with these extents."""
        return Window(kernel, self.strides, self.padding, self.dilation)

    def check_operands(self, types: tuple[TensorType, ...]) -> None:
        """Raise unless both operands have three to five axes, as many as the attributes say."""
        self.check_ndim(types, 0, 3, 4, 5)
        if types[0].ndim != types[1].ndim:
            first, second = self.operands[:2]
            raise self.fail(
                f"{first} has {types[0].ndim} axes and {second} {types[1].ndim}: both need as many",
                types,
                "F.expand_dims(x, 0) makes a batch of one" if types[0].ndim < types[1].ndim else "",
            )

    def check_groups(self, what: str, channels: Dim, types: tuple[TensorType, ...]) -> None:
        """Raise `ShapeError` unless the groups divide `channels`."""
        if self.groups < 1:
            raise self.error(f"groups must be positive, not {self.groups}", types, "use 1 or more")
        require_equal(
            channels % self.groups,
            0,
            lambda: self.fail(f"{channels} {what} channels do not divide into groups", types),
        )

    def check_channels(
        self, what: str, channels: Dim, expected: Dim, types: tuple[TensorType, ...]
    ) -> None:
        """Raise `ShapeError` unless an operand has the number of channels the other implies."""
        require_equal(
            channels,
            expected,
            lambda: self.fail(
                f"{what} has {channels} channels, expected {expected}",
                types,
                _channels_last(types[0].shape, expected),
            ),
        )

    def fail(self, problem: str, types: tuple[TensorType, ...], hint: str = "") -> ShapeError:
        """A `ShapeError` that shows the operands, the groups and the layouts."""
        seen = f"{self.saw(types)}, groups {self.groups}"
        return ShapeError(self.name, problem, saw=seen, hint=f"{hint and hint + '; '}{_LAYOUT}")

    def infer_forward(self, x: TensorType, weight: TensorType) -> Shape:
        """Shape of the convolution's result."""
        types = (x, weight)
        self.check_operands(types)
        self.check_groups("output", weight.shape[0], types)
        self.check_channels("x", x.shape[1], weight.shape[1] * self.groups, types)
        window = self.window(weight.shape[2:])
        return (
            x.shape[0],
            weight.shape[0],
            *window.extents(self.name, x.shape[2:], self.saw(types)),
        )


@op
class Conv(Convolution):
    r"""Cross-correlation, $y_{nop} = \sum_{ck} w_{ock}\, x_{n,c,s p + d k - l}$.

    s, d and l are the strides, the dilation and the padding before; x is zero in the padding.
    Output channels of group g see only the input channels of group g.

    There are 1 to 3 spatial axes. strides and dilation have one int for each, padding a pair
    (before, after). There is no bias. The weight is [O,C/groups,*K] for groups > 1, too, where
    `F.conv2d` takes [groups,O/groups,C/groups,*K] and calls reshape first.
    """

    name = "conv"
    operands = ("x", "weight")
    torch = (
        "torch.convolution(F.pad(x, [p for pair in op.padding[::-1] for p in pair]), weight, "
        "None, op.strides, [0] * len(op.strides), op.dilation, False, [0] * len(op.strides), "
        "op.groups)"
    )
    keeps_axes = True
    amp = "low"

    def infer(self, x: TensorType, weight: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x, weight))
        self.check_same_dtype((x, weight))
        return (x.with_shape(self.infer_forward(x, weight)),)

    def reference(self, x: Array, weight: Array) -> Array:
        window = self.window(weight.shape[2:])
        y = convolve(widen_array(x), widen_array(weight), window, self.groups)
        return y.astype(x.dtype, copy=False)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        x, weight = at.inputs
        return (
            _to_input(self, x.type.shape)(at.dy, weight) if at.needs[0] else None,
            _to_weight(self, weight.type.shape)(x, at.dy) if at.needs[1] else None,
        )

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(
            Sample(cls(s, p, d, g), (Arg((n, c, *size)), Arg((o, c // g, *k))), label=label)
            for label, (s, p, d, g), (n, c, size), (o, k) in _CASES
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            _bad(
                lambda: cls((1,), ((0, 0),), (1,), 1), (1, 1, 2), (1, 1, 3), "reaches over 3 cells"
            ),
            _bad(lambda: cls((0,), ((0, 0),), (1,), 1), (1, 1, 4), (1, 1, 3), "strides must be"),
            _bad(lambda: cls((1,), ((0, 0),), (1,), 2), (1, 2, 4), (3, 1, 3), "divide into"),
            _bad(lambda: cls((1,), ((0, 0),), (1,), 1), (1, 2, 4), (3, 1, 3), "x has 2 channels"),
            _bad(lambda: cls((1,), ((0, 0),), (1,), 0), (1, 2, 4), (3, 2, 3), "groups must be"),
            _bad(lambda: cls((1,), ((0, -1),), (1,), 1), (1, 2, 4), (3, 2, 3), "not be negative"),
            _bad(lambda: cls((1, 1), ((0, 0),), (1,), 1), (1, 2, 4), (3, 2, 3), "2 entries for 1"),
            _bad(lambda: cls((1,), ((0, 0),), (1,), 1), (2, 4), (3, 2, 3), "expects 3 or 4 or 5"),
            _bad(lambda: cls((1,), ((0, 0),), (1,), 1), (1, 2, 4), (3, 2), "3 axes and weight 2"),
        )


@op
class WideConv(Convolution):
    """`Conv` whose result has the type of its sums: float32 for operands of 16 bits.

    What is added to it, a bias, is then rounded together with the sums, once.
    """

    name = "wide_conv"
    operands = ("x", "weight")
    torch = (
        "torch.convolution(*(v.float() if v.itemsize == 2 else v for v in "
        "(F.pad(x, [p for pair in op.padding[::-1] for p in pair]), weight)), "
        "None, op.strides, [0] * len(op.strides), op.dilation, False, [0] * len(op.strides), "
        "op.groups)"
    )
    keeps_axes = True

    def infer(self, x: TensorType, weight: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x, weight))
        self.check_same_dtype((x, weight))
        return (TensorType(compute_type(x.dtype), self.infer_forward(x, weight), x.device),)

    def reference(self, x: Array, weight: Array) -> Array:
        window = self.window(weight.shape[2:])
        return convolve(widen_array(x), widen_array(weight), window, self.groups)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        x, weight = at.inputs
        dy = at.dy.astype(x.type.dtype)
        return (
            _to_input(self, x.type.shape)(dy, weight) if at.needs[0] else None,
            _to_weight(self, weight.type.shape)(x, dy) if at.needs[1] else None,
        )

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(
            Sample(cls(s, p, d, g), (Arg((n, c, *size)), Arg((o, c // g, *k))), label=label)
            for label, (s, p, d, g), (n, c, size), (o, k) in _CASES
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            _bad(lambda: cls((1,), ((0, 0),), (1,), 1), (1, 2, 4), (3, 1, 3), "x has 2 channels"),
        )


@op
class ConvGradInput(Convolution):
    """Transposed convolution: dy [N,O,*P] and weight [O,C/groups,*K] to [N,C,*spatial].

    The adjoint of `Conv` in x. `spatial` is stated because strides make several inputs share one
    result extent; `windows.transposed_extents` computes it from an output padding.
    """

    spatial: Shape

    name = "conv_grad_input"
    operands = ("dy", "weight")
    # PyTorch's transposed convolution knows one padding per axis: samples keep both sides equal.
    torch = (
        "torch.convolution(dy, weight, None, op.strides, [p[0] for p in op.padding], op.dilation, "
        "True, [n - s * (m - 1) - d * (k - 1) - 1 + sum(p) for n, s, m, d, k, p in "
        "zip(op.spatial, op.strides, dy.shape[2:], op.dilation, weight.shape[2:], op.padding)], "
        "op.groups)"
    )
    keeps_axes = True
    amp = "low"

    @property
    def side(self) -> Side:
        return "input"

    def infer(self, dy: TensorType, weight: TensorType) -> tuple[TensorType, ...]:
        types = (dy, weight)
        self.check_dtype(types)
        self.check_same_dtype(types)
        self.check_operands(types)
        self.check_groups("output", weight.shape[0], types)
        self.check_channels("dy", dy.shape[1], weight.shape[0], types)
        window = self.window(weight.shape[2:])
        window.check_extents(self.name, self.spatial, dy.shape[2:], self.saw(types))
        return (dy.with_shape((dy.shape[0], weight.shape[1] * self.groups, *self.spatial)),)

    def reference(self, dy: Array, weight: Array) -> Array:
        window, spatial = self.window(weight.shape[2:]), tuple(int(n) for n in self.spatial)
        dx = convolve_transposed(widen_array(dy), widen_array(weight), window, self.groups, spatial)
        return dx.astype(dy.dtype, copy=False)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        dy, weight = at.inputs
        return (
            _forward(self)(at.dy, weight) if at.needs[0] else None,
            _to_weight(self, weight.type.shape)(at.dy, dy) if at.needs[1] else None,
        )

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(
            Sample(
                cls(s, p, d, g, size),
                (Arg((n, o, *_positions(s, p, d, k, size))), Arg((o, c // g, *k))),
                label=f"transposed {label}",
            )
            for label, (s, p, d, g), (n, c, size), (o, k) in _CASES
            if all(low == high for low, high in p)
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        def make() -> Op:
            return cls((1,), ((0, 0),), (1,), 1, (4,))

        return (
            _bad(make, (1, 1, 4), (1, 1, 3), "give [2] positions, not [4]"),
            _bad(make, (1, 2, 2), (1, 1, 3), "dy has 2 channels"),
            _bad(make, (1, 1, 2), (1, 1, 5), "reaches"),
        )


@op
class ConvGradWeight(Convolution):
    """Gradient of `Conv` in the weight: x [N,C,*S] and dy [N,O,*P] to [O,C/groups,*kernel]."""

    kernel: Shape

    name = "conv_grad_weight"
    operands = ("x", "dy")
    torch = (
        "torch.ops.aten.convolution_backward(dy, F.pad(x, [p for pair in op.padding[::-1] for p "
        "in pair]), x.new_zeros((dy.shape[1], x.shape[1] // op.groups, *op.kernel)), None, "
        "op.strides, [0] * len(op.strides), op.dilation, False, [0] * len(op.strides), "
        "op.groups, (False, True, False))[1]"
    )
    keeps_axes = True

    @property
    def side(self) -> Side:
        return "weight"

    def infer(self, x: TensorType, dy: TensorType) -> tuple[TensorType, ...]:
        types = (x, dy)
        self.check_dtype(types)
        self.check_same_dtype(types)
        self.check_operands(types)
        self.check_groups("input", x.shape[1], types)
        self.check_groups("output", dy.shape[1], types)
        require_equal(
            x.shape[0],
            dy.shape[0],
            lambda: self.fail(f"batches of {x.shape[0]} and {dy.shape[0]} differ", types),
        )
        window = self.window(self.kernel)
        window.check_extents(self.name, x.shape[2:], dy.shape[2:], self.saw(types))
        return (x.with_shape((dy.shape[1], x.shape[1] // self.groups, *self.kernel)),)

    def reference(self, x: Array, dy: Array) -> Array:
        dw = correlate_for_weight(
            widen_array(x), widen_array(dy), self.window(self.kernel), self.groups
        )
        return dw.astype(x.dtype, copy=False)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        x, dy = at.inputs
        return (
            _to_input(self, x.type.shape)(dy, at.dy) if at.needs[0] else None,
            _forward(self)(x, at.dy) if at.needs[1] else None,
        )

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(
            Sample(
                cls(s, p, d, g, k),
                (Arg((n, c, *size)), Arg((n, o, *_positions(s, p, d, k, size)))),
                label=f"weight gradient {label}",
            )
            for label, (s, p, d, g), (n, c, size), (o, k) in _CASES
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        def make() -> Op:
            return cls((1,), ((0, 0),), (1,), 1, (3,))

        return (
            _bad(make, (1, 1, 4), (1, 1, 3), "give [2] positions, not [3]"),
            _bad(make, (2, 1, 4), (1, 1, 2), "batches of 2 and 1"),
        )


@op
class IntConv(Convolution):
    """`Conv` of quantized values: x int8, uint8 or int16, weight int8, sums in int32.

    Sums are exact as long as int32 holds them, and wrap beyond. Padding is zero, so zero points are
    the caller's: subtract them, which takes int16, or pad beforehand.
    """

    name = "int_conv"
    operands = ("x", "weight")
    dtypes = (dt.int8, dt.uint8, dt.int16)
    no_gradient = "is an integer contraction"
    torch = (
        "torch.convolution(F.pad(x.double(), [p for pair in op.padding[::-1] for p in pair]), "
        "weight.double(), None, op.strides, [0] * len(op.strides), op.dilation, False, "
        "[0] * len(op.strides), op.groups).int()"
    )

    def infer(self, x: TensorType, weight: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x, weight))
        if weight.dtype is not dt.int8:
            raise DTypeError(
                self.name,
                f"the weight must be int8, not {weight.dtype.name}",
                saw=self.saw((x, weight)),
                hint="quantize the weight symmetrically to int8",
            )
        return (TensorType(dt.int32, self.infer_forward(x, weight), x.device),)

    def reference(self, x: Array, weight: Array) -> Array:
        # Sums of fewer than 2^24 / (255 * 128) products of bytes are exact in float32, all others
        # in float64.
        terms = int(np.prod(weight.shape[1:]))
        kind = np.float32 if terms < 512 and x.dtype.itemsize == 1 else np.float64
        window = self.window(weight.shape[2:])
        y = convolve(x.astype(kind), weight.astype(kind), window, self.groups)
        return y.astype(np.int64).astype(np.int32)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(
            Sample(
                cls(s, p, d, g),
                (_integers(kind, (n, c, *size)), Arg((o, c // g, *k), dt.int8, -128, 128)),
                label=f"{kind.name} {label}",
            )
            for kind in cls.dtypes
            for label, (s, p, d, g), (n, c, size), (o, k) in _CASES[:4]
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        x, weight = Arg((1, 1, 4), dt.int8), Arg((1, 1, 3), dt.uint8)
        return (
            BadSample(
                lambda: cls((1,), ((0, 0),), (1,), 1),
                (x, weight),
                DTypeError,
                "weight must be int8",
                dt.int8,
            ),
        )


def _forward(other: Convolution) -> Conv:
    return Conv(other.strides, other.padding, other.dilation, other.groups)


def _to_input(other: Convolution, x: Shape) -> ConvGradInput:
    return ConvGradInput(other.strides, other.padding, other.dilation, other.groups, x[2:])


def _to_weight(other: Convolution, weight: Shape) -> ConvGradWeight:
    return ConvGradWeight(other.strides, other.padding, other.dilation, other.groups, weight[2:])


_Ints: TypeAlias = tuple[int, ...]
_Case: TypeAlias = tuple[
    str, tuple[_Ints, Padding, _Ints, int], tuple[int, int, _Ints], tuple[int, _Ints]
]

# (strides, padding, dilation, groups), (N, C, S), (O, K)
_CASES: tuple[_Case, ...] = (
    ("2-d", ((1, 1), ((1, 1), (1, 1)), (1, 1), 1), (2, 2, (3, 4)), (3, (3, 3))),
    ("strided, grouped", ((2, 1), ((1, 1), (0, 0)), (1, 1), 2), (1, 4, (4, 3)), (2, (3, 2))),
    ("depthwise", ((1, 1), ((0, 0), (1, 1)), (1, 1), 3), (2, 3, (2, 3)), (6, (2, 3))),
    ("uneven padding", ((1, 2), ((0, 1), (2, 0)), (2, 1), 1), (1, 1, (4, 4)), (2, (2, 3))),
    ("pointwise", ((1, 1), ((0, 0), (0, 0)), (1, 1), 1), (2, 3, (2, 2)), (2, (1, 1))),
    ("1-d, dilated", ((2,), ((2, 2),), (2,), 1), (2, 2, (5,)), (1, (3,))),
    ("3-d", ((1, 2, 1), ((0, 0), (1, 1), (0, 0)), (1, 1, 1), 1), (1, 1, (2, 3, 2)), (2, (2, 2, 1))),
    ("skipped cells", ((3, 3), ((0, 0), (0, 0)), (1, 1), 1), (1, 1, (5, 5)), (1, (2, 2))),
    ("size 1", ((1, 1), ((0, 0), (0, 0)), (1, 1), 1), (1, 1, (1, 1)), (1, (1, 1))),
    ("empty batch", ((1, 1), ((0, 0), (0, 0)), (1, 1), 1), (0, 2, (3, 3)), (2, (2, 2))),
)


def _positions(s: _Ints, p: Padding, d: _Ints, kernel: _Ints, x: _Ints) -> _Ints:
    return tuple(int(n) for n in Window(kernel, s, p, d).extents("conv", x, ""))


def _integers(kind: DType, shape: _Ints) -> Arg:
    low, high = {dt.int8: (-128.0, 128.0), dt.uint8: (0.0, 256.0)}.get(kind, (-255.0, 256.0))
    return Arg(shape, kind, low, high)


def _bad(make: Callable[[], Op], x: _Ints, second: _Ints, message: str) -> BadSample:
    return BadSample(make, (Arg(x), Arg(second)), ShapeError, message)
