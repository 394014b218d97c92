"""Axes that are found to change: when they become symbols, which ones, and what stays a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.base.errors import ShapeError
from treadle.jit import choosing, openings
from treadle.jit.compiled import Compiled
from treadle.jit.family import Family, Member
from treadle.jit.openings import MOST_SYMBOLS

Function = Callable[..., Any]


def filled(*shape: int) -> mge.Tensor:
    return mge.tensor(np.random.default_rng(sum(shape)).standard_normal(shape, "float32"))


def made(function: Function, **options: Any) -> Compiled[..., Any]:
    return jit.compile(**options)(function)


def captures(compiled: Compiled[..., Any]) -> int:
    return compiled._captures.count


def families(compiled: Compiled[..., Any]) -> list[Family]:
    return [f for found in compiled._captures.families.values() for f in found]


def symbols(compiled: Compiled[..., Any]) -> list[str]:
    """The shapes of arguments as the last capture had them."""
    return [str(t.shape) for t in families(compiled)[-1].captured.graph.input_types]


def test_the_second_extent_of_an_axis_makes_it_a_symbol() -> None:
    compiled = made(lambda x: F.softmax(x * 2, axis=1))
    for n, count in ((3, 1), (3, 1), (4, 2), (5, 2), (9, 2), (3, 2)):
        x = filled(n, 4)
        np.testing.assert_allclose(
            compiled(x).numpy(), F.softmax(x * 2, axis=1).numpy(), rtol=1e-5, atol=1e-6
        )
        assert captures(compiled) == count
    assert symbols(compiled) == ["(arg0_0, 4)"]
    assert not isinstance(compiled.variant((filled(3, 4),), {}), Member), "it keeps its program"
    assert isinstance(compiled.variant((filled(5, 4),), {}), Member)


def test_axes_that_were_equal_share_a_symbol_until_they_differ() -> None:
    compiled = made(lambda x, y: F.matmul(x, y) + x.shape[0])
    for n, m, count in ((3, 3, 1), (4, 4, 2), (7, 7, 2), (5, 6, 3), (6, 9, 3), (8, 8, 3)):
        x, y = filled(n, 2), filled(2, m)
        np.testing.assert_allclose(compiled(x, y).numpy(), x.numpy() @ y.numpy() + n, rtol=1e-5)
        assert captures(compiled) == count, (n, m)
    assert symbols(compiled) == ["(arg0_0, 2)", "(2, arg1_1)"]


def test_extents_of_one_and_zero_open_nothing() -> None:
    compiled = made(lambda x: x * 2 + x.shape[0])
    for n, count in ((1, 1), (5, 2), (0, 3), (1, 3), (5, 3), (6, 4), (7, 4)):
        np.testing.assert_allclose(compiled(filled(n, 2)).numpy(), filled(n, 2).numpy() * 2 + n)
        assert captures(compiled) == count, n


def test_parameters_that_are_passed_stay_numbers() -> None:
    compiled = made(lambda x, w: F.matmul(x, w))
    for width in (3, 4, 5):
        compiled(filled(2, width), mge.Parameter(np.ones((width, 2), "float32")))
    # The width of x is a symbol that the weight makes a number.
    assert captures(compiled) == 4
    assert not any(isinstance(v, Member) for v in compiled.variants)


def test_an_axis_whose_number_is_asked_for_stays_a_number() -> None:
    def function(x: mge.Tensor) -> mge.Tensor:
        for _ in range(x.shape[0]):
            x = x + 1
        return x * x.shape[1]

    compiled = made(function)
    for n, m, count in ((3, 4, 1), (2, 4, 3), (5, 4, 4), (5, 6, 5), (5, 7, 5), (4, 7, 6)):
        x = filled(n, m)
        np.testing.assert_allclose(compiled(x).numpy(), (x.numpy() + n) * m, rtol=1e-5)
        assert captures(compiled) == count, (n, m)
    assert symbols(compiled)[-1] == "(4, arg0_1)"


def test_what_fails_with_symbols_is_captured_without() -> None:
    def function(x: mge.Tensor) -> mge.Tensor:
        if not isinstance(x.shape[0], int):
            raise TypeError("no number")
        return x + x.shape[0]

    compiled = made(function)
    for n, count in ((3, 1), (4, 3), (5, 4), (6, 5)):
        np.testing.assert_allclose(compiled(filled(n)).numpy(), filled(n).numpy() + n, rtol=1e-6)
        assert captures(compiled) == count


def test_an_error_of_the_function_is_its_own() -> None:
    compiled = made(lambda x, y: x + y)
    compiled(filled(3), filled(3))
    for n, m in ((4, 5), (6, 4)):
        with pytest.raises(ShapeError, match="broadcast"):
            compiled(filled(n), filled(m))
    for n in (7, 8, 9):
        np.testing.assert_allclose(compiled(filled(n), filled(n)).numpy(), filled(n).numpy() * 2)
    assert len(families(compiled)) == 1, "calls that fail close nothing"


def test_a_function_may_be_told_to_have_a_program_for_each_shape() -> None:
    compiled = made(lambda x: x * 2, dynamic=False)
    for n in (3, 4, 5):
        compiled(filled(n))
    assert captures(compiled) == 3 and not families(compiled)


def test_a_function_may_be_told_that_all_axes_change() -> None:
    compiled = made(lambda x: F.softmax(x, axis=0) + 1, dynamic=True)
    for n, m, count in ((3, 4, 1), (5, 6, 1), (9, 2, 1), (1, 7, 2), (1, 9, 2), (6, 6, 2)):
        x = filled(n, m)
        np.testing.assert_allclose(
            compiled(x).numpy(), F.softmax(x, axis=0).numpy() + 1, rtol=1e-5, atol=1e-6
        )
        assert captures(compiled) == count, (n, m)


def test_an_axis_that_is_open_is_so_whatever_python_numbers_come_with_it() -> None:
    compiled = made(lambda x, factor: x * factor)
    for n, factor, count in ((3, 2, 1), (4, 2, 2), (5, 3, 3), (6, 3, 3), (7, 2, 3), (3, 4, 4)):
        np.testing.assert_allclose(compiled(filled(n), factor).numpy(), filled(n).numpy() * factor)
        assert captures(compiled) == count, (n, factor)


def test_what_is_remembered_of_a_function_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "MOST_FAMILIES", 2)
    monkeypatch.setattr(openings, "MOST_STRUCTURES", 3)
    compiled = made(lambda x, rest: x[0] * 2)
    for i in range(4):
        compiled.graph(filled(3 + i, 2), 0.5 * i)
        compiled.graph(filled(3, 2), [0] * i)
    found = compiled._captures
    assert [len(f) for f in found.families.values()] == [1, 1]
    assert len(found._openings._found) == 3


def test_shapes_that_are_returned_are_numbers() -> None:
    compiled = made(lambda x: {"x": x + 1, "rows": x.shape[0], "twice": (2 * x.shape[0], 7)})
    for n in (3, 4, 5):
        found = compiled(filled(n, 2))
        assert found["rows"] == n and found["twice"] == (2 * n, 7) and type(found["rows"]) is int


def test_there_are_few_symbols() -> None:
    compiled = made(lambda x: x.sum() + x.ndim)
    compiled(filled(2, 3, 4, 5, 6, 7))
    compiled(filled(3, 4, 5, 6, 7, 8))
    assert len(families(compiled)[0].captured.graph.input_types[0].shape) == 6
    named = {n for n in symbols(compiled)[0].strip("()").split(", ") if n.startswith("arg")}
    assert len(named) == MOST_SYMBOLS


def test_gradients_outside_share_plans() -> None:
    weight = mge.Parameter(np.full((4, 3), 0.5, "float32"))
    gm = mge.autodiff.GradManager().attach([weight])
    compiled = made(lambda x: (F.relu(F.matmul(x, weight)) ** 2).sum())
    for n in (3, 4, 5, 9, 40):
        x, found = filled(n, 4), []
        for run in (compiled, compiled._function):
            weight.grad = None
            with gm:
                gm.backward(run(x))
            found.append(weight.grad.numpy())
        np.testing.assert_allclose(*found, rtol=1e-4)
    assert captures(compiled) == 2
    (family,) = families(compiled)
    (gradient,) = family.rule._programs.values()
    assert len(gradient._plans.regimes) == 2 and not gradient._alone


def test_state_is_not_copied_where_extents_change() -> None:
    total = mge.tensor(np.zeros(4, "float32"))

    def add(x: mge.Tensor) -> mge.Tensor:
        total._reset(total + x.sum(axis=0))
        return total * 1

    compiled, where, want = made(add), set(), np.zeros(4, "float32")
    for n in (3, 4, 5, 6, 4, 5, 20, 21, 4, 20):
        x = filled(n, 4)
        want += x.numpy().sum(axis=0)
        np.testing.assert_allclose(compiled(x).numpy(), want, rtol=1e-4, atol=1e-5)
        if n != 3:
            where.add(total._data.__array_interface__["data"][0])
    assert len(where) == 1


def test_state_of_another_shape_is_another_course() -> None:
    """A new extent asks for the shapes of state where a handle was rebound."""
    weight = mge.tensor(np.ones(4, "float32"))
    compiled = made(lambda x: x * weight, dynamic={0: {0: "n"}})
    for n, width in ((3, 4), (5, 4), (6, 1), (7, 1), (8, 4), (9, 4), (10, 1), (11, 1)):
        weight[...] = weight + 1
        if weight.size != width:
            weight._reset(mge.tensor(np.full(width, n, "float32")))
        x = filled(n, 4)
        np.testing.assert_array_equal(compiled(x).numpy(), x.numpy() * weight.numpy())
    assert captures(compiled) == 2 and len(families(compiled)) == 2


def test_gradients_are_looked_at_with_each_extent() -> None:
    weight = mge.Parameter(np.ones(4, "float32"))
    compiled = made(
        lambda x: x * (0 if weight.grad is None else weight.grad), dynamic={0: {0: "n"}}
    )
    given = ((3, None), (4, (4,)), (5, (4,)), (6, None), (7, (4,)), (8, (1, 4)), (9, (1, 4)))
    for n, shape in given:
        weight.grad = None if shape is None else mge.tensor(np.full(shape, n, "float32"))
        x = filled(n, 4)
        np.testing.assert_array_equal(compiled(x).numpy(), x.numpy() * (n if shape else 0))
    assert captures(compiled) == 3


def test_random_numbers_differ_at_every_extent() -> None:
    compiled = made(lambda x: F.dropout(x, 0.5))
    mge.random.seed(3)
    kept = [(compiled(mge.tensor(np.ones(n, "float32"))).numpy() > 0) for n in (100, 200, 300, 300)]
    assert all(0.3 < k.mean() < 0.7 for k in kept) and (kept[2] != kept[3]).any()


def test_steps_of_many_extents_run_in_one_native_loop() -> None:
    total = mge.tensor(0.0)

    def add(x: mge.Tensor) -> mge.Tensor:
        total._reset(total + x.sum())
        return total * 1

    batches = [mge.tensor(np.ones(n, "float32")) for n in (3, 3, 4, 4, 5, 5, 4, 6)]
    found = list(jit.sink(made(add), batches, 4))
    assert [float(x.item()) for x in found] == [14.0, 34.0]
