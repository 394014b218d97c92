"""Models trained by compiled steps follow those trained op by op, from the same weights."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.native.models import CASES, MLP, Case

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import optimizer as optim
from treadle.autodiff import GradManager
from treadle.jit import Options

Step = Callable[[mge.Tensor, mge.Tensor], Any]
Make = Callable[[Any], optim.Optimizer]


def momentum(parameters: Any) -> optim.Optimizer:
    return optim.SGD(parameters, 0.05, momentum=0.9, weight_decay=1e-3)


OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: optim.SGD(p, 0.1),
    "nesterov": lambda p: optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: optim.Adam(p, 1e-2, weight_decay=1e-2),
    "adamw": lambda p: optim.AdamW(p, 1e-2, weight_decay=1e-2),
    "adagrad": lambda p: optim.Adagrad(p, 0.05),
    "adadelta": lambda p: optim.Adadelta(p, 1.0),
}


def copies(make: Callable[[], M.Module]) -> tuple[M.Module, M.Module]:
    """Two models with the same weights."""
    mge.random.seed(5)
    one, two = make(), make()
    two.load_state_dict(one.state_dict())
    return one, two


def trainer(model: M.Module, case: Case, make: Make = momentum) -> tuple[Step, optim.Optimizer]:
    """A step with everything in it, uncompiled."""
    optimizer = make(model.parameters())
    gm = GradManager().attach(model.parameters())

    def step(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        with gm:
            loss = case.loss(model, x, y)
            gm.backward(loss)
        optimizer.step().clear_grad()
        return loss

    return step, optimizer


def batches(case: Case, count: int) -> Iterator[tuple[mge.Tensor, mge.Tensor]]:
    """The same in every call."""
    rng = np.random.default_rng(3)
    for _ in range(count):
        x, y = case.draw(rng)
        yield mge.tensor(x), mge.tensor(y)


def assert_same(one: M.Module, two: M.Module, rtol: float = 2e-3, atol: float = 2e-5) -> None:
    """Equal weights and buffers, up to another order of rounding."""
    for (name, want), (_, got) in zip(one.named_tensors(), two.named_tensors(), strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=rtol, atol=atol, err_msg=name)


def follow(case: Case, make: Make = momentum, count: int = 5, **options: Any) -> None:
    """Train both ways, and compare losses and weights."""
    one, two = copies(case.model)
    eager, _ = trainer(one, case, make)
    step = mge.jit.compile(options=Options(**options))(trainer(two, case, make)[0])
    for x, y in batches(case, count):
        want, got = eager(x, y).item(), step(x, y).item()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert len(step.variants) == 1
    assert_same(one, two)


@pytest.mark.parametrize("name", CASES)
def test_training_follows_eager_training(name: str) -> None:
    follow(CASES[name])


@pytest.mark.parametrize(("name", "level"), [("residual", 3), ("lenet", 0), ("gpt", 1)])
def test_levels_train_alike(name: str, level: int) -> None:
    follow(CASES[name], level=level, count=3)


@pytest.mark.parametrize("name", ["lenet", "bert"])
def test_memory_and_groups_change_nothing(name: str) -> None:
    follow(CASES[name], reuse_memory=False, fusion=name == "lenet", count=2)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_with_schedules(name: str) -> None:
    case = CASES["mlp"]
    one, two = copies(case.model)
    eager, first = trainer(one, case, OPTIMIZERS[name])
    plain, second = trainer(two, case, OPTIMIZERS[name])
    step = mge.jit.compile(plain)
    schedules = [optim.MultiStepLR(o, [2, 4], gamma=0.5) for o in (first, second)]
    for x, y in batches(case, 6):
        np.testing.assert_allclose(step(x, y).item(), eager(x, y).item(), rtol=1e-4)
        for schedule in schedules:
            schedule.step()
    assert len(step.variants) == 1
    assert_same(one, two)


@pytest.mark.parametrize("name", CASES)
def test_models_in_use(name: str) -> None:
    case = CASES[name]
    one, two = copies(case.model)
    for model in (one, two):
        model.train()
    x, _ = next(batches(case, 1))
    run = mge.jit.compile(two)
    np.testing.assert_allclose(run(x).numpy(), one(x).numpy(), rtol=1e-4, atol=1e-5)
    one.eval()
    two.eval()
    for _ in range(2):
        np.testing.assert_allclose(run(x).numpy(), one(x).numpy(), rtol=1e-4, atol=1e-5)
    assert_same(one, two)


def test_clipping_inside_the_step() -> None:
    case = CASES["mlp"]
    one, two = copies(case.model)

    def make(model: M.Module) -> Step:
        optimizer = optim.Adam(model.parameters(), 1e-2)
        gm = GradManager().attach(model.parameters())

        def step(x: mge.Tensor, y: mge.Tensor) -> Any:
            with gm:
                loss = case.loss(model, x, y)
                gm.backward(loss)
            norm = optim.clip_grad_norm(model.parameters(), 0.05)
            optim.clip_grad_value(model.parameters(), -0.01, 0.01)
            optimizer.step().clear_grad()
            return loss, norm

        return step

    eager, step = make(one), mge.jit.compile(make(two))
    for x, y in batches(case, 3):
        for want, got in zip(eager(x, y), step(x, y), strict=True):
            np.testing.assert_allclose(float(got), float(want), rtol=1e-4)
    assert_same(one, two)


def test_gradients_accumulate_over_calls() -> None:
    case = CASES["mlp"]
    one, two = copies(case.model)

    def make(model: M.Module) -> tuple[Step, optim.Optimizer]:
        gm = GradManager().attach(model.parameters())

        def part(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
            with gm:
                loss = case.loss(model, x, y) / 2
                gm.backward(loss)
            return loss

        return part, momentum(model.parameters())

    (eager, first), (plain, second) = make(one), make(two)
    step = mge.jit.compile(plain)
    update = mge.jit.compile(lambda: second.step().clear_grad())
    for i, (x, y) in enumerate(batches(case, 6)):
        np.testing.assert_allclose(step(x, y).item(), eager(x, y).item(), rtol=1e-4)
        if i % 2:
            first.step().clear_grad()
            update()
    assert_same(one, two)


def test_dropout_draws_the_same_numbers() -> None:
    case = Case(lambda: MLP(0.4), CASES["mlp"].loss, CASES["mlp"].draw)
    one, two = copies(case.model)
    eager, step = trainer(one, case)[0], mge.jit.compile(trainer(two, case)[0])
    losses = []
    for run in (eager, step):
        mge.random.seed(11)
        losses.append([run(x, y).item() for x, y in batches(case, 4)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert_same(one, two)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_narrow_activations(kind: str) -> None:
    def run(model: M.Module, x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        a, b, c = (layer.weight.astype(kind) for layer in (model.a, model.b, model.c))
        h = F.relu(F.linear(x.astype(kind), a))
        h = F.gelu(F.linear(h, b))
        return F.loss.cross_entropy(F.linear(h, c).astype("float32"), y)

    case = Case(MLP, run, CASES["mlp"].draw)
    one, two = copies(case.model)
    eager, step = trainer(one, case)[0], mge.jit.compile(trainer(two, case)[0])
    for x, y in batches(case, 4):
        np.testing.assert_allclose(step(x, y).item(), eager(x, y).item(), rtol=2e-2)
    assert_same(one, two, rtol=5e-2, atol=5e-3)


def test_gradients_of_gradients() -> None:
    w = mge.Parameter(np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4))

    def penalty(x: mge.Tensor) -> tuple[mge.Tensor, ...]:
        outer, inner = GradManager().attach(w), GradManager().attach(x)
        y = x * 1
        inner.attach(y)
        with outer:
            with inner:
                inner.backward(F.tanh(F.matmul(y, w)).sum())
            slope = y.grad
            y.grad = None
            loss = ((slope * slope).sum(axis=1) - 1) ** 2
            outer.backward(loss.sum())
        found, w.grad = w.grad, None
        return loss, found

    compiled = mge.jit.compile(penalty)
    rng = np.random.default_rng(0)
    for _ in range(2):
        x = mge.tensor(rng.standard_normal((5, 3), "float32"))
        for want, got in zip(penalty(x), compiled(x), strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"without_host": True}, {"imperative": True}])
@pytest.mark.parametrize("name", ["mlp", "autoencoder"])
def test_traces_follow_eager_training(name: str, options: dict[str, bool]) -> None:
    case = CASES[name]
    one, two = copies(case.model)
    eager, _ = trainer(one, case)
    step = mge.jit.trace(trainer(two, case)[0], **options)
    for x, y in batches(case, 3):
        np.testing.assert_allclose(step(x, y).item(), eager(x, y).item(), rtol=1e-4)
    assert_same(one, two)


@pytest.mark.parametrize("name", ["lstm", "residual"])
def test_compiled_models_inside_recordings(name: str) -> None:
    case = CASES[name]
    one, two = copies(case.model)
    calls = (one, mge.jit.compile(two))
    updates = [(momentum(m.parameters()), GradManager().attach(m.parameters())) for m in (one, two)]
    for x, y in batches(case, 3):
        losses = []
        for call, (optimizer, gm) in zip(calls, updates, strict=True):
            with gm:
                loss = case.loss(call, x, y)
                gm.backward(loss)
            optimizer.step().clear_grad()
            losses.append(loss.item())
        np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert_same(one, two)


def test_a_step_leaves_nothing_to_the_garbage_collector() -> None:
    case = CASES["autoencoder"]
    step = mge.jit.compile(trainer(copies(case.model)[0], case)[0])
    gc.disable()
    try:
        stages = step.lower(*next(batches(case, 1)))
    finally:
        gc.enable()
    assert len(step.variants) == 1 and not step.variants[0].captured.escaped
    assert len(stages.captured.outputs) == 13, "a loss, six parameters and their momenta"


@pytest.mark.parametrize("name", ["adam", "adadelta"])
def test_sinks_train_like_single_steps_bit_for_bit(name: str) -> None:
    case = Case(lambda: MLP(0.3), CASES["mlp"].loss, CASES["mlp"].draw)
    one, two = copies(case.model)
    single = mge.jit.compile(trainer(one, case, OPTIMIZERS[name])[0])
    sunk = mge.jit.compile(trainer(two, case, OPTIMIZERS[name])[0])
    mge.random.seed(4)
    want = [single(x, y).item() for x, y in batches(case, 7)]
    mge.random.seed(4)
    got = [loss.item() for loss in mge.jit.sink(sunk, batches(case, 7), 3)]
    assert got == [want[2], want[5], want[6]]
    for (_, x), (_, y) in zip(one.named_tensors(), two.named_tensors(), strict=True):
        np.testing.assert_array_equal(x.numpy(), y.numpy())


def test_a_quotient_has_one_value_in_all_kernels() -> None:
    """Where a sum decides the divisor, its kernel multiplies by an inverse; a copy would divide."""

    def below(x: mge.Tensor) -> mge.Tensor:
        y = x / F.sum(F.abs(x), axis=-1, keepdims=True)
        return y < F.cumsum(F.relu(y), axis=0)

    compiled = mge.jit.compile(below)
    for seed in range(20):
        x = mge.tensor(np.random.default_rng(seed).standard_normal((5, 4)).astype("float32"))
        first = compiled(x).numpy()[0]
        np.testing.assert_array_equal(first, x.numpy()[0] < 0)  # y < relu(y) where y is negative
