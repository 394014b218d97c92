"""Functions whose axes are named in `dynamic`: one capture for all extents that take its course."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.base.errors import IndexRangeError, ShapeError
from treadle.base.guards import deciding, require
from treadle.base.log import get_logger
from treadle.base.symbol import equal, evaluate, less_equal, maximum, symbol
from treadle.jit import choosing
from treadle.jit.choosing import extents_in
from treadle.jit.compiled import signature
from treadle.jit.dynamic import extents_of
from treadle.ops.indexing import bounds_of
from treadle.ops.methods import resolve_shape

Function = Callable[[mge.Tensor], mge.Tensor]
LENGTHS = (4, 8, 6, 1, 2, 8)


def rows(n: int) -> mge.Tensor:
    return mge.tensor(np.random.default_rng(n).standard_normal((n, 4), "float32"))


def counted(function: Function) -> tuple[Function, list[int]]:
    """The function, compiled for any number of rows, and a mark for each time its body runs."""
    runs: list[int] = []

    def body(x: mge.Tensor) -> mge.Tensor:
        runs.append(1)
        return function(x)

    return jit.compile(dynamic={0: {0: "n"}})(body), runs


ONE_COURSE: dict[str, Function] = {
    "as a number": lambda x: x * x.shape[0] + x.shape[0] - x.size,
    "as a divisor": lambda x: x.sum() / x.shape[0],
    "on the left": lambda x: x.shape[0] - 2 * x,
    "arange": lambda x: F.arange(x.shape[0]) + x[:, 0],
    "arange of two": lambda x: F.arange(2, x.shape[0] + 2, dtype="int32"),
    "arange backwards": lambda x: x[F.arange(x.shape[0] - 1, -1, -1, dtype="int32")],
    "arange by steps": lambda x: F.arange(x.shape[0] ** 2, 0, -x.shape[0]),
    "filled": lambda x: F.full((2, 3), x.shape[0]) + F.full_like(x[:2, :3], x.shape[0] * 2),
    "one hot": lambda x: F.one_hot(F.arange(x.shape[0], dtype="int32"), x.shape[0] + 1),
    "eye": lambda x: F.eye(x.shape[0]) @ x,
    "zeros": lambda x: F.zeros(x.shape) + x,
    "full": lambda x: F.full((x.shape[0], 2), 3.0),
    "reshape": lambda x: F.reshape(x, (2, x.shape[0] * 2)),
    "broadcast": lambda x: F.broadcast_to(x[:1], x.shape),
    "tile": lambda x: F.tile(x[:1], (x.shape[0], 1)),
    "split in parts": lambda x: F.split(F.concat([x, x]), 2, axis=0)[1],
    "slice to a half": lambda x: x[: x.shape[0] // 2],
    "slice from behind": lambda x: x[-1:],
    "every second": lambda x: x[::2],
    "backwards": lambda x: x[::-1],
    "backwards by two": lambda x: x[::-2],
    "the last by number": lambda x: x[x.shape[0] - 1],
    "cross entropy": lambda x: F.loss.cross_entropy(x, F.zeros(x.shape[0], dtype="int32")),
    "mean": lambda x: x.mean(axis=0) * x.shape[0],
    "linspace": lambda x: F.linspace(0, 1, x.shape[0]),
    "mask": lambda x: x * (F.arange(x.shape[0]).reshape(-1, 1) < x.shape[0] - 1),
}


@pytest.mark.parametrize("name", ONE_COURSE)
def test_one_capture_serves_all_extents_from_two(name: str) -> None:
    function = ONE_COURSE[name]
    compiled, runs = counted(function)
    for n in LENGTHS:
        got, want = compiled(rows(n)), function(rows(n))
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6, atol=1e-6)
    assert len(runs) == 2, "one for 1, which broadcasts, and one for all others"


PINS: dict[str, Function] = {
    "loop": lambda x: sum([x[i] for i in range(x.shape[0])]),  # type: ignore[return-value]
    "rows": lambda x: sum(list(x)),  # type: ignore[arg-type,return-value]
    "float": lambda x: x * (1.0 / x.shape[0]),
    "root": lambda x: x / math.sqrt(x.shape[0]),
    "power": lambda x: x * x.shape[0] ** -0.5,
    "diag": lambda x: F.diag(x[:, 0]),
}


@pytest.mark.parametrize("name", PINS)
def test_a_number_that_is_asked_for_is_a_program_of_its_own(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    function = PINS[name]
    compiled, runs = counted(function)
    logger = get_logger("jit")
    logger.addHandler(caplog.handler)
    try:
        for n in LENGTHS:
            want = function(rows(n)).numpy()
            np.testing.assert_allclose(compiled(rows(n)).numpy(), want, rtol=1e-5, atol=1e-6)
    finally:
        logger.removeHandler(caplog.handler)
    assert len(runs) == 5
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert (len(told) == 1 and "n at " in told[0].replace("// 2", "")) or "n" in told[0]
    assert "test_dynamic.py:" in told[0], "the user's line is named"


COURSES: dict[str, tuple[Function, int]] = {
    "compared": (lambda x: x * 2 if x.shape[0] > 4 else x * 3, 3),
    "equal": (lambda x: x * 2 if x.shape[0] == 4 else x * 3, 3),
    "unequal": (lambda x: x * 2 if x.shape[0] != 4 else x * 3, 3),
    "odd": (lambda x: x * 2 if x.shape[0] % 4 else x * 3, 3),
    "least": (lambda x: x[: min(x.shape[0], 4)], 3),
    "most": (lambda x: F.zeros((max(x.shape[0], 6), 2)), 3),
    "chain": (lambda x: x * 2 if 2 <= x.shape[0] <= 6 else x * 3, 3),
    "split in three": (lambda x: F.split(x, 3)[0] if x.shape[0] >= 3 else x, 3),
}


@pytest.mark.parametrize("name", COURSES)
def test_a_question_is_answered_and_guarded(name: str) -> None:
    function, captures = COURSES[name]
    for order in ((4, 8, 6, 1, 2, 8), (8, 6, 2, 1, 4, 5), (1, 2, 6, 4, 8, 3)):
        compiled, runs = counted(function)
        for n in order:
            np.testing.assert_array_equal(compiled(rows(n)).numpy(), function(rows(n)).numpy())
        assert len(runs) == captures


def test_results_do_not_depend_on_the_order_of_extents() -> None:
    def function(x: mge.Tensor) -> mge.Tensor:
        y = F.softmax(x @ x.T, axis=-1) @ x
        return y[: x.shape[0] // 2 + 1] / (x.shape[0] if x.shape[0] < 7 else 7)

    found: dict[int, set[bytes]] = {}
    for order in list(permutations((2, 5, 7, 9)))[::5]:
        compiled, _ = counted(function)
        for n in order:
            found.setdefault(n, set()).add(compiled(rows(n)).numpy().tobytes())
    assert all(len(results) == 1 for results in found.values())


def test_random_numbers_of_all_extents_are_those_of_eager_calls() -> None:
    dropped = mge.module.Dropout(0.5)

    def function(x: mge.Tensor) -> mge.Tensor:
        return dropped(x + 3) + mge.random.normal(0, 1, (x.shape[0], 4))

    compiled, runs = counted(function)
    for run in (compiled, function):
        mge.random.seed(7)
        if run is compiled:
            got = [compiled(rows(n)).numpy() for n in (3, 9, 1, 3, 600)]
        else:
            want = [function(rows(n)).numpy() for n in (3, 9, 1, 3, 600)]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert len(runs) == 2


def test_an_empty_axis_is_a_course_of_its_own() -> None:
    compiled, runs = counted(lambda x: x * 2 if x.shape[0] else F.zeros((1, 4)))
    assert [compiled(rows(n)).shape for n in (3, 0, 5, 0)] == [(3, 4), (1, 4), (5, 4), (1, 4)]
    assert len(runs) == 2


def test_what_cannot_hold_at_the_call_is_the_ops_own_error() -> None:
    compiled, _ = counted(lambda x: x + F.zeros((3, 4)))
    assert compiled(rows(3)).shape == (3, 4)
    with pytest.raises(ShapeError, match=r"cannot broadcast axis(.|\n)*; n = 5"):
        compiled(rows(5))


@pytest.mark.parametrize("at", [5, -6])
@pytest.mark.parametrize("dynamic", [{0: {0: "n"}}, True, None])
def test_a_number_that_is_no_place_is_an_index_error_at_every_extent(at: int, dynamic: Any) -> None:
    compiled = jit.compile(dynamic=dynamic)(lambda x: x[at] * 2)
    for n in (8, 7, 5, 6, 2, 9, 1, 0):
        if n > 5:
            np.testing.assert_array_equal(compiled(rows(n)).numpy(), rows(n).numpy()[at] * 2)
            continue
        with pytest.raises(IndexRangeError, match=f"index {at} is out of range") as raised:
            compiled(rows(n))
        assert f"n = {n}" in str(raised.value) or f"of size {n}\n" in str(raised.value)


def test_families_are_not_kept_for_ever() -> None:
    compiled: Any
    compiled, _ = counted(lambda x: x * float(x.shape[0]))
    for n in range(2, 2 + jit.compiled.MOST_VARIANTS + 3):
        assert compiled(rows(n)).shape == (n, 4)
    assert sum(map(len, compiled._captures.families.values())) <= jit.compiled.MOST_VARIANTS


# -- decisions by themselves -----------------------------------------------------------------


def test_exactly_the_extents_that_answer_alike_pass_the_guards() -> None:
    """Random questions: the guards hold for an extent if and only if it gets the same answers."""
    rng = random.Random(5)
    n, m = symbol("n", 2), symbol("m", 2)
    for _ in range(60):
        made = [n, m, 2 * n - m, n // 3, m % 4, maximum(n, m), n * m]
        questions = []
        for _ in range(rng.randint(1, 4)):
            x, y = rng.choice(made), rng.choice([*made, rng.randint(0, 9)])
            questions.append((rng.choice(["lt", "le", "eq", "ne", "gt", "ge", "bool"]), x, y))

        def answers(n: int, m: int, questions: list[Any] = questions) -> list[bool]:
            values = {"n": n, "m": m}
            return [_asked(k, evaluate(x, values), evaluate(y, values)) for k, x, y in questions]

        at = {"n": rng.randint(2, 12), "m": rng.randint(2, 12)}
        with deciding(at) as decisions:
            found = [_asked(kind, x, y) for kind, x, y in questions]
        assert found == answers(**at) and not decisions.pins
        for a in range(2, 13):
            for b in range(2, 13):
                holds = all(g.holds({"n": a, "m": b}) for g in decisions.guards)
                assert holds == (answers(a, b) == found)


def _asked(kind: str, x: Any, y: Any) -> bool:
    if kind == "bool":
        return bool(x)
    symbolic = {"lt": "__lt__", "le": "__le__", "gt": "__gt__", "ge": "__ge__"}
    if kind in symbolic:
        return bool(getattr(x, symbolic[kind])(y))
    return bool(x == y) if kind == "eq" else bool(x != y)


def test_numbers_are_pins_with_the_line_that_asked() -> None:
    n = symbol("n", 2)
    with deciding({"n": 6}) as decisions:
        assert int(n // 2) == 3 and float(n) == 6.0 and n / 4 == 1.5 and 3.0 * n == 18.0
        assert list(range(n)) == list(range(6)) and n**-1 == 1 / 6 and n**2 == n * n
    assert set(map(str, decisions.pins)) == {"((n) // (2))", "n"}
    assert all(place.file.endswith("test_dynamic.py") for place in decisions.pins.values())
    assert [g for g in decisions.guards if not g.holds({"n": 7})]


def test_what_ranges_answer_is_no_guard() -> None:
    n = symbol("n", 2)
    with deciding({"n": 6}) as decisions:
        assert n != 1 and n - 1 != -1 and 2 * n - 1 != 2 and symbol("m", 2, 5) != 6
        assert bounds_of(slice(None), n - 5) == (0, n - 5, 1)
        assert resolve_shape((n, 4), (2, n, 2)) == (2, n, 2)
    assert not decisions.guards
    with deciding({"n": 4}) as decisions:  # As op by op, where an extent that is -1 is computed.
        assert resolve_shape((n, 3), (n - 5, 3)) == (n, 3)
    assert [str(g) for g in decisions.guards] == ["n - 4 == 0"]


def test_rules_state_and_are_refused_at_the_call() -> None:
    n = symbol("n", 2)
    with deciding({"n": 6}) as decisions:
        require(less_equal(n, 9), lambda: ShapeError("op", "too long"))
        with pytest.raises(ShapeError, match="not four"):
            require(equal(n, 4), lambda: ShapeError("op", "not four"))
    assert list(decisions.guards) == [less_equal(n, 9)]


@pytest.mark.parametrize(
    "given", ["batch", {0}, {0: 0}, {0: {0: 1}}, {"x": {0: "n"}}, {0: {-1: "n"}}, {0: ("n",)}]
)
def test_what_names_no_axes_is_refused_in_words(given: Any) -> None:
    with pytest.raises(ShapeError, match=r"(?s)which axes may change.*0: 'batch'"):
        jit.compile(lambda x: x, dynamic=given)


def test_axes_that_part_from_one_with_a_number_are_open_again() -> None:
    """A text that is as long as the model is wide closes the axis of its length for one call."""
    w = mge.tensor(np.random.default_rng(0).standard_normal((8, 3), "float32"))
    runs: list[int] = []

    def body(x: mge.Tensor) -> mge.Tensor:
        runs.append(1)
        return F.softmax(x @ w, 0)

    compiled = jit.compile(dynamic=True)(body)
    for n in (8, 5, 6, 7, 8, 9):
        x = mge.tensor(np.random.default_rng(n).standard_normal((n, 8), "float32"))
        np.testing.assert_allclose(compiled(x).numpy(), F.softmax(x @ w, 0).numpy(), rtol=1e-5)
    assert len(runs) == 4, "both axes, neither, both again, the length"
    assert [len(fs) for fs in compiled._captures.families.values()] == [1]


def test_signatures_that_differ_in_extents_alone_are_known_by_that() -> None:
    rng = random.Random(0)
    axes = {0: {0: "n", 2: "m"}, 2: {1: "n"}}

    def arguments() -> list[mge.Tensor]:
        n, m = rng.choice([1, 2, 3, 4]), rng.choice([0, 2, 3])
        kind = rng.choice(["float32"] * 5 + ["int32"])
        other = n if rng.random() < 0.9 else n + 1
        shapes = (n, rng.choice([4, 4, 5]), m), (3,), (2, other, *[1] * (rng.random() < 0.1))
        given = [mge.tensor(np.zeros(shape, kind)) for shape in shapes]
        return given if rng.random() < 0.9 else [*given[:2], given[0]]

    met: list[Any] = []
    agreed = 0
    for _ in range(400):
        leaves = arguments()
        key, _ = signature(tuple(leaves), {})
        try:
            extents = extents_of(leaves, axes)
        except ShapeError:
            assert all(extents_in(fixed, key) is None for fixed in met)
            continue
        mine = choosing._fixed_part(key, axes)
        for fixed in met:
            found = extents_in(fixed, key)
            assert found == (extents if fixed == mine else None)
            agreed += found is not None
        if min(extents.values()) > 1 and mine not in met:
            met.append(mine)
    assert agreed > 50


def test_declared_extents_are_held_to() -> None:
    length = jit.Extent("length", low=4, high=64, multiple=4)
    runs: list[int] = []

    def body(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        runs.append(1)
        if x.shape[0] > 100 or x.shape[0] % 2:
            raise AssertionError("neither is possible")
        return (x + y).sum(0)

    compiled = jit.compile(dynamic={0: {0: length}, 1: {0: length}})(body)
    for n in (4, 64, 8):
        assert compiled(rows(n), rows(n)).shape == (4,)
    assert len(runs) == 1
    for n, problem in (
        (68, "'length' is 68, and declared as 4 to 64"),
        (3, "'length' is 3, and declared as 4 to 64"),
        (0, "'length' is 0"),
        (6, "'length' is 6, and declared as a multiple of 4"),
    ):
        with pytest.raises(ShapeError, match=problem):
            compiled(rows(n), rows(n))
    assert len(runs) == 1


@pytest.mark.parametrize(
    "given",
    [
        {"low": -1},
        {"high": 1},
        {"low": 9, "high": 8},
        {"multiple": 0},
        {"low": 2.5},
        {"high": True},
        {"edges": (8, 4)},
        {"edges": (4, 4)},
        {"edges": (4, 9), "high": 8},
        {"edges": (3,), "low": 4},
        {"edges": (4.5,)},
        {"edges": 8},
        {"hint": 9, "high": 8},
        {"hint": 1},
        {"hint": 9, "multiple": 2},
        {"hint": "8"},
    ],
)
def test_declarations_that_leave_no_extent_are_refused(given: Any) -> None:
    with pytest.raises(ShapeError, match="extent"):
        jit.Extent("n", **given)


def test_one_name_has_one_declaration() -> None:
    with pytest.raises(ShapeError, match="'n' is declared in two ways"):
        jit.compile(dynamic={0: {0: jit.Extent("n", high=8), 1: jit.Extent("n", high=9)}})(rows)
