"""The course of a traced call: which ops, in which order, on what, and what the caller gets.

`trace` holds every call against the first one. What it says of one that differs are MegEngine's
words, which its users search for; where it happened, and what to do, stands in notes below them.

What was alive when a call began belongs to its world, not to its course: a gradient that the call
before left, a tensor that it made and that is still held. Calls of different worlds are not
compared.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.base import tree
from treadle.base.errors import TraceError
from treadle.base.loc import Loc
from treadle.graph.ir import op_key
from treadle.jit.captured import CapturedCall, Output, State
from treadle.ops.constant import ArrayData, Constant
from treadle.tensor import Tensor

Given = tuple[str, Any]
"""Origin of an operand: ("internal", (step, output)), ("external", number) or ("const",
content)."""


class CourseError(TraceError):
    """A call of a traced function that differs from the recorded one; says why as MegEngine does.

    Args:
        name: of the function.
        reason: in MegEngine's words.
        where: what was found, and where.
        at: the user's line.
    """

    def __init__(self, name: str, reason: str, where: str, at: Loc | None = None) -> None:
        hint = "pass what changes as a tensor, or leave the function untraced"
        super().__init__(f"trace {name}", reason, saw=where, hint=hint, at=at)
        self.add_note(f"  {self.where}: {where}\n  hint: {hint}\n  at:   {self.at}")

    def _text(self) -> str:
        return f"trace error because {self.problem}"

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (self.where.removeprefix("trace "), self.problem, self.saw, self.at)


def _again(name: str, reason: str, where: str, at: Loc) -> CourseError:
    return CourseError(name, reason, where, at)


@dataclass(frozen=True, slots=True)
class RecordedOp:
    """One op and its operands; `at` is the line that asked for it."""

    op: str
    given: tuple[Given, ...]
    at: Loc | None = None


@dataclass(frozen=True, slots=True)
class Course:
    """One call.

    Attributes:
        steps: its ops.
        read: what the caller gets of them.
        world: what the call found when it began.
    """

    steps: Sequence[RecordedOp]
    read: frozenset[Given]
    world: Any = ()

    def follow(self, name: str, now: Course) -> None:
        """Compare a later call with this one.

        Raises:
            CourseError: it differs.
        """
        for number, step in enumerate(now.steps):
            if number == len(self.steps):
                found = f"op {number} is {step.op}, {number} recorded"
                raise CourseError(name, "too many instructions", found, step.at)
            reason = _difference(self.steps[number], step)
            if reason:
                found = f"op {number} is {_text(step)}, recorded {_text(self.steps[number])}"
                raise CourseError(name, reason, found, step.at)
        if len(now.steps) < len(self.steps):
            missing = self.steps[len(now.steps)]
            found = f"the call ends after {len(now.steps)} ops, before {_text(missing)}"
            raise CourseError(name, "mismature end", found)
        unknown = sorted(now.read - self.read, key=str)
        if unknown:
            found = f"the result is {_operand(unknown[0])}, which no call before returned"
            raise CourseError(name, "data unreadable", found)


def _difference(old: RecordedOp, new: RecordedOp) -> str:
    """Return how recorded ops differ, in MegEngine's words; an empty text if they do not."""
    if old.op != new.op or len(old.given) != len(new.given):
        return "operator mismatch"
    for before, now in zip(old.given, new.given, strict=True):
        if before == now:
            continue
        if before[0] != now[0]:
            article = "internal node" if before[0] == "internal" else f"{before[0]} node"
            return f"expect {article}, got {now[0]}"
        return "tensors not equals" if before[0] == "const" else "input id mismatch"
    return ""


def _text(step: RecordedOp) -> str:
    text = f"{step.op}({', '.join(map(_operand, step.given))})"
    return text if len(text) < 160 else text[:157] + "..."


def _operand(given: Given) -> str:
    kind, what = given
    if kind == "internal":
        number, output = what
        return f"op {number}" if output == 0 else f"op {number}'s output {output}"
    if kind == "external":
        return f"tensor {what}"
    return str(what.array.tolist()) if isinstance(what, ArrayData) and not what.shape else str(what)


class Left:
    """Tensors that calls made and that outlived them."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Tensor]] = {}

    def add(self, references: Iterable[weakref.ref[Tensor]]) -> None:
        """Remember those that are alive."""
        for reference in references:
            tensor = reference()
            if tensor is not None:
                self._known[id(tensor)] = reference

    def count(self, tensors: Iterable[Tensor]) -> int:
        """Return how many of these are among them."""
        found = 0
        for tensor in tensors:
            reference = self._known.get(id(tensor))
            found += reference is not None and reference() is tensor
        return found


def course_of(captured: CapturedCall, left: Left) -> Course:
    """The course of a captured call."""
    graph = captured.graph
    known: dict[Any, Given] = {v: ("external", i) for i, v in enumerate(graph.inputs)}
    steps: list[RecordedOp] = []
    for node in graph.nodes:
        if isinstance(node.op, Constant):
            known[node.output] = "const", node.op.data
            continue
        for i, value in enumerate(node.outputs):
            known[value] = "internal", (len(steps), i)
        given = tuple([known[v] for v in node.inputs])
        steps.append(RecordedOp(op_key(node.op), given, node.loc))
    outputs = [x for x in tree.flatten(captured.results)[0] if isinstance(x, Output)]
    read = [known[graph.outputs[x.index]] for x in outputs]
    empty = tuple([none for _, none in captured.slots])
    state = [s.tensor for s in captured.sources if isinstance(s, State)]
    world = empty, left.count(state)
    return Course(steps, frozenset(g for g in read if g[0] == "internal"), world)


__all__ = ["Course", "CourseError", "Given", "Left", "RecordedOp", "course_of"]
