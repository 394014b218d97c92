"""Operators of values, and blocks: what they write, and what they refuse."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest

from treadle.backends.codegen.kernel.builder import Builder, KernelBuilder
from treadle.backends.codegen.kernel.ir import KernelModule
from treadle.backends.codegen.kernel.language import (
    KernelError,
    Value,
    fma,
    maximum,
    minimum,
    pointer,
    select,
    size,
)
from treadle.backends.codegen.kernel.text import kernel_text
from treadle.base import dtype as dt


def body_of(kernel: KernelModule) -> str:
    """The text between the braces."""
    lines = kernel_text(kernel).splitlines()
    return textwrap.dedent("\n".join(lines[1:-1]))


def instructions(write: Callable[[Value, Value], object]) -> list[str]:
    """What an expression of two float32 values writes."""
    e = KernelBuilder([p := pointer(dt.float32)])
    write(p[0], p[1])
    return [line.split(" = ")[1].split(":")[0] for line in body_of(e.kernel("k")).splitlines()[2:]]


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (lambda x, y: x + y * 2, ["mul(%4, float32(2))", "add(%3, %5)"]),
        (lambda x, y: 1.0 - x / y, ["div(%3, %4)", "sub(float32(1.0), %5)"]),
        (lambda x, y: -abs(x), ["abs(%3)", "neg(%5)"]),
        (lambda x, y: x % y, ["rem(%3, %4)"]),
        (lambda x, y: (x < y) & (y >= 0.0), ["lt(%3, %4)", "le(float32(0.0), %4)", "and(%5, %6)"]),
        (lambda x, y: ~(x == y), ["eq(%3, %4)", "xor(%5, bool(True))"]),
        (lambda x, y: x > y, ["lt(%4, %3)"]),
        (lambda x, y: x != 0.0, ["ne(%3, float32(0.0))"]),
        (lambda x, y: fma(x, 2.0, y), ["fma(%3, float32(2.0), %4)"]),
        (lambda x, y: minimum(3.0, maximum(x, y)), ["max(%3, %4)", "min(float32(3.0), %5)"]),
        (lambda x, y: select(x < y, x, 0.0), ["lt(%3, %4)", "select(%5, %3, float32(0.0))"]),
        (lambda x, y: x + y.splat(4), ["splat(%4)", "splat(%3)", "add(%6, %5)"]),
        (lambda x, y: x * y + x * y, ["mul(%3, %4)", "add(%5, %5)"]),
    ],
)
def test_operators(write: Callable[[Value, Value], object], expected: list[str]) -> None:
    assert instructions(write) == expected


def test_pointers_move_read_and_write() -> None:
    e = KernelBuilder([p := pointer(dt.float32, "p"), n := size("n")])
    row = p + n * 3
    row[0] = row[1] + 1.0
    row.store(0, row.load(4, 8), aligned=True)
    assert (row + 0) is row
    assert body_of(e.kernel("k")) == textwrap.dedent("""\
        %4 = mul(%1, int64(3)): int64
        %5 = offset(%0, %4): *float32
        %6 = load(%5, int64(1)) [False]: float32
        %7 = add(%6, float32(1.0)): float32
        store(%5, int64(0), %7) [False, False]
        %8 = load(%5, int64(4)) [False]: float32x8
        store(%5, int64(0), %8) [True, False]""")


def test_loops_carry_what_lists_hold() -> None:
    e = KernelBuilder([p := pointer(dt.float32), q := pointer(dt.float32)])
    places, sums = [p], [e.constant(0.0, dt.float32)]
    with e.items(carrying=(places, sums)) as i:
        (here,), (total,) = places, sums
        sums[0] = total + here[i]
        places[0] = here + 4
    q[0] = sums[0]
    assert body_of(e.kernel("k")) == textwrap.dedent("""\
        for %4 = %2 to %3 step int64(1) carrying %5 = %0, %6 = float32(0.0) {
          %7 = load(%5, %4) [False]: float32
          %8 = add(%6, %7): float32
          %9 = offset(%5, int64(4)): *float32
          yield %9, %8
        } -> %10: *float32, %11: float32
        store(%1, int64(0), %11) [False, False]""")


def test_loops_that_turn_once_or_never_are_none() -> None:
    e = KernelBuilder([p := pointer(dt.float32)])
    state = [e.index(5)]
    with e.loop(0, carrying=state) as i:
        p[i] = 1.0
        state[0] = state[0] + 1
    assert state[0].literal == 5
    with e.loop(2, 4, 2, carrying=state) as i:
        p[i] = 2.0
        state[0] = state[0] + i
    assert state[0].literal == 7
    assert body_of(e.kernel("k")) == "store(%0, int64(2), float32(2.0)) [False, False]"


def test_branches_change_what_lists_hold() -> None:
    e = KernelBuilder([n := size("n"), p := pointer(dt.int64)])
    found = [n]
    with e.when(n < 0, changing=found):
        found[0] = -n
    with e.when(n == 7, changing=found):
        found[0] = found[0] + 1
    with e.otherwise():
        found[0] = found[0] + 2
    p[0] = found[0]
    assert body_of(e.kernel("k")) == textwrap.dedent("""\
        %4 = lt(%0, int64(0)): bool
        if %4 {
          %5 = neg(%0): int64
          yield %5
        } else {
          yield %0
        } -> %6: int64
        %7 = eq(%0, int64(7)): bool
        if %7 {
          %8 = add(%6, int64(1)): int64
          yield %8
        } else {
          %9 = add(%6, int64(2)): int64
          yield %9
        } -> %10: int64
        store(%1, int64(0), %10) [False, False]""")


def test_what_is_known_only_when_the_kernel_runs_has_no_truth() -> None:
    e = Builder([n := size("n")])
    with pytest.raises(KernelError, match=r"select\(\), or Builder.when\(\)"):
        bool(n < 3)
    with pytest.raises(KernelError, match=r"select\(\)"):
        assert e.index(1) in [n]


def test_division_says_what_it_divides() -> None:
    e = Builder([n := size("n")])
    with pytest.raises(KernelError, match="// divides integers"):
        n / 2
    with pytest.raises(KernelError, match="/ divides floats"):
        e.constant(1.0, dt.float32) // 2.0


def test_blocks_leave_the_types_they_found() -> None:
    e = Builder([n := size("n")])
    state = [n]
    with (
        pytest.raises(KernelError, match=r"leaves \['bool'\], not \['int64'\]"),
        e.loop(n, carrying=state),
    ):
        state[0] = n < 3
    with pytest.raises(KernelError, match=r"otherwise\(\) follows a when\(\)"), e.otherwise():
        pass


def test_values_stay_in_their_function() -> None:
    n, m = size("n"), size("m")
    with pytest.raises(KernelError, match="n is used before its function begins"):
        n + 1
    e, _ = Builder([n]), Builder([m])
    with pytest.raises(KernelError, match="add takes a value of another function"):
        n + m
    assert e.function("f").name == "f"


def test_numbers_alone_are_no_operands() -> None:
    with pytest.raises(KernelError, match="not a number"):
        minimum(1, 2)
    e = Builder([n := size("n")])
    with pytest.raises(KernelError, match="operands differ in type: float32 and int64"):
        n + e.constant(1.0, dt.float32)
