"""Words written once: at certain extents they are those of a plan for these."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import jit
from treadle.backends.program import Address, Run, Step, Together
from treadle.base.errors import ShapeError
from treadle.engine.execute import ProgramInstance
from treadle.engine.extents import plans
from treadle.jit.family import Member

Function = Callable[[mge.Tensor], mge.Tensor]


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs out of the cache have no steps to compare."""
    monkeypatch.setattr(plans, "recall_regime", lambda *given: None)


WIDTH = 16
WEIGHT = mge.tensor(np.random.default_rng(0).standard_normal((WIDTH, 3 * WIDTH), "float32"))
KERNEL = mge.tensor(np.random.default_rng(1).standard_normal((5, 3, 3, 3), "float32"))


def attended(x: mge.Tensor) -> mge.Tensor:
    q, k, v = F.split(F.matmul(x, WEIGHT), 3, axis=-1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True) + x


def stepped() -> Function:
    net = M.Linear(WIDTH, WIDTH)
    gm = mge.autodiff.GradManager().attach(net.parameters())
    adam = mge.optimizer.Adam(net.parameters(), lr=0.01)

    def step(x: mge.Tensor) -> mge.Tensor:
        with gm:
            loss = (F.relu(net(x)) ** 2).mean()
            gm.backward(loss)
        adam.step().clear_grad()
        return loss

    return step


FUNCTIONS: dict[str, tuple[Callable[[], Function], tuple[int | None, ...]]] = {
    "attention": (lambda: attended, (2, None, WIDTH)),
    "a training step": (stepped, (None, WIDTH)),
    "a convolution": (lambda: lambda x: F.relu(F.conv2d(x, KERNEL, padding=1)), (None, 3, 7, None)),
    "halves": (lambda: lambda x: F.concat([x[x.shape[0] // 2 :] * 2, x[:3]]), (None, 4)),
    "rows that are looked up": (lambda: lambda x: x[F.argmax(x, axis=0)] * 2, (None, 4)),
}


def member_of(name: str) -> tuple[Callable[[int], Member], random.Random]:
    make, shape = FUNCTIONS[name]
    axes = {i: "n" for i, d in enumerate(shape) if d is None}
    compiled = jit.compile(dynamic={0: axes})(make())

    def at(n: int) -> Member:
        given = np.random.default_rng(n).standard_normal([d or n for d in shape], "float32")
        found = compiled.variant((mge.tensor(given),), {})
        assert isinstance(found, Member)
        return found

    return at, random.Random(name)


def resolved(member: Member, steps: tuple[Step, ...]) -> list[object]:
    """Steps with what the table of bases holds at the instance in place of its entries."""
    runner = member.runner
    assert isinstance(runner, ProgramInstance)
    at, plan = runner.at, runner.executor.loaded.plan
    sums = {made: pair for made, *pair in plan.sums}
    held = dict(enumerate(at.numbers.tolist(), plan.bases))

    def argument(x: object) -> object:
        if not isinstance(x, Address):
            return x
        base, offset = x.base, x.offset
        while base in sums:
            base, entry = sums[base]
            offset = offset + held[entry]
        return held[base] + offset if base in held else (base, offset)

    def run(x: Run) -> list[object]:
        items = held[x.counted] if x.counted >= 0 else x.items
        return [x.kernel.name, items, x.serial, *map(argument, x.arguments)]

    found: list[object] = []
    for step in steps:
        if isinstance(step, Together):
            units = 0
            ends = []
            for i, (one, grain) in enumerate(zip(step.runs, step.grains, strict=True)):
                items = held[one.counted] if one.counted >= 0 else one.items
                units += -(-items // grain) if not one.serial else 1  # type: ignore[operator]
                ends.append(held[step.ends[i]] if step.ends else units)
            found.append([step.serial, ends if not step.serial else [], *map(run, step.runs)])
        else:
            found.append(run(step) if isinstance(step, Run) else type(step))
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_words_are_those_of_a_plan_with_numbers(name: str) -> None:
    at, chance = member_of(name)
    for n in chance.sample(range(2, 400), 6):
        member = at(n)
        written = member.runner.executor.loaded.plan.steps  # type: ignore[union-attr]
        assert resolved(member, written) == resolved(member, member.stages.planned.plan.steps)


def test_extents_whose_sizes_64_bits_do_not_hold_are_named() -> None:
    at, _ = member_of("halves")
    regime = at(5).regime  # type: ignore[union-attr]
    with pytest.raises(ShapeError, match="n = 4611686018427387904"):
        regime.at((1 << 62,))
