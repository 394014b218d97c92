"""Domains of loops: the bodies that one loop nest can compute, and the axes that it runs over.

A nest runs over a domain: parallel axes and reduced axes. Every reduction of a body runs over the
same reduced axes; all other values are elements of the domain, or of its parallel axes, or are
broadcast into it. The fusion pass asks `analyze` what may be grouped; code generation works from
what it returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from treadle.base.shape import Shape, normalize_axes, product
from treadle.base.symbol import Dim, is_identical
from treadle.graph.builder import GraphBuilder
from treadle.graph.cells import (
    AppliedOp,
    Cell,
    CellBuilder,
    CellRefused,
    Guard,
    GuardedCell,
    Load,
    Total,
    extents,
    is_scalar_op,
    reduces,
)
from treadle.graph.cells import Sequence as Numbers
from treadle.graph.ir import Graph, Node, Value
from treadle.graph.positions import Position, Positions, Split, linear
from treadle.ops.composite import Composite, expand
from treadle.ops.constant import ArrayData
from treadle.ops.families import Reduce
from treadle.ops.fused import Fused

MOST_CELLS = 600
MOST_DEPTH = 100
MOST_SPLITS = 12


@dataclass(frozen=True, slots=True)
class NestRefusal:
    """Reason why a body is not a loop nest."""

    reason: str


@dataclass(frozen=True, slots=True)
class CounterAxis:
    """Neighboring counters that every position treats as one, outermost first.

    `number` is that of the last counter: in a position, its factor is the axis's stride.
    """

    extent: Dim = field(compare=False)
    number: int
    varies: int
    reduced: bool


@dataclass(frozen=True, slots=True)
class Output:
    """Output `number` of the body: `cell` is stored at element `place`."""

    number: int
    cell: Cell
    place: Position


@dataclass(frozen=True, slots=True)
class Collected:
    """A reduction of `cell` over all parallel axes, which has results along the reduced ones.

    It is complete when the nest is; `place` says which element of its dense result each point of
    the domain contributes to. Outputs that are computed from it are the nest's `after`. With
    `about`, it reduces squares of the differences from that mean, which is collected as well.
    """

    node: Node
    cell: Cell
    place: Position
    count: Dim
    about: Node | None = None


@dataclass(frozen=True, slots=True)
class LoopNest:
    """Loops that compute a body.

    Attributes:
        body: the body with its composites expanded; inputs and outputs are those asked about.
        axes: the domain, outermost first, without axes of extent 1.
        outputs: what the nest stores.
        totals: reductions over the reduced axes, in the order of their stages.
        collected: reductions over the parallel axes, that is of whole columns.
        after: numbers of the outputs that are computed from `collected`.
        tables: arrays that loads read besides the inputs.
        further: nests that compute the other outputs, which are independent of these.
    """

    body: Graph
    axes: tuple[CounterAxis, ...]
    outputs: tuple[Output, ...]
    totals: tuple[Total, ...] = ()
    collected: tuple[Collected, ...] = ()
    after: tuple[int, ...] = ()
    tables: tuple[ArrayData, ...] = ()
    further: tuple[LoopNest, ...] = ()

    @property
    def parallel(self) -> Dim:
        """Number of points along the parallel axes."""
        return product(a.extent for a in self.axes if not a.reduced)

    @property
    def row(self) -> Dim:
        """Number of points along the reduced axes."""
        return product(a.extent for a in self.axes if a.reduced)

    @property
    def stages(self) -> int:
        """Passes over the domain: one more than the longest chain of reductions."""
        return 1 + max((c.stage for c in self.roots()), default=0)

    def roots(self) -> list[Cell]:
        """The cells that are stored or collected."""
        return [*(o.cell for o in self.outputs), *(c.cell for c in self.collected)]

    def cells(self) -> list[Cell]:
        """Every cell, each after those it is computed from."""
        found: dict[Cell, None] = {}
        for root in self.roots():
            _visit(root, found)
        return list(found)


def analyze(body: Graph) -> LoopNest | NestRefusal:
    """The loop nest that computes a body, or why there is none.

    Types must be static; outputs without elements take part in no nest.
    """
    if not all(v.type.is_resolved for v in _values(body)):
        return NestRefusal("extents are symbolic")
    try:
        whole = inline(body)
        _check(whole)
        numbers = tuple(i for i, v in enumerate(whole.outputs) if product(extents(v)))
        return _nests(whole, numbers) if numbers else LoopNest(whole, (), ())
    except CellRefused as reason:
        return NestRefusal(str(reason))


def inline(body: Graph) -> Graph:
    """The body with composites that have no scalar code, and groups inside, expanded."""
    if not any(_expands(n) for n in body.nodes):
        return body
    builder = GraphBuilder(body.name, share=True)
    builder.adopt(body.inputs, as_inputs=True)
    known = {v: v for v in body.inputs}
    for node in body.nodes:
        inputs = tuple(known[v] for v in node.inputs)
        if isinstance(node.op, Fused) and isinstance(node.op.body, Graph):
            made = _inlined(builder, node.op.body, inputs)
        elif isinstance(node.op, Composite) and _expands(node):
            results = expand(node.op, tuple(builder.operand(v) for v in inputs))
            made = tuple(r.value for r in results)
        else:
            made = builder.copy(node, inputs).outputs
        known.update(zip(node.outputs, made, strict=True))
    builder.output(*(builder.operand(known[v]) for v in body.outputs))
    # What a composite expands to may hold composites.
    return inline(builder.build())


def _inlined(builder: GraphBuilder, body: Graph, inputs: Sequence[Value]) -> tuple[Value, ...]:
    known = dict(zip(body.inputs, inputs, strict=True))
    for node in body.nodes:
        made = builder.copy(node, tuple(known[v] for v in node.inputs))
        known.update(zip(node.outputs, made.outputs, strict=True))
    return tuple(known[v] for v in body.outputs)


def _expands(node: Node) -> bool:
    if isinstance(node.op, Fused):
        return node.op.kind == "loop" and isinstance(node.op.body, Graph)
    return isinstance(node.op, Composite) and not is_scalar_op(node.op)


def _values(body: Graph) -> Iterable[Value]:
    yield from body.inputs
    for node in body.nodes:
        yield from node.outputs


def _check(body: Graph) -> None:
    """Refuse what no nest computes, whatever its domain."""
    depth = dict.fromkeys(body.inputs, 0)
    for node in body.nodes:
        above = 1 + max((depth[v] for v in node.inputs), default=0)
        depth.update(dict.fromkeys(node.outputs, above))
        if above > MOST_DEPTH:
            raise CellRefused(f"a chain of more than {MOST_DEPTH} ops")
    for value in _values(body):
        if value.type.dtype.kind == "complex":
            raise CellRefused("complex numbers")


# -- the choice of a domain ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Domain:
    """Extents of a domain and which of its axes are reduced; `collected` reduce the others."""

    shape: Shape
    reduced: frozenset[int] = frozenset()
    own: frozenset[Node] = frozenset()
    collected: frozenset[Node] = frozenset()


def _nests(body: Graph, numbers: tuple[int, ...]) -> LoopNest:
    """The nest of some outputs; those it cannot compute go to further ones."""
    reduced = _reductions_above(body, [body.outputs[i] for i in numbers])
    with_reductions = tuple(i for i in numbers if reduced[body.outputs[i]])
    domains = _domains(body, numbers, reduced)
    reason: CellRefused | None = None
    for domain in domains:
        points = product(domain.shape)
        mine = tuple(
            i
            for i in numbers
            if i in with_reductions or product(extents(body.outputs[i])) == points
        )
        try:
            nest = _nest(body, domain, mine)
        except CellRefused as refused:
            reason = reason or refused
            continue
        rest = tuple(i for i in numbers if i not in mine)
        if not rest:
            return nest
        other = _nests(body, rest)
        return _with_further(nest, other)
    raise reason or CellRefused("there is nothing to compute")


def _with_further(nest: LoopNest, other: LoopNest) -> LoopNest:
    return LoopNest(
        nest.body,
        nest.axes,
        nest.outputs,
        nest.totals,
        nest.collected,
        nest.after,
        nest.tables,
        (*nest.further, other),
    )


def _reductions_above(body: Graph, outputs: Iterable[Value]) -> dict[Value, frozenset[Node]]:
    """The reductions that each of some values is computed from."""
    none: frozenset[Node] = frozenset()
    found: dict[Value, frozenset[Node]] = dict.fromkeys(body.inputs, none)
    for node in body.nodes:
        above = none.union(*(found[v] for v in node.inputs))
        if reduces(node):
            above |= {node}
        found.update(dict.fromkeys(node.outputs, above))
    return {v: found[v] for v in outputs}


def _domains(
    body: Graph, numbers: Sequence[int], reduced: dict[Value, frozenset[Node]]
) -> list[_Domain]:
    """Domains to try, the most promising first."""
    outputs = [body.outputs[i] for i in numbers]
    needed = frozenset[Node]().union(*(reduced[v] for v in outputs))
    if not needed:
        largest = max(outputs, key=lambda v: product(extents(v)))
        return [_Domain(extents(largest))]
    classes: dict[tuple[Shape, frozenset[int]], list[Node]] = {}
    for node in (n for n in body.nodes if n in needed):
        classes.setdefault(_class(node), []).append(node)
    if len(classes) > 2:
        raise CellRefused("reductions run over different axes")
    # Reductions of trailing axes keep a row together; those of columns can wait for the end.
    order = sorted(classes, key=lambda c: -max(c[1], default=-1))
    made = []
    for key in order:
        own = frozenset(classes[key])
        made.append(_Domain(key[0], key[1], own, needed - own))
    return made


def _class(node: Node) -> tuple[Shape, frozenset[int]]:
    """The shape a reduction runs over, without extents of 1, and the axes it reduces."""
    shape = extents(node.inputs[0])
    op = node.op
    if not isinstance(op, Reduce):
        raise CellRefused(f"{op.name} is not a reduction")
    axes = normalize_axes(op.axes, len(shape), op.name)
    long = [a for a, d in enumerate(shape) if not is_identical(d, 1)]
    return tuple(shape[a] for a in long), frozenset(i for i, a in enumerate(long) if a in axes)


# -- one nest ------------------------------------------------------------------------------------


def _nest(body: Graph, domain: _Domain, numbers: Sequence[int]) -> LoopNest:
    """The nest over one domain, whose axes are split until reshapes resolve."""
    factors = [[d] for d in domain.shape]
    for _ in range(MOST_SPLITS):
        flat = [(d, a in domain.reduced) for a, row in enumerate(factors) for d in row]
        positions = Positions(d for d, _ in flat)
        reduced = sum(1 << i for i, (_, r) in enumerate(flat) if r)
        try:
            return _Nest(body, positions, reduced, domain).build(numbers)
        except Split as split:
            _divide(factors, split.counter.number, split.inner)
    raise CellRefused("its reshapes split the axes too often")


def _divide(factors: list[list[Dim]], number: int, inner: Dim) -> None:
    """Replace extent `number`, counted over all axes, by two."""
    for row in factors:
        if number < len(row):
            row[number : number + 1] = [row[number] // inner, inner]
            return
        number -= len(row)


@dataclass
class _Nest:
    """The construction of a nest over given counters."""

    body: Graph
    positions: Positions
    reduced: int
    domain: _Domain
    cells: CellBuilder = field(init=False)

    def __post_init__(self) -> None:
        self.cells = CellBuilder(self.body, self.positions, self.reduced, self.domain.collected)

    def build(self, numbers: Sequence[int]) -> LoopNest:
        after = self._after(numbers)
        outputs = tuple(self._output(i) for i in numbers if i not in after)
        collected = tuple(self._collect(n) for n in self.body.nodes if n in self.domain.collected)
        if self.cells.cells > MOST_CELLS:
            raise CellRefused(f"more than {MOST_CELLS} different elements")
        totals = [t for _, t in self.cells.totals.values()]
        roots = [x.place for part in (outputs, collected, totals) for x in part]
        nest = LoopNest(
            self.body,
            (),
            outputs,
            tuple(sorted(totals, key=lambda t: t.stage)),
            collected,
            after,
            tuple(self.cells.tables),
        )
        return LoopNest(
            self.body,
            self._axes(nest.cells(), roots),
            outputs,
            nest.totals,
            collected,
            after,
            nest.tables,
        )

    def _point(self, inside: int) -> Position:
        """The row-major place of a point among the counters of a bitset."""
        counters = [c for c in self.positions.counters if c.varies & inside]
        return linear(
            [self.positions.counter(c.number) for c in counters], [c.extent for c in counters]
        )

    def _output(self, number: int) -> Output:
        value = self.body.outputs[number]
        shape = extents(value)
        every = (1 << len(self.positions.counters)) - 1
        for inside in (every, every & ~self.reduced):
            if is_identical(self._size(inside), product(shape)):
                index = self.positions.unravel(self._point(inside), shape)
                return Output(number, self.cells.cell(value, index), linear(index, shape))
        raise CellRefused(f"output {number} has neither the shape of the domain nor of its rows")

    def _size(self, inside: int) -> Dim:
        return product(c.extent for c in self.positions.counters if c.varies & inside)

    def _after(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """The outputs computed from collected reductions, and from nothing else of the nest."""
        if not self.domain.collected:
            return ()
        above = _reductions_above(self.body, [self.body.outputs[i] for i in numbers])
        found = []
        for i in numbers:
            needs = above[self.body.outputs[i]]
            if needs & self.domain.collected:
                if needs & self.domain.own and not self._cut(i):
                    raise CellRefused("reductions over rows and over columns meet in a result")
                found.append(i)
        return tuple(found)

    def _cut(self, number: int) -> bool:
        """Return whether an output reaches row reductions only through collected ones."""
        waiting = [self.body.outputs[number]]
        while waiting:
            node = waiting.pop().producer
            if node is None or node in self.domain.collected:
                continue
            if node in self.domain.own:
                return False
            waiting += node.inputs
        return True

    def _collect(self, node: Node) -> Collected:
        """A reduction over exactly the parallel counters, as a sum over the nest's points."""
        (x,), op = node.inputs, node.op
        every = (1 << len(self.positions.counters)) - 1
        shape = extents(x)
        if not isinstance(op, Reduce) or product(shape) != self._size(every):
            raise CellRefused("a reduction of columns has another shape than the nest")
        index = self.positions.unravel(self._point(every), shape)
        gone = kept = 0
        for axis, position in enumerate(index):
            if axis in op.axes:
                gone |= position.varies
            else:
                kept |= position.varies
        if gone & kept or gone & self.reduced or kept & ~self.reduced:
            raise CellRefused("reductions run over axes that are neither the rows nor the columns")
        left = [a for a in range(len(shape)) if a not in op.axes]
        place = linear([index[a] for a in left], [shape[a] for a in left])
        count = product(shape[a] for a in op.axes)
        return Collected(node, self.cells.cell(x, index), place, count)

    # -- merging counters ------------------------------------------------------------------

    def _axes(self, cells: Iterable[Cell], places: list[Position]) -> tuple[CounterAxis, ...]:
        """Neighboring counters joined wherever every position walks through them as one."""
        seen = list(_positions_in(cells, places))
        axes: list[CounterAxis] = []
        for counter in self.positions.counters:
            if is_identical(counter.extent, 1):
                continue
            axis = CounterAxis(
                counter.extent,
                counter.number,
                counter.varies,
                bool(counter.varies & self.reduced),
            )
            if axes and axes[-1].reduced == axis.reduced and self._join(axes[-1], axis, seen):
                last = axes.pop()
                axis = CounterAxis(
                    last.extent * axis.extent,
                    axis.number,
                    last.varies | axis.varies,
                    axis.reduced,
                )
            axes.append(axis)
        return tuple(axes)

    def _join(self, outer: CounterAxis, inner: CounterAxis, seen: list[Position]) -> bool:
        first = self.positions.counters[outer.number]
        second = self.positions.counters[inner.number]
        return all(is_identical(p.factor(first), p.factor(second) * second.extent) for p in seen)


def _positions_in(cells: Iterable[Cell], places: Iterable[Position]) -> Iterable[Position]:
    """Every position that a nest evaluates, those inside atoms included."""
    waiting: list[Position] = list(places)
    for cell in cells:
        if isinstance(cell, Load | Numbers):
            waiting.append(cell.place)
        if isinstance(cell, Load | GuardedCell):
            waiting += [g.position for g in cell.guards]
    done: set[Position] = set()
    while waiting:
        position = waiting.pop()
        if position in done:
            continue
        done.add(position)
        yield position
        waiting += [a.of for a, _ in position.terms if a.of is not None]


def arguments(cell: Cell) -> tuple[Cell, ...]:
    """The cells that a cell is computed from directly, indices included."""
    if isinstance(cell, AppliedOp):
        return cell.args
    if isinstance(cell, Total):
        return (cell.arg,)
    if isinstance(cell, GuardedCell):
        return (cell.inside, cell.outside, *_fetched(_guarded(cell.guards)))
    if isinstance(cell, Load):
        return _fetched([cell.place, *_guarded(cell.guards)])
    return _fetched([cell.place]) if isinstance(cell, Numbers) else ()


def _guarded(guards: Iterable[Guard]) -> list[Position]:
    return [g.position for g in guards]


def _fetched(positions: Iterable[Position]) -> tuple[Cell, ...]:
    found: list[Cell] = []
    for position in positions:
        for atom, _ in position.terms:
            if atom.cell is not None:
                found.append(atom.cell)
            elif atom.of is not None:
                found += _fetched([atom.of])
    return tuple(found)


def _visit(cell: Cell, found: dict[Cell, None]) -> None:
    if cell in found:
        return
    for a in arguments(cell):
        _visit(a, found)
    found[cell] = None
