"""Rewrite rules for parts of tensors: slices, joins, borders, and what is written into a box."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.shape import is_static
from treadle.graph.algebra import keep
from treadle.graph.ir import Value, constant_of
from treadle.graph.rewrite import Filled, Found, P, Rule, match
from treadle.ops.creation import Iota
from treadle.ops.elementwise import Add
from treadle.ops.gather import IndexAdd, IndexUpdate, Take
from treadle.ops.gather_along import AddAlongAxis, ScatterAlongAxis
from treadle.ops.movement import Concat, Flip, Reshape
from treadle.ops.op import Op
from treadle.ops.slicing import Box, Pad, Slice, SliceUpdate, along

ANY = ("float32", "bool", "int32", "bfloat16")
FLOATS = ("float32", "float16", "bfloat16", "float64")
Range = tuple[int, int]


def _ranges(op: Op, shape: Sequence[Any]) -> list[Range] | None:
    """First and last + 1 of every axis of a box; None where one is symbolic or has steps."""
    if not isinstance(op, Box):
        return None
    if not is_static((*op.starts, *op.stops, *shape)) or any(s != 1 for s in op.steps):
        return None
    return [(int(a), max(int(a), int(b))) for a, b in zip(op.starts, op.stops, strict=True)]


def _is_whole(ranges: Sequence[Range] | None, shape: Sequence[Any]) -> bool:
    return ranges is not None and all(r == (0, d) for r, d in zip(ranges, shape, strict=True))


def _sliced(m: Found, x: Value, ranges: Sequence[Range]) -> Value:
    starts, stops = zip(*ranges, strict=True)
    return m.apply(Slice(starts, stops, (1,) * len(starts)), x)


# -- slices ------------------------------------------------------------------------------------


def _whole_slice(m: Found) -> Value | None:
    shape = m["x"].type.shape
    return m["x"] if _is_whole(_ranges(m.root.op, shape), shape) else None


def _slice_of_slice(m: Found) -> Value | None:
    """Join two slices that both go forward: steps multiply and starts add up."""
    outer, inner = m.root.op, m.nodes["inner"].op
    if not isinstance(outer, Slice) or not isinstance(inner, Slice):
        return None
    bounds = (*outer.starts, *outer.stops, *inner.starts, *inner.stops, *m.type.shape)
    if (
        not is_static(bounds)
        or min((*outer.steps, *inner.steps), default=1) < 1
        or 0 in m.type.shape
    ):
        return None
    starts, stops, steps = [], [], []
    for axis, count in enumerate(m.type.shape):
        step = inner.steps[axis] * outer.steps[axis]
        start = inner.starts[axis] + outer.starts[axis] * inner.steps[axis]
        starts.append(start)
        stops.append(start + (count - 1) * step + 1)
        steps.append(step)
    return m.apply(Slice(tuple(starts), tuple(stops), tuple(steps)), m["x"])


def _slice_of_update(m: Found) -> Value | None:
    """Return the part that was just written, or the part that writing elsewhere left alone."""
    shape = m["x"].type.shape
    read, written = _ranges(m.root.op, shape), _ranges(m.nodes["inner"].op, shape)
    if read is None or written is None:
        return None
    if read == written:
        return m["v"] if m["v"].type == m.type else None
    return _sliced(m, m["x"], read) if _are_apart(read, written) else None


def _are_apart(one: Sequence[Range], other: Sequence[Range]) -> bool:
    return any(a[1] <= b[0] or b[1] <= a[0] for a, b in zip(one, other, strict=True))


def _names(count: int) -> tuple[str, ...]:
    return tuple("xyzw"[:count])


def _slice_of_concat(count: int) -> Rule:
    def build(m: Found) -> Value | None:
        axis = m.attribute("inner", "axis")
        ranges = _ranges(m.root.op, m.nodes["inner"].output.type.shape)
        if ranges is None:
            return None
        start = 0
        for name in _names(count):
            end = start + m[name].type.shape[axis]
            if start <= ranges[axis][0] and ranges[axis][1] <= end:
                ranges[axis] = ranges[axis][0] - start, ranges[axis][1] - start
                return _sliced(m, m[name], ranges)
            start = end
        return None

    inside = ", ".join(_names(count))
    return Rule(
        f"slice(concat({inside})) within one => slice of it",
        P(Slice, (P(Concat, _names(count), "inner"),)),
        build,
        example=lambda *xs: along(Concat(1)(*xs), 1, 3, 6),
        shapes=((2, 3),) * count,
        dtypes=ANY,
    )


def _concat_of_slices(count: int) -> Rule:
    """Neighboring parts of one value, joined again."""
    slices = tuple(P(Slice, ("x",), str(i)) for i in range(count))

    def build(m: Found) -> Value | None:
        axis, shape = m.attribute("", "axis"), m["x"].type.shape
        ranges = [_ranges(m.nodes[str(i)].op, shape) for i in range(count)]
        if any(r is None for r in ranges):
            return None
        parts = [r for r in ranges if r is not None]
        for one, other in pairwise(parts):
            ends = one[axis][1] == other[axis][0]
            if not ends or (one[:axis], one[axis + 1 :]) != (other[:axis], other[axis + 1 :]):
                return None
        whole = [*parts[0]]
        whole[axis] = parts[0][axis][0], parts[-1][axis][1]
        return _sliced(m, m["x"], whole)

    def example(x: Any) -> Any:
        return Concat(1)(*(along(x, 1, i, i + 1) for i in range(1, 1 + count)))

    inside = ", ".join("slice(x)" for _ in range(count))
    return Rule(
        f"concat({inside}) of neighbors => slice(x)",
        P(Concat, slices),
        build,
        example=example,
        shapes=((2, 5),),
        dtypes=ANY,
    )


# -- boxes that are written --------------------------------------------------------------------


def _written(value: Value) -> tuple[list[tuple[list[Range], Value]], Value]:
    """The boxes that a chain of updates wrote, the last one first, and what they went into."""
    boxes: list[tuple[list[Range], Value]] = []
    node = value.producer
    while node is not None and isinstance(node.op, SliceUpdate):
        ranges = _ranges(node.op, value.type.shape)
        if ranges is None:
            break
        boxes.append((ranges, node.inputs[1]))
        value = node.inputs[0]
        node = value.producer
    return boxes, value


def _add_update(m: Found) -> Value | None:
    """Write one more box in place of adding a tensor that is zero where the other is not."""
    mine = _ranges(m.nodes["inner"].op, m.type.shape)
    boxes, base = _written(m["x"])
    if mine is None or not boxes or m["x"].type != m.type or not _is_zero(base, m):
        return None
    if any(not _are_apart(mine, ranges) for ranges, _ in boxes):
        return None
    return m.apply(m.nodes["inner"].op, m["x"], m["v"])


def _is_zero(value: Value, found: Found) -> bool:
    return match(Filled(0.0), value, found)


def _covered(m: Found) -> Value | None:
    """Boxes that fill everything, side by side along one axis."""
    boxes, _ = _written(m.root.output)
    shape = m.type.shape
    if not boxes:  # Nothing to join, as where an extent is 0.
        return None
    for axis in range(len(shape)):
        found = sorted(boxes, key=lambda b: b[0][axis])
        rest = [[r for i, r in enumerate(ranges) if i != axis] for ranges, _ in found]
        others = [d for i, d in enumerate(shape) if i != axis]
        ends = [0, *(ranges[axis][1] for ranges, _ in found)]
        starts = [*(ranges[axis][0] for ranges, _ in found), shape[axis]]
        if ends == starts and all(_is_whole(r, others) for r in rest):
            return m.apply(Concat(axis), *(v for _, v in found))
    return None


def _boxed(x: Any, v: Any, axis: int, start: int) -> Any:
    starts = tuple(start if i == axis else 0 for i in range(x.type.ndim))
    stops = tuple(start + v.shape[i] if i == axis else d for i, d in enumerate(x.shape))
    return SliceUpdate(starts, stops, (1,) * x.type.ndim)(x, v)


def _zeros(x: Any, columns: int) -> Any:
    return x.constant(0.0).broadcast_to((x.shape[0], columns))


# -- borders, positions ------------------------------------------------------------------------


def _no_padding(m: Found) -> Value | None:
    return m["x"] if all(w == (0, 0) for w in m.attribute("", "widths")) else None


def _pad_of_pad(m: Found) -> Value | None:
    outer, inner = m.root.op, m.nodes["inner"].op
    if not isinstance(outer, Pad) or not isinstance(inner, Pad):
        return None
    if (outer.mode, inner.mode) != ("constant", "constant") or repr(outer.value) != repr(
        inner.value
    ):
        return None
    both = zip(outer.widths, inner.widths, strict=True)
    widths = tuple((a[0] + b[0], a[1] + b[1]) for a, b in both)
    return m.apply(Pad(widths, "constant", outer.value), m["x"])


def _take_in_order(m: Found) -> Value | None:
    """Positions that count on with one step are a slice; one position is one of extent 1."""
    axis, shape = m.attribute("", "axis"), m["x"].type.shape
    found = _progression(m["index"])
    if found is None or not is_static(shape):
        return None
    first, step, count = found
    last = first + (count - 1) * step
    if count < 1 or step < 1 or first < 0 or last >= shape[axis]:
        return None
    part = _along(m, axis, (first, last + 1), step)
    return part if part.type == m.type else m.apply(Reshape(m.type.shape), part)


def _along(m: Found, axis: int, bounds: Range, step: int) -> Value:
    """Part of x along an axis."""
    shape = m["x"].type.shape
    starts = tuple(bounds[0] if i == axis else 0 for i in range(len(shape)))
    stops = tuple(bounds[1] if i == axis else d for i, d in enumerate(shape))
    steps = tuple(step if i == axis else 1 for i in range(len(shape)))
    return m.apply(Slice(starts, stops, steps), m["x"])


def _progression(index: Value) -> tuple[int, int, int] | None:
    """First number, step and count of an index that counts."""
    op = None if index.producer is None else index.producer.op
    if isinstance(op, Iota) and isinstance(op.n, int):
        whole = float(op.start).is_integer() and float(op.step).is_integer()
        return (int(op.start), int(op.step), op.n) if whole else None
    data = constant_of(index)
    if data is None or not data.is_present or data.array.ndim > 1 or not data.array.size:
        return None
    numbers = [int(i) for i in data.array.reshape(-1)]
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    counts = numbers == [numbers[0] + i * step for i in range(len(numbers))]
    return (numbers[0], step, len(numbers)) if counts else None


def _flipped_twice(m: Found) -> Value | None:
    return m["x"] if m.attribute("", "axes") == m.attribute("inner", "axes") else None


def _nothing_written(op: Op, order: tuple[str, ...]) -> Rule:
    """Indices that data decide may be none."""

    def build(m: Found) -> Value | None:
        return m["x"] if 0 in m["v"].type.shape else None

    def example(x: Any, v: Any) -> Any:
        known = {"x": x, "v": v, "index": x.constant(np.zeros(v.shape, np.int32), dt.int32)}
        return op(*[known[name] for name in order])

    return Rule(
        f"{op.name}(x) of nothing => x",
        P(type(op), order),
        build,
        example=example,
        shapes=((3,), (0,)),
        dtypes=FLOATS,
    )


def _rule(name: str, pattern: P, build: Callable[..., Any], example: Any, *shapes: Any) -> Rule:
    return Rule(name, pattern, build, example=example, shapes=shapes or ((2, 3),), dtypes=ANY)


BOXES = (
    _rule(
        "slice(x) of everything => x",
        P(Slice, ("x",)),
        _whole_slice,
        lambda x: Slice((0, 0), x.shape, (1, 1))(x),
    ),
    _rule(
        "slice(slice(x)) => slice(x)",
        P(Slice, (P(Slice, ("x",), "inner"),)),
        _slice_of_slice,
        lambda x: Slice((1, 0), (2, 3), (1, 2))(Slice((1, 1), (3, 6), (1, 2))(x)),
        (4, 7),
    ),
    _rule(
        "slice(slice_update(x, v)) of the same box => v, of another one => slice(x)",
        P(Slice, (P(SliceUpdate, ("x", "v"), "inner"),)),
        _slice_of_update,
        lambda x, v: along(_boxed(x, v, 1, 2), 1, 2, 4),
        (2, 5),
        (2, 2),
    ),
    _slice_of_concat(2),
    _slice_of_concat(3),
    _concat_of_slices(2),
    _concat_of_slices(3),
    _rule("concat(x) => x", P(Concat, ("x",)), keep("x"), lambda x: Concat(0)(x)),
    Rule(
        "update + slice_update(0, v) apart from it => slice_update(update, v)",
        P(Add, ("x", P(SliceUpdate, (Filled(0.0), "v"), "inner")), commutes=True),
        _add_update,
        "safe",  # -0 + 0 is 0.
        example=lambda x, y: _boxed(_zeros(x, 5), x, 1, 0) + _boxed(_zeros(x, 5), y, 1, x.shape[1]),
        shapes=((2, 3), (2, 2)),
        dtypes=FLOATS,
    ),
    _rule(
        "slice_updates that fill everything => concat",
        P(SliceUpdate, ("x", "v")),
        _covered,
        lambda x, y: _boxed(_boxed(Concat(1)(x, y), x, 1, 0), y, 1, x.shape[1]),
        (2, 3),
        (2, 2),
    ),
    _rule(
        "pad(x) by nothing => x",
        P(Pad, ("x",)),
        _no_padding,
        lambda x: Pad(((0, 0), (0, 0)))(x),
    ),
    Rule(
        "pad(pad(x)) => pad(x)",
        P(Pad, (P(Pad, ("x",), "inner"),)),
        _pad_of_pad,
        example=lambda x: Pad(((1, 0), (0, 2)))(Pad(((0, 1), (1, 0)))(x)),
        dtypes=ANY,
    ),
    _rule(
        "flip(flip(x)) => x",
        P(Flip, (P(Flip, ("x",), "inner"),)),
        _flipped_twice,
        lambda x: Flip((1,))(Flip((1,))(x)),
    ),
    Rule(
        "take(x, counting positions) => slice(x)",
        P(Take, ("x", "index")),
        _take_in_order,
        example=lambda x: Take(1)(x, x.apply(Iota(1, 2, 2, dt.int32), ())[0]),
        shapes=((2, 5),),
        dtypes=ANY,
    ),
    _nothing_written(IndexAdd((0,)), ("x", "v", "index")),
    _nothing_written(IndexUpdate((0,)), ("x", "v", "index")),
    _nothing_written(AddAlongAxis(0), ("x", "index", "v")),
    _nothing_written(ScatterAlongAxis(0), ("x", "index", "v")),
)
