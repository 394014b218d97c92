"""Loop groups: elementwise ops, moves and reductions that one loop nest computes.

Pairs of groups are merged greedily, the pair first that saves most (as XLA's priority fusion and
TorchInductor's scheduler do): one that feeds another, or two that read the same array.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from treadle.base.estimates import estimate
from treadle.base.shape import Shape, product
from treadle.base.symbol import Dim, is_identical
from treadle.engine.optimize.bodies import Note, Trial, accepted, stands_alone
from treadle.engine.optimize.groups import Groups, NodeGroup
from treadle.engine.optimize.kinds import is_closed, is_free, is_loop, is_read_through, is_static
from treadle.engine.optimize.model import cost
from treadle.engine.optimize.recompute import recompute
from treadle.graph.ir import Node, Value
from treadle.ops.families import Reduce
from treadle.ops.op import Op

MOST_OPS = 64
MOST_READS = 30
MOST_SIBLINGS = 16
"""Readers of one array that are considered two by two."""


@dataclass(frozen=True, slots=True)
class Domain:
    """Domain of a loop group.

    Attributes:
        points: elements of its largest value.
        reductions: shapes that are reduced and the axes, without extents of 1.
    """

    points: Dim
    reductions: frozenset[tuple[Shape, frozenset[int]]]

    def merged(self, other: Domain) -> Domain | None:
        """The domain of both together, None where no one nest can run over it."""
        both = self.reductions | other.reductions
        points = max(self.points, other.points, key=estimate)
        if len(both) > 2 or (len(both) == 2 and not _complementary(both)):
            return None
        if not all(is_identical(product(shape), points) for shape, _ in both):
            return None
        small = min(self.points, other.points, key=estimate)
        wanted = (points, *(_outside(shape, axes) for shape, axes in both))
        if not any(is_identical(small, w) for w in wanted):
            return None
        return Domain(points, both)


def _complementary(both: Iterable[tuple[Shape, frozenset[int]]]) -> bool:
    (shape, axes), (other, rest) = both
    return shape == other and not axes & rest and len(axes | rest) == len(shape)


def _outside(shape: Shape, axes: frozenset[int]) -> Dim:
    return product(d for i, d in enumerate(shape) if i not in axes)


def domain_of(node: Node) -> Domain:
    """The domain of one node."""
    points = max((product(v.type.shape) for v in node.outputs), key=estimate)
    if not isinstance(node.op, Reduce):
        return Domain(points, frozenset())
    shape = node.inputs[0].type.shape
    long = [a for a, d in enumerate(shape) if d != 1]
    axes = frozenset(i for i, a in enumerate(long) if a in node.op.axes)
    if not axes:
        return Domain(points, frozenset())
    return Domain(product(shape), frozenset(((tuple(shape[a] for a in long), axes),)))


def loop_groups(
    groups: Groups,
    trial: Trial,
    note: Note,
    *,
    plain: bool = False,
    alone: tuple[type[Op], ...] = (),
) -> None:
    """Merge loop nodes while that saves time, then have every group judged by the compiler.

    `plain` merges a group only into the one group that reads all it makes, and makes nothing twice.
    Ops of the classes `alone` are not merged.
    """
    merger = _Merger(groups, plain, alone)
    merger.run()
    if not plain:
        recompute(groups)
    pieces = _settle_all(groups, trial, note)
    if pieces:
        merger.run_again(pieces, trial)
        # What a split group no longer makes itself, another has to make, which is judged anew.
        while _settle_all(groups, trial, note):
            pass


def _settle_all(groups: Groups, trial: Trial, note: Note) -> list[NodeGroup]:
    """Judge every loop group; return the pieces of those that were split."""
    loops = [g for g in groups.all() if g.kind == "loop"]
    return [piece for g in loops for piece in _settle(groups, g, trial, note)]


def _settle(groups: Groups, group: NodeGroup, trial: Trial, note: Note) -> list[NodeGroup]:
    """Split what the compiler refuses, in the reverse order of the merges; what is left of it."""
    if stands_alone(groups, group) or not groups.needed(group):
        return []
    answer = accepted(groups, group, trial)
    if answer:
        return []
    note(groups.nodes[group.members[-1]], f"group of {len(group.members)} is split", answer.message)
    if not group.parts:
        group.kind, group.copies = "", set()
        return [group]
    found: list[NodeGroup] = []
    for part in groups.split(group):
        found += _settle(groups, part, trial, note) or [part]
    return found


class _Merger:
    """Greedy merging of pairs."""

    def __init__(self, groups: Groups, plain: bool, alone: tuple[type[Op], ...]) -> None:
        self.groups = groups
        self.alone = alone
        self.plain = plain
        self.domains: dict[NodeGroup, Domain] = {}
        self.known: dict[NodeGroup, Domain] = {}
        self.trial: Trial | None = None
        self.single: dict[int, Domain] = {}
        self.cost: dict[NodeGroup, int] = {}
        self.reads: dict[NodeGroup, list[Value]] = {}
        self.count = count()
        self.heap: list[tuple[int, int, int, int, NodeGroup, NodeGroup]] = []

    def run(self) -> None:
        """Merge until no pair saves time."""
        for i, node in enumerate(self.groups.nodes):
            group = self.groups.owner[i]
            if not group.kind and is_loop(node) and is_static(node):
                group.kind = "loop"
                if not self._is_read_through(node):
                    self.domains[group] = self.single[i] = domain_of(node)
        self._run()

    def run_again(self, pieces: Iterable[NodeGroup], trial: Trial) -> None:
        """Merge the pieces of refused groups otherwise, asking the compiler every time."""
        self.domains = {p: self.known[p] for p in pieces if p in self.known and p.kind}
        self.trial = trial
        self._run()

    def _run(self) -> None:
        self.known.update(self.domains)
        for group in list(self.domains):
            self._refresh(group)
        for group in list(self.domains):
            self._propose(group)
        while self.heap:
            *_, a, b = heappop(self.heap)
            if a in self.domains and b in self.domains:
                self._merge(a, b)

    def _is_read_through(self, node: Node) -> bool:
        """Return whether loops make the node themselves; it then takes no part in merging."""
        apart = is_closed(node) or isinstance(node.op, self.alone)
        return apart or is_read_through(node.op) or is_free(node.output)

    def _refresh(self, group: NodeGroup) -> None:
        self.reads[group] = self.groups.operands(group)[1]
        self.cost[group] = cost(self.groups, group, self.reads[group])

    def _merge(self, a: NodeGroup, b: NodeGroup) -> None:
        domain = self._domain(a, b)
        if domain is None or self.groups.closes_cycle((a, b)):
            return
        joined = self.groups.joined((a, b), "loop")
        if self.trial is not None and not accepted(self.groups, joined, self.trial):
            return
        made = self.groups.keep(joined)
        for old in (a, b):
            del self.domains[old], self.reads[old], self.cost[old]
        self.domains[made] = self.known[made] = domain
        self._refresh(made)
        self._propose(made)

    def _propose(self, group: NodeGroup) -> None:
        for other in self._neighbors(group):
            domain = self._domain(group, other)
            if domain is None or self.groups.closes_cycle((group, other)):
                continue
            if self.plain and not (self._feeds(group, other) or self._feeds(other, group)):
                continue
            joined = self.groups.joined((group, other), "loop")
            _, reads = self.groups.operands(joined)
            if len(reads) > MOST_READS or not self._ends_with_columns(joined):
                continue
            if not self._stores_in_order(joined, domain):
                continue
            saved = self.cost[group] + self.cost[other] - cost(self.groups, joined, reads)
            if saved > 0:
                first, second = sorted((group, other), key=lambda g: g.members[0])
                key = -saved, first.members[0], second.members[0]
                heappush(self.heap, (*key, next(self.count), first, second))

    def _feeds(self, group: NodeGroup, other: NodeGroup) -> bool:
        """Return whether all that a group makes is read by the other alone."""
        made = self.groups.needed(group)
        return all(v not in self.groups.results and self.groups.readers(v) == {other} for v in made)

    def _domain(self, a: NodeGroup, b: NodeGroup) -> Domain | None:
        if len(a.members) + len(b.members) > MOST_OPS or self.groups.is_apart(a, b):
            return None
        return self.domains[a].merged(self.domains[b])

    def _stores_in_order(self, group: NodeGroup, domain: Domain) -> bool:
        """Return whether results as large as what is reduced have their axes in its order.

        A nest walks over its domain in one order; it may read in others, but not store.
        """
        shapes = [shape for shape, _ in domain.reductions]
        for value in self.groups.needed(group) if shapes else ():
            long = [d for d in value.type.shape if d != 1]
            ordered = sorted(long, key=estimate)
            if any(ordered == sorted(s, key=estimate) and long != list(s) for s in shapes):
                return False
        return True

    def _ends_with_columns(self, group: NodeGroup) -> bool:
        """Return whether, of reductions both ways, those one way are results that nothing inside
        reads.

        A nest knows the sums of its rows at the end of each row, those of columns at its end.
        """
        reductions: dict[object, list[Node]] = {}
        for i in group.members:
            for key in self.single[i].reductions:
                reductions.setdefault(key, []).append(self.groups.nodes[i])
        if len(reductions) < 2:
            return True
        return any(
            not any(self._is_read_inside(n.output, group) for n in nodes)
            for nodes in reductions.values()
        )

    def _is_read_inside(self, value: Value, group: NodeGroup) -> bool:
        for user in self.groups.users[value]:
            if group.bits >> user & 1:
                return True
            (result, *_) = self.groups.nodes[user].outputs
            if is_read_through(self.groups.nodes[user].op) and self._is_read_inside(result, group):
                return True
        return False

    def _neighbors(self, group: NodeGroup) -> list[NodeGroup]:
        """Groups that feed it, that it feeds, and that read an array with it."""
        found: dict[NodeGroup, None] = {}
        for value in self.reads[group]:
            if value.producer is not None:
                found[self.groups.owner[self.groups.position[value.producer]]] = None
            siblings = self.groups.few_readers(value, MOST_SIBLINGS)
            found.update(dict.fromkeys(sorted(siblings, key=lambda g: g.members[0])))
        for i in group.members:
            for value in self.groups.nodes[i].outputs:
                readers = self.groups.readers(value)
                found.update(dict.fromkeys(sorted(readers, key=lambda g: g.members[0])))
        return [g for g in found if g is not group and g in self.domains]
