"""Lowering of attention over caches."""

from __future__ import annotations

from treadle.backends.api import Support, no
from treadle.backends.codegen.attention import cached_pairs as pairs
from treadle.backends.codegen.attention.cached import ROWS, CachedConfig, cached_kernel
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.target import Target
from treadle.backends.program import Launch, Lowered, Ref
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
    spec = CachedConfig(
        q.dtype,
        k.dtype,
        int(d),
        int(e),
        op.scale_of(d),
        op.window,
        op.softcap,
        op.ring,
        sinks[0].dtype if sinks else None,
        tuple(t.dtype for t in places),
        target,
    )
    group, time = int(heads) // int(shared), q.shape[2]
    chunks = -(-(group * time) // ROWS)
    sizes = k.shape[0], shared, group, time, k.shape[2], chunks
    operands = [Ref("input", i) for i in range(len(types))]
    arguments = (*operands[:3], Ref("output", 0), *operands[3:], *sizes)
    # Half of the capacity, for want of knowing.
    keys = k.shape[2] if op.window is None else min(op.window, estimate(k.shape[2]))
    flops = q.shape[0] * heads * time * keys * (int(d) + int(e))
    nbytes = q.shape[0] * shared * keys * (int(d) + int(e)) * k.dtype.itemsize // 2
    items = q.shape[0] * shared * chunks
    if op.rounded and not op.ring and estimate(group * time) >= ROWS and pairs.takes(spec):
        return _in_pairs(spec, types, (group, time, chunks), items, flops)
    serial = items == 1 if isinstance(items, int) else False
    serial = serial or estimate(flops) < SERIAL_FLOPS
    launch = Launch(cached_kernel(spec), arguments, items, serial, flops, nbytes)
    return Lowered((launch,))


def _in_pairs(
    spec: CachedConfig,
    types: tuple[TensorType, ...],
    extents: tuple[Dim, ...],
    items: Dim,
    flops: Dim,
) -> Lowered:
    """Words of keys and values, then the attention of rows of `ROWS` at a time."""
    q, k = types[:2]
    group, time, chunks = extents
    sequences, shared, capacity = k.shape[:3]
    panels = -(-capacity // pairs.STEP)
    entries = q.shape[0] * shared
    words = [entries * panels * pairs.STEP * width * 2 for width in (spec.d, spec.e)]
    kept = Ref("workspace", 0), Ref("workspace", 1)
    operands = [Ref("input", i) for i in range(len(types))]
    scales, sinks = split_more(operands[6:])
    make = Launch(
        pairs.words_kernel(spec),
        (*operands[1:3], *kept, *operands[4:6], *scales, sequences, shared, capacity, panels),
        entries * panels,
        estimate(flops) < SERIAL_FLOPS,
        nbytes=(words[0] + words[1]) // 2,
    )
    more = (*operands[3:5], *sinks, shared, group, time, capacity, chunks, panels)
    arguments = (operands[0], *kept, Ref("output", 0), *more)
    launch = Launch(
        pairs.pairs_kernel(spec),
        arguments,
        items,
        estimate(flops) < SERIAL_FLOPS,
        flops,
        unit="bfloat16",
    )
    return Lowered((make, launch), workspaces=tuple(words))
