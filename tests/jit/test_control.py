"""Control flow in programs: equal to the same functions run eagerly, and differentiated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.jit import TraceError

X = np.array([1.0, -2.0, 3.0], "float32")
W = mge.tensor(np.array([2.0, 0.5, -1.0], "float32"))


def branch(x: mge.Tensor) -> Any:
    return mge.jit.cond(
        x.sum() > 0,
        lambda x: {"y": x * W, "n": mge.tensor(1)},
        lambda x: {"y": -x + 1, "n": mge.tensor(2)},
        x,
    )


def closure(x: mge.Tensor) -> Any:
    big = x * 3
    return mge.jit.cond(x[0] > 0, lambda: big + W, lambda: x - 1)


def nested(x: mge.Tensor) -> Any:
    def outer() -> mge.Tensor:
        return mge.jit.cond(x[1] > 0, lambda: x * W, lambda: x + W)

    return mge.jit.cond(x[0] > 0, outer, lambda: x)


def power(x: mge.Tensor) -> Any:
    return mge.jit.while_loop(
        lambda n, y: n < 4, lambda n, y: (n + 1, y * x + W), (mge.tensor(0), x)
    )


def never(x: mge.Tensor) -> Any:
    return mge.jit.while_loop(lambda y: y.sum() > 1e9, lambda y: y * 2, (x,))


def running(x: mge.Tensor) -> Any:
    return mge.jit.scan(lambda s, v: (s * 0.5 + v, s * v * W), (mge.tensor(1.0),), (x,))


def counted(x: mge.Tensor) -> Any:
    return mge.jit.scan(lambda s: (s * 2 + x.sum(),), (x,), length=3)


def fibonacci(x: mge.Tensor) -> Any:
    return mge.jit.while_loop(
        lambda n, a, b: n < 5, lambda n, a, b: (n + 1, b, a + b), (mge.tensor(0), x, x)
    )


def scan_in_cond(x: mge.Tensor) -> Any:
    return mge.jit.cond(
        x[0] > 0,
        lambda: mge.jit.scan(lambda s, v: (s + v, s), (x[0],), (x,))[0][0],
        lambda: x[1] * 1,
    )


FUNCTIONS: dict[str, Callable[[mge.Tensor], Any]] = {
    f.__name__: f
    for f in (
        branch,
        closure,
        nested,
        power,
        never,
        running,
        counted,
        fibonacci,
        scan_in_cond,
    )
}


def numbers(result: Any) -> list[Any]:
    leaves, _ = mge.base.tree.flatten(result)
    return [t.tolist() for t in leaves]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_programs_equal_python(name: str, sign: int) -> None:
    function = FUNCTIONS[name]
    compiled = mge.jit.compile(function)
    x = mge.tensor(X * sign)
    assert numbers(compiled(x)) == numbers(function(x))
    assert numbers(compiled(-x)) == numbers(function(-x))
    assert len(compiled.variants) == 1


@pytest.mark.parametrize("name", ["branch", "closure", "nested", "running", "counted"])
def test_control_flow_is_differentiated(name: str) -> None:
    def gradient(x: mge.Tensor) -> mge.Tensor:
        gm = GradManager().attach(x)
        with gm:
            leaves, _ = mge.base.tree.flatten(FUNCTIONS[name](x))
            total = sum((t.sum() for t in leaves if t.dtype == "float32"), mge.tensor(0.0))
            gm.backward(total)
        found = x.grad
        x.grad = None
        return found

    for sign in (1, -1):
        want = gradient(mge.tensor(X * sign))
        got = mge.jit.compile(gradient)(mge.tensor(X * sign))
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)


def tangled(x: mge.Tensor) -> mge.Tensor:
    """A scan, a branch and a loop whose gradients depend on what they computed."""
    (s,), (rows,) = mge.jit.scan(
        lambda s, v: (F.sin(s) * v + s * 0.5, s * v * W), (mge.tensor(1.0),), (x,)
    )
    y = mge.jit.cond(s > 0, lambda: (x * x * x).sum(), lambda: F.cos(x).sum())
    return s + (rows * rows).sum() + y + limited(x, 5).sum()


def limited(x: mge.Tensor, most: int) -> mge.Tensor:
    """Squares as long as they are small; of 0.5 and less, no square would end it."""
    return mge.jit.while_loop(
        lambda n, y: F.abs(y).max() < 3.0, lambda n, y: (n + 1, y * y * x + W), (0 * x[0], x), most
    )[1]


def derivative(function: Callable[[mge.Tensor], mge.Tensor], order: int) -> Callable[..., Any]:
    """The gradient of a function's sum, of the sum of its gradient's squares, and so on."""
    if order == 0:
        return function
    inner = derivative(function, order - 1)

    def gradient(x: mge.Tensor) -> mge.Tensor:
        gm = GradManager().attach(x)
        with gm:
            y = inner(x)
            gm.backward((y if order == 1 else y * y).sum())
        found, x.grad = x.grad, None
        return found

    return gradient


@pytest.mark.parametrize("order", [1, 2, pytest.param(3, marks=pytest.mark.long)])
def test_control_flow_is_differentiated_again(order: int) -> None:
    for point in ([0.3, 1.2, -0.7], [-0.4, 0.1, 0.2]):
        want = derivative(tangled, order)(mge.tensor(point))
        got = mge.jit.compile(derivative(tangled, order))(mge.tensor(point))
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4)


@pytest.mark.parametrize("most", [0, 1, 2, 40, 600])
def test_a_loop_with_most_turns_has_gradients(most: int) -> None:
    """They are those of the loop written out, for as many turns as were taken."""
    step = mge.jit.compile(derivative(lambda x: limited(x, most), 1))
    for scale in (0.1, 0.9, 2.0):
        x = mge.tensor(X * scale)
        want = derivative(lambda x: limited(x, most), 1)(mge.tensor(X * scale))
        found = mge.jit.compile(lambda x: limited(x, most))(x)
        np.testing.assert_allclose(found.numpy(), limited(x, most).numpy(), rtol=1e-5)
        np.testing.assert_allclose(step(x).numpy(), want.numpy(), rtol=1e-4)


def test_turns_that_are_not_taken_leave_no_nan() -> None:
    """The body divides by what has become zero when the loop has ended."""

    def loop(x: mge.Tensor) -> mge.Tensor:
        return mge.jit.while_loop(
            lambda n, y: n > 0, lambda n, y: (n - 1, y / n), (mge.tensor(3.0), x), 8
        )[1]

    found = mge.jit.compile(derivative(loop, 1))(mge.tensor(X))
    np.testing.assert_allclose(found.numpy(), np.full(3, 1 / 6), rtol=1e-6)
    with pytest.raises(ValueError, match="most should be 0 or more, got -1"):
        mge.jit.while_loop(lambda y: y > 0, lambda y: y, (mge.tensor(1.0),), -1)


def test_an_open_loop_has_a_first_gradient() -> None:
    def gradient(x: mge.Tensor) -> mge.Tensor:
        gm = GradManager().attach(x)
        with gm:
            gm.backward(power(x)[1].sum())
        return x.grad

    found, want = (f(mge.tensor(X)).numpy() for f in (mge.jit.compile(gradient), gradient))
    np.testing.assert_allclose(found, want, rtol=1e-6)


def test_what_only_the_other_branch_uses_has_no_gradient_or_one_of_zeros() -> None:
    """Op by op the other branch does not exist; docs/jit.md says so."""
    w = mge.Parameter([2.0, 3.0, 4.0])

    def gradient(x: mge.Tensor) -> mge.Tensor | None:
        with GradManager().attach([x, w]) as gm:
            gm.backward(mge.jit.cond(x.sum() > 0, lambda: x * w, lambda: x + 1).sum())
        found: mge.Tensor | None = w.grad
        w.grad = None
        return found

    taken, left = mge.tensor(np.ones(3, np.float32)), mge.tensor(np.full(3, -1, np.float32))
    step = mge.jit.compile(gradient)
    assert gradient(left) is None
    np.testing.assert_array_equal(step(left).numpy(), np.zeros(3))
    np.testing.assert_array_equal(step(taken).numpy(), np.ones(3))


def test_branches_must_agree() -> None:
    f = mge.jit.compile(lambda x: mge.jit.cond(x[0] > 0, lambda: x, lambda: x.sum()))
    with pytest.raises(TraceError, match="branches return different things"):
        f(mge.tensor(X))


def test_a_branch_does_not_rebind_what_is_outside() -> None:
    def f(x: mge.Tensor) -> mge.Tensor:
        y = x * 2

        def then() -> mge.Tensor:
            y._reset(y + 1)
            return y

        return mge.jit.cond(x[0] > 0, then, lambda: y)

    with pytest.raises(TraceError, match="rebinds a tensor from outside"):
        mge.jit.compile(f)(mge.tensor(X))


def test_a_scan_needs_a_length() -> None:
    with pytest.raises(ValueError, match="number of turns is unclear"):
        mge.jit.scan(lambda s: (s,), (mge.tensor(0.0),))


def test_a_scan_of_no_turns_stacks_no_rows() -> None:
    """Of the types that rows have, whether it is compiled or not; the body draws nothing."""

    def run(x: mge.Tensor) -> Any:
        def turn(s: mge.Tensor, e: mge.Tensor) -> tuple[mge.Tensor, ...]:
            kept = s[:2] * mge.random.uniform(size=(2,)).astype("float16")
            return s + e + outside, kept, e > 0, s.sum()

        state, rows = mge.jit.scan(turn, (mge.tensor(np.ones(3, np.float32)),), (x,))
        return *state, *rows

    outside = mge.tensor(np.ones(3, np.float32))
    for make in (run, mge.jit.compile(run)):
        mge.random.seed(3)
        before = mge.random.uniform(size=(2,)).numpy()
        mge.random.seed(3)
        found = make(mge.tensor(np.ones((0, 3), np.float32)))
        assert [t.shape for t in found] == [(3,), (0, 2), (0, 3), (0,)]
        wanted = ["float32", "float32", "bool", "float32"]
        assert [np.dtype(t.dtype).name for t in found] == wanted
        assert (mge.random.uniform(size=(2,)).numpy() == before).all()


def test_regions_pass_the_stages() -> None:
    """Folding and sharing reach into the bodies, and their kernels are in the report."""
    compiled = mge.jit.compile(power)
    stages = compiled.compile(mge.tensor(X))
    assert stages.optimized is not None
    text = str(stages.report)
    assert "less" in text
    assert "mul" in text


def test_one_tensor_is_no_sequence() -> None:
    with pytest.raises(TraceError, match="sequences of tensors"):
        mge.jit.scan(lambda s, x: (s + x,), mge.tensor([1.0]), (mge.tensor([1.0]),))


def test_the_number_of_turns_is_a_pin() -> None:
    f = mge.jit.compile(dynamic={0: {0: "n"}})(
        lambda x: mge.jit.scan(lambda s, e: (s + e,), (x[0],), (x,))[0][0]
    )
    assert [f(mge.tensor(np.ones(n))).item() for n in (2, 5, 3, 5)] == [3.0, 6.0, 4.0, 6.0]
    assert len(f.variants) == 3
    top = mge.jit.compile(dynamic={0: {0: "n"}})(lambda x: mge.functional.topk(x, 2)[0])
    assert top(mge.tensor([1.0, 3.0, 2.0])).tolist() == [3.0, 2.0]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("state", "body", "said"),
    [
        ("flat", lambda s, x: ((s + x, s), s), "the body returns something other than tensors"),
        ("flat", lambda s, x: (s + x, (s, s)), "the body returns something other than tensors"),
        ("flat", lambda s, x: None, "the body returns something other than tensors"),
        ("nested", lambda s, x: (s, x), "state is not a flat sequence of tensors"),
        ("number", lambda s, x: (s, x), "state is not a flat sequence of tensors"),
    ],
)
def test_a_scan_wants_flat_tensors_and_says_so(
    compiled: bool, state: str, body: Callable[..., Any], said: str
) -> None:
    def run(x: mge.Tensor) -> Any:
        first = {"flat": (x[0],), "nested": ((x[0], x[0]),), "number": (0.0,)}[state]
        return mge.jit.scan(body, first, (x,))

    x = mge.tensor([1.0, 2.0, 3.0])
    with pytest.raises(TraceError, match=said):
        (mge.jit.compile(run) if compiled else run)(x)


def test_a_scan_over_rows_that_data_choose() -> None:
    def function(x: mge.Tensor) -> Any:
        chosen = x[x > 0]
        (s,), (rows,) = mge.jit.scan(lambda s, v: (s * 0.5 + v, s * v), (x[0],), (chosen,))
        return s, rows, rows.sum() + s

    def gradient(x: mge.Tensor) -> mge.Tensor:
        gm = GradManager().attach(x)
        with gm:
            gm.backward(function(x)[2])
        found: mge.Tensor = x.grad
        x.grad = None
        return found

    for made in (function, gradient):
        compiled = mge.jit.compile(made)
        for values in ([1.0, -2.0, 3.0, 4.0], [-1.0, -2.0, 3.0, -4.0]):
            want, got = made(mge.tensor(values)), compiled(mge.tensor(values))
            np.testing.assert_allclose(
                np.concatenate([np.ravel(n) for n in numbers(got)]),
                np.concatenate([np.ravel(n) for n in numbers(want)]),
                rtol=1e-6,
            )
