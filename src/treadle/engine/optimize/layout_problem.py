"""The choice of layouts as a partitioned boolean quadratic problem.

Ops that care about layouts are variables whose states are what the compiler takes. Chains of ops
that do not care are one variable each. A value costs a copy for each layout that it is read in and
not made in, once for all who read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations

from treadle.engine.optimize.bodies import Trial
from treadle.engine.optimize.kinds import is_static
from treadle.engine.optimize.layout import (
    LAYOUTS,
    ROW_MAJOR,
    Layout,
    Sides,
    has_layouts,
)
from treadle.engine.optimize.layout_axes import remapped
from treadle.engine.optimize.layout_costs import conversion
from treadle.engine.optimize.layout_forms import Remapped
from treadle.engine.optimize.layout_offers import Offer, cares, offers
from treadle.graph.ir import Graph, Node, Value
from treadle.graph.pbqp import NEVER, AssignmentProblem
from treadle.ops.movement import Transpose


@dataclass(frozen=True, slots=True)
class Slot:
    """Decision on the layout of a value: a variable, and the layout by its state."""

    variable: int
    layouts: tuple[Layout, ...]


FIXED = Slot(-1, (ROW_MAJOR,))
"""The slot of what is row-major in any case."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Layouts of a program's ops.

    Attributes:
        caring: of the ops that care, where any of their values is not row-major.
        others: forms of ops that do not care, where they work on another layout.
        considered: all ops that care.
        seconds: modelled time of ops that care and of copies.
        row_major: the same with everything row-major.
        is_proven: whether no assignment is cheaper.
    """

    caring: Mapping[Node, Sides]
    others: Mapping[Node, tuple[Layout, Remapped]]
    considered: Sequence[Node] = ()
    seconds: float = 0.0
    row_major: float = 0.0
    is_proven: bool = True


def assign(graph: Graph, trial: Trial, domain: Sequence[Layout] = LAYOUTS) -> Assignment:
    """Choose layouts at the least modelled time; inputs and results of the program stay row-major.

    Args:
        graph: a program without groups; regions inside it are not looked at.
        trial: asks the compiler for the layouts that it takes.
        domain: the layouts to choose from, row-major first.
    """
    model = LayoutModel(graph, trial, domain)
    considered = tuple(model.caring)
    if not model.has_choice:
        return Assignment({}, {}, considered)
    model.build()
    found = model.problem.solve()
    before = model.problem.cost([0] * model.count)
    if not found.cost < before:
        return Assignment({}, {}, considered, before, before, found.proven)
    caring = {n: o[found.states[model.number[n]]][0] for n, o in model.caring.items()}
    others = {}
    for node, number in model.clusters.items():
        layout = model.forms_of(node)[found.states[number]]
        form = remapped(node, layout) if layout is not ROW_MAJOR else None
        if form is not None:
            others[node] = layout, form
    used = {n: s for n, s in caring.items() if s.main is not ROW_MAJOR}
    return Assignment(used, others, considered, found.cost, before, found.proven)


@dataclass(slots=True)
class LayoutModel:
    """Variables and costs of one program.

    Attributes:
        graph: the program.
        trial: asks the compiler.
        domain: the layouts to choose from.
        caring: ops that care, with what there is for them, row-major first.
        number: their variables, whose states are these offers.
        clusters: variables of ops that do not care, whose states are `forms_of` one of them.
        problem: the costs; `build` states it.
        count: variables of the problem, those of shared values included.
    """

    graph: Graph
    trial: Trial
    domain: Sequence[Layout] = LAYOUTS
    caring: dict[Node, list[Offer]] = field(default_factory=dict)
    number: dict[Node, int] = field(default_factory=dict)
    clusters: dict[Node, int] = field(default_factory=dict)
    problem: AssignmentProblem = field(default_factory=AssignmentProblem)
    count: int = 0
    _forms: dict[Node, Remapped] = field(default_factory=dict)
    _layouts: dict[Node, tuple[Layout, ...]] = field(default_factory=dict)
    _users: dict[Value, list[tuple[Node, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.graph.nodes:
            for i, value in enumerate(node.inputs):
                self._users.setdefault(value, []).append((node, i))
            if not node.group and not cares(node.op) and is_static(node):
                self._find_forms(node)
        known: dict[tuple[object, ...], list[Offer]] = {}
        for node in self.graph.nodes:
            if _cares(node):
                values = (*node.inputs, *node.outputs)
                borders = [self._is_border(v) for v in values]
                key = (node.op, *(v.type for v in values), *borders)
                if key not in known:
                    known[key] = offers(node, self.trial, borders, self.domain)
                if known[key]:
                    self.caring[node] = known[key]

    def _find_forms(self, node: Node) -> None:
        """The layouts of an op that does not care, all of which have the same operands in them."""
        known = [ROW_MAJOR]
        for layout in self.domain[1:]:
            form = remapped(node, layout)
            if form is not None and _varies(node, form):
                self._forms.setdefault(node, form)
                known.append(layout)
        self._layouts[node] = tuple(known)

    def forms_of(self, node: Node) -> tuple[Layout, ...]:
        """The layouts that an op which does not care has a form on."""
        return self._layouts[node]

    @property
    def has_choice(self) -> bool:
        """True if any op that cares can do with another layout, transposes aside."""
        return any(
            len(found) > 1 and not isinstance(n.op, Transpose) for n, found in self.caring.items()
        )

    def build(self) -> None:
        """State the problem."""
        for node, found in self.caring.items():
            self.number[node] = self._variable([cost for _, cost in found])
        self._contract()
        outputs = set(self.graph.outputs)
        for value in chain(self.graph.inputs, *(n.outputs for n in self.graph.nodes)):
            if not has_layouts(value.type.shape):
                continue
            home = self._home(value)
            uses = {self._use(n, i): None for n, i in self._users.get(value, ())}
            if value in outputs:
                uses[FIXED] = None
            uses.pop(home, None)
            price = conversion(value) if uses else 0.0
            if price:
                self._price(price, home, list(uses))

    def _variable(self, costs: Iterable[float]) -> int:
        self.count += 1
        return self.problem.variable(list(costs))

    # -- what belongs together -------------------------------------------------------------

    def _contract(self) -> None:
        """One variable for ops that do not care and hand values to one another."""
        parent: dict[Node, Node] = {n: n for n in self._forms}

        def root(node: Node) -> Node:
            while parent[node] is not node:
                parent[node] = node = parent[parent[node]]
            return node

        for value in chain.from_iterable(n.outputs for n in self.graph.nodes):
            first: dict[tuple[Layout, ...], Node] = {}
            for node in self._sharing(value):
                one = first.setdefault(self._layouts[node], node)
                if one is not node:
                    parent[root(node)] = root(one)
        numbers: dict[Node, int] = {}
        for node in self._forms:
            top = root(node)
            if top not in numbers:
                numbers[top] = self._variable([0.0] * len(self._layouts[node]))
            self.clusters[node] = numbers[top]

    def _sharing(self, value: Value) -> list[Node]:
        """The ops that do not care and have a value in the layout that they work on."""
        maker = value.producer
        if not has_layouts(value.type.shape) or maker is None:
            return []
        together = [n for n, i in self._users.get(value, ()) if self._reads(n, i, value)]
        if maker in self._forms and self._forms[maker].held:
            return [*together, maker]
        return together if maker in self.caring else []

    def _reads(self, node: Node, operand: int, value: Value) -> bool:
        """Return whether an op that does not care reads the value in its own layout."""
        form = self._forms.get(node)
        return form is not None and form.operands[operand] == value.type.ndim

    def _is_border(self, value: Value) -> bool:
        """Return whether the value is made or read where everything is row-major."""
        maker = value.producer
        if maker is None or value in self.graph.outputs:
            return True
        held = maker in self._forms and self._forms[maker].held
        if not held and not _cares(maker):
            return True
        users = self._users.get(value, ())
        return any(not self._reads(n, i, value) and not _cares(n) for n, i in users)

    # -- where layouts are decided ---------------------------------------------------------

    def _home(self, value: Value) -> Slot:
        node = value.producer
        if node is None:
            return FIXED
        if node in self.caring:
            return self._slot(node, [s.results[value.index] for s, _ in self.caring[node]])
        if node in self.clusters and self._forms[node].held:
            return Slot(self.clusters[node], self._layouts[node])
        return FIXED

    def _use(self, node: Node, operand: int) -> Slot:
        if node in self.caring:
            return self._slot(node, [s.operands[operand] for s, _ in self.caring[node]])
        if node in self.clusters and self._reads(node, operand, node.inputs[operand]):
            return Slot(self.clusters[node], self._layouts[node])
        return FIXED

    def _slot(self, node: Node, layouts: Iterable[Layout | None]) -> Slot:
        states = tuple(layout or ROW_MAJOR for layout in layouts)
        return FIXED if set(states) == {ROW_MAJOR} else Slot(self.number[node], states)

    # -- what copies cost ------------------------------------------------------------------

    def _price(self, price: float, home: Slot, uses: list[Slot]) -> None:
        """Add the copies of one value, each of `price`."""
        if len(uses) == 1 and FIXED in (home, uses[0]):
            free = home if uses[0] is FIXED else uses[0]
            self.problem.charge(
                free.variable, [0.0 if x is ROW_MAJOR else price for x in free.layouts]
            )
        elif len(uses) == 1:
            costs = [[0.0 if a is b else price for b in uses[0].layouts] for a in home.layouts]
            self.problem.edge(home.variable, uses[0].variable, costs)
        else:
            self._price_shared(price, home, uses)

    def _price_shared(self, price: float, home: Slot, uses: list[Slot]) -> None:
        """Add a variable: the layout in which a value is made, and those of its copies."""
        states = [
            (made, frozenset((made, *copies)))
            for made in dict.fromkeys(home.layouts)
            for copies in _subsets(
                [x for x in self.domain if x is not made and any(x in u.layouts for u in uses)]
            )
        ]
        if FIXED in uses:
            states = [s for s in states if ROW_MAJOR in s[1]]
        kept = self._variable([price * (len(there) - 1) for _, there in states])
        if home is not FIXED:
            costs = [[0.0 if x is made else NEVER for x in home.layouts] for made, _ in states]
            self.problem.edge(kept, home.variable, costs)
        for use in uses:
            if use is not FIXED:
                costs = [[0.0 if x in there else NEVER for x in use.layouts] for _, there in states]
                self.problem.edge(kept, use.variable, costs)


def _cares(node: Node) -> bool:
    """Return whether a node has a choice of layouts: groups that the user names are left as they
    are.
    """
    return cares(node.op) and not node.group


def _varies(node: Node, form: Remapped) -> bool:
    """Return whether the layout of an operand or of the result makes a difference."""
    read = zip(node.inputs, form.operands, strict=True)
    return any(rank and has_layouts(v.type.shape) for v, rank in read) or has_layouts(
        node.output.type.shape
    )


def _subsets(layouts: list[Layout]) -> Iterable[tuple[Layout, ...]]:
    return chain.from_iterable(combinations(layouts, n) for n in range(len(layouts) + 1))
