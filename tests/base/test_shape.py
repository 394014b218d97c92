"""Rules about shapes, against NumPy's."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.base.errors import ShapeError
from treadle.base.guards import recording_guards
from treadle.base.shape import (
    Shape,
    broadcast_shapes,
    can_broadcast,
    format_shape,
    is_static,
    normalize_axes,
    normalize_axis,
    product,
    require_equal,
    require_relation,
    row_major_strides,
    size_of,
)
from treadle.base.symbol import Dim, Expr, equal, evaluate, less_equal, symbol

SHAPES = st.lists(st.sampled_from([0, 1, 1, 2, 3]), max_size=4).map(tuple)
EXTENTS = {"p": 2, "q": 3, "r": 2}
SYMBOLS = {name: symbol(name) for name in EXTENTS}


@given(st.lists(SHAPES, min_size=1, max_size=4))
def test_broadcasting_is_numpys(shapes: list[tuple[int, ...]]) -> None:
    try:
        expected = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(ShapeError, match=r"^op: cannot broadcast axis -\d: \d against \d\n"):
            broadcast_shapes("op", *shapes)
        return
    assert broadcast_shapes("op", *shapes) == expected
    assert all(can_broadcast(s, expected) for s in shapes)


@given(SHAPES, SHAPES)
def test_can_broadcast_is_numpys(shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    try:
        expected = np.broadcast_to(np.empty(shape), target).shape == target
    except ValueError:
        expected = False
    assert can_broadcast(shape, target) == expected


@given(st.lists(st.lists(st.sampled_from([1, 2, 3, "p", "q", "r"]), max_size=3), min_size=2))
def test_symbolic_broadcasting_guards_what_it_assumes(given_: list[list[int | str]]) -> None:
    shapes: list[Shape] = [
        tuple(SYMBOLS[d] if isinstance(d, str) else d for d in s) for s in given_
    ]
    concrete = [tuple(EXTENTS[d] if isinstance(d, str) else d for d in s) for s in given_]
    with recording_guards() as guards:
        try:
            result = broadcast_shapes("op", *shapes)
        except ShapeError:
            with pytest.raises(ValueError):
                np.broadcast_shapes(*concrete)
            return
    if all(g.holds(EXTENTS) for g in guards):
        expected = np.broadcast_shapes(*concrete)
        assert tuple(evaluate(d, EXTENTS) for d in result) == expected
    if len(set(map(tuple, given_))) == 1:
        assert not guards


def test_unequal_symbols_need_a_guard() -> None:
    p, q = SYMBOLS["p"], SYMBOLS["q"]
    with recording_guards() as guards:
        assert broadcast_shapes("op", (p, 1), (q, 3)) == (q, 3)
        assert broadcast_shapes("op", (p,), (4,)) == broadcast_shapes("op", (4,), (p,)) == (4,)
    assert list(guards) == [equal(p, q), equal(p, 4)]
    with pytest.raises(ShapeError, match="cannot broadcast axis -1: p against q"):
        broadcast_shapes("op", (p,), (q,))
    assert can_broadcast((p,), (2, p)) and can_broadcast((1,), (p,))
    assert not can_broadcast((p,), (q,)) and not can_broadcast((p,), (1,))


@given(st.integers(-6, 6), st.integers(0, 4))
def test_one_axis(axis: int, ndim: int) -> None:
    if -ndim <= axis < ndim:
        assert normalize_axis(axis, ndim, "op") == list(range(ndim))[axis]
        return
    with pytest.raises(ShapeError, match=f"^op: axis {axis} is out of range for {ndim} axes\n"):
        normalize_axis(axis, ndim, "op")


@given(st.lists(st.integers(-5, 5), max_size=4), st.integers(0, 4))
def test_several_axes(axes: list[int], ndim: int) -> None:
    places = {a % ndim for a in axes} if ndim else set()
    if all(-ndim <= a < ndim for a in axes) and len(places) == len(axes):
        assert normalize_axes(axes, ndim, "op") == tuple(sorted(places))
        return
    with pytest.raises(ShapeError, match=r"out of range|appears twice"):
        normalize_axes(axes, ndim, "op")


def test_all_axes_and_one_axis() -> None:
    assert normalize_axes(None, 3, "op") == (0, 1, 2)
    assert normalize_axes(-1, 3, "op") == (2,)
    assert normalize_axes((), 3, "op") == ()


@given(st.lists(st.integers(1, 5), max_size=4).map(tuple))
def test_strides_are_numpys(shape: tuple[int, ...]) -> None:
    array = np.empty(shape, np.int8)
    assert row_major_strides(shape) == array.strides
    assert size_of(shape) == product(shape) == array.size


def test_empty_shapes_have_strides_that_fit_any_extent() -> None:
    assert row_major_strides((2, 0, 3)) == (3, 3, 1) and size_of((2, 0, 3)) == 0


def test_symbolic_shapes() -> None:
    n: Dim = symbol("n")
    assert is_static((2, 3)) and not is_static((2, n))
    assert product((2, n, 3)) == 6 * n and math.prod((2, 3)) == product((2, 3))
    assert format_shape((2, n, n + 1)) == "[2,n,n + 1]" and format_shape(()) == "[]"
    with pytest.raises(ShapeError, match="n is symbolic"):
        size_of((2, n))


def test_requirements() -> None:
    n = symbol("n", 2)

    def error() -> ShapeError:
        return ShapeError("op", "no")

    with recording_guards() as guards:
        require_equal(2, 2, error)
        require_equal(n, n, error)
        require_equal(n, 3, error)
        require_relation(less_equal(1, n), "op", "n is small")
    assert list(guards) == [equal(n, 3)]
    for pair in ((2, 3), (n, 1)):
        with pytest.raises(ShapeError, match="no"), recording_guards():
            require_equal(*pair, error)
    with pytest.raises(ShapeError) as caught:
        require_relation(less_equal(n, 1), "op", "n is large", "use less")
    assert (caught.value.problem, caught.value.saw) == ("n is large", "-n + 1 >= 0")
    assert caught.value.hint == "use less" and isinstance(n, Expr)
