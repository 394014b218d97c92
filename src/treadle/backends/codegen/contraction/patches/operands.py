"""Kernels that prepare the operands of row-major convolutions: planes in zeros, rows in order."""

from __future__ import annotations

from functools import lru_cache
from typing import Generic, NamedTuple

from treadle.backends.codegen.kernel.builder import KernelBuilder, numbered
from treadle.backends.codegen.kernel.language import Pointer, Value
from treadle.backends.codegen.kernel.records import P, RecordedKernel, S
from treadle.base import dtype as dt
from treadle.base.dtype import DType

AXES = 3
"""Spatial axes of the kernel that spreads; those a source lacks have extent 1."""


class SpreadParameters(NamedTuple, Generic[P, S]):
    """Parameters of a kernel that spreads planes: see `spread_kernel`."""

    source: P
    target: P
    extents: tuple[S, ...]
    steps: tuple[S, ...]
    lows: tuple[S, ...]
    rows: S
    height: S
    pitch: S


@lru_cache(maxsize=64)
def spread_kernel(source: DType, target: DType, lanes: int, *, apart: bool) -> RecordedKernel:
    """A kernel that copies planes into zeros: item i is plane i.

    Cell (d, h, w) goes to (d * step0 + low0, h * step1 + low1, w * step2 + low2) of a plane of
    `rows` rows of `pitch` elements, `height` of them per d. `apart` allows for a last step over 1.
    """
    e = KernelBuilder()
    p = e.record(
        SpreadParameters[Pointer, Value],
        source=source,
        target=target,
        extents=numbered("extent", AXES),
        steps=numbered("step", AXES),
        lows=numbered("low", AXES),
    )
    (deep, high, wide), steps, lows = p.extents, p.steps, p.lows
    size = p.rows * p.pitch
    cells = deep * high * wide
    with e.items() as i:
        given, made = p.source + i * cells, p.target + i * size
        made.zero(size)
        with e.loop(deep) as d, e.loop(high) as h:
            line = (d * steps[0] + lows[0]) * p.height + lows[1]
            line = line + h * steps[1]
            begin = (d * high + h) * wide
            row, into = given + begin, made + line * p.pitch
            if apart:
                with e.loop(wide) as w:
                    place = w * steps[2] + lows[2]
                    into[place] = row[w].cast(target)
            else:
                whole = wide - wide % lanes
                with e.loop(0, whole, lanes) as w:
                    value = row.load(w, lanes).cast(target)
                    into[w + lows[2]] = value
                rest = wide - whole
                with e.when(rest > 0):
                    mask = e.first_lanes(rest, lanes)
                    value = row.load(whole, lanes, mask).cast(target)
                    into.store(whole + lows[2], value, mask)
    return RecordedKernel(e.kernel(f"spread_{source.name}_{target.name}"), p)


class ReorderParameters(NamedTuple, Generic[P, S]):
    """Parameters of a kernel that reorders rows: see `reorder_kernel`."""

    source: P
    order: P
    target: P
    rows: S
    terms: S
    group_step: S
    row_step: S


@lru_cache(maxsize=64)
def reorder_kernel(source: DType, target: DType) -> RecordedKernel:
    """A kernel that writes rows whose elements a table of offsets finds: item i is row i.

    Row r of group g begins at g * group_step + r * row_step of the source.
    """
    e = KernelBuilder()
    kind = ReorderParameters[Pointer, Value]
    p = e.record(kind, source=source, order=dt.int32, target=target)
    with e.items() as i:
        group = (i // p.rows) * p.group_step
        start = group + (i % p.rows) * p.row_step
        given = p.source + start
        made = p.target + i * p.terms
        with e.loop(p.terms) as t:
            place = p.order[t].cast(dt.int64)
            made.store(t, given[place].cast(target))
    return RecordedKernel(e.kernel(f"reorder_{source.name}_{target.name}"), p)
