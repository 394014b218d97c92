"""Homes: in which memory every value lies, before anything is known about offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from treadle.backends.program import Compiler, Lowered
from treadle.base.symbol import Dim, is_identical
from treadle.engine.compile.work import (
    COPY,
    Aliases,
    ValuePart,
    Work,
    find_parts,
    lower,
    read_in_runs,
)
from treadle.engine.plan import CHECK, ConstantPool, Interface, aligned
from treadle.graph.ir import Graph, Value
from treadle.ops.constant import Constant

Kind = Literal["input", "output", "constant", "kept", "early", "arena"]


@dataclass(frozen=True, slots=True)
class Home:
    """A memory: a caller's input or output by number, constants, kept results, or the arena.

    The arena has buffers for each run, and "early" ones for what runs once before. `index` is the
    number of the input, output or buffer; for constants and what is kept it is the offset.
    """

    kind: Kind
    index: int


@dataclass(slots=True)
class Placement:
    """Places of all values.

    Attributes:
        homes: of every root.
        parts: values that lie inside others.
        sizes: bytes of each buffer of the arena.
        scratches: bytes of each buffer that the prelude has in the arena.
        kept: bytes of results that are kept.
        areas: offset and bytes of each of them.
    """

    homes: dict[Value, Home] = field(default_factory=dict)
    parts: dict[Value, ValuePart] = field(default_factory=dict)
    sizes: list[Dim] = field(default_factory=list)
    scratches: list[Dim] = field(default_factory=list)
    kept: int = 0
    areas: list[tuple[int, int]] = field(default_factory=list)

    def part(self, value: Value) -> ValuePart:
        """Return the part that the value lies in; itself where it is not a view."""
        return self.parts.get(value, ValuePart(value))

    def home(self, value: Value) -> tuple[Home, int]:
        """The memory a value lies in, and the bytes before it."""
        part = self.part(value)
        return self.homes[part.root], part.offset

    def put_inside(self, value: Value, place: ValuePart) -> None:
        """Place a value, and what are parts of it, in a buffer that others share."""
        for v, part in list(self.parts.items()):
            if part.root is value:
                self.parts[v] = ValuePart(place.root, place.offset + part.offset)
        self.parts[value] = place
        if place.root not in self.homes:
            self.homes[place.root] = self.buffer(place.root.type.open_nbytes)

    def buffer(self, nbytes: Dim) -> Home:
        """A new buffer of the arena."""
        self.sizes.append(nbytes)
        return Home("arena", len(self.sizes) - 1)

    def scratch(self, nbytes: Dim) -> Home:
        """A new buffer for the time before the program runs."""
        self.scratches.append(nbytes)
        return Home("early", len(self.scratches) - 1)

    def keep(self, nbytes: int) -> Home:
        """A place in memory that lives as long as the program."""
        self.areas.append((self.kept, nbytes))
        self.kept += aligned(nbytes)
        return Home("kept", self.areas[-1][0])


def place_values(
    graph: Graph,
    work: list[Work],
    interface: Interface,
    compiler: Compiler,
    constants: ConstantPool,
    early: Sequence[Work] = (),
    inside: Mapping[Value, ValuePart] | None = None,
) -> Placement:
    """Give every value a home; appends copies to `work` where an output needs one.

    Results of `early` work are kept where the program reads them. Values `inside` lie in buckets.

    An output that replaces an input's contents is computed in that input's memory if everybody
    who reads the old contents can come first, and is copied there at the end otherwise.
    """
    found = Placement(parts=find_parts((*early, *work)))
    found.homes.update((v, Home("input", i)) for i, v in enumerate(graph.inputs))
    for node in graph.nodes:
        if isinstance(node.op, Constant):
            found.homes[node.output] = Home("constant", constants.add(node.op.data.array))
    kept = read_in_runs(work, found.parts).union(found.part(v).root for v in graph.outputs)
    for value in (v for item in early for v in item.outputs if v not in found.parts):
        size = value.type.nbytes
        found.homes[value] = found.keep(size) if value in kept else found.scratch(size)
    for value, part in (inside or {}).items():
        found.put_inside(value, part)
    aliases = Aliases(work, found.parts)
    _Outputs(graph, work, interface, compiler, found, aliases).place()
    for item in work:
        for value in item.outputs:
            if value not in found.parts and value not in found.homes:
                found.homes[value] = found.buffer(value.type.open_nbytes)
    return found


class _Outputs:
    """Decides, output by output, whether it can be made where it belongs."""

    def __init__(
        self,
        graph: Graph,
        work: list[Work],
        interface: Interface,
        compiler: Compiler,
        placement: Placement,
        aliases: Aliases,
    ) -> None:
        self._graph = graph
        self._work = work
        self._compiler = compiler
        self._placement = placement
        self._aliases = aliases
        self._maker = {v: i for i, w in enumerate(work) for v in w.outputs}
        self._updates = dict(interface.updates)
        # State is written behind all checks that do not depend on what is written.
        self._checks = [i for i, w in enumerate(work) if w.phase == CHECK]

    def place(self) -> None:
        """Homes for all outputs, and copies where they cannot be made in place.

        Whatever reads old contents is settled first, so that what replaces them comes after it.
        """
        outputs = self._graph.outputs
        results = [v for j, v in enumerate(outputs) if j not in self._updates]
        for number, value in enumerate(results):
            home = Home("output", number)
            if self._free(value):
                self._placement.homes[value] = home
            else:
                self._copy(value, home)
        staged = {j: self._staged(outputs[j], i) for j, i in self._updates.items()}
        for j, target in self._updates.items():
            self._update(staged[j], target)

    def _staged(self, value: Value, target: int) -> Value:
        """The value, or a copy of it where it is the old contents of another updated input."""
        root = self._placement.part(value).root
        changed = {self._graph.inputs[i] for i in self._updates.values()}
        if root in changed and root is not self._graph.inputs[target]:
            return self._copy(value, self._placement.buffer(value.type.open_nbytes))
        return value

    def _free(self, value: Value) -> bool:
        """Return whether the value is made by work, whole, and has no home yet.

        A value that is the whole of another takes that one's place.
        """
        part = self._placement.parts.get(value)
        if part is not None:
            whole = is_identical(part.root.type.open_nbytes, value.type.open_nbytes)
            if part.offset or not whole:
                return False
            root = part.root
            if root not in self._maker or root in self._placement.homes:
                return False
            self._swap(root, value)
            return True
        return value in self._maker and value not in self._placement.homes

    def _swap(self, root: Value, value: Value) -> None:
        """Make `value` the root of what was part of `root`."""
        parts = self._placement.parts
        for v, part in list(parts.items()):
            if part.root is root and v is not value:
                parts[v] = ValuePart(value, part.offset)
        del parts[value]
        parts[root] = ValuePart(value)
        self._maker[value] = self._maker[root]
        readers = self._aliases.readers
        readers[value] = readers.pop(root, [])

    def _update(self, value: Value, target: int) -> None:
        """An output that replaces the contents of input `target`."""
        old = self._graph.inputs[target]
        if self._placement.part(value) == ValuePart(old):
            return  # Nothing changes.
        home = Home("input", target)
        if self._free(value) and self._may_overwrite(value, old):
            self._placement.homes[value] = home
        else:
            self._copy(value, home)

    def _may_overwrite(self, value: Value, old: Value) -> bool:
        """Return whether all readers of the old contents can come before the work that makes the
        new.
        """
        maker = self._maker[value]
        item = self._work[maker]
        readers = self._aliases.readers.get(old, [])
        if maker in readers and not _in_place(item, old, value, self._placement):
            return False
        others = [r for r in readers if r != maker]
        if not all(self._aliases.allows(r, maker) for r in others):
            return False
        for r in others:
            if not self._aliases.require(r, maker):
                return False
            item.after.append(r)
        for check in self._checks:
            if check != maker and self._aliases.require(check, maker):
                item.after.append(check)
        return True

    def _copy(self, value: Value, home: Home) -> Value:
        """Work that copies the value to a place of its own, after all who read what lies there."""
        made = Value(value.type, None, 0, value.name)
        found = lower(self._compiler, COPY, (value,))
        lowered = found if isinstance(found, Lowered) else None
        item = Work(COPY, (value,), (made,), lowered, "copy")
        if home.kind == "input":
            item.after += self._checks
            item.after += self._aliases.readers.get(self._graph.inputs[home.index], [])
        self._work.append(item)
        self._maker[made] = len(self._work) - 1
        self._aliases.append(self._maker.get(self._placement.part(value).root), value)
        self._placement.homes[made] = home
        return made


def _in_place(item: Work, old: Value, new: Value, placement: Placement) -> bool:
    """Return whether the work may write `new` where it reads `old`, at every place it reads it."""
    if item.lowered is None:
        return False
    allowed = set(item.lowered.in_place)
    outputs = [j for j, v in enumerate(item.outputs) if placement.part(v) == ValuePart(new)]
    inputs = [i for i, v in enumerate(item.inputs) if placement.part(v).root is old]
    return all(
        placement.part(item.inputs[i]) == ValuePart(old) and (i, j) in allowed
        for i in inputs
        for j in outputs
    )


def share_buffers(
    work: Sequence[Work],
    order: Sequence[int],
    placement: Placement,
    spans: Mapping[int, tuple[int, int]],
) -> dict[int, int]:
    """Buffers that may take the place of others: results written where an operand dies.

    Args:
        work: what runs.
        order: of its pieces.
        placement: where values lie; the arena's are looked at.
        spans: the first and the last slot of every piece that has launches.

    Returns:
        For each buffer that is merged, the buffer it becomes.
    """
    merged: dict[int, int] = {}
    users = _users(work, placement, spans)
    for number in order:
        item = work[number]
        if item.lowered is None or number not in spans:
            continue
        taken: set[int] = set()
        for i, j in item.lowered.in_place:
            source, offset = placement.home(item.inputs[i])
            target, shift = placement.home(item.outputs[j])
            if source.kind != "arena" or target.kind != "arena" or offset or shift:
                continue
            mine, theirs = target.index, merged.get(source.index, source.index)
            if mine in merged or theirs in taken or mine == theirs:
                continue
            begins = spans[number][0]
            dies = all(spans[w][1] < begins for w in users[theirs] if w != number)
            only = sum(placement.home(v)[0] == source for v in item.inputs) == 1
            # Buckets of reductions have contents before their last operand is made.
            begun = any(spans[w][0] < begins for w in users[mine])
            alike = is_identical(placement.sizes[mine], placement.sizes[theirs])
            if dies and only and not begun and alike:
                merged[mine] = theirs
                taken.add(theirs)
                users[theirs] |= users[mine]
    return merged


def _users(
    work: Sequence[Work], placement: Placement, spans: Mapping[int, tuple[int, int]]
) -> dict[int, set[int]]:
    """Return for each buffer the work that reads or writes it."""
    users: dict[int, set[int]] = {}
    for number in spans:
        for value in (*work[number].inputs, *work[number].outputs):
            home = placement.home(value)[0]
            if home.kind == "arena":
                users.setdefault(home.index, set()).add(number)
    return users
