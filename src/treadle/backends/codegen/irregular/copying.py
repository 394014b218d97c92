"""Plain copies, strided copies of rows, and conversions: launches that other lowerings are made of.

A copy from one address to the same one is harmless: the engine may place an updated array where
its old version was, and may leave out a launch of `copy` that then does nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from treadle.backends.codegen.irregular.rows import (
    bits_of,
    over_rows,
    overlapping_loop,
    row_kernel,
    walk,
)
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.scalars.code import load_value, store_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.ops.transfer import Transfer

_BLOCK = 1 << 16
"""Bytes that a copy moves per row, elements that a conversion does per row: all of one page set."""
NS_PER_BYTE = 0.1


@lowers(Transfer)
def lower_transfer(
    op: Transfer, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """A copy within one memory; the engine asks for it where a value needs a place of its own."""
    nbytes = types[0].open_nbytes
    return Lowered((copy(Ref("output", 0), Ref("input", 0), nbytes),))


def copy(target: Ref, source: Ref, nbytes: Dim) -> Launch:
    """Bytes from one place to another, or to the same."""
    rows = -(-nbytes // _BLOCK)
    cost = min(estimate(nbytes), _BLOCK) * NS_PER_BYTE
    launch = over_rows(_copy_kernel(), (target, source, nbytes), rows, cost, 2 * nbytes)
    return replace(launch, moves=True)


@cache
def _copy_kernel() -> Kernel:
    target, source = pointer(dt.uint8, "target"), pointer(dt.uint8, "source")
    nbytes = size("nbytes")

    def body(b: Builder, first: Value, stop: Value) -> None:
        start = b.mul(first, _BLOCK)
        end = b.min(b.mul(stop, _BLOCK), nbytes)
        b.copy(b.offset(target, start), b.offset(source, start), b.sub(end, start))

    return row_kernel("copy", (target, source, nbytes), body)


def copy_rows(
    target: Ref, source: Ref, rows: Dim, nbytes: Dim, target_step: Dim, source_step: Dim
) -> Launch:
    """`rows` rows of `nbytes` bytes each; steps are in bytes from row to row.

    Long rows are cut into blocks, so that few of them still keep all threads busy.
    """
    blocks = -(-nbytes // _BLOCK)
    arguments = (target, source, nbytes, target_step, source_step, blocks)
    cost = 8 + min(estimate(nbytes), _BLOCK) * NS_PER_BYTE
    return over_rows(_copy_rows_kernel(), arguments, rows * blocks, cost, 2 * rows * nbytes)


@cache
def _copy_rows_kernel() -> Kernel:
    target, source = pointer(dt.uint8, "target"), pointer(dt.uint8, "source")
    names = ("nbytes", "target_step", "source_step", "blocks")
    nbytes, target_step, source_step, blocks = sizes = [size(n) for n in names]

    def body(b: Builder, first: Value, stop: Value) -> None:
        def move(_: Value, row: Value, block: Value) -> None:
            start = b.mul(block, _BLOCK)
            count = b.min(b.sub(nbytes, start), _BLOCK)
            to = b.offset(target, b.add(b.mul(row, target_step), start))
            b.copy(to, b.offset(source, b.add(b.mul(row, source_step), start)), count)

        walk(b, first, stop, (blocks, blocks), move)

    return row_kernel("copy_rows", (target, source, *sizes), body)


def copy_elements(
    target: Ref, source: Ref, count: Dim, dtype: DType, target_step: Dim, source_step: Dim
) -> Launch:
    """`count` elements of one type; steps are in elements."""
    rows = -(-count // _BLOCK)
    arguments = (target, source, count, target_step, source_step)
    kernel = _copy_elements_kernel(bits_of(dtype))
    return over_rows(
        kernel, arguments, rows, min(estimate(count), _BLOCK) * 1.0, 2 * count * dtype.itemsize
    )


@cache
def _copy_elements_kernel(bits: DType) -> Kernel:
    target, source = pointer(bits, "target"), pointer(bits, "source")
    count, target_step, source_step = sizes = [
        size(n) for n in ("count", "target_step", "source_step")
    ]

    def body(b: Builder, first: Value, stop: Value) -> None:
        def move(i: Value) -> None:
            b.store(target, b.mul(i, target_step), b.load(source, b.mul(i, source_step)))

        b.loop(b.mul(first, _BLOCK), b.min(b.mul(stop, _BLOCK), count), 1, move)

    return row_kernel(f"copy_elements_{bits.name}", (target, source, *sizes), body)


def convert(
    target: Ref, source: Ref, to: DType, origin: DType, count: Dim, machine: Target
) -> Launch:
    """`count` elements from one floating type to another."""
    rows = -(-count // _BLOCK)
    kernel = _convert_kernel(to, origin, machine.lanes(dt.float32))
    nbytes = count * (to.itemsize + origin.itemsize)
    return over_rows(
        kernel, (target, source, count), rows, min(estimate(count), _BLOCK) * 0.3, nbytes
    )


@cache
def _convert_kernel(to: DType, origin: DType, lanes: int) -> Kernel:
    target, source, count = pointer(to, "target"), pointer(origin, "source"), size("count")

    def body(b: Builder, first: Value, stop: Value) -> None:
        end = b.min(b.mul(stop, _BLOCK), count)

        def turn(i: Value, mask: Value | None) -> None:
            store_value(target, i, load_value(source, i, lanes, mask), mask)

        overlapping_loop(b, b.mul(first, _BLOCK), end, lanes, turn)

    return row_kernel(f"convert_{origin.name}_{to.name}", (target, source, count), body)
