"""Programs for all extents of some ranges, made ahead of any call.

A compiled function meets extents one by one, and makes a program where none of those it has serves
them (`engine.extents`). What leaves the process has to have them all. So all extents of the ranges
are listed, and each program says which of them it serves, which code tells of millions at once; it
ends when none is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from treadle.backends.program import Program, ShippingCompiler
from treadle.base.arithmetic import ExpressionWriter, evaluate_all
from treadle.base.errors import CompileError, IndexRangeError, ShapeError, TreadleError
from treadle.base.extent import Symbol
from treadle.base.guards import deciding
from treadle.base.symbol import Dim, Relation, evaluate, extent_of, symbol, symbols_of
from treadle.deploy.prepared import PreparedWeights, moved, packed, refuse, stops_of
from treadle.engine.execute.arenas import Arenas
from treadle.engine.extents import refusal
from treadle.engine.extents.cells import Cell, among, cell_of
from treadle.engine.extents.numbering import first_placements, numbered
from treadle.engine.extents.regime import SharedGraph
from treadle.engine.options import Options
from treadle.engine.package.extents import Pattern, Range, Ranges, bound, many_of
from treadle.engine.package.models import Model
from treadle.engine.package.native_part import MOST_GEARS, Gear
from treadle.engine.package.native_run import extents
from treadle.engine.package.open_graph import fault_of_ones
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface
from treadle.engine.scheme import Open
from treadle.engine.targets.compiled import results_of
from treadle.graph.evaluate import bound_extents, broken_guard, specialize
from treadle.graph.ir import Graph, lone_symbol, symbols_in
from treadle.ops.check import CheckIndices

Points = npt.NDArray[np.int64]
"""Extents: a row per symbol, a column each."""
Wanted = Sequence[int | Sequence[int]]
"""Of each axis its extent, or the least and the largest one, and edges of ranges between them."""
_MOST_LISTED, _LISTED_COARSE, _CHUNK, _MOST_PLACED = 1 << 22, 1 << 16, 1 << 14, 1 << 12
_LARGE = 2**63 - 1
_SMALL = 128
"""An edge of cells (`engine.extents.cells`): extents below are one cell where there are many."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A graph, and the ranges of its symbols.

    Attributes:
        graph, ranges: the same.
        coarse: symbols that have two cells, 0 and more. Data have decided them, so that what has
            one row is no other case (`symbol.is_equal`).
    """

    graph: Graph
    ranges: Mapping[str, Range]
    coarse: frozenset[str] = frozenset()

    @property
    def count(self) -> int:
        """Number of combinations of extents."""
        return prod(high - low + 1 for low, high in self.ranges.values())

    @property
    def listed(self) -> int:
        """Number of combinations that are listed; some of each cell where there are more."""
        return _LISTED_COARSE if self.coarse else _MOST_LISTED

    def declared(self, own: Graph, gears: Sequence[Gear]) -> Ranges:
        """The ranges as a file has them.

        Args:
            own: the graph at the model's own shapes.
            gears: its programs.
        """
        inputs, outputs = (
            tuple(pattern_of(v.type.shape) for v in ends)
            for ends in (self.graph.inputs, self.graph.outputs)
        )
        needs = tuple(map(str, self.graph.guards))
        types = [v.type for v in own.inputs], [v.type for v in own.outputs]
        found = bound(inputs, [extents(t) for t in types[0]])
        if found is None or not all(a <= found[n] <= b for n, (a, b) in self.ranges.items()):
            types = list(gears[0].inputs), list(gears[0].outputs)
        at = tuple(map(extents, types[0])), tuple(map(extents, types[1]))
        return Ranges(dict(self.ranges), inputs, outputs, at, needs)


def opened(model: Model, ranges: Mapping[str, Wanted]) -> Opened:
    """A model's graph with symbols for the extents that ranges leave open.

    Args:
        model: has a graph for other sizes (see `Model.opened`).
        ranges: by input, of each axis its extent, or the least and the largest one: (1, 64), or
            (1, 8, 64) for programs that begin at 1 and at 8; inputs that are left out have the
            model's shape.

    Raises:
        ShapeError: the model has no such input or axis, or does not take other extents there.
    """
    unknown = [name for name in ranges if name not in model.inputs]
    if unknown:
        listed = ", ".join(model.inputs)
        raise ShapeError("ranges", f"the model has no input {unknown[0]!r}", saw=f"inputs {listed}")
    graph = open_form(model)
    found: dict[str, Range] = {}
    symbols: dict[str, Dim] = {}
    cut: dict[str, list[int]] = {}
    pairs = zip(model.inputs, graph.inputs, model.graph.inputs, strict=True)
    for name, value, own in pairs:
        wanted = ranges.get(name, extents(own.type))
        if len(wanted) != len(value.type.shape):
            raise ShapeError(
                "ranges", f"input {name} has {len(value.type.shape)} axes, not {len(wanted)}"
            )
        for axis, (extent, asked) in enumerate(zip(value.type.shape, wanted, strict=True)):
            low, high, *edges = _ends(name, asked)
            of = lone_symbol(extent)
            if of is None and (low, high) != (extent, extent):
                raise ShapeError(
                    "ranges",
                    f"axis {axis} of input {name} is {extent} in the model, and no other extent",
                    saw=f"{low} to {high}",
                )
            if of is not None and found.setdefault(of.name, (low, high)) != (low, high):
                raise ShapeError(
                    "ranges",
                    f"axis {axis} of input {name} is equal to another one in the model",
                    saw=f"{low} to {high}, and {found[of.name][0]} to {found[of.name][1]}",
                )
            if of is not None and edges:
                within = tuple(e for e in edges if e > of.low)  # 0 and 1 have programs anyway.
                symbols[of.name] = extent_of(replace(of, edges=within, high=high))
                if cut.setdefault(of.name, edges) != edges:
                    raise ShapeError(
                        "ranges",
                        f"axis {axis} of input {name} is equal to one with other edges",
                        saw=f"{edges} and {cut[of.name]}",
                    )
    ends = zip(graph.inputs, model.graph.inputs, strict=True)
    point = bound_extents((value.type.shape, at.type.shape) for value, at in ends) or {}
    graph = _substituted(graph, symbols, point) if symbols else graph
    return _settled(_join(Opened(graph, found), point))


def open_form(model: Model) -> Graph:
    """A model's graph with symbols for extents that may change.

    Raises:
        ShapeError: it has none.
    """
    known = model.opened
    if known is None or known.closed is not model.graph or known.is_fixed:
        raise ShapeError(
            "ranges",
            "the model has no form for other extents",
            hint="dump it from a function whose course does not depend on sizes, or give gears",
        )
    return known.graph


def _ends(name: str, asked: int | Sequence[int]) -> tuple[int, ...]:
    """The least and the largest extent, and edges between them."""
    given = (asked, asked) if isinstance(asked, int | np.integer) else tuple(map(int, asked))
    low, *edges, high = given
    if not 0 <= low <= high or (edges and given != tuple(sorted({*given}))):
        raise ShapeError("ranges", f"{' to '.join(map(str, given))} of input {name} is not a range")
    return low, high, *edges


def _join(given: Opened, own: Mapping[str, int]) -> Opened:
    """The same with one symbol for those that a guard says are equal, within the ranges.

    Args:
        given: the graph and the ranges.
        own: extents that the model was written for.
    """
    graph, ranges = given.graph, dict(given.ranges)
    within = {name: symbol(name, low, high) for name, (low, high) in ranges.items()}
    for guard in given.graph.guards:
        pair = _equal_symbols(guard, within)
        if pair is None or not all(n in ranges for n in pair):
            continue
        first, second = pair
        low = max(ranges[first][0], ranges[second][0])
        high = min(ranges[first][1], ranges[second][1])
        if low > high:
            raise ShapeError("ranges", f"{first} and {second} are equal in the model", saw="ranges")
        del ranges[second]
        ranges[first] = low, high
        joined = _with_edges_of([_symbols(graph)[name] for name in pair], low, high)
        graph = _substituted(graph, {first: joined, second: joined}, own)
    return Opened(graph, ranges)


def _with_edges_of(same: Sequence[Dim], low: int, high: int) -> Dim:
    """The first of some symbols that are equal, with the edges of all within a range."""
    symbols = [s for extent in same if (s := lone_symbol(extent)) is not None]
    edges = sorted({e for s in symbols for e in s.edges if max(low, s.low) < e <= high})
    return extent_of(replace(symbols[0], edges=tuple(edges), high=high)) if edges else same[0]


def _symbols(graph: Graph) -> dict[str, Dim]:
    """The symbols of inputs and guards, by name."""
    found = [s for g in graph.guards for s in symbols_in(g.expr)]
    found += [s for v in graph.inputs for s in symbols_in(v.type)]
    return {s.name: extent_of(s) for s in found}


def _equal_symbols(guard: Relation, within: Mapping[str, Dim]) -> tuple[str, str] | None:
    """The names of two symbols whose difference a guard says is 0.

    Args:
        guard: of a graph.
        within: symbols of known ranges, by name.
    """
    if not symbols_of(guard.expr) <= within.keys():
        return None
    terms = getattr(evaluate(guard.expr, within), "terms", ())
    if guard.kind != "==0" or len(terms) != 2 or {c for _, c in terms} != {1, -1}:
        return None
    atoms = [monomial[0] for monomial, _ in terms if len(monomial) == 1]
    named = [atom.name for atom in atoms if isinstance(atom, Symbol)]
    return (named[0], named[1]) if len(named) == 2 else None


def _substituted(graph: Graph, values: Mapping[str, Dim], point: Mapping[str, int]) -> Graph:
    """The graph with other extents for some symbols, guards included.

    Args:
        graph: with symbols.
        values: of some of them.
        point: extents by which ranges that leave something open are answered, as new guards.
    """
    with deciding(point) as decisions:
        made = specialize(graph, values)
    every = {**_symbols(graph), **values}
    guards = [Relation(g.kind, evaluate(g.expr, every)) for g in graph.guards]
    asked = (g for g in (*guards, *decisions.guards) if g.truth() is None)
    return Graph(made.name, made.inputs, made.nodes, made.outputs, tuple(dict.fromkeys(asked)))


def _settled(given: Opened) -> Opened:
    """The same with numbers for symbols that have one extent.

    Raises:
        ShapeError: the model takes no extents of the ranges.
    """
    points = _points(given)
    if not points.shape[1]:
        raise ShapeError(
            "ranges",
            "the model takes no extents of these ranges",
            saw=_listed(given.ranges),
            hint=f"it needs {_needs(given.graph)}" if given.graph.guards else "",
        )
    numbers: dict[str, Dim] = {n: low for n, (low, high) in given.ranges.items() if low == high}
    if not numbers:
        return given
    point = dict(zip(given.ranges, points[:, 0].tolist(), strict=True))
    ranges = {n: r for n, r in given.ranges.items() if n not in numbers}
    return Opened(_substituted(given.graph, numbers, point), ranges)


def _needs(graph: Graph) -> str:
    return " and ".join(map(str, graph.guards))


def pattern_of(shape: Sequence[Dim]) -> Pattern:
    """A shape as a file has it."""
    return tuple(d if isinstance(d, int) else str(d) for d in shape)


# -- programs ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Made:
    """A program, and what it serves.

    Attributes:
        gear: what a file says of it.
        program: its words, before they are linked.
        spans: ranges of extents, by name, of which its code says which it serves.
    """

    gear: Gear
    program: Program
    spans: Mapping[str, Range]


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes programs for ranges.

    Args:
        options: of the compilation.
        compiler: toward the target.
        weights: what they read.
        what: is made of them, for errors.
    """

    options: Options
    compiler: ShippingCompiler
    weights: PreparedWeights
    what: str

    def programs(self, given: Opened) -> list[Made]:
        """Programs that serve, together, all extents that the model takes.

        Raises:
            CompileError: there are none for many extents, or it would take too many.
            ShapeError: the model takes no extents of the ranges.
        """
        if not given.ranges:
            return [Made(*self.fixed(given.graph), {})]
        found: list[Made] = []
        wrong: IndexRangeError | None = None
        for part, points, numbers in _by_ones(given):
            try:
                made = self._made(part, points, MOST_GEARS - len(found))
            except IndexRangeError as error:  # An index that is a constant, into nothing for one.
                wrong = error
                continue
            for m in made:
                spans = {**numbers, **m.spans}
                found.append(replace(m, spans={name: spans[name] for name in given.ranges}))
        if not found:
            raise wrong or ShapeError(
                "ranges", "the model takes no extents of these ranges", saw=_listed(given.ranges)
            )
        return found

    def _made(self, part: Opened, points: Points, most: int) -> list[Made]:
        """The programs of a part with its smallest extents as numbers."""
        if part.ranges:
            return self._covering(part, points, most)
        return [Made(*self.fixed(part.graph), {})]

    def fixed(self, graph: Graph) -> tuple[Gear, Program]:
        """The program for one set of shapes.

        Raises:
            CompileError: an op needs Python, or an extent is symbolic.
        """
        stages = Stages(graph, options=self.options, crossing=self.compiler)
        plan = stages.planned.plan
        refuse(plan, self.what)
        steps = moved(plan, packed(plan, self.compiler.build), self.weights.add)
        for value in graph.outputs:
            if not value.type.is_static:
                raise CompileError(
                    self.what, "an output has symbolic extents", saw=f"{value.name} {value.type}"
                )
        # The host's executor runs all steps in order: one stream, no events, whatever was planned.
        gear = Gear(
            tuple(v.type for v in graph.inputs),
            tuple(v.type for v in graph.outputs),
            plan.memory.peak,
            plan.launches,
            stops=stops_of(plan),
            partitions=stages.report.partitions,
        )
        return gear, Program(steps, plan.bases)

    def _covering(self, given: Opened, left: Points, most: int) -> list[Made]:
        origin = SharedGraph(given.graph, Interface(), self.options, None, Arenas())
        if why := refusal(origin):
            raise _alone(why)
        made: list[Made] = []
        while left.shape[1]:
            if len(made) == most:
                raise CompileError(
                    "offline",
                    f"the ranges need more than {MOST_GEARS} programs",
                    saw=_listed(given.ranges),
                    hint="give narrower ones, or gears",
                )
            found, served = self._program(given, left)
            made.append(found)
            left = left[:, ~served]
        return made

    def _program(self, given: Opened, left: Points) -> tuple[Made, npt.NDArray[np.bool_]]:
        """A program for the first of the extents that are left, and which of them it serves."""
        point = dict(zip(given.ranges, left[:, 0].tolist(), strict=True))
        cell = _within(_wide(cell_of(point, given.graph), given), given.ranges)
        with deciding(point, cell.hints) as decisions:
            try:
                stages = Stages(cell.of(given.graph), options=self.options, crossing=self.compiler)
                planned = stages.planned
            except Exception as error:  # What takes no expressions yet.
                raise _alone(f"{type(error).__name__}: {str(error).splitlines()[0]}") from error
        plan, guards = planned.plan, (*given.graph.guards, *decisions.guards)
        refuse(plan, self.what)
        results = [t.shape for t in results_of(planned.captured, planned.graph)]
        steps = moved(plan, packed(plan, self.compiler.build), self.weights.add, point)
        checks = [
            (op.low, op.high)
            for op in (plan.host[number].op for number in plan.tasks.values())
            if isinstance(op, CheckIndices)
        ]
        whole = replace(plan, steps=steps)
        worded, scheme = numbered(whole, [*results, *checks], tuple(cell.ranges), guards)
        dtypes = tuple(v.type.dtype.name for v in planned.graph.outputs)
        code = Open(scheme, dtypes, first_placements(scheme, cell))
        inside = _inside(left, cell) & _holding(guards, tuple(cell.ranges), left)
        if not inside[0]:
            raise _alone("its guards do not hold where it was compiled")
        served = left[:, inside]
        at, arena = _largest(code, served)
        shapes = dict(zip(cell.ranges, at, strict=True))
        closed = specialize(given.graph, shapes)
        patterns = tuple(pattern_of(v.type.shape) for v in given.graph.inputs)
        spans = _box(served, cell, given)
        gear = Gear(
            tuple(v.type for v in closed.inputs),
            tuple(v.type for v in closed.outputs),
            arena,
            plan.launches,
            stops=stops_of(worded),
            partitions=stages.report.partitions,
            many=many_of(spans, patterns, code),
        )
        return Made(gear, worded.program(worded.steps, ()), spans), inside


def _alone(why: str) -> CompileError:
    return CompileError(
        "offline",
        f"there is no program for many extents: {why}",
        hint="compile it for several shapes: gears (--gear)",
    )


def _listed(ranges: Mapping[str, Range]) -> str:
    return ", ".join(f"{name} {low} to {high}" for name, (low, high) in ranges.items())


def _by_ones(given: Opened) -> Iterator[tuple[Opened, Points, dict[str, Range]]]:
    """The graph with extents of 0 and 1 as numbers (of coarse ones 0), in every combination, and
    the other extents that the model takes with them, and the numbers as ranges.
    """
    points = _points(given)
    ends = {name: 1 if name in given.coarse else 2 for name in given.ranges}
    small = np.minimum(points, np.array([*ends.values()])[:, None])
    for kinds in np.unique(small, axis=1).T:
        numbers = {n: int(k) for (n, end), k in zip(ends.items(), kinds, strict=True) if k < end}
        rest = {n: (max(a, ends[n]), b) for n, (a, b) in given.ranges.items() if n not in numbers}
        left = points[:, (small == kinds[:, None]).all(0)]
        while left.shape[1]:
            point = dict(zip(given.ranges, left[:, 0].tolist(), strict=True))
            if not _takes(given.graph, point):
                left = left[:, 1:] if rest else left[:, :0]
                continue
            made = given if not numbers else _pinned(given, numbers, rest, point)
            own = left[[n in rest for n in given.ranges]]
            inside = _holding(made.graph.guards, tuple(rest), own)
            inside[0] = True
            yield made, own[:, inside], {n: (int(k), int(k)) for n, k in numbers.items()}
            left = left[:, ~inside]


def _pinned(
    given: Opened, numbers: Mapping[str, Dim], rest: Mapping[str, Range], point: Mapping[str, int]
) -> Opened:
    return Opened(_substituted(given.graph, numbers, point), rest, given.coarse)


def _takes(graph: Graph, point: Mapping[str, int]) -> bool:
    """Return whether the model takes extents, of which 1 may broadcast."""
    if broken_guard(graph.guards, point) is not None:
        return False
    try:
        made = specialize(graph, point)
        below = any(point[s.name] < s.low for v in graph.inputs for s in symbols_in(v.type))
        return not (below and fault_of_ones(made, graph))
    except TreadleError:
        return False


def _points(given: Opened) -> Points:
    """All extents of the ranges that the model takes; of very many some of each cell."""
    own = {s.name: s for v in given.graph.inputs for s in symbols_in(v.type)}
    each = given.listed
    if given.count > each:
        each = int(each ** (1 / len(given.ranges)))
    listed = (among(*ends, each, own.get(n)) for n, ends in given.ranges.items())
    axes = [np.array(extents, np.int64) for extents in listed]
    every = np.stack([a.reshape(-1) for a in np.meshgrid(*axes, indexing="ij")])
    return every[:, _holding(given.graph.guards, tuple(given.ranges), every)]


def _holding(
    guards: Sequence[Relation], symbols: Sequence[str], points: Points
) -> npt.NDArray[np.bool_]:
    """Return for which extents all guards on them hold."""
    writer, known = ExpressionWriter(symbols), set(symbols)
    for guard in guards:
        if symbols_of(guard.expr) <= known:
            writer.ask(guard)
    code, _ = writer.finished()
    cut = range(0, points.shape[1], _CHUNK)
    found = [evaluate_all(code, points[:, at : at + _CHUNK])[0] for at in cut]
    return np.concatenate([np.ones(0, bool), *found])


def _wide(cell: Cell, given: Opened) -> Cell:
    """The cell, with fewer edges where three symbols or more would multiply them."""
    ranges = {n: (1, _LARGE) if n in given.coarse else r for n, r in cell.ranges.items()}
    if len(ranges) >= 3:
        own = {s.name for v in given.graph.inputs for s in symbols_in(v.type) if s.edges}
        small = {n for n, (low, _) in ranges.items() if 2 <= low < _SMALL and n not in own}
        ranges |= dict.fromkeys(small, (2, _SMALL - 1))
    return replace(cell, ranges=ranges)


def _within(cell: Cell, ranges: Mapping[str, Range]) -> Cell:
    """The part of a cell that lies in ranges."""
    inside = {
        name: (max(low, ranges[name][0]), min(high, ranges[name][1]))
        for name, (low, high) in cell.ranges.items()
    }
    return Cell(inside, {n: x for n, x in cell.told.items() if inside[n][0] <= x <= inside[n][1]})


def _box(served: Points, cell: Cell, given: Opened) -> Mapping[str, Range]:
    """The least ranges that hold all extents that a program serves."""
    if given.count > given.listed:  # There are more than those that are known.
        return cell.ranges
    ends = zip(served.min(1).tolist(), served.max(1).tolist(), strict=True)
    return dict(zip(cell.ranges, ends, strict=True))


def _inside(points: Points, cell: Cell) -> npt.NDArray[np.bool_]:
    found = np.ones(points.shape[1], bool)
    for row, (low, high) in zip(points, cell.ranges.values(), strict=True):
        found &= (row >= low) & (row <= high)
    return found


def _largest(code: Open, served: Points) -> tuple[list[int], int]:
    """The extents that need most scratch memory, and how much that is.

    Of very many some are tried: those with the most elements, and others among them.
    """
    if served.shape[1] > _MOST_PLACED:
        order = np.argsort(np.prod(served.astype(np.float64), 0), kind="stable")
        some = np.linspace(0, len(order) - 1, _MOST_PLACED // 2).astype(np.int64)
        served = served[:, np.unique(np.concatenate([order[-_MOST_PLACED // 2 :], order[some]]))]
    fine, registers = evaluate_all(code.scheme.arithmetic, served)
    least: Points = registers[code.scheme.at.least]
    peaks = np.full(served.shape[1], np.iinfo(np.int64).max) if code.placements else least
    for rows in code.placements:
        placed = replace(code.scheme.arithmetic, start=registers[:, 0], rows=rows)
        made = evaluate_all(placed, registers)[1]
        peaks = np.minimum(peaks, made[code.scheme.at.peak])
    if not fine.all():
        wrong = served[:, int(np.argmin(fine))].tolist()
        named = ", ".join(f"{n} = {x}" for n, x in zip(code.scheme.symbols, wrong, strict=True))
        raise ShapeError("offline", "sizes are beyond 64 bits", saw=named, hint="narrow the range")
    # Of equal ones the most elements.
    size = np.prod(served.astype(np.float64), 0)
    best = int(np.lexsort((size, peaks))[-1])
    return served[:, best].tolist(), int(peaks[best])


__all__ = ["Made", "Maker", "Opened", "Wanted", "open_form", "opened", "pattern_of"]
