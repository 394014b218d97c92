"""Losses that are computed more exactly, or faster, as one op; callers reduce the result."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import DTypeError, IndexRangeError, ShapeError
from treadle.base.shape import Shape, require_equal
from treadle.base.types import TensorType
from treadle.ops.activation import body_scalar
from treadle.ops.arg import Arg
from treadle.ops.composite import Composite
from treadle.ops.creation import Iota
from treadle.ops.families import Binary
from treadle.ops.logic import Equal
from treadle.ops.op import BadSample, IndexRange, Pullback, Sample, V, op
from treadle.ops.precision import widen, widen_array
from treadle.ops.reduce import Mean
from treadle.ops.scalar import Scalar
from treadle.ops.select import Clip, Where
from treadle.ops.softmax import Softmax, shifted, shifted_array
from treadle.ops.unary import Abs, Exp, Log, Log1p, Sigmoid

_LABELS = (dt.int32, dt.int64)


@op
class SoftmaxCrossEntropy(Composite):
    """-log(softmax(logits)) at the label, per sample, with classes along `axis`.

    With logZ the log-sum-exp and s = `label_smooth`: logZ - (1 - s) * logits[label] - s *
    mean(logits) (Szegedy et al. 2016, arXiv:1512.00567). Labels are int32 or int64 and have the
    logits' shape without the class axis, as has the result; one outside the classes raises
    `IndexRangeError`.
    """

    axis: int = 1
    label_smooth: float = 0.0

    work = "reduction"
    name = "softmax_cross_entropy"
    operands = ("logits", "labels")
    dtypes = dt.FLOATS
    torch = (
        "F.cross_entropy(torch.movedim(logits, op.axis, min(1, logits.ndim - 1)), labels.long(),"
        " reduction='none', label_smoothing=op.label_smooth)"
    )
    amp = "high"

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        logits, labels = types
        self.check_dtype(types)
        if labels.dtype not in _LABELS:
            raise DTypeError(
                self.name,
                f"labels are class numbers, not {labels.dtype.name}",
                saw=self.saw(types),
                hint="cast them with astype('int32')",
            )
        if not 0 <= self.axis < logits.ndim:
            raise self.error(f"the logits have no axis {self.axis}", types, "name the class axis")
        shape = _without(logits.shape, self.axis)

        def mismatch() -> ShapeError:
            return self.error(
                "labels must have the logits' shape without the class axis", types, "reshape them"
            )

        if labels.ndim != len(shape):
            raise mismatch()
        for x, y in zip(labels.shape, shape, strict=True):
            require_equal(x, y, mismatch)
        return (TensorType(logits.dtype, shape),)

    def index_ranges(self, types: tuple[TensorType, ...]) -> tuple[IndexRange, ...]:
        return ((1, 0, types[0].shape[self.axis]),)

    def _one_hot(self, logits: V, labels: V) -> V:
        """Return whether a class is the label, in the logits' shape."""
        kept = tuple(1 if i == self.axis else d for i, d in enumerate(logits.shape))
        line = tuple(d if i == self.axis else 1 for i, d in enumerate(logits.shape))
        classes = Iota(0, 1, logits.shape[self.axis], labels.type.dtype)
        (numbers,) = labels.apply(classes, ())
        return Equal()(numbers.reshape(line), labels.reshape(kept))

    def body(self, logits: Any, labels: Any) -> Any:
        axes = (self.axis,)
        less = shifted(widen(logits), axes)
        chosen = Where()(self._one_hot(logits, labels), less, less.constant(0.0)).sum(axes)
        loss = Log()(Exp()(less).sum(axes)) - chosen * (1.0 - self.label_smooth)
        if self.label_smooth:
            loss = loss - Mean(axes)(less) * self.label_smooth
        return loss.astype(logits.type.dtype)

    def reference(self, logits: Array, labels: Array) -> Array:
        # Small losses are computed here, so what NumPy does in few calls: 4 us of 18.
        axis = self.axis
        self._check_labels(labels, logits.shape[axis])
        less = shifted_array(widen_array(logits), (axis,))
        total = np.log(np.add.reduce(np.exp(less), axis))
        if less.ndim == 2 and axis == 1:
            chosen = less[np.arange(len(less)), labels]
        else:
            chosen = np.take_along_axis(less, np.expand_dims(labels, axis), axis).squeeze(axis)
        smooth = less.dtype.type(self.label_smooth)
        loss = np.asarray(total - chosen * (1 - smooth))
        if self.label_smooth:
            loss -= np.add.reduce(less, axis) * (smooth / logits.shape[axis])
        return loss.astype(logits.dtype, copy=False)

    def _check_labels(self, labels: Array, classes: int) -> None:
        outside = (labels < 0) | (labels >= classes)
        if outside.any():
            wrong = labels[outside].flat[0]
            raise IndexRangeError(
                self.name,
                f"the label {wrong} is none of {classes} classes",
                saw=f"labels from {labels.min()} to {labels.max()}",
                hint=f"use 0 to {classes - 1}, and mask samples without a label",
            )

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        if not at.needs[0]:
            return None, None
        logits, labels = at.inputs
        wide = widen(logits)
        target = self._one_hot(logits, labels).astype(wide.type.dtype)
        if self.label_smooth:
            # The mean of a one-hot row is 1 / classes, also where their number is symbolic.
            uniform = Mean((self.axis,), keepdims=True)(target)
            target = target * (1.0 - self.label_smooth) + uniform * self.label_smooth
        kept = tuple(1 if i == self.axis else d for i, d in enumerate(logits.shape))
        dx = (Softmax(self.axis)(wide) - target) * widen(at.dy).reshape(kept)
        return dx.astype(logits.type.dtype), None

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        def labels(*shape: int) -> Arg:
            return Arg(shape, dt.int32, low=0, high=3)

        return (
            Sample(cls(), (Arg((4, 3)), labels(4))),
            Sample(cls(1, 0.1), (Arg((2, 3, 2)), Arg((2, 2), dt.int64, low=0, high=3))),
            Sample(cls(2), (Arg((2, 2, 3)), labels(2, 2))),
            Sample(cls(0), (Arg((3,)), labels())),
            Sample(cls(), (Arg((0, 3)), labels(0))),
            Sample(cls(), (Arg((1, 1)), Arg((1,), dt.int32, values=(0,)))),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        x, labels = Arg((2, 3)), Arg((2,), dt.int32, values=(0, 2))
        beyond = Arg((2,), dt.int32, values=(0, 3))
        return (
            BadSample(cls, (x, beyond), IndexRangeError, "label 3 is none of 3 classes"),
            BadSample(cls, (x, Arg((2,))), DTypeError, "class numbers, not float32"),
            BadSample(cls, (x, Arg((3,), dt.int32)), ShapeError, "without the class axis"),
            BadSample(lambda: cls(2), (x, labels), ShapeError, "no axis 2"),
        )


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :])


@op
class BinaryCrossEntropyWithLogits(Binary, Composite):
    """-y log(sigmoid(x)) - (1 - y) log(1 - sigmoid(x)), for logits x and probabilities y.

    Computed as max(x, 0) - x y + log(1 + exp(-|x|)), which never overflows.
    """

    name = "binary_cross_entropy_with_logits"
    operands = ("x", "y")
    dtypes = dt.FLOATS
    domains = (Arg((3, 4)), Arg((3, 4), low=0.0, high=1.0))
    torch = "F.binary_cross_entropy_with_logits(*torch.broadcast_tensors(x, y), reduction='none')"
    amp = "high"

    def body(self, x: Any, y: Any) -> Any:
        return Clip(0.0, None)(x) - x * y + Log1p()(Exp()(-Abs()(x)))

    def scalar(self, x: Scalar, y: Scalar) -> Scalar:
        return body_scalar(self.body, x, y)

    def reference(self, x: Array, y: Array) -> Array:
        wide = widen_array(x)
        loss = np.maximum(wide, 0) - wide * widen_array(y) + np.log1p(np.exp(-np.abs(wide)))
        return np.asarray(loss).astype(x.dtype, copy=False)

    def grad_x(self, dy: V, x: V, y: V, out: V) -> V:
        return dy * (Sigmoid()(x) - y)

    def grad_y(self, dy: V, x: V, y: V, out: V) -> V:
        return -(dy * x)
