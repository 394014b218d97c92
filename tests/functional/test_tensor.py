"""Creation and movement of elements against NumPy, defaults and errors included."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.base.errors import (
    DTypeError,
    IndexRangeError,
    OutOfMemory,
    ShapeError,
    TreadleError,
)

ROW = mge.tensor([0, 1])
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def same(found: mge.Tensor, expected: Any) -> None:
    assert found.shape == np.shape(expected)
    np.testing.assert_array_equal(found.numpy(), expected)


# -- creation ----------------------------------------------------------------------------------


def test_creation_is_float32_unless_told_otherwise() -> None:
    for made in (F.zeros(2), F.ones((2,)), F.arange(2), F.linspace(0, 1, 2), F.eye(2)):
        assert made.dtype == np.float32
    assert F.zeros((2, 3), dtype="int32").dtype == np.int32
    assert F.zeros(()).shape == () and F.zeros([2, 3]).shape == (2, 3)
    assert F.ones(mge.tensor([2, 3])).shape == (2, 3) and F.ones(np.int64(2)).shape == (2,)
    with pytest.raises(TypeError):
        F.zeros(2, "int32")  # dtype is for keywords only


def test_full_takes_its_type_from_the_value() -> None:
    assert F.full(2, 1).dtype == np.int32 and F.full(2, True).dtype == np.bool_
    assert F.full(2, 1.5).dtype == F.full(2, np.float64(1.5)).dtype == np.float32
    assert F.full((2, 2), mge.tensor(3), dtype="float64").tolist() == [[3, 3], [3, 3]]
    assert F.full(1, 2**40, dtype="int64").item() == 2**40
    with pytest.raises(TypeError, match="does not fit int32"):
        F.full(1, 2**40)
    with pytest.raises(TypeError, match="one number"):
        F.full(2, [1, 2])
    x = mge.tensor([[1, 2]])
    assert F.full_like(x, 1.5).tolist() == [[1, 1]] and F.full_like(x, 1.5).dtype == np.int32
    assert F.zeros_like(x).tolist() == [[0, 0]] and F.ones_like(x).dtype == np.int32


@pytest.mark.parametrize(
    "args", [(5,), (2, 5), (1, 10, 3), (5, 0, -2), (0, 1, 0.1), (1, 1.3, 0.1), (3, 3), (5, 2)]
)
def test_arange(args: Any) -> None:
    found = F.arange(*args)
    np.testing.assert_allclose(found.numpy(), np.arange(*args), 1e-6)
    assert found.dtype == np.float32


def test_arange_and_linspace_edge_cases() -> None:
    assert F.arange(2**60, 2**60 + 2, dtype="int64").tolist() == [2**60, 2**60 + 1]
    assert F.arange(mge.tensor(3), dtype="int32").tolist() == [0, 1, 2]
    same(F.linspace(0, 1, 5), np.linspace(0, 1, 5, dtype="float32"))
    assert F.linspace(3, 7, 1).tolist() == [3]
    for broken in (
        lambda: F.arange(0, 3, 0),
        lambda: F.arange(float("nan")),
        lambda: F.arange(0, float("inf")),
        lambda: F.linspace(0, 1, 0),
        lambda: F.zeros((2, -3)),
        lambda: F.ones(-1),
    ):
        with pytest.raises(ValueError):
            broken()
    for huge in (lambda: F.arange(1e300), lambda: F.linspace(0, 1, 2**40), lambda: F.eye(2**20)):
        with pytest.raises(MemoryError):
            huge()


def test_eye_diag_and_meshgrid() -> None:
    same(F.eye(2, 3), np.eye(2, 3))
    same(F.eye([2, 3]), np.eye(2, 3))
    same(F.eye(mge.tensor([2, 3])), np.eye(2, 3))
    with pytest.raises(ValueError, match="a matrix has two extents, not 3"):
        F.eye([1, 2, 3])
    for k in (-1, 0, 2):
        same(F.diag(mge.tensor([1.0, 2.0]), k), np.diag([1.0, 2.0], k))
        same(F.diag(mge.tensor(X[0]), k), np.diag(X[0], k))
    with pytest.raises(ValueError, match="vector or a matrix"):
        F.diag(mge.tensor(X))
    parts = [np.arange(2.0), np.arange(3.0), np.arange(4.0)]
    for indexing in ("xy", "ij"):
        grids = F.meshgrid(*(mge.tensor(p) for p in parts), indexing=indexing)
        for found, expected in zip(grids, np.meshgrid(*parts, indexing=indexing), strict=True):
            same(found, expected)
    with pytest.raises(ValueError, match="indexing"):
        F.meshgrid(mge.tensor(parts[0]), indexing="yx")


# -- shapes ------------------------------------------------------------------------------------


def test_shape_functions() -> None:
    x = mge.tensor(X)
    same(F.reshape(x, (4, -1)), X.reshape(4, -1))
    same(F.reshape(x, mge.tensor([6, 4])), X.reshape(6, 4))
    same(F.flatten(x), X.reshape(-1))
    same(F.flatten(x, 1), X.reshape(2, -1))
    same(F.transpose(x, (2, 0, 1)), X.transpose(2, 0, 1))
    same(F.transpose(x, (2, "x", 0, 1)), X.transpose(2, 0, 1)[:, None])
    same(F.swapaxes(x, 0, -1), X.swapaxes(0, -1))
    same(F.expand_dims(x, 1), X[:, None])
    same(F.expand_dims(x, [0, -1]), X[None, ..., None])
    same(F.expand_dims(x, [1, 1, -1]), X[:, None, None, ..., None])
    same(F.squeeze(mge.tensor(X[:1, :, :1])), X[0, :, 0])
    same(F.squeeze(mge.tensor(X[:1, :, :1]), 0), X[0, :, :1])
    same(F.squeeze(mge.tensor(X[:1, :, :1]), (0, -1)), X[0, :, 0])
    for broken in (
        lambda: F.squeeze(x, 0),
        lambda: F.transpose(x, (0, 1)),
        lambda: F.transpose(x, (0, 0, 1)),
        lambda: F.expand_dims(x, 5),
        lambda: F.reshape(x, (5, -1)),
        lambda: F.flatten(x, 2, 1),
    ):
        with pytest.raises(ValueError):
            broken()


def test_broadcast_to() -> None:
    row = mge.tensor([1.0, 2.0])
    same(F.broadcast_to(row, (3, 2)), [[1, 2]] * 3)
    same(F.broadcast_to(row, (3, None)), [[1, 2]] * 3)
    same(F.broadcast_to(mge.tensor(1.0), mge.tensor([2])), [1, 1])
    assert F.broadcast_to(row, (2,)) is not row
    with pytest.raises(TypeError, match="not an int"):
        F.broadcast_to(row, 2)
    for shape in ((3,), (2, 3), (), (None, 2)):
        with pytest.raises(ValueError):
            F.broadcast_to(row, shape)


# -- joining and splitting ---------------------------------------------------------------------


def test_concat_and_stack() -> None:
    x, y = mge.tensor(X), mge.tensor(X + 100)
    for axis in (0, 1, -1):
        same(F.concat([x, y], axis), np.concatenate([X, X + 100], axis))
        same(F.stack([x, y], axis), np.stack([X, X + 100], axis))
    one, two = mge.tensor(1.0), mge.tensor(2.0)
    same(F.stack([one, two]), [1, 2])
    for joined in (F.concat([one, two], 0), F.concat([one, 2.0], -1), F.concat([two - one, [2.0]])):
        same(joined, [1, 2])
    assert F.concat([mge.tensor([1]), mge.tensor([1.5])]).dtype == np.float32
    assert F.concat([mge.tensor([True])] * 2).dtype == np.bool_
    for broken in (
        lambda: F.concat([]),
        lambda: F.stack([]),
        lambda: F.concat([x, x[0]]),
        lambda: F.stack([x, x[:1]]),
        lambda: F.concat([x, y], 3),
    ):
        with pytest.raises(ValueError):
            broken()


def test_split() -> None:
    x = mge.tensor(X)
    for found, expected in zip(F.split(x, 3, axis=2), np.array_split(X, 3, 2), strict=True):
        same(found, expected)
    for found, expected in zip(F.split(x, [1, 3], -1), np.split(X, [1, 3], 2), strict=True):
        same(found, expected)
    for broken in (
        lambda: F.split(x, 3),
        lambda: F.split(x, 0),
        lambda: F.split(x, [2, 1], 2),
        lambda: F.split(x, [5], 2),
        lambda: F.split(x, 1, 3),
    ):
        with pytest.raises(ValueError):
            broken()


def test_repeat_tile_roll_and_cumsum() -> None:
    x = mge.tensor(X)
    same(F.repeat(x, 2), np.repeat(X, 2))
    same(F.repeat(x, 3, 1), np.repeat(X, 3, 1))
    same(F.tile(x, (2, 1, 3)), np.tile(X, (2, 1, 3)))
    same(F.tile(mge.tensor([1.0, 2.0]), (2, 2)), np.tile([1.0, 2.0], (2, 2)))
    same(F.tile(x, 2), np.tile(X, 2))
    same(F.roll(x, 5), np.roll(X, 5))
    same(F.roll(x, (1, -2), (0, 2)), np.roll(X, (1, -2), (0, 2)))
    same(F.roll(x, 1, (0, 1)), np.roll(X, 1, (0, 1)))
    same(F.cumsum(x, -1), np.cumsum(X, -1))
    assert F.cumsum(mge.tensor([True, True]), 0).tolist() == [1, 2]
    for broken in (
        lambda: F.repeat(x, 2, -1),
        lambda: F.repeat(x, -1),
        lambda: F.tile(x, -1),
        lambda: F.cumsum(x, 3),
        lambda: F.roll(x, 1, 4),
    ):
        with pytest.raises(ValueError):
            broken()


# -- picking -----------------------------------------------------------------------------------


def test_gather_and_scatter() -> None:
    x, index = mge.tensor(X[0]), mge.tensor([[2, 0, -1, 0]])
    same(F.gather(x, 0, index), np.take_along_axis(X[0], index.numpy(), 0))
    same(F.gather(x, -1, index.reshape(-1, 1)[:3]), [[2], [4], [11]])
    target = F.zeros((3, 4))
    changed = F.scatter(target, 0, index, F.ones((1, 4)))
    assert changed is target
    same(target, [[0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 1, 0]])
    for axis, wrong in ((0, [[3, 0, 0, 0]]), (0, [[-4, 0, 0, 0]]), (1, [[4]])):
        with pytest.raises(IndexError, match="out of range"):
            F.gather(x, axis, mge.tensor(wrong))
    with pytest.raises(IndexError, match="out of range"):
        F.scatter(target, 0, mge.tensor([[3, 0, 0, 0]]), F.ones((1, 4)))
    with pytest.raises(ValueError):
        F.gather(x, 0, mge.tensor([0]))


def test_where_cond_take_and_non_zero() -> None:
    mask = mge.tensor([[True, False], [False, True]])
    x, y = mge.tensor([[1.0, 2.0], [3.0, 4.0]]), mge.tensor([10, 20])
    same(F.where(mask, x, y), [[1, 20], [10, 4]])
    assert F.where(mask, x, y).dtype == np.float32
    rows, columns = F.where(mask)
    assert rows.tolist() == [0, 1] and columns.tolist() == [0, 1] and rows.dtype == np.int32
    values, flat = F.cond_take(mask, x)
    assert values.tolist() == [1, 4] and flat.tolist() == [0, 3] and flat.dtype == np.int32
    assert F.cond_take(mask & False, x)[0].shape == (0,)
    same(F.non_zero(mge.tensor([[0, 3], [4, 0]])), [[0, 1], [1, 0]])
    assert F.non_zero(F.zeros((2, 3))).shape == (0, 2)
    for wrong in (lambda: F.where(x, x, x), lambda: F.cond_take(x, x)):
        with pytest.raises(ValueError, match="mask must be bool"):
            wrong()
    for kind in (
        lambda: F.where(mask, 1.0, x),
        lambda: F.where(mask, x),
        lambda: F.cond_take(mask.numpy(), x),
    ):
        with pytest.raises(TypeError, match="tensor"):
            kind()
    with pytest.raises(ValueError, match="differ in shape"):
        F.cond_take(mask, x[0])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.concat([x, x * 2], 1),
        lambda x: F.stack([x, x], -1),
        lambda x: F.split(x, 2, 1)[1],
        lambda x: F.tile(x, (2, 3)),
        lambda x: F.repeat(x, 2, 1),
        lambda x: F.roll(x, 1, 0),
        lambda x: F.cumsum(x, 1),
        lambda x: F.gather(x, 0, mge.tensor([[1, 1, 0, 1]])),
        lambda x: F.where(x > 3, x, x * 3),
        lambda x: F.cond_take(x > 3, x)[0],
        lambda x: F.sort(x, True, 1)[0],
        lambda x: F.topk(x, 2)[0],
        lambda x: F.diag(x),
        lambda x: F.broadcast_to(x, (3, 2, 4)),
        lambda x: F.transpose(x, (1, "x", 0)),
    ],
)
def test_gradients_are_transposes(function: Any) -> None:
    """These functions are linear at x, so <f(x'), w> = <x', f^T(w)> along any direction x'."""
    rng = np.random.default_rng(0)
    x = mge.tensor(rng.permutation(8).reshape(2, 4).astype("float32"))
    manager = GradManager().attach(x)
    with manager:
        y = function(x)
        w = mge.tensor(rng.standard_normal(y.shape))
        manager.backward(y, w)
    np.testing.assert_allclose((x.grad * x).sum().item(), (y * w).sum().item(), 1e-4)
    assert x.grad.shape == x.shape


# -- messages ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "where", "hint"),
    [
        (lambda: F.arange("a"), DTypeError, "arange: expects numbers", "0-d tensors"),
        (lambda: F.arange(2**40), OutOfMemory, "arange: cannot allocate", "smaller shape"),
        (lambda: F.arange(3, dtype="bool"), DTypeError, "arange: does not make", "int32"),
        (lambda: F.linspace(0, 1, -2), ShapeError, "linspace: num must be positive", "num=1"),
        (lambda: F.linspace(0, 1, 2.5), DTypeError, "linspace: num must be an int", "such as 5"),
        (lambda: F.zeros((-1, 2)), ShapeError, "zeros: the shape [-1,2]", "0 or more"),
        (lambda: F.ones(2**45), OutOfMemory, "ones: cannot allocate", "smaller shape"),
        (lambda: F.full((-1,), 2), ShapeError, "full: the shape [-1]", "0 or more"),
        (lambda: F.gather(F.eye(2), 0, ROW), ShapeError, "gather: expects 2 axes", "reshape"),
        (lambda: F.gather(F.ones(1), 0, ROW), IndexRangeError, "gather: index 1", "-1 to 0"),
        (lambda: F.scatter(F.eye(2), 0, ROW, ROW), ShapeError, "scatter: expects", "reshape"),
        (lambda: F.gather(F.ones(2), 0, F.ones(2) / 2), DTypeError, "gather: 0.5 is", "round()"),
        (lambda: F.broadcast_to(F.eye(2), (3, 3)), ShapeError, "broadcast_to: cannot", "or 1"),
        (lambda: F.repeat(ROW, -1), ShapeError, "repeat: the shape", "0 or more"),
        (lambda: F.tile(ROW, -1), ShapeError, "tile: the shape", "0 or more"),
        (lambda: F.concat([]), ShapeError, "concat: needs at least one", "zeros()"),
        (lambda: F.stack(iter(())), ShapeError, "stack: needs at least one", "only once"),
        (lambda: F.stack([F.eye(2), ROW]), ShapeError, "stack: the shapes differ", "concat()"),
        (lambda: F.split(ROW, 5), ShapeError, "split: cannot split axis 0 of size 2", "parts"),
        (lambda: F.split(ROW, [2, 1]), ShapeError, "Invalid nsplits_or_secions: [2, 1]", "cuts"),
        (lambda: F.expand_dims(ROW, 7), ShapeError, "expand_dims: axis 7", "from -2 to 1"),
        (lambda: F.squeeze(F.ones((1, 2)), 1), ShapeError, "squeeze: axis 1", "are [0]"),
        (lambda: F.squeeze(F.ones(2), 0), ShapeError, "squeeze: axis 0", "no axis of x"),
        (lambda: F.reshape(ROW, (-1, -1)), ShapeError, "reshape: only one", "shape [2]"),
        (lambda: F.reshape(ROW, (-2,)), ShapeError, "reshape: an extent is", "0 or more"),
        (lambda: F.topk(ROW, 0), ShapeError, "topk: k = 0", "from 1 to 2"),
        (lambda: F.topk(F.ones(()), 1), ShapeError, "topk: k = 1", "no axes"),
    ],
)
def test_messages_name_the_function_and_a_fix(
    call: Callable[[], Any], error: type[TreadleError], where: str, hint: str
) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value).startswith(where)
    assert hint in caught.value.hint and caught.value.at


@pytest.mark.parametrize("wrong", ["ab", (2.5,), 2.5, None])
def test_what_is_no_shape_is_shown(wrong: Any) -> None:
    with pytest.raises(TypeError, match=re.escape(f"sequence of ints, got {wrong!r}")):
        F.zeros(wrong)
