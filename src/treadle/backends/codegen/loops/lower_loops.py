"""Loop nests as launches: elementwise ops, movement and reductions of one domain."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.backends.api import Support, no
from treadle.backends.codegen.loops.division import (
    Division,
    by_rows,
    divided,
    first_reductions,
    is_cut,
    jumps,
)
from treadle.backends.codegen.loops.joining import (
    Lengths,
    Parts,
    joining_body,
    only,
    rest_of,
    settled,
)
from treadle.backends.codegen.loops.kernel import LoopKernel
from treadle.backends.codegen.loops.plan import LoopSchedule, plan
from treadle.backends.codegen.loops.stages import NestMemory
from treadle.backends.codegen.target import Target
from treadle.backends.program import ALIGNMENT, Launch, Lowered, Ref
from treadle.base.array import Array
from treadle.base.estimates import is_many
from treadle.base.guards import asking_nothing, remembered
from treadle.base.shape import product
from treadle.base.symbol import Dim, is_identical
from treadle.base.types import TensorType
from treadle.graph.cells import Load
from treadle.graph.domains import LoopNest, NestRefusal, analyze
from treadle.graph.ir import Graph, Node


@remembered(512)
def lower_body(body: Graph, target: Target, *, group: bool = False) -> Lowered | Support:
    """Launches that compute a body, or why no loop nest can.

    A group, which may also run as several bodies, is refused where those are faster. Results are
    remembered, as the fusion pass tries bodies before the compile stage lowers them.
    """
    nest = analyze(body)
    if isinstance(nest, NestRefusal):
        return no("op", nest.reason)
    lowering = _Lowering(target, group)
    inputs = tuple(Ref("input", i) for i in range(len(body.inputs)))
    outputs = tuple(Ref("output", i) for i in range(len(body.outputs)))
    refusal = lowering.add(nest, inputs, outputs)
    return lowering.result() if refusal is None else refusal


class _Lowering:
    """Collects the launches of several nests."""

    def __init__(self, target: Target, group: bool) -> None:
        self.target = target
        self.group = group
        self.launches: list[Launch] = []
        self.constants: list[Array] = []
        self.workspaces: list[Dim] = []
        self.read: list[set[Ref]] = []
        self.in_place: list[tuple[int, Ref, Ref]] = []

    def add(
        self,
        nest: LoopNest,
        inputs: Sequence[Ref],
        outputs: Sequence[Ref],
        *,
        joins: bool = False,
    ) -> Support | None:
        """Launches of a nest and those that go with it, whose data is where the refs say.

        What joins the parts of a reduction is not divided again.
        """
        for part in (nest, *_all_further(nest)):
            if part.outputs or part.collected:
                refusal = self._add(part, inputs, outputs, joins)
                if refusal is not None:
                    return refusal
        return None

    def _add(
        self, nest: LoopNest, inputs: Sequence[Ref], outputs: Sequence[Ref], joins: bool
    ) -> Support | None:
        nest, chosen = self._planned(nest, joins)
        if self.group and jumps(nest, chosen):
            return no("layout", "an operand is transposed among rows that are computed in order")
        division = divided(nest, chosen, joins, self.target)
        if not joins and is_cut(nest, chosen, division, self.target):
            return self._add_stages(nest, chosen, inputs, outputs)
        parts = _parts_of(nest, chosen, division)
        places = {p.node: self._workspace(p.type.open_nbytes) for p in parts}
        memory = self._memory(nest, inputs, outputs, places)
        self.in_place += [
            (len(self.launches), inputs[i], outputs[o]) for i, o in _in_place(nest, chosen)
        ]
        self.launches.append(LoopKernel(nest, chosen, division, memory).launch())
        self.read.append({a for a in self.launches[-1].arguments if isinstance(a, Ref)})
        if not parts:
            return None
        numbers = nest.after or tuple(o.number for o in nest.outputs if o.cell.stage)
        body = joining_body(nest.body, parts, numbers)
        rest = analyze(body)
        if isinstance(rest, NestRefusal):
            return no("op", rest.reason)
        refs = [*(places[p.node] for p in parts), *inputs]
        return self.add(rest, refs, [outputs[i] for i in numbers], joins=True)

    def _planned(self, nest: LoopNest, joins: bool) -> tuple[LoopNest, LoopSchedule]:
        """The schedule of a nest, or of one that computes the same otherwise."""
        nbytes = _traffic(nest)
        chosen = plan(nest, self.target, nbytes)
        turned = None if joins else by_rows(nest, chosen, self.target)
        return (nest, chosen) if turned is None else (turned, plan(turned, self.target, nbytes))

    def _add_stages(
        self, nest: LoopNest, chosen: LoopSchedule, inputs: Sequence[Ref], outputs: Sequence[Ref]
    ) -> Support | None:
        """Add a reducing pass, and what follows from it per row; then all that comes after."""
        body = only(nest.body, [nest.body.outputs[o.number] for o in nest.outputs])
        results = [outputs[o.number] for o in nest.outputs]
        done = settled(body, first_reductions(nest, chosen))
        # A value may be several results; the first is written, the others are copied from it.
        made = {v: i for i, v in reversed([*enumerate(body.outputs)]) if v in done}
        places = [
            results[made[v]] if v in made else self._workspace(v.type.open_nbytes) for v in done
        ]
        rest = [i for i, v in enumerate(body.outputs) if made.get(v) != i]
        for part, reads, writes in (
            (only(body, done), inputs, places),
            (rest_of(body, done, rest), [*places, *inputs], [results[i] for i in rest]),
        ):
            found = analyze(part)
            if isinstance(found, NestRefusal):
                return no("op", found.reason)
            refusal = self.add(found, reads, writes)
            if refusal is not None:
                return refusal
        return None

    def _workspace(self, nbytes: Dim) -> Ref:
        self.workspaces.append(nbytes + ALIGNMENT)
        return Ref("workspace", len(self.workspaces) - 1)

    def _memory(
        self,
        nest: LoopNest,
        inputs: Sequence[Ref],
        outputs: Sequence[Ref],
        places: dict[Node, Ref],
    ) -> NestMemory:
        types = [v.type for v in nest.body.inputs]
        types += [TensorType(t.dtype, t.shape) for t in nest.tables]
        first = len(self.constants)
        refs = [*inputs, *(Ref("constant", first + i) for i in range(len(nest.tables)))]
        self.constants += [t.array for t in nest.tables]
        made = nest.body.outputs
        return NestMemory(
            lambda i: (refs[i], types[i].dtype, product(types[i].shape)),
            lambda o: (outputs[o.number], made[o.number].type.dtype),
            lambda node: places[node],
        )

    def result(self) -> Lowered:
        """Everything, with the outputs that may lie on inputs."""
        in_place = tuple(
            (origin.index, output.index)
            for launch, origin, output in self.in_place
            if (origin.kind, output.kind) == ("input", "output")
            and not any(origin in r for r in self.read[launch + 1 :])
        )
        return Lowered(
            tuple(self.launches),
            tuple(self.workspaces),
            tuple(self.constants),
            in_place=in_place,
        )


def _all_further(nest: LoopNest) -> list[LoopNest]:
    found: list[LoopNest] = []
    for other in nest.further:
        found += [other, *_all_further(other)]
    return found


def _parts_of(nest: LoopNest, chosen: LoopSchedule, division: Division) -> list[Parts]:
    """The reductions of a nest that are left in parts."""
    if nest.collected:
        lengths = Lengths(division.items, division.grain, division.units)
        about = {c.node: c.about for c in nest.collected if c.about is not None}
        return [Parts(c.node, lengths, c.about, c.node in about.values()) for c in nest.collected]
    axis = chosen.split_axis
    if not is_many(division.parts) or axis is None:
        return []
    lengths = Lengths(division.parts, division.length * (nest.row // axis.extent), nest.row)
    about = {m.squares.node: m.mean.node for m in chosen.moments}
    return [
        Parts(t.node, lengths, about.get(t.node), t.node in about.values()) for t in nest.totals
    ]


def _traffic(nest: LoopNest) -> Dim:
    """Bytes that a nest reads and writes at least."""
    written = [nest.body.outputs[o.number].type.open_nbytes for o in nest.outputs]
    loads: dict[int, list[Load]] = {}
    for cell in nest.cells():
        if isinstance(cell, Load) and cell.source < len(nest.body.inputs):
            loads.setdefault(cell.source, []).append(cell)
    return sum([*written, *(_read(nest.body.inputs[i].type, found) for i, found in loads.items())])


def _read(type_: TensorType, loads: Sequence[Load]) -> Dim:
    """Return the bytes that loads read of an operand, which may be a small part of it."""
    places = sum(product(atom.extent for atom, _ in load.place.terms) for load in loads)
    whole = type_.open_nbytes
    if isinstance(places, int) and isinstance(whole, int):
        return min(places * type_.dtype.itemsize, whole)
    return whole


def _in_place(nest: LoopNest, chosen: LoopSchedule) -> list[tuple[int, int]]:
    """(input, output) pairs: each element of the input is read where the output is written, last.

    Everything of a point is read before any of it is written.
    """
    loads: dict[int, list[Load]] = {}
    for cell in nest.cells():
        if isinstance(cell, Load) and cell.source < len(nest.body.inputs):
            loads.setdefault(cell.source, []).append(cell)
    found = []
    for output in nest.outputs:
        wanted = nest.body.outputs[output.number].type
        stage = output.cell.stage if output not in chosen.last else len(nest.totals) + 1
        later = [s for s in chosen.stages if s.number > stage]
        for source, cells in loads.items():
            type_ = nest.body.inputs[source].type
            if (type_.dtype.itemsize != wanted.dtype.itemsize) or not is_identical(
                type_.open_nbytes, wanted.open_nbytes
            ):
                continue
            with asking_nothing():
                same = all(c.place == output.place and not c.guards for c in cells)
            if same and not any(c in s.needed for s in later for c in cells):
                found.append((source, output.number))
    return found
