"""Functions in which data decide extents: each phase is a program, and rows may be any number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.optimizer as optim
from treadle import jit
from treadle.autodiff import GradManager
from treadle.base.errors import IndexRangeError, ShapeError, TraceError
from treadle.engine.phases import phase_programs, programs

Function = Callable[[mge.Tensor], Any]
SHIFTS = (0.0, -9.0, 9.0, -1.2)
"""What is added to numbers about 0 so that some, none, all and few rows are chosen."""


def table(rows: int, shift: float, seed: int = 0) -> mge.Tensor:
    numbers = np.random.default_rng(seed).standard_normal((rows, 4)) + shift
    return mge.tensor(numbers.astype("float32"))


def chosen(x: mge.Tensor) -> mge.Tensor:
    return x[x[:, 0] > 0]


def masked(x: mge.Tensor) -> Any:
    return x[x > 0].sum(), x[x > 0] * 3, F.cond_take(x > 0, x)


def twice(x: mge.Tensor) -> Any:
    """A mask on what a mask has left, and extents that results are made of alone."""
    few = chosen(x)
    fewer = few[few[:, 1] > 0]
    return (
        F.softmax(fewer @ F.ones((4, 3)), 1),
        F.concat([few, fewer]),
        F.arange(few.shape[0]),
        F.zeros((fewer.shape[0], 2)),
        few.sum() / (1 + few.shape[0]),
    )


def pairs(x: mge.Tensor) -> Any:
    """One mask, asked for several times, is one extent."""
    return chosen(x)[:, None] * chosen(x)[None], F.stack([chosen(x), chosen(x) + 1]), x[x[:, 0] > 0]


def boxes(x: mge.Tensor) -> Any:
    corners = F.concat([x[:, :2] * 8, x[:, :2] * 8 + F.abs(x[:, 2:]) * 6], 1)
    kept = F.vision.nms(corners, x[:, 3], 0.3)
    return corners[kept], x[:, 3][kept], kept, F.topk(x[:, 3][kept], 2)


def written(x: mge.Tensor) -> Any:
    found = F.non_zero(x[:, 0] > 0, as_tuple=True)[0]
    marks = F.zeros((x.shape[0],))
    marks[found] = 1
    return marks, F.ones_like(found), F.sort(x[:, 1][found])


def branched(x: mge.Tensor) -> Any:
    """Branches in a branch, which use what has been found outside of them, too."""
    few = chosen(x)

    def some() -> mge.Tensor:
        return jit.cond(x[0, 0] > 0, lambda: (few @ few.T).sum(), lambda: chosen(x - 1).sum())

    total = jit.cond(x.sum() > 0, some, lambda: few[few[:, 1] > 0].sum() + chosen(-x)[:, 1].sum())
    return few * total, jit.cond(total > 0, lambda: x, lambda: chosen(x).sum() + x)


def looped(x: mge.Tensor) -> Any:
    """Loops in which data decide extents, turn by turn."""
    count, total = jit.while_loop(
        lambda i, total: i < 3,
        lambda i, total: (i + 1, total + chosen(x + i.astype("float32") * 0.3).sum()),
        (mge.tensor(0), mge.tensor(0.0)),
    )

    def turn(state: mge.Tensor, row: mge.Tensor) -> tuple[mge.Tensor, ...]:
        positive = row[row > 0]
        return state + positive.sum(), positive.sum() * 2 + row

    return count, total, jit.scan(turn, (total,), (x,))


def leaving(x: mge.Tensor) -> Any:
    """Extents that a branch decides, and what is made of them behind it."""
    rows, firsts = jit.cond(
        x.sum() > 0,
        lambda: (chosen(x), x[x[:, 0] > 0][:, 1] * 2),
        lambda: (chosen(-x)[:, :4] - 1, chosen(-x)[:, 3]),
    )
    some = jit.cond(x[0, 1] > 0, lambda: rows[firsts > 0], lambda: x)
    inner = jit.cond(
        x[0, 0] > 0,
        lambda: jit.cond(x[0, 2] > 0, lambda: F.concat([chosen(x), x]), lambda: rows),
        lambda: F.zeros((2, 4)),
    )
    pairs = rows + firsts[:, None]  # One extent: both results come of the same mask.
    return pairs, F.softmax(some @ rows.T, 1), inner.sum(axis=0), F.arange(inner.shape[0]), some


FUNCTIONS = (masked, twice, pairs, boxes, written, branched, looped, leaving)


def flat(made: Any) -> list[mge.Tensor]:
    return [t for part in made for t in flat(part)] if isinstance(made, (tuple, list)) else [made]


def agree(f: Function, compiled: Function, x: mge.Tensor) -> None:
    for got, want in zip(flat(compiled(x)), flat(f(x)), strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_no_row_one_few_and_many(f: Function) -> None:
    compiled = jit.compile(dynamic={0: {0: "n"}})(f)
    for rows in (6, 40, 1):
        for seed, shift in enumerate(SHIFTS):
            agree(f, compiled, table(rows, shift, seed))
    assert compiled.counters.phases > compiled.counters.iterations
    if f is looped:  # Each turn enters programs that are small.
        return
    # What is between programs is part of the one before: native code is entered once for each.
    assert compiled.counters.entries <= 1.5 * compiled.counters.phases


def test_heads_of_what_is_found_share_programs() -> None:
    """Detectors take the best of the boxes above a score: half of them, or a number at most."""

    def best(x: mge.Tensor) -> Any:
        scores = x[x > 0]
        half = F.topk(scores, (scores.shape[0] + 1) // 2)
        return *half, F.topk(scores, scores.shape[0], no_sort=True)[0].sum()

    compiled = jit.compile(best)
    for rows in range(20, 60):
        numbers = np.where(np.arange(64) < rows, np.arange(64) % 7 + 1, -1).astype("float32")
        agree(best, compiled, mge.tensor(numbers))
    (only,) = compiled.variants
    assert only.runner is not None
    assert [p.count for p in only.runner.phases.programs] == [1, 1]
    values, places, total = compiled(F.zeros(64))
    assert values.shape == places.shape == (0,) and total.item() == 0


def test_numbers_of_rows_share_programs() -> None:
    compiled = jit.compile(lambda x: F.exp(chosen(x)))
    for rows in range(20, 60):
        x = table(64, -1.0).numpy().copy()
        x[:, 0] = np.arange(64) < rows
        assert compiled(mge.tensor(x)).shape == (rows, 4)
    (only,) = compiled.variants
    assert only.runner is not None
    assert [p.count for p in only.runner.phases.programs] == [1, 1]
    assert compiled.counters.iterations == 40 and compiled.counters.phases == 80


def test_programs_of_one_number_of_rows_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """On devices each number has its own: a server must not collect them for ever."""
    monkeypatch.setattr(phase_programs, "MOST_RUNNERS", 1)
    function = jit.compile(lambda x: x[x > 0].sum())
    for _ in range(2):
        for numbers in ([-1.0, -2.0], [-1.0, 2.0]):
            function(mge.tensor(numbers))
    assert (function.counters.iterations, function.counters.phases) == (4, 8)
    (variant,) = function.variants
    assert isinstance(variant.runner, programs.PhasedRunner)
    last = variant.runner.phases.programs[-1]
    assert (last.count, len(last._made), len(last._ready)) == (4, 1, 1)


def test_an_explanation_has_the_phases() -> None:
    compiled = jit.compile(lambda x: chosen(x) * 2)
    compiled(table(6, 0.0))
    text = compiled.explain(table(6, 0.0))
    assert "then decided" in text and "nonzero -> int32[nonzero_0,1]" in text
    assert "program <lambda>.1:" in text and "program <lambda>.2:" in text
    told = compiled.explain(table(6, 0.0), form="json")
    assert [phase["programs"] for phase in told["phases"]] == [1, 1] and len(told["parts"]) == 2


def asking(x: mge.Tensor) -> mge.Tensor:
    return chosen(x) * int(chosen(x).shape[0])


def stretching(x: mge.Tensor) -> mge.Tensor:
    return chosen(x) + F.ones((6, 4))


@pytest.mark.parametrize("options", [{}, {"capture_as_const": True}, {"without_host": True}])
def test_traced_functions_run_in_phases(options: dict[str, bool]) -> None:
    for f in (boxes, branched, leaving):
        traced = jit.trace(f, **options)
        for seed, shift in enumerate((*SHIFTS, 0.0)):
            agree(f, traced, table(6, shift, seed))
        if not options.get("without_host"):
            assert sum(map(len, traced._variants.values())) == 1
        assert "then decided" in traced.explain()


def test_traced_functions_may_ask_for_what_data_decide() -> None:
    """They run op by op then, and so where an extent of 1 stretches."""
    asked, stretched = jit.trace(asking), jit.trace(stretching)
    for shift in SHIFTS:
        agree(asking, asked, table(6, shift))
    for rows in (6, 1):
        x = table(6, 0.0).numpy().copy()
        x[:, 0] = np.arange(6) < rows
        agree(stretching, stretched, mge.tensor(x))
    with pytest.raises(ShapeError, match="cannot broadcast axis -2: 0 against 6"):
        stretched(table(6, -9.0))


def test_phases_that_only_print(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is returned behind the last decision, and prints stay in order."""

    @jit.compile
    def told(x: mge.Tensor) -> mge.Tensor:
        def some() -> mge.Tensor:
            jit.print("in {}", (x[:, 0] > 0).sum())
            return chosen(x).sum()

        total = jit.cond(x.sum() > -99, some, lambda: x.sum())
        jit.print("behind {}", (total > 0).astype("int32"))
        jit.print("rows {}", F.non_zero(x[:, 0] > 0).sum())
        return x * 2

    told(table(6, 9.0)).numpy()
    told(table(6, -99.0)).numpy()
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["in 6", "behind 1", "rows 15", "behind 0", "rows 0"]


def test_weights_of_loops_are_packed_once_and_changes_are_seen() -> None:
    weight = mge.Parameter(table(4, 0.0, 3).numpy())

    def looped(x: mge.Tensor) -> mge.Tensor:
        return jit.while_loop(
            lambda i, s: i < 3,
            lambda i, s: (i + 1, s + chosen(s @ weight).sum()),
            (mge.tensor(0), x),
        )[1]

    compiled = jit.compile(looped)
    for _ in range(3):
        agree(looped, compiled, table(6, 0.0))
        weight[...] = weight * 0.5


def step_of(w: mge.Tensor) -> Function:
    manager, optimizer = GradManager().attach([w]), optim.SGD([w], lr=0.01, momentum=0.9)

    def step(x: mge.Tensor) -> mge.Tensor:
        with manager:
            y = x @ w
            loss = (y[x[:, 0] > 0] ** 2).sum() + F.softmax(chosen(x) @ w, 1)[:, 0].sum()
            loss = loss + jit.cond(x.sum() > 0, lambda: (y[x[:, 1] > 0] ** 2).sum(), y.sum)
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    return step


def test_a_training_step_with_a_mask() -> None:
    start = table(4, 0.0, 5)[:, :3]
    weights = [mge.Parameter(start.numpy()) for _ in range(2)]
    steps = step_of(weights[0]), jit.compile(step_of(weights[1]))
    for seed, shift in enumerate((*SHIFTS, 0.0)):
        want, got = (step(table(6, shift, seed)) for step in steps)
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4)
    np.testing.assert_allclose(weights[1].numpy(), weights[0].numpy(), rtol=1e-4)


def test_gradients_of_rows_that_a_function_returns() -> None:
    w = mge.Parameter(table(4, 0.0, 5).numpy())
    manager = GradManager().attach([w])
    compiled = jit.compile(lambda x: chosen(x) @ w)
    for seed, shift in enumerate((*SHIFTS, 0.0)):
        x, found = table(6, shift, seed), []
        for f in (compiled, lambda x: chosen(x) @ w):
            with manager:
                manager.backward((f(x) ** 2).sum())
            found.append(w.grad.numpy())
            w.grad = None
        np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_is_said_with_the_line() -> None:
    first = jit.compile(lambda x: chosen(x)[0])
    assert first(table(6, 9.0)).shape == (4,)
    with pytest.raises(IndexRangeError, match="index 0 is out of range"):
        first(table(6, -9.0))
    largest = jit.compile(lambda x: F.max(chosen(x)))
    with pytest.raises(ShapeError, match=r"max: axis 0 has no elements[^$]*test_phases"):
        largest(table(6, -9.0))
    added = jit.compile(lambda x: chosen(x) + F.ones((6, 4)))
    assert added(table(6, 9.0)).shape == (6, 4)
    inside = jit.compile(
        lambda x: jit.cond(x.sum() > -99, lambda: stretching(x).sum(), lambda: x.sum())
    )
    assert inside(table(6, 9.0)).shape == ()
    with pytest.raises(
        ShapeError, match=r"add: cannot broadcast axis -2: 0 against 6|does not hold"
    ):
        inside(table(6, 0.0))
    one = jit.compile(lambda x: chosen(x) + F.ones((2, 4)))
    with pytest.raises(ShapeError, match="nonzero_0 - 2 == 0 does not hold"):
        one(mge.tensor(np.eye(2, 4, dtype="float32")))
    with pytest.raises(ShapeError, match="add: cannot broadcast axis -2: 0 against 6"):
        added(table(6, -9.0))


def test_python_gets_no_number_that_data_decide() -> None:
    for f in (
        lambda x: chosen(x) * len(chosen(x)),
        lambda x: chosen(x) if chosen(x).shape[0] else x,
    ):
        with pytest.raises(ShapeError, match="data decide it"):
            jit.compile(f)(table(6, 0.0))
    uneven = jit.compile(lambda x: jit.scan(lambda s, row: (s, row[row > 0]), (x,), (x,)))
    with pytest.raises(TraceError, match="data decide an extent of what the body"):
        uneven(table(6, 0.0))
