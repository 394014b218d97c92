"""Measured limits of the machine: multiply-adds from registers, bytes from memory.

Williams, Waterman, Patterson: "Roofline: an insightful visual performance model for multicore
architectures" (2009). Both figures come from kernels of our own in the same kernel language, run by
the same threads as everything else, so they are ceilings of generated code on this machine. They
are kept beside the compiled code, one entry per processor, target and number of threads.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import platform
import time
from collections.abc import Callable
from functools import reduce

import numpy as np

from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.ir import KernelModule
from treadle.backends.codegen.kernel.language import dot, fma
from treadle.backends.codegen.target import Target
from treadle.backends.cpu.host import last_cache, memory_bytes, processor
from treadle.backends.program import ALIGNMENT, Address, Limits, Program, Run
from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType

FORMAT = 4
_CHAINS = 12
"""Independent sums: more than latency times units of any processor, fewer than registers."""
_TURNS = 1 << 15
_ITEMS = 8
"""Items per thread, so that one that starts late does less."""
_CHUNK = 1 << 13
"""Elements of a work item of the copies."""
_SECONDS = 0.3
"""For each figure."""
_LARGE = 64 << 20
"""Least bytes of an array."""
_CACHES = 4
"""An array has the size of so many last caches, of which cores may have one each, so that what is
read alone comes from memory, too: a sum over one cache of bytes ran at 161 GB/s, where memory gives
40."""

Runner = Callable[[], None]


def key_of(fingerprint: str, threads: int) -> str:
    """Return the key of a machine's limits."""
    parts = (str(FORMAT), fingerprint, platform.node(), processor(), str(threads))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest() + ".roofline"


def encode(limits: Limits) -> bytes:
    """Encode limits to be kept."""
    found = {"flops": limits.flops, "bandwidth": limits.bandwidth, "units": dict(limits.units)}
    return json.dumps(found).encode()


def decode(data: bytes) -> Limits | None:
    """Decode limits that were kept; None where they make no sense."""
    try:
        found = json.loads(data)
        units = tuple((str(u), float(x)) for u, x in found["units"].items())
        limits = Limits(float(found["flops"]), float(found["bandwidth"]), units)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    rates = limits.flops, limits.bandwidth, *dict(limits.units).values()
    sound = all(math.isfinite(x) and x > 0 for x in rates)
    return limits if sound else None


def arithmetic(target: Target, items: int, turns: int = _TURNS) -> tuple[Program, int]:
    """A program of multiply-adds on registers over one base, the results; and its operations."""
    run = Run(multiply_kernel(target), (Address(0), turns), items, label="multiply-add")
    lanes = target.lanes(dt.float32)
    return Program((run,), 1), 2 * items * turns * _CHAINS * lanes


def units_of(target: Target) -> dict[str, tuple[DType, DType, DType]]:
    """Return the units with instructions that add several products: types of the sums and of both
    operands.
    """
    found: dict[str, tuple[DType, DType, DType]] = {}
    if target.dot_bfloat16:
        found["bfloat16"] = dt.float32, dt.bfloat16, dt.bfloat16
    if target.dot_int8 or target.matrices:
        found["int8"] = dt.int32, dt.uint8, dt.int8
    return found


def products(target: Target, unit: str, items: int, turns: int = _TURNS) -> tuple[Program, int]:
    """Return a program of a unit's dot products on registers over one base, and its operations."""
    sums, a, b = units_of(target)[unit]
    terms = 4 // a.itemsize
    if target.matrices:
        kernel, count = matrix_kernel(sums, a, b), 4 * 16 * 16 * 16 * terms
    else:
        lanes = target.vector_bytes // 4
        kernel, count = dot_kernel(lanes, sums, a, b), _CHAINS * lanes * terms
    run = Run(kernel, (Address(0), turns), items, label=f"products of {unit}")
    return Program((run,), 1), 2 * items * turns * count


def copies(target: Target, elements: int, streaming: bool) -> tuple[Program, int]:
    """x = y + s z over three bases of so many elements, whole chunks; and the bytes it moves."""
    items = elements // _CHUNK
    kernel = triad_kernel(target, streaming)
    run = Run(kernel, (Address(0), Address(1), Address(2)), items, label="triad")
    return Program((run,), 3), 3 * 4 * items * _CHUNK


def updates(target: Target, elements: int) -> tuple[Program, int]:
    """x = y + s x, as `copies`: lines that are written have been read, as in optimizers."""
    items = elements // _CHUNK
    run = Run(update_kernel(target), (Address(0), Address(1)), items, label="update")
    return Program((run,), 2), 3 * 4 * items * _CHUNK


def reads(target: Target, elements: int) -> tuple[Program, int]:
    """Sums of chunks, as `copies`: what weights cost that are used once."""
    items = elements // _CHUNK
    run = Run(sum_kernel(target), (Address(0), Address(1)), items, label="sum")
    return Program((run,), 2), 4 * items * _CHUNK


def multiply_kernel(target: Target) -> KernelModule:
    """Return chains of dependent multiply-adds; an item leaves one vector."""
    e, lanes = KernelBuilder(), target.lanes(dt.float32)
    out, turns = e.pointer(dt.float32, "out"), e.size("turns")
    factor, term = (e.constant(x, dt.float32, lanes) for x in (0.5, 0.25))
    starts = [e.constant(float(i), dt.float32, lanes) for i in range(_CHAINS)]
    with e.items() as i:
        sums = list(starts)
        with e.loop(turns, carrying=sums):
            sums[:] = [fma(s, factor, term) for s in sums]
        out[i * lanes] = reduce(operator.add, sums)
    return e.kernel("roofline_multiply")


def dot_kernel(lanes: int, sums: DType, a: DType, b: DType) -> KernelModule:
    """Return chains of dependent sums of products; an item leaves one vector."""
    e, many = KernelBuilder(), lanes * (4 // a.itemsize)
    out, turns = e.pointer(sums, "out"), e.size("turns")
    x, y = e.constant(1, a, many), e.constant(1, b, many)
    starts = [e.constant(i, sums, lanes) for i in range(_CHAINS)]
    with e.items() as i:
        totals = list(starts)
        with e.loop(turns, carrying=totals):
            totals[:] = [dot(total, x, y) for total in totals]
        out[i * lanes] = reduce(operator.add, totals)
    return e.kernel(f"roofline_dot_{a.name}")


def matrix_kernel(sums: DType, a: DType, b: DType) -> KernelModule:
    """Return four sums of products in matrix registers; an item leaves a row of one of them."""
    e = KernelBuilder()
    out, turns = e.pointer(sums, "out"), e.size("turns")
    room = e.stack(sums, 16 * 16)
    e.begin_matrices()
    for register in range(8):
        e.matrix_zero(register)
    with e.items() as i:
        with e.loop(turns):
            for total in range(4):
                e.matrix_dot(total, 4 + total // 2, 6 + total % 2, a, b)
        e.matrix_store(0, room, 16)
        row = i * 16
        out[row] = room.load(0, 16)
    e.end_matrices()
    return e.kernel(f"roofline_matrices_{a.name}")


def triad_kernel(target: Target, streaming: bool) -> KernelModule:
    """Return x = y + s z in chunks; `streaming` stores pass the caches by."""
    e, lanes = KernelBuilder(), target.lanes(dt.float32)
    x, y, z = (e.pointer(dt.float32, name) for name in "xyz")
    factor = e.constant(0.5, dt.float32, lanes)
    with e.loop(e.lo * _CHUNK, e.hi * _CHUNK, lanes) as i:
        total = fma(z.load(i, lanes), factor, y.load(i, lanes))
        x.store(i, total, aligned=True, streaming=streaming)
    return e.kernel("roofline_triad")


def update_kernel(target: Target) -> KernelModule:
    """Return x = y + s x in chunks: an array is read and written in place, another one read."""
    e, lanes = KernelBuilder(), target.lanes(dt.float32)
    x, y = (e.pointer(dt.float32, name) for name in "xy")
    factor = e.constant(0.5, dt.float32, lanes)
    with e.loop(e.lo * _CHUNK, e.hi * _CHUNK, lanes) as i:
        x.store(i, fma(x.load(i, lanes), factor, y.load(i, lanes)), aligned=True)
    return e.kernel("roofline_update")


def sum_kernel(target: Target) -> KernelModule:
    """Return sums of an array's chunks; a chunk leaves one vector at its place in another array."""
    e, lanes, chains = KernelBuilder(), target.lanes(dt.float32), 4
    x, y = (e.pointer(dt.float32, name) for name in "xy")
    zero = e.constant(0.0, dt.float32, lanes)
    with e.items() as i:
        start, sums = i * _CHUNK, [zero] * chains
        with e.loop(0, _CHUNK, lanes * chains, carrying=sums) as at:
            for n, before in enumerate(sums):
                sums[n] = before + x.load(start + at + lanes * n, lanes)
        y[start] = reduce(operator.add, sums)
    return e.kernel("roofline_sum")


def probe(
    target: Target,
    threads: int,
    bind: Callable[[Program, list[Array]], Runner],
    seconds: float = _SECONDS,
    nbytes: int = 0,
) -> Limits:
    """Measure all figures.

    Args:
        target: of the kernels.
        threads: how many share a launch.
        bind: makes a function of a program and its memory.
        seconds: for each figure; every program runs twice at least.
        nbytes: of each of the three arrays; 0 for more than caches hold.
    """
    items = threads * _ITEMS
    program, flops = arithmetic(target, items)
    room = memory(4 * items * max(16, target.lanes(dt.float32)))
    best = _best([bind(program, [room])], seconds)
    units = []
    for unit in units_of(target):
        made, operations = products(target, unit, items)
        units.append((unit, operations / _best([bind(made, [room])], seconds)))
    wanted = nbytes or min(max(_LARGE, _CACHES * last_cache()), memory_bytes() // 32)
    elements = max(1, wanted // 4 // _CHUNK) * _CHUNK
    arrays = [memory(4 * elements) for _ in range(3)]
    moving = [copies(target, elements, streaming) for streaming in (False, True)]
    moving += [updates(target, elements), reads(target, elements)]
    bandwidth = max(
        nbytes / _best([bind(p, arrays[: p.bases])], seconds / 2) for p, nbytes in moving
    )
    return Limits(flops / best, bandwidth, tuple(units))


def memory(nbytes: int) -> Array:
    """Zeros from an address that streaming stores accept."""
    room = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    found: Array = room[start : start + nbytes]
    found[...] = 0  # the first touch of a page is no part of what is measured
    return found


def _best(runners: list[Runner], seconds: float) -> float:
    """Seconds of the fastest run of any."""
    found, end, turns = math.inf, time.perf_counter() + seconds, 0
    while turns < 2 or time.perf_counter() < end:
        for run in runners:
            began = time.perf_counter()
            run()
            found = min(found, time.perf_counter() - began)
        turns += 1
    return max(found, 1e-9)
