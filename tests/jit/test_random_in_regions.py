"""Random numbers in branches, loops and behind masks: programs draw what Python draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.random as R
from treadle.autodiff import GradManager
from treadle.base import tree

Tensor = mge.Tensor
X = np.array([1.0, -2.0, 3.0], "float32")
OWN = R.RNG(5)
SEEDED = (3, 2**32 - 2)
"""A few draws on, the low word of the counter overflows."""


def loop(x: Tensor) -> Any:
    before = R.uniform(size=(3,))
    y = mge.jit.while_loop(
        lambda n, y: n < 3,
        lambda n, y: (n + 1, y + R.uniform(size=x.shape) + OWN.uniform(size=(3,))),
        (mge.tensor(0), x),
    )
    return before, y, R.uniform(size=(3,))


def branches(x: Tensor) -> Any:
    y = mge.jit.cond(x.sum() > 0, lambda: x + R.uniform(size=(3,)), lambda: x * 2)
    z = mge.jit.cond(x[0] < 0, lambda: x + OWN.uniform(size=(3,)), lambda: x + R.normal(size=(3,)))
    return y, z, R.uniform(size=(5,)), OWN.uniform(size=(2,))


def condition(x: Tensor) -> Any:
    n = mge.jit.while_loop(
        lambda n: R.uniform(size=())[()] < 0.8, lambda n: (n + R.uniform(size=()),), (x[0],)
    )
    return n, R.uniform(size=(2,))


def nested(x: Tensor) -> Any:
    def body(n: Tensor, y: Tensor) -> Any:
        def rows() -> Tensor:
            turn = mge.jit.scan(lambda s, v: (s + R.uniform(size=()) * v,), (y,), (y,))
            return turn[0][0] + OWN.uniform(size=(3,))

        return n + 1, mge.jit.cond(y[0] > 0, lambda: y - R.uniform(size=(3,)), rows)

    return mge.jit.while_loop(lambda n, y: n < 4, body, (mge.tensor(0), x)), R.uniform(size=(2,))


def masks(x: Tensor) -> Any:
    def body(n: Tensor, y: Tensor) -> Any:
        chosen = y[y > R.uniform(size=(3,))]
        return n + 1, y + F.dropout(chosen, 0.5).sum() - R.uniform(size=(3,))

    y = mge.jit.while_loop(lambda n, y: n < 2, body, (mge.tensor(0), x))
    return y, F.dropout(x[x > 0], 0.5), R.uniform(size=(2,))


def gradient(x: Tensor) -> Any:
    gm = GradManager().attach(x)
    with gm:
        (s,), _ = mge.jit.scan(lambda s, v: (s * 0.5 + v * v * R.uniform(size=()),), (x[0],), (x,))
        c = mge.jit.cond(x.sum() > 0, lambda: F.dropout(x * x, 0.5), lambda: x * 3)
        (y,) = mge.jit.while_loop(
            lambda y: F.abs(y).max() < 4, lambda y: (y * 1.5 + F.dropout(y, 0.5),), (x,), 3
        )
        gm.backward(c.sum() + s + y.sum())
    found, x.grad = x.grad, None
    return found, R.uniform(size=(2,))


def drawn(function: Callable[[Tensor], Any]) -> list[Any]:
    """Results of three calls, and where the generators are then."""
    R.default_generator().set_state(SEEDED)
    OWN.seed(9)
    calls = [tree.flatten(function(mge.tensor(X * sign)))[0] for sign in (1, -1, 1)]
    states = [np.array(g.get_state()) for g in (R.default_generator(), OWN)]
    return [*(t.numpy() for leaves in calls for t in leaves), *states]


@pytest.mark.parametrize(
    "function", [loop, branches, condition, nested, masks, gradient], ids=lambda f: f.__name__
)
def test_programs_draw_what_python_draws(function: Callable[[Tensor], Any]) -> None:
    want = drawn(function)
    for program in (mge.jit.compile(function), mge.jit.trace(function)):
        for w, g in zip(want, drawn(program), strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)


def test_sink_draws_what_single_steps_draw() -> None:
    total = mge.tensor(np.zeros(3, "float32"))

    @mge.jit.compile
    def step(x: Tensor) -> Tensor:
        (y,) = mge.jit.scan(lambda y: (y + R.uniform(size=(3,)),), (x,), length=2)[0]
        total._reset(total + y)
        return total * 1

    mge.random.seed(1)
    want = [step(mge.tensor(X * i)).numpy() for i in range(4)][-1]
    total._reset(mge.tensor(np.zeros(3, "float32")))
    mge.random.seed(1)
    batches = [mge.tensor(X * i) for i in range(4)]
    got = [y.numpy() for y in mge.jit.sink(step, batches, 2)][-1]
    np.testing.assert_array_equal(got, want)


def test_a_seed_given_after_a_run_holds() -> None:
    program = mge.jit.compile(loop)
    program(mge.tensor(X))
    R.seed(4)
    assert R.default_generator().get_state() == (4, 0)
