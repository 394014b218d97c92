"""Scans of many turns are loops in the program, not steps written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.backends.program import Jump, Run, Together
from treadle.base import dtype as dt
from treadle.base.symbol import Dim, symbol
from treadle.base.types import TensorType
from treadle.engine.extents.plans import Plans
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface
from treadle.graph.builder import GraphBuilder, trace_body
from treadle.graph.evaluate import evaluate, specialize
from treadle.ops.control import Scan


@pytest.mark.parametrize("turns", [513, 100_000])
def test_many_turns_are_a_loop(turns: int) -> None:
    """Written out, 100,000 turns took minutes and more than a gigabyte."""
    rng = np.random.default_rng(0)
    x, s = (rng.standard_normal(shape).astype("float32") for shape in ((turns, 3), (1, 3)))
    w = mge.Parameter(rng.standard_normal((3, 3)).astype("float32") * 0.2)
    gm = GradManager().attach(w)

    def body(s: Any, x: Any) -> Any:
        state = F.tanh(F.matmul(s, w)) * 0.5 + x
        return state, (state * 2).sum(), x > 0

    def run(s: Any, x: Any) -> Any:
        with gm:
            (last,), (sums, signs) = mge.jit.scan(body, (s,), (x,))
            gm.backward((sums * sums).mean() + last.sum())
        return last, sums, signs

    made = mge.jit.compile(options=Options(check=True))(run)
    last, sums, signs = made(mge.tensor(s), mge.tensor(x))
    assert len(made.lower(mge.tensor(s), mge.tensor(x)).planned().steps) < 100
    state, expected = s.astype("float64"), np.empty(turns)
    for i in range(turns):
        state = np.tanh(state @ w.numpy().astype("float64")) * 0.5 + x[i]
        expected[i] = 2 * state.sum()
    np.testing.assert_allclose(last.numpy(), state, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(sums.numpy(), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(signs.numpy(), x > 0)
    assert np.isfinite(w.grad.numpy()).all()
    if turns < 1000:
        (grad,) = [w.grad.numpy()]
        w.grad = None
        run(mge.tensor(s), mge.tensor(x))
        np.testing.assert_allclose(grad, w.grad.numpy(), rtol=1e-3, atol=1e-4)


def test_turns_change_the_state_where_it_is() -> None:
    """What a turn uses from outside is carried, but not copied; only what a product reads is."""
    w = mge.tensor(np.eye(3, dtype="float32") * 0.5)

    def scanned(s: Any, x: Any) -> Any:
        return mge.jit.scan(lambda s, x: (F.exp(s @ w) * 0.1 + x,), (s,), (x,))[0][0]

    def looped(s: Any, x: Any) -> Any:
        """The two values change places, for which one is kept elsewhere."""
        turn = mge.jit.while_loop
        return turn(lambda s, t: s.sum() < 9, lambda s, t: (t, s * 3 + x[0] @ w), (s, s))

    given = [mge.tensor(np.full(n, 0.25, "float32")) for n in ((1, 3), (600, 1, 3))]
    for f, most in ((scanned, 1), (looped, 2)):
        made = mge.jit.compile(options=Options(check=True))(f)
        for got, want in zip(made(*given), f(*given), strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5)
        steps = made.lower(*given).planned().steps
        start = next(i for i, s in enumerate(steps) if isinstance(s, Jump))
        runs = [r for s in steps[start:] for r in (s.runs if isinstance(s, Together) else [s])]
        assert sum(r.label == "copy" for r in runs if isinstance(r, Run)) <= most


@pytest.mark.parametrize("turns", [0, 1, 5, 600])
def test_turns_may_go_backwards(turns: int) -> None:
    """From the last entry to the first, written out and as a loop, of known and of open length."""
    row = TensorType(dt.float32, (2,))
    body = trace_body(lambda s, r: (s * 0.5 + r, s * r), [row, row])
    x = np.random.default_rng(turns).standard_normal((turns, 2)).astype("float32")
    s = np.ones(2, "float32")
    lengths: tuple[Dim, ...] = (turns, symbol("n", 0))
    for length in lengths:
        builder = GraphBuilder("g")
        rows = builder.input(TensorType(dt.float32, (length, 2)), "x")
        op = Scan(body, 1, length, True)
        builder.output(*builder.apply(op, (builder.input(row, "s"), rows)))
        graph = builder.build()
        wanted = evaluate(specialize(graph, {"n": turns}), [x, s])
        if isinstance(length, int):
            found = Stages(graph, options=Options(check=True)).compile().run([x, s])
        elif turns < 2:
            continue
        else:
            shared = Plans(graph, Options(check=True), Interface((False, False))).at({"n": turns})
            assert shared is not None
            found = shared[1].run([x, s])
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
