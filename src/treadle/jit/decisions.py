"""`explain`: who would run an op, or every op of a function, and why; nothing is run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.base.errors import UnsupportedOp
from treadle.base.table import lines
from treadle.base.types import TensorType
from treadle.engine.devices.names import CompNode, default_device
from treadle.engine.eager import dispatch
from treadle.engine.eager.choice import Decision, describe_refusal
from treadle.engine.eager.forced import near
from treadle.engine.options import Options
from treadle.inspect.devices import why_not
from treadle.jit.compiled import Compiled
from treadle.ops.constant import Constant
from treadle.ops.op import REGISTRY, Op
from treadle.ops.transfer import Transfer
from treadle.tensor import Tensor


@dataclass(frozen=True)
class Explained:
    """Result of `explain`; prints who was asked, the answers, and who runs it.

    Attributes:
        name: of the op or function.
        decisions: one for each op on operands of other types, broadcasts of operands included.
        counts: how often each of them runs, in the same order.
    """

    name: str
    decisions: tuple[Decision, ...]
    counts: tuple[int, ...]

    def __str__(self) -> str:
        if len(self.decisions) == 1 and self.counts == (1,):
            return _one(self.decisions[0])
        rows = [
            (d.subject, ", ".join(map(str, d.types)), str(n), d.winner, why_not(d))
            for d, n in zip(self.decisions, self.counts, strict=True)
        ]
        hosts = sum(n for d, n in zip(self.decisions, self.counts, strict=True) if _falls(d))
        text = f"{self.name}: {sum(self.counts)} ops, {hosts} fall back to the host"
        header = ("op", "operands", "times", "runs on", "asked before")
        return "\n".join((text, *lines(header, rows, reasons=True)))

    __repr__ = __str__


def _falls(decision: Decision) -> bool:
    return decision.runner == "host" and bool(decision.types)


def _one(decision: Decision) -> str:
    head = f"{decision.op} on {decision.device}: {decision.op.saw(decision.types)}".rstrip(": ")
    asked = [f"  asked: {who}  {describe_refusal(why)}" for who, why in decision.refusals]
    forced = [f"  forced by {decision.forced}"] if decision.forced else []
    return "\n".join((head, *asked, *forced, f"  runs:  {decision.winner}"))


def explain(what: str | Op | Callable[..., Any], /, *args: Any, **kwargs: Any) -> Explained:
    """Explain which kernel or engine runs an op, or every op of a function, in eager mode.

    Nothing is run. Functions are captured, so they must not depend on values.

    Args:
        what: an op, the name of one without attributes that must be given, a function, a module,
            or a compiled function (whose own `explain` says what became of its program).
        args, kwargs: what it would be called with.

    Returns:
        The decisions, which print as text.

    Raises:
        UnsupportedOp: nothing runs an op, or there is no op of this name.
        TraceError: the function cannot be captured.
        TreadleError: the operands do not fit the op.

    Example:
        >>> x = mge.tensor([1.0, 2.0], device="cpux")
        >>> mge.explain("add", x, x)
        add on cpux:0: x float32[2]@cpux:0, y float32[2]@cpux:0
          runs:  engine cpu
    """
    if isinstance(what, str):
        if what not in REGISTRY:
            raise UnsupportedOp("explain", f"there is no op {what!r}", hint=near(what))
        what = REGISTRY[what]()
    if isinstance(what, Op):
        return _of_decisions(what.name, [(_of_op(what, args), 1)])
    function = what._function if isinstance(what, Compiled) else what
    name = str(getattr(function, "__name__", type(function).__name__))
    captured = Compiled(_plain(function), Options()).variant(args, kwargs).captured
    nodes = captured.graph.nodes
    places = captured.places or (captured.home,) * len(nodes)
    counted: Counter[tuple[Op, tuple[TensorType, ...], CompNode]] = Counter()
    for node, place in zip(nodes, places, strict=True):
        if not isinstance(node.op, Constant | Transfer):
            where = place or captured.home
            counted[node.op, tuple(_placed(v.type, where) for v in node.inputs), where] += 1
    return _of_decisions(name, [(dispatch.decision(*key), n) for key, n in counted.items()])


def _of_decisions(name: str, found: Sequence[tuple[Decision, int]]) -> Explained:
    """Return the explanation, with what runs before each op, in order."""
    counted: Counter[Decision] = Counter()
    for decision, n in found:
        for one in (*decision.before, decision):
            counted[one] += n
    return Explained(name, tuple(counted), tuple(counted.values()))


def _placed(type_: TensorType, where: CompNode) -> TensorType:
    """The type with its device, which graphs leave out where there is one device only."""
    return TensorType(type_.dtype, type_.shape, where.logical_name)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function without what else a module or an object is."""

    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return called


def _of_op(op: Op, operands: tuple[Any, ...]) -> Decision:
    tensors = [x if isinstance(x, Tensor) else Tensor(x) for x in operands]
    types = tuple(x.type for x in tensors)
    op.infer(*types)
    if not tensors:
        return dispatch.decision(op, (), default_device())
    where = dispatch.common_device(op, tuple(x._kind for x in tensors))
    return dispatch.decision(op, types, where)


__all__ = ["Explained", "explain"]
