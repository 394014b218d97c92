"""Indexing agrees with NumPy, for reading and for writing, and gradients flow through both."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.base.dtype import float32
from treadle.base.guards import recording_guards
from treadle.base.symbol import evaluate, symbol
from treadle.base.types import TensorType
from treadle.ops import indexing
from treadle.ops.abstract import TypeOperand

Array = npt.NDArray[Any]


def counting(shape: tuple[int, ...]) -> Array:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@st.composite
def basic(draw: st.DrawFn) -> tuple[tuple[int, ...], Any]:
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    return shape, draw(hnp.basic_indices(shape, allow_newaxis=True, max_dims=7))


@st.composite
def advanced(draw: st.DrawFn) -> tuple[tuple[int, ...], Any]:
    """Integer arrays, masks, integers, truth values, slices and new axes in any order."""
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4))
    common = draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=1, max_side=3))
    items: list[Any] = []
    for extent in shape[: draw(st.integers(1, len(shape)))]:
        if draw(st.integers(0, 5)) == 0:
            items.append(None)
        choice = draw(st.sampled_from(["array", "array", "list", "slice", "int", "one"]))
        numbers = st.integers(-extent, extent - 1)
        if choice == "array":
            items.append(draw(hnp.arrays(np.int64, common, elements=numbers)))
        elif choice == "list":
            items.append(draw(st.lists(numbers, min_size=1, max_size=1)))
        elif choice == "slice":
            items.append(draw(st.slices(extent)))
        elif choice == "int":
            items.append(draw(numbers))
        else:
            items.append(np.array(draw(numbers)))
    if draw(st.integers(0, 4)) == 0:
        items.insert(draw(st.integers(0, len(items))), True)
    if draw(st.integers(0, 3)) == 0:
        items.append(...)
    return shape, tuple(items)


@st.composite
def masks(draw: st.DrawFn) -> tuple[tuple[int, ...], Any]:
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4))
    first = draw(st.integers(0, len(shape) - 1))
    last = draw(st.integers(first + 1, len(shape)))
    mask = draw(hnp.arrays(np.bool_, shape[first:last]))
    rest = [slice(None, None, draw(st.sampled_from([1, -1, 2]))) for _ in shape[last:]]
    return shape, (*[slice(None)] * first, mask, *rest)


@given(st.one_of(basic(), advanced(), masks()))
@example(((3,), (True, slice(None))))
@example(((3,), (False,)))
@example(((2, 3), (0, slice(None), True)))
@example(((2, 3, 4), (slice(None), [0, 1], ..., [0, 1])))
@example(((2, 3, 4), ([0, 1], slice(None), [0, 1])))
@example(((2, 3, 4), ([0, 1], None, [0, 1])))
@example(((2, 3), (True, True)))
@example(((), ()))
@example(((), ...))
@example(((), None))
@example(((5,), slice(3, 1)))
@example(((5,), slice(None, None, -2)))
@example(((5,), []))
def test_reading_agrees_with_numpy(case: tuple[tuple[int, ...], Any]) -> None:
    shape, index = case
    array = counting(shape)
    expected = array[index]
    found = mge.Tensor(array)[index]
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found.numpy(), expected)


@given(st.one_of(basic(), advanced(), masks()), st.booleans())
@example(((3,), (True, slice(None))), True)
@example(((2, 3), (0, slice(None), True)), True)
@example(((2, 3, 4), ([0, 1], slice(None), [0, 1])), True)
@example(((2, 3, 4), (slice(None), [0, 1], ..., [0, 1])), True)
@example(((2, 3, 4, 3), (slice(None), [[0, 1, 2]], 1, ..., [0, 1, 1])), True)
def test_writing_agrees_with_numpy(case: tuple[tuple[int, ...], Any], whole: bool) -> None:
    shape, index = case
    if index is Ellipsis:
        return
    array = counting(shape)
    tensor = mge.Tensor(array)
    value: Any = -7.5
    if whole:
        region = array[index].shape
        value = -1.0 - np.arange(np.prod(region), dtype=np.float32).reshape(region)
    before = tensor.numpy().copy()
    other = mge.Tensor(tensor)
    tensor[index] = value
    array[index] = value
    np.testing.assert_array_equal(tensor.numpy(), array)
    np.testing.assert_array_equal(other.numpy(), before, "other tensors stay as they are")


def test_tensors_index_tensors() -> None:
    x = mge.Tensor(counting((3, 4)))
    index = mge.Tensor([2, 0])
    np.testing.assert_array_equal(x[index].numpy(), counting((3, 4))[[2, 0]])
    np.testing.assert_array_equal(x[:, index].numpy(), counting((3, 4))[:, [2, 0]])
    np.testing.assert_array_equal(x[x > 5].numpy(), np.arange(6.0, 12.0))
    assert x[mge.Tensor(1), mge.Tensor(2)].item() == 6
    for dtype in ("int8", "uint8", "int16", "int64"):
        assert x[mge.Tensor([1], dtype=dtype)].tolist() == [[4, 5, 6, 7]]
    x[x > 5] = 0
    assert x.numpy().sum() == 15
    x[mge.Tensor([0])] = mge.Tensor([9.0])
    assert x[0].tolist() == [9, 9, 9, 9]


@pytest.mark.parametrize(
    "index",
    [
        np.int64(1),
        slice(np.int64(1), None),
        (np.int8(2), slice(None, np.int64(-1))),
        (slice(mge.Tensor(1), mge.Tensor(3)), None),
        slice(np.int64(0), 3),
        np.True_,
    ],
    ids=str,
)
def test_whatever_is_an_integer_indexes_and_bounds_slices(index: Any) -> None:
    array, x = counting((3, 4)), mge.Tensor(counting((3, 4)))
    assert x[index].numpy().tolist() == array[index].tolist()
    assert x[index] is not x
    x[index], array[index] = -1.0, -1.0
    assert x.numpy().tolist() == array.tolist()


@pytest.mark.parametrize(
    "index",
    [3, -4, (0, 4), (0, 0, 0), [3], [0, -4], (slice(None), [0, 4]), (..., ...), 2**40, [2**40]],
)
def test_out_of_range_is_an_index_error_for_reading_and_writing(index: Any) -> None:
    x = mge.Tensor(counting((3, 4)))
    with pytest.raises(IndexError):
        x[index]
    with pytest.raises(IndexError):
        x[index] = 1.0
    assert x.numpy().tolist() == counting((3, 4)).tolist()


def test_out_of_range_tensors_and_masks_that_do_not_fit() -> None:
    x = mge.Tensor(counting((3, 4)))
    with pytest.raises(IndexError, match="index 3 is out of range for axis 0"):
        x[mge.Tensor([3])]
    with pytest.raises(IndexError, match=r"mask of shape \[2\] does not fit axes of \[3\]"):
        x[np.array([True, False])]
    with pytest.raises(IndexError, match="1 indices for 0 axes"):
        mge.Tensor(1.0)[0]


@pytest.mark.parametrize(
    "index",
    [1.5, "a", [0.5], mge.Tensor([1.0]), object(), {1: 2}, slice(1.5, None), slice("a")],
)
def test_only_integers_and_bools_are_indices(index: Any) -> None:
    with pytest.raises(TypeError, match="index"):
        mge.Tensor(counting((3, 4)))[index]


def test_slices_of_symbolic_axes() -> None:
    n = symbol("n")
    x = TypeOperand(TensorType(float32, (n, 4)))
    assert indexing.getitem(x, (slice(None), slice(1, 3))).type.shape == (n, 2)
    assert indexing.getitem(x, (..., 0)).type.shape == (n,)
    longer = TypeOperand(TensorType(float32, (symbol("m", 4), 4)))
    m = longer.type.shape[0]
    for cut in (
        slice(1, None),
        slice(-3, None),
        slice(None, -1),
        slice(1, 4),
        slice(None, None, 2),
        slice(None, None, -1),
        slice(-1, 1, -2),
        slice(m // 2, m),
    ):
        with recording_guards():
            found = indexing.getitem(longer, cut).type.shape
        for value in (4, 7, 30):
            places = slice(*(evaluate(b, {"m": value}) if b is not None else b for b in _ends(cut)))
            assert evaluate(found[0], {"m": value}) == len(range(*places.indices(value)))


def _ends(cut: slice) -> tuple[Any, Any, Any]:
    return cut.start, cut.stop, cut.step


def test_zero_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="step"):
        mge.Tensor([1.0])[::0]


def test_results_are_never_views_and_never_the_same_handle() -> None:
    x = mge.Tensor([1.0, 2.0, 3.0])
    made = [x[:], x[...], x[()], x.reshape(3), x.astype("float32"), +x, x.broadcast_to(3)]
    made += [x.to(x.device), x.detach(), F.dropout(x, 0.5, training=False), F.reshape(x, 3)]
    made += [F.broadcast_to(x, (3,)), F.squeeze(x), F.flatten(x), F.sum(x, ()), F.copy(x)]
    for y in made:
        assert y is not x
        y += 1
        y[0] = 100.0
    assert x.tolist() == [1, 2, 3]


def test_values_are_cast_and_broadcast() -> None:
    x = mge.Tensor([[1, 2], [3, 4]])
    x[0] = 7.9
    assert x.dtype == np.int32 and x.tolist() == [[7, 7], [3, 4]]
    x[:] = np.array([[[5, 6]]])
    assert x.tolist() == [[5, 6], [5, 6]]
    x[:, 0] = mge.Tensor([1.0, 2.0])
    assert x.dtype == np.int32 and x.tolist() == [[1, 6], [2, 6]]
    x[[0, 0]] = [[1, 1], [2, 2]]
    assert x.tolist() == [[2, 2], [2, 6]], "the last write stays"
    wide = mge.Tensor([0], dtype="int64")
    wide[0] = 2**40
    wide[:] = np.array([2**41])
    assert wide.tolist() == [2**41]
    with pytest.raises(ValueError, match=r"cannot write \[3\] to \[2\]"):
        x[0] = [1, 2, 3]
    with pytest.raises(TypeError, match="does not fit int32"):
        x[0] = 2**40
    with pytest.raises(TypeError, match="None"):
        x[0] = None


def test_ellipsis_alone_replaces_the_whole_value() -> None:
    x = mge.Tensor([1.0, 2.0])
    alias = x
    x[...] = mge.Tensor([[1, 2, 3]])
    assert alias.shape == (1, 3) and alias.dtype == np.int32
    p = mge.Parameter([1.0])
    p[...] = 2.5
    assert isinstance(p, mge.Parameter) and p.item() == 2.5


INDICES = [
    1,
    slice(None, None, -2),
    (..., 1),
    [0, 0, 2],
    np.array([[True, False, False, True]] * 3),
    (slice(1, None), [1, 1]),
    (None, [2], slice(None)),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_gradient_of_reading_accumulates_duplicates(index: Any) -> None:
    x = mge.Tensor(counting((3, 4)))
    manager = GradManager().attach(x)
    with manager:
        part = x[index]
        weight = counting(part.shape) + 1
        manager.backward((part * mge.Tensor(weight)).sum())
    expected = np.zeros((3, 4), np.float32)
    np.add.at(expected, index, weight)
    np.testing.assert_array_equal(x.grad.numpy(), expected)


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_gradient_of_writing_goes_to_what_is_left_and_to_the_value(index: Any) -> None:
    x, value = mge.Tensor(counting((3, 4))), mge.Tensor(2.0)
    manager = GradManager().attach([x, value])
    weight = counting((3, 4)) + 1
    with manager:
        y = x * 1
        y[index] = value
        manager.backward((y * mge.Tensor(weight)).sum())
    written = np.zeros((3, 4), bool)
    written[index] = True
    np.testing.assert_array_equal(x.grad.numpy(), np.where(written, 0, weight))
    np.testing.assert_allclose(value.grad.item(), weight[written].sum())


def test_gradient_reaches_a_parameter_through_indexing_with_a_tensor() -> None:
    p = mge.Parameter(counting((4, 2)))
    manager = GradManager().attach(p)
    with manager:
        q = p * 1
        q[0] = p[1]
        manager.backward(F.sum(q[mge.Tensor([0, 0, 3])]))
    assert p.grad.tolist() == [[0, 0], [2, 2], [0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("shape", "rank", "given"),
    [((3, 4), 2, ()), ((3, 4), 1, (4,)), ((3, 4), 1, (1,)), ((0, 4), 1, ()), ((3, 4, 2), 2, (2,))],
)
def test_one_value_for_all_of_a_mask_needs_no_count(
    shape: tuple[int, ...], rank: int, given: tuple[int, ...]
) -> None:
    """How many elements a mask chooses is not known when a function is compiled."""
    rng = np.random.default_rng(len(shape))
    x, mask = rng.standard_normal(shape).astype(np.float32), rng.random(shape[:rank]) < 0.5
    value = rng.integers(1, 9, given).astype(np.int32)
    wanted = x.copy()
    wanted[mask] = value

    def filled(x: mge.Tensor, mask: mge.Tensor, value: mge.Tensor) -> mge.Tensor:
        made = x * 1
        made[mask] = value
        return made

    for function in (filled, mge.jit.compile(filled)):
        found = function(*[mge.tensor(a) for a in (x, mask, value)])
        np.testing.assert_array_equal(found.numpy(), wanted)
