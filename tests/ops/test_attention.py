"""Attention, softmax and losses where samples do not reach."""

import numpy as np
import pytest

from treadle.base.errors import IndexRangeError
from treadle.ops.attention import Attention
from treadle.ops.loss import BinaryCrossEntropyWithLogits, SoftmaxCrossEntropy
from treadle.ops.softmax import LogSoftmax, LogSumExp, Softmax

RNG = np.random.default_rng(0)


def test_a_causal_query_ignores_later_keys() -> None:
    q, k, v = RNG.normal(size=(3, 2, 5, 4))
    before = Attention(causal=True).reference(q, k, v)
    k[:, 3:], v[:, 3:] = 100.0, 100.0
    after = Attention(causal=True).reference(q, k, v)
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert (before[:, 3:] != after[:, 3:]).all()


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
