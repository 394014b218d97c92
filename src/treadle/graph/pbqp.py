"""Partitioned boolean quadratic problems: a state for each variable at the least total cost.

Every variable pays for its state, and every pair of variables that an edge joins for both of
theirs. Variables are eliminated one by one: those with up to two neighbors without loss of the
optimum, others by the locally best state.

Algorithm: Scholz and Eckstein 2002, Register allocation for irregular architectures; Hames and
Scholz 2006, Nearly optimal register allocation with PBQP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.base.errors import GraphError

NEVER = float("inf")
"""The cost of what must not be."""
Vector = list[float]
Matrix = list[Vector]


@dataclass(frozen=True, slots=True)
class Solution:
    """A state for every variable, what they cost together, and whether that is known to be least.

    `cost` is `NEVER` where no allowed assignment was found.
    """

    states: tuple[int, ...]
    cost: float
    proven: bool


class AssignmentProblem:
    """A problem under construction; variables are numbered from 0."""

    __slots__ = ("_costs", "_edges")

    def __init__(self) -> None:
        self._costs: list[Vector] = []
        self._edges: dict[tuple[int, int], Matrix] = {}

    def variable(self, costs: Sequence[float]) -> int:
        """Add a variable with a cost for each of its states.

        Raises:
            GraphError: there is no state.
        """
        if not costs:
            raise GraphError("layout", "a variable has no state to choose")
        self._costs.append(list(costs))
        return len(self._costs) - 1

    def charge(self, variable: int, costs: Sequence[float]) -> None:
        """Add to the costs of a variable's states."""
        own = self._costs[variable]
        own[:] = [a + b for a, b in zip(own, costs, strict=True)]

    def edge(self, first: int, second: int, costs: Sequence[Sequence[float]]) -> None:
        """Add costs of pairs of states, a row per state of `first`; edges of a pair add up.

        Raises:
            GraphError: both ends are one variable.
        """
        if first == second:
            raise GraphError("layout", f"variable {first} has an edge to itself")
        _add(self._edges, first, second, [list(row) for row in costs])

    def cost(self, states: Sequence[int]) -> float:
        """Return the cost of an assignment."""
        own = sum(costs[s] for costs, s in zip(self._costs, states, strict=True))
        return own + sum(m[states[a]][states[b]] for (a, b), m in self._edges.items())

    def solve(self) -> Solution:
        """The best assignment that elimination finds, improved one variable at a time."""
        search = _Elimination(self._costs, self._edges)
        states = search.run()
        if not search.is_exact:
            self._improve(states)
        return Solution(tuple(states), self.cost(states), search.is_exact)

    def _improve(self, states: list[int]) -> None:
        """Change single variables for as long as that makes the whole cheaper."""
        around: list[list[tuple[int, Matrix]]] = [[] for _ in self._costs]
        for (a, b), costs in self._edges.items():
            around[a].append((b, costs))
            around[b].append((a, _transposed(costs)))
        waiting = set(range(len(states)))
        while waiting:
            v = min(waiting)
            waiting.discard(v)
            totals = list(self._costs[v])
            for other, costs in around[v]:
                column = states[other]
                totals = [t + row[column] for t, row in zip(totals, costs, strict=True)]
            best = _least(totals)
            if totals[best] < totals[states[v]]:
                states[v] = best
                waiting.update(other for other, _ in around[v])


def _add(edges: dict[tuple[int, int], Matrix], a: int, b: int, costs: Matrix) -> None:
    if a > b:
        a, b, costs = b, a, _transposed(costs)
    known = edges.get((a, b))
    if known is not None:
        pairs = zip(known, costs, strict=True)
        costs = [[x + y for x, y in zip(p, q, strict=True)] for p, q in pairs]
    edges[a, b] = costs


def _transposed(costs: Matrix) -> Matrix:
    return [list(column) for column in zip(*costs, strict=True)]


def _least(costs: Vector) -> int:
    """The first of the least costs."""
    return costs.index(min(costs))


class _Elimination:
    """Takes variables out until none is left, then decides them in the reverse order."""

    def __init__(self, costs: list[Vector], edges: dict[tuple[int, int], Matrix]) -> None:
        self.is_exact = True
        self._costs = [list(c) for c in costs]
        self._around: list[dict[int, Matrix]] = [{} for _ in costs]
        self._left = set(range(len(costs)))
        self._by_degree: list[set[int]] = [set(), set(), set()]
        # What each variable depends on that is decided before it: its neighbors when it left.
        self._gone: list[tuple[int, Vector, dict[int, Matrix]]] = []
        for (a, b), matrix in edges.items():
            self._join(a, b, matrix)
        for v in self._left:
            self._file(v)

    def run(self) -> list[int]:
        """A state for every variable."""
        while self._left:
            for degree, group in enumerate(self._by_degree):
                if group:
                    self._reduce(min(group), degree)
                    break
            else:
                self._decide(max(self._left, key=lambda v: (len(self._around[v]), -v)))
        states = [0] * len(self._costs)
        for v, costs, around in reversed(self._gone):
            totals = costs
            for other, matrix in around.items():
                column = states[other]
                totals = [t + row[column] for t, row in zip(totals, matrix, strict=True)]
            states[v] = _least(totals)
        return states

    # -- reductions ------------------------------------------------------------------------

    def _reduce(self, v: int, degree: int) -> None:
        """Remove a variable of up to two neighbors; they take over its cheapest answers."""
        costs, around = self._remove(v)
        self._gone.append((v, costs, around))
        if degree == 1:
            ((other, matrix),) = around.items()
            self._charge(other, _cheapest(costs, matrix))
        elif degree == 2:
            (a, to_a), (b, to_b) = around.items()
            rows = zip(*to_a, strict=True)
            joint = [_cheapest([c + x for c, x in zip(costs, r, strict=True)], to_b) for r in rows]
            self._join(a, b, joint)
        for other in around:
            self._file(other)

    def _decide(self, v: int) -> None:
        """Settle a variable of many neighbors by what seems best from where it stands."""
        self.is_exact = False
        costs, around = self._remove(v)
        totals = list(costs)
        for other, matrix in around.items():
            own = self._costs[other]
            for state, row in enumerate(matrix):
                totals[state] += min(x + c for x, c in zip(row, own, strict=True))
        state = _least(totals)
        self._gone.append((v, [0.0 if s == state else NEVER for s in range(len(costs))], {}))
        for other, matrix in around.items():
            self._charge(other, matrix[state])
            self._file(other)

    # -- bookkeeping -----------------------------------------------------------------------

    def _remove(self, v: int) -> tuple[Vector, dict[int, Matrix]]:
        self._left.discard(v)
        for group in self._by_degree:
            group.discard(v)
        for other in self._around[v]:
            del self._around[other][v]
        return self._costs[v], self._around[v]

    def _file(self, v: int) -> None:
        for group in self._by_degree:
            group.discard(v)
        degree = len(self._around[v])
        if degree < len(self._by_degree):
            self._by_degree[degree].add(v)

    def _charge(self, v: int, costs: Vector) -> None:
        self._costs[v] = [a + b for a, b in zip(self._costs[v], costs, strict=True)]

    def _join(self, a: int, b: int, matrix: Matrix) -> None:
        """Add an edge; one that only adds a cost to each end is none."""
        known = self._around[a].get(b)
        if known is not None:
            pairs = zip(known, matrix, strict=True)
            matrix = [[x + y for x, y in zip(p, q, strict=True)] for p, q in pairs]
        parts = _separated(matrix)
        if parts is None:
            self._around[a][b], self._around[b][a] = matrix, _transposed(matrix)
            return
        self._around[a].pop(b, None)
        self._around[b].pop(a, None)
        self._charge(a, parts[0])
        self._charge(b, parts[1])


def _cheapest(costs: Vector, matrix: Matrix) -> Vector:
    """Return for each state of a neighbor the cost of the best answer to it."""
    columns = zip(*matrix, strict=True)
    return [min(c + x for c, x in zip(costs, column, strict=True)) for column in columns]


def _separated(matrix: Matrix) -> tuple[Vector, Vector] | None:
    """A cost for each row and each column whose sums are the matrix, None where there are none."""
    first = matrix[0]
    if NEVER in first:
        return None
    rows = [row[0] - first[0] for row in matrix]
    for extra, row in zip(rows, matrix, strict=True):
        if any(x != f + extra for x, f in zip(row, first, strict=True)):
            return None
    return rows, list(first)
