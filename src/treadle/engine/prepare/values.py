"""Small integers that are known while the program is not run: shapes, indices, counters.

Every small integer or bool tensor gets one entry per element, which may be unknown. Ops that move
elements move the entries; other ops are evaluated, with their oracles, where all they need is
known. So an index taken from a concatenation is known if the part it comes from is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from treadle.base.array import Array
from treadle.base.errors import TreadleError
from treadle.base.shape import size_of
from treadle.base.types import TensorType
from treadle.graph.ir import Graph, Node, Value, constant, constant_of, symbols_in
from treadle.graph.passes import register
from treadle.graph.regions import map_regions
from treadle.ops.constant import Constant
from treadle.ops.creation import Creation
from treadle.ops.families import Elementwise, Movement, Reduce
from treadle.ops.gather import Take
from treadle.ops.gather_along import TakeAlongAxis
from treadle.ops.op import Op, as_tuple
from treadle.ops.select import Where
from treadle.ops.slicing import Pad

LIMIT = 64
"""Elements of a tensor that are followed."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownElements:
    """Elements, and which of them are known; the others hold anything."""

    array: Array
    mask: npt.NDArray[np.bool_]

    @property
    def is_whole(self) -> bool:
        """True if every element is known."""
        return bool(self.mask.all())


@register
@dataclass(frozen=True, slots=True)
class Propagate:
    """Replaces small integer and bool tensors by constants where every element is known."""

    name: ClassVar[str] = "propagate"

    def __call__(self, graph: Graph, /) -> Graph:
        """The graph with what is known in place of what computes it."""
        graph = map_regions(graph, self)
        known = known_values(graph)
        made: dict[Value, Node] = {}
        for node in graph.nodes:
            for value in node.outputs:
                found = known.get(value)
                if found is not None and found.is_whole and constant_of(value) is None:
                    made[value] = constant(found.array, value.type.device, node.loc)
        used = {v for n in graph.nodes for v in n.inputs}.union(graph.outputs)
        made = {v: n for v, n in made.items() if v in used and n.output.type == v.type}
        return _replaced(graph, made) if made else graph


def _replaced(graph: Graph, made: dict[Value, Node]) -> Graph:
    """The graph with constants for some values; the rest is left to dead code elimination."""
    instead = {v: n.output for v, n in made.items()}
    nodes: list[Node] = list(made.values())
    for node in graph.nodes:
        inputs = tuple([instead.get(v, v) for v in node.inputs])
        if any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
            again = Node(node.op, inputs, node.loc, node.names, node.group)
            pairs = zip(node.outputs, again.outputs, strict=True)
            instead.update((v, w) for v, w in pairs if v not in made)
            node = again
        nodes.append(node)
    return graph.with_nodes(nodes, (instead.get(v, v) for v in graph.outputs))


def known_values(graph: Graph) -> dict[Value, KnownElements]:
    """Return the known values of the small integer and bool tensors of a graph."""
    known: dict[Value, KnownElements] = {}
    for node in graph.nodes:
        if not all(_is_small(v.type) for v in node.outputs):
            continue
        try:
            with np.errstate(all="ignore"):
                found = _evaluate(node, known)
        except TreadleError:  # A mistake in the data is the user's to see when the program runs.
            continue
        for value, entry in zip(node.outputs, found, strict=False):
            fits = entry.array.shape == value.type.shape
            if fits and entry.array.dtype == value.type.dtype.numpy and entry.mask.any():
                known[value] = entry
    return known


def _is_small(type_: TensorType) -> bool:
    kind = type_.dtype.kind in ("int", "uint", "bool")
    return kind and type_.is_static and 0 < size_of(type_.shape) <= LIMIT


def _evaluate(node: Node, known: dict[Value, KnownElements]) -> Sequence[KnownElements]:
    """Return the known values of a node's results, nothing where the op is none of those
    followed.
    """
    op = node.op
    if isinstance(op, Constant):
        data = op.data
        return (_whole(data.array),) if data.is_present else ()
    if (
        isinstance(op, Creation)
        and node.output.type.is_static
        and not symbols_in(tuple(op.attributes.values()))
    ):
        return (_whole(op.reference()),)
    operands = [known.get(v) or _unknown(v) for v in node.inputs]
    if any(x is None for x in operands):
        return ()
    present = [x for x in operands if x is not None]
    if isinstance(op, Movement) and not isinstance(op, Pad):  # whose filling is no operand
        return (_moved(op, present),)
    if isinstance(op, (Take, TakeAlongAxis)):
        return (_picked(op, present),)
    if isinstance(op, Where):
        return (_chosen(present),)
    if isinstance(op, Elementwise):
        return (_elementwise(op, present),)
    if isinstance(op, Reduce) and present[0].is_whole:
        return tuple(map(_whole, as_tuple(op.reference(present[0].array))))
    return ()


def _whole(array: Array) -> KnownElements:
    array = np.asarray(array)
    return KnownElements(array, np.ones(array.shape, np.bool_))


def _unknown(value: Value) -> KnownElements | None:
    """A small tensor of which nothing is known; 1 is an operand that no op refuses."""
    type_ = value.type
    if not type_.is_static or size_of(type_.shape) > LIMIT or type_.dtype.kind == "complex":
        return None
    return KnownElements(np.ones(type_.shape, type_.dtype.numpy), np.zeros(type_.shape, np.bool_))


def _moved(op: Op, operands: Sequence[KnownElements]) -> KnownElements:
    array = op.reference(*(x.array for x in operands))
    return KnownElements(np.asarray(array), np.asarray(op.reference(*(x.mask for x in operands))))


def _picked(op: Op, operands: Sequence[KnownElements]) -> KnownElements:
    x, index = operands
    if not index.is_whole:
        shape = op.reference(x.mask, np.zeros_like(index.array)).shape
        return KnownElements(np.ones(shape, x.array.dtype), np.zeros(shape, np.bool_))
    places = index.array
    return KnownElements(np.asarray(op.reference(x.array, places)), op.reference(x.mask, places))


def _chosen(operands: Sequence[KnownElements]) -> KnownElements:
    condition, x, y = operands
    array = np.asarray(np.where(condition.array, x.array, y.array))
    one = np.where(condition.array, x.mask, y.mask)
    return KnownElements(array.astype(x.array.dtype), np.asarray(condition.mask & one))


def _elementwise(op: Op, operands: Sequence[KnownElements]) -> KnownElements:
    array = np.asarray(op.reference(*(x.array for x in operands)))
    mask = np.ones(array.shape, np.bool_)
    for x in operands:
        mask = mask & x.mask
    return KnownElements(array, mask)
