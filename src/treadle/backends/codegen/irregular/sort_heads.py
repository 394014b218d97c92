"""Lines of 64-bit keys sorted by their upper halves, which mostly decide.

Half the digits are looked at, of words that carry the elements' numbers. Where a few neighbors then
have equal heads, they are put in order one by one; where many have, the line is to be sorted anew.
"""

from __future__ import annotations

from dataclasses import replace

from treadle.backends.codegen.irregular.sort_lines import SHORT, Line, sort_line
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.language import KernelError, Pointer, Value, minimum, select
from treadle.base import dtype as dt

_MOST = 256
"""Neighbors with equal heads that are put in order."""
_HEAD = ~0xFFFFFFFF & (1 << 64) - 1


def sort_by_heads(e: Builder, line: Line) -> Value:
    """Sort a line of 64-bit keys; where its words begin then."""
    numbers, at = _numbers(line), [line.extent]
    with e.when(line.extent <= SHORT, changing=at):
        at[0] = sort_line(e, line)
    with e.otherwise():
        _join(e, line)
        heads = replace(line, keys=numbers, numbers=None)
        at[0] = sort_line(e, heads)
        level = _equal_heads(e, heads, at[0])
        with e.when(level <= minimum(_MOST, line.extent // 8), changing=at):
            _mend(e, line, at[0])
        with e.otherwise():
            with e.loop(line.extent) as i:
                numbers.store(i, i.cast(dt.uint64))
            at[0] = sort_line(e, line)
    return at[0]


def _numbers(line: Line) -> Pointer:
    if line.numbers is None:
        raise KernelError("keys of 32 bits have no heads")
    return line.numbers


def _join(e: Builder, line: Line) -> None:
    """Heads of keys above the numbers."""
    numbers = _numbers(line)
    with e.loop(line.extent) as i:
        head = line.keys[i] & _HEAD
        numbers[i] = head | numbers[i]


def _same_head(words: Pointer, i: Value) -> Value:
    """Return whether a word and the one before it have one head."""
    differ = words[i] ^ words[i - 1]
    return (differ >> 32) == 0


def _equal_heads(e: Builder, line: Line, at: Value) -> Value:
    """Return the number of words of the sorted line that have the head of the one before."""
    count = [e.index(0)]
    with e.loop(at + 1, at + line.extent, carrying=count) as i:
        count[0] = count[0] + _same_head(line.keys, i).cast(dt.int64)
    return count[0]


def _mend(e: Builder, line: Line, at: Value) -> None:
    """Insert every word into the run of equal heads that ends before it."""
    words, run = _numbers(line), [at]
    with e.loop(at + 1, at + line.extent, carrying=run) as i:
        same = _same_head(words, i)
        run[0] = select(same, run[0], i)
        with e.when(same):
            left = [words[i]]
            with e.loop(run[0], i, carrying=left) as j:
                other = words[j]
                first = _before(line, left[0], other)
                words.store(j, select(first, left[0], other))
                left[0] = select(first, other, left[0])
            words[i] = left[0]


def _before(line: Line, x: Value, y: Value) -> Value:
    """Return whether the element of word x comes before that of y, whose heads are equal."""
    one, two = (line.keys[(w & 0xFFFFFFFF).cast(dt.int64)] for w in (x, y))
    level = (one == two) & (x < y)
    return (one < two) | level
