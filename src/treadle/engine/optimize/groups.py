"""Groups of nodes that become one kernel, and the questions that forming them asks.

A group owns nodes, and may hold copies of others that it makes itself instead of reading them.
Which group depends on which is kept as bitsets over nodes, so that a merge's cycle test is one AND.
A group stands in the sets of others as its first part did (its lead): they know that one already,
so that of the groups around a merge only those are visited that come to depend on something new.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import compress

from treadle.base.estimates import estimate
from treadle.engine.optimize.kinds import is_clear, is_free, is_static
from treadle.graph.ir import Graph, Node, Value
from treadle.ops.constant import Constant
from treadle.ops.fused import Fused


@dataclass(slots=True, eq=False)
class NodeGroup:
    """Nodes by position in the graph.

    Attributes:
        kind: "loop", "contraction", "attention" or "window"; "" for an op that runs as it stands.
        members: the nodes it owns.
        copies: nodes it makes for itself.
        bits: the members as a bitset.
        lead: the member that stands for it in the sets of other groups, as a bitset.
        above: the leads of the groups it depends on, and other members of theirs.
        below: the leads of the groups that depend on it, and other members of theirs.
        parts: the groups it was merged from.
        name: what the user calls it.
    """

    kind: str
    members: list[int]
    copies: set[int] = field(default_factory=set)
    bits: int = 0
    lead: int = 0
    above: int = 0
    below: int = 0
    parts: tuple[NodeGroup, ...] = ()
    name: str = ""

    @property
    def inside(self) -> set[int]:
        """Members and copies."""
        return self.copies.union(self.members)


def positions(bits: int) -> Iterator[int]:
    """The numbers in a bitset, in order."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


class Groups:
    """A graph's nodes in groups, each node in exactly one.

    Args:
        graph: the nodes.
        fixed: values that are computed once; what makes them is kept apart from the rest.
    """

    def __init__(self, graph: Graph, fixed: Collection[Value] = ()) -> None:
        self.graph = graph
        self.nodes = graph.nodes
        self.position = {n: i for i, n in enumerate(graph.nodes)}
        self.users: dict[Value, list[int]] = {v: [] for v in graph.inputs}
        for i, node in enumerate(graph.nodes):
            self.users.update((v, []) for v in node.outputs)
            for value in dict.fromkeys(node.inputs):
                self.users[value].append(i)
        self.results = set(graph.outputs)
        self.nbytes = {v: estimate(v.type.open_nbytes) for v in self.users if v.type.is_resolved}
        # Asked many thousand times, and instance tests of abstract classes are slow.
        self._moves = [n.op.strided for n in graph.nodes]
        self._clear = {v for n in graph.nodes if is_static(n) for v in n.outputs if is_clear(v)}
        self._free = {v for v in self._clear if is_free(v)}
        self._read_through = _bits(self.position[v.producer] for v in self._clear if v.producer)
        self._fixed = self._moved = 0
        """Nodes that are computed once, and those of them that any group may make for itself."""
        for i, node in enumerate(graph.nodes if fixed else ()):
            if all(v in fixed for v in node.outputs):
                self._fixed |= 1 << i
                if node.op.strided or isinstance(node.op, Constant):
                    self._moved |= 1 << i
        self._holders: dict[int, list[NodeGroup]] = {}
        self.bodies: dict[tuple[str, tuple[int, ...], tuple[Value, ...]], Fused] = {}
        """Groups as ops, by kind, nodes and results: each is asked about more than once."""
        self.owner: list[NodeGroup] = []
        self._leads = (1 << len(graph.nodes)) - 1
        self._start()

    def _start(self) -> None:
        above: list[int] = []
        for i, node in enumerate(self.nodes):
            bits = 0
            for value in node.inputs:
                if value.producer is not None:
                    p = self.position[value.producer]
                    bits |= above[p] | 1 << p
            above.append(bits)
            self.owner.append(NodeGroup("", [i], bits=1 << i, lead=1 << i, above=bits))
        for i in range(len(self.nodes) - 1, -1, -1):
            below = self.owner[i].below | 1 << i
            for value in self.nodes[i].inputs:
                if value.producer is not None:
                    self.owner[self.position[value.producer]].below |= below

    # -- merging ---------------------------------------------------------------------------

    def closes_cycle(self, groups: Iterable[NodeGroup]) -> bool:
        """Return whether some other group would both need and feed the merged loop groups.

        A lone move between them is none: what is merged reads through it.
        """
        above = below = bits = 0
        for g in groups:
            above, below, bits = above | g.above, below | g.below, bits | g.bits
        return bool(above & below & ~bits & ~self._read_through)

    def is_fixed(self, node: Node) -> bool:
        """Return whether a node is computed once."""
        return bool(self._fixed & (1 << self.position[node]))

    def is_apart(self, group: NodeGroup, other: NodeGroup) -> bool:
        """Return whether one of the two is computed once, and the other in every run."""
        bits, rest = group.bits & ~self._moved, other.bits & ~self._moved
        return bool(bits and rest) and bool(bits & self._fixed) != bool(rest & self._fixed)

    def joined(self, groups: Iterable[NodeGroup], kind: str) -> NodeGroup:
        """Return the group that merging the groups would give; nothing changes until it is passed
        to `keep`.
        """
        parts = tuple(dict.fromkeys(groups))
        members = sorted(i for g in parts for i in g.members)
        made = NodeGroup(kind, members, lead=parts[0].lead, parts=parts)
        for g in parts:
            made.copies |= g.copies
            made.bits |= g.bits
            made.above |= g.above
            made.below |= g.below
        made.copies.difference_update(made.members)
        made.above &= ~made.bits
        made.below &= ~made.bits
        return made

    def keep(self, made: NodeGroup) -> NodeGroup:
        """Put a joined group in the place of its parts; it must not close a cycle."""
        for i in made.members:
            self.owner[i] = made
        self._read_through &= ~made.bits
        self.add_copies(made, made.copies)
        self._leads = self._leads & ~made.bits | made.lead
        above, below = made.above | made.lead, made.below | made.lead
        known = [not above & ~(p.above | p.lead) for p in made.parts]
        for other in self._uninformed(made, known, [p.below for p in made.parts]):
            other.above |= above
        known = [not below & ~(p.below | p.lead) for p in made.parts]
        for other in self._uninformed(made, known, [p.above for p in made.parts]):
            other.below |= below
        return made

    def _uninformed(
        self, made: NodeGroup, known: list[bool], sets: list[int]
    ) -> Iterator[NodeGroup]:
        """The groups on one side of a merge that do not know all that it has on its other side.

        Those beside all parts do, and those beside a part that knows it.
        """
        some, every = 0, -1
        for bits in sets:
            some, every = some | bits, every & bits
        for bits in compress(sets, known):
            every |= bits
        for i in positions(some & ~every & ~made.bits & self._leads):
            yield self.owner[i]

    def add_copies(self, group: NodeGroup, nodes: Iterable[int]) -> None:
        """Copy some nodes into a group, which then makes their results itself."""
        for i in tuple(nodes):
            group.copies.add(i)
            self._holders.setdefault(i, []).append(group)

    def split(self, group: NodeGroup) -> tuple[NodeGroup, ...]:
        """Undo the merge that made a group; what lies around may be kept apart needlessly."""
        for part in group.parts:
            part.above |= group.above
            part.below |= group.below
            self._leads |= part.lead
            for i in part.members:
                self.owner[i] = part
        return group.parts

    def between(self, group: NodeGroup) -> list[int]:
        """The nodes of the groups that need a group and feed it."""
        found = {self.owner[i] for i in positions(group.above & group.below)}
        return sorted(i for g in found for i in g.members)

    def all(self) -> list[NodeGroup]:
        """Every group, by its first member."""
        return list(dict.fromkeys(self.owner))

    # -- what crosses a group's border -----------------------------------------------------

    def operands(self, group: NodeGroup) -> tuple[list[int], list[Value]]:
        """The nodes a group computes, copies included, and the values it reads from outside."""
        inside = group.inside
        waiting = sorted(inside)
        outside: dict[Value, None] = {}
        for i in waiting:  # grows while it is walked
            for value in self.nodes[i].inputs:
                p = None if value.producer is None else self.position[value.producer]
                if p is not None and p in inside:
                    continue
                if p is not None and self._makes_itself(group, value):
                    inside.add(p)
                    waiting.append(p)
                else:
                    outside[value] = None
        order = sorted(inside)
        used = dict.fromkeys(v for i in order for v in self.nodes[i].inputs if v in outside)
        return order, list(used)

    def _makes_itself(self, group: NodeGroup, value: Value) -> bool:
        if not group.kind:
            return False
        return value in (self._clear if group.kind == "loop" else self._free)

    def needed(self, group: NodeGroup) -> list[Value]:
        """The members' results that are read outside, or are results of the graph."""
        own = {self.owner[i] for i in group.members}
        inside = frozenset(group.members)
        found = []
        for i in group.members:
            for value in self.nodes[i].outputs:
                if value in self.results or self._is_read(value, inside, own):
                    found.append(value)
        return found

    def _is_read(self, value: Value, inside: frozenset[int], own: set[NodeGroup]) -> bool:
        """Return whether somebody else reads a value; nodes `inside` a group only thought of do
        not.
        """
        return any(group not in own for group in self._reading(value, inside))

    def readers(self, value: Value) -> set[NodeGroup]:
        """The groups that read a value, those that do so through a lone move included."""
        return set(self._reading(value, frozenset()))

    def few_readers(self, value: Value, most: int) -> set[NodeGroup]:
        """Return the groups that read a value if they are no more than `most`, else none.

        A value that thousands read is asked about for each of them.
        """
        found: set[NodeGroup] = set()
        for group in self._reading(value, frozenset()):
            found.add(group)
            if len(found) > most:
                return set()
        return found

    def _reading(self, value: Value, inside: frozenset[int]) -> Iterator[NodeGroup]:
        maker = -1 if value.producer is None else self.position[value.producer]
        for user in self.users[value]:
            # Groups that hold a copy of the user; those that were merged away do not count.
            for holder in self._holders.get(user, ()):
                if self.owner[holder.members[0]] is holder and maker not in holder.inside:
                    yield holder
            group = self.owner[user]
            if user in inside or maker in group.copies:
                continue
            if len(group.members) > 1 or not self._moves[user]:
                yield group
                continue
            (moved,) = self.nodes[user].outputs
            yield from self._reading(moved, inside)
            if moved in self.results:
                yield group


def _bits(numbers: Iterable[int]) -> int:
    found = 0
    for i in numbers:
        found |= 1 << i
    return found
