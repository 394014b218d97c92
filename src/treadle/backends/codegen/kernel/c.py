"""Kernels as plain C (C11): a loop over the lanes for every vector instruction.

Made to be read and to run anywhere, not to be fast: a second opinion on what kernels mean, and the
ground that dialects of C for other devices grow from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from treadle.backends.codegen.kernel.c_values import (
    PRELUDE,
    arithmetic,
    c_type,
    cast,
    compare,
    fma,
    literal,
    widen,
)
from treadle.backends.codegen.kernel.ir import (
    ARITHMETIC,
    BITWISE,
    COMPARE,
    INDEX,
    UNARY,
    Block,
    Branch,
    Call,
    Function,
    Instruction,
    Kernel,
    KernelError,
    Loop,
    Statement,
    Type,
    Value,
)
from treadle.backends.codegen.kernel.text import symbol_of
from treadle.backends.codegen.target import Target
from treadle.base import dtype as dt

_NOT_IN_NAMES = re.compile(r"\W", re.ASCII)


def c_source(kernels: Sequence[Kernel], target: Target) -> str:
    """A translation unit that defines `void <symbol>(const int64_t *args, int64_t lo, int64_t hi)`
    for every kernel; `args` has one slot of 8 bytes per parameter.

    Raises:
        KernelError: a kernel is not of the language.
    """
    vectors: dict[str, str] = {}
    bodies: list[str] = []
    for symbol, kernel in {symbol_of(k): k for k in kernels}.items():
        try:
            bodies += _kernel_lines(kernel, symbol, target, vectors)
        except KernelError as error:
            raise KernelError(f"{kernel.name}: {error}") from None
    return "\n".join((PRELUDE, *vectors.values(), "", *bodies, ""))


def _kernel_lines(
    kernel: Kernel, symbol: str, target: Target, vectors: dict[str, str]
) -> list[str]:
    symbols: dict[Function, str] = {}
    lines: list[str] = []
    for number, function in enumerate(kernel.functions):
        printer = _Printer(target, vectors, symbols)
        own = f"{symbol}_{number}_{_NOT_IN_NAMES.sub('_', function.name)}"
        inner = ", ".join(printer.declare(p) for p in function.parameters)
        lines += printer.function(f"static void {own}({inner})", function)
        symbols[function] = own
    printer = _Printer(target, vectors, symbols)
    *slots, lo, hi = kernel.entry.parameters
    for position, parameter in enumerate(slots):
        where = f"args[{position}]"
        if parameter.type.pointer:
            where = f"({c_type(parameter.dtype)} *)(intptr_t){where}"
        elif parameter.type != INDEX:
            raise KernelError(f"a parameter of type {parameter.type}")
        printer.line(f"{printer.declare(parameter)} = {where};")
    bounds = f"{printer.declare(lo)}, {printer.declare(hi)}"
    header = f"void {symbol}(const int64_t *args, {bounds})"
    return lines + printer.function(header, kernel.entry)


class _Printer:
    """Prints one function."""

    def __init__(
        self, target: Target, vectors: dict[str, str], symbols: dict[Function, str]
    ) -> None:
        self.fused = target.fma
        self._vectors = vectors
        self._symbols = symbols
        self._names: dict[Value, str] = {}
        self._lines: list[str] = []
        self._indent = "  "
        self._count = 0

    # -- names and lines -------------------------------------------------------------------

    def line(self, text: str) -> None:
        """One statement."""
        self._lines.append(self._indent + text)

    def type(self, type_: Type) -> str:
        """C's type of a value; vectors are structs around arrays."""
        if type_.pointer:
            return f"{c_type(type_.dtype)} *"
        if type_.lanes == 1:
            return c_type(type_.dtype)
        name = f"{type_.dtype.name}x{type_.lanes}"
        self._vectors.setdefault(
            name, f"typedef struct {{ {c_type(type_.dtype)} v[{type_.lanes}]; }} {name};"
        )
        return name

    def declare(self, value: Value) -> str:
        """A declaration that names the value."""
        self._count += 1
        name = self._names[value] = f"v{self._count}"
        return f"{self.type(value.type)} {name}"

    def lane(self, value: Value, lane: int | str = "i") -> str:
        """One lane of the value, as an expression."""
        if value.literal is not None:
            return literal(value.literal, value.dtype)
        name = self._names.get(value)
        if name is None:
            raise KernelError(f"a value of type {value.type} is used where it is not defined")
        return name if value.lanes == 1 else f"{name}.v[{lane}]"

    def whole(self, value: Value) -> str:
        """The value as an expression; a literal vector becomes a variable."""
        if value.lanes == 1:
            return self.lane(value)
        if value.literal is None:
            return self.lane(value).rpartition(".v[")[0]
        self._count += 1
        name = f"v{self._count}"
        self.line(f"{self.type(value.type)} {name};")
        self.line(f"{_each(value.lanes)}{name}.v[i] = {self.lane(value)};")
        return name

    def lanewise(self, result: Value, expression: str) -> None:
        """Define the result by an expression over lane `i`."""
        if result.lanes == 1:
            self.line(f"{self.declare(result)} = {expression};")
            return
        self.line(f"{self.declare(result)};")
        self.line(f"{_each(result.lanes)}{self.lane(result)} = {expression};")

    # -- statements ------------------------------------------------------------------------

    def function(self, header: str, function: Function) -> list[str]:
        """The function's lines."""
        self.block(function.body)
        return [f"{header} {{", *self._lines, "}", ""]

    def block(self, block: Block) -> None:
        """Statements in order."""
        for statement in block.statements:
            if isinstance(statement, Instruction):
                handler = _HANDLERS.get(statement.code)
                if handler is None:
                    raise KernelError(f"no instruction called {statement.code}")
                handler(self, statement)
            else:
                self._structure(statement)

    def _structure(self, statement: Statement) -> None:
        if isinstance(statement, Loop):
            self._loop(statement)
        elif isinstance(statement, Branch):
            self._branch(statement)
        elif isinstance(statement, Call):
            symbol = self._symbols.get(statement.function)
            if symbol is None:
                raise KernelError(f"{statement.function.name} is called before it is listed")
            self.line(f"{symbol}({', '.join(map(self.whole, statement.arguments))});")

    def _enter(self, header: str) -> set[Value]:
        """Open a block; what was known before it."""
        self.line(header)
        self._indent += "  "
        return set(self._names)

    def _leave(self, known: set[Value]) -> None:
        self._indent = self._indent[:-2]
        self._names = {v: n for v, n in self._names.items() if v in known}

    def _loop(self, loop: Loop) -> None:
        initial = [self.whole(v) for v in loop.initial]
        for value, first in zip(loop.carried, initial, strict=True):
            self.line(f"{self.declare(value)} = {first};")
        start, stop, step = (self.lane(v) for v in (loop.start, loop.stop, loop.step))
        index = self.declare(loop.index)
        name = self._names[loop.index]
        known = self._enter(f"for ({index} = {start}; {name} < {stop}; {name} += {step}) {{")
        self.block(loop.body)
        # All of them are read before any is written: they may swap places.
        after = [(self.whole(v), self.type(v.type)) for v in loop.yielded]
        for position, (text, of) in enumerate(after):
            self.line(f"{of} next{position} = {text};")
        for position, value in enumerate(loop.carried):
            self.line(f"{self._names[value]} = next{position};")
        self._leave(known)
        self.line("}")
        for result, value in zip(loop.results, loop.carried, strict=True):
            self._names[result] = self._names.pop(value)
        del self._names[loop.index]

    def _branch(self, branch: Branch) -> None:
        for result in branch.results:
            self.line(f"{self.declare(result)};")
        sides = (branch.then, branch.then_values), (branch.otherwise, branch.otherwise_values)
        headers = f"if ({self.lane(branch.condition)}) {{", "} else {"
        for header, (block, values) in zip(headers, sides, strict=True):
            known = self._enter(header)
            self.block(block)
            for result, value in zip(branch.results, values, strict=True):
                self.line(f"{self._names[result]} = {self.whole(value)};")
            self._leave(known)
        self.line("}")


def _each(lanes: int) -> str:
    return f"for (int i = 0; i < {lanes}; i++) "


# -- instructions ------------------------------------------------------------------------------


def _result(p: _Printer, instruction: Instruction) -> Value:
    if instruction.result is None:
        raise KernelError(f"{instruction.code} needs a result")
    return instruction.result


def _arithmetic(p: _Printer, instruction: Instruction) -> None:
    args = [p.lane(a) for a in instruction.arguments]
    result = _result(p, instruction)
    p.lanewise(result, arithmetic(instruction.code, result.dtype, args))


def _compare(p: _Printer, instruction: Instruction) -> None:
    args = [p.lane(a) for a in instruction.arguments]
    dtype = instruction.arguments[0].dtype
    p.lanewise(_result(p, instruction), compare(instruction.code, dtype, args))


def _fma(p: _Printer, instruction: Instruction) -> None:
    args = [p.lane(a) for a in instruction.arguments]
    result = _result(p, instruction)
    p.lanewise(result, fma(result.dtype, args, p.fused))


def _select(p: _Printer, instruction: Instruction) -> None:
    condition, x, y = (p.lane(a) for a in instruction.arguments)
    p.lanewise(_result(p, instruction), f"{condition} ? {x} : {y}")


def _cast(p: _Printer, instruction: Instruction) -> None:
    (x,) = instruction.arguments
    result = _result(p, instruction)
    p.lanewise(result, cast(x.dtype, result.dtype, p.lane(x)))


def _bitcast(p: _Printer, instruction: Instruction) -> None:
    (x,) = instruction.arguments
    source, result = x, _result(p, instruction)
    text = p.whole(x)
    p.line(f"{p.declare(result)};")
    name = p.whole(result)
    p.line(f"{{ {p.type(source.type)} bits = {text}; memcpy(&{name}, &bits, sizeof {name}); }}")


def _splat(p: _Printer, instruction: Instruction) -> None:
    p.lanewise(_result(p, instruction), p.lane(instruction.arguments[0]))


def _iota(p: _Printer, instruction: Instruction) -> None:
    result = _result(p, instruction)
    p.lanewise(result, cast(dt.int32, result.dtype, "0" if result.lanes == 1 else "i"))


def _first_lanes(p: _Printer, instruction: Instruction) -> None:
    result = _result(p, instruction)
    lane = "0" if result.lanes == 1 else "i"
    p.lanewise(result, f"{lane} < {p.lane(instruction.arguments[0])}")


def _shuffle(p: _Printer, instruction: Instruction) -> None:
    x, y = instruction.arguments
    result, order = _result(p, instruction), instruction.detail
    if not all(-1 <= lane < 2 * x.lanes for lane in order):
        raise KernelError(f"shuffle of {x.type} by {order}")
    p.line(f"{p.declare(result)};")
    for place, lane in enumerate(order):
        picked = p.lane(x, lane) if lane < x.lanes else p.lane(y, lane - x.lanes)
        p.line(f"{p.lane(result, place)} = {picked if lane >= 0 else '0'};")


def _checked_lane(p: _Printer, instruction: Instruction) -> int:
    lane: int = instruction.detail[0]
    if not 0 <= lane < instruction.arguments[0].lanes:
        raise KernelError(f"no lane {lane} in {instruction.arguments[0].type}")
    return lane


def _extract(p: _Printer, instruction: Instruction) -> None:
    lane = _checked_lane(p, instruction)
    p.lanewise(_result(p, instruction), p.lane(instruction.arguments[0], lane))


def _insert(p: _Printer, instruction: Instruction) -> None:
    x, scalar = instruction.arguments
    result = _result(p, instruction)
    text = p.whole(x)
    p.line(f"{p.declare(result)} = {text};")
    p.line(f"{p.lane(result, _checked_lane(p, instruction))} = {p.lane(scalar)};")


def _reduce(p: _Printer, instruction: Instruction) -> None:
    (x,) = instruction.arguments
    if x.lanes & (x.lanes - 1):
        raise KernelError(f"reduce of {x.type}, lanes are no power of two")
    result = _result(p, instruction)
    text = p.whole(x)
    p.line(f"{p.declare(result)};")
    both = arithmetic(instruction.detail[0], x.dtype, ("r.v[i]", "r.v[i + n]"))
    p.line(f"{{ {p.type(x.type)} r = {text};")
    p.line(f"  for (int n = {x.lanes // 2}; n; n /= 2) for (int i = 0; i < n; i++)")
    p.line(f"    r.v[i] = {both};")
    p.line(f"  {p.whole(result)} = r.v[0]; }}")


def _dot(p: _Printer, instruction: Instruction) -> None:
    total, x, y = instruction.arguments
    kinds, result = (total.dtype, x.dtype, y.dtype), _result(p, instruction)
    if kinds == (dt.int32, dt.uint8, dt.int8) and x.lanes == y.lanes == 4 * total.lanes:
        terms = [f"{a} * {b}" for a, b in _neighbors(p, x, y, 4)]
        p.lanewise(result, f"(int32_t)((uint32_t){p.lane(total)} + {' + '.join(terms)})")
    elif kinds == (dt.int32, dt.int16, dt.int16) and x.lanes == y.lanes == 2 * total.lanes:
        terms = [f"(uint32_t)({a} * {b})" for a, b in _neighbors(p, x, y, 2)]
        p.lanewise(result, f"(int32_t)((uint32_t){p.lane(total)} + {' + '.join(terms)})")
    elif kinds == (dt.float32, dt.bfloat16, dt.bfloat16) and x.lanes == y.lanes == 2 * total.lanes:
        (a, b), (c, d) = _neighbors(p, x, y, 2)
        p.lanewise(result, f"({p.lane(total)} + {c} * {d}) + {a} * {b}")
    else:
        raise KernelError(f"dot of {x.type} and {y.type} into {total.type}")


def _neighbors(p: _Printer, x: Value, y: Value, count: int) -> list[tuple[str, str]]:
    """What goes into lane `i` of a dot, pair by pair."""
    lanes = [str(k) if x.lanes == count else f"{count} * i + {k}" for k in range(count)]
    return [(widen(x.dtype, p.lane(x, k)), widen(y.dtype, p.lane(y, k))) for k in lanes]


# -- memory ------------------------------------------------------------------------------------


def _load(p: _Printer, instruction: Instruction) -> None:
    pointer, index, *mask = instruction.arguments
    place, result = f"{p.lane(pointer)} + {p.lane(index)}", _result(p, instruction)
    if mask:
        lane = "0" if result.lanes == 1 else "i"
        p.lanewise(result, f"{p.lane(mask[0])} ? ({place})[{lane}] : 0")
        return
    p.line(f"{p.declare(result)};")
    p.line(f"memcpy(&{p.whole(result)}, {place}, sizeof {p.whole(result)});")


def _store(p: _Printer, instruction: Instruction) -> None:
    pointer, index, value, *mask = instruction.arguments
    place = f"({p.lane(pointer)} + {p.lane(index)})"
    guard = f"if ({p.lane(mask[0])}) " if mask else ""
    if value.lanes == 1:
        p.line(f"{guard}*{place} = {p.lane(value)};")
    else:
        p.line(f"{_each(value.lanes)}{guard}{place}[i] = {p.lane(value)};")


def _gather(p: _Printer, instruction: Instruction) -> None:
    pointer, indices, *mask = instruction.arguments
    element = f"{p.lane(pointer)}[{p.lane(indices)}]"
    guarded = f"{p.lane(mask[0])} ? {element} : 0" if mask else element
    p.lanewise(_result(p, instruction), guarded)


def _scatter(p: _Printer, instruction: Instruction) -> None:
    pointer, indices, value, *mask = instruction.arguments
    guard = f"if ({p.lane(mask[0])}) " if mask else ""
    each = "" if value.lanes == 1 else _each(value.lanes)
    p.line(f"{each}{guard}{p.lane(pointer)}[{p.lane(indices)}] = {p.lane(value)};")


def _offset(p: _Printer, instruction: Instruction) -> None:
    pointer, index = (p.lane(a) for a in instruction.arguments)
    p.line(f"{p.declare(_result(p, instruction))} = {pointer} + {index};")


def _reinterpret(p: _Printer, instruction: Instruction) -> None:
    result = _result(p, instruction)
    text = p.lane(instruction.arguments[0])
    p.line(f"{p.declare(result)} = ({p.type(result.type)}){text};")


def _stack(p: _Printer, instruction: Instruction) -> None:
    result = _result(p, instruction)
    declared = p.declare(result)
    own = f"{p.lane(result)}_memory"
    p.line(f"_Alignas(64) {c_type(result.dtype)} {own}[{instruction.detail[0]}];")
    p.line(f"{declared} = {own};")


def _prefetch(p: _Printer, instruction: Instruction) -> None:
    """Only a hint, and C has none."""


def _copy(p: _Printer, instruction: Instruction) -> None:
    target, source, count = (p.lane(a) for a in instruction.arguments)
    p.line(f"memcpy({target}, {source}, (size_t){count} * sizeof *{target});")


def _zero(p: _Printer, instruction: Instruction) -> None:
    target, count = (p.lane(a) for a in instruction.arguments)
    p.line(f"memset({target}, 0, (size_t){count} * sizeof *{target});")


_HANDLERS: dict[str, Callable[[_Printer, Instruction], None]] = {
    **dict.fromkeys(ARITHMETIC | BITWISE | UNARY, _arithmetic),
    **dict.fromkeys(COMPARE, _compare),
    "fma": _fma,
    "select": _select,
    "cast": _cast,
    "bitcast": _bitcast,
    "splat": _splat,
    "iota": _iota,
    "first_lanes": _first_lanes,
    "shuffle": _shuffle,
    "extract": _extract,
    "insert": _insert,
    "reduce": _reduce,
    "dot": _dot,
    "load": _load,
    "store": _store,
    "gather": _gather,
    "scatter": _scatter,
    "offset": _offset,
    "reinterpret": _reinterpret,
    "stack": _stack,
    "prefetch": _prefetch,
    "copy": _copy,
    "zero": _zero,
}
