"""Expressions of extents as straight-line byte code, which a call evaluates in microseconds.

An instruction is four numbers, (code, target, x, y): register `target` becomes what the code makes
of registers x and y. The first registers are the symbols' values, then constants follow. Each
register is written before it is read and no instruction jumps, so what code does is seen by reading
it once. Native code evaluates it (`backends/cpu/executor_text.py`); `evaluate` here says what that
does, and does it where there is none.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from treadle.base.extent import Symbol
from treadle.base.symbol import Applied, Dim, Expr, Function, Relation, symbols_of

Words = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]

ADD, MULTIPLY, DIVIDE, REMAINDER, LEAST, MOST = range(6)
"""Codes that compute; a quotient is rounded down."""
ZERO, NOT_ZERO, NOT_NEGATIVE = range(6, 9)
"""Codes that ask this of register x; evaluation ends where it is not so."""
CODES = 9
DONE, OVERFLOW = -1, -2
"""Results of evaluation, besides the number of a question that was answered with no.

OVERFLOW is for results beyond 64 bits, and for divisors below 1.
"""
_OF: dict[Function, int] = {"floordiv": DIVIDE, "mod": REMAINDER, "min": LEAST, "max": MOST}
_ASKING = {"==0": ZERO, "!=0": NOT_ZERO, ">=0": NOT_NEGATIVE}


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Code with its registers.

    Attributes:
        start: all registers before evaluation: zeros for symbols, then constants, then zeros.
        rows: instructions.
        first: the first of the registers that were asked for, which are the last ones.
    """

    start: Words
    rows: Rows
    first: int


class ExpressionWriter:
    """Writes code for expressions; equal parts are computed once.

    Args:
        symbols: names, in the order in which their values are given.
    """

    def __init__(self, symbols: Sequence[str]) -> None:
        self._given = len(symbols)
        self._symbols = {name: i for i, name in enumerate(symbols)}
        self._constants: dict[int, int] = {}
        self._known: dict[object, int] = {}
        self._rows: list[tuple[int, int, int, int]] = []
        self._count = len(self._symbols)
        self.number(0)

    def number(self, value: int) -> int:
        """The register of a constant."""
        if value not in self._constants:
            self._constants[value] = self.room()
        return self._constants[value]

    def room(self) -> int:
        """A register that this code does not write to."""
        self._count += 1
        return self._count - 1

    def unknown(self, symbol: str) -> int:
        """The register of a symbol that this code does not read."""
        self._symbols[symbol] = self.room()
        return self._symbols[symbol]

    def apply(self, code: int, x: int, y: int) -> int:
        """The register of a result."""
        key = code, x, y
        if key not in self._known:
            self._known[key] = target = self.room()
            self._rows.append((code, target, x, y))
        return self._known[key]

    def of(self, x: Dim) -> int:
        """The register of an expression."""
        if not isinstance(x, Expr):
            return self.number(int(x))
        found = self._known.get(x)
        if found is None:
            parts = [self._term(atoms, factor) for atoms, factor in x.terms if atoms]
            parts += [self.number(factor) for atoms, factor in x.terms if not atoms]
            found = parts[0]
            for part in parts[1:]:
                found = self.apply(ADD, found, part)
            self._known[x] = found
        return found

    def _term(self, atoms: Sequence[Symbol | Applied], factor: int) -> int:
        found = self._atom(atoms[0])
        for atom in atoms[1:]:
            found = self.apply(MULTIPLY, found, self._atom(atom))
        return found if factor == 1 else self.apply(MULTIPLY, found, self.number(factor))

    def _atom(self, atom: Symbol | Applied) -> int:
        if isinstance(atom, Symbol):
            return self._symbols[atom.name]
        return self.apply(_OF[atom.function], self.of(atom.x), self.of(atom.y))

    def ask(self, relation: Relation) -> None:
        """End evaluation where the relation does not hold."""
        at = self.of(relation.expr)
        self._rows.append((_ASKING[relation.kind], at, at, at))

    def finished(self, asked: Iterable[int] = ()) -> tuple[Arithmetic, list[int]]:
        """The code, and where registers have gone.

        Args:
            asked: registers that are to be the last ones, in this order.
        """
        given = dict.fromkeys((*range(self._given), *self._constants.values()))
        wanted = list(asked)
        last = {r: n for n, r in reversed(list(enumerate(wanted))) if r not in given}
        others = [r for r in range(self._count) if r not in last and r not in given]
        place = {register: i for i, register in enumerate((*given, *others))}
        first = len(place)
        place.update({register: first + n for register, n in last.items()})
        rows = [(code, place[t], place[x], place[y]) for code, t, x, y in self._rows]
        zero = place[self._constants[0]]
        for n, register in enumerate(wanted):
            if last.get(register) != n:  # A symbol, a constant, or something asked for twice.
                rows.append((ADD, first + n, place[register], zero))
        start = np.zeros(first + len(wanted), np.int64)
        for value, register in self._constants.items():
            start[place[register]] = value
        moved = [place[register] for register in range(self._count)]
        return Arithmetic(start, np.array(rows, np.int32).reshape(-1, 4), first), moved


_COMPUTED: dict[int, Callable[[int, int], int]] = {
    ADD: operator.add,
    MULTIPLY: operator.mul,
    DIVIDE: operator.floordiv,
    REMAINDER: operator.mod,
    LEAST: min,
    MOST: max,
}
_ASKED: dict[int, Callable[[int], bool]] = {
    ZERO: lambda x: x == 0,
    NOT_ZERO: lambda x: x != 0,
    NOT_NEGATIVE: lambda x: x >= 0,
}


def evaluate(rows: Rows, registers: Words) -> int:
    """Run code on registers, which it changes.

    Returns:
        DONE; the number of the instruction whose question was answered with no; or OVERFLOW.
    """
    values = registers.tolist()
    reached = _evaluated(rows.tolist(), values)
    registers[:] = values
    return reached


def _evaluated(rows: Sequence[Sequence[int]], registers: list[int]) -> int:
    for number, (code, target, x, y) in enumerate(rows):
        first, second = registers[x], registers[y]
        if code >= ZERO:
            if not _ASKED[code](first):
                return number
            continue
        if code in (DIVIDE, REMAINDER) and second < 1:
            return OVERFLOW
        made = _COMPUTED[code](first, second)
        if not -(1 << 63) <= made < 1 << 63:
            return OVERFLOW
        registers[target] = made
    return DONE


class Questions:
    """Relations of symbols as code, for extents that come one after the other.

    Args:
        relations: what is asked.
        symbols: names, in the order in which their values are given; relations of others are left
            out.
    """

    def __init__(self, relations: Iterable[Relation], symbols: Sequence[str]) -> None:
        writer, known = ExpressionWriter(symbols), set(symbols)
        for relation in relations:
            if symbols_of(relation.expr) <= known:
                writer.ask(relation)
        self._code: tuple[list[list[int]], list[int]] | None = None
        with suppress(OverflowError):  # A constant is beyond 64 bits.
            code, _ = writer.finished()
            self._code = code.rows.tolist(), code.start.tolist()

    def answered(self, values: Sequence[int]) -> bool | None:
        """Return whether all relations hold; None where numbers on the way are beyond 64 bits, or
        divisors below 1.
        """
        if self._code is None:
            return None
        rows, start = self._code
        registers = start.copy()
        registers[: len(values)] = values
        reached = _evaluated(rows, registers)
        return None if reached == OVERFLOW else reached == DONE


def evaluate_all(code: Arithmetic, symbols: Words) -> tuple[npt.NDArray[np.bool_], Words]:
    """Run code for many values of its symbols at once, as `evaluate` does for one.

    Args:
        code: with its registers.
        symbols: a row per symbol, a column per set of values.

    Returns:
        Whether evaluation ends with `DONE`, by column, and all registers, a row each.
    """
    registers = np.repeat(code.start[:, None], symbols.shape[1], 1)
    registers[: len(symbols)] = symbols
    fine = np.ones(symbols.shape[1], bool)
    for step, target, x, y in code.rows.tolist():
        first, second = registers[x], registers[y]
        if step >= ZERO:
            fine &= (first == 0, first != 0, first >= 0)[step - ZERO]
            continue
        if step in (DIVIDE, REMAINDER):
            fine &= second >= 1
            second = np.maximum(second, 1)
        elif step in (ADD, MULTIPLY):  # Wide results wrap around; floats tell.
            wide = (np.add, np.multiply)[step](first.astype(np.float64), second)
            fine &= np.abs(wide) < 2.0**63
        registers[target] = _AT_ONCE[step](first, second)
    return fine, registers


_AT_ONCE: tuple[Callable[[Words, Words], Words], ...] = (
    np.add,
    np.multiply,
    np.floor_divide,
    np.remainder,
    np.minimum,
    np.maximum,
)
