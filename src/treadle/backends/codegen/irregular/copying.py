"""Plain copies, strided copies of rows, and conversions: launches that other lowerings are made of.

A copy from one address to the same one is harmless: the engine may place an updated array where
its old version was, and may leave out a launch of `copy` that then does nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from treadle.backends.codegen.irregular.rows import RowBuilder, bits_of, over_rows, overlapping_loop
from treadle.backends.codegen.kernel.language import Pointer, Value, minimum
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
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


class Copied(Record[P, S]):
    """First parameters of copies."""

    target: P
    source: P


class _Bytes(Copied[P, S]):
    nbytes: S


class _CopiedRows(_Bytes[P, S]):
    target_step: S
    source_step: S
    blocks: S


class _Numbers(Copied[P, S]):
    count: S


class _Elements(_Numbers[P, S]):
    target_step: S
    source_step: S


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
    launch = over_rows(_copy_kernel(), _Bytes(target, source, nbytes), rows, cost, 2 * nbytes)
    return replace(launch, moves=True)


@cache
def _copy_kernel() -> RecordedKernel:
    e = RowBuilder()
    p = e.record(_Bytes[Pointer, Value], target=dt.uint8, source=dt.uint8)
    start = e.first * _BLOCK
    end = minimum(e.stop * _BLOCK, p.nbytes)
    (p.target + start).copy_from(p.source + start, end - start)
    return RecordedKernel(e.kernel("copy"), p)


def copy_rows(
    target: Ref, source: Ref, rows: Dim, nbytes: Dim, target_step: Dim, source_step: Dim
) -> Launch:
    """`rows` rows of `nbytes` bytes each; steps are in bytes from row to row.

    Long rows are cut into blocks, so that few of them still keep all threads busy.
    """
    blocks = -(-nbytes // _BLOCK)
    given = _CopiedRows(target, source, nbytes, target_step, source_step, blocks)
    cost = 8 + min(estimate(nbytes), _BLOCK) * NS_PER_BYTE
    return over_rows(_copy_rows_kernel(), given, rows * blocks, cost, 2 * rows * nbytes)


@cache
def _copy_rows_kernel() -> RecordedKernel:
    e = RowBuilder()
    p = e.record(_CopiedRows[Pointer, Value], target=dt.uint8, source=dt.uint8)
    with e.rows(p.blocks, p.blocks) as (_, row, block):
        start = block * _BLOCK
        count = minimum(p.nbytes - start, _BLOCK)
        to = p.target + (row * p.target_step + start)
        to.copy_from(p.source + (row * p.source_step + start), count)
    return RecordedKernel(e.kernel("copy_rows"), p)


def copy_elements(
    target: Ref, source: Ref, count: Dim, dtype: DType, target_step: Dim, source_step: Dim
) -> Launch:
    """`count` elements of one type; steps are in elements."""
    rows = -(-count // _BLOCK)
    given = _Elements(target, source, count, target_step, source_step)
    cost, nbytes = min(estimate(count), _BLOCK) * 1.0, 2 * count * dtype.itemsize
    return over_rows(_copy_elements_kernel(bits_of(dtype)), given, rows, cost, nbytes)


@cache
def _copy_elements_kernel(bits: DType) -> RecordedKernel:
    e = RowBuilder()
    p = e.record(_Elements[Pointer, Value], target=bits, source=bits)
    with e.loop(e.first * _BLOCK, minimum(e.stop * _BLOCK, p.count)) as i:
        p.target.store(i * p.target_step, p.source[i * p.source_step])
    return RecordedKernel(e.kernel(f"copy_elements_{bits.name}"), p)


def convert(
    target: Ref, source: Ref, to: DType, origin: DType, count: Dim, machine: Target
) -> Launch:
    """`count` elements from one floating type to another."""
    rows = -(-count // _BLOCK)
    kernel = _convert_kernel(to, origin, machine.lanes(dt.float32))
    nbytes = count * (to.itemsize + origin.itemsize)
    cost = min(estimate(count), _BLOCK) * 0.3
    return over_rows(kernel, _Numbers(target, source, count), rows, cost, nbytes)


@cache
def _convert_kernel(to: DType, origin: DType, lanes: int) -> RecordedKernel:
    e = RowBuilder()
    p = e.record(_Numbers[Pointer, Value], target=to, source=origin)
    end = minimum(e.stop * _BLOCK, p.count)
    for i, mask in overlapping_loop(e, e.first * _BLOCK, end, lanes):
        store_value(p.target, i, load_value(p.source, i, lanes, mask), mask)
    return RecordedKernel(e.kernel(f"convert_{origin.name}_{to.name}"), p)
