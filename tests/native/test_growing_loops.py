"""Loops whose state has other extents in every turn: lists, caches, rows that are filtered."""

from __future__ import annotations

import io
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.base import tree
from treadle.base.errors import ShapeError, TraceError, TreadleError
from treadle.engine.phases import phase_programs, programs
from treadle.utils.comp_graph_tools import GraphInference

Function = Callable[[mge.Tensor], Any]
STARTS = ((6, 0.0), (6, 0.8), (5, 0.4), (1, 0.5), (9, -3.0), (6, 0.0))
"""Rows, and what is added to numbers about 0."""


def table(rows: int, shift: float) -> mge.Tensor:
    numbers = np.random.default_rng(rows).standard_normal((rows, 4)) + shift
    return mge.tensor(numbers.astype("float32"))


def chosen(x: mge.Tensor) -> mge.Tensor:
    return x[x[:, 0] > 0]


def appended(x: mge.Tensor) -> Any:
    return jit.while_loop(
        lambda i, s: i < 3, lambda i, s: (i + 1, F.concat([s, x])), (mge.tensor(0), x)
    )


def decoded(x: mge.Tensor) -> Any:
    """Keys and values grow alike: one may be multiplied with the other."""
    w = F.ones((4, 4)) * 0.1

    def turn(i: Any, keys: Any, values: Any, token: Any) -> Any:
        keys, values = F.concat([keys, token @ w]), F.concat([values, token * 0.5])
        return i + 1, keys, values, F.softmax(token @ keys.T, 1) @ values

    none = F.zeros((0, 4))
    return jit.while_loop(lambda i, *_: i < 5, turn, (mge.tensor(0), none, none, x[:1]))


def filtered(x: mge.Tensor) -> Any:
    """Few or no rows are left; what one mask has chosen stays of one size."""

    def turn(i: Any, rows: Any, firsts: Any) -> Any:
        mask = rows[:, 0] > 0.3
        return i + 1, (rows - 0.3)[mask] + firsts[mask][:, None], (firsts * 2)[mask]

    return jit.while_loop(lambda i, *_: i < 4, turn, (mge.tensor(0), x, x[:, 1]))


def until_it_is_much(x: mge.Tensor) -> Any:
    return jit.while_loop(
        lambda s: s.sum() < 30, lambda s: F.concat([s, F.abs(x[:1]) + 0.5]), (F.abs(x),)
    )


def last_ones(x: mge.Tensor) -> Any:
    """Slices that count from the end of what grows, and beyond its beginning."""

    def turn(i: Any, s: Any) -> Any:
        return i + 1, F.concat([s, s[-1:] * 0.5, s[-7:2], s[:-2][:1]])

    return jit.while_loop(lambda i, s: i < 3, turn, (mge.tensor(0), x))


def lagging(x: mge.Tensor) -> Any:
    """An extent that becomes what another one was."""

    def turn(i: Any, s: Any, m: Any) -> Any:
        return i + 1, F.concat([s, s[:1]]), F.ones((s.shape[0],)) * m.sum()

    return jit.while_loop(lambda i, *_: i < 4, turn, (mge.tensor(0), x, F.ones((x.shape[0],))))


def apart(x: mge.Tensor) -> Any:
    """Two extents that begin alike and grow differently."""

    def turn(i: Any, a: Any, b: Any) -> Any:
        return i + 1, F.concat([a, x]), F.concat([b, b], 1)

    return jit.while_loop(lambda i, *_: i < 3, turn, (mge.tensor(0), x, F.ones((4, 4))))


def limited(x: mge.Tensor) -> Any:
    return jit.while_loop(lambda s: s.sum() < 1e9, lambda s: F.concat([s, x]), (x,), most=4)


def scanned(x: mge.Tensor) -> Any:
    def turn(s: Any, row: Any) -> Any:
        return F.concat([s, row.reshape(1, 4)]), s.sum() + row

    (last,), (rows,) = jit.scan(turn, (F.zeros((0, 4)),), (x,))
    return last, rows + x


def nested(x: mge.Tensor) -> Any:
    def inner(s: Any) -> Any:
        return jit.while_loop(
            lambda j, t: j < 2, lambda j, t: (j + 1, F.concat([t, s[:1]])), (mge.tensor(0), s)
        )[1]

    def turn(i: Any, s: Any) -> Any:
        return i + 1, jit.cond(s.sum() > 0, lambda: inner(s), lambda: F.concat([s, x]))

    def looped() -> Any:
        return jit.while_loop(lambda i, s: i < 3, turn, (mge.tensor(0), x))[1]

    return jit.cond(x[0, 0] > 0, looped, lambda: chosen(x))


def followed(x: mge.Tensor) -> Any:
    """Loops on what loops and masks have left, and extents as numbers."""
    most = appended(appended(chosen(x))[1])[1]
    return F.softmax(most, 1).sum(0), most.shape[0] * F.ones((1,)), chosen(most)


def drawing(x: mge.Tensor) -> Any:
    def turn(i: Any, s: Any) -> Any:
        return i + 1, F.concat([s, mge.random.uniform(0, 1, (2, 4))])

    return jit.while_loop(
        lambda i, s: (i < 3) & (mge.random.uniform(0, 1, ()) < 2), turn, (mge.tensor(0), x)
    )


def never(x: mge.Tensor) -> Any:
    return jit.while_loop(lambda s: s.sum() > 1e9, lambda s: F.concat([s, x]), (x,))


def from_outside(x: mge.Tensor) -> Any:
    """Extents of the call that nothing has which the loop is given."""
    few = x[:2] * 2
    return jit.while_loop(
        lambda i, s: i < F.abs(few).sum() * 0 + 3,
        lambda i, s: (i + 1, F.concat([s, few[:1] + F.zeros((x.shape[0], 4))])),
        (mge.tensor(0), F.zeros((1, 4))),
    )


FUNCTIONS = (
    last_ones,
    appended, decoded, filtered, until_it_is_much, lagging, apart, limited, scanned, nested,
    followed, drawing, never, from_outside,
)  # fmt: skip


def run(f: Function, x: mge.Tensor) -> list[Any]:
    """The results, and numbers that are drawn afterwards."""
    mge.random.seed(3)
    return [*tree.flatten(f(x))[0], mge.random.uniform(0, 1, (3,))]


def agree(f: Function, other: Function, x: mge.Tensor) -> None:
    for want, got in zip(run(f, x), run(other, x), strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_compiled_loops_grow_as_python_lets_them(f: Function) -> None:
    compiled = jit.compile(dynamic={0: {0: "n"}})(f)
    for start in STARTS:
        agree(f, compiled, table(*start))
    assert compiled.counters.phases >= compiled.counters.iterations
    assert len(compiled.variants) <= 4  # No row count has a capture of its own but 1.


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_traced_loops_grow_as_python_lets_them(f: Function) -> None:
    traced = jit.trace(f)
    for start in (STARTS[0], STARTS[1], STARTS[0]):
        agree(f, traced, table(*start))
    assert sum(map(len, traced._variants.values())) == 1


@pytest.mark.parametrize("f", [f for f in FUNCTIONS if f is not drawing], ids=lambda f: f.__name__)
def test_dumped_loops_grow_at_any_size(f: Function) -> None:
    traced = jit.trace(f, symbolic=True, capture_as_const=True)
    traced(table(6, 0.0))
    file = io.BytesIO()
    traced.dump(file, arg_names=["x"])
    file.seek(0)
    infer = GraphInference(file)
    for rows, shift in STARTS[:3]:
        x = table(rows, shift)
        for got, want in zip(infer.run(x.numpy()).values(), tree.flatten(f(x))[0], strict=True):
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "use",
    [
        lambda last: F.expand_dims(last, 1)[:, 0],
        lambda last: last.reshape(last.shape[0], 4),
        lambda last: F.repeat(last, 2, axis=0),
        lambda last: F.tile(last, (2, 1)),
    ],
)
def test_ops_take_the_last_rows_of_what_grows(use: Function) -> None:
    def grown(x: mge.Tensor) -> Any:
        return jit.while_loop(
            lambda i, s: i < 4, lambda i, s: (i + 1, F.concat([s, use(s[-2:])])), (mge.tensor(0), x)
        )[1]

    x = table(2, 0.5)
    np.testing.assert_allclose(jit.compile(grown)(x).numpy(), grown(x).numpy())


def test_turns_of_other_sizes_share_programs() -> None:
    """None, one, 2 to 15, 16 to 127 and more rows have their own."""
    compiled = jit.compile(
        lambda x: jit.while_loop(
            lambda i, s: i < 140, lambda i, s: (i + 1, F.concat([s, x[:1]])), (mge.tensor(0), x)
        )
    )
    assert compiled(table(2, 0.0))[1].shape == (142, 4)
    (only,) = compiled.variants
    assert isinstance(only.runner, programs.PhasedRunner)
    (loop,) = (n for p in only.runner.phases.programs for n in p.phase.deciding)
    body = only.runner.phases._regions[id(loop.op.body)].phases
    assert [p.count for p in body.programs] == [3]
    assert compiled.counters.phases == 1 + 141 + 140


def test_turns_look_at_what_changes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []
    found = programs.bind
    monkeypatch.setattr(programs, "bind", lambda *given: (looked.append(given), found(*given)))
    counts = []
    for turns in (3, 30):
        compiled = jit.compile(
            lambda x, n: jit.while_loop(
                lambda i, s: i < n, lambda i, s: (i + 1, F.concat([s, x])), (mge.tensor(0), x)
            )
        )
        looked.clear()
        assert compiled(table(3, 0.0), mge.tensor(turns))[1].shape == (3 + 3 * turns, 4)
        counts.append(len(looked))
    assert counts[0] == counts[1] > 0


def test_more_sizes_than_are_kept_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phase_programs, "MOST_INSTANCES", 2)
    compiled = jit.compile(decoded)
    for rows in (6, 3, 6):
        agree(decoded, compiled, table(rows, 0.0))
    runners = [v.runner for v in compiled.variants]
    regions = [r for x in runners if x is not None for r in x.phases._regions.values()]
    inside = [p for r in regions for p in r.phases.programs]
    # Sizes 0 and 1 have programs of their own, which are counted apart.
    assert max(len(p._shared) for p in inside) == 2
    assert all(len(p._ready) == len(p._shared) + len(p._alone) for p in inside)


def test_each_turn_is_held_to_what_the_body_needs() -> None:
    three = np.ones((3, 4), "float32")

    @jit.compile
    def looped(x: mge.Tensor) -> Any:
        def turn(i: Any, s: Any, total: Any) -> Any:
            return i + 1, F.concat([chosen(s), x]), total + (s + three).sum()

        return jit.while_loop(lambda i, *_: i < 3, turn, (mge.tensor(0), x, mge.tensor(0.0)))

    x = -abs(table(3, 9.0))
    assert looped(x)[1].shape == (3, 4)  # No row is left: 3 and 3 and so on.
    with pytest.raises(ShapeError, match=r"3 == 0 does not hold|cannot broadcast axis -2"):
        looped(-x)


def test_what_a_loop_cannot_carry_is_said() -> None:
    x = table(6, 0.0)

    def loop(turn: Function) -> Function:
        return jit.compile(lambda x: jit.while_loop(lambda s: s.sum() < 9, turn, (x,)))

    with pytest.raises(TreadleError, match="value 0 has 2 axes before a turn and 1 after it"):
        loop(lambda s: s.reshape(-1))(x)
    with pytest.raises(TreadleError, match="the body's results: value 0 does not fit"):
        loop(lambda s: F.concat([s, s]).astype("float16"))(x)
    with pytest.raises(ShapeError, match="the body returns 2 tensors for a state of 1"):
        loop(lambda s: (F.concat([s, s]), s.sum()))(x)
    with pytest.raises(TraceError, match="rows of several sizes"):
        jit.compile(lambda x: jit.scan(lambda s, row: (F.concat([s, s]), s), (x,), (x,)))(x)
    with pytest.raises(TraceError, match="data decide an extent of what the body"):
        jit.compile(lambda x: jit.scan(lambda s, row: (s, row[row > 0]), (x,), (x,)))(x)


def test_branches_take_extents_of_the_call_that_no_value_of_theirs_has() -> None:
    f = jit.compile(dynamic={0: {0: "n"}})(
        lambda x: jit.cond(
            x.sum() > 0,
            lambda: jit.cond(
                x[0, 0] > -99, lambda: chosen(F.ones((x.shape[0], 3))).sum(), lambda: x.sum()
            ),
            lambda: mge.tensor(0.0),
        )
    )
    for rows in (5, 7, 1):
        assert f(table(rows, 9.0)).item() == 3 * rows


def test_an_extent_that_data_decide_and_a_guard_fixes_is_none_of_the_call() -> None:
    """The choice of what to leave open went on for ever."""
    added = jit.compile(lambda x: chosen(x) + F.ones((2, 4)))
    for rows in (6, 5, 7):
        x = -np.ones((rows, 4), "float32")
        x[:2] = 1
        assert added(mge.tensor(x)).shape == (2, 4)


def test_memory_of_a_loop_is_that_of_two_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a turn returns is let go when the next one has run."""
    alive: dict[int, Any] = {}
    most = 0
    ran = programs.Phases.run

    def watched(self: Any, inputs: Any, *others: Any) -> Any:
        nonlocal most
        made = ran(self, inputs, *others)
        alive.update({id(a): weakref.ref(a) for a in made if a.shape[:1] > (2,)})
        for place in [i for i, r in alive.items() if r() is None]:
            del alive[place]
        most = max(most, len(alive))
        return made

    monkeypatch.setattr(programs.Phases, "run", watched)
    compiled = jit.compile(
        lambda x: jit.while_loop(
            lambda i, s: i < 30, lambda i, s: (i + 1, F.concat([s, x])), (mge.tensor(0), x)
        )
    )
    compiled(table(2, 0.0))
    assert 1 <= most <= 2
