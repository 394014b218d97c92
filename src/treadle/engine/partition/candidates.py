"""Candidates: every engine is asked about every node once, and its reasons are kept."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from treadle.backends.api import Engine, Support, no, yes
from treadle.backends.program import CompilingEngine
from treadle.backends.segments import KeepingEngine, SegmentEngine
from treadle.base.errors import GraphError
from treadle.base.types import TensorType
from treadle.engine.eager.choice import answer
from treadle.engine.partition.claims import Claims
from treadle.graph.cells import is_scalar_op
from treadle.graph.ir import Node
from treadle.ops.border import Border
from treadle.ops.composite import Composite
from treadle.ops.constant import Constant
from treadle.ops.control import ControlFlow
from treadle.ops.families import Reduce
from treadle.ops.fused import Fused
from treadle.ops.op import REGISTRY, Op
from treadle.ops.update import Update


class Candidates:
    """The engines that may run a program, best first.

    Args:
        engines: who may.
        forced: names of ops that the reference engine runs, whoever else could.
        claims: what engines want that look at whole programs.

    Raises:
        GraphError: there is no engine, or no op of a name.
    """

    def __init__(
        self, engines: Sequence[Engine], forced: Sequence[str] = (), claims: Claims | None = None
    ) -> None:
        if not engines:
            raise GraphError("partition", "there is no engine", hint="unset TREADLE_BACKENDS")
        for name in forced:
            if name not in REGISTRY:
                near = ", ".join(get_close_matches(name, REGISTRY)) or "those of docs/ops.md"
                raise GraphError("force_fallback", f"there is no op {name!r}", hint=near)
        self.engines = tuple(engines)
        self.claims = claims or Claims()
        self._forced = frozenset(forced)
        self._keeping = [e for e in engines if isinstance(e, KeepingEngine)]
        self._known: dict[tuple[str, Op, tuple[TensorType, ...]], Support] = {}

    def support(self, node: Node, engine: Engine) -> Support:
        """Return whether an engine runs a node, or why not."""
        if isinstance(node.op, (Constant, Border)):
            return yes()
        if node.op.name in self._forced and engine.name != "reference":
            return no("policy", f"force_fallback names {node.op.name}")
        types = tuple(TensorType(v.type.dtype, v.type.shape) for v in node.inputs)
        key = engine.name, node.op, types
        if key not in self._known:
            self._known[key] = self._ask(engine, node.op, types)
        claimed = self.claims.nodes.get(engine.name)
        if claimed is None:
            return self._known[key]
        if node in claimed:
            return yes()
        answer = self._known[key]
        return no("policy", f"{engine.name} does not claim it") if answer else answer

    def _ask(self, engine: Engine, op: Op, types: tuple[TensorType, ...]) -> Support:
        answer = _ask(engine, op, types)
        if answer or not isinstance(engine, CompilingEngine) or not isinstance(op, Composite):
            return answer
        # What was left whole for others is taken apart for this one, if it gets it.
        return yes() if any(e.keeps(op.name) for e in self._keeping) else answer

    def choices(self, node: Node) -> list[int]:
        """The numbers of the engines that run a node, best first.

        Raises:
            GraphError: none does.
        """
        found = [i for i, e in enumerate(self.engines) if self.support(node, e)]
        if not found:
            reasons = (f"{e.name}: {self.support(node, e).message}" for e in self.engines)
            raise GraphError(node.op.name, "no engine runs it", saw="; ".join(reasons), at=node.loc)
        return found


def _ask(engine: Engine, op: Op, types: tuple[TensorType, ...]) -> Support:
    if isinstance(engine, CompilingEngine):
        if isinstance(op, ControlFlow) or is_plain(op, types):
            return yes()  # Programs jump by themselves, and loops need no asking.
        found = engine.compiler().lower(op, types)
        return found if isinstance(found, Support) else yes()
    if not all(t.is_resolved for t in types) and engine.priority > 0:
        return no("dynamic-shape", f"an operand of {op.name} has symbolic extents")
    if isinstance(engine, SegmentEngine):
        return _asked(engine, op, types)
    launch = engine.prepare(op, types)
    return launch if isinstance(launch, Support) else yes()


def _asked(engine: SegmentEngine, op: Op, types: tuple[TensorType, ...]) -> Support:
    """The answer of a segment engine, which gets neither branches nor what is somebody else's."""
    if isinstance(op, ControlFlow):
        return no("op", f"{engine.name} gets no control flow")
    if isinstance(op, Fused):
        return no("policy", f"{op.kind} belongs to another engine")
    return answer(engine.name, engine, "supports", lambda: engine.supports(op, types))


def is_plain(op: Op, types: tuple[TensorType, ...]) -> bool:
    """Return whether an op is a loop that every generator of code has, on types that all have."""
    if not (is_scalar_op(op) or isinstance(op, (Reduce, Update))):
        return False
    return all(t.is_resolved and t.dtype.kind != "complex" for t in types)
