"""Which bodies are loop nests, over which axes; and the algebra of positions behind it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.base.symbol import symbol
from treadle.base.types import TensorType
from treadle.graph.builder import trace_body
from treadle.graph.cells import AppliedOp, Load
from treadle.graph.domains import LoopNest, NestRefusal, analyze
from treadle.graph.positions import Atom, Position, Positions, Split, linear
from treadle.ops.batch_norm import BatchNormTrain
from treadle.ops.fused import Fused
from treadle.ops.gather import Take
from treadle.ops.matmul import Matmul
from treadle.ops.movement import Roll
from treadle.ops.norm import GroupNorm, LayerNorm, Standardize, StandardizeGrad
from treadle.ops.slicing import Pad
from treadle.ops.softmax import Softmax
from treadle.ops.sort import Sort
from treadle.ops.update import AdamUpdate

F32 = dt.float32


def typed(*shapes: tuple[Any, ...]) -> list[TensorType]:
    return [TensorType(F32, s) for s in shapes]


def nest(body: Callable[..., Any], *shapes: tuple[Any, ...]) -> LoopNest:
    found = analyze(trace_body(body, typed(*shapes)))
    assert isinstance(found, LoopNest), found
    return found


def axes(found: LoopNest) -> list[tuple[int, str]]:
    return [(a.extent, "reduced" if a.reduced else "parallel") for a in found.axes]


# -- positions -----------------------------------------------------------------------------------


def value(position: Position, counters: tuple[int, ...]) -> int:
    """What a position is for given counters."""
    return position.constant + sum(f * _atom(a, counters) for a, f in position.terms)


def _atom(atom: Atom, counters: tuple[int, ...]) -> int:
    if atom.kind == "counter":
        return counters[atom.number]
    assert atom.of is not None
    inner = value(atom.of, counters)
    if atom.kind in ("quotient", "remainder"):
        return divmod(inner, atom.divisor)[atom.kind == "remainder"]
    assert atom.kind in ("clamp", "mirror")
    last = atom.extent - 1
    return min(max(inner, 0), last) if atom.kind == "clamp" else last - abs(last - abs(inner))


SHAPES = [(4, 6), (24,), (2, 12), (8, 3), (2, 2, 6), (1, 24, 1), (4, 3, 2), (3, 8)]


@pytest.mark.parametrize(("source", "target"), [*itertools.product(SHAPES, SHAPES)], ids=str)
def test_reshape_finds_the_same_element(source: Any, target: Any) -> None:
    extents = [[d] for d in source]
    while True:
        flat = [d for row in extents for d in row]
        positions = Positions(flat)
        index = positions.unravel(
            linear([positions.counter(i) for i in range(len(flat))], flat), source
        )
        try:
            found = positions.reshape(index, source, target)
            break
        except Split as split:
            axis = np.searchsorted(
                np.cumsum([len(r) for r in extents]), split.counter.number, "right"
            )
            at = split.counter.number - sum(len(r) for r in extents[:axis])
            extents[axis][at : at + 1] = [split.counter.extent // split.inner, split.inner]
    for number, counters in enumerate(itertools.product(*(range(d) for d in flat))):
        wanted = np.unravel_index(number, target)
        assert tuple(value(p, counters) for p in found) == tuple(int(w) for w in wanted)


def test_what_divides_needs_no_division() -> None:
    positions = Positions((5, 4))
    place = linear([positions.counter(0), positions.counter(1)], (5, 4))
    quotient, remainder = positions.divide(place, 4)
    assert (quotient, remainder) == (positions.counter(0), positions.counter(1))


@pytest.mark.parametrize("offset", [-3, -1, 0, 2])
def test_bent_positions(offset: int) -> None:
    positions = Positions((6,))
    moved = Position(offset, positions.counter(0).terms)
    for i in range(6):
        assert value(positions.clamp(moved, 6), (i,)) == min(max(i + offset, 0), 5)
        expected = np.pad(np.arange(6), 5, mode="reflect")[i + offset + 5]
        assert value(positions.mirror(moved, 6), (i,)) == expected


# -- domains -------------------------------------------------------------------------------------


def test_dense_elementwise_bodies_have_one_axis() -> None:
    assert axes(nest(lambda x, y: x * y + x, (3, 4, 5), (3, 4, 5))) == [(60, "parallel")]
    scalars = typed((6, 7), (6, 7), (6, 7), (6, 7), (), (), ())
    found = analyze(trace_body(AdamUpdate().outputs, scalars))
    assert isinstance(found, LoopNest)
    assert axes(found) == [(42, "parallel")] and len(found.outputs) == 3


def test_broadcast_operands_keep_axes_apart() -> None:
    assert axes(nest(lambda x, y: x + y, (3, 4, 5), (5,))) == [(12, "parallel"), (5, "parallel")]
    assert axes(nest(lambda x, y: x + y, (3, 4, 5), (3, 1, 1))) == [
        (3, "parallel"),
        (20, "parallel"),
    ]


def test_stages_follow_one_another() -> None:
    found = nest(lambda x: Softmax(1)(x), (8, 33))
    assert axes(found) == [(8, "parallel"), (33, "reduced")]
    assert (found.stages, len(found.totals), found.parallel, found.row) == (3, 2, 8, 33)
    assert nest(lambda x, w, b: LayerNorm(2)(x, w, b), (5, 3, 4), (3, 4), (3, 4)).row == 12


def test_middle_axes_are_reduced_where_they_are() -> None:
    body = lambda *xs: BatchNormTrain().outputs(*xs)  # noqa: E731
    found = nest(body, (6, 3, 4, 5), (3,), (3,))
    assert axes(found) == [(6, "reduced"), (3, "parallel"), (20, "reduced")]


def test_reshapes_split_axes() -> None:
    found = nest(lambda x, w, b: GroupNorm(2)(x, w, b), (5, 6, 7), (6,), (6,))
    assert axes(found)[:2] == [(5, "parallel"), (2, "parallel")]
    heads = nest(lambda x: x.reshape((2, 5, 3, 8)).transpose((0, 2, 1, 3)), (2, 5, 24))
    assert axes(heads) == [(2, "parallel"), (3, "parallel"), (5, "parallel"), (8, "parallel")]
    assert all(
        a.kind == "counter" for c in heads.cells() if isinstance(c, Load) for a, _ in c.place.terms
    )


def test_columns_are_collected_beside_rows() -> None:
    def body(x: Any, dy: Any) -> Any:
        y = Standardize((1,))(x)
        return StandardizeGrad((1,))(x, dy), (dy * y).sum((0,)) * 2.0, dy.sum((0,))

    found = nest(body, (6, 8), (6, 8))
    assert axes(found) == [(6, "parallel"), (8, "reduced")]
    assert len(found.collected) == 2 and found.after == (1, 2)


def test_equal_elements_are_computed_once() -> None:
    found = nest(lambda x: (x * 2.0) * (x * 2.0), (9,))
    assert sum(isinstance(c, AppliedOp) for c in found.cells()) == 2


def test_independent_outputs_have_nests_of_their_own() -> None:
    found = nest(lambda x, y, z: (x + 1.0, y + 1.0, z + 1.0), (9, 2), (5,), (3,))
    assert len(found.further) == 1 and len(found.further[0].further) == 1


def test_groups_and_composites_are_looked_into() -> None:
    inner = trace_body(lambda x: Softmax(1)(x) * 2.0, typed((4, 5)))
    found = nest(lambda x: Fused("loop", inner)(x) + 1.0, (4, 5))
    assert found.stages == 3


REFUSED: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    (lambda x: Matmul()(x, x), ((3, 3),), "matmul"),
    (lambda x: Sort(0).outputs(x)[0], ((3,),), "sort"),
    (lambda x: Softmax(1)(x).transpose((1, 0)) + x, ((3, 3),), "along the axes that are reduced"),
    (lambda x: x.sum((0,)) * x.sum((1,)), ((3, 3),), "different axes|over other axes|meet"),
    (lambda x: Pad(((1, 1),))(x.sum((1,))), ((3, 4),), "padded|neither"),
    (lambda x: x + 1.0, ((symbol("n"),),), "symbolic"),
    (lambda x: x.sum((0,)) + x.sum((1,)) + x.sum((0, 1)), ((3, 3),), "different axes"),
]


@pytest.mark.parametrize(("body", "shapes", "reason"), REFUSED)
def test_refusals(body: Callable[..., Any], shapes: Any, reason: str) -> None:
    found = analyze(trace_body(body, typed(*shapes)))
    assert isinstance(found, NestRefusal)
    assert any(r in found.reason for r in reason.split("|")), found.reason


def test_positions_that_data_decides() -> None:
    types = [TensorType(F32, (7, 4)), TensorType(dt.int32, (5,))]
    found = analyze(trace_body(lambda t, i: Take(0)(t, i), types))
    assert isinstance(found, LoopNest)
    kinds = [a.kind for c in found.cells() if isinstance(c, Load) for a, _ in c.place.terms]
    assert sorted(kinds) == ["counter", "counter", "fetch"]
    rolled = nest(lambda x: Roll((2,), (0,))(x * 2.0), (5,))
    assert any(
        a.kind == "remainder"
        for c in rolled.cells()
        if isinstance(c, Load)
        for a, _ in c.place.terms
    )
