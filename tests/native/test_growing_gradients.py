"""Gradients of loops whose state grows, and of branches that return what they find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle import optimizer as optim
from treadle.autodiff import GradManager
from treadle.base.errors import NoGradient

Function = Callable[[mge.Tensor], mge.Tensor]
STARTS = ((4, 0.3), (5, 0.0), (3, -2.0), (3, 2.0), (1, 0.5), (7, 0.3))
"""Rows, and what is added to numbers about 0."""


def table(rows: int, shift: float) -> mge.Tensor:
    numbers = np.random.default_rng(rows).standard_normal((rows, 3)) + shift
    return mge.tensor(numbers.astype("float32"))


def chosen(x: mge.Tensor) -> mge.Tensor:
    return x[x[:, 0] > 0]


def branched(x: mge.Tensor) -> mge.Tensor:
    rows, most = jit.cond(
        x[0, 0] > 0,
        lambda: (chosen(x) * 2, chosen(x)[:, 1]),
        lambda: (F.tanh(x[:1]), x[:1, 0]),
    )
    return (rows**2 * F.expand_dims(most, 1)).sum()


def chosen_before(x: mge.Tensor) -> mge.Tensor:
    """Both branches return rows that were found in front of them, of two numbers."""
    few, many = chosen(x), F.concat([x, chosen(x)])
    return (jit.cond(x.sum() > 1, lambda: few, lambda: many * 3) ** 2).sum()


def appended(x: mge.Tensor) -> mge.Tensor:
    last = jit.while_loop(
        lambda i, s: i < 3, lambda i, s: (i + 1, F.concat([s, s[-1:] * x[:1]])), (mge.tensor(0), x)
    )[1]
    return (last**2).sum()


def limited(x: mge.Tensor) -> mge.Tensor:
    (last,) = jit.while_loop(
        lambda s: s.sum() < 30, lambda s: F.concat([s, s[-1:] * x[:1] + 1]), (x,), most=4
    )
    return (last**2).sum()


def scanned(x: mge.Tensor) -> mge.Tensor:
    def turn(s: Any, row: Any) -> Any:
        s = F.concat([s * 0.9, row.reshape(1, -1)])
        return s, (F.softmax(s @ row.reshape(-1, 1), 0) * s).sum(0)

    (last,), (rows,) = jit.scan(turn, (x[:1],), (x,))
    return (rows**2).sum() + last.sum()


def decoded(x: mge.Tensor) -> mge.Tensor:
    w, none = x.T @ x * 0.1, F.zeros((0, 3))

    def turn(i: Any, keys: Any, values: Any, token: Any) -> Any:
        keys, values = F.concat([keys, token @ w]), F.concat([values, token * 0.5])
        return i + 1, keys, values, F.softmax(token @ keys.T, 1) @ values

    last = jit.while_loop(lambda i, *_: i < 4, turn, (mge.tensor(0), none, none, x[:1]))[3]
    return (last**2).sum()


def filtered(x: mge.Tensor) -> mge.Tensor:
    """Each turn finds how many rows there are in the next one."""

    def turn(i: Any, rows: Any) -> Any:
        return i + 1, (rows * x.sum())[rows[:, 0] > 0.3]

    return (jit.while_loop(lambda i, _: i < 3, turn, (mge.tensor(0), x))[1] ** 2).sum()


def nested(x: mge.Tensor) -> mge.Tensor:
    def turn(i: Any, s: Any) -> Any:
        return i + 1, jit.cond(s.sum() > 0, lambda: chosen(s) * 0.5, lambda: F.concat([s, x]))

    return (jit.while_loop(lambda i, s: i < 3, turn, (mge.tensor(0), x))[1] ** 2).sum()


def uncounted(x: mge.Tensor) -> mge.Tensor:
    """A state that keeps its extents, and turns that nobody counts."""
    (last,) = jit.while_loop(lambda s: (s**2).sum() < 50, lambda s: s * 1.5 + x * 0.1, (x,))
    return (last**2).sum()


def scaled(x: mge.Tensor) -> mge.Tensor:
    """No loop: what is broadcast along rows that a mask leaves."""
    rows = chosen(x)
    return (rows * rows[:, 1:2] / (1 + F.abs(rows).sum(1, keepdims=True)) + rows.sum(0)).sum()


FUNCTIONS = [
    branched, chosen_before, appended, limited, scanned, decoded, filtered, nested, uncounted,
    scaled,
]  # fmt: skip


def gradient(f: Function, x: mge.Tensor) -> mge.Tensor:
    manager = GradManager().attach([x])
    with manager:
        manager.backward(f(x))
    return x.grad


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_compiled_gradients_are_those_of_python(f: Function) -> None:
    inside, across = jit.compile(lambda x: gradient(f, x)), jit.compile(f)
    for start in STARTS:
        want = gradient(f, table(*start)).numpy()
        for made in (inside(table(*start)), gradient(across, table(*start))):
            np.testing.assert_allclose(made.numpy(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("f", [appended, scanned, decoded], ids=lambda f: f.__name__)
def test_traced_gradients_are_those_of_python(f: Function) -> None:
    traced = jit.trace(lambda x: gradient(f, x))
    for start in (STARTS[0], STARTS[1], STARTS[0]):
        want = gradient(f, table(*start)).numpy()
        np.testing.assert_allclose(traced(table(*start)).numpy(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_compiled_gradients_are_slopes(f: Function) -> None:
    compiled, x = jit.compile(lambda x: gradient(f, x)), table(4, 0.3).numpy()
    step = np.random.default_rng(9).standard_normal(x.shape).astype("float32") * 1e-3
    slope = (f(mge.tensor(x + step)).item() - f(mge.tensor(x - step)).item()) / 2
    found = (compiled(mge.tensor(x)).numpy() * step).sum()
    assert slope == pytest.approx(found, rel=2e-2, abs=1e-5)


def test_a_training_step_through_a_growing_cache() -> None:
    def step_of(w: mge.Parameter) -> Function:
        manager, optimizer = GradManager().attach([w]), optim.Adam([w], lr=0.01)

        def step(x: mge.Tensor) -> mge.Tensor:
            with manager:
                loss = scanned(x @ w) + branched(x @ w)
                manager.backward(loss)
            optimizer.step().clear_grad()
            return loss

        return step

    weights = [mge.Parameter(table(3, 0.0).numpy()) for _ in range(2)]
    steps = step_of(weights[0]), jit.compile(step_of(weights[1]))
    for start in STARTS:
        want, got = (step(table(*start)) for step in steps)
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4)
    np.testing.assert_allclose(weights[1].numpy(), weights[0].numpy(), rtol=1e-4, atol=1e-5)


def test_turns_backwards_share_programs_too() -> None:
    compiled = jit.compile(lambda x: gradient(appended, x))
    for rows in range(2, 15):
        compiled(table(rows, 0.3))
    made = {id(v.runner.phases): v.runner.phases for v in compiled.variants if v.runner is not None}
    assert len(made) <= 3
    regions = [r for phases in made.values() for r in phases._regions.values()]
    parts = [p for r in regions for p in r.phases.programs]
    assert len(parts) > 4 and max(p.count for p in parts) <= 3


def test_a_second_gradient_is_refused_by_name() -> None:
    def second(x: mge.Tensor) -> mge.Tensor:
        outer, inner = GradManager().attach([x]), GradManager().attach([x])
        with outer:
            with inner:
                inner.backward(appended(x))
            outer.backward((x.grad**2).sum())
        return x.grad

    with pytest.raises(NoGradient, match="is a gradient of a loop whose turns"):
        jit.compile(second)(table(4, 0.3))
