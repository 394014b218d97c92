"""A budget of memory: values of the forward pass are dropped, and made again for the backward pass.

It stands between optimize and compile: what compile plans for one choice decides about the next.

At the place where most is alive, a value that is read later is chosen, which frees most bytes for
the time that it takes to make it again; what makes it is repeated right before that reader. That
goes on until the peak is within the budget, or falls no more: each choice also keeps operands alive
longer, and where every step reads the same weight, another place becomes as high. Groups are
repeated whole, so kernels stay what they are. Sources: Chen et al. 2016
(arXiv:1604.06174); Kumar et al., Efficient Rematerialization for Deep Networks, NeurIPS 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from treadle.base.errors import CompileError
from treadle.engine.cost import RATES
from treadle.engine.options import Options
from treadle.engine.plan import Plan
from treadle.engine.report import CompileReport
from treadle.graph.analysis import is_opaque, live_nodes
from treadle.graph.flop_count import flops, nbytes
from treadle.graph.ir import Graph, Node, Value, remake
from treadle.ops.constant import Constant
from treadle.ops.control import ControlFlow
from treadle.ops.transfer import After

MOST_NODES = 12
"""Nodes that are repeated to have one value again."""
MOST_GROWTH = 4
"""Nodes of the result for each node of the graph, at most."""
PATIENCE = 32
"""Choices in a row that may leave the peak as high, at as many places, as it was before."""
MOST_PLANS = 6
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class BudgetOutcome:
    """Outcome of a budget, in bytes of values alive at once and modelled seconds.

    Attributes:
        before, after: the peak.
        seconds: spent on making values again, per run.
        repeated: nodes that run twice.
    """

    before: int
    after: int
    seconds: float
    repeated: int


def keep_to_budget(graph: Graph, budget: int) -> tuple[Graph, BudgetOutcome]:
    """A graph that keeps to a budget of bytes, or as near to it as can be.

    Args:
        graph: optimized, in an order in which it can run.
        budget: for values that are neither inputs nor outputs.
    """
    life = _Life(graph)
    before, made, seconds, repeated = life.peak, graph, 0.0, 0
    best, kept = (life.peak, life.places), (graph, BudgetOutcome(before, before, 0.0, 0))
    left = PATIENCE
    while life.peak > budget and left and len(made.nodes) <= MOST_GROWTH * len(graph.nodes):
        choice = _best(life)
        if choice is None:
            break
        seconds += choice.seconds
        repeated += len(choice.cone)
        made = _repeated(life, choice)
        life = _Life(made)
        left -= 1
        if (life.peak, life.places) < best:
            best, left = (life.peak, life.places), PATIENCE
            kept = made, BudgetOutcome(before, life.peak, seconds, repeated)
    return kept if kept[1].after < before else (graph, BudgetOutcome(before, before, 0.0, 0))


def plan_within(
    graph: Graph, options: Options, report: CompileReport, plan_of: Callable[[Graph], Plan]
) -> tuple[Graph, Plan]:
    """A program that keeps to the budget of the options, and its plan.

    The plan knows of scratch memory and of what lies beside what, which the choice of values does
    not; where it exceeds the budget, more is made again.

    Raises:
        CompileError: the budget cannot be kept, and is a strict one.
    """
    budget = options.memory_budget
    target, kept = budget, BudgetOutcome(0, 0, 0.0, 0)
    best: tuple[Graph, Plan] | None = None
    for _ in range(MOST_PLANS):
        made, now = keep_to_budget(graph, target)
        if best is not None and now.after >= kept.after:
            break
        kept = now
        plan = plan_of(made)
        peak = plan.memory.peak
        if best is None or peak < best[1].memory.peak:
            best = made, plan
        if peak <= budget:
            break
        target = min(target, now.after) - (peak - budget)
        if target <= 0:
            target = 1
    if best is None:
        best = graph, plan_of(graph)
    peak = best[1].memory.peak
    if peak > budget and options.strict_budget:
        raise CompileError(
            "memory",
            "the program does not fit the memory budget, whatever is made again",
            saw=f"{peak} bytes of values at once, a budget of {budget}",
            hint="raise memory_budget, use smaller batches, or set strict_budget=False",
        )
    above = f"above the budget of {budget}: " if peak > budget else ""
    report.decide(
        "optimize",
        "memory budget",
        f"{kept.repeated} nodes run twice",
        f"{above}{kept.before} to {peak} bytes, {kept.seconds * 1e6:.0f} us",
    )
    return best


class _Life:
    """Lives of values: memory by root, from its producer to its last reader.

    Views do not read: who reads them does.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.root: dict[Value, Value] = {}
        self.uses: dict[Value, list[int]] = {}
        self.makers: dict[Value, int] = {}
        for i, node in enumerate(graph.nodes):
            self.makers.update(dict.fromkeys(node.outputs, i))
            if node.op.is_view:
                self.root[node.outputs[0]] = self.root_of(node.inputs[0])
                continue
            for root in dict.fromkeys(map(self.root_of, node.inputs)):
                self.uses.setdefault(root, []).append(i)
        constants = [v for n in graph.nodes if isinstance(n.op, Constant) for v in n.outputs]
        self.outside = {self.root_of(v) for v in (*graph.inputs, *graph.outputs, *constants)}
        self.inner = [
            v for n in graph.nodes if not n.op.is_view for v in n.outputs if v not in self.outside
        ]
        self.peak, self.at, self.places = self._highest()

    def _highest(self) -> tuple[int, int, int]:
        """The most bytes alive at once, at which node first, and at how many."""
        change = [0] * (len(self.graph.nodes) + 1)
        for value in self.inner:
            size = -(-nbytes(value) // ALIGNMENT) * ALIGNMENT
            change[self.makers[value]] += size
            change[self.last(value) + 1] -= size
        alive = peak = at = places = 0
        for i, grown in enumerate(change[:-1]):
            alive += grown
            if alive > peak:
                peak, at, places = alive, i, 0
            places += alive == peak
        return peak, at, places

    def root_of(self, value: Value) -> Value:
        """The value whose memory a value lies in."""
        return self.root.get(value, value)

    def last(self, value: Value) -> int:
        """Return where a value is read last; where it is made, if nobody reads it."""
        root = self.root_of(value)
        return self.uses[root][-1] if root in self.uses else self.makers[root]

    def lives_at(self, value: Value, place: int) -> bool:
        """Return whether a value is there at a place in any case."""
        root = self.root_of(value)
        if root in self.outside or root not in self.makers:
            return True
        return self.makers[root] <= place <= self.last(root)


@dataclass(frozen=True, slots=True)
class _Choice:
    """A value to make again before node `reader`, the nodes that make it, and what that costs."""

    value: Value
    reader: int
    cone: tuple[int, ...]
    token: Value
    seconds: float


def _best(life: _Life) -> _Choice | None:
    """The value across the peak that frees most bytes for the time that it costs."""
    found, best = None, 0.0
    for value in life.inner:
        uses = life.uses.get(value, [])
        if life.makers[value] < life.at < life.last(value) and life.at not in uses:
            choice = _considered(life, value)
            if choice is not None and nbytes(value) / choice.seconds > best:
                found, best = choice, nbytes(value) / choice.seconds
    return found


def _considered(life: _Life, value: Value) -> _Choice | None:
    nodes = life.graph.nodes
    reader = next(i for i in life.uses[value] if i > life.at)
    cone = _cone(life, value, reader)
    # What the reader reads besides, and is made last: before that, nobody needs the value.
    others = [
        v
        for v in nodes[reader].inputs
        if life.root_of(v) is not value and life.makers.get(life.root_of(v), -1) > life.at
    ]
    if cone is None or not others:
        return None
    token = max(others, key=lambda v: life.makers[v])
    return _Choice(value, reader, cone, token, sum(_seconds(nodes[i]) for i in cone))


def _cone(life: _Life, value: Value, reader: int) -> tuple[int, ...] | None:
    """Nodes that make a value of what is alive at the peak or at the reader."""
    cone: set[int] = set()
    waiting = [value]
    while waiting:
        i = life.makers[waiting.pop()]
        if i in cone:
            continue
        node = life.graph.nodes[i]
        if len(cone) == MOST_NODES or isinstance(node.op, ControlFlow) or is_opaque(node.op):
            return None
        cone.add(i)
        # What is alive at the peak costs nothing there if it is kept until the reader.
        waiting += [
            u
            for u in node.inputs
            if u in life.makers and not (life.lives_at(u, life.at) or life.lives_at(u, reader))
        ]
    return tuple(sorted(cone))


def _seconds(node: Node) -> float:
    if node.op.is_view or isinstance(node.op, Constant):
        return 0.0
    moved = sum(map(nbytes, (*node.inputs, *node.outputs)))
    return RATES["cpu"].seconds(flops(node), moved)


def _repeated(life: _Life, choice: _Choice) -> Graph:
    """The graph with the cone once more, right before the reader."""
    graph = life.graph
    made: list[Node] = list(graph.nodes[: choice.reader])
    copies: dict[Value, Value] = {}
    for i in choice.cone:
        node = graph.nodes[i]
        late = _late(node, copies, choice.token, made)
        again = remake(node, node.op, late)
        made.append(again)
        copies.update(zip(node.outputs, again.outputs, strict=True))
    swap = {choice.value: copies[choice.value]}

    def moved(value: Value) -> Value:
        """Return the value that later nodes read in place of a value: the copy, or a view of it."""
        if value in swap or life.root_of(value) is not choice.value:
            return swap.get(value, value)
        view = graph.nodes[life.makers[value]]
        first = moved(view.inputs[0])
        made.append(remake(view, view.op, (first, *view.inputs[1:])))
        swap[value] = made[-1].outputs[0]
        return swap[value]

    for node in graph.nodes[choice.reader :]:
        inputs = tuple([moved(v) for v in node.inputs])
        if all(a is b for a, b in zip(inputs, node.inputs, strict=True)):
            made.append(node)
            continue
        again = remake(node, node.op, inputs)
        made.append(again)
        swap.update(zip(node.outputs, again.outputs, strict=True))
    outputs = [swap.get(v, v) for v in graph.outputs]
    whole = graph.with_nodes(made, outputs)
    live = live_nodes(whole)  # Views of the dropped value that nobody reads any more.
    return whole.with_nodes([n for n in made if n in live], outputs)


def _late(
    node: Node, copies: dict[Value, Value], token: Value, made: list[Node]
) -> tuple[Value, ...]:
    """Operands of a repeated node: copies, and at least one that comes after the token."""
    inputs = [copies.get(v, v) for v in node.inputs]
    if inputs and not any(v in copies for v in node.inputs):
        places = range(len(inputs))
        chosen = next((i for i in places if inputs[i].producer is not None), 0)
        made.append(Node(After(), (inputs[chosen], token), node.loc))
        inputs[chosen] = made[-1].outputs[0]
    return tuple(inputs)


__all__ = ["BudgetOutcome", "keep_to_budget", "plan_within"]
