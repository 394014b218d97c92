"""Views of strided operands, beside those that NumPy makes of the same arrays."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import pytest

from treadle.backends.codegen.views import Strided, dense
from treadle.base.guards import deciding
from treadle.base.symbol import Dim, evaluate, symbol
from treadle.ops.movement import Broadcast, Flip, Reshape, Transpose
from treadle.ops.op import Op
from treadle.ops.slicing import Slice

Sizes = tuple[int, ...]


def of(array: npt.NDArray[np.int8], origin: int) -> tuple[Sizes, Sizes, int]:
    """Shape, strides of the axes that are walked along, and offset of an array of bytes."""
    steps = tuple(s for n, s in zip(array.shape, array.strides, strict=True) if n > 1)
    return array.shape, steps, array.ctypes.data - origin


def of_view(view: Strided, values: dict[str, int]) -> tuple[Sizes, Sizes, int]:
    shape = tuple(evaluate(d, values) for d in view.shape)
    strides = tuple(evaluate(d, values) for d in view.strides)
    steps = tuple(s for n, s in zip(shape, strides, strict=True) if n > 1)
    return shape, steps, evaluate(view.offset, values)


def some_move(rng: random.Random, shape: Sizes) -> Op:
    """A movement op that takes a shape."""
    kind = rng.choice(["reshape", "transpose", "flip", "slice", "broadcast"])
    axes = list(range(len(shape)))
    if kind == "transpose":
        return Transpose(tuple(rng.sample(axes, len(axes))))
    if kind == "flip":
        return Flip(tuple(rng.sample(axes, rng.randint(0, len(axes)))))
    if kind == "broadcast":
        lead = [rng.randint(1, 3)] * rng.randint(0, 1)
        return Broadcast((*lead, *(rng.choice([1, 3]) if n == 1 else n for n in shape)))
    if kind == "slice":
        cuts = [(rng.randrange(n), rng.choice([1, 1, 2, -1])) for n in shape]
        stops = tuple(-1 if step < 0 else n for n, (_, step) in zip(shape, cuts, strict=True))
        return Slice(tuple(a for a, _ in cuts), stops, tuple(s for _, s in cuts))
    factors = [p for n in shape for p in (2, 3, 5, 7) for _ in range(9) if _divides(n, p, _)]
    made = [1] * rng.randint(1, 4)
    for factor in factors:
        made[rng.randrange(len(made))] *= factor
    return Reshape(tuple(made)) if np.prod(made) == np.prod(shape) else Reshape(shape)


def _divides(n: int, prime: int, power: int) -> bool:
    return n % prime ** (power + 1) == 0


@pytest.mark.parametrize("seed", range(40))
def test_moves_are_the_views_that_numpy_makes(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        shape = tuple(rng.choice([1, 2, 3, 4, 6]) for _ in range(rng.randint(1, 4)))
        array = np.zeros(shape, np.int8)
        origin, view = array.ctypes.data, dense(0, shape)
        for _ in range(5):
            op = some_move(rng, array.shape)
            after = view.after(op)
            if isinstance(op, Reshape) and not np.shares_memory(array, array.reshape(op.shape)):
                assert after is None
                break
            array = op.reference(array)
            assert after is not None
            assert of_view(after, {}) == of(array, origin), op
            view = after
    assert view.index == 0


N, M = symbol("n", 2, 15), symbol("m", 2, 15)
OPEN: dict[str, tuple[tuple[Dim, ...], list[Op]]] = {
    "heads": ((N, 64), [Reshape((N, 4, 16)), Transpose((1, 0, 2))]),
    "heads joined": ((4, N, 16), [Transpose((1, 0, 2)), Reshape((N, 64))]),
    "batches merged": ((N, M, 8), [Reshape((N * M, 8))]),
    "batches split": ((N * M, 8), [Reshape((N, M, 8)), Transpose((1, 2, 0))]),
    "backwards": ((N, 8), [Flip((0,)), Slice((0, 1), (N // 2, 8), (1, 2))]),
    "every other": ((N, 8), [Slice((N - 1, 0), (-1, 8), (-2, 1))]),
    "all but one": ((N, 8), [Slice((1, 0), (N, 8), (1, 1)), Reshape((N - 1, 2, 4))]),
    "repeated": ((1, 8), [Broadcast((M, N, 8)), Transpose((1, 0, 2))]),
    "pieces": ((M, 2 * N, 3), [Reshape((M, N, 6)), Slice((0, 0, 3), (M, N, 6), (1, 1, 1))]),
}


@pytest.mark.parametrize("name", OPEN)
def test_views_of_expressions_hold_at_all_extents(name: str) -> None:
    shape, ops = OPEN[name]
    with deciding({"n": 5, "m": 7}, {"n": 8, "m": 8}) as decisions:
        view: Strided | None = dense(0, shape)
        for op in ops:
            view = None if view is None else view.after(op)
    assert not decisions.guards
    for n, m in ((2, 2), (3, 15), (15, 4), (8, 8)):
        values = {"n": n, "m": m}
        array = np.zeros([evaluate(d, values) for d in shape], np.int8)
        origin, copied = array.ctypes.data, False
        for op in ops:
            fields = {k: _at(v, values) for k, v in op.attributes.items()}
            moved = op.replace(**fields).reference(array)
            copied |= not np.shares_memory(moved, array)
            array = moved
        assert (view is None) == (copied or name == "heads joined")
        if view is not None:
            assert of_view(view, values) == of(array, origin)


def _at(value: object, values: dict[str, int]) -> object:
    if isinstance(value, tuple):
        return tuple(evaluate(v, values) for v in value)
    return value


def test_expressions_whose_products_do_not_look_equal_need_a_copy() -> None:
    n, m = symbol("n", 2), symbol("m", 2)
    columns = Strided(0, (n // 2, 8), 0, (1, n // 2))
    with deciding({"n": 12, "m": 6}, {"n": 12, "m": 6}):
        assert columns.after(Reshape((m, 8))) is None
        assert columns.after(Reshape((4, m * 2))) is None
