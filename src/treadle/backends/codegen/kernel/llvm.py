"""Kernels as LLVM's text: one module, one external function per kernel.

Every value is a value of LLVM, too; loops carry theirs in phis. Nothing is left to LLVM's
optimizer, so that its pass pipeline need not run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from treadle.backends.codegen.kernel import llvm_matrices, llvm_memory, llvm_values
from treadle.backends.codegen.kernel.ir import (
    Block,
    Branch,
    Call,
    Instruction,
    KernelModule,
    KernelRoutine,
    Loop,
    Statement,
)
from treadle.backends.codegen.kernel.language import INDEX, InstructionOperand, KernelError
from treadle.backends.codegen.kernel.llvm_dot import dot
from treadle.backends.codegen.kernel.llvm_lookup import lookup
from treadle.backends.codegen.kernel.llvm_writer import LLVMWriter, llvm_type
from treadle.backends.codegen.kernel.text import symbol_of
from treadle.backends.codegen.target import Target

__all__ = ["module_text", "symbol_of"]

_HANDLERS = {
    **llvm_values.HANDLERS,
    **llvm_memory.HANDLERS,
    **llvm_matrices.HANDLERS,
    "dot": dot,
    "lookup": lookup,
}
_NOT_IN_SYMBOLS = re.compile(r"\W", re.ASCII)


def module_text(kernels: Sequence[KernelModule], target: Target) -> str:
    """LLVM assembly that defines `void <symbol>(ptr args, i64 lo, i64 hi)` for every kernel.

    `args` points to slots of 8 bytes, one for each parameter. Kernels that are equal appear once.

    Raises:
        KernelError: a kernel is not of the language.
    """
    declarations: dict[str, str] = {}
    bodies: list[str] = []
    for symbol, kernel in {symbol_of(k): k for k in kernels}.items():
        bodies += _kernel_lines(kernel, symbol, target, declarations)
    head = [f'target triple = "{target.triple}"'] if target.triple else []
    tail = [*declarations.values(), _attributes(target), "!0 = !{i32 1}", "!1 = !{}", ""]
    return "\n".join((*head, *bodies, *tail))


def _attributes(target: Target) -> str:
    """LLVM likes 256 bits better than 512 on some processors; our vectors are what they are."""
    bits = 8 * target.vector_bytes
    width = f'"min-legal-vector-width"="{bits}" "prefer-vector-width"="{bits}"'
    return f"attributes #0 = {{ nounwind {width} }}"


def _kernel_lines(
    kernel: KernelModule, symbol: str, target: Target, declarations: dict[str, str]
) -> list[str]:
    """The kernel's function and those it calls."""
    symbols: dict[KernelRoutine, str] = {}
    lines: list[str] = []
    for number, function in enumerate(kernel.functions):
        writer = LLVMWriter(kernel.name, target, declarations, symbols)
        names = [writer.fresh() for _ in function.parameters]
        for parameter, name in zip(function.parameters, names, strict=True):
            writer.define(parameter, name)
        inner = ", ".join(map(writer.typed, function.parameters))
        own = f"{symbol}.{number}.{_NOT_IN_SYMBOLS.sub('_', function.name)}"
        lines += _function_lines(writer, f"internal void @{own}({inner})", function)
        symbols[function] = own
    writer = LLVMWriter(kernel.name, target, declarations, symbols)
    _define_slots(writer, kernel)
    header = f"void @{symbol}(ptr noalias readonly %args, i64 %lo, i64 %hi)"
    return lines + _function_lines(writer, header, kernel.entry)


def _define_slots(w: LLVMWriter, kernel: KernelModule) -> None:
    """Load the parameters of the entry from the argument table."""
    if len(kernel.entry.parameters) < 2:
        raise KernelError(f"{kernel.name}: an entry ends with the parameters lo and hi")
    *slots, lo, hi = kernel.entry.parameters
    for position, parameter in enumerate(slots):
        if not parameter.type.pointer and parameter.type != INDEX:
            raise KernelError(f"{kernel.name}: a parameter of type {parameter.type}")
        slot = w.op(f"getelementptr i64, ptr %args, i64 {position}")
        of = llvm_type(parameter.type)
        w.define(parameter, w.op(f"load {of}, ptr {slot}, align 8, !invariant.load !1"))
    w.define(lo, "%lo")
    w.define(hi, "%hi")


def _function_lines(w: LLVMWriter, header: str, function: KernelRoutine) -> list[str]:
    _block(w, function.body)
    if w.streams:
        # Streaming stores are not ordered with others until a fence.
        w.effect("fence seq_cst")
    return [f"define {header} #0 {{", "entry:", *w.stack, *w.lines, "  ret void", "}", ""]


# -- statements --------------------------------------------------------------------------------


def _block(w: LLVMWriter, block: Block) -> None:
    for statement in block.statements:
        if isinstance(statement, Instruction):
            _instruction(w, statement)
        else:
            _structure(w, statement)


def _instruction(w: LLVMWriter, instruction: Instruction) -> None:
    handler = _HANDLERS.get(instruction.code)
    if handler is None:
        raise KernelError(f"{w.kernel}: no instruction is called {instruction.code}")
    operand = handler(w, instruction)
    if instruction.result is not None:
        w.define(instruction.result, operand)


def _structure(w: LLVMWriter, statement: Statement) -> None:
    if isinstance(statement, Loop):
        _loop(w, statement)
    elif isinstance(statement, Branch):
        _branch(w, statement)
    elif isinstance(statement, Call):
        _call(w, statement)


def _call(w: LLVMWriter, call: Call) -> None:
    symbol = w.symbols.get(call.function)
    if symbol is None:
        raise KernelError(f"{w.kernel}: {call.function.name} is called before it is listed")
    w.effect(f"call void @{symbol}({', '.join(map(w.typed, call.arguments))})")


def _loop(w: LLVMWriter, loop: Loop) -> None:
    """Tested before the first turn and after each one, the form that LLVM's loop passes want."""
    start, stop, step = (w.operand(v) for v in (loop.start, loop.stop, loop.step))
    initial = [w.operand(v) for v in loop.initial]
    body, end = w.new_label("loop"), w.new_label("end")
    certain = _turns_for_sure(loop)
    before = w.label
    if certain:
        w.effect(f"br label %{body}")
    else:
        enters = w.op(f"icmp slt i64 {start}, {stop}")
        w.effect(f"br i1 {enters}, label %{body}, label %{end}")
    w.begin(body)
    place = len(w.lines)
    with w.scope():
        index, carried = w.fresh(), [w.fresh() for _ in loop.carried]
        w.define(loop.index, index)
        for value, name in zip(loop.carried, carried, strict=True):
            w.define(value, name)
        _block(w, loop.body)
        yielded = [w.operand(v) for v in loop.yielded]
    after = w.op(f"add nsw i64 {index}, {step}")
    again = w.op(f"icmp slt i64 {after}, {stop}")
    latch = w.label
    w.effect(f"br i1 {again}, label %{body}, label %{end}")
    # The phis at the top name what only the end of the body knows.
    phis = [_phi(index, "i64", ((start, before), (after, latch)))]
    for name, value, first, last in zip(carried, loop.carried, initial, yielded, strict=True):
        phis.append(_phi(name, llvm_type(value.type), ((first, before), (last, latch))))
    w.lines[place:place] = phis
    w.begin(end)
    skipped = None if certain else before
    _results(w, loop.results, ((initial, skipped), (yielded, latch)))


def _turns_for_sure(loop: Loop) -> bool:
    start, stop = loop.start.literal, loop.stop.literal
    return start is not None and stop is not None and start < stop


def _branch(w: LLVMWriter, branch: Branch) -> None:
    condition = w.operand(branch.condition)
    then, otherwise, end = w.new_label("then"), w.new_label("else"), w.new_label("end")
    before = w.label
    empty = not branch.otherwise.statements
    w.effect(f"br i1 {condition}, label %{then}, label %{end if empty else otherwise}")
    first = _side(w, then, branch.then, branch.then_values, end)
    if empty:
        second = [w.operand(v) for v in branch.otherwise_values], before
    else:
        second = _side(w, otherwise, branch.otherwise, branch.otherwise_values, end)
    w.begin(end)
    _results(w, branch.results, (first, second))


def _side(
    w: LLVMWriter, label: str, block: Block, values: Iterable[InstructionOperand], end: str
) -> tuple[list[str], str]:
    """One side of a branch: what it gives, and the block it ends in."""
    w.begin(label)
    with w.scope():
        _block(w, block)
        operands = [w.operand(v) for v in values]
    last = w.label
    w.effect(f"br label %{end}")
    return operands, last


def _results(
    w: LLVMWriter,
    results: Sequence[InstructionOperand],
    ways: Sequence[tuple[list[str], str | None]],
) -> None:
    """Write phis at the start of a block, over the ways that lead there."""
    taken = [(operands, label) for operands, label in ways if label is not None]
    for position, value in enumerate(results):
        name = w.fresh()
        entries = tuple((operands[position], label) for operands, label in taken)
        w.lines.append(_phi(name, llvm_type(value.type), entries))
        w.define(value, name)


def _phi(name: str, of: str, ways: Iterable[tuple[str, str]]) -> str:
    entries = ", ".join(f"[ {operand}, %{label} ]" for operand, label in ways)
    return f"  {name} = phi {of} {entries}"
