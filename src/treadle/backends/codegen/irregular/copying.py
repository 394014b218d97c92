"""Plain copies, strided copies of rows, and conversions: launches that other lowerings are made of.

A copy from one address to the same one is harmless: the engine may place an updated array where
its old version was, and may leave out a launch of `copy` that then does nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from treadle.backends.codegen.irregular.rows import (
    RowBuilder,
    bits_of,
    over_rows,
    overlapping_loop,
)
from treadle.backends.codegen.kernel.ir import Kernel
from treadle.backends.codegen.kernel.language import minimum
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
    e = RowBuilder()
    target, source = e.pointer(dt.uint8, "target"), e.pointer(dt.uint8, "source")
    nbytes = e.size("nbytes")
    start = e.first * _BLOCK
    end = minimum(e.stop * _BLOCK, nbytes)
    (target + start).copy_from(source + start, end - start)

    return e.kernel("copy")


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
    e = RowBuilder()
    target, source = e.pointer(dt.uint8, "target"), e.pointer(dt.uint8, "source")
    nbytes, target_step, source_step, blocks = e.sizes(
        "nbytes", "target_step", "source_step", "blocks"
    )

    with e.rows(blocks, blocks) as (_, row, block):
        start = block * _BLOCK
        count = minimum(nbytes - start, _BLOCK)
        to = target + (row * target_step + start)
        to.copy_from(source + (row * source_step + start), count)

    return e.kernel("copy_rows")


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
    e = RowBuilder()
    target, source = e.pointer(bits, "target"), e.pointer(bits, "source")
    count, target_step, source_step = e.sizes("count", "target_step", "source_step")

    with e.loop(e.first * _BLOCK, minimum(e.stop * _BLOCK, count)) as i:
        target.store(i * target_step, source[i * source_step])

    return e.kernel(f"copy_elements_{bits.name}")


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
    e = RowBuilder()
    target, source, count = e.pointer(to, "target"), e.pointer(origin, "source"), e.size("count")
    end = minimum(e.stop * _BLOCK, count)

    for i, mask in overlapping_loop(e, e.first * _BLOCK, end, lanes):
        store_value(target, i, load_value(source, i, lanes, mask), mask)

    return e.kernel(f"convert_{origin.name}_{to.name}")
