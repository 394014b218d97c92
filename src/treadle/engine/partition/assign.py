"""The engine of every node at the least modelled total of computing and moving values.

For two domains of engines the optimum is a minimum cut (Stone 1977, Multiprocessor scheduling with
the aid of network flow algorithms): nodes on one side run in the first domain, and what is cut is
paid. More domains are settled by alpha-expansion (Boykov, Veksler and Zabih 2001): one after the
other may take over nodes from all others, each time by a minimum cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from treadle.base.types import TensorType
from treadle.engine.partition.candidates import Candidates
from treadle.engine.partition.domains import Domains
from treadle.engine.partition.model import CostModel, shares_memory
from treadle.graph.analysis import users
from treadle.graph.flop_count import nbytes
from treadle.graph.flow import FOREVER, Cut
from treadle.graph.ir import Graph, Node, Value
from treadle.ops.constant import Constant
from treadle.ops.op import Op

Assignment = dict[Node, int]
"""The number of something, an engine or a domain, for every node."""

_FIRST, _OTHER = "first", "other"


class Assigner:
    """Costs of a graph on some engines, and the cheapest assignment.

    Values from outside lie in the home domain's memory, where the results are wanted, too.

    Args:
        graph: what is assigned.
        candidates: the engines, and who runs what.
        model: what things cost.
        fixed: values that are computed once, if at all, wherever they are needed.
    """

    def __init__(
        self,
        graph: Graph,
        candidates: Candidates,
        model: CostModel,
        fixed: Collection[Value] = (),
    ) -> None:
        self.graph = graph
        self.engines = candidates.engines
        self.model = model
        self.fixed = fixed
        self.choices: dict[Node, list[int]] = {}
        self.domains = Domains(self.engines)
        one = [self.engines[d[0]] for d in self.domains.members]
        self._ways = [[model.way(a, b) for b in one] for a in one]
        self._beside = [[shares_memory(a, b) for b in one] for a in one]
        self.order = candidates.claims.order(graph)
        self.readers = {v: r for v, r in _readers(graph).items() if not self.is_free(v)}
        self._nbytes = {v: nbytes(v) for v in self.readers}
        self._fastest: dict[Node, list[tuple[float, int]]] = {}
        self._toll = 0.0
        self._ask(candidates)

    def is_free(self, value: Value) -> bool:
        """Return whether a value can be had in every domain for nothing."""
        return value in self.fixed or (
            value.producer is not None and isinstance(value.producer.op, Constant)
        )

    def is_settled(self, node: Node) -> bool:
        """Return whether a node is computed once, at home, and is not worth a thought."""
        return isinstance(node.op, Constant) or all(v in self.fixed for v in node.outputs)

    def _ask(self, candidates: Candidates) -> None:
        """Find who runs each node how fast; equal ops on equal types are asked about once."""
        first: dict[tuple[Op, tuple[TensorType, ...]], tuple[float, ...]] = {}
        for node in self.graph.nodes:
            self.choices[node] = choices = candidates.choices(node)
            key = (node.op, tuple([v.type for v in node.inputs]))
            if key not in first:
                first[key] = tuple(self.model.seconds(node, e) for e in self.engines)
            self._fastest[node] = [
                self._in_domain(node, first[key], [e for e in choices if e in domain])
                for domain in self.domains.members
            ]
        for unit in self.order:
            self._bind(unit)

    def _bind(self, unit: Sequence[Node]) -> None:
        """Exclude domains that cannot have all nodes of a claim, which run in one domain."""
        for domain in range(len(self.domains)) if len(unit) > 1 else ():
            if any(self._fastest[n][domain][1] < 0 for n in unit):
                for node in unit:
                    self._fastest[node][domain] = FOREVER, -1

    def first_supporting(self) -> Assignment:
        """Every node on the best engine that runs it, the other way to decide."""
        return {n: self.choices[n][0] for n in self.graph.nodes}

    def best(self) -> Assignment:
        """The engine of every node: the optimum for two domains, good for more."""
        return self.fastest(self.best_domains())

    def fastest(self, domains: Mapping[Node, int]) -> Assignment:
        """The fastest engine of every node in its domain."""
        return {n: self._fastest[n][d][1] for n, d in domains.items()}

    def best_domains(self, toll: float = 0.0) -> Assignment:
        """The domain of every node, likewise, if every value on its way cost `toll` more."""
        self._toll = toll
        home, count = self.domains.home, len(self.domains)
        if count == 2:
            return self._expanded(dict.fromkeys(self.graph.nodes, home), 1 - home)
        start = self.first()
        if count == 1:
            return start
        best = min((start, *self.alone()), key=self.cost)
        cost, domain, idle = self.cost(best), 0, 0
        while idle < count:
            found = self._expanded(best, domain)
            price = self.cost(found)
            if price < cost:
                best, cost, idle = found, price, 0
            idle, domain = idle + 1, (domain + 1) % count
        return best

    def first(self) -> Assignment:
        """Every node where its first engine is."""
        start = {n: self._first_domain(n) for n in self.graph.nodes}
        for unit in self.order:
            start.update(dict.fromkeys(unit, start[unit[0]]))
        return start

    def greedy(self) -> Assignment:
        """Node after node where it and its operands on their way cost least."""
        found: Assignment = {}
        for unit in self.order:
            domain = self.domains.home
            if not self.is_settled(unit[0]):
                values = {v for n in unit for v in n.inputs if v in self.readers}
                values = {v for v in values if v.producer is None or v.producer not in unit}
                domain = min(
                    range(len(self.domains)),
                    key=lambda d: (
                        sum(self.seconds(n, d) for n in unit)
                        + sum(self.crossing(v, self._place(v.producer, found), d) for v in values)
                    ),
                )
            found.update(dict.fromkeys(unit, domain))
        return found

    def alone(self) -> Iterator[Assignment]:
        """Everything in one domain, for each domain that can."""
        nodes, home = self.graph.nodes, self.domains.home
        for domain in range(len(self.domains)):
            found = {n: home if self.is_settled(n) else domain for n in nodes}
            if all(self._fastest[n][d][1] >= 0 for n, d in found.items()):
                yield found

    def _first_domain(self, node: Node) -> int:
        """Return the domain of the best engine that may have the node, as a member of its claim,
        too.
        """
        if self.is_settled(node):
            return self.domains.home
        offers = self._fastest[node]
        found = (self.domains.of[e] for e in self.choices[node])
        return next(d for d in found if offers[d][1] >= 0)

    def total(self, engines: Mapping[Node, int]) -> float:
        """Modelled seconds of ops and of values on their way, each once per domain it goes to."""
        cost = sum(
            0.0 if self.is_settled(n) else self.model.seconds(n, self.engines[engines[n]])
            for n in self.graph.nodes
        )
        return cost + self._sent({n: self.domains.of[engines[n]] for n in self.graph.nodes})

    def cost(self, domains: Mapping[Node, int]) -> float:
        """The same for the fastest engines of these domains."""
        return sum(self._fastest[n][d][0] for n, d in domains.items()) + self._sent(domains)

    def seconds(self, node: Node, domain: int) -> float:
        """A node's time in a domain; infinite where nobody has it."""
        return self._fastest[node][domain][0]

    def _sent(self, domains: Mapping[Node, int]) -> float:
        return sum(self.sent(value, domains) for value in self.readers)

    def sent(self, value: Value, domains: Mapping[Node, int]) -> float:
        """The time a value is on its way."""
        source, home = self._place(value.producer, domains), self.domains.home
        targets = {domains[r] for r in self.readers[value] if r is not None}
        cost = sum(self.crossing(value, source, t) for t in targets)
        if home not in targets and None in self.readers[value] and not self._beside[source][home]:
            cost += self.crossing(value, source, home)
        return cost

    def _in_domain(
        self, node: Node, seconds: Sequence[float], able: Sequence[int]
    ) -> tuple[float, int]:
        """The time of a node in a domain, and the engine there that takes so long."""
        if not able:
            return FOREVER, -1
        best = min(able, key=seconds.__getitem__)
        return (0.0 if self.is_settled(node) else seconds[best]), best

    def crossing(self, value: Value, source: int, target: int) -> float:
        """Return the cost of using a value made in one domain in another one.

        Arguments and results of the program are in memory in any case, so that nothing is lost
        where an engine beside that memory reads or makes them.
        """
        if source == target:
            return 0.0
        way = self._ways[source][target]
        if way is None or (value.producer is None and self._beside[source][target]):
            return 0.0
        return way.latency + self._nbytes[value] / way.bandwidth

    def _tolled(self, value: Value, source: int, target: int) -> float:
        cost = self.crossing(value, source, target)
        return cost + self._toll if cost else 0.0

    def _place(self, node: Node | None, domains: Mapping[Node, int]) -> int:
        """The domain of a node; what lies outside the program is at home."""
        return self.domains.home if node is None else domains[node]

    # -- one minimum cut -------------------------------------------------------------------

    def _expanded(self, before: Assignment, domain: int) -> Assignment:
        """The cheapest assignment in which every node stays or moves to `domain`."""
        cut = Cut()
        # Tiny, and there so that both ends are known to the network.
        cut.edge(_FIRST, _OTHER, 1e-30)
        for unit in self.order:
            node = unit[0]
            if self.is_settled(node):
                continue
            for other in unit[1:]:
                cut.edge(node, other, FOREVER)
                cut.edge(other, node, FOREVER)
            for node in unit:
                if before[node] == domain:
                    cut.edge(_FIRST, node, FOREVER)
                    continue
                # What moves is on the first side, and pays its edge to the other. What both sides
                # would pay need not flow.
                stays, moves = self.seconds(node, before[node]), self.seconds(node, domain)
                least = min(stays, moves)
                cut.edge(_FIRST, node, stays - least)
                cut.edge(node, _OTHER, moves - least)
        for value in self.readers:
            self._price(cut, value, before, domain)
        _, first = cut.solve(_FIRST, _OTHER)
        return {n: domain if n in first else before[n] for n in self.graph.nodes}

    def _price(self, cut: Cut, value: Value, before: Assignment, domain: int) -> None:
        """Pay for sending a value once, however many readers it has on the other side."""
        source = self._side(value.producer, domain)
        stays = self._place(value.producer, before)
        readers = self.readers[value]
        other = stays if domain == self.domains.home else domain
        if None in readers and self._beside[other][self.domains.home]:
            readers = [r for r in readers if r is not None]
        away = {self._place(r, before) for r in readers} - {domain}
        into = self._tolled(value, stays, domain)
        back = max((self._tolled(value, domain, a) for a in away), default=0.0)
        if len(readers) == 1:
            target = self._side(readers[0], domain)
            cut.edge(target, source, into)
            cut.edge(source, target, back)
            return
        for reader in readers if into > 0 else ():
            cut.edge(self._side(reader, domain), ("into", value), FOREVER)
        cut.edge(("into", value), source, into)
        for reader in readers if back > 0 else ():
            cut.edge(("back", value), self._side(reader, domain), FOREVER)
        cut.edge(source, ("back", value), back)

    def _side(self, node: Node | None, domain: int) -> object:
        """Return the side of the network on which a node stands."""
        if node is None:
            return _FIRST if domain == self.domains.home else _OTHER
        return node


def _readers(graph: Graph) -> dict[Value, Sequence[Node | None]]:
    """The nodes that read each value that is read; None stands for the program's results."""
    return {
        value: tuple(dict.fromkeys(u.node for u in uses))
        for value, uses in users(graph).items()
        if uses
    }
