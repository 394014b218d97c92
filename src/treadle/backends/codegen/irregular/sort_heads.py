"""Lines of 64-bit keys sorted by their upper halves, which mostly decide.

Half the digits are looked at, of words that carry the elements' numbers. Where a few neighbors then
have equal heads, they are put in order one by one; where many have, the line is to be sorted anew.
"""

from __future__ import annotations

from dataclasses import replace

from treadle.backends.codegen.irregular.sort_lines import SHORT, Line, sort_line
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import KernelError, Value
from treadle.base import dtype as dt

_MOST = 256
"""Neighbors with equal heads that are put in order."""
_HEAD = ~0xFFFFFFFF & (1 << 64) - 1


def sort_by_heads(b: Builder, line: Line) -> Value:
    """Sort a line of 64-bit keys; where its words begin then."""
    numbers = _numbers(line)

    def heads_first() -> Value:
        _join(b, line)
        heads = replace(line, keys=numbers, numbers=None)
        at = sort_line(b, heads)
        level = _equal_heads(b, heads, at)
        few = b.compare("le", level, b.min(b.index(_MOST), b.div(line.extent, 8)))

        def mended() -> Value:
            _mend(b, line, at)
            return at

        def anew() -> Value:
            b.loop(0, line.extent, 1, lambda i: b.store(numbers, i, b.cast(i, dt.uint64)))
            return sort_line(b, line)

        return b.branch(few, mended, anew, like=(at,))[0]

    short = b.compare("le", line.extent, SHORT)
    return b.branch(short, lambda: sort_line(b, line), heads_first, like=(line.extent,))[0]


def _numbers(line: Line) -> Value:
    if line.numbers is None:
        raise KernelError("keys of 32 bits have no heads")
    return line.numbers


def _join(b: Builder, line: Line) -> None:
    """Heads of keys above the numbers."""
    numbers = _numbers(line)

    def one(i: Value) -> None:
        head = b.bitwise("and", b.load(line.keys, i), _HEAD)
        b.store(numbers, i, b.bitwise("or", head, b.load(numbers, i)))

    b.loop(0, line.extent, 1, one)


def _same_head(b: Builder, words: Value, i: Value) -> Value:
    """Whether a word and the one before it have one head."""
    differ = b.bitwise("xor", b.load(words, i), b.load(words, b.sub(i, 1)))
    return b.compare("eq", b.bitwise("shr", differ, 32), 0)


def _equal_heads(b: Builder, line: Line, at: Value) -> Value:
    """How many words of the sorted line have the head of the one before."""

    def one(i: Value, count: Value) -> Value:
        return b.add(count, b.cast(_same_head(b, line.keys, i), dt.int64))

    return b.loop(b.add(at, 1), b.add(at, line.extent), 1, one, (b.index(0),))[0]


def _mend(b: Builder, line: Line, at: Value) -> None:
    """Insert every word into the run of equal heads that ends before it."""
    words = _numbers(line)

    def insert(start: Value, i: Value) -> None:
        def step(j: Value, mine: Value) -> Value:
            other = b.load(words, j)
            first = _before(b, line, mine, other)
            b.store(words, j, b.select(first, mine, other))
            return b.select(first, other, mine)

        (left,) = b.loop(start, i, 1, step, (b.load(words, i),))
        b.store(words, i, left)

    def one(i: Value, start: Value) -> Value:
        same = _same_head(b, words, i)
        run = b.select(same, start, i)
        b.branch(same, lambda: insert(run, i))
        return run

    b.loop(b.add(at, 1), b.add(at, line.extent), 1, one, (at,))


def _before(b: Builder, line: Line, x: Value, y: Value) -> Value:
    """Whether the element of word x comes before that of y, whose heads are equal."""
    one, two = (
        b.load(line.keys, b.cast(b.bitwise("and", w, 0xFFFFFFFF), dt.int64)) for w in (x, y)
    )
    level = b.bitwise("and", b.compare("eq", one, two), b.compare("lt", x, y))
    return b.bitwise("or", b.compare("lt", one, two), level)
