"""Scaled dot-product attention (Vaswani et al. 2017, arXiv:1706.03762)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import DTypeError, ShapeError
from treadle.base.guards import is_equal
from treadle.base.shape import broadcast_shapes, require_equal
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.composite import Composite
from treadle.ops.creation import Extent, Iota
from treadle.ops.matmul import Matmul
from treadle.ops.op import BadSample, Pullback, Sample, V, op
from treadle.ops.precision import widen, widen_array
from treadle.ops.select import Where
from treadle.ops.softmax import Softmax
from treadle.ops.unary import Sqrt


@op
class Attention(Composite):
    """softmax(q k^T * scale + mask) v, over q [..., T, D], k [..., S, D] and v [..., S, E].

    The leading axes broadcast; the result is [..., T, E]. `scale` None means 1 / sqrt(D). An
    optional mask broadcasts to [..., T, S]: bool, where False hides a key, or of q's type, and
    then it is added. `causal` hides from query t all keys after t. A query that sees no key at
    all yields NaN. 16-bit operands are multiplied as such and normalized in float32.
    """

    causal: bool = False
    scale: float | None = None

    work = "product"
    name = "attention"
    operands = ("q", "k", "v", "*mask")
    dtypes = dt.FLOATS
    torch = "F.scaled_dot_product_attention(q, k, v, *mask, is_causal=op.causal, scale=op.scale)"
    amp = "low"

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        if not 3 <= len(types) <= 4:
            raise self.error("takes q, k, v and at most one mask", types, "combine the masks")
        self.check_dtype(types)
        self.check_same_dtype(types[:3])
        q, k, v = types[:3]
        if min(t.ndim for t in (q, k, v)) < 2:
            raise self.error("q, k and v have at least 2 axes", types, "add a leading axis")
        for x, y, what in (
            (q.shape[-1], k.shape[-1], "q and k differ in their last extent"),
            (k.shape[-2], v.shape[-2], "k and v hold different numbers of keys"),
        ):
            require_equal(x, y, lambda what=what: self._mismatch(what, types))  # type: ignore[misc]
        try:
            batch = broadcast_shapes(self.name, *(t.shape[:-2] for t in (q, k, v)))
        except ShapeError as error:
            raise self._mismatch(error.problem, types) from None
        if len(types) == 4:
            self._check_mask(types, (*batch, q.shape[-2], k.shape[-2]))
        return (TensorType(q.dtype, (*batch, q.shape[-2], v.shape[-1])),)

    def _mismatch(self, problem: str, types: tuple[TensorType, ...]) -> ShapeError:
        return self.error(problem, types, "pass q [..., T, D], k [..., S, D], v [..., S, E]")

    def _check_mask(self, types: tuple[TensorType, ...], scores: tuple[Any, ...]) -> None:
        mask = types[3]
        if mask.dtype is not dt.bool_ and mask.dtype is not types[0].dtype:
            raise DTypeError(
                self.name,
                f"the mask is {mask.dtype.name}, neither bool nor the type of q",
                saw=self.saw(types),
                hint="cast the mask",
            )

        def wrong() -> ShapeError:
            return self.error(
                "the mask does not broadcast to the scores", types, "give it the shape [..., T, S]"
            )

        if mask.ndim > len(scores):
            raise wrong()
        for found, wanted in zip(reversed(mask.shape), reversed(scores), strict=False):
            if not is_equal(found, 1):
                require_equal(found, wanted, wrong)

    def scale_of(self, d: Dim) -> float | None:
        """The factor, None where it depends on a symbolic extent."""
        if self.scale is None and isinstance(d, int):
            return 1.0 / math.sqrt(max(d, 1))
        return self.scale

    def scaled(self, x: V, d: Dim) -> V:
        """x times the scale."""
        factor = self.scale_of(d)
        if factor is not None:
            return x * factor
        return x / Sqrt()(x.apply(Extent(d, x.type.dtype), ())[0])

    def scores(self, q: Any, k: Any, mask: tuple[Any, ...]) -> Any:
        """Attention weights before softmax, in the compute type; operands."""
        scores = self.scaled(Matmul(False, True)(widen(q), widen(k)), q.shape[-1])
        if mask:
            if mask[0].type.dtype is dt.bool_:
                scores = Where()(mask[0], scores, scores.constant(-math.inf))
            else:
                scores = scores + widen(mask[0])
        if self.causal:
            rows, columns = (
                scores.apply(Iota(0, 1, n, dt.int32), ())[0] for n in scores.shape[-2:]
            )
            seen = columns.reshape((1, scores.shape[-1])) <= rows.reshape((scores.shape[-2], 1))
            scores = Where()(seen, scores, scores.constant(-math.inf))
        return scores

    def _weights(self, q: Any, k: Any, mask: tuple[Any, ...]) -> Any:
        scores = self.scores(q, k, mask)
        return Softmax(scores.type.ndim - 1)(scores)

    def body(self, q: Any, k: Any, v: Any, *mask: Any) -> Any:
        return Matmul()(self._weights(q, k, mask), widen(v)).astype(v.type.dtype)

    def weights_array(self, q: Array, k: Array, mask: tuple[Array, ...]) -> Array:
        """The softmax of the scores, in the compute type."""
        scores = _wide(Matmul(False, True), q, k)
        scores = np.asarray(scores * scores.dtype.type(self.scale_of(q.shape[-1])))
        if mask:
            if mask[0].dtype == np.bool_:
                scores[np.broadcast_to(~mask[0], scores.shape)] = -np.inf
            else:
                scores = np.asarray(scores + widen_array(mask[0]))
        if self.causal:
            scores[..., ~np.tri(*scores.shape[-2:], dtype=np.bool_)] = -np.inf
        return Softmax(scores.ndim - 1).reference(scores)

    def reference(self, q: Array, k: Array, v: Array, *mask: Array) -> Array:
        return _wide(Matmul(), self.weights_array(q, k, mask), v).astype(v.dtype, copy=False)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        q, k, v, *mask = at.inputs
        if not any(at.needs[3:]):
            # Operands are repeated by strides of 0; the sum over them is best an op of its own.
            batch, given = at.dy.shape[:-2], (q, k, v)
            wide = [x.broadcast_to((*batch, *x.shape[-2:])) for x in given]
            found = AttentionGrad(self.causal, self.scale).outputs(*wide, at.dy, *mask)
            wanted = (
                d.sum_to(x.type.shape) if need else None
                for d, x, need in zip(found, given, at.needs[:3], strict=True)
            )
            return (*wanted, *(None for _ in mask))
        return self.cotangents(q, k, v, tuple(mask), at.dy, at.needs)

    def cotangents(
        self, q: V, k: V, v: V, mask: tuple[V, ...], dy: V, needs: tuple[bool, ...]
    ) -> tuple[V | None, ...]:
        """Return the cotangents of the inputs that `needs` asks for, from the result's, dy."""
        weights = self._weights(q, k, mask)
        dq = dk = dv = dmask = None
        if needs[2]:
            dv = _summed(Matmul(True, False)(weights, widen(dy)), v)
        if any((*needs[:2], *needs[3:])):
            weighted = Matmul(False, True)(widen(dy), widen(v)) * weights
            last = weights.type.ndim - 1
            dscores = weighted - weights * weighted.sum((last,), keepdims=True)
            if any(needs[3:]):
                dmask = dscores.sum_to(mask[0].type.shape).astype(mask[0].type.dtype)
            dproduct = self.scaled(dscores, q.shape[-1])
            if needs[0]:
                dq = _summed(Matmul()(dproduct, widen(k)), q)
            if needs[1]:
                dk = _summed(Matmul(True, False)(dproduct, widen(q)), k)
        return (dq, dk, dv, dmask) if mask else (dq, dk, dv)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        q, k, v = Arg((2, 3, 4)), Arg((2, 5, 4)), Arg((2, 5, 2))
        seen = Arg((3, 5), dt.bool_, values=((1, 0, 1, 1, 0),) * 3)
        return (
            Sample(cls(), (q, k, v)),
            Sample(cls(True, 0.5), (q, Arg((2, 3, 4)), Arg((2, 3, 4)))),
            Sample(cls(), (q, k, v, seen)),
            Sample(cls(), (Arg((2, 2, 3, 4)), k, v, Arg((1, 5)))),
            Sample(cls(), (Arg((0, 4)), Arg((5, 4)), Arg((5, 2)))),
            Sample(cls(True), (Arg((1, 1)), Arg((1, 1)), Arg((1, 1)))),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        q, k, v = Arg((2, 3, 4)), Arg((2, 5, 4)), Arg((2, 5, 2))
        return (
            BadSample(cls, (q, v, v), ShapeError, "q and k differ in their last extent"),
            BadSample(cls, (q, k, q), ShapeError, "different numbers of keys"),
            BadSample(cls, (Arg((3, 3, 4)), k, v), ShapeError, "cannot broadcast axis -1"),
            BadSample(cls, (q, k, v, Arg((3, 4))), ShapeError, "does not broadcast to the scores"),
            BadSample(cls, (q, k, v, Arg((3, 5), dt.int32)), DTypeError, "the mask is int32"),
            BadSample(cls, (Arg((4,)), k, v), ShapeError, "at least 2 axes"),
            BadSample(cls, (q, k), ShapeError, "takes q, k, v"),
        )


@op
class AttentionGrad(Composite):
    """The cotangents of q, k and v in `Attention`, from its operands and that of its result, dy.

    With the weights P = softmax(q k^T * scale + mask) made again and dP = dy v^T: dv = P^T dy,
    dS = P * (dP - rowsum(P * dP)) * scale, dq = dS k, dk = dS^T q, each summed over the axes along
    which its operand was broadcast. All three come at once, also where one of them is not needed.
    """

    causal: bool = False
    scale: float | None = None

    work = "product"
    name = "attention_grad"
    operands = ("q", "k", "v", "dy", "*mask")
    n_outputs = 3
    dtypes = dt.FLOATS

    @property
    def forward(self) -> Attention:
        """The op whose cotangents these are."""
        return Attention(self.causal, self.scale)

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        if not 4 <= len(types) <= 5:
            raise self.error("takes q, k, v, dy and at most one mask", types, "combine the masks")
        self.check_dtype(types)
        self.check_same_dtype(types[:4])
        (y,) = self.forward.infer(*types[:3], *types[4:])
        dy = types[3]

        def mismatch() -> ShapeError:
            return self.error(
                "dy is not shaped like the result", types, "pass the result's cotangent"
            )

        if dy.ndim != y.ndim:
            raise mismatch()
        for found, wanted in zip(dy.shape, y.shape, strict=True):
            require_equal(found, wanted, mismatch)
        return tuple(TensorType(t.dtype, t.shape) for t in types[:3])

    def body(self, q: Any, k: Any, v: Any, dy: Any, *mask: Any) -> Any:
        return self.forward.cotangents(q, k, v, mask, dy, (True, True, True, False))[:3]

    def reference(
        self, q: Array, k: Array, v: Array, dy: Array, *mask: Array
    ) -> tuple[Array, Array, Array]:
        weights = self.forward.weights_array(q, k, mask)
        dv = _wide(Matmul(True, False), weights, dy)
        dscores = _wide(Matmul(False, True), dy, v) * weights
        dscores -= weights * np.sum(dscores, axis=-1, keepdims=True)
        dscores *= dscores.dtype.type(self.forward.scale_of(q.shape[-1]))
        dq = _wide(Matmul(), dscores, k)
        dk = _wide(Matmul(True, False), dscores, q)
        return _sum_to(dq, q), _sum_to(dk, k), _sum_to(dv, v)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        found = []
        for s in Attention.samples():
            q, k, v, *mask = s.args
            batch = np.broadcast_shapes(*(x.shape[:-2] for x in (q, k, v)))
            dy = Arg((*batch, q.shape[-2], v.shape[-1]))
            found.append(Sample(cls(**s.op.attributes), (q, k, v, dy, *mask)))
        return tuple(found)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        q, k, v = Arg((2, 3, 4)), Arg((2, 5, 4)), Arg((2, 5, 2))
        return (
            BadSample(cls, (q, k, v), ShapeError, "takes q, k, v, dy"),
            BadSample(cls, (q, k, v, q), ShapeError, "dy is not shaped like the result"),
            BadSample(cls, (q, k, v, Arg((3, 2))), ShapeError, "dy is not shaped like the result"),
        )


def _summed(gradient: Any, like: Any) -> Any:
    """Rounded to the type of an operand, as `AttentionGrad` gives it, and summed to its shape."""
    return gradient.astype(like.type.dtype).sum_to(like.type.shape)


def _wide(product: Matmul, x: Array, y: Array) -> Array:
    """A product in the compute type, as kernels have it: only their results are rounded."""
    return product.reference(widen_array(x), widen_array(y))


def _sum_to(gradient: Array, like: Array) -> Array:
    """Summed over the axes along which an operand like the second was broadcast."""
    lead = gradient.ndim - like.ndim
    axes = [i + lead for i, d in enumerate(like.shape) if d == 1 != gradient.shape[i + lead]]
    summed = np.sum(widen_array(gradient), axis=(*range(lead), *axes))
    return np.asarray(summed).reshape(like.shape).astype(like.dtype, copy=False)
