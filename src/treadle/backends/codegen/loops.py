"""Loop nests as launches: elementwise ops, movement and reductions of one domain."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from treadle.backends.api import Support, no
from treadle.backends.codegen.loop_joining import Parts, joining_body, only, rest_of
from treadle.backends.codegen.loop_kernel import LoopKernel, Memory
from treadle.backends.codegen.loop_plan import Division, Plan, divided, is_starved, plan
from treadle.backends.codegen.target import Target
from treadle.backends.program import ALIGNMENT, Array, Launch, Lowered, Ref
from treadle.base.shape import size_of
from treadle.base.types import TensorType
from treadle.graph.cells import Load
from treadle.graph.domains import LoopNest, Refusal, analyze
from treadle.graph.ir import Graph, Node


@lru_cache(maxsize=512)
def lower_body(body: Graph, target: Target) -> Lowered | Support:
    """Launches that compute a body, or why no loop nest can.

    Remembered, as the fusion pass tries bodies before the compile stage lowers them.
    """
    nest = analyze(body)
    if isinstance(nest, Refusal):
        return no("op", nest.reason)
    lowering = _Lowering(target)
    inputs = tuple(Ref("input", i) for i in range(len(body.inputs)))
    outputs = tuple(Ref("output", i) for i in range(len(body.outputs)))
    refusal = lowering.add(nest, inputs, outputs)
    return refusal or lowering.result()


class _Lowering:
    """Collects the launches of several nests."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.launches: list[Launch] = []
        self.constants: list[Array] = []
        self.workspaces: list[int] = []
        self.in_place: list[tuple[int, int]] = []

    def add(self, nest: LoopNest, inputs: Sequence[Ref], outputs: Sequence[Ref]) -> Support | None:
        """Launches of a nest and those that go with it, whose data is where the refs say."""
        for part in (nest, *_all_further(nest)):
            if part.outputs or part.collected:
                refusal = self._add(part, inputs, outputs)
                if refusal is not None:
                    return refusal
        return None

    def _add(self, nest: LoopNest, inputs: Sequence[Ref], outputs: Sequence[Ref]) -> Support | None:
        chosen = plan(nest, self.target, _traffic(nest))
        division = divided(nest, chosen)
        if is_starved(nest, chosen, division):
            return self._add_stages(nest, inputs, outputs)
        parts = _parts_of(nest, division)
        places = {p.node: self._workspace(p.type.nbytes) for p in parts}
        memory = self._memory(nest, inputs, outputs, places)
        self.launches.append(LoopKernel(nest, chosen, division, memory).launch())
        self.in_place += _in_place(nest, chosen, inputs, outputs)
        if not parts:
            return None
        numbers = nest.after or tuple(o.number for o in nest.outputs if o.cell.stage)
        body = joining_body(nest.body, parts, numbers)
        rest = analyze(body)
        if isinstance(rest, Refusal):
            return no("op", rest.reason)
        refs = [*(places[p.node] for p in parts), *inputs]
        return self.add(rest, refs, [outputs[i] for i in numbers])

    def _add_stages(
        self, nest: LoopNest, inputs: Sequence[Ref], outputs: Sequence[Ref]
    ) -> Support | None:
        """The first reductions by themselves, then all that comes after them."""
        wanted = tuple(o.number for o in nest.outputs)
        body = only(nest.body, [nest.body.outputs[i] for i in wanted])
        done = [t.node.output for t in nest.totals if t.stage == 1]
        places = [self._workspace(v.type.nbytes) for v in done]
        for part, refs, results in (
            (only(body, done), inputs, places),
            (rest_of(body, done), [*places, *inputs], [outputs[i] for i in wanted]),
        ):
            found = analyze(part)
            if isinstance(found, Refusal):
                return no("op", found.reason)
            refusal = self.add(found, refs, results)
            if refusal is not None:
                return refusal
        return None

    def _workspace(self, nbytes: int) -> Ref:
        self.workspaces.append(nbytes + ALIGNMENT)
        return Ref("workspace", len(self.workspaces) - 1)

    def _memory(
        self,
        nest: LoopNest,
        inputs: Sequence[Ref],
        outputs: Sequence[Ref],
        places: dict[Node, Ref],
    ) -> Memory:
        types = [v.type for v in nest.body.inputs]
        types += [TensorType(t.dtype, t.shape) for t in nest.tables]
        first = len(self.constants)
        refs = [*inputs, *(Ref("constant", first + i) for i in range(len(nest.tables)))]
        self.constants += [t.array for t in nest.tables]
        made = nest.body.outputs
        return Memory(
            lambda i: (refs[i], types[i].dtype, size_of(types[i].shape)),
            lambda o: (outputs[o.number], made[o.number].type.dtype),
            lambda node: places[node],
        )

    def result(self) -> Lowered:
        """Everything, with the outputs that may lie on inputs."""
        alone = len(self.launches) == 1
        return Lowered(
            tuple(self.launches),
            tuple(self.workspaces),
            tuple(self.constants),
            in_place=tuple(self.in_place) if alone else (),
        )


def _all_further(nest: LoopNest) -> list[LoopNest]:
    found: list[LoopNest] = []
    for other in nest.further:
        found += [other, *_all_further(other)]
    return found


def _parts_of(nest: LoopNest, division: Division) -> list[Parts]:
    """The reductions of a nest that are left in parts."""
    if nest.collected:
        return [Parts(c.node, division.items, c.count) for c in nest.collected]
    if division.parts > 1:
        return [Parts(t.node, division.parts, t.count) for t in nest.totals]
    return []


def _traffic(nest: LoopNest) -> int:
    """Bytes that a nest reads and writes at least."""
    read = {c.source for c in nest.cells() if isinstance(c, Load)}
    types: list[TensorType] = [nest.body.outputs[o.number].type for o in nest.outputs]
    types += [v.type for i, v in enumerate(nest.body.inputs) if i in read]
    return sum(t.nbytes for t in types)


def _in_place(
    nest: LoopNest, chosen: Plan, inputs: Sequence[Ref], outputs: Sequence[Ref]
) -> list[tuple[int, int]]:
    """Outputs that may lie on an input: each of its elements is read where it is written, last."""
    loads: dict[int, list[Load]] = {}
    for cell in nest.cells():
        if isinstance(cell, Load):
            loads.setdefault(cell.source, []).append(cell)
    found = []
    for output in nest.outputs:
        wanted = nest.body.outputs[output.number].type
        stage = output.cell.stage if output not in chosen.last else len(nest.totals) + 1
        later = [s for s in chosen.stages if s.number > stage]
        for source, cells in loads.items():
            if source >= len(inputs) or nest.body.inputs[source].type.nbytes != wanted.nbytes:
                continue
            same = nest.body.inputs[source].type.dtype.itemsize == wanted.dtype.itemsize
            if same and all(
                c.place == output.place and not c.guards and not any(c in s.needed for s in later)
                for c in cells
            ):
                found.append((inputs[source].index, outputs[output.number].index))
    return found
