"""Memory by order: safe at all sizes, never above the plan that the order is from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.base.arithmetic import DONE, Rows, Words, evaluate
from treadle.base.errors import CompileError
from treadle.engine.compile.memory import Buffer, check_memory, lower_bound, plan_memory
from treadle.engine.extents import placing
from treadle.engine.extents.numbers import prove
from treadle.engine.extents.ordering import order_of, placed
from treadle.engine.extents.placing import Placements
from treadle.engine.plan import ALIGNMENT, MemoryPlan
from treadle.engine.scheme import Registers

Life = tuple[int, int]


def registers_of(count: int) -> Registers:
    sizes, offsets, ends = (range(4 + i * count, 4 + (i + 1) * count) for i in range(3))
    return Registers(0, 1, tuple(sizes), tuple(offsets), tuple(ends), 2, 3)


def given_sizes(at: Registers, lives: Sequence[Life], sizes: Sequence[int]) -> Words:
    found = np.zeros(4 + 3 * len(sizes), np.int64)
    found[list(at.sizes)] = sizes
    found[at.bound] = lower_bound([Buffer(s, *life) for s, life in zip(sizes, lives, strict=True)])
    return found


def laid_out(rows: Rows, at: Registers, lives: Sequence[Life], sizes: Sequence[int]) -> MemoryPlan:
    """What code makes of sizes, held against what a plan of memory promises."""
    registers = given_sizes(at, lives, sizes)
    assert evaluate(rows, registers) == DONE
    offsets, peak = tuple(registers[list(at.offsets)].tolist()), int(registers[at.peak])
    plan = MemoryPlan(offsets, peak, 0, 0)
    check_memory([Buffer(s, *life) for s, life in zip(sizes, lives, strict=True)], plan)
    return plan


LINES = st.integers(0, 40).map(lambda n: n * ALIGNMENT)
LIVES = st.tuples(st.integers(0, 9), st.integers(0, 5)).map(lambda t: (t[0], t[0] + t[1]))


@st.composite
def arenas(draw: st.DrawFn, most: int = 12) -> tuple[list[Life], list[int], list[int]]:
    count = draw(st.integers(1, most))
    lives = draw(st.lists(LIVES, min_size=count, max_size=count))
    hint, other = (draw(st.lists(LINES, min_size=count, max_size=count)) for _ in range(2))
    return lives, hint, other


@settings(deadline=None)
@given(arenas())
def test_an_order_serves_all_sizes(arena: tuple[list[Life], list[int], list[int]]) -> None:
    lives, hint, other = arena
    at = registers_of(len(lives))
    rows = placed(at, lives, given_sizes(at, lives, hint))
    buffers = [Buffer(s, *life) for s, life in zip(hint, lives, strict=True)]
    assert laid_out(rows, at, lives, hint).peak <= plan_memory(buffers).peak
    laid_out(rows, at, lives, other)


def test_all_small_arenas() -> None:
    """Every way in which three buffers live, with every order of sizes."""
    spans = [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]
    sizes = (0, 64, 192)
    for lives in product(spans, repeat=3):
        at = registers_of(3)
        for hint in product(sizes, repeat=3):
            rows = placed(at, lives, given_sizes(at, lives, hint))
            for other in ((64, 128, 320), (320, 128, 64), (0, 64, 0)):
                laid_out(rows, at, lives, other)


@settings(deadline=None)
@given(arenas())
def test_only_direct_neighbors_are_named(arena: tuple[list[Life], list[int], list[int]]) -> None:
    lives, hint, _ = arena
    buffers = [Buffer(s, *life) for s, life in zip(hint, lives, strict=True)]
    offsets = [int(o) for o in plan_memory(buffers).offsets]
    below: dict[int, set[int]] = {}
    for i, direct in order_of(buffers, offsets):
        below[i] = set(direct).union(*(below[j] for j in direct))
        for j in direct:
            assert not any(j in below[k] for k in direct if k != j), "it follows from another one"
    for i, j in product(below, repeat=2):
        if i != j and buffers[i].overlaps(buffers[j]):
            assert i in below[j] or j in below[i]


def test_an_order_without_one_of_its_pairs_is_found_out() -> None:
    lives, hint = [(0, 3), (0, 1), (1, 3), (2, 3)], [64, 128, 64, 192]
    at = registers_of(4)
    rows = placed(at, lives, given_sizes(at, lives, hint))
    zeroed = 0
    for number, (_, target, x, _) in enumerate(rows.tolist()):
        if target in at.offsets and x in at.ends:
            wrong = rows.copy()
            wrong[number, 2] = at.zero
            wrong[number, 3] = at.zero
            zeroed += 1
            with pytest.raises(CompileError, match=r"share bytes|outside"):
                laid_out(wrong, at, lives, hint)
    assert zeroed >= 2


def test_sizes_that_no_order_suits_get_one_of_their_own() -> None:
    lives = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 0), (4, 4), (1, 3)]
    small, large = (
        [n << 20 for n in (1, 9, 2, 8, 3, 9, 1)],
        [n << 20 for n in (9, 1, 8, 2, 9, 1, 4)],
    )
    at = registers_of(len(lives))
    made: list[bytes] = []

    def evaluator(rows: Rows) -> placing.Run:
        made.append(rows.tobytes())
        return partial(evaluate, rows)

    memory = Placements(at, lives, evaluator)
    for sizes in (small, large, small, large):
        registers = given_sizes(at, lives, sizes)
        if not memory.rows:
            memory.add(placed(at, lives, registers))
        bound = int(registers[at.bound])
        peak = memory.place(registers)
        assert peak <= bound * 1.1 + (1 << 20)
        plan = MemoryPlan(tuple(registers[list(at.offsets)].tolist()), peak, bound, 0)
        check_memory([Buffer(s, *life) for s, life in zip(sizes, lives, strict=True)], plan)
    assert len(made) == len(set(made)) <= placing.MOST_PLACEMENTS


def test_values_that_share_a_span_are_no_overlap() -> None:
    """Offsets of a plan are those of values; of two results of a sort one may lie in the other."""

    def function(x: mge.Tensor) -> mge.Tensor:
        order, places = F.sort((x @ x.T).reshape(-1))
        return order[1:] @ places[:-1].astype("float32")

    compiled = jit.compile(function, options=jit.Options(level=0))
    plan = compiled.compile(mge.tensor(np.ones((3, 2), np.float32))).planned()
    offsets, spans = plan.memory.offsets, plan.memory.spans
    assert len(offsets) > len(spans)
    prove(plan)
    at_once = replace(plan.memory, spans=tuple((0, *span[1:]) for span in spans))
    with pytest.raises(CompileError, match="share"):
        prove(replace(plan, memory=at_once))
