"""Programs under a memory budget: the same bits in less memory, or an error that says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import jit, optimizer
from treadle.autodiff import GradManager
from treadle.base.errors import CompileError, GraphError
from treadle.engine.optimize.budget import keep_to_budget
from treadle.engine.options import Options


class Deep(M.Module):
    """Convolutions with norms, then a head; dropout between."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = M.Conv2d(3, 8, 3, padding=1)
        self.convs = [M.Conv2d(8, 8, 3, padding=1) for _ in range(5)]
        self.norms = [M.BatchNorm2d(8) for _ in range(5)]
        self.head = M.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.dropout(F.gelu(norm(conv(x))), 0.1)
        return self.head(F.mean(x, (2, 3)))


def step_of(options: Options) -> tuple[Any, M.Module, Any]:
    mge.random.seed(1)
    model = Deep()
    gm = GradManager().attach(model.parameters())
    opt = optimizer.SGD(model.parameters(), lr=0.1, momentum=0.9)

    @jit.compile(options=options)
    def step(x: Any) -> Any:
        with gm:
            loss = (model(x) ** 2).mean()
            gm.backward(loss)
        opt.step().clear_grad()
        return loss

    x = mge.tensor(np.random.default_rng(0).normal(size=(8, 3, 16, 16)).astype(np.float32))
    return step, model, x


def trained(options: Options) -> tuple[list[Any], int]:
    step, model, x = step_of(options)
    mge.random.seed(9)
    found = [step(x).numpy() for _ in range(3)]
    found += [p.numpy() for p in model.parameters()]
    return found, step.compile(x).planned().memory.peak


def test_training_is_the_same_bits_in_less_memory() -> None:
    plain, peak = trained(Options(check=True))
    kept, less = trained(Options(check=True, memory_budget=int(0.7 * peak)))
    assert less <= 0.7 * peak
    for a, b in zip(plain, kept, strict=True):
        np.testing.assert_array_equal(a, b)


def test_its_graph_is_the_one_that_runs() -> None:
    _, peak = trained(Options())
    step, _, x = step_of(Options(memory_budget=int(0.7 * peak)))
    stages = step.lower(x)
    before = stages.optimized
    assert stages.planned().memory.peak <= 0.7 * peak
    assert stages.lower() is stages.optimized is not before


def test_the_report_says_what_it_cost() -> None:
    _, peak = trained(Options())
    step, _, x = step_of(Options(memory_budget=int(0.8 * peak)))
    step(x)
    text = step.explain(x)
    assert "memory budget" in text
    assert "nodes run twice" in text


def test_a_budget_that_cannot_be_kept() -> None:
    step, _, x = step_of(Options(memory_budget=1000))
    with pytest.raises(CompileError, match="does not fit the memory budget"):
        step(x)
    _, less = trained(Options(memory_budget=1, strict_budget=False, check=True))
    _, peak = trained(Options())
    assert less < peak
    with pytest.raises(GraphError, match="budget"):
        Options(memory_budget=-1)


def test_settings_of_megengine_are_budgets() -> None:
    x = mge.tensor(np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32))
    w = mge.tensor(np.eye(64, dtype=np.float32))
    gm = GradManager().attach(w)

    def body(x: Any) -> Any:
        with gm:
            y = x
            for _ in range(6):
                y = F.gelu(y @ w)
            gm.backward(y.sum())
        return y

    want = body(x).numpy()
    grad = w.grad.numpy()
    for settings in (
        {"dtr_config": jit.DTRConfig(eviction_threshold=50000)},
        {"sublinear_memory_config": jit.SublinearMemoryConfig()},
    ):
        w.grad = None
        traced = jit.trace(body, symbolic=True, **settings)
        np.testing.assert_allclose(traced(x).numpy(), want, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(w.grad.numpy(), grad, rtol=1e-4, atol=1e-4)
        assert "memory budget" in traced.explain()
    with pytest.raises(AssertionError):
        jit.DTRConfig(eviction_threshold=0)
    with pytest.raises(ValueError, match="lb_memory_mb"):
        jit.SublinearMemoryConfig(lb_memory_mb=-1)


def test_a_program_within_its_budget_is_left_alone() -> None:
    graph = jit.compile(lambda x: F.exp(x) + 1).graph(mge.tensor([1.0]))
    same, kept = keep_to_budget(graph, 1 << 20)
    assert same is graph
    assert kept.repeated == 0


def test_a_weight_that_every_step_reads() -> None:
    """The search ends where the peak falls no more; it went on for 4,096 turns, six times."""
    w = mge.Parameter(np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32))
    gm, opt = GradManager().attach(w), optimizer.SGD([w], lr=0.1)

    def step(x: Any) -> Any:
        with gm:
            loss = x
            for _ in range(8):
                loss = F.tanh(loss @ w)
            loss = (loss**2).mean()
            gm.backward(loss)
        opt.step().clear_grad()
        return loss

    x = mge.tensor(np.ones((512, 64), np.float32))
    made = jit.compile(step, options=Options(memory_budget=600_000, strict_budget=False))
    made(x)
    assert "above the budget" in made.explain(full=True)
    assert len(made.graph(x).nodes) < 200
    with pytest.raises(CompileError, match="bytes of values at once, a budget of 600000"):
        jit.compile(step, options=Options(memory_budget=600_000))(x)


def test_a_recurrent_network_with_the_default_settings() -> None:
    cell = M.RNNCell(8, 16)
    gm = GradManager().attach(cell.parameters())

    def step(x: Any) -> Any:
        with gm:
            h = F.zeros((4, 16))
            for i in range(12):
                h = cell(x[i], h)
            gm.backward((h**2).sum())
        return h

    x = mge.tensor(np.random.default_rng(0).normal(size=(12, 4, 8)).astype(np.float32))
    want = step(x).numpy()
    settings = jit.SublinearMemoryConfig()
    traced = jit.trace(step, symbolic=True, sublinear_memory_config=settings)
    np.testing.assert_allclose(traced(x).numpy(), want, rtol=1e-4, atol=1e-5)
