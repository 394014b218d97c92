"""Local rewrite rules: patterns, rules, and the one driver that applies them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from treadle.base.array import Array
from treadle.base.errors import GraphError
from treadle.base.guards import recording_guards
from treadle.base.shape import Shape
from treadle.graph.analysis import live_nodes
from treadle.graph.ir import Graph, Node, Value, constant_of, remake
from treadle.ops.abstract import constant_array
from treadle.ops.constant import ArrayData, Constant
from treadle.ops.creation import Full
from treadle.ops.movement import Broadcast, Reshape
from treadle.ops.op import Op

Level = Literal["exact", "safe", "fast"]
"""Promise of a rule: identical bits; identical but for NaN, infinities and the sign of zero; or the
same value in real arithmetic only."""
LEVELS: tuple[Level, ...] = ("exact", "safe", "fast")


@dataclass(frozen=True, slots=True)
class P:
    """A pattern: an op class over patterns for its inputs; a string captures a value.

    Attributes:
        op: class of the node's op (subclasses do not match).
        inputs: one pattern or name per input. A name that appears twice must be one value.
        name: captures the node, for its attributes.
        commutes: also try the two inputs the other way round.
    """

    op: type[Op]
    inputs: tuple[Pattern, ...]
    name: str = ""
    commutes: bool = False


@dataclass(frozen=True, slots=True)
class Filled:
    """Matches a constant all of whose elements are `value`, the sign of a zero included.

    The constant may be repeated or reshaped on its way.
    """

    value: float


Pattern = P | Filled | str


@dataclass(slots=True)
class Found:
    """A match: captured values by name, captured nodes, and the means to build the result."""

    root: Node
    values: dict[str, Value] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    made: list[Node] = field(default_factory=list)

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    @property
    def type(self) -> Any:
        """Type of the value that is replaced."""
        return self.root.outputs[0].type

    def attribute(self, node: str, name: str) -> Any:
        """An attribute of a captured node's op; the root is called `""`."""
        return getattr((self.nodes[node] if node else self.root).op, name)

    def apply(self, op: Op, *inputs: Value) -> Value:
        """A new node with the root's source line and group; its first output."""
        node = Node(op, inputs, self.root.loc, (), self.root.group if inputs else "")
        self.made.append(node)
        return node.outputs[0]

    def constant(self, value: Any) -> Value:
        """A new 0-d constant of the element type and on the device of the replaced value."""
        return self.literal(constant_array(value, None, self.type.dtype))

    def literal(self, array: Array) -> Value:
        """A new constant on the device of the replaced value."""
        return self.apply(Constant(ArrayData(array), self.type.device))


Build = Callable[[Found], "Value | tuple[Value, ...] | None"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A named rewrite.

    Attributes:
        name: reads "before => after".
        pattern: what it matches.
        build: the replacement; None where the rule declines.
        level: what the rule promises.
        example: a function over operands on whose graph it fires; its tests are made from it.
        shapes: of the example's arguments.
        dtypes: element types the example is tried with.
    """

    name: str
    pattern: P
    build: Build
    level: Level = "exact"
    example: Callable[..., Any] | None = None
    shapes: tuple[Shape, ...] = ((2, 3),)
    dtypes: tuple[str, ...] = ("float32",)


def match(pattern: Pattern, value: Value, found: Found) -> bool:
    """Return whether a value matches; captures go into `found` (also those of failed attempts)."""
    if isinstance(pattern, str):
        return found.values.setdefault(pattern, value) is value
    if isinstance(pattern, Filled):
        return _is_filled(_data_of(_source(value)), pattern.value)
    node = value.producer
    return node is not None and value.index == 0 and match_node(pattern, node, found)


def match_node(pattern: P, node: Node, found: Found) -> bool:
    """Return whether a node matches."""
    if type(node.op) is not pattern.op or len(node.inputs) != len(pattern.inputs):
        return False
    if pattern.name:
        found.nodes[pattern.name] = node
    orders: list[Sequence[Value]] = [node.inputs]
    if pattern.commutes:
        orders.append(node.inputs[::-1])
    for inputs in orders:
        values, nodes = dict(found.values), dict(found.nodes)
        if all(match(p, v, found) for p, v in zip(pattern.inputs, inputs, strict=True)):
            return True
        found.values, found.nodes = values, nodes
    return False


_REPEATING: tuple[type[Op], ...] = (Broadcast, Reshape)
"""Ops through which filled arrays are seen."""
_FILLING: frozenset[type[Op]] = frozenset((Constant, Full, *_REPEATING))


def _source(value: Value) -> Value:
    """Return the value that a value repeats or reshapes."""
    while value.producer is not None and isinstance(value.producer.op, _REPEATING):
        value = value.producer.inputs[0]
    return value


def _data_of(value: Value) -> ArrayData | None:
    """A constant, or the one number that an array is made of."""
    node = value.producer
    if node is not None and isinstance(node.op, Full):
        return ArrayData(node.op.replace(shape=()).reference())
    return constant_of(value)


def _is_filled(data: ArrayData | None, value: float) -> bool:
    if data is None or not data.is_present or not data.array.size or data.dtype.kind == "complex":
        return False
    array = data.array
    wanted = np.asarray(value).astype(array.dtype)
    if wanted != value or not bool((array == wanted).all()):
        return False
    # Both zeros compare equal, and what is exact for one of them is not for the other.
    return bool(data.dtype.kind != "float" or (np.signbit(array) == np.signbit(wanted)).all())


_HITS: ContextVar[Counter[str] | None] = ContextVar("hits", default=None)


@contextmanager
def counting_hits() -> Iterator[Counter[str]]:
    """Count by name the rules that fire inside the block."""
    hits: Counter[str] = Counter()
    token = _HITS.set(hits)
    try:
        yield hits
    finally:
        _HITS.reset(token)


def rewrite(graph: Graph, rules: Iterable[Rule], fuel: int = 50) -> Graph:
    """Apply the rules until none fires; nodes that end up unused are dropped.

    Nodes are visited in program order, each until no rule fires on it; what a rule makes is
    visited before the users of what it replaces. Patterns look from a node towards the inputs
    only, so one pass in this order reaches the fixpoint.

    Args:
        graph: the graph; regions inside it are left alone.
        rules: tried in order, those for the node's op only.
        fuel: rule firings per node of the graph before giving up.

    Raises:
        GraphError: a rule changes a type, or the fuel is spent.
    """
    return _Rewriter(graph, rules, fuel).run()


@dataclass(frozen=True, slots=True)
class _Redirect:
    """Stands in the queue behind the nodes that a rule made: from now on use `after`."""

    before: tuple[Value, ...]
    after: tuple[Value, ...]


_Heads = tuple[tuple[tuple[int, frozenset[type[Op]]], ...], ...]
"""For each order of a pattern's inputs, which ops have to make some of them."""


def _heads(pattern: P) -> _Heads:
    orders = [pattern.inputs, *([pattern.inputs[::-1]] if pattern.commutes else [])]
    return tuple(
        tuple(
            (i, _FILLING if isinstance(p, Filled) else frozenset((p.op,)))
            for i, p in enumerate(order)
            if not isinstance(p, str)
        )
        for order in orders
    )


def _makers(values: Iterable[Value]) -> list[type[Op] | None]:
    """The class of the op that makes each value, None for inputs of the graph."""
    return [None if v.producer is None else type(v.producer.op) for v in values]


def _may_match(heads: _Heads, kinds: Sequence[type[Op] | None]) -> bool:
    """Return whether the ops that make a node's operands are such that a pattern can match.

    It rules most patterns out at a small part of what trying them costs.
    """
    for order in heads:
        for i, allowed in order:
            if i >= len(kinds) or kinds[i] not in allowed:
                break
        else:
            return True
    return False


class _Rewriter:
    """One run of `rewrite`."""

    def __init__(self, graph: Graph, rules: Iterable[Rule], fuel: int) -> None:
        self._graph = graph
        self._fuel = fuel * max(len(graph.nodes), 1)
        self._rules: dict[type[Op], list[tuple[Rule, _Heads]]] = {}
        for rule in rules:
            self._rules.setdefault(rule.pattern.op, []).append((rule, _heads(rule.pattern)))
        self._instead: dict[Value, Value] = {}
        self._kept: list[Node] = []
        self._fired: Counter[str] = Counter()

    def run(self) -> Graph:
        queue: deque[Node | _Redirect] = deque(self._graph.nodes)
        with recording_guards():  # The verifier compares what is needed with what is guarded.
            while queue:
                item = queue.popleft()
                if isinstance(item, _Redirect):
                    self._redirect(item)
                else:
                    queue.extendleft(reversed(self._visit(item)))
        hits = _HITS.get()
        if hits is not None:
            hits.update(self._fired)
        if not self._fired:
            return self._graph
        result = self._graph.with_nodes(self._kept, map(self._resolve, self._graph.outputs))
        live = live_nodes(result)
        return result.with_nodes((n for n in self._kept if n in live), result.outputs)

    def _visit(self, node: Node) -> list[Node | _Redirect]:
        """Keep the node, or return what is to be visited in its place."""
        current = self._with_resolved_inputs(node)
        rules = self._rules.get(type(current.op), ())
        kinds = _makers(current.inputs) if rules else []
        for rule, heads in rules:
            if not _may_match(heads, kinds):
                continue
            found = Found(current)
            if not match_node(rule.pattern, current, found):
                continue
            built = rule.build(found)
            if built is None:
                continue
            after = built if isinstance(built, tuple) else (built,)
            if not self._check(rule, current, after):
                continue
            self._burn(rule)
            return [*found.made, _Redirect(node.outputs, after)]
        self._kept.append(current)
        if current is not node:
            self._instead.update(zip(node.outputs, current.outputs, strict=True))
        return []

    def _with_resolved_inputs(self, node: Node) -> Node:
        for value in node.inputs:
            if value in self._instead:
                return remake(node, node.op, tuple([self._resolve(v) for v in node.inputs]))
        return node

    def _redirect(self, item: _Redirect) -> None:
        for before, after in zip(item.before, item.after, strict=True):
            self._instead[before] = self._resolve(after)

    def _resolve(self, value: Value) -> Value:
        while value in self._instead:
            value = self._instead[value]
        return value

    def _check(self, rule: Rule, node: Node, after: tuple[Value, ...]) -> bool:
        """Return whether the device stays, which only an operand that is dropped may have; raises
        else.
        """
        before, now = [v.type for v in node.outputs], [v.type for v in after]
        if before == now:
            return True
        if [(t.dtype, t.shape) for t in before] != [(t.dtype, t.shape) for t in now]:
            raise GraphError(
                f"rule {rule.name}",
                f"changes the type of {node.op.name}",
                saw=f"{', '.join(map(str, before))} became {', '.join(map(str, now))}",
                at=node.loc,
            )
        return False

    def _burn(self, rule: Rule) -> None:
        self._fired[rule.name] += 1
        self._fuel -= 1
        if self._fuel < 0:
            raise GraphError(
                f"graph {self._graph.name}",
                f"rewriting does not end; most fired: {self._fired.most_common(2)}",
                hint="one of these rules undoes the other; give the pass more fuel if not",
            )
