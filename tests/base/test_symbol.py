"""Symbolic extents against integer arithmetic, by random expressions."""

import copy
import itertools
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from treadle.base.errors import ShapeError
from treadle.base.guards import deciding, recording_guards, require
from treadle.base.symbol import (
    Dim,
    Expr,
    Relation,
    always,
    bounds,
    divisor,
    equal,
    evaluate,
    less_equal,
    maximum,
    minimum,
    symbol,
)

N, M, K = symbol("n"), symbol("m", 2, 9), symbol("k", 0, 64, multiple=8)
VALUES = st.fixed_dictionaries(
    {
        "n": st.integers(1, 40),
        "m": st.integers(2, 9),
        "k": st.integers(0, 8).map(lambda i: 8 * i),
    }
)
Sides = tuple[Dim, Callable[[dict[str, int]], int]]
"""An expression and the same computation on plain numbers."""

OPERATIONS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "+": (lambda x, y: x + y, lambda x, y: x + y),
    "-": (lambda x, y: x - y, lambda x, y: x - y),
    "*": (lambda x, y: x * y, lambda x, y: x * y),
    "//": (lambda x, y: x // y, lambda x, y: x // y),
    "%": (lambda x, y: x % y, lambda x, y: x % y),
    "min": (minimum, min),
    "max": (maximum, max),
}


def _leaf(name: str, expr: Dim) -> Sides:
    return expr, lambda values: values[name]


def _number(x: int) -> Sides:
    return x, lambda values: x


def _combined(name: str, x: Sides, y: Sides) -> Sides | None:
    symbolic, plain = OPERATIONS[name]
    try:
        expr = symbolic(x[0], y[0])
    except ZeroDivisionError:
        return None
    return expr, lambda values: int(plain(x[1](values), y[1](values)))


LEAVES = st.sampled_from([_leaf("n", N), _leaf("m", M), _leaf("k", K)]) | st.integers(-9, 9).map(
    _number
)


def _grown(inner: st.SearchStrategy[Sides]) -> st.SearchStrategy[Sides]:
    made = st.builds(_combined, st.sampled_from(list(OPERATIONS)), inner, inner)
    return made.filter(lambda x: x is not None).map(lambda x: x or _number(0))


EXPRESSIONS = st.recursive(LEAVES, _grown, max_leaves=10)


def _plain(sides: Sides, values: dict[str, int]) -> int:
    """What plain numbers give; examples that divide by zero are no examples."""
    try:
        return sides[1](values)
    except ZeroDivisionError:
        assume(False)
        raise


@given(EXPRESSIONS, VALUES)
def test_expressions_compute_what_integers_compute(sides: Sides, values: dict[str, int]) -> None:
    expected = _plain(sides, values)
    assert evaluate(sides[0], values) == expected
    low, high = bounds(sides[0])
    assert low <= expected <= high
    known = divisor(sides[0])
    assert expected % known == 0 if known else expected == 0


@given(EXPRESSIONS, EXPRESSIONS, VALUES)
def test_relations_never_contradict_values(x: Sides, y: Sides, values: dict[str, int]) -> None:
    a, b = _plain(x, values), _plain(y, values)
    for relation, holds in ((equal(x[0], y[0]), a == b), (less_equal(x[0], y[0]), a <= b)):
        assert relation.truth() in (None, holds)
        assert relation.holds(values) == holds


@given(EXPRESSIONS, EXPRESSIONS)
def test_guards_are_recorded_exactly_when_undecided(x: Sides, y: Sides) -> None:
    for relation in (equal(x[0], y[0]), less_equal(x[0], y[0])):
        raised = False
        with recording_guards() as guards:
            for _ in range(2):
                try:
                    require(relation, lambda: ShapeError("op", "no"))
                except ShapeError:
                    raised = True
        truth = relation.truth()
        assert raised == (truth is False)
        assert list(guards) == ([relation] if truth is None else [])


@given(EXPRESSIONS, EXPRESSIONS, EXPRESSIONS, st.sampled_from(["min", "max"]))
def test_equal_polynomials_are_one_object(x: Sides, y: Sides, z: Sides, name: str) -> None:
    a, b, c = x[0], y[0], z[0]

    def same(p: Dim, q: Dim) -> bool:
        return p is q or (isinstance(p, int) and p == q)

    assert same(a + b + c, c + (b + a))
    assert same(a * b * c, c * (b * a))
    assert same(a * (b + c), c * a + b * a)
    assert same(a - b, -(b - a))
    assert same((a + b) * (a - b), a * a - b * b)
    assert same(a + 0, a) and same(1 * a, a) and same(a * 0, 0) and same(a - a, 0)
    function = OPERATIONS[name][0]
    assert same(function(a, b), function(b, a))


@given(EXPRESSIONS, EXPRESSIONS)
def test_multiples_divide_exactly(x: Sides, y: Sides) -> None:
    assume(y[0] != 0)
    product = x[0] * y[0]
    assert product // y[0] == x[0]
    assert product % y[0] == 0


@given(EXPRESSIONS, EXPRESSIONS)
def test_equations_are_reduced(x: Sides, y: Sides) -> None:
    assume(isinstance(x[0] - y[0], Expr))
    assert equal(x[0], y[0]) == equal(y[0], x[0]) == equal(6 * x[0], 6 * y[0])


@given(EXPRESSIONS)
def test_text_reads_back_and_copies_are_the_same_object(sides: Sides) -> None:
    expr = sides[0]
    # No builtins: `min` and `max` are ours, and nothing else may occur in the text.
    names = {"__builtins__": {}, "n": N, "m": M, "k": K, "min": minimum, "max": maximum}
    assert eval(str(expr), names) == expr
    assert pickle.loads(pickle.dumps(expr)) == expr
    assert copy.deepcopy(expr) == expr


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (N + 1, "n + 1"),
        (2 * M * N - 3, "2*m*n - 3"),
        (-N, "-n"),
        (1 - N, "-n + 1"),
        (N * N, "n*n"),
        (N // 2, "((n) // (2))"),
        ((N + 1) % M, "((n + 1) % (m))"),
        (minimum(N, M) + maximum(M, N), "max(m, n) + min(m, n)"),
    ],
)
def test_text(expr: Dim, text: str) -> None:
    assert str(expr) == repr(expr) == text


@pytest.mark.parametrize(
    ("expr", "simple"),
    [
        ((N * M) // N, M),
        ((12 * N + 8) // 4, 3 * N + 2),
        ((N + M) * 12 // (4 * (N + M)), 3),
        ((4 * N + 7) // 4, N + 1),
        ((6 * N + 9) // 4, (3 * N) // 2 + 2),
        (N // 2 // 3, N // 6),
        (((N - 1) // 2 + 1 - 1) // 2 + 1, (N + 3) // 4),
        (N // -2, (-N) // 2),
        (0 // N, 0),
        (M // 10, 0),
        (M % 10, M),
        ((5 * N + 7) % 4, (N + 3) % 4),
        (K % 8, 0),
        ((K + 11) % 8, 3),
        ((N * M) % N, 0),
        (minimum(M, 9), M),
        (maximum(M, 1), M),
        (minimum(N, N + 1), N),
    ],
)
def test_what_is_simplified(expr: Dim, simple: Dim) -> None:
    assert expr == simple


def test_what_ranges_and_divisors_decide() -> None:
    assert always(less_equal(2, M)) and always(less_equal(M, 9))
    assert equal(2 * N, 2 * M * K + 7).truth() is False
    low, high = maximum(N - 7, 0), minimum(N, 2)  # x[-7:2] of N elements
    assert always(less_equal(low, N)) and always(less_equal(maximum(low, high), N))
    assert always(less_equal(low, maximum(low, high)))
    assert maximum(N, maximum(N - 1, 0)) is N and minimum(N + 1, minimum(N, 5)) is minimum(N, 5)
    assert less_equal(N + 1, maximum(low, N)).truth() is False
    assert less_equal(low, high).truth() is None
    assert equal(K, 12).truth() is False
    assert equal(N, 4).truth() is None
    assert divisor(K // 4) == 2 and divisor(minimum(K, 12 * N)) == 4
    assert bounds(symbol("odd", 1, 30, multiple=8)) == (8, 24)


def test_numbers_beyond_floats_stay_exact() -> None:
    big = symbol("big", 2**53, 2**53)
    assert equal(big, 2**53 + 1).truth() is False
    assert equal(big, 2**53).truth() is True
    huge = 10**400
    assert bounds(N * huge - 1) == (huge - 1, float("inf"))
    assert bounds((M + huge) // M)[1] == (huge + 9) // 2
    assert less_equal(N, huge).truth() is None


def test_many_levels() -> None:
    expr: Dim = N
    value = 10**30
    for i in range(150):
        expr = maximum(expr // 2 + 1, i) * 1 + M
        value = max(value // 2 + 1, i) + 3
    assert evaluate(expr, {"n": 10**30, "m": 3}) == value


def test_shared_parts_are_evaluated_once() -> None:
    # As a tree this has 2**60 leaves.
    expr: Dim = N
    for _ in range(60):
        expr = maximum(expr % 7, expr // 3)
    assert evaluate(expr, {"n": 4}) == 4


def test_foreign_operands_are_type_errors() -> None:
    operations = (
        lambda: N * None,
        lambda: N % None,
        lambda: N < "3",
        lambda: N**None,
    )
    for operation in operations:
        with pytest.raises(TypeError):
            operation()
    for zero in (lambda: N // 0, lambda: N % 0):
        with pytest.raises(ZeroDivisionError):
            zero()


def test_numpy_integers_are_integers() -> None:
    three = np.int64(3)
    assert N + three == three + N == N + 3
    assert N * three == three * N == 3 * N
    assert (N * 6) // three == 2 * N and (N + 3) % three == N % 3


def test_symbolic_extents_are_no_numbers() -> None:
    for number in (int, range, lambda n: n + 1.5, lambda n: 1.5 - n, lambda n: n / 2):
        with pytest.raises(ShapeError, match="n is symbolic"):
            number(N)
    for question in (lambda: N < 3, lambda: N >= M, lambda: bool(N - 1)):
        with pytest.raises(ShapeError, match="is known only at run time"):
            question()
    assert bool(N) and N > 0 and N > 0, "what ranges decide needs no call"
    assert N != 1 and N != "n"
    with pytest.raises(ShapeError, match="no value is bound to the extent m"):
        evaluate(N + M, {"n": 1})
    for bad in ({"low": 3, "high": 2}, {"low": 9, "high": 15, "multiple": 8}, {"multiple": 0}):
        with pytest.raises(ShapeError, match="can have no value"):
            symbol("bad", **bad)


def test_symbols_of_one_name_with_other_ranges_are_others() -> None:
    x, y = symbol("n"), symbol("n", 3)
    assert x is N and y is not N
    assert x * y is y * x and x + y is y + x and minimum(x, y) is minimum(y, x)


def test_relations_that_may_fail_raise_where_nothing_is_captured() -> None:
    with pytest.raises(ShapeError, match="they differ"):
        require(equal(N, 3), lambda: ShapeError("op", "they differ"))
    assert str(less_equal(N, 3)) == "-n + 3 >= 0" and str(Relation("==0", N - 3)) == "n - 3 == 0"


def test_guards_belong_to_the_innermost_recording_and_its_thread() -> None:
    failures: list[str] = []

    def elsewhere() -> None:
        try:
            require(equal(N, M), lambda: ShapeError("op", "no"))
        except ShapeError as error:
            failures.append(error.problem)

    with recording_guards() as outer:
        with recording_guards() as inner:
            require(equal(N, M), lambda: ShapeError("op", "no"))
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert list(inner) == [equal(M, N)] and not outer
    assert failures == ["no (whether m - n == 0 is known only at run time)"]


def test_threads_make_the_same_objects() -> None:
    count = 8
    ready = threading.Barrier(count)
    made: list[list[Expr]] = []

    def build() -> None:
        ready.wait()
        made.append([(N + i) // 7 * M + i for i in range(3, 300)])  # type: ignore[misc]

    threads = [threading.Thread(target=build) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == count
    for same in zip(*made, strict=True):
        assert all(x is same[0] for x in same)


def test_expressions_nobody_holds_are_forgotten() -> None:
    from treadle.base import symbol as module

    most = 1 << 14
    before = len(module._INTERNED)
    for i in range(1000, 1000 + 2 * most):
        N + i
    assert len(module._INTERNED) <= before + most + 1


def test_arithmetic_asks_the_call_nothing() -> None:
    # Python's -1 and -2 have one hash, so caches compare what differs by them.
    with deciding({"n": 5, "m": 4}) as decisions:
        found = {
            N * a + M * b + c for a in range(-3, 4) for b in range(-3, 4) for c in range(-3, 4)
        }
        assert not decisions.guards
        assert len({x - 1 for x in found}) == len(found) == 343
        assert not decisions.guards
    assert len({hash(x) for x in found if isinstance(x, Expr)}) == 336


def test_expressions_travel_between_processes() -> None:
    # Hashes of strings differ there, so nothing that depends on one may be in the pickle.
    code = (
        "import pickle, sys; from treadle.base.symbol import symbol;"
        "x = pickle.loads(sys.stdin.buffer.read());"
        "sys.exit(x is not (symbol('n') + 1) // symbol('m', 2, 9))"
    )
    data = pickle.dumps((N + 1) // M)
    for seed in itertools.islice("12", 2):
        done = subprocess.run(
            [sys.executable, "-c", code], input=data, env={"PYTHONHASHSEED": seed}, timeout=60
        )
        assert done.returncode == 0
