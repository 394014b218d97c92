"""Building a graph that was built before, out of its own nodes.

Who captures a function at each call gets the same program nearly always. While inputs and ops come
as they did in the call before, its values and nodes are handed out again: no type rule is asked, no
line looked up, and in the end the graph is the same object. At the first difference what was
followed so far becomes the beginning of another graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np

from treadle.base.guards import stated_guards
from treadle.base.symbol import Relation
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.graph.ir import Graph, Node, Value, op_key, retyped
from treadle.ops.constant import ArrayData, Constant
from treadle.ops.gather import numbering
from treadle.ops.op import Op

_PLAIN = frozenset({int, str, tuple})
"""Classes of attributes that are compared as they are; the two zeros of floats have two keys."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A graph, and how it came into being.

    Attributes:
        graph: the graph.
        inputs: its inputs in the order in which they were made.
        order: their order in the graph, as `GraphBuilder.arrange_inputs` got it.
        places: of inputs, as `FollowingBuilder.comes_from` got them.
        marks: after each node, how many names of extents were taken and how many guards stated.
    """

    graph: Graph
    inputs: tuple[Value, ...]
    order: tuple[int, ...]
    places: tuple[object, ...]
    marks: tuple[tuple[int, int], ...]


class FollowingBuilder(GraphBuilder):
    """A builder that expects to build a certain graph again.

    Args:
        name: the graph's name.
        ahead: what is expected; None: nothing.
    """

    def __init__(self, name: str, ahead: Recorded | None = None) -> None:
        super().__init__(name, locate=True)
        self._ahead = ahead
        self._known_nodes = () if ahead is None else ahead.graph.nodes
        self._at = self._taken = 0
        self._borrowed = False
        self._made: tuple[Value, ...] = ()
        self._order: tuple[int, ...] = ()
        self._places: list[object] = []
        self._marks: list[tuple[int, int]] = []
        self._numbers = numbering()
        self.recorded: Recorded | None = None
        """The graph, once it is built, for the next call to follow."""

    # -- as it was before ------------------------------------------------------------------

    def comes_from(self, place: object) -> None:
        """Say where the next input is; one that is elsewhere is another one."""
        self._places.append(place)
        ahead = self._ahead
        if ahead is not None and ahead.places[self._taken : self._taken + 1] != (place,):
            self._part(ahead)

    def input(self, type_: TensorType, name: str = "") -> GraphOperand:
        """An input of the graph."""
        ahead = self._ahead
        if ahead is not None:
            value = ahead.inputs[self._taken] if self._taken < len(ahead.inputs) else None
            if value is not None and value.type == type_ and value.name == name:
                self._taken += 1
                return GraphOperand(self, value)
            self._part(ahead)
        return super().input(type_, name)

    def expects(self, op: Op, inputs: Sequence[GraphOperand]) -> bool:
        """Return whether this is the node that comes next."""
        if self._ahead is None or self._at == len(self._known_nodes):
            return False
        node = self._known_nodes[self._at]
        given = node.inputs
        if len(given) != len(inputs) or (given and node.group != self.group):
            return False
        for operand, value in zip(inputs, given, strict=True):
            if operand.value is not value:
                return False
        return _is_alike(node.op, op)

    def apply(
        self, op: Op, inputs: Sequence[GraphOperand], names: tuple[str, ...] = ()
    ) -> tuple[GraphOperand, ...]:
        """Take the node that comes next, or append another one."""
        ahead = self._ahead
        if ahead is not None:
            if self.expects(op, inputs):
                return self._next(ahead)
            self._part(ahead)
        made = super().apply(op, inputs, names)
        mark = self._numbers.taken, len(stated_guards())
        self._marks += [mark] * (len(self._nodes) - len(self._marks))
        return made

    def _next(self, ahead: Recorded) -> tuple[GraphOperand, ...]:
        node = self._known_nodes[self._at]
        self._numbers.taken = ahead.marks[self._at][0]
        self._at += 1
        return tuple([GraphOperand(self, v) for v in node.outputs])

    def constant(self, array: Any, device: str = "") -> GraphOperand:
        """A node that yields an array."""
        ahead = self._ahead
        if ahead is not None and self._at < len(self._known_nodes):
            op = self._known_nodes[self._at].op
            if type(op) is Constant and op.device == device and _is_same(op.data, array):
                return self._next(ahead)[0]
        return super().constant(array, device)

    def output(self, *operands: GraphOperand) -> None:
        """Add outputs to the graph."""
        if self._ahead is None or any([x.builder is not self for x in operands]):
            super().output(*operands)
        else:
            self._outputs += [x.value for x in operands]

    # -- another graph ---------------------------------------------------------------------

    def _part(self, ahead: Recorded) -> None:
        """Go on by oneself: what was followed so far is the beginning of another graph."""
        self._ahead = None
        self._borrowed = True
        self._inputs = list(ahead.inputs[: self._taken])
        self._nodes = list(self._known_nodes[: self._at])
        self._made = tuple(self._inputs)
        self._marks = list(ahead.marks[: self._at])
        self._values = {*self._inputs, *(v for n in self._nodes for v in n.outputs)}
        count = self._marks[-1][1] if self._marks else 0
        stated_guards().update(dict.fromkeys(ahead.graph.guards[:count]))

    def arrange_inputs(self, order: Sequence[int]) -> None:
        """Put the inputs into another order: number `order[i]` becomes number i."""
        self._order = tuple(order)
        ahead = self._ahead
        if ahead is not None and (ahead.order, len(ahead.inputs)) != (self._order, self._taken):
            self._part(ahead)
        if self._ahead is None:
            self._made = tuple(self._inputs)
            if not self._borrowed:
                super().arrange_inputs(order)

    def guard(self, relations: Iterable[Relation]) -> None:
        """Limit the graph to extents of which these relations are true."""
        given = dict.fromkeys(relations)
        ahead = self._ahead
        if ahead is not None and not given.keys() <= set(ahead.graph.guards):
            self._part(ahead)
            given = {**stated_guards(), **given}
        super().guard(given)

    @property
    def appended(self) -> Sequence[Node]:
        """The nodes, as the builder handed them out."""
        return self._nodes if self._ahead is None else self._known_nodes[: self._at]

    def build(self) -> Graph:
        """The graph: that which was expected, if everything came as it did."""
        ahead = self._ahead
        if ahead is not None:
            outputs = ahead.graph.outputs
            whole = self._at == len(self._known_nodes) and len(outputs) == len(self._outputs)
            if whole and all(map(is_, outputs, self._outputs)):
                self.recorded = ahead
                return ahead.graph
            self._part(ahead)
        graph, made = self._copied() if self._borrowed else (super().build(), self._made)
        self.recorded = Recorded(graph, made, self._order, tuple(self._places), tuple(self._marks))
        return graph

    def _copied(self) -> tuple[Graph, tuple[Value, ...]]:
        """A graph whose inputs are nobody else's, since they have numbers, and these inputs."""
        arranged = [self._made[i] for i in self._order]
        made = {v: Value(v.type, None, n, v.name) for n, v in enumerate(arranged)}
        inputs = tuple([made[v] for v in self._made])
        nodes = []
        for node in self._nodes:
            given = tuple([made[v] for v in node.inputs])
            nodes.append(retyped(node, node.op, given, tuple([v.type for v in node.outputs])))
            made.update(zip(node.outputs, nodes[-1].outputs, strict=True))
        front = tuple([made[v] for v in arranged])
        outputs = tuple([made[v] for v in self._outputs])
        return Graph(self.name, front, tuple(nodes), outputs, tuple(self._guards)), inputs


def _is_alike(x: Op, y: Op) -> bool:
    """Return whether two ops have one key; where plain attributes say so, without writing it."""
    if x is y or (
        type(x) is type(y) and all([_is_plainly(x.__dict__[n], y.__dict__[n]) for n in x._fields])
    ):
        return True
    return op_key(x) == op_key(y)


def _is_plainly(x: Any, y: Any) -> bool:
    """Return whether attributes are one object, equal numbers or strings, or tuples of such."""
    if x is y:
        return True
    kind = type(x)
    if kind is not type(y) or kind not in _PLAIN:
        return False
    if kind is tuple:
        return len(x) == len(y) and all(map(_is_plainly, x, y))
    return bool(x == y)


def _is_same(data: ArrayData, array: Any) -> bool:
    """Return whether an array has the same bits."""
    if isinstance(array, ArrayData):
        return data == array
    given = np.asarray(array)
    if given.dtype != data.dtype.numpy or given.shape != data.shape:
        return False
    return given.tobytes() == data.array.tobytes()


__all__ = ["FollowingBuilder", "Recorded"]
