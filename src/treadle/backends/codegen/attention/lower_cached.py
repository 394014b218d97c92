"""Lowering of attention over caches."""

from __future__ import annotations

from typing import Any

from treadle.backends.api import Support, no
from treadle.backends.codegen.attention import cached_pairs as pairs
from treadle.backends.codegen.attention.cached import (
    BLOCK,
    ROWS,
    CachedConfig,
    CachedParameters,
    PairsParameters,
    RowSizes,
    cached_kernel,
)
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered, Ref
from treadle.base.estimates import estimate
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.ops.cache import CachedAttention, split_more

MOST_FEATURES = 512
"""Features of a head beyond which rows of an item no longer fit the caches."""
SERIAL_FLOPS = 200_000
"""Less work than this is over before other threads have woken up."""


@lowers(CachedAttention)
def lower_cached_attention(
    op: CachedAttention, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered | Support:
    """One launch; what is read of the caches is known when it runs."""
    (q, k, v), places, (_, sinks) = types[:3], types[3:6], split_more(types[6:])
    d, e = k.shape[3], v.shape[3]
    heads, shared = q.shape[1], k.shape[1]
    numbers = all(isinstance(x, int) for x in (d, e, heads, shared))
    if target.fine:
        return no("op", "attention over caches is written for processors")
    if not numbers or max(int(d), int(e)) > MOST_FEATURES:
        return no("size-limit", f"heads have a known number of features up to {MOST_FEATURES}")
    sequences, _, capacity, _ = k.shape
    pages: Dim = 1
    room = capacity
    if op.page is not None:
        pages, sequences = places[2].shape[1], capacity // op.page
        room = pages * op.page
    if op.page is not None and op.page % BLOCK and pages != 1:
        return no("size-limit", f"a page has a multiple of {BLOCK} positions")
    spec = CachedConfig(
        q.dtype,
        k.dtype,
        int(d),
        int(e),
        op.scale_of(d),
        op.window,
        op.softcap,
        op.ring,
        op.page,
        sinks[0].dtype if sinks else None,
        tuple(t.dtype for t in places),
        target,
    )
    group, time = int(heads) // int(shared), q.shape[2]
    chunks = -(-(group * time) // ROWS)
    sizes = RowSizes[Ref, Dim](shared, group, time, capacity, pages, chunks)
    # Half of the capacity, for want of knowing.
    keys = room if op.window is None else min(op.window, estimate(room))
    flops = q.shape[0] * heads * time * keys * (int(d) + int(e))
    nbytes = q.shape[0] * shared * keys * (int(d) + int(e)) * k.dtype.itemsize // 2
    items = q.shape[0] * shared * chunks
    if op.rounded and not op.ring and estimate(group * time) >= ROWS and pairs.takes(spec):
        return _in_pairs(spec, types, sizes, (sequences, room), items, flops)
    serial = items == 1 if isinstance(items, int) else False
    serial = serial or estimate(flops) < SERIAL_FLOPS
    qkv, numbers_of_rows, scales, sink = _operands(types)
    given = CachedParameters(
        *qkv, Ref("output", 0), *numbers_of_rows, scales, sink, sequences, sizes
    )
    described: Any = {"items": items, "serial": serial, "flops": flops, "nbytes": nbytes}
    return Lowered((cached_kernel(spec).launch(given, **described),))


def _operands(
    types: tuple[TensorType, ...],
) -> tuple[tuple[Ref, Ref, Ref], tuple[Ref, Ref, Ref], tuple[Ref, ...], Ref | None]:
    """Queries, keys and values; starts, ends and rows; scales; sinks."""
    q, k, v, starts, ends, rows, *more = [Ref("input", i) for i in range(len(types))]
    scales, sinks = split_more(more)
    return (q, k, v), (starts, ends, rows), (*scales,), sinks[0] if sinks else None


def _in_pairs(
    spec: CachedConfig,
    types: tuple[TensorType, ...],
    sizes: RowSizes[Ref, Dim],
    cache: tuple[Dim, Dim],
    items: Dim,
    flops: Dim,
) -> Lowered:
    """Words of keys and values, then the attention of rows of `ROWS` at a time.

    `cache` has how many sequences or pages there are, and positions of a sequence.
    """
    (sequences, room), shared = cache, sizes.shared
    panels = -(-room // pairs.STEP)
    entries = types[0].shape[0] * shared
    words = [entries * panels * pairs.STEP * width * 2 for width in (spec.d, spec.e)]
    kept, serial = (Ref("workspace", 0), Ref("workspace", 1)), estimate(flops) < SERIAL_FLOPS
    (q, k, v), (starts, ends, rows), scales, sink = _operands(types)
    extents = sequences, shared, sizes.capacity, sizes.pages, panels
    make = pairs.words_kernel(spec).launch(
        pairs.WordsParameters(k, v, *kept, ends, rows, scales, *extents),
        items=entries * panels,
        serial=serial,
        nbytes=(words[0] + words[1]) // 2,
    )
    launch = pairs.pairs_kernel(spec).launch(
        PairsParameters(q, *kept, Ref("output", 0), starts, ends, sink, sizes, panels),
        items=items,
        serial=serial,
        flops=flops,
        unit="bfloat16",
    )
    return Lowered((make, launch), workspaces=tuple(words))
