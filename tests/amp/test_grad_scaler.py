"""The rule of the loss scale, eager and compiled."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle.jit as jit
from treadle.amp import GradScaler, Xla_GradScaler
from treadle.autodiff import GradManager
from treadle.optimizer import LAMB, SGD, Adam
from treadle.tensor import Parameter, Tensor


def _trained(make: Callable[..., Any], inputs: list[float], *, compiled: bool) -> Any:
    """Parameter, scale and count after each step on w * w * x, and the optimizer's state."""
    weight = Parameter(np.array([1.0, 2.0, 3.0], np.float32))
    manager, optimizer = GradManager().attach(weight), make([weight])
    scaler = GradScaler(init_scale=8, growth_interval=2)

    def step(x: Tensor) -> None:
        with manager:
            scaler.backward(manager, (weight * weight * x).sum())
        optimizer.step()
        optimizer.clear_grad()

    run = jit.compile(step) if compiled else step
    log = []
    for x in inputs:
        run(Tensor(np.float32(x)))
        log.append((weight.tolist(), scaler.scale_factor, scaler._growth_tracker))
    return log, optimizer.state_dict()["state"][0], scaler


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD": lambda p: SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda p: Adam(p, 0.1),
    "LAMB": lambda p: LAMB(p, 0.1, weight_decay=0.01),
}


@pytest.mark.parametrize("compiled", [False, True])
def test_growth_and_backoff(compiled: bool) -> None:
    log, _, scaler = _trained(
        OPTIMIZERS["SGD"], [1.0, 1.0, np.inf, 1.0, np.nan, 1.0, 1.0], compiled=compiled
    )
    assert [scale for _, scale, _ in log] == [8.0, 16.0, 8.0, 8.0, 4.0, 4.0, 8.0]
    assert [count for _, _, count in log] == [1, 0, 0, 1, 0, 1, 0]
    assert log[2][0] == log[1][0]  # A step without usable gradients changes nothing.
    assert log[4][0] == log[3][0]
    assert log[5][0] != log[4][0]
    assert not scaler._found_non_finite


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_compiled_steps_equal_eager_ones(name: str) -> None:
    inputs = [1.0, np.inf, 0.5, 2.0, np.nan, 1.0]
    eager, state, _ = _trained(OPTIMIZERS[name], inputs, compiled=False)
    compiled, again, _ = _trained(OPTIMIZERS[name], inputs, compiled=True)
    for (w, scale, count), (v, *rest) in zip(eager, compiled, strict=True):
        np.testing.assert_allclose(w, v, rtol=1e-5)
        assert rest == [scale, count]
    for key, value in state.items():
        np.testing.assert_allclose(value, again[key], rtol=1e-5, atol=1e-7)


def test_gradients_are_unscaled_in_place() -> None:
    weight = Parameter([1.0, 2.0])
    manager, scaler = GradManager().attach(weight), GradScaler(init_scale=1024)
    with manager:
        scaler.backward(manager, weight * weight, dy=Tensor([1.0, 10.0]), unscale_grad=False)
    grad = weight.grad
    assert grad.tolist() == [2048.0, 40960.0]
    assert scaler.unscale([weight]) is scaler
    assert weight.grad is grad
    assert grad.tolist() == [2.0, 40.0]
    assert scaler._growth_tracker == 0
    scaler.update()
    assert scaler._growth_tracker == 1


def test_several_outputs_and_none() -> None:
    weight = Parameter([1.0])
    manager, scaler = GradManager().attach(weight), GradScaler()
    with manager:
        scaler.backward(manager, [weight * 2.0, weight * 3.0])
    assert weight.grad.tolist() == [5.0]
    with manager:
        scaler.backward(manager)
    assert weight.grad.tolist() == [5.0 / 16.0]  # The old gradient was attached, too.


def test_the_three_line_form_inside_a_compiled_step() -> None:
    weight = Parameter([1.0, 2.0])
    manager, scaler = GradManager().attach(weight), GradScaler(init_scale=4.0)

    @jit.compile
    def step() -> Tensor:
        with manager:
            loss = (weight * weight).sum()
            manager.backward(loss, dy=Tensor(scaler.scale_factor, dtype="float32"))
        scaler.unscale(manager.attached_tensors())
        scaler.update()
        return loss

    step()
    assert weight.grad.tolist() == [2.0, 4.0]
    scaler.scale_factor = 32.0  # Read at the next call, not baked in.
    weight.grad = None
    step()
    assert weight.grad.tolist() == [2.0, 4.0]
    assert scaler.scale_factor == 32.0


def test_a_constant_scale_checks_nothing() -> None:
    weight = Parameter([1.0])
    manager, scaler = GradManager().attach(weight), GradScaler(growth_interval=0)
    with manager:
        scaler.backward(manager, weight * np.float32(np.inf))
    assert weight.grad.tolist() == [np.inf]
    scaler.update(new_scale=2.0)
    assert scaler.scale_factor == 16.0


def test_state_continues() -> None:
    scaler = GradScaler(1000.1, 3.0, 0.25, 7)
    assert scaler.state_dict() == {
        "scale_factor": 1000.1,
        "growth_factor": 3.0,
        "backoff_factor": 0.25,
        "growth_interval": 7,
        "_growth_tracker": 0,
    }
    scaler.update()
    other = Xla_GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict() == copy.deepcopy(scaler).state_dict()
    other.update(new_scale=2.5)
    assert other.scale_factor == 2.5
    with pytest.raises(KeyError):
        other.load_state_dict({})


def test_gradients_that_outlive_a_program_are_zero_where_they_do_not_count() -> None:
    weight = Parameter([1.0, 2.0])
    manager, scaler = GradManager().attach(weight), GradScaler(init_scale=8)
    optimizer = SGD([weight], 0.1)

    @jit.compile
    def gradients(x: Tensor) -> None:
        with manager:
            scaler.backward(manager, (weight * weight * x).sum())

    for x, wanted in ((1.0, [0.8, 1.6]), (np.inf, [0.8, 1.6]), (1.0, [0.64, 1.28])):
        gradients(Tensor(np.float32(x)))
        optimizer.step().clear_grad()
        np.testing.assert_allclose(weight.numpy(), wanted, rtol=1e-5)
    assert scaler.scale_factor == 4.0
