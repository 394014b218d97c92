"""Selection by values: elements that are not zero, and boxes that no better box covers.

Both kernels walk in order, since what is found first comes first. Boxes that were kept lie in
scratch memory, one array for each corner, so that a box is compared with several of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, reduce
from operator import mul

from treadle.backends.codegen.irregular.cache import bounded
from treadle.backends.codegen.irregular.rows import RowBuilder, over_rows, stepped
from treadle.backends.codegen.kernel.builder import KernelBuilder, numbered
from treadle.backends.codegen.kernel.language import Pointer, Value, maximum, minimum, select
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.scalars.code import load_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.types import TensorType
from treadle.ops.gather import NonzeroPlaces
from treadle.ops.regions import KeptBoxes

_CORNERS = 4
_ARRAYS = _CORNERS + 1
"""Of a box that was kept: its corners and its area."""
_MOST_ITEMS = 16
"""Each has its own scratch."""


@lowers(NonzeroPlaces, empty=True)
def lower_nonzero(
    op: NonzeroPlaces, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """One walk over all elements; every element writes its place, and the next one over it if it is
    zero.
    """
    x = types[0]
    kernel = _nonzero_kernel(x.dtype, len(x.shape))
    given = _Nonzero(Ref("output", 0), Ref("output", 1), Ref("input", 0), x.shape)
    nbytes = product(x.shape) * (x.dtype.itemsize + 4 * len(x.shape))
    return Lowered((kernel.launch(given, serial=True, nbytes=nbytes),))


class _Nonzero(Record[P, S]):
    target: P
    found: P
    x: P
    shape: tuple[S, ...]


@cache
def _nonzero_kernel(dtype: DType, rank: int) -> RecordedKernel:
    e = KernelBuilder()
    kind, shape = _Nonzero[Pointer, Value], numbered("n", rank)
    p = e.record(kind, target=dt.int32, found=dt.int32, x=dtype, shape=shape)
    size = reduce(mul, p.shape)
    state = [e.index(0)] * (rank + 1)  # The coordinates, and how many were found.
    with e.loop(size, carrying=state) as row:
        *place, count = state
        to = count * rank
        for axis, at in enumerate(place):
            p.target[to + axis] = at.cast(dt.int32)
        here = load_value(p.x, row)
        one = select(here if dtype is dt.bool_ else here != 0, e.index(1), e.index(0))
        state[:] = [*stepped(place, p.shape), count + one]
    (p.target + state[-1] * rank).zero((size - state[-1]) * rank)
    p.found[0] = state[-1].cast(dt.int32)
    return RecordedKernel(e.kernel(f"nonzero_{dtype.name}_{rank}"), p)


@lowers(KeptBoxes)
def lower_kept_boxes(
    op: KeptBoxes, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """Lower to a launch whose rows are the classes of all images."""
    boxes, scores, _ = types
    images, classes, count = scores.shape
    dtype = boxes.dtype
    kernel = _boxes_kernel(dtype, target.lanes(dtype), op.threshold, op.least)
    out, inputs = Ref("output", 0), (Ref("input", 0), Ref("input", 1), Ref("input", 2))
    most = count if op.most is None else op.most
    given = _Boxes(out, *inputs, Ref("workspace", 0), classes, count, most)
    known = estimate(count)
    # A tenth of the boxes is kept, as a guess; each is compared with those before it.
    cost = known * (4 + min(known * 0.1, estimate(most)) * 1.5 / target.lanes(dtype))
    launch = over_rows(kernel, given, images * classes, cost, most=_MOST_ITEMS)
    gap = count + target.lanes(dtype)
    return Lowered((launch,), (_ARRAYS * dtype.itemsize * gap * launch.items,))


class _Boxes(Record[P, S]):
    target: P
    boxes: P
    scores: P
    order: P
    scratch: P
    classes: S
    count: S
    most: S


@cache
def _boxes_kernel(
    dtype: DType, lanes: int, threshold: float, least: float | None
) -> RecordedKernel:
    e = RowBuilder(scratch=True)
    kinds = {"boxes": dtype, "scores": dtype, "scratch": dtype}
    p = e.record(_Boxes[Pointer, Value], target=dt.int32, order=dt.int32, **kinds)
    count = p.count
    gap = count + lanes
    kept = [p.scratch + (e.item * _ARRAYS + i) * gap for i in range(_ARRAYS)]
    limit = e.constant(threshold, dtype, lanes)
    with e.loop(e.first, e.stop) as row:
        box = p.boxes + row // p.classes * count * _CORNERS
        score, places, to = (start + row * count for start in (p.scores, p.order, p.target))
        # How many are kept, and whether those that are left count.
        state = [e.index(0), e.index(1)]
        with e.loop(count, carrying=state) as i:
            to[i] = -1
            at = bounded(places[i], count - 1)
            open_ = (state[1] != 0) & (state[0] < p.most)
            if least is not None:
                open_ = open_ & (score[at] > e.constant(least, dtype))
            state[1] = select(open_, e.index(1), e.index(0))
            with e.when(open_, changing=state):
                own = [box[at * _CORNERS + k] for k in range(_CORNERS)]
                own.append((own[2] - own[0]) * (own[3] - own[1]))
                wide = [v.splat(lanes) for v in own]
                covered = [e.index(0)]
                with (
                    e.loop(0, state[0], lanes, carrying=covered) as j,
                    e.when(covered[0] == 0, changing=covered),
                ):
                    over = _covers(wide, [a.load(j, lanes) for a in kept]) > limit
                    if lanes > 1:
                        over = (over & e.first_lanes(state[0] - j, lanes)).reduce("or")
                    covered[0] = select(over, e.index(1), e.index(0))
                with e.when(covered[0] == 0, changing=state):
                    for a, v in zip(kept, own, strict=True):
                        a[state[0]] = v
                    to[state[0]] = at.cast(dt.int32)
                    state[0] = state[0] + 1
    name = f"kept_boxes_{dtype.name}_{lanes}_{threshold!r}_{least!r}"
    name = name.replace(".", "_").replace("-", "m").replace("+", "")
    return RecordedKernel(e.kernel(name), p)


def _covers(box: Sequence[Value], others: Sequence[Value]) -> Value:
    """Intersection over union with others; NaN where there is no union."""
    ends = [minimum(box[k], others[k]) for k in (2, 3)]
    sides = [maximum(end - maximum(box[k], others[k]), 0) for k, end in enumerate(ends)]
    shared = sides[0] * sides[1]
    return shared / (others[_CORNERS] + box[_CORNERS] - shared)
