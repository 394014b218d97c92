"""Steps with addresses: launches, host tasks, and steps of regions; `control.py` adds the jumps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from treadle.backends.api import Support
from treadle.backends.program import (
    Address,
    Compiler,
    Host,
    Jump,
    Launch,
    Lowered,
    Ref,
    Run,
    Step,
    StopStep,
    Together,
)
from treadle.base.symbol import Dim, is_identical
from treadle.base.types import TensorType
from treadle.engine.compile.early import Turn
from treadle.engine.compile.place import Home, Placement
from treadle.engine.compile.together import joined
from treadle.engine.compile.work import COPY, Work
from treadle.engine.plan import (
    CHECK,
    REFERENCE,
    START,
    ConstantPool,
    Facts,
    HostTask,
    Interface,
    MemoryPlan,
    Plan,
    Rebase,
    Span,
    aligned,
    moved,
    relocate,
)
from treadle.graph.ir import Value
from treadle.ops.op import Op

Placed = tuple[Address, TensorType]
"""A value by its address."""


@dataclass
class Linker:
    """Writes steps; knows where everything lies."""

    placement: Placement
    memory: MemoryPlan
    constants: ConstantPool
    inputs: int
    outputs: int
    compiler: Compiler
    steps: list[Step] = field(default_factory=list)
    host: list[HostTask] = field(default_factory=list)
    prelude: list[Step] = field(default_factory=list)
    early: MemoryPlan = field(default_factory=lambda: MemoryPlan((), 0, 0, 0))
    """Offsets of what the prelude has in the arena."""
    kept: int = 0
    areas: list[tuple[int, int]] = field(default_factory=list)
    """Offset and bytes of all that is kept."""
    facts: list[Facts] = field(default_factory=list)
    _packed: dict[Work, list[Address]] = field(default_factory=dict)
    node: int = -1
    """Number of the node whose work is being written."""

    @property
    def constants_base(self) -> int:
        """The number of the base of constants; kept memory and the arena follow."""
        return self.inputs + self.outputs

    def address(self, home: Home, offset: int = 0) -> Address:
        """The address of a place in a memory."""
        if home.kind == "input":
            return Address(home.index, offset)
        if home.kind == "output":
            return Address(self.inputs + home.index, offset)
        if home.kind == "constant":
            return Address(self.constants_base, home.index + offset)
        if home.kind == "kept":
            return Address(self.constants_base + 1, home.index + offset)
        if home.kind == "early":
            return Address(self.constants_base + 2, self.early.offsets[home.index] + offset)
        return Address(self.constants_base + 2, self.memory.offsets[home.index] + offset)

    def where(self, value: Value) -> Address:
        """The address of a value."""
        return self.address(*self.placement.home(value))

    def add(self, item: Work, node: int) -> None:
        """The step of one piece of work that is not a launch, and belongs to node number `node`."""
        self.node = node
        self._host(_task(item, self.where))

    def guard(self, item: Work, node: int) -> None:
        """Stop the program where a check has found an index that is out of range.

        A jump is taken where a byte is 0, as the check's result begins where nothing was found.
        """
        self.node, place = node, self.where(item.outputs[0])
        self.write(Jump(len(self.steps) + 2, place))
        self.write(StopStep(len(self.host)), Facts(node=node))
        self.host.append(HostTask(item.op, ((place, item.outputs[0].type),), (), phase=CHECK))

    def add_runs(self, runs: Sequence[tuple[Run, Facts]]) -> None:
        """A step of runs that share one launch; nothing where there are none."""
        if runs:
            self.write(*joined(runs))

    def write(self, step: Step, facts: Facts | None = None) -> None:
        """One more step; jumps tell theirs when their targets are known."""
        self.steps.append(step)
        self.facts.append(facts or Facts(node=self.node))

    def _host(self, task: HostTask) -> None:
        reads = tuple(Span(a.base, a.offset, t.open_nbytes) for a, t in task.inputs)
        writes = tuple(Span(a.base, a.offset, t.open_nbytes) for a, t in task.outputs)
        nbytes = sum(s.nbytes for s in (*reads, *writes))
        self.write(Host(len(self.host)), Facts(reads, writes, 0, nbytes, self.node))
        self.host.append(task)

    def runs(self, item: Work, spaces: Sequence[Home], node: int) -> list[tuple[Run, Facts] | None]:
        """Each launch of one piece of work with its addresses.

        None is a copy of what already lies where it belongs.
        """
        if item.lowered is None:
            return []
        places = self._places(item, item.lowered, spaces)
        sizes: dict[str, Sequence[Dim]] = {
            "input": [v.type.open_nbytes for v in item.inputs],
            "output": [v.type.open_nbytes for v in item.outputs],
            "workspace": item.lowered.workspaces,
            "kept": item.lowered.kept,
        }
        found: list[tuple[Run, Facts] | None] = []
        for launch in item.lowered.launches:
            run = _run(launch, places, item.label)
            unmoved = launch.moves and _is_one(run.arguments[0], run.arguments[1])
            facts = _facts(launch, places, sizes, node, item.lowered.in_place)
            found.append(None if unmoved else (run, facts))
        return found

    def prepare(self, turns: Iterable[Turn], spaces: Mapping[Work, Sequence[Home]]) -> None:
        """Steps that run once: work on frozen inputs, and what is packed."""
        for turn in turns:
            item = turn.work
            if item.lowered is None:
                continue
            places = self._places(item, item.lowered, spaces.get(item, ()))
            launches = item.lowered.prelude if turn.packs else item.lowered.launches
            self.prelude += [_run(launch, places, item.label) for launch in launches]

    def _places(
        self, item: Work, lowered: Lowered, spaces: Sequence[Home]
    ) -> Mapping[str, Sequence[Address]]:
        """Addresses of all that the launches of a piece of work may name."""
        if item not in self._packed:
            self._packed[item] = []
            for size in lowered.kept:
                self._packed[item].append(Address(self.constants_base + 1, self.kept))
                self.areas.append((self.kept, size))
                self.kept += aligned(size)
        return {
            "input": [self.where(v) for v in item.inputs],
            "output": [] if not lowered.launches else [self.where(v) for v in item.outputs],
            "workspace": [self.address(h) for h in spaces],
            "kept": self._packed[item],
            "constant": [
                Address(self.constants_base, self.constants.add(a)) for a in lowered.constants
            ],
        }

    def copy(self, source: Address, target: Address, value: Value) -> None:
        """Steps that copy a value's bytes from one place to another."""
        self.apply(COPY, ((source, value.type),), (target, value.type))

    def apply(self, op: Op, inputs: Sequence[Placed], output: Placed) -> None:
        """Steps of an op that the program itself does not have; one may write where it reads."""
        found = self.compiler.lower(op, [kind for _, kind in inputs], (False,) * len(inputs))
        if isinstance(found, Lowered) and not found.launches and not found.views:
            return  # There is no element.
        if isinstance(found, Support) or found.workspaces or _refuses(found, inputs, output):
            self._host(HostTask(op, tuple(inputs), (output,)))
            return
        places: dict[str, Sequence[Address]] = {
            "input": [at for at, _ in inputs],
            "output": [output[0]],
            "constant": [
                Address(self.constants_base, self.constants.add(a)) for a in found.constants
            ],
        }
        sizes: dict[str, Sequence[Dim]] = {"input": [kind.open_nbytes for _, kind in inputs]}
        sizes["output"] = [output[1].open_nbytes]
        for launch in found.launches:
            run = _run(launch, places, "copy" if op is COPY else op.name)
            if not (launch.moves and _is_one(run.arguments[0], run.arguments[1])):
                self.write(run, _facts(launch, places, sizes, self.node, found.in_place))

    def splice(
        self, part: Plan, inputs: Sequence[Address], outputs: Sequence[Address], arena: Address
    ) -> None:
        """The steps of a region's plan, on these addresses.

        Where offsets are symbols, buffers of the region are the program's. What runs before it is
        alone in the arena.
        """
        whole = Address(self.constants_base + 2)
        if part.memory.open:
            arena = whole
        shift = self.constants.nbytes
        for _, array in part.constants.entries:
            self.constants.add(array)
        placed = {offset: self.constants.add(array) for offset, array in part.constants.entries}
        starts = sorted(placed)
        kept = self.kept
        self.kept += part.kept
        self.areas += [(kept + offset, size) for offset, size in part.areas]

        def rebase(address: Address, arena: Address = arena) -> Address:
            base, offset = address.base, address.offset
            if base < part.inputs:
                return Address(inputs[base].base, inputs[base].offset + offset)
            base -= part.inputs
            if base < part.outputs:
                return Address(outputs[base].base, outputs[base].offset + offset)
            base -= part.outputs
            if base == 0:
                start = max((s for s in starts if s <= offset), default=shift)
                return Address(self.constants_base, placed[start] + offset - start)
            if base == 1:
                return Address(self.constants_base + 1, kept + offset)
            return Address(arena.base, arena.offset + offset)

        self.steps += relocate(part.steps, rebase, len(self.steps), len(self.host))
        self.facts += [moved(f, rebase, self.node) for f in part.facts]
        early = partial(rebase, arena=whole)
        self.prelude += relocate(part.prelude, early, len(self.prelude), 0)
        self.host += [_moved_task(task, rebase) for task in part.host]

    def plan(self, interface: Interface) -> Plan:
        """Everything written so far."""
        return Plan(
            tuple(self.steps),
            tuple(self.host),
            self.inputs,
            self.outputs,
            self.constants,
            self.kept,
            tuple(self.prelude),
            self.memory,
            interface.updates,
            tuple(map(_completed, self.steps, self.facts)),
            launches=sum(isinstance(s, Run | Together) for s in self.steps),
            areas=tuple(self.areas),
        )


def _is_one(x: Address | Dim, y: Address | Dim) -> bool:
    """Return whether two arguments are one place at all extents."""
    if not isinstance(x, Address) or not isinstance(y, Address):
        return False
    return x.base == y.base and is_identical(x.offset, y.offset)


def _refuses(lowered: Lowered, inputs: Sequence[Placed], output: Placed) -> bool:
    """Return whether an op cannot write where it reads, though it is to."""
    shared = [i for i, (at, _) in enumerate(inputs) if _is_one(at, output[0])]
    return any((i, 0) not in lowered.in_place for i in shared)


def _task(item: Work, where: Callable[[Value], Address]) -> HostTask:
    """The host task of a piece of work."""
    inputs, outputs = item.inputs, item.outputs
    if item.phase:
        inputs = outputs = outputs if item.phase == START else inputs
    given = tuple((where(v), v.type) for v in inputs)
    made = tuple((where(v), v.type) for v in outputs)
    return HostTask(item.op, given, made, item.engine or REFERENCE, item.phase)


def _moved_task(task: HostTask, rebase: Rebase) -> HostTask:
    """A host task at other addresses."""
    inputs = tuple((rebase(a), kind) for a, kind in task.inputs)
    outputs = tuple((rebase(a), kind) for a, kind in task.outputs)
    return replace(task, inputs=inputs, outputs=outputs)


def _run(launch: Launch, places: Mapping[str, Sequence[Address]], label: str) -> Run:
    def resolve(argument: Ref | Dim) -> Address | Dim:
        if not isinstance(argument, Ref):
            return argument
        start = places[argument.kind][argument.index]
        return Address(start.base, start.offset + argument.offset)

    arguments = tuple(resolve(a) for a in launch.arguments)
    return Run(launch.kernel, arguments, launch.items, launch.serial, label)


def _facts(
    launch: Launch,
    places: Mapping[str, Sequence[Address]],
    sizes: Mapping[str, Sequence[Dim]],
    node: int,
    in_place: Sequence[tuple[int, int]],
) -> Facts:
    """Return the facts of a launch: whole operands, since strides and offsets are the kernel's
    affair.

    Constants are left out, as nobody writes them. Kept memory was filled before the program ran.
    """
    reads: dict[Span, None] = {}
    writes: dict[Span, None] = {}
    scratch: dict[Span, None] = {}
    made: dict[int, Span] = {}

    def span(kind: str, index: int) -> Span:
        start = places[kind][index]
        return Span(start.base, start.offset, sizes[kind][index])

    for argument in launch.arguments:
        if not isinstance(argument, Ref) or argument.kind == "constant":
            continue
        place = span(argument.kind, argument.index)
        if not is_identical(place.nbytes, 0):
            (reads if argument.kind in ("input", "kept") else writes)[place] = None
            scratch.update({place: None} if argument.kind == "workspace" else {})
            made.update({argument.index: place} if argument.kind == "output" else {})
    nbytes = launch.nbytes
    if is_identical(nbytes, 0):
        nbytes = sum(place.nbytes for place in (*reads, *writes))
    pairs = tuple((span("input", i), made[j]) for i, j in in_place if j in made)
    touched = tuple(reads), tuple(writes)
    found = Facts(*touched, launch.flops, nbytes, node, (), tuple(scratch), pairs)
    return replace(found, unit=launch.unit) if launch.unit else found


def _completed(step: Step, facts: Facts) -> Facts:
    """Return the facts of a step; those of a jump say that it reads its condition."""
    if not isinstance(step, Jump) or step.unless is None:
        return facts
    return replace(facts, reads=(Span(step.unless.base, step.unless.offset, 1),))
