"""The engine of every node at the least modelled total of computing and moving values.

For two engines the optimum is a minimum cut (Stone 1977, Multiprocessor scheduling with the aid of
network flow algorithms): nodes on one side run on the first engine, and what is cut is paid. More
engines are settled by alpha-expansion (Boykov, Veksler and Zabih 2001): one engine after the other
may take over nodes from all others, each time by a minimum cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treadle.backends.api import Engine
from treadle.base.types import TensorType
from treadle.engine.partition.candidates import Candidates
from treadle.engine.partition.model import Model, shares_memory
from treadle.graph.analysis import users
from treadle.graph.flow import FOREVER, Cut
from treadle.graph.ir import Graph, Node, Value
from treadle.ops.op import Op

Assignment = dict[Node, int]
"""The number of something, an engine or a memory space, for every node."""

_FIRST, _OTHER = "first", "other"


class Assigner:
    """Costs of a graph on some engines, and the cheapest assignment.

    Engines that share memory exchange values for nothing, so each node takes the fastest of them:
    what remains is the choice of a memory space. Values from outside lie in space 0, where the
    results are wanted, too.
    """

    def __init__(self, graph: Graph, candidates: Candidates, model: Model) -> None:
        self.graph = graph
        self.engines = candidates.engines
        self.model = model
        self.choices: dict[Node, list[int]] = {}
        self.readers = _readers(graph)
        self.spaces = _spaces(self.engines)
        self.space_of = {e: i for i, space in enumerate(self.spaces) for e in space}
        self._fastest: dict[Node, list[tuple[float, int]]] = {}
        self._ask(candidates)

    def _ask(self, candidates: Candidates) -> None:
        """Find who runs each node how fast; equal ops on equal types are asked about once."""
        first: dict[tuple[Op, tuple[TensorType, ...]], Node] = {}
        for node in self.graph.nodes:
            known = first.setdefault((node.op, tuple([v.type for v in node.inputs])), node)
            if known is node:
                self.choices[node] = candidates.choices(node)
                self._fastest[node] = [self._in_space(node, s) for s in self.spaces]
            else:
                self.choices[node], self._fastest[node] = self.choices[known], self._fastest[known]

    def first_supporting(self) -> Assignment:
        """Every node on the best engine that runs it, the other way to decide."""
        return {n: self.choices[n][0] for n in self.graph.nodes}

    def best(self) -> Assignment:
        """The engine of every node: the optimum for two memory spaces, good for more."""
        first = self.first_supporting()
        best = {n: self.space_of[e] for n, e in first.items()}
        if len(self.spaces) == 2:
            best = self._expanded(dict.fromkeys(self.graph.nodes, 0), 1)
        while len(self.spaces) > 2:
            steps = (self._expanded(best, i) for i in range(len(self.spaces)))
            found = min(steps, key=self._total)
            if self._total(found) >= self._total(best):
                break
            best = found
        return {n: self._fastest[n][s][1] for n, s in best.items()}

    def total(self, engines: Mapping[Node, int]) -> float:
        """Modelled seconds: every op, and every value once per memory space it is sent to."""
        cost = sum(self.model.seconds(n, self.engines[engines[n]]) for n in self.graph.nodes)
        return cost + self._sent({n: self.space_of[engines[n]] for n in self.graph.nodes})

    def _total(self, spaces: Mapping[Node, int]) -> float:
        return sum(self._fastest[n][s][0] for n, s in spaces.items()) + self._sent(spaces)

    def _sent(self, spaces: Mapping[Node, int]) -> float:
        cost = 0.0
        for value, readers in self.readers.items():
            source = _place(value.producer, spaces)
            cost += sum(
                self._transfer(value, source, t) for t in {_place(r, spaces) for r in readers}
            )
        return cost

    def _in_space(self, node: Node, space: Sequence[int]) -> tuple[float, int]:
        """The time of a node in a memory space, and the engine there that takes so long."""
        able = [e for e in self.choices[node] if e in space]
        offers = [(self.model.seconds(node, self.engines[e]), e) for e in able]
        return min(offers, default=(FOREVER, -1))

    def _transfer(self, value: Value, source: int, target: int) -> float:
        if source == target:
            return 0.0
        one, other = self.spaces[source][0], self.spaces[target][0]
        return self.model.transfer(value, self.engines[one], self.engines[other])

    # -- one minimum cut -------------------------------------------------------------------

    def _expanded(self, before: Assignment, space: int) -> Assignment:
        """The cheapest assignment in which every node stays or moves to `space`."""
        cut = Cut()
        # Tiny, and there so that both ends are known to the network.
        cut.edge(_FIRST, _OTHER, 1e-30)
        for node in self.graph.nodes:
            if before[node] == space:
                cut.edge(_FIRST, node, FOREVER)
                continue
            # What moves is on the first side, and pays its edge to the other.
            cut.edge(_FIRST, node, self._fastest[node][before[node]][0])
            cut.edge(node, _OTHER, self._fastest[node][space][0])
        for value in self.readers:
            self._price(cut, value, before, space)
        _, first = cut.solve(_FIRST, _OTHER)
        return {n: space if n in first else before[n] for n in self.graph.nodes}

    def _price(self, cut: Cut, value: Value, before: Assignment, space: int) -> None:
        """Pay for sending a value once, however many readers it has on the other side."""
        source = _side(value.producer, space)
        stays = _place(value.producer, before)
        away = {_place(r, before) for r in self.readers[value]} - {space}
        into, back = ("into", value), ("back", value)
        for reader in self.readers[value]:
            target = _side(reader, space)
            cut.edge(target, into, FOREVER)
            cut.edge(back, target, FOREVER)
        cut.edge(into, source, self._transfer(value, stays, space))
        cut.edge(source, back, max((self._transfer(value, space, a) for a in away), default=0.0))


def _place(node: Node | None, spaces: Mapping[Node, int]) -> int:
    """The memory space of a node; what lies outside the program is in space 0."""
    return 0 if node is None else spaces[node]


def _side(node: Node | None, space: int) -> object:
    """What stands for a node in the network."""
    if node is None:
        return _FIRST if space == 0 else _OTHER
    return node


def _spaces(engines: Sequence[Engine]) -> list[list[int]]:
    """Engines by the memory they share."""
    spaces: list[list[int]] = []
    for i, engine in enumerate(engines):
        for space in spaces:
            if shares_memory(engine, engines[space[0]]):
                space.append(i)
                break
        else:
            spaces.append([i])
    return spaces


def _readers(graph: Graph) -> dict[Value, Sequence[Node | None]]:
    """The nodes that read each value that is read; None stands for the program's results."""
    return {
        value: tuple(dict.fromkeys(u.node for u in uses))
        for value, uses in users(graph).items()
        if uses
    }
