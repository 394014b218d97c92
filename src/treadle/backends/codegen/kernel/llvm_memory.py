"""LLVM text of instructions that touch memory or make addresses."""

from __future__ import annotations

from treadle.backends.codegen.kernel.ir import Instruction
from treadle.backends.codegen.kernel.language import InstructionOperand, KernelError
from treadle.backends.codegen.kernel.llvm_values import Handler, result_type
from treadle.backends.codegen.kernel.llvm_writer import (
    LLVMWriter,
    literal,
    mangled,
    memory_element,
    spread,
    vector,
)
from treadle.base import dtype as dt
from treadle.base.dtype import DType

_STREAMED = ", !nontemporal !0"


def _address(w: LLVMWriter, pointer: InstructionOperand, index: InstructionOperand) -> str:
    """The address of an element."""
    if not pointer.type.pointer or index.dtype is not dt.int64:
        raise KernelError(f"{w.kernel}: {pointer.type}[{index.type}] is not a place in memory")
    if index.literal == 0:
        return w.operand(pointer)
    of = memory_element(pointer.dtype)
    return w.op(f"getelementptr {of}, ptr {w.operand(pointer)}, i64 {w.operand(index)}")


def _alignment(dtype: DType, lanes: int, aligned: bool) -> int:
    """Bytes that divide the address: of the element, or of the vector where it is a power of 2."""
    size = min(lanes * dtype.itemsize, 64)
    return size if aligned and size & (size - 1) == 0 else dtype.itemsize


def _from_memory(w: LLVMWriter, dtype: DType, lanes: int, x: str) -> str:
    if dtype is not dt.bool_:
        return x
    return w.op(f"icmp ne {vector('i8', lanes)} {x}, {spread('i8', lanes, '0')}")


def _to_memory(w: LLVMWriter, dtype: DType, lanes: int, x: str) -> str:
    if dtype is not dt.bool_:
        return x
    return w.op(f"zext {vector('i1', lanes)} {x} to {vector('i8', lanes)}")


def _as_vector(w: LLVMWriter, of: str, lanes: int, x: str) -> str:
    """A scalar as a vector of one lane, which is what masked intrinsics take."""
    return w.op(f"insertelement <1 x {of}> poison, {of} {x}, i64 0") if lanes == 1 else x


def _load(w: LLVMWriter, instruction: Instruction) -> str:
    pointer, index, *mask = instruction.arguments
    (aligned,) = instruction.detail
    lanes = result_type(w, instruction).lanes
    of, align = memory_element(pointer.dtype), _alignment(pointer.dtype, lanes, aligned)
    address = _address(w, pointer, index)
    if mask and mask[0].literal is None:
        return _masked_load(w, pointer.dtype, lanes, address, mask[0], align)
    if mask and not mask[0].literal:
        return literal(0, pointer.dtype, lanes)
    loaded = w.op(f"load {vector(of, lanes)}, ptr {address}, align {align}")
    return _from_memory(w, pointer.dtype, lanes, loaded)


def _check_mask(w: LLVMWriter, mask: InstructionOperand, lanes: int) -> None:
    if mask.dtype is not dt.bool_ or mask.lanes != lanes:
        raise KernelError(f"{w.kernel}: a mask of type {mask.type} for {lanes} lanes")


def _masked_load(
    w: LLVMWriter, dtype: DType, lanes: int, address: str, mask: InstructionOperand, align: int
) -> str:
    _check_mask(w, mask, lanes)
    of = memory_element(dtype)
    vec, bits = f"<{lanes} x {of}>", _as_vector(w, "i1", lanes, w.operand(mask))
    loaded = w.call(
        vec,
        f"llvm.masked.load.v{lanes}{mangled(of, 1)}.p0",
        ("ptr", address),
        ("i32", str(align)),
        (f"<{lanes} x i1>", bits),
        (vec, "zeroinitializer"),
    )
    if lanes == 1:
        loaded = w.op(f"extractelement {vec} {loaded}, i64 0")
    return _from_memory(w, dtype, lanes, loaded)


def _store(w: LLVMWriter, instruction: Instruction) -> str:
    pointer, index, value, *mask = instruction.arguments
    aligned, streaming = instruction.detail
    dtype, lanes = pointer.dtype, value.lanes
    of, align = memory_element(dtype), _alignment(dtype, lanes, aligned)
    address = _address(w, pointer, index)
    text = _to_memory(w, dtype, lanes, w.operand(value))
    if mask and mask[0].literal is None:
        _masked_store(w, dtype, lanes, text, address, mask[0], align)
        return ""
    if mask and not mask[0].literal:
        return ""
    streamed = streaming and aligned
    w.streams = w.streams or streamed
    suffix = _STREAMED if streamed else ""
    w.effect(f"store {vector(of, lanes)} {text}, ptr {address}, align {align}{suffix}")
    return ""


def _masked_store(
    w: LLVMWriter,
    dtype: DType,
    lanes: int,
    text: str,
    address: str,
    mask: InstructionOperand,
    align: int,
) -> None:
    _check_mask(w, mask, lanes)
    of = memory_element(dtype)
    w.call(
        "void",
        f"llvm.masked.store.v{lanes}{mangled(of, 1)}.p0",
        (f"<{lanes} x {of}>", _as_vector(w, of, lanes, text)),
        ("ptr", address),
        ("i32", str(align)),
        (f"<{lanes} x i1>", _as_vector(w, "i1", lanes, w.operand(mask))),
    )


def _addresses(w: LLVMWriter, pointer: InstructionOperand, indices: InstructionOperand) -> str:
    """One address per lane; always a vector."""
    if not pointer.type.pointer or indices.dtype not in (dt.int32, dt.int64):
        raise KernelError(f"{w.kernel}: {pointer.type}[{indices.type}] is not a place in memory")
    of, lanes = memory_element(pointer.dtype), indices.lanes
    kind = f"i{indices.dtype.bits}"
    text = _as_vector(w, kind, lanes, w.operand(indices))
    base = w.operand(pointer)
    return w.op(f"getelementptr {of}, ptr {base}, <{lanes} x {kind}> {text}")


def _lane_mask(w: LLVMWriter, mask: list[InstructionOperand], lanes: int) -> str:
    if not mask:
        return "splat (i1 true)"
    _check_mask(w, mask[0], lanes)
    return _as_vector(w, "i1", lanes, w.operand(mask[0]))


def _gather(w: LLVMWriter, instruction: Instruction) -> str:
    pointer, indices, *mask = instruction.arguments
    dtype, lanes = pointer.dtype, indices.lanes
    of = memory_element(dtype)
    vec = f"<{lanes} x {of}>"
    loaded = w.call(
        vec,
        f"llvm.masked.gather.v{lanes}{mangled(of, 1)}.v{lanes}p0",
        (f"<{lanes} x ptr>", _addresses(w, pointer, indices)),
        ("i32", str(dtype.itemsize)),
        (f"<{lanes} x i1>", _lane_mask(w, mask, lanes)),
        (vec, "zeroinitializer"),
    )
    if lanes == 1:
        loaded = w.op(f"extractelement {vec} {loaded}, i64 0")
    return _from_memory(w, dtype, lanes, loaded)


def _scatter(w: LLVMWriter, instruction: Instruction) -> str:
    pointer, indices, value, *mask = instruction.arguments
    dtype, lanes = pointer.dtype, indices.lanes
    of = memory_element(dtype)
    text = _to_memory(w, dtype, lanes, w.operand(value))
    w.call(
        "void",
        f"llvm.masked.scatter.v{lanes}{mangled(of, 1)}.v{lanes}p0",
        (f"<{lanes} x {of}>", _as_vector(w, of, lanes, text)),
        (f"<{lanes} x ptr>", _addresses(w, pointer, indices)),
        ("i32", str(dtype.itemsize)),
        (f"<{lanes} x i1>", _lane_mask(w, mask, lanes)),
    )
    return ""


def _offset(w: LLVMWriter, instruction: Instruction) -> str:
    return _address(w, *instruction.arguments)


def _reinterpret(w: LLVMWriter, instruction: Instruction) -> str:
    return w.operand(instruction.arguments[0])


def _address_of(w: LLVMWriter, instruction: Instruction) -> str:
    return w.op(f"ptrtoint ptr {w.operand(instruction.arguments[0])} to i64")


def _stack(w: LLVMWriter, instruction: Instruction) -> str:
    """Reserved in the function's first block, where it costs nothing."""
    (count,) = instruction.detail
    name = w.fresh()
    of = memory_element(result_type(w, instruction).dtype)
    w.stack.append(f"  {name} = alloca [{count} x {of}], align 64")
    return name


def _prefetch(w: LLVMWriter, instruction: Instruction) -> str:
    pointer, index = instruction.arguments
    (write,) = instruction.detail
    address = _address(w, pointer, index)
    hints = (("i32", str(int(write))), ("i32", "3"), ("i32", "1"))
    w.call("void", "llvm.prefetch.p0", ("ptr", address), *hints)
    return ""


def _bytes(w: LLVMWriter, count: InstructionOperand, dtype: DType) -> str:
    if count.literal is not None:
        return str(int(count.literal) * dtype.itemsize)
    text = w.operand(count)
    return text if dtype.itemsize == 1 else w.op(f"mul i64 {text}, {dtype.itemsize}")


def _copy(w: LLVMWriter, instruction: Instruction) -> str:
    target, source, count = instruction.arguments
    if target.type != source.type:
        raise KernelError(f"{w.kernel}: copy from {source.type} to {target.type}")
    align = f"ptr align {target.dtype.itemsize}"
    to, where = (align, w.operand(target)), (align, w.operand(source))
    size = ("i64", _bytes(w, count, target.dtype))
    w.call("void", "llvm.memcpy.p0.p0.i64", to, where, size, ("i1", "false"))
    return ""


def _zero(w: LLVMWriter, instruction: Instruction) -> str:
    target, count = instruction.arguments
    to = (f"ptr align {target.dtype.itemsize}", w.operand(target))
    size = ("i64", _bytes(w, count, target.dtype))
    w.call("void", "llvm.memset.p0.i64", to, ("i8", "0"), size, ("i1", "false"))
    return ""


HANDLERS: dict[str, Handler] = {
    "load": _load,
    "store": _store,
    "gather": _gather,
    "scatter": _scatter,
    "offset": _offset,
    "reinterpret": _reinterpret,
    "address": _address_of,
    "stack": _stack,
    "prefetch": _prefetch,
    "copy": _copy,
    "zero": _zero,
}
