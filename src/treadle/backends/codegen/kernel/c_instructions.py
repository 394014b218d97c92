"""Instructions in C: an expression for one lane, in a loop over the lanes."""

from __future__ import annotations

from treadle.backends.codegen.kernel.c_printer import Handler, Printer
from treadle.backends.codegen.kernel.c_values import arithmetic, cast, compare, fma, widen
from treadle.backends.codegen.kernel.ir import ARITHMETIC, BITWISE, COMPARE, UNARY, Instruction
from treadle.backends.codegen.kernel.language import InstructionOperand, KernelError
from treadle.base import dtype as dt


def result_of(instruction: Instruction) -> InstructionOperand:
    """The result of an instruction that must have one."""
    if instruction.result is None:
        raise KernelError(f"{instruction.code} needs a result")
    return instruction.result


def _arithmetic(p: Printer, instruction: Instruction) -> None:
    args, result = instruction.arguments, result_of(instruction)

    def lane(i: str) -> str:
        return arithmetic(instruction.code, result.dtype, [p.lane(a, i) for a in args])

    p.lanewise(result, lane, *args)


def _compare(p: Printer, instruction: Instruction) -> None:
    args = instruction.arguments

    def lane(i: str) -> str:
        return compare(instruction.code, args[0].dtype, [p.lane(a, i) for a in args])

    p.lanewise(result_of(instruction), lane, *args)


def _fma(p: Printer, instruction: Instruction) -> None:
    args, result = instruction.arguments, result_of(instruction)
    fused = p.fused or bool(instruction.detail)
    p.lanewise(result, lambda i: fma(result.dtype, [p.lane(a, i) for a in args], fused), *args)


def _select(p: Printer, instruction: Instruction) -> None:
    condition, x, y = args = instruction.arguments
    p.lanewise(
        result_of(instruction),
        lambda i: f"{p.lane(condition, i)} ? {p.lane(x, i)} : {p.lane(y, i)}",
        *args,
    )


def _cast(p: Printer, instruction: Instruction) -> None:
    (x,) = instruction.arguments
    result = result_of(instruction)
    p.lanewise(result, lambda i: cast(x.dtype, result.dtype, p.lane(x, i)), x)


def _bitcast(p: Printer, instruction: Instruction) -> None:
    (x,) = instruction.arguments
    result = result_of(instruction)
    text = p.whole(x)
    p.type(x.type)  # which may have to be defined
    p.line(f"{p.declare(result)};")
    p.line(p.dialect.bitcast(p.whole(result), result.type, text, x.type))


def _splat(p: Printer, instruction: Instruction) -> None:
    (x,) = instruction.arguments
    p.lanewise(result_of(instruction), lambda i: p.lane(x, i), x)


def _iota(p: Printer, instruction: Instruction) -> None:
    result = result_of(instruction)
    p.lanewise(result, lambda i: cast(dt.int32, result.dtype, i))


def _first_lanes(p: Printer, instruction: Instruction) -> None:
    (count,) = instruction.arguments
    p.lanewise(result_of(instruction), lambda i: f"{i} < {p.lane(count)}")


def _shuffle(p: Printer, instruction: Instruction) -> None:
    x, y = instruction.arguments
    result, order = result_of(instruction), instruction.detail
    if not all(-1 <= lane < 2 * x.lanes for lane in order):
        raise KernelError(f"shuffle of {x.type} by {order}")
    p.line(f"{p.declare(result)};")
    for place, lane in enumerate(order):
        value, number = (x, lane) if lane < x.lanes else (y, lane - x.lanes)
        picked = p.lane(value, str(number)) if lane >= 0 else "0"
        p.line(f"{p.lane(result, str(place))} = {picked};")


def _checked_lane(instruction: Instruction) -> str:
    lane: int = instruction.detail[0]
    if not 0 <= lane < instruction.arguments[0].lanes:
        raise KernelError(f"no lane {lane} in {instruction.arguments[0].type}")
    return str(lane)


def _extract(p: Printer, instruction: Instruction) -> None:
    (x,) = instruction.arguments
    number = _checked_lane(instruction)
    p.lanewise(result_of(instruction), lambda _: p.lane(x, number))


def _insert(p: Printer, instruction: Instruction) -> None:
    x, scalar = instruction.arguments
    result = result_of(instruction)
    text = p.whole(x)
    p.line(f"{p.declare(result)} = {text};")
    p.line(f"{p.lane(result, _checked_lane(instruction))} = {p.lane(scalar)};")


def _reduce(p: Printer, instruction: Instruction) -> None:
    (x,) = instruction.arguments
    if x.lanes & (x.lanes - 1):
        raise KernelError(f"reduce of {x.type}, lanes are not a power of two")
    result, code = result_of(instruction), instruction.detail[0]
    text, lane = p.whole(x), p.dialect.lane
    p.line(f"{p.declare(result)};")
    name = p.whole(result)
    if p.dialect.has(x.type):
        _halve(p, instruction, name)
        return
    both = arithmetic(code, x.dtype, (lane("r", "i", x.type), lane("r", "i + n", x.type)))
    p.line(f"{{ {p.type(x.type)} r = {text};")
    p.line(f"  for (int n = {x.lanes // 2}; n; n /= 2) for (int i = 0; i < n; i++)")
    p.line(f"    {lane('r', 'i', x.type)} = {both};")
    p.line(f"  {name} = {lane('r', '0', x.type)}; }}")


def _halve(p: Printer, instruction: Instruction, name: str) -> None:
    """`reduce` of a vector whose lanes have names."""
    (x,) = instruction.arguments
    p.line(f"{{ {p.type(x.type)} r = {p.whole(x)};")
    half = x.lanes // 2
    while half:
        for i in range(half):
            pair = [p.dialect.lane("r", str(k), x.type) for k in (i, i + half)]
            p.line(f"  {pair[0]} = {arithmetic(instruction.detail[0], x.dtype, pair)};")
        half //= 2
    p.line(f"  {name} = {p.dialect.lane('r', '0', x.type)}; }}")


def _dot(p: Printer, instruction: Instruction) -> None:
    total, x, y = args = instruction.arguments
    kinds, result = (total.dtype, x.dtype, y.dtype), result_of(instruction)
    of_bytes = kinds in ((dt.int32, dt.uint8, dt.int8), (dt.int32, dt.int8, dt.int8))
    if of_bytes and x.lanes == y.lanes == 4 * total.lanes:
        count, product, numbers = 4, "{} * {}", True
    elif kinds == (dt.int32, dt.int16, dt.int16) and x.lanes == y.lanes == 2 * total.lanes:
        count, product, numbers = 2, "(uint32_t)({} * {})", True
    elif kinds == (dt.float32, dt.bfloat16, dt.bfloat16) and x.lanes == y.lanes == 2 * total.lanes:
        count, product, numbers = 2, "{} * {}", False
    else:
        raise KernelError(f"dot of {x.type} and {y.type} into {total.type}")

    def lane(i: str) -> str:
        terms = [product.format(a, b) for a, b in _neighbors(p, x, y, count, i)]
        if numbers:
            return f"(int32_t)((uint32_t){p.lane(total, i)} + {' + '.join(terms)})"
        return f"({p.lane(total, i)} + {terms[1]}) + {terms[0]}"

    p.lanewise(result, lane, *args)


def _lookup(p: Printer, instruction: Instruction) -> None:
    (x,) = instruction.arguments
    entries = ", ".join(map(str, instruction.detail))
    # The table as a string of 64-bit words needs no memory of its own in any dialect.
    words = [sum(n << 8 * i for i, n in enumerate(instruction.detail[k : k + 8])) for k in (0, 8)]

    def lane(i: str) -> str:
        code = p.lane(x, i)
        word = f"({code} & 8 ? {words[1]}ull : {words[0]}ull)"
        return f"(uint8_t)({word} >> 8 * ({code} & 7))"

    p.line(f"/* {entries} */")
    p.lanewise(result_of(instruction), lane, x)


def _neighbors(
    p: Printer, x: InstructionOperand, y: InstructionOperand, count: int, lane: str
) -> list[tuple[str, str]]:
    """Return the pairs of operands of one lane of a dot."""
    if x.lanes == count:
        lane = "0"
    first = str(count * int(lane)) if lane.isdecimal() else f"{count} * {lane}"
    lanes = [str(int(first) + k) if first.isdecimal() else f"{first} + {k}" for k in range(count)]
    return [(widen(x.dtype, p.lane(x, k)), widen(y.dtype, p.lane(y, k))) for k in lanes]


# -- memory ------------------------------------------------------------------------------------


def _load(p: Printer, instruction: Instruction) -> None:
    pointer, index, *mask = instruction.arguments
    place, result = f"{p.lane(pointer)} + {p.lane(index)}", result_of(instruction)
    if mask:
        p.lanewise(result, lambda i: f"{p.lane(mask[0], i)} ? ({place})[{i}] : 0", mask[0])
        return
    p.line(f"{p.declare(result)};")
    p.line(p.dialect.load(p.whole(result), result.type, place))


def _each_lane(
    p: Printer, value: InstructionOperand, *others: InstructionOperand
) -> list[tuple[str, str]]:
    """The head of a statement for the lanes of a value, and the lane it is about."""
    if value.lanes == 1:
        return [("", "0")]
    lanes = p.each(value.type, *(v.type for v in others))
    head = p.loop(value.lanes) if "i" in lanes else ""
    return [(head, lane) for lane in lanes]


def _store(p: Printer, instruction: Instruction) -> None:
    pointer, index, value, *mask = instruction.arguments
    place = f"({p.lane(pointer)} + {p.lane(index)})"
    for head, i in _each_lane(p, value, *mask):
        guard = f"if ({p.lane(mask[0], i)}) " if mask else ""
        p.line(f"{head}{guard}{place}[{i}] = {p.lane(value, i)};")


def _gather(p: Printer, instruction: Instruction) -> None:
    pointer, indices, *mask = instruction.arguments

    def lane(i: str) -> str:
        element = f"{p.lane(pointer)}[{p.lane(indices, i)}]"
        return f"{p.lane(mask[0], i)} ? {element} : 0" if mask else element

    p.lanewise(result_of(instruction), lane, indices, *mask)


def _scatter(p: Printer, instruction: Instruction) -> None:
    pointer, indices, value, *mask = instruction.arguments
    for head, i in _each_lane(p, value, indices, *mask):
        guard = f"if ({p.lane(mask[0], i)}) " if mask else ""
        p.line(f"{head}{guard}{p.lane(pointer)}[{p.lane(indices, i)}] = {p.lane(value, i)};")


def _offset(p: Printer, instruction: Instruction) -> None:
    pointer, index = instruction.arguments
    text = f"{p.lane(pointer)} + {p.lane(index)}"
    p.line(f"{p.declare(result_of(instruction))} = {text};")


def _reinterpret(p: Printer, instruction: Instruction) -> None:
    (pointer,) = instruction.arguments
    result = result_of(instruction)
    p.line(f"{p.declare(result)} = ({p.type(result.type)}){p.lane(pointer)};")


def _stack(p: Printer, instruction: Instruction) -> None:
    result = result_of(instruction)
    declared = p.declare(result)
    for line in p.dialect.stack(result.dtype, declared, p.lane(result), instruction.detail[0]):
        p.line(line)


def _prefetch(p: Printer, instruction: Instruction) -> None:
    """Print nothing: a prefetch is only a hint, and C has none."""


def _copy(p: Printer, instruction: Instruction) -> None:
    target, source, count = instruction.arguments
    p.line(p.dialect.copy(p.lane(target), p.lane(source), p.lane(count), target.dtype))


def _zero(p: Printer, instruction: Instruction) -> None:
    target, count = instruction.arguments
    p.line(p.dialect.zero(p.lane(target), p.lane(count), target.dtype))


HANDLERS: dict[str, Handler] = {
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
    "lookup": _lookup,
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
