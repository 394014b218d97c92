"""Layouts that the compiler takes for the ops that care about them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product

from treadle.base.types import TensorType
from treadle.engine.optimize.bodies import Trial
from treadle.engine.optimize.kinds import WINDOWS, is_static
from treadle.engine.optimize.layout import (
    LAYOUTS,
    RANKS,
    ROW_MAJOR,
    Layout,
    Moves,
    Sides,
    has_layouts,
    keeps_place,
    sides,
)
from treadle.engine.optimize.layout_costs import conversion, seconds
from treadle.engine.optimize.layout_forms import form_of, is_row_major
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph, Node, Value
from treadle.ops.conv import Convolution
from treadle.ops.fused import Fused
from treadle.ops.movement import Transpose
from treadle.ops.op import Op
from treadle.ops.orders import inverse, placed

Offer = tuple[Sides, float]
"""Layouts that an op can work with, and its modelled time."""


def cares(op: Op) -> bool:
    """Return whether it makes a difference to an op how its operands lie, or it makes one
    itself.
    """
    return _cares(type(op))


@lru_cache(512)
def _cares(cls: type[Op]) -> bool:
    return issubclass(cls, (Convolution, *WINDOWS, Transpose))


def places(node: Node) -> tuple[tuple[bool, ...], tuple[bool, ...]] | None:
    """Return which operands and results have layouts; None where an op does not care."""
    if not cares(node.op) or not is_static(node):
        return None
    op, several = node.op, (True,) * len(node.inputs)
    if isinstance(op, Convolution):
        if op.side == "weight":
            return several, (False,)
        return (True, *(False for _ in node.inputs[1:])), (True,)
    return (several, (True,)) if node.output.type.ndim in RANKS else None


def offers(
    node: Node, trial: Trial, borders: Sequence[bool], domain: Sequence[Layout] = LAYOUTS
) -> list[Offer]:
    """Return the offers for an op with layouts, row-major first.

    Args:
        node: the op.
        trial: asks the compiler.
        borders: which operands and results are made or read where all is row-major. They may
            differ from the rest: reading or writing them as they are can cost less than a copy.
        domain: the layouts to choose from, row-major first.
    """
    found = places(node)
    if found is None:
        return []
    has_layout = [*found[0], *found[1]]
    values = zip((*node.inputs, *node.outputs), borders, has_layout, strict=True)
    mine = [(v, border) for v, border, has in values if has]
    made = []
    for layouts in _combinations(node, mine, domain):
        one = sides(layouts, *found)
        if isinstance(node.op, Transpose):
            if not one.main.block:
                made.append((one, _moving(node, one)))
        elif is_row_major(one):
            made.append((one, seconds(node, one)))
        else:
            question = asked(node, one)
            if question is not None and trial(*question):
                made.append((one, seconds(node, one)))
    return made


def _combinations(
    node: Node, mine: Sequence[tuple[Value, bool]], domain: Sequence[Layout]
) -> list[tuple[Layout, ...]]:
    """Layouts for the values that have one, row-major first.

    Values inside the program have one layout together; what is the same memory in all follows. At
    a border, values are row-major, or like the others.
    """
    free = isinstance(node.op, Transpose)
    alone = [free or (border and isinstance(node.op, Convolution)) for _, border in mine]
    neutral = [not has_layouts(v.type.shape) for v, _ in mine]
    found = []
    for layouts in product(domain, repeat=len(mine)):
        each = list(zip(layouts, neutral, alone, strict=True))
        others = {x for x, same, _ in each if not same and x is not ROW_MAJOR}
        main = next(iter(others), ROW_MAJOR)
        inside = {x for x, same, apart in each if not same and not apart}
        fits = len(inside) <= 1 and len(others) <= 1
        if fits and all(x is main for x, same, _ in each if same):
            found.append(layouts)
    return found


def asked(node: Node, layouts: Sides) -> tuple[Fused, list[TensorType]] | None:
    """The group that the op becomes, as the compiler is asked about it; None if it becomes none."""
    form = form_of(node, layouts)
    if form is None:
        return None
    builder = GraphBuilder(kind_of(node))
    inputs, types = [], []
    for value, layout, moves in zip(node.inputs, layouts.operands, form.operands, strict=True):
        type_ = TensorType(value.type.dtype, value.type.shape)
        before = moves if layout is None else ()  # Is done to the value for all who read it so.
        type_ = _after(before, type_ if layout is None else _held(type_, layout))
        held = builder.input(type_).value
        for move in moves[len(before) :]:
            held = builder.add(move, (held,)).output
        inputs.append(held)
        types.append(type_)
    results = []
    made = builder.add(form.op, tuple(inputs))
    for value, layout, moves in zip(made.outputs, layouts.results, form.results, strict=True):
        for move in moves if layout is not None else ():
            value = builder.add(move, (value,)).output
        results.append(builder.operand(value))
    builder.output(*results)
    return Fused(kind_of(node), builder.build()), types


def _held(type_: TensorType, layout: Layout) -> TensorType:
    return type_.with_shape(layout.held(type_.shape))


def _after(moves: Moves, type_: TensorType) -> TensorType:
    for move in moves:
        (type_,) = move.infer(type_)
    return type_


def kind_of(node: Node) -> str:
    """The kind of group around an op that cares about layouts."""
    return "contraction" if isinstance(node.op, Convolution) else "window"


def _moving(node: Node, layouts: Sides) -> float:
    """The time of a transpose of the program between two layouts; none where nothing moves."""
    (value,) = node.inputs
    order = moving_order(node, layouts)
    held = layouts.operands[0] or ROW_MAJOR
    shape = placed(value.type.shape, held.order(value.type.ndim))
    return 0.0 if keeps_place(shape, order) else conversion(value)


def moving_order(node: Node, layouts: Sides) -> tuple[int, ...]:
    """The permutation of a transpose of the program from layout to layout."""
    op, rank = node.op, node.output.type.ndim
    permutation = op.permutation if isinstance(op, Transpose) else tuple(range(rank))
    before = inverse((layouts.operands[0] or ROW_MAJOR).order(rank))
    after = (layouts.results[0] or ROW_MAJOR).order(rank)
    return tuple(before[permutation[axis]] for axis in after)


def has_offers(graph: Graph) -> bool:
    """Return whether a program has ops that make layouts worth a thought."""
    return any(cares(n.op) and not isinstance(n.op, Transpose) for n in graph.nodes)
