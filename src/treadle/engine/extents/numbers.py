"""A plan with numbers for expressions, at given extents: for people, and for host tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from treadle.backends.program import Address, Jump, Run, Step, Together
from treadle.base.symbol import Dim, Expr, evaluate
from treadle.base.types import TensorType
from treadle.engine.compile.memory import Buffer, check_memory, lower_bound
from treadle.engine.compile.stage import check
from treadle.engine.execute.frames import At
from treadle.engine.plan import Facts, HostTask, MemoryPlan, Plan, Span, aligned
from treadle.graph.evaluate import substitute_attributes
from treadle.ops.fused import Fused


def at_extents(plan: Plan, extents: Mapping[str, int], at: At) -> Plan:
    """A plan whose numbers are expressions with those of certain extents.

    Args:
        plan: with expressions.
        extents: by symbol.
        at: what the plan is there; memory is laid out as it says.
    """
    memory = plan.memory
    offsets = at.numbers[: len(memory.open)].tolist()
    names = [b.name for b in memory.open]
    numbers = Numbers({**extents, **dict(zip(names, offsets, strict=True))})
    buffers = [Buffer(numbers.of(b.size), b.start, b.end) for b in memory.open]
    if buffers:
        spans = [(o, b.size, b.start, b.end) for o, b in zip(offsets, buffers, strict=True)]
        memory = MemoryPlan(
            tuple(offsets),
            at.peak,
            max(lower_bound(buffers), memory.least),
            sum(aligned(b.size) for b in buffers),
            "by order",
            tuple(spans),
            (),
            memory.least,
        )
    return replace(
        plan,
        steps=numbers.steps(plan.steps),
        host=tuple(map(numbers.task, plan.host)),
        memory=memory,
        facts=tuple(map(numbers.facts, plan.facts)),
    )


def prove(plan: Plan) -> None:
    """Hold a plan with numbers against what memory and launches together promise.

    Raises:
        CompileError: it breaks a promise.
    """
    check(plan)
    spans = plan.memory.spans
    # Where all sizes are numbers, offsets are those of values, of which some share a span.
    placed = replace(plan.memory, offsets=tuple([offset for offset, *_ in spans]))
    check_memory([Buffer(size, start, end) for _, size, start, end in spans], placed)


class Numbers:
    """Evaluates expressions, each of them once.

    Args:
        values: of all symbols.
    """

    def __init__(self, values: Mapping[str, int]) -> None:
        self._values = values
        self._atoms: dict[Any, int] = {}
        self._known: dict[Expr, int] = {}

    def of(self, x: Dim) -> int:
        """The number that an extent is."""
        if not isinstance(x, Expr):
            return x
        found = self._known.get(x)
        if found is None:
            found = self._known[x] = evaluate(x, self._values, self._atoms)
        return found

    def steps(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        """Steps with numbers in them."""
        return tuple([self._step(s) for s in steps])

    def _step(self, step: Step) -> Step:
        if isinstance(step, Run):
            return self._run(step)
        if isinstance(step, Together):
            return replace(step, runs=tuple([self._run(r) for r in step.runs]))
        if isinstance(step, Jump) and step.unless is not None:
            return Jump(step.target, self.address(step.unless))
        return step

    def _run(self, run: Run) -> Run:
        given = [self.address(a) if isinstance(a, Address) else self.of(a) for a in run.arguments]
        return Run(run.kernel, tuple(given), self.of(run.items), run.serial, run.label)

    def address(self, x: Address) -> Address:
        """An address with a number for its offset."""
        return x if type(x.offset) is int else Address(x.base, self.of(x.offset))

    def type(self, x: TensorType) -> TensorType:
        """A type with numbers for its extents."""
        return x if x.is_static else x.with_shape(tuple([self.of(d) for d in x.shape]))

    def task(self, task: HostTask) -> HostTask:
        """A host task with numbers."""

        def placed(
            operands: Sequence[tuple[Address, TensorType]],
        ) -> tuple[tuple[Address, TensorType], ...]:
            return tuple([(self.address(a), self.type(t)) for a, t in operands])

        op = task.op  # A segment serves all extents.
        if not (isinstance(op, Fused) and op.is_segment):
            op = substitute_attributes(op, self._attribute)
        return replace(task, op=op, inputs=placed(task.inputs), outputs=placed(task.outputs))

    def _attribute(self, value: Any) -> Any:
        if isinstance(value, Expr):
            return self.of(value)
        if isinstance(value, TensorType):
            return self.type(value)
        if isinstance(value, tuple):
            made = tuple([self._attribute(v) for v in value])
            return value if all(a is b for a, b in zip(made, value, strict=True)) else made
        return value

    def facts(self, facts: Facts) -> Facts:
        """Return the facts about a step, with numbers."""
        return replace(
            facts,
            reads=self._spans(facts.reads),
            writes=self._spans(facts.writes),
            flops=self.of(facts.flops),
            nbytes=self.of(facts.nbytes),
            members=tuple([self.facts(m) for m in facts.members]),
            scratch=self._spans(facts.scratch),
            replaceable=tuple([(self._span(a), self._span(b)) for a, b in facts.replaceable]),
        )

    def _spans(self, spans: Sequence[Span]) -> tuple[Span, ...]:
        return tuple([self._span(s) for s in spans])

    def _span(self, span: Span) -> Span:
        return Span(span.base, self.of(span.offset), self.of(span.nbytes))
