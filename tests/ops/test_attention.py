"""Attention, softmax and losses where samples do not reach."""

from typing import Any

import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.base.errors import IndexRangeError
from treadle.base.types import TensorType
from treadle.graph.builder import trace_body
from treadle.graph.evaluate import evaluate
from treadle.ops.attention import Attention, AttentionGrad
from treadle.ops.loss import BinaryCrossEntropyWithLogits, SoftmaxCrossEntropy
from treadle.ops.op import Pullback
from treadle.ops.softmax import LogSoftmax, LogSumExp, Softmax

RNG = np.random.default_rng(0)


def test_a_causal_query_ignores_later_keys() -> None:
    q, k, v = RNG.normal(size=(3, 2, 5, 4))
    before = Attention(causal=True).reference(q, k, v)
    k[:, 3:], v[:, 3:] = 100.0, 100.0
    after = Attention(causal=True).reference(q, k, v)
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert (before[:, 3:] != after[:, 3:]).all()


@pytest.mark.parametrize("dtype", [dt.float16, dt.bfloat16])
def test_numbers_of_16_bits_are_rounded_once(dtype: dt.DType) -> None:
    """As kernels do; scores and weights were rounded as well, and half of the results differed."""
    narrow = [RNG.normal(size=(2, 17, 64)).astype(dtype.numpy) for _ in range(4)]
    wide = [x.astype(np.float64) for x in narrow]
    for op, count in ((Attention(True), 3), (AttentionGrad(True), 4)):
        made, wanted = (op.reference(*xs[:count]) for xs in (narrow, wide))
        for x, y in zip(*((v if count == 4 else (v,)) for v in (made, wanted)), strict=True):
            assert x.dtype == dtype.numpy
            assert (x == y.astype(np.float32).astype(dtype.numpy)).mean() > 0.99


def test_scores_of_float16_do_not_overflow() -> None:
    """Sums of products beyond 65,504 were infinite before they were scaled, and results NaN."""
    q, k, v, dy = (RNG.normal(size=(1, 5, 64)).astype(np.float16) for _ in range(4))
    q, k = q * np.float16(120), k * np.float16(120)
    assert np.abs(q.astype("float32") @ k.astype("float32").mT).max() > 65_504
    for op, operands in ((Attention(), (q, k, v)), (AttentionGrad(), (q, k, v, dy))):
        found = op.reference(*operands)
        types = [TensorType(dt.float16, x.shape) for x in operands]
        written_out = evaluate(trace_body(op.body, types), operands)
        for x, y in zip(found if len(operands) == 4 else (found,), written_out, strict=True):
            assert np.isfinite(x).all() and np.isfinite(y).all()
            scale = float(np.abs(x.astype("float32")).max())
            np.testing.assert_allclose(x, y, rtol=5e-3, atol=5e-3 * scale + 1e-3)


def test_masks_hide_or_add() -> None:
    q, k, v = RNG.normal(size=(3, 5, 4))
    seen = np.tri(5, dtype=bool)
    causal = Attention(causal=True).reference(q, k, v)
    np.testing.assert_allclose(Attention().reference(q, k, v, seen), causal, rtol=1e-12)
    added = np.where(seen, 0.0, -np.inf)
    np.testing.assert_allclose(Attention().reference(q, k, v, added), causal, rtol=1e-12)


def test_a_query_that_sees_nothing_yields_nan() -> None:
    q, k, v = RNG.normal(size=(3, 2, 2))
    with np.errstate(invalid="ignore"):
        y = Attention().reference(q, k, v, np.array([[True, True], [False, False]]))
    assert np.isfinite(y[0]).all() and np.isnan(y[1]).all()


def test_nothing_overflows() -> None:
    x = np.array([[1e4, -1e4, 0.0]], np.float32)
    np.testing.assert_array_equal(Softmax(1).reference(x), [[1, 0, 0]])
    np.testing.assert_array_equal(LogSoftmax(1).reference(x), [[0, -2e4, -1e4]])
    np.testing.assert_array_equal(LogSumExp((1,)).reference(x), [1e4])
    loss = SoftmaxCrossEntropy().reference(x, np.array([1], np.int32))
    np.testing.assert_array_equal(loss, [2e4])
    huge = np.array([1e4, -1e4], np.float32)
    binary = BinaryCrossEntropyWithLogits().reference(huge, np.zeros(2, np.float32))
    np.testing.assert_array_equal(binary, [1e4, 0])


def test_log_sum_exp_of_infinities() -> None:
    rows = np.array([[-np.inf, -np.inf], [np.inf, 0.0], [-np.inf, 2.0]])
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(LogSumExp((1,)).reference(rows), [-np.inf, np.inf, 2])


def test_smoothing_mixes_in_the_uniform_distribution() -> None:
    logits = RNG.normal(size=(4, 5))
    labels = np.array([0, 4, 2, 2], np.int64)
    target = np.full((4, 5), 0.3 / 5)
    target[np.arange(4), labels] += 0.7
    expected = -(target * LogSoftmax(1).reference(logits)).sum(1)
    loss = SoftmaxCrossEntropy(1, 0.3).reference(logits, labels)
    np.testing.assert_allclose(loss, expected, rtol=1e-12)


@pytest.mark.parametrize("label", [-1, 3, 2**31 - 1])
def test_labels_outside_the_classes_are_refused(label: int) -> None:
    with pytest.raises(IndexRangeError, match=f"the label {label} is none of 3 classes"):
        SoftmaxCrossEntropy().reference(np.zeros((2, 3)), np.array([0, label], np.int32))


def _gradient_ops(wanted: tuple[bool, ...]) -> set[str]:
    """Names of the ops that the gradient of masked attention applies."""

    def rule(*operands: Any) -> tuple[Any, ...]:
        *inputs, dy = operands
        at = Pullback((dy,), tuple(inputs), (dy,), wanted)
        return tuple(d for d in Attention().vjp(at) if d is not None)

    types = [TensorType(dt.float32, s) for s in ((3, 4), (5, 4), (5, 2), (3, 5), (3, 2))]
    graph = trace_body(rule, types)
    assert len(graph.outputs) == sum(wanted)
    return {node.op.name for node in graph.nodes}


def test_one_op_gives_all_gradients_but_that_of_the_mask() -> None:
    assert _gradient_ops((True, True, True, False)) == {"attention_grad"}
    assert _gradient_ops((False, True, False, False)) == {"attention_grad"}
    assert "attention_grad" not in _gradient_ops((True, True, True, True))


def test_a_gradient_of_shared_keys_has_operands_of_one_batch() -> None:
    """Which is what kernels take: repeating is free, and the sum is another op."""

    def rule(q: Any, k: Any, dy: Any) -> tuple[Any, ...]:
        found = Attention().vjp(Pullback((dy,), (q, k, k), (dy,), (True,) * 3))
        return tuple(d for d in found if d is not None)

    types = [TensorType(dt.float32, s) for s in ((2, 3, 6, 4), (2, 1, 5, 4), (2, 3, 6, 4))]
    graph = trace_body(rule, types)
    assert [v.type.shape for v in graph.outputs] == [t.shape for t in (*types[:2], types[1])]
    (node,) = (n for n in graph.nodes if isinstance(n.op, AttentionGrad))
    assert {v.type.shape[:2] for v in node.inputs} == {(2, 3)}


def test_gradients_are_summed_over_what_was_broadcast() -> None:
    q, k, v = RNG.normal(size=(2, 3, 4)), RNG.normal(size=(5, 4)), RNG.normal(size=(1, 5, 2))
    dy = RNG.normal(size=(2, 3, 2))
    found = AttentionGrad(True).reference(q, k, v, dy)
    halves = [AttentionGrad(True).reference(q[i], k, v[0], dy[i]) for i in range(2)]
    np.testing.assert_allclose(found[0], np.stack([h[0] for h in halves]), rtol=1e-12)
    np.testing.assert_allclose(found[1], halves[0][1] + halves[1][1], rtol=1e-12)
    np.testing.assert_allclose(found[2], halves[0][2] + halves[1][2][None], rtol=1e-12)
