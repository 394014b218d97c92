"""Reductions, sorting and linear algebra against NumPy, with MegEngine's defaults and types."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import treadle as mge
import treadle.functional as F

RNG = np.random.default_rng(5)
X = RNG.standard_normal((3, 4, 5)).astype(np.float32)
AXES = [None, 0, 1, -1, (0, 1), [0, 2], (-1, 0), ()]
REDUCTIONS = {
    "sum": np.sum,
    "prod": np.prod,
    "mean": np.mean,
    "var": np.var,
    "std": np.std,
    "min": np.min,
    "max": np.max,
}


@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, axis: Any) -> None:
    along = tuple(axis) if isinstance(axis, list) else axis
    for keepdims in (False, True):
        expected = REDUCTIONS[name](X, axis=along, keepdims=keepdims)
        found = getattr(F, name)(mge.tensor(X), axis=axis, keepdims=keepdims)
        assert found.shape == expected.shape and found.dtype == np.float32
        np.testing.assert_allclose(found.numpy(), expected, 1e-4, 1e-6)


@pytest.mark.parametrize("name", [*REDUCTIONS, "all", "any"])
def test_reductions_refuse_what_numpy_refuses(name: str) -> None:
    function, x = getattr(F, name), mge.tensor(X)
    with pytest.raises(ValueError, match="axis 3 is out of range"):
        function(x, axis=3)
    with pytest.raises(AssertionError, match="twice"):
        function(x, axis=(0, -3))
    with pytest.raises(TypeError):
        function(x, axis=0.5)


@given(st.integers(0, 7), st.data())
def test_every_rank_up_to_seven(rank: int, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank)))
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    axes = (
        data.draw(st.lists(st.integers(-rank, rank - 1), unique_by=lambda a: a % rank))
        if (rank)
        else []
    )
    found = F.sum(mge.tensor(array), axis=tuple(axes))
    np.testing.assert_array_equal(found.numpy(), array.sum(axis=tuple(axes)))
    assert mge.tensor(array).ndim == rank and mge.tensor(array).size == array.size


def test_types_of_reductions() -> None:
    i, b = mge.tensor([1, 2]), mge.tensor([True, False])
    assert F.sum(i).dtype == F.max(i).dtype == np.int32 and F.sum(b).dtype == np.int32
    assert F.mean(i).dtype == F.mean(b).dtype == np.float32
    assert F.mean(mge.tensor([1.0], dtype="float16")).dtype == np.float32
    assert F.sum(mge.tensor([1.0], dtype="float16")).dtype == np.float16
    assert F.var(i).item() == 0.25 and F.std(mge.tensor(2.0)).item() == 0
    assert F.all(b).item() is False and F.any(b).item() is True
    assert F.any(mge.tensor([[0, 2], [0, 0]]), axis=1).tolist() == [True, False]
    assert np.isnan(F.mean(F.zeros(0)).item())


def test_arg_extrema() -> None:
    x = mge.tensor(X)
    for axis in (0, 1, -1, (2,)):
        at = axis[0] if isinstance(axis, tuple) else axis
        np.testing.assert_array_equal(F.argmax(x, axis).numpy(), X.argmax(at))
        np.testing.assert_array_equal(F.argmin(x, axis, True).numpy(), X.argmin(at, keepdims=True))
    np.testing.assert_array_equal(F.argmax(x, keepdims=True).numpy(), X.argmax(keepdims=True))
    assert F.argmax(x).item() == X.argmax() and F.argmax(x).dtype == np.int32
    assert F.argmax(mge.tensor([False, True, True])).item() == 1
    assert F.isnan(mge.tensor([True])).tolist() == [False]
    with pytest.raises(ValueError, match="no elements"):
        F.argmin(F.zeros(0))


def test_sorting() -> None:
    x = mge.tensor(X)
    for descending in (False, True):
        for axis in (0, -1):
            values, indices = F.sort(x, mge.tensor(descending), axis)
            order = np.argsort(-X if descending else X, axis, kind="stable")
            np.testing.assert_array_equal(indices.numpy(), order)
            np.testing.assert_array_equal(values.numpy(), np.take_along_axis(X, order, axis))
    assert F.argsort(mge.tensor([2.0, 1.0, 2.0]), descending=True).tolist() == [0, 2, 1]
    assert F.sort(mge.tensor([3, 1]))[1].dtype == np.int32


def test_topk() -> None:
    x = mge.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]])
    values, indices = F.topk(x, 2)
    assert values.tolist() == [[3, 2], [5, 4]], "descending is the default"
    assert indices.tolist() == [[0, 2], [1, 2]] and indices.dtype == np.int32
    assert F.topk(x, 2, descending=False)[0].tolist() == [[1, 2], [0, 4]]
    kth, where = F.topk(x, 2, kth_only=True)
    assert kth.tolist() == [2, 4] and where.tolist() == [2, 2]
    assert sorted(F.topk(x[0], 2, no_sort=True)[0].tolist()) == [2, 3]
    assert F.topk(x, 9)[1].tolist() == [[0, 2, 1], [1, 2, 0]], "k is at most the axis"
    assert F.topk(x, -2)[0].tolist() == [[1, 2], [0, 4]], "a negative k turns the order around"
    for y, k in ((x, 0), (mge.tensor(1.0), 1)):
        with pytest.raises(ValueError, match="does not fit"):
            F.topk(y, k)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 2)),
        ((2, 3), (3, 4)),
        ((5, 2, 3), (3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((5, 2, 3), (3,)),
        ((3,), (5, 3, 2)),
        ((0, 3), (3, 2)),
        ((2, 0), (0, 2)),
    ],
)
def test_matmul_follows_numpy(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = RNG.standard_normal(a).astype("float32"), RNG.standard_normal(b).astype("float32")
    found = F.matmul(mge.tensor(x), mge.tensor(y))
    np.testing.assert_allclose(found.numpy(), np.matmul(x, y), 1e-5, 1e-6)
    np.testing.assert_allclose((mge.tensor(x) @ mge.tensor(y)).numpy(), np.matmul(x, y), 1e-5, 1e-6)


def test_matmul_flags_types_and_errors() -> None:
    a, b = F.arange(6).reshape(2, 3), F.arange(6, 12).reshape(3, 2)
    assert F.matmul(a, b).tolist() == [[28, 31], [100, 112]]
    assert F.matmul(a, a, transpose_b=True).tolist() == [[5, 14], [14, 50]]
    assert F.matmul(a, a, transpose_a=True).shape == (3, 3)
    half = a.astype("float16")
    assert F.matmul(half, half.T).dtype == np.float16
    assert F.matmul(half, b).dtype == np.float32
    assert F.matmul(a.astype("int32"), b.astype("int32")).dtype == np.int32
    assert F.matmul(a, b.numpy()).tolist() == F.matmul(a.numpy(), b).tolist()
    with pytest.raises(ValueError, match="inner extents 3 and 2"):
        F.matmul(a, a)
    with pytest.raises(ValueError, match="at least one axis"):
        F.matmul(a, mge.tensor(1.0))


def test_matmul_says_which_axes_must_agree() -> None:
    with pytest.raises(ValueError, match="axis -1 of x must be as long as axis -2 of y"):
        F.matmul(F.ones((2, 3)), F.ones((4, 2)))
    with pytest.raises(ValueError, match="axis -2 of x must be as long as axis -1 of y"):
        F.matmul(F.ones((3, 2)), F.ones((2, 4)), transpose_a=True, transpose_b=True)


def test_dot_cross_and_inverse() -> None:
    v, w = mge.tensor([1.0, 2.0, 3.0]), mge.tensor([0.0, 1.0, -1.0])
    assert F.dot(v, w).item() == -1 and F.dot(v, w).shape == ()
    with pytest.raises(ValueError, match="two vectors"):
        F.dot(v, w[:2])
    assert F.cross(v, w).tolist() == np.cross([1, 2, 3], [0, 1, -1]).tolist()
    a, b = RNG.standard_normal((3, 4)), RNG.standard_normal((3, 4))
    found = F.cross(mge.tensor(a), mge.tensor(b), axis=0)
    np.testing.assert_allclose(found.numpy(), np.cross(a, b, axis=0), 1e-5, 1e-6)
    assert F.cross(v[:2], w[:2]).item() == 1 and F.cross(v[:2], w).tolist() == [-2, 1, 1]
    with pytest.raises(ValueError, match="2 or 3 elements"):
        F.cross(v[:1], w[:1])
    m = RNG.standard_normal((2, 3, 3)) + 3 * np.eye(3)
    np.testing.assert_allclose(F.matinv(mge.tensor(m)).numpy(), np.linalg.inv(m), 1e-4, 1e-5)
    with pytest.raises(mge.TreadleError, match="singular"):
        F.matinv(F.zeros((2, 2)))


def test_svd() -> None:
    m = RNG.standard_normal((2, 4, 3)).astype("float32")
    u, s, vh = F.svd(mge.tensor(m))
    assert u.shape == (2, 4, 3) and s.shape == (2, 3) and vh.shape == (2, 3, 3)
    np.testing.assert_allclose((u * s.reshape(2, 1, 3) @ vh).numpy(), m, 1e-4, 1e-5)
    assert F.svd(mge.tensor(m), full_matrices=True)[0].shape == (2, 4, 4)
    np.testing.assert_allclose(F.svd(mge.tensor(m), compute_uv=False).numpy(), s.numpy(), 1e-5)


@pytest.mark.parametrize("ord", [None, 0, 1, 2, 3, 0.5, np.inf, -np.inf])
def test_norms(ord: float | None) -> None:
    matrix = X[0]
    found = F.norm(mge.tensor(matrix), ord, axis=1)
    expected = np.linalg.norm(matrix, ord, axis=1)
    np.testing.assert_allclose(found.numpy(), expected, 1e-5)
    kept = F.norm(mge.tensor(matrix), ord, 0, True)
    np.testing.assert_allclose(kept.numpy(), np.linalg.norm(matrix, ord, 0, True), 1e-5)


def test_norm_needs_an_axis_and_normalize_does_not() -> None:
    x = mge.tensor(X[0])
    with pytest.raises(TypeError, match="needs axis"):
        F.norm(x)
    assert F.norm(x[0]).item() == pytest.approx(np.linalg.norm(X[0, 0]), 1e-6)
    rows = F.normalize(x, axis=1)
    np.testing.assert_allclose(np.linalg.norm(rows.numpy(), axis=1), 1, 1e-6)
    np.testing.assert_allclose(np.linalg.norm(F.normalize(x).numpy()), 1, 1e-6)
    assert F.normalize(F.zeros((2, 2)), axis=1).tolist() == [[0, 0], [0, 0]]


def test_topk_accuracy() -> None:
    logits = mge.tensor([[0.1, 0.9, 0.0], [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]])
    target = mge.tensor([1, 1, 0])
    assert F.topk_accuracy(logits, target).item() == pytest.approx(1 / 3)
    several = F.metric.topk_accuracy(logits, target, (1, 2, 3))
    assert [s.item() for s in several] == pytest.approx([1 / 3, 2 / 3, 1])


def test_arguments_of_extrema_along_several_axes() -> None:
    x = RNG.standard_normal((3, 4, 5)).astype(np.float32)
    found = F.argmax(mge.tensor(x), axis=(-1, 0))
    expected = x.transpose(1, 0, 2).reshape(4, -1).argmax(1)
    np.testing.assert_array_equal(found.numpy(), expected)
    kept = F.argmin(mge.tensor(x), axis=[1, 2], keepdims=True)
    np.testing.assert_array_equal(kept.numpy(), x.reshape(3, -1).argmin(1).reshape(3, 1, 1))
    with pytest.raises(ValueError, match="each once"):
        F.argmax(mge.tensor(x), axis=(0, 0))
