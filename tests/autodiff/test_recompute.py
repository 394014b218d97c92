"""Regions that backward computes again: the same bits, less memory."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import jit, optimizer
from treadle.autodiff import Function, GradManager, recompute


class Block(M.Module):
    """A residual block with a norm, dropout and branches."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = M.Linear(8, 16)
        self.norm = M.LayerNorm(16)
        self.fc2 = M.Linear(16, 8)
        self.drop = M.Dropout(0.25)

    def forward(self, x: Any) -> Any:
        y = F.gelu(self.norm(self.fc1(x)))
        return x + self.drop(self.fc2(y))


def net(*, again: bool) -> tuple[M.Module, Any]:
    mge.random.seed(3)
    model = M.Sequential(*[Block() for _ in range(3)], M.Linear(8, 1))
    if again:
        for layer in list(model)[:3]:
            layer.forward = recompute(layer.forward)
    return model, mge.tensor(np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32))


def gradients(model: M.Module, x: Any, *, compiled: bool = False) -> list[np.ndarray[Any, Any]]:
    gm = GradManager().attach(model.parameters())

    def step(x: Any) -> Any:
        with gm:
            loss = (model(x) ** 2).mean()
            gm.backward(loss)
        return loss

    mge.random.seed(11)
    loss = (jit.compile(step) if compiled else step)(x)
    return [loss.numpy(), *[p.grad.numpy() for p in model.parameters()]]


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_are_the_same_bits(compiled: bool) -> None:
    plain = gradients(*net(again=False), compiled=compiled)
    again = gradients(*net(again=True), compiled=compiled)
    assert len(plain) == len(again)
    for a, b in zip(plain, again, strict=True):
        np.testing.assert_array_equal(a, b)


def test_inner_values_are_let_go() -> None:
    seen: list[weakref.ref[Any]] = []

    def inner(x: Any) -> Any:
        y = F.exp(x)
        seen.append(weakref.ref(y._data))
        return y * y

    x = mge.tensor(np.ones(1000, np.float32))
    gm = GradManager().attach(x)
    with gm:
        y = recompute(inner)(x)
        gc.collect()
        assert seen[0]() is None
        gm.backward(y)
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.exp(2.0), rtol=1e-6)
    with gm:
        y = inner(x)
        gc.collect()
        assert seen[1]() is not None


def test_side_effects_happen_once() -> None:
    norm, calls = M.BatchNorm1d(3), []

    @recompute
    def inner(x: Any) -> Any:
        calls.append(1)
        return norm(x)

    x = mge.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    gm = GradManager().attach(x)
    with gm:
        gm.backward(inner(x))
    other = M.BatchNorm1d(3)
    other(x)
    assert calls == [1]
    np.testing.assert_array_equal(norm.running_mean.numpy(), other.running_mean.numpy())


def test_several_results_in_any_nesting() -> None:
    @recompute
    def inner(x: Any, scale: float) -> Any:
        return {"a": x * scale, "b": [x**2, "text", x]}

    x = mge.tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    with gm:
        out = inner(x, scale=3.0)
        gm.backward((out["a"] * out["b"][0] * out["b"][2]).sum())
    assert out["b"][1] == "text"
    np.testing.assert_allclose(x.grad.numpy(), 12 * x.numpy() ** 3, rtol=1e-6)


def test_higher_orders() -> None:
    inner = recompute(lambda x: F.sin(x) * x)

    def second(function: Any) -> np.ndarray[Any, Any]:
        x = mge.tensor([0.5, 1.5])
        outer, gm = GradManager().attach(x), GradManager().attach(x)
        with outer:
            with gm:
                gm.backward(function(x))
            first = x.grad
            x.grad = None
            outer.backward(first)
        return x.grad.numpy()

    np.testing.assert_array_equal(second(inner), second(lambda x: F.sin(x) * x))


def test_regions_inside_regions_and_outside_of_recordings() -> None:
    inner = recompute(lambda x: F.exp(x))
    outer = recompute(lambda x: inner(x) * 2)
    x = mge.tensor([0.0])
    np.testing.assert_array_equal(outer(x).numpy(), [2.0])
    gm = GradManager().attach(x)
    with gm:
        gm.backward(outer(x))
    np.testing.assert_array_equal(x.grad.numpy(), [2.0])


def test_user_gradients_inside_are_kept() -> None:
    class Triple(Function):
        """Three times, with a gradient that tells on itself."""

        def forward(self, x: Any) -> Any:
            return x * 3

        def backward(self, dy: Any) -> Any:
            return dy * 7

    x = mge.tensor([1.0])
    gm = GradManager().attach(x)
    with gm:
        gm.backward(recompute(lambda x: Triple()(x) * 2)(x))
    np.testing.assert_array_equal(x.grad.numpy(), [14.0])


def test_detached_values_stay_detached() -> None:
    x = mge.tensor([2.0])
    gm = GradManager().attach(x)
    with gm:
        gm.backward(recompute(lambda x: x * x.detach())(x))
    np.testing.assert_array_equal(x.grad.numpy(), [2.0])


def test_errors_leave_the_recording_as_it_was() -> None:
    def broken(x: Any) -> Any:
        raise RuntimeError("mine")

    x = mge.tensor([2.0])
    gm = GradManager().attach(x)
    with gm:
        with pytest.raises(RuntimeError, match="mine"):
            recompute(broken)(x)
        gm.backward(x * x)
    np.testing.assert_array_equal(x.grad.numpy(), [4.0])


def test_a_compiled_step_trains_the_same() -> None:
    def losses(again: bool) -> list[float]:
        model, x = net(again=again)
        gm = GradManager().attach(model.parameters())
        opt = optimizer.SGD(model.parameters(), lr=0.05, momentum=0.9)

        @jit.compile
        def step(x: Any) -> Any:
            with gm:
                loss = (model(x) ** 2).mean()
                gm.backward(loss)
            opt.step().clear_grad()
            return loss

        mge.random.seed(5)
        return [step(x).item() for _ in range(5)]

    assert losses(True) == losses(False)


def test_a_compiled_step_needs_less_memory() -> None:
    def peak(again: bool) -> int:
        mge.random.seed(0)

        def block(x: Any, w: Any) -> Any:
            for _ in range(4):
                x = F.tanh(x) @ w
            return x

        run = recompute(block) if again else block
        weights = [mge.tensor(np.eye(64, dtype=np.float32)) for _ in range(6)]
        gm = GradManager().attach(weights)

        @jit.compile
        def step(x: Any) -> Any:
            with gm:
                for w in weights:
                    x = run(x, w)
                gm.backward(x.sum())
            return x.sum()

        x = mge.tensor(np.ones((2048, 64), np.float32))
        plan = step.compile(x).planned()
        return plan.memory.peak

    assert peak(True) < 0.7 * peak(False)
