"""Models of any size train by a handful of programs, and nobody in them asks for a number."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest
from tests.native.open_models import MODELS

import treadle as mge
import treadle.functional as F
import treadle.module as M

FEW, MANY = 3, 12
"""Inputs that are tried in the default suite, and in the long one."""


def step_of(net: M.Module) -> Callable[..., list[mge.Tensor]]:
    """A loss and the gradients of all parameters."""
    parameters = list(net.parameters())
    manager = mge.autodiff.GradManager().attach(parameters)

    def step(*given: mge.Tensor) -> list[mge.Tensor]:
        with manager:
            found = net(*given)
            loss = F.sin(found).mean() + (found * found).mean()
            manager.backward(loss)
        grads = [p.grad for p in parameters]
        for p in parameters:
            p.grad = None
        return [loss, *grads]

    return step


def hold(name: str, count: int, seed: int, dynamic: Any) -> None:
    """Train a model on inputs of random sizes, against op by op; no number is asked for."""
    made, draw = MODELS[name]
    net, rng = made(), random.Random(seed)
    net.eval()  # Statistics of a batch would change from call to call.
    step = step_of(net)
    compiled = mge.jit.compile(step, dynamic=dynamic)
    for _ in range(count):
        given = draw(rng)
        for got, want in zip(compiled(*given), step(*given), strict=True):
            bound = 2e-4 * (1 + float(abs(want.numpy()).max(initial=0)))
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=0, atol=bound)
    families = list(chain.from_iterable(compiled._captures.families.values()))
    assert not compiled._captures.pins, compiled._captures.pins
    for family in families:
        assert not family.captured.pins, family.captured.pins
        assert family.alone in ("", "no extent is open"), family.alone
    if count == MANY:
        # One capture beside those for extents of 1; a program for each range of two sizes at most.
        assert compiled.captures <= 8 and sum(len(f.regimes) for f in families) <= MANY


@pytest.mark.parametrize("name", MODELS)
def test_models_of_any_size_ask_for_no_number(name: str) -> None:
    hold(name, FEW, 1, True)


@pytest.mark.long
@pytest.mark.parametrize("dynamic", [True, None], ids=["open", "seen to change"])
@pytest.mark.parametrize("name", MODELS)
def test_models_of_any_size_share_programs(name: str, dynamic: Any) -> None:
    hold(name, MANY, 2, dynamic)


def test_a_model_that_asks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Asking(M.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = M.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.layer(x) * float(int(x.shape[0]))

    def draw(rng: random.Random) -> tuple[mge.Tensor, ...]:
        return (F.ones((rng.randint(2, 9), 4)),)

    monkeypatch.setitem(MODELS, "asking", (Asking, draw))
    with pytest.raises(AssertionError, match=r"test_open_models\.py"):
        hold("asking", FEW, 1, True)
