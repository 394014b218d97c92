"""Giving up segments that save less than starting them costs.

A minimum cut prices nodes and values. What a segment costs as such, it cannot: so segments are
looked at afterwards, and one is given to another domain where that lowers the price of the whole.
In the end neither an assignment to one domain alone has a lower price than what is returned, nor
one that gives every node to its first engine, nor one that places node after node where it is
cheapest. In programs of a few nodes, single ones and neighbors are tried everywhere, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from treadle.engine.partition.assign import Assigner, Assignment
from treadle.engine.partition.segments import levels, needs
from treadle.graph.ir import Node

QUICK = 1000
"""Nodes up to which a program is cut several times."""
FEW = 24
"""Nodes up to which single ones are moved: each move is priced with the whole program."""
MOST_ROUNDS = 6
"""Number of times all segments are looked at; what is left then saves next to nothing."""


@dataclass(frozen=True, slots=True)
class _Change:
    """Some nodes of a segment in another domain, and what that saves if all else stays."""

    nodes: Sequence[Node]
    domain: int
    saving: float


class Pruner:
    """Finds cheaper assignments to domains."""

    def __init__(self, assigner: Assigner) -> None:
        self.assigner = assigner
        rates = [assigner.model.of(e) for e in assigner.engines]
        self._starts = [max(rates[e].segment for e in d) for d in assigner.domains.members]
        order = [u for u in assigner.order if not assigner.is_settled(u[0])]
        self._nodes = [n for unit in order for n in unit]
        self._needs = needs(order, assigner.fixed)

    def price(self, domains: Assignment) -> float:
        """Modelled seconds, the start of every segment included."""
        return self.assigner.cost(domains) + sum(
            self._starts[d] for d in self._segments(domains).values()
        )

    def _segments(self, domains: Assignment) -> dict[tuple[int, int], int]:
        """The domain of every segment."""
        level = levels(self._needs, domains)
        return {(level[n], domains[n]): domains[n] for n in self._nodes}

    def best(self) -> Assignment:
        """The cheapest assignment that is found, segments and all.

        Small programs are also cut as if their values paid for the segments that they enter.
        """
        assigner = self.assigner
        found = [self._pruned(assigner.best_domains())]
        if len(assigner.domains) == 1:
            return found[0]
        most = max(self._starts)
        if most and len(self._nodes) <= QUICK:
            tolls = (most / 2, most)
            found += [self._pruned(assigner.best_domains(toll)) for toll in tolls]
        found += [*map(self._pruned, (assigner.first(), assigner.greedy())), *assigner.alone()]
        if len(self._nodes) <= FEW:
            found = [self._polished(f) for f in found]
        return min(found, key=self.price)

    def _polished(self, domains: Assignment) -> Assignment:
        """The assignment after all moves of a unit, or of one and what it waits for, that pay."""
        best, price = dict(domains), self.price(domains)
        unit_of = {n: unit for unit, _ in self._needs for n in unit}
        moves = [unit for unit, _ in self._needs]
        moves += [(*unit, *unit_of[n]) for unit, waits in self._needs for n in waits]
        turn = 0
        while turn < len(moves):
            nodes, turn = moves[turn], turn + 1
            for domain in range(len(self._starts)):
                found = {**best, **dict.fromkeys(nodes, domain)}
                cost = self.price(found)
                if cost < price * (1 - 1e-12):
                    best, price, turn = found, cost, 0
        return best

    def _pruned(self, domains: Assignment) -> Assignment:
        """The assignment without segments that do not pay."""
        if len(self.assigner.domains) == 1 or not any(self._starts):
            return domains
        for _ in range(MOST_ROUNDS):
            found = self._cheaper(domains)
            if found is None:
                break
            domains = found
        return domains

    def _cheaper(self, domains: Assignment) -> Assignment | None:
        """A cheaper assignment: all changes that promise something, or the better ones of them."""
        price = self.price(domains)
        changes = [c for c in self._changes(domains) if c.saving > 0]
        changes.sort(key=lambda c: -c.saving)
        while changes:
            found = dict(domains)
            for change in changes:
                found.update(dict.fromkeys(change.nodes, change.domain))
            if self.price(found) < price:
                return found
            changes = changes[: len(changes) // 3]
        return None

    def _changes(self, domains: Assignment) -> Iterator[_Change]:
        """Yield for every segment its best other domain, with what that may save at most."""
        level = levels(self._needs, domains)
        groups: dict[tuple[int, int], list[Node]] = {}
        for node in self._nodes:
            groups.setdefault((level[node], domains[node]), []).append(node)
        for (_, now), nodes in groups.items():
            others = [d for d in range(len(self._starts)) if d != now]
            offers = [c for d in others if (c := self._change(domains, nodes, d)) is not None]
            best = max(offers, key=lambda c: c.saving, default=None)
            if best is not None:
                yield best

    def _change(self, domains: Assignment, nodes: Sequence[Node], domain: int) -> _Change | None:
        assigner, now = self.assigner, domains[nodes[0]]
        after = sum(assigner.seconds(n, domain) for n in nodes)
        if after == float("inf"):
            return None
        saving = self._starts[now] + sum(assigner.seconds(n, now) for n in nodes) - after
        values = {v for n in nodes for v in (*n.inputs, *n.outputs) if v in assigner.readers}
        saving += sum(assigner.sent(v, domains) for v in values)
        domains.update(dict.fromkeys(nodes, domain))  # For a moment: a copy would take too long.
        saving -= sum(assigner.sent(v, domains) for v in values)
        domains.update(dict.fromkeys(nodes, now))
        # The segments around it may become one.
        return _Change(nodes, domain, saving + self._starts[domain])
