"""Learning rates over the epochs, and saving a scheduler half way."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from treadle.optimizer import (
    SGD,
    CosineAnnealingLR,
    LambdaLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    StepLR,
)
from treadle.tensor import Parameter

Make = Callable[[SGD], LRScheduler]

RATES: dict[str, tuple[Make, list[float]]] = {
    "multi_step": (
        lambda o: MultiStepLR(o, [2, 4], gamma=0.1),
        [0.8, 0.8, 0.08, 0.08, 0.008, 0.008],
    ),
    "step": (lambda o: StepLR(o, 2, gamma=0.5), [0.8, 0.8, 0.4, 0.4, 0.2, 0.2]),
    "cosine": (
        lambda o: CosineAnnealingLR(o, t_max=4, eta_min=0.2),
        [0.8, 0.5 + 0.3 * math.sqrt(0.5), 0.5, 0.5 - 0.3 * math.sqrt(0.5), 0.2, 0.2],
    ),
    "warm_up": (
        lambda o: CosineAnnealingLR(o, t_max=4, warmup=2),
        [0.4, 0.8, 0.8, 0.4, 0.0, 0.0],
    ),
    "lambda": (lambda o: LambdaLR(o, lambda e: 1 / (e + 1)), [0.8 / (e + 1) for e in range(6)]),
}
every_scheduler = pytest.mark.parametrize("make", [r[0] for r in RATES.values()], ids=list(RATES))


def _optimizer() -> SGD:
    return SGD([{"params": Parameter(1.0)}, {"params": Parameter(1.0), "lr": 1.6}], lr=0.8)


@pytest.mark.parametrize("name", RATES)
def test_rates(name: str) -> None:
    make, expected = RATES[name]
    optimizer = _optimizer()
    scheduler = make(optimizer)
    rates = []
    for _ in expected:
        rates.append([group["lr"] for group in optimizer.param_groups])
        scheduler.step()
    np.testing.assert_allclose([r[0] for r in rates], expected, atol=1e-12)
    if name != "cosine":
        np.testing.assert_allclose([r[1] for r in rates], np.array(expected) * 2, atol=1e-12)


@every_scheduler
def test_resumes(make: Make) -> None:
    optimizer = _optimizer()
    scheduler = make(optimizer)
    scheduler.step()
    scheduler.step()
    other = make(_optimizer())
    other.load_state_dict(scheduler.state_dict())
    other.optimizer.load_state_dict(optimizer.state_dict())
    scheduler.step()
    other.step()
    assert scheduler.current_epoch == other.current_epoch == 3
    assert [g["lr"] for g in optimizer.param_groups] == [
        g["lr"] for g in other.optimizer.param_groups
    ]


def test_state_of_multi_step() -> None:
    scheduler = MultiStepLR(_optimizer(), (1, 3))
    assert scheduler.state_dict() == {"milestones": [1, 3], "gamma": 0.1, "current_epoch": 0}
    with pytest.raises(KeyError, match="key 'gamma' is not specified"):
        scheduler.load_state_dict({"milestones": [9], "current_epoch": 4})
    assert scheduler.milestones == [1, 3]


def test_step_jumps_to_an_epoch() -> None:
    optimizer = _optimizer()
    scheduler = StepLR(optimizer, 10)
    scheduler.step(epoch=25)
    np.testing.assert_allclose(optimizer.param_groups[0]["lr"], 0.008)


def test_resuming_needs_the_initial_rate() -> None:
    with pytest.raises(KeyError, match="initial_lr"):
        MultiStepLR(_optimizer(), [1], current_epoch=3)
    optimizer = _optimizer()
    MultiStepLR(optimizer, [1])
    MultiStepLR(optimizer, [1], current_epoch=3)
    np.testing.assert_allclose(optimizer.param_groups[0]["lr"], 0.08)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda o: MultiStepLR(o, [3, 1]), ValueError, "increasing"),
        (lambda o: StepLR(o, 0), ValueError, "at least 1"),
        (lambda o: CosineAnnealingLR(o, 0), ValueError, "warmup < t_max"),
        (lambda o: CosineAnnealingLR(o, 5, warmup=5), ValueError, "warmup < t_max"),
        (lambda o: MultiStepLR(o.param_groups, [1]), TypeError, "should be Optimizer"),
    ],
)
def test_bad_arguments(make: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        make(_optimizer())


def test_a_cycle_may_begin_at_its_top() -> None:
    """pct_start * total_steps is 1 step, the one with the largest rate."""
    optimizer = SGD([Parameter([1.0])], lr=1.0)
    cycle = OneCycleLR(optimizer, 0.5, total_steps=10, pct_start=0.1, anneal="linear")
    rates = [cycle.get_lr()[0]]
    for _ in range(9):
        cycle.step()
        rates.append(cycle.get_lr()[0])
    assert rates[0] == 0.5 and rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(0.5 / 25 / 1e4)
    for wrong in ({"div_factor": 0.0}, {"final_div_factor": -1.0}):
        with pytest.raises(ValueError, match="above 0"):
            OneCycleLR(optimizer, 0.5, total_steps=10, **wrong)


def test_a_first_value_that_is_no_number_is_not_the_best() -> None:
    optimizer = SGD([Parameter([1.0])], lr=1.0)
    plateau = ReduceLROnPlateau(optimizer, patience=1)
    for value in (float("nan"), 2.0, 1.0, 0.5):
        plateau.step(value)
    assert plateau.best == 0.5 and optimizer.param_groups[0]["lr"] == 1.0
