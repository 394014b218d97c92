"""Branches and loops over open extents: one program holds them for all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import jit
from treadle.base import tree
from treadle.base.errors import IndexRangeError, ShapeError
from treadle.base.symbol import evaluate
from treadle.engine.extents import plans
from treadle.jit.compiled import Compiled
from treadle.jit.family import Family

Function = Callable[..., Any]
WIDTH = 8
EXTENTS = (6, 9, 1, 0, 2, 15, 16, 33, 100)
"""In the cells of 0, of 1, of 2 to 15, and of 16 to 127."""
CHECKED = jit.Options(check=True)


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are made here, whatever earlier runs have left on disk."""
    monkeypatch.setattr(plans, "recall_regime", lambda *given: None)


def filled(*shape: int) -> mge.Tensor:
    return mge.tensor(np.random.default_rng(sum(shape)).standard_normal(shape, "float32"))


WEIGHT = mge.Parameter(np.random.default_rng(0).standard_normal((WIDTH, WIDTH), "float32") * 0.3)
KERNEL = filled(3, 3, 3, 3)
START = filled(1, WIDTH)


def arrays(results: Any) -> list[Any]:
    return [x.numpy() for x in tree.flatten(results)[0]]


def families(compiled: Compiled[..., Any]) -> list[Family]:
    return list(chain.from_iterable(compiled._captures.families.values()))


def mixed(x: mge.Tensor) -> mge.Tensor:
    return F.softmax(F.matmul(x, WEIGHT), axis=0)


def branch(x: mge.Tensor) -> Any:
    kept = F.relu(x)
    return jit.cond(
        x.sum() > 0,
        lambda h: mixed(h) + h.sum(axis=0) + kept,
        lambda h: F.matmul(F.softmax(h, axis=1) * 2, WEIGHT) - 1,
        x,
    )


def opposite(x: mge.Tensor) -> Any:
    return branch(-x)


def asked(x: mge.Tensor) -> Any:
    return jit.cond(x.sum() > 0, lambda: x * 2 if x.shape[0] > 5 else x * 3, lambda: x)


def turns(x: mge.Tensor) -> Any:
    state = (mge.tensor(0), x)
    return jit.while_loop(lambda i, h: i < 5, lambda i, h: (i + 1, mixed(h) + h), state)[1]


def as_many_turns_as_rows(x: mge.Tensor) -> Any:
    state = (mge.tensor(0), x)
    return jit.while_loop(lambda i, h: i < x.shape[0], lambda i, h: (i + 1, mixed(h) + h), state)


def recurrent(x: mge.Tensor) -> Any:
    def turn(s: mge.Tensor, e: mge.Tensor) -> Any:
        return F.tanh(F.matmul(s, WEIGHT) + e), s.sum(axis=0)

    return jit.scan(turn, (START,), (x,))


def batches(x: mge.Tensor) -> Any:
    def turn(s: mge.Tensor, e: mge.Tensor) -> Any:
        return F.tanh(F.matmul(s, WEIGHT) + e), F.softmax(s, axis=0)

    return jit.scan(turn, (x[:, 0] * 0,), (x.transpose(1, 0, 2),))


def many_turns(x: mge.Tensor) -> Any:
    return jit.scan(lambda s: (s * 0.999 + 0.01, s.mean(axis=0)), (x,), (), 600)


def nested(x: mge.Tensor) -> Any:
    def turn(s: mge.Tensor, e: mge.Tensor) -> Any:
        s = jit.cond((s + e).sum() > 0, lambda s: s + F.matmul(s, WEIGHT), lambda s: s * 0.5, s)
        (s,) = jit.while_loop(lambda s: s.sum() > 3, lambda s: (s * 0.5,), (s,))
        return s + e.mean(axis=0), F.softmax(s, axis=0)

    return jit.scan(turn, (x.mean(axis=0),), (x,))


def convolved(x: mge.Tensor) -> Any:
    return jit.cond(x.sum() > 0, lambda: F.conv2d(x, KERNEL, padding=1), lambda: F.relu(x))


def sorted_or_summed(x: mge.Tensor) -> Any:
    return jit.cond(x.sum() > 0, lambda: F.sort(x)[0], lambda: F.cumsum(x, axis=0))


LAYER = M.LSTM(WIDTH, WIDTH, bidirectional=True)


def layer(x: mge.Tensor) -> Any:
    return LAYER(F.matmul(x, WEIGHT))[0]


N, T = "n", "t"
SHARED: dict[str, tuple[Function, tuple[str | int, ...]]] = {
    "a branch": (branch, (N, WIDTH)),
    "the other branch": (opposite, (N, WIDTH)),
    "a branch that asks": (asked, (N, WIDTH)),
    "turns": (turns, (N, WIDTH)),
    "as many turns as rows": (as_many_turns_as_rows, (N, WIDTH)),
    "a scan of open length": (recurrent, (N, WIDTH)),
    "a scan of open batches": (batches, (N, 5, WIDTH)),
    "a scan of both": (batches, (N, T, WIDTH)),
    "many turns": (many_turns, (N, WIDTH)),
    "loops in loops": (nested, (N, T, WIDTH)),
    "a recurrent layer": (layer, (T, N, WIDTH)),
    "weights that are packed": (convolved, (N, 3, 7, T)),
    "work of the host": (sorted_or_summed, (N, WIDTH)),
}


def given(shape: Sequence[str | int], n: int) -> mge.Tensor:
    return filled(*[{N: n, T: n + 3}.get(d, d) for d in shape])  # type: ignore[call-overload, misc]


@pytest.mark.parametrize("name", SHARED)
def test_one_program_serves_the_extents_of_a_cell(name: str) -> None:
    function, shape = SHARED[name]
    axes = {i: d for i, d in enumerate(shape) if isinstance(d, str)}
    compiled = jit.compile(dynamic={0: axes}, options=CHECKED)(function)
    for n in EXTENTS:
        x = given(shape, n)
        made = arrays(compiled(x))
        alone = arrays(jit.compile(dynamic=False)(function)(x))
        for mine, same in zip(made, alone, strict=True):
            np.testing.assert_array_equal(mine, same)
        # Op by op, a scan of no turns stacks nothing.
        for mine, wanted in zip(made, arrays(function(x)), strict=n > 0):
            np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-4)
    open_ones = [f for f in families(compiled) if f.regimes]
    assert not any(f.alone for f in open_ones)
    cells = {str(r.cell) for f in open_ones for r in f.regimes}
    made_for = sum(len(f.regimes) for f in open_ones)
    asks = name == "a branch that asks"  # Above and below 5 in one cell; kernels ask about 6 rows.
    assert len(cells) + asks <= made_for <= len(cells) + 1, cells


def test_buffers_of_regions_lie_in_the_memory_of_the_program() -> None:
    """Both branches take the same bytes."""

    def function(x: mge.Tensor) -> Any:
        return jit.cond(
            x.sum() > 0,
            lambda: F.relu(mixed(x) + x.sum(axis=0)).sum(axis=0),
            lambda: mixed(F.softmax(x, axis=1)).sum(axis=0),
        )

    compiled = jit.compile(dynamic={0: {0: N}})(function)
    compiled(filled(64, WIDTH))
    ((family,),) = compiled._captures.families.values()
    (regime,) = family.regimes
    instance = regime.at((64,))
    assert instance is not None
    memory = regime.symbolic({N: 64}).planned.plan.memory
    then, otherwise = ([b for b in memory.open if f".{i}." in b.name] for i in range(2))
    assert max(b.end for b in then) < min(b.start for b in otherwise)
    value = 64 * WIDTH * 4
    assert [evaluate(b.size, {N: 64}) for b in (*then, *otherwise)] == [value] * 3
    assert instance.at.peak < 3 * value


# -- guards ------------------------------------------------------------------------------------


def test_what_a_branch_needs_is_a_guard_of_the_program() -> None:
    def pairs(x: mge.Tensor) -> Any:
        return jit.cond(
            x.sum() > 0,
            lambda x: x.reshape((x.shape[0] // 2, 2, WIDTH)).sum(axis=1).sum(axis=0),
            lambda x: x.sum(axis=0) * 2,
            x,
        )

    compiled = jit.compile(dynamic={0: {0: N}})(pairs)
    for n in (6, 4, 12):
        np.testing.assert_allclose(
            compiled(filled(n, WIDTH)).numpy(), pairs(filled(n, WIDTH)).numpy(), rtol=1e-5
        )
    for n in (7, 33):
        with pytest.raises(ShapeError, match="reshape: cannot reshape"):
            compiled(filled(n, WIDTH))
    compiled(filled(8, WIDTH))
    (family,) = families(compiled)[:1]
    assert [str(g) for g in family.captured.graph.guards] == ["n - 2*((n) // (2)) == 0"]
    assert len(family.regimes) == 1 and not family.alone


def test_an_index_in_a_branch_is_held_to_the_range_at_each_extent() -> None:
    def rows(x: mge.Tensor, i: mge.Tensor) -> Any:
        return jit.cond(i.sum() > 3, lambda: x[i], lambda: x[i] * 2)

    compiled = jit.compile(dynamic={0: {0: N}})(rows)
    for n in (3, 7, 5):
        compiled(filled(n, WIDTH), mge.tensor([0, n - 1, 0, -n], dtype="int32"))
        with pytest.raises(
            IndexRangeError, match=f"index {n} is out of range for an extent of {n}"
        ):
            compiled(filled(n, WIDTH), mge.tensor([2, 2, n, 0], dtype="int32"))
    assert sum(len(f.regimes) for f in families(compiled)) == 1


def test_stacked_tensors_of_two_lengths_are_refused_with_words() -> None:
    def function(x: mge.Tensor, y: mge.Tensor) -> Any:
        return jit.scan(lambda s, a, b: (s + a * b,), (START,), (x, y))[0]

    compiled = jit.compile(dynamic={0: {0: N}, 1: {0: T}})(function)
    for n in (3, 5):
        (made,), (wanted,) = (f(filled(n, 1, 8), filled(n, 1, 8)) for f in (compiled, function))
        np.testing.assert_allclose(made.numpy(), wanted.numpy(), rtol=1e-5)
    with pytest.raises(ShapeError, match=r"number of turns is unclear"):
        compiled(filled(3, 1, 8), filled(4, 1, 8))


# -- gradients ---------------------------------------------------------------------------------


def loss_of(results: Any) -> mge.Tensor:
    return sum(((r**2).mean() for r in tree.flatten(results)[0]), mge.tensor(0.0))


def bounded(x: mge.Tensor) -> Any:
    def turn(i: mge.Tensor, h: mge.Tensor) -> Any:
        return i + 1, mixed(h) + h

    return jit.while_loop(lambda i, h: i < 3, turn, (mge.tensor(0), x), most=4)[1]


DIFFERENTIATED: dict[str, tuple[Function, tuple[str | int, ...]]] = {
    "a branch": (branch, (N, WIDTH)),
    "the other branch": (opposite, (N, WIDTH)),
    "a scan of open length": (recurrent, (N, WIDTH)),
    "a scan of both": (batches, (N, T, WIDTH)),
    "turns with a most": (bounded, (N, WIDTH)),
    "a recurrent layer": (layer, (T, N, WIDTH)),
}


def step_of(function: Function) -> Function:
    def step(x: mge.Tensor) -> Any:
        with mge.autodiff.GradManager().attach([WEIGHT]) as manager:
            loss = loss_of(function(x))
            manager.backward(loss)
        gradient, WEIGHT.grad = WEIGHT.grad, None
        return loss, gradient

    return step


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradients_share_programs(name: str) -> None:
    function, shape = DIFFERENTIATED[name]
    axes = {i: d for i, d in enumerate(shape) if isinstance(d, str)}
    step = step_of(function)
    compiled = jit.compile(dynamic={0: axes}, options=CHECKED)(step)
    for count, extents in enumerate(((6, 9, 1, 15, 16, 40), (5, 10, 13, 41, 60, 100))):
        for n in extents:
            x = given(shape, n)
            for mine, wanted in zip(compiled(x), step(x), strict=True):
                np.testing.assert_allclose(mine.numpy(), wanted.numpy(), rtol=1e-3, atol=1e-5)
        shared = [f for f in families(compiled) if f.regimes]
        assert not any(f.alone for f in shared)
        if not count:
            made = sum(len(f.regimes) for f in shared)
    assert sum(len(f.regimes) for f in shared) == made, "kernels ask about 6 rows at most"


def test_gradients_under_a_tape_share_programs() -> None:
    compiled = jit.compile(dynamic={0: {0: N}})(
        lambda x: branch(x).mean() + recurrent(x)[1][0].sum()
    )
    for n in (6, 9, 14):
        x, grads = filled(n, WIDTH), []
        for function in (compiled, compiled.__wrapped__):
            with mge.autodiff.GradManager().attach([x]) as manager:
                manager.backward(function(x))
            grads.append(x.grad.numpy())
            x.grad = None
        np.testing.assert_allclose(*grads, rtol=1e-3, atol=1e-5)
    assert all(not f.alone for f in families(compiled))


# -- calls -------------------------------------------------------------------------------------


def test_axes_that_are_seen_to_change_are_shared() -> None:
    compiled = jit.compile(lambda x: (branch(x), recurrent(x)))
    for n in (6, 9, 4, 12):
        for made, wanted in zip(
            arrays(compiled(filled(n, WIDTH))),
            arrays((branch(filled(n, WIDTH)), recurrent(filled(n, WIDTH)))),
            strict=True,
        ):
            np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-5)
    (family,) = families(compiled)
    assert compiled._captures.count == 2 and len(family.regimes) == 1


def test_threads_call_at_extents_of_their_own() -> None:
    compiled = jit.compile(dynamic={0: {0: N, 1: T}})(nested)
    lengths = range(2, 14)
    wanted = {n: arrays(nested(given((N, T, WIDTH), n))) for n in lengths}
    wrong = []

    def work(start: int) -> None:
        for n in [*lengths[start:], *lengths[:start]]:
            made = arrays(compiled(given((N, T, WIDTH), n)))
            for mine, other in zip(made, wanted[n], strict=True):
                if not np.allclose(mine, other, rtol=1e-3, atol=1e-4):
                    wrong.append(n)

    threads = [threading.Thread(target=work, args=(2 * i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not any(f.alone for f in families(compiled))


def test_a_program_on_disk_is_that_of_the_first_process(monkeypatch: pytest.MonkeyPatch) -> None:
    first = jit.compile(dynamic={0: {0: N, 1: T}})(nested)
    made = [arrays(first(given((N, T, WIDTH), n))) for n in (5, 9)]
    monkeypatch.undo()
    again = jit.compile(dynamic={0: {0: N, 1: T}})(nested)
    for n, known in zip((5, 9), made, strict=True):
        for mine, same in zip(arrays(again(given((N, T, WIDTH), n))), known, strict=True):
            np.testing.assert_array_equal(mine, same)
    assert all(r.is_recalled for f in families(again) for r in f.regimes)
