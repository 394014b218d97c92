"""A plan whose numbers are expressions, as words that are written once.

Every number that depends on extents is an entry of the table of bases behind those of memory: an
integer argument is such an entry and a constant, an address is an entry that begins as the sum of
a base and an offset. Code computes the entries from a call's extents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from treadle.backends.program import Address, Jump, Run, Step, Together
from treadle.base.arithmetic import (
    ADD,
    DONE,
    MOST,
    MULTIPLY,
    ZERO,
    ExpressionWriter,
    Rows,
    evaluate,
)
from treadle.base.extent import Symbol
from treadle.base.symbol import Dim, Expr, Relation
from treadle.engine.extents.cells import Cell
from treadle.engine.extents.ordering import placed
from treadle.engine.plan import CHECK, HostTask, MemoryPlan, OpenBuffer, Plan, aligned
from treadle.engine.scheme import Registers, Scheme
from treadle.ops.check import CheckIndices

Shape = tuple[Dim, ...]


def numbered(
    plan: Plan, results: Sequence[Shape], symbols: Sequence[str], guards: Sequence[Relation]
) -> tuple[Plan, Scheme]:
    """A plan with entries of its table in place of expressions, and what computes them.

    Args:
        plan: with expressions of these symbols, and of offsets.
        results: extents of the results.
        symbols: names of extents.
        guards: what must hold for the plan to serve extents.
    """
    made = _Numbering(plan, symbols)
    for guard in guards:
        made.writer.ask(guard)
    made.rewritten()  # Finds what entries there are; their numbers follow from how many.
    steps, host = made.rewritten()
    scheme = made.scheme(plan.memory, symbols, results)
    numbers = made.count + len(made.sums)
    return replace(plan, steps=steps, host=host, facts=(), slots=numbers, sums=made.sums), scheme


def first_placements(scheme: Scheme, cell: Cell) -> tuple[Rows, ...]:
    """Orders of memory that suit the middle, the smallest and the largest extents of a cell."""
    code, ranges = scheme.arithmetic, cell.ranges.values()
    lows, highs = zip(*ranges, strict=True)
    computed = code.rows[code.rows[:, 0] < ZERO]
    found: dict[bytes, Rows] = {}
    for extents in (tuple(cell.hints.values()), lows, highs):
        registers = code.start.copy()
        registers[: len(extents)] = extents
        if scheme.lives and evaluate(computed, registers) == DONE:
            rows = placed(scheme.at, scheme.lives, registers)
            found.setdefault(rows.tobytes(), rows)
    return tuple(found.values())


class _Numbering:
    """Gives numbers entries of the table: first those that code computes, then sums of two."""

    def __init__(self, plan: Plan, symbols: Sequence[str]) -> None:
        self._plan = plan
        self.writer = ExpressionWriter(symbols)
        buffers = plan.memory.open
        self._offsets = {b.name: self.writer.unknown(b.name) for b in buffers}
        self._starts = {b.name: b.offset for b in buffers}
        self._entries = {register: i for i, register in enumerate(self._offsets.values())}
        self._sums: dict[tuple[int, int], int] = {}

    @property
    def count(self) -> int:
        """Entries that code computes."""
        return len(self._entries)

    @property
    def sums(self) -> tuple[tuple[int, int, int], ...]:
        """Entries that are sums of two others; right once all of them are known."""
        first = self._plan.bases + self.count
        found = enumerate(self._sums)
        return tuple((first + k, base, self._plan.bases + entry) for k, (base, entry) in found)

    def rewritten(self) -> tuple[tuple[Step, ...], tuple[HostTask, ...]]:
        """Steps and host tasks with entries in them, as far as those are known."""
        self._sums = {}  # Their numbers begin behind the entries that are known by now.
        return tuple(map(self._step, self._plan.steps)), tuple(map(self._task, self._plan.host))

    def _step(self, step: Step) -> Step:
        if isinstance(step, Run):
            return self._run(step)
        if isinstance(step, Together):
            return replace(step, runs=tuple(map(self._run, step.runs)), ends=self._ends(step))
        if isinstance(step, Jump) and step.unless is not None:
            return replace(step, unless=self._address(step.unless))
        return step

    def _ends(self, step: Together) -> tuple[int, ...]:
        """Return the entries that hold how many units there are up to each run's last."""
        if step.serial or not any(isinstance(run.items, Expr) for run in step.runs):
            return ()
        units: Dim = 0
        ends = []
        for run, grain in zip(step.runs, step.grains, strict=True):
            units += 1 if run.serial else -(-run.items // grain)
            ends.append(self._base(units))
        return tuple(ends)

    def _run(self, run: Run) -> Run:
        arguments = (
            self._address(a) if isinstance(a, Address) else self._argument(a) for a in run.arguments
        )
        made = replace(run, arguments=tuple(arguments))
        if not isinstance(run.items, Expr):
            return made
        return replace(made, items=1, counted=self._base(run.items))

    def _base(self, x: Dim) -> int:
        """The base that holds a number."""
        return self._plan.bases + self._entries.setdefault(self.writer.of(x), len(self._entries))

    def _argument(self, x: Dim) -> Address | int:
        """A base and a constant, so that expressions that differ in that share one."""
        if not isinstance(x, Expr):
            return x
        plus = x.terms[-1][1] if not x.terms[-1][0] else 0
        return Address(self._base(x - plus), plus)

    def _address(self, x: Address) -> Address:
        """The entry of a buffer's start, or of what lies in it, and a constant."""
        base, offset = x.base, x.offset
        if not isinstance(offset, Expr):
            return x
        for name in [str(a) for atoms, _ in offset.terms for a in atoms if isinstance(a, Symbol)]:
            if name in self._offsets:
                base = self._sum(base, self._entries[self._offsets[name]])
                offset = offset - self._starts[name]
                break
        inside = self._argument(offset)
        if isinstance(inside, Address):
            return Address(self._sum(base, inside.base - self._plan.bases), inside.offset)
        return Address(base, inside)

    def _sum(self, base: int, entry: int) -> int:
        """The entry that is a base and a number."""
        found = self._sums.setdefault((base, entry), len(self._sums))
        return self._plan.bases + self.count + found

    def _task(self, task: HostTask) -> HostTask:
        inputs = tuple((self._address(a), t) for a, t in task.inputs)
        outputs = tuple((self._address(a), t) for a, t in task.outputs)
        op = task.op
        if task.phase == CHECK and isinstance(op, CheckIndices):
            op = op.replace(low=0, high=0)  # Its launch has the range, and the graph tells of it.
        return replace(task, op=op, inputs=inputs, outputs=outputs)

    def scheme(
        self, memory: MemoryPlan, symbols: Sequence[str], results: Sequence[Shape]
    ) -> Scheme:
        """The code, with registers in their places."""
        writer = self.writer
        shapes = [[writer.of(d) for d in shape] for shape in results]
        sizes = [writer.of(aligned(b.size)) for b in memory.open]
        bound = writer.of(0)
        for alive in _alive(memory.open, sizes, writer):
            bound = writer.apply(MOST, bound, alive)
        least, peak = writer.of(memory.peak), writer.room()
        ends = [writer.room() for _ in sizes]
        made, at = writer.finished(self._entries)
        registers = Registers(
            at[writer.of(0)],
            at[least],
            tuple(at[r] for r in sizes),
            tuple(at[r] for r in self._offsets.values()),
            tuple(at[r] for r in ends),
            at[peak],
            at[bound],
        )
        lives = tuple((b.start, b.end) for b in memory.open)
        places = tuple(tuple(at[r] for r in shape) for shape in shapes)
        return Scheme(tuple(symbols), made, registers, lives, places)


def _alive(
    buffers: Sequence[OpenBuffer], sizes: Sequence[int], writer: ExpressionWriter
) -> Iterator[int]:
    """Registers of the bytes that are needed at each step at which buffers begin to be."""
    minus = writer.number(-1)
    changes: dict[int, tuple[list[int], list[int]]] = {}
    for buffer, size in zip(buffers, sizes, strict=True):
        changes.setdefault(buffer.start, ([], []))[0].append(size)
        changes.setdefault(buffer.end + 1, ([], []))[1].append(size)
    alive = writer.number(0)
    for _, (begun, ended) in sorted(changes.items()):
        for size in ended:
            alive = writer.apply(ADD, alive, writer.apply(MULTIPLY, size, minus))
        for size in begun:
            alive = writer.apply(ADD, alive, size)
        if begun:
            yield alive
