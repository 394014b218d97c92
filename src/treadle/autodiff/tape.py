"""The tape: what each thread's recording remembers of the ops that run.

Every traced tensor points to the node that made it, and a node to the traces of its inputs, so
whatever nobody can reach any more is freed while recording goes on. The tape itself holds nodes
weakly, to take their contents away when the last manager releases.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from treadle.autodiff.eviction import Keeper, ResultReference, Results, Values, keeper_of_recording
from treadle.base.loc import Loc, user_location
from treadle.base.modes import LOCAL, install
from treadle.engine.eager.dispatch import EagerType, Launch
from treadle.ops.op import Op, Pullback
from treadle.ops.reverse import TapeEntry
from treadle.tensor import Tensor, execute, wrap

EVERYONE = 1 << 60
"""Visibility of ordinary ops: managers of every depth see them."""

Saved = tuple[Any, EagerType, Any]
"""A tensor's value at one moment: payload, eager type, trace."""


class Rule(Protocol):
    """The interface of ops and user functions for backward."""

    @property
    def name(self) -> str:
        """Name for messages."""
        ...

    def vjp(self, at: Pullback[Tensor], /) -> tuple[Tensor | None, ...]:
        """One cotangent per input, None where there is none."""
        ...


class TapeNode:
    """One recorded op: saved inputs and outputs, position in time, who may look through it.

    A node without a rule is a leaf: an attached tensor's value when recording began. Results are
    traced as (node, index).
    """

    __slots__ = ("__weakref__", "inputs", "limit", "outputs", "rule", "seq")

    def __init__(
        self,
        rule: Rule | None,
        inputs: tuple[Saved, ...],
        outputs: tuple[tuple[Any, EagerType], ...],
        seq: int,
        limit: int,
    ) -> None:
        self.rule = rule
        self.inputs = inputs
        self.outputs = outputs
        self.seq = seq
        self.limit = limit

    @property
    def alive(self) -> bool:
        """True if the recording still goes on."""
        return self.limit >= 0

    def clear(self) -> None:
        """Drop everything that is saved; traces that still point here count as constants."""
        self.limit = -1
        self.inputs = ()
        self.outputs = ()

    def step(self) -> TapeEntry[Tensor]:
        """The node as the generic reverse walk sees it."""
        keys = tuple([s[2] if s[2] is not None and s[2][0].alive else None for s in self.inputs])
        outputs = tuple([(self, i) for i in range(len(self.outputs))])
        return TapeEntry(self.rule, keys, outputs, self._values)  # type: ignore[arg-type]

    def _values(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        inputs = tuple([wrap(*saved) for saved in self.inputs])
        outputs = tuple([wrap(p, k, (self, i)) for i, (p, k) in enumerate(self.outputs)])
        return inputs, outputs


class KeptNode(TapeNode):
    """A node whose results may be dropped and computed again."""

    __slots__ = ("results",)
    results: Results

    def clear(self) -> None:
        """Drop everything that is saved, and the results."""
        super().clear()
        del self.results

    def _values(self) -> Any:
        made = [
            (ResultReference(self.results, i), k, (self, i))
            for i, (_, k) in enumerate(self.outputs)
        ]
        return Values(self.inputs), Values(made)


_COUNT = itertools.count(1)
_PRUNE_EVERY = 4095
"""Bits of `seq` that are all 0 when the log is looked through: every 4,096 nodes."""
_ref = weakref.ref


class Tape:
    """One thread's recording: an op hook that adds nodes while any manager records."""

    def __init__(self) -> None:
        self.depth = 0
        self.managers = 0
        self.limit = EVERYONE
        self.locate = False
        self.watch: Any = None
        self.keeper: Keeper | None = None
        self.places: dict[int, Loc] = {}
        """The user's line of every node, by `seq`, while `locate` asks for it."""
        self.owed: list[Tensor] = []
        """Results that no output depends on and backward goes through: others wait for it there."""
        self.involved: list[Tensor] = []
        """Values whose gradients nobody here wants and backward computes, for the same reason."""
        self._log: list[weakref.ref[TapeNode]] = []
        self._kept = 0

    # -- the hook --------------------------------------------------------------------------

    def binary(self, op: Op, launch: Launch, kind: EagerType, x: Tensor, y: Tensor, /) -> Tensor:
        """An arithmetic operator, with its launch already found."""
        if self.watch is not None or LOCAL.capture is not None or self.keeper is not None:
            return self.apply(op, (x, y))[0]
        data = launch(x._data, y._data)
        tx, ty = x._trace, y._trace
        if (tx is None and ty is None) or not kind.dtype.is_float:
            return wrap(data, kind)
        saved = (x._data, x._kind, tx), (y._data, y._kind, ty)
        node = TapeNode(op, saved, ((data, kind),), next(_COUNT), self.limit)
        self._log.append(_ref(node))
        if not node.seq & _PRUNE_EVERY:
            self._prune()
        return wrap(data, kind, (node, 0))

    def unary(self, op: Op, launch: Launch, kind: EagerType, x: Tensor, /) -> Tensor:
        """An op of one operand, with its launch already found."""
        if self.watch is not None or LOCAL.capture is not None or self.keeper is not None:
            return self.apply(op, (x,))[0]
        data, trace = launch(x._data), x._trace
        if trace is None or not kind.dtype.is_inexact:
            return wrap(data, kind)
        node = TapeNode(op, ((x._data, x._kind, trace),), ((data, kind),), next(_COUNT), self.limit)
        self._log.append(_ref(node))
        if not node.seq & _PRUNE_EVERY:
            self._prune()
        return wrap(data, kind, (node, 0))

    def apply(self, op: Op, inputs: tuple[Tensor, ...], /) -> tuple[Tensor, ...]:
        """Any other op."""
        began = time.perf_counter() if self.keeper is not None else 0.0
        results = execute(op, inputs)
        if any([x._trace is not None for x in inputs]):
            node = self.record(op, inputs, results)
            if type(node) is KeptNode:
                node.results.cost = time.perf_counter() - began
        if self.watch is not None:
            self.watch(op, inputs, results)
        return results

    def record(
        self, rule: Rule, inputs: Sequence[Tensor], results: Sequence[Tensor]
    ) -> TapeNode | None:
        """Add a node and trace the floating results to it."""
        if not any(r._kind.dtype.is_inexact for r in results):
            return None
        node = (self._node if self.keeper is None else self._kept_node)(rule, inputs, results)
        self._log.append(_ref(node))
        if not node.seq & _PRUNE_EVERY:
            self._prune()
        if self.locate:
            self.places[node.seq] = user_location()
        for i, result in enumerate(results):
            if result._kind.dtype.is_inexact:
                result._trace = (node, i)
        return node

    def _node(self, rule: Rule, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> TapeNode:
        saved = tuple([(x._data, x._kind, x._trace) for x in inputs])
        made = tuple([(r._data, r._kind) for r in results])
        return TapeNode(rule, saved, made, next(_COUNT), self.limit)

    def _kept_node(
        self, rule: Rule, inputs: Sequence[Tensor], results: Sequence[Tensor]
    ) -> TapeNode:
        """A node that holds its results alone: those who read them find them there."""
        if self.keeper is None or LOCAL.capture is not None:
            return self._node(rule, inputs, results)
        saved = []
        for x in inputs:
            held, source = x._data, None if x._trace is None else x._trace[0]
            if type(source) is KeptNode and source.alive:
                held = ResultReference(source.results, x._trace[1])
            saved.append((held, x._kind, x._trace))
        made = tuple([(None, r._kind) for r in results])
        node = KeptNode(rule, tuple(saved), made, next(_COUNT), self.limit)
        op = rule if isinstance(rule, Op) else None
        node.results = self.keeper.keep(op, node.inputs, [r._data for r in results], 0.0)
        return node

    def leaf(self, tensor: Tensor) -> tuple[TapeNode, int]:
        """The trace of a tensor's present value, made now where it has none."""
        trace = tensor._trace
        if trace is None or not trace[0].alive:
            node = TapeNode(None, (), (), next(_COUNT), EVERYONE)
            self._log.append(_ref(node))
            tensor._trace = trace = (node, 0)
        found: tuple[TapeNode, int] = trace
        return found

    def _prune(self) -> None:
        """Drop references to nodes that are gone, once the log has doubled since the last time."""
        if len(self._log) > 2 * self._kept:
            self._log = [r for r in self._log if r() is not None]
            self._kept = len(self._log)

    # -- managers --------------------------------------------------------------------------

    def enter(self) -> int:
        """Start recording for a manager; returns its depth."""
        if LOCAL.capture is not None:
            LOCAL.capture.enter_manager(self.managers > 0)
        if self.managers == 0:
            install(self)
            self.keeper = keeper_of_recording()
        self.managers += 1
        self.depth += 1
        return self.depth

    def leave(self) -> None:
        """A manager stops; the last one takes all saved values away."""
        self.managers -= 1
        self.depth -= 1
        if self.managers:
            return
        if LOCAL.hook is self and self.watch is None:
            install(None)
        self.places.clear()
        self.owed.clear()
        self.involved.clear()
        self.keeper = None
        log, self._log, self._kept = self._log, [], 0
        for reference in log:
            node = reference()
            if node is not None:
                node.clear()

    def now(self) -> int:
        """A moment: nodes made later have a larger `seq`."""
        return next(_COUNT)

    def ancestors(self, traces: Sequence[Any], since: int, depth: int) -> list[TapeNode]:
        """Nodes the traces depend on, oldest first, as a manager of `depth` may see them."""
        seen: set[TapeNode] = set()
        stack = [t[0] for t in traces if t is not None]
        while stack:
            node = stack.pop()
            if node in seen or node.rule is None or not node.alive:
                continue
            if node.seq < since or node.limit < depth:
                continue
            seen.add(node)
            stack += [s[2][0] for s in node.inputs if s[2] is not None]
        return sorted(seen, key=lambda n: n.seq)

    @contextmanager
    def visible_below(self, depth: int) -> Iterator[None]:
        """Show ops in the block to managers alone that opened before `depth`, if there are any."""
        before, hook = self.limit, LOCAL.hook
        self.limit = min(before, depth - 1)
        if self.limit < 1 and hook is self and self.watch is None:
            install(None)
        try:
            yield
        finally:
            self.limit = before
            if LOCAL.hook is not hook:
                install(hook)


class _Tapes(threading.local):
    """One tape per thread, made when first asked for."""

    tape: Tape | None = None


_TAPES = _Tapes()


def current() -> Tape:
    """Return this thread's tape."""
    if _TAPES.tape is None:
        _TAPES.tape = Tape()
    return _TAPES.tape


@contextmanager
def no_grad() -> Iterator[None]:
    """Record nothing on this thread inside the block."""
    hook = LOCAL.hook
    recording = isinstance(hook, Tape)
    if recording:
        install(None)
    try:
        yield
    finally:
        if recording:
            install(hook)


def need_tape() -> None:
    """Run a function op by op that is captured to be differentiated from outside.

    Its graph does not hold what the caller adds to the tape, such as a gradient the user wrote.
    """
    if LOCAL.capture is not None and not isinstance(LOCAL.hook, Tape):
        LOCAL.capture.enter_manager(current().managers > 0)


def owe(result: Tensor) -> None:
    """Register a result without use in this process, for backward to start from with zeros.

    So it is with what was sent to another process, which sends its gradient back.
    """
    if result._trace is not None and result._trace[0].alive:
        current().owed.append(result)


def involve(value: Tensor) -> None:
    """Register a value made here, for backward to compute its gradient by its op's rule."""
    tape = current()
    if tape.managers:
        tape.leaf(value)
        tape.involved.append(value)


def stop_gradient(x: Tensor) -> Tensor:
    """The same value as a constant; `x.detach()` under the name other frameworks use."""
    return x.detach()
