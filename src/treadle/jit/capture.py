"""Capture: running a Python function once with symbols in place of arrays, to get its graph.

While a capture is on, every op of the thread appends a node. A tensor handle that the function
reaches is given a symbol for the time being, so whatever holds on to its value (the tape, other
tensors) holds the symbol; when the capture ends, handles that still stand for the symbol they were
given get their arrays back, and those that were rebound are outputs of the program.
"""

from __future__ import annotations

import os
import random
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.base import tree
from treadle.base.array import Array
from treadle.base.errors import TraceError
from treadle.base.garbage import collect_young, promotions, rare_collections
from treadle.base.guards import deciding
from treadle.base.loc import Loc
from treadle.base.log import get_logger
from treadle.base.modes import LOCAL, install_capture
from treadle.base.shape import Shape
from treadle.base.symbol import Decisions, Dim
from treadle.base.types import TensorType
from treadle.engine.devices.names import CompNode, resolve
from treadle.engine.eager.dispatch import EagerType, common_device, eager_type, result_kinds
from treadle.engine.eager.formats import DEFAULT
from treadle.engine.eager.hostdata import as_scalar_array
from treadle.graph.analysis import has_effect
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.graph.gradient import undifferentiable
from treadle.graph.ir import Value
from treadle.graph.value_numbers import Deciding
from treadle.jit.captured import (
    Argument,
    CapturedCall,
    GradOf,
    Guard,
    Holder,
    HostValue,
    Output,
    Source,
    State,
)
from treadle.jit.reach import tensors_reached
from treadle.jit.streams import Streams
from treadle.jit.whereabouts import Whereabouts
from treadle.ops.op import Op, as_tuple
from treadle.ops.transfer import Identity, Transfer
from treadle.runtime.array import to_host
from treadle.runtime.comm import groups
from treadle.tensor import Tensor, wrap


class ManagerInside(TraceError):
    """The function has a manager of its own, so one around it cannot see its ops as one."""


_WITHOUT_VALUES = (
    "choose with F.where or jit.cond, loop with jit.while_loop or jit.scan, show it with "
    "jit.print, return the tensor and read it outside, or leave the function uncompiled"
)


class _Turn:
    """One capture at a time: another thread's would meet its symbols in the handles they share."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def renew(self) -> None:
        """Make the lock anew in a child process, whose holder stayed with the parent."""
        self.lock = threading.RLock()


_TURN = _Turn()
os.register_at_fork(after_in_child=_TURN.renew)


def payload(tensor: Tensor) -> Any:
    """A handle's array, also while a capture of another thread has a symbol in its place."""
    found = tensor._data
    if type(found) is Symbol:
        with _TURN.lock:
            found = tensor._data
    return found


class Symbol:
    """The payload of a tensor whose value is known only when the program runs."""

    __slots__ = ("capture", "dtype", "operand", "shape")

    def __init__(self, capture: Capture, operand: GraphOperand) -> None:
        self.capture = capture
        self.operand = operand
        self.shape = capture.shape_seen(operand.type.shape)
        self.dtype = operand.type.dtype.numpy

    @property
    def nbytes(self) -> int:
        """Bytes of the dense array it stands for."""
        return self.operand.type.nbytes

    def __getattr__(self, name: str) -> Any:
        # What arrays have besides, asked for by code that knows nothing of captures.
        if LOCAL.capture is None:
            raise _astray()
        raise AttributeError(f"a symbol has no {name}")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if LOCAL.capture is None:
            raise _astray()
        array = self.capture.read(self.operand.value)
        return array if dtype is None else array.astype(dtype)

    def __repr__(self) -> str:
        return f"<symbol of {self.operand.type}>"


def _astray() -> TraceError:
    return TraceError(
        "jit",
        "a tensor of a capture is used outside of it",
        hint="compile before other threads use the same tensors, and return what is needed outside",
    )


@dataclass(slots=True)
class _Bound:
    """A handle that was given a symbol, and the array it goes back to."""

    tensor: Tensor
    payload: Any
    symbol: Symbol
    place: int
    """Number of the input, in the order in which they were made."""


class Capture:
    """The hook and the state of one capture; `capture` below runs one."""

    shape_seen: type[tuple[Any, ...]] = tuple  # What the function sees of a shape.
    for_file = False
    is_repeated = False  # A repeated capture has told of numbers that Python draws.

    def __init__(self, name: str) -> None:
        self._builder = GraphBuilder(name, locate=True)
        self._sources: list[Source] = []
        self._where = Whereabouts()
        self._bound: dict[int, _Bound] = {}
        self._literals: dict[Any, GraphOperand] = {}
        self._host: dict[Any, Tensor] = {}
        self._grads: dict[int, tuple[Tensor, Any]] = {}
        self._guards: list[Guard] = []
        if groups.world() is not None:  # Ranks and their number may have become part of the graph.
            self.guard(groups.losses, groups.losses())
        self._slots: list[tuple[Holder, bool]] = []
        self.streams = Streams(self)
        self.endings: list[Callable[[], None]] = []
        self._made: list[weakref.ref[Tensor]] = []
        self._outputs: dict[Any, int] = {}
        self._kinds: list[EagerType] = []
        self._deciding, self._promotions = Deciding(self._builder), promotions()

    # -- what modes.Capturing asks for -----------------------------------------------------

    def apply(self, op: Op, inputs: tuple[Tensor, ...], /) -> tuple[Tensor, ...]:
        """Append an op."""
        operands = [self.operand(t) for t in inputs]
        device = common_device(op, tuple([t._kind for t in inputs]))
        if isinstance(op, Transfer):
            before, device = device, resolve(op.device) if op.device else device
            # The program has its own names of devices: it may run elsewhere, or on the host alone.
            stays = before.memory == device.memory or self._where.follow(operands[0].value, device)
            op = Identity() if stays else Transfer("")
        results = self._wrapped(self._deciding.apply(undifferentiable(op), operands), device)
        if any([t._kind.quantized is not None or t._kind.format is not DEFAULT for t in inputs]):
            _carry(op, inputs, results, device)
        return results

    def binary(self, op: Op, launch: Any, kind: EagerType, x: Tensor, y: Tensor, /) -> Tensor:
        """Append an arithmetic operator."""
        return self.apply(op, (x, y))[0]

    def create(self, op: Op, device: CompNode, /) -> tuple[Tensor, ...]:
        """Append an op without operands."""
        return self._wrapped(self._builder.apply(op, ()), device)

    def born(self, tensor: Tensor, /) -> None:
        """A tensor made of host data inside the function is a constant."""
        if type(tensor._data) is not Symbol:
            tensor._data = Symbol(self, self._builder.constant(to_host(tensor._data)))

    def literal(self, value: Any, kind: EagerType, /) -> Tensor:
        """A 0-d constant; one per value, since the way to an op may ask for it again."""
        array = as_scalar_array(value, kind.dtype)
        key = array.tobytes(), kind
        if key not in self._literals:
            self._literals[key] = self._builder.constant(array)
        return wrap(Symbol(self, self._literals[key]), kind)

    def rebound(self, tensor: Tensor, value: Tensor, /) -> None:
        """Bind a handle that is about to be rebound, so that it is written back."""
        for held in (tensor, value):
            if type(held._data) is not Symbol:
                self.bind(held, State(held))

    def watch_grad(self, tensor: Tensor, /) -> None:
        """Bind the `grad` of a tensor, which is about to be read or replaced."""
        if id(tensor) in self._grads:
            return
        before = tensor.__dict__.get("grad")
        _remember_step(tensor, before)
        self._grads[id(tensor)], holder = (tensor, before), self._holder(tensor)
        if type(tensor._data) is not Symbol or id(tensor) in self._bound:
            self._slots.append((holder, before is None))  # Others are made anew by each call.
        if isinstance(before, Tensor) and type(before._data) is not Symbol:
            self.bind(before, GradOf(holder))

    def _holder(self, tensor: Tensor) -> Holder:
        """The handle, or the argument it is passed as: the next call may pass another one."""
        bound = self._bound.get(id(tensor))
        source = None if bound is None else self._source(bound)
        return source if isinstance(source, Argument) else tensor

    def host_value(
        self,
        key: Any,
        read: Callable[..., Any],
        kind: EagerType,
        shape: tuple[int, ...] = (),
        extents: tuple[Dim, ...] = (),
        /,
    ) -> Tensor:
        """An input that is read from Python at each call."""
        held = self._host.get((key, kind))
        if held is None:
            source = HostValue(read, kind.dtype.numpy, shape, extents)
            operand = self._input(TensorType(kind.dtype, shape), source)
            held = self._host[key, kind] = wrap(Symbol(self, operand), kind)
        return held

    def random_state(self, stream: Any, blocks: Dim, kind: EagerType, /) -> Tensor:
        """The state from which a random op starts."""
        return self.streams.draw(stream, blocks, kind)

    def enter_manager(self, outer: bool, /) -> None:
        """Raise where a manager begins to record while another one around the function records."""
        if outer and LOCAL.hook is self:
            raise ManagerInside(
                "jit",
                "a gradient manager records inside a compiled function, and another one around it",
                hint="keep one of the two",
            )

    def guard(self, read: Callable[[], Any], value: Any, /) -> None:
        """Limit the graph to calls in which `read()` gives `value`."""
        self._guards.append(Guard(read, value))

    def grouped(self, name: str) -> AbstractContextManager[None]:
        """Give the ops appended inside the block to a group."""
        return self._builder.at(self._builder.loc, name, self._builder.called)

    def called(self, name: str) -> AbstractContextManager[None]:
        """Place ops of the block at a node of another format, whose name their results get."""
        return self._builder.at(Loc(name), self._builder.group, name)

    # -- values ----------------------------------------------------------------------------

    def bind(self, tensor: Tensor, source: Source, shape: Shape | None = None) -> Symbol:
        """Give a handle a symbol in place of its array until the capture ends.

        `shape` may have symbolic extents; None means the array's own.
        """
        payload = tensor._data
        type_ = TensorType(tensor._kind.dtype, payload.shape if shape is None else shape)
        symbol = Symbol(self, self._input(type_, source, tensor.name, tensor._kind.device))
        if isinstance(source, State) and tensor._kind.quantized is not None:
            # Scales are constants of the program.
            self.guard(lambda: tensor._kind.quantized, tensor._kind.quantized)
        self._bound[id(tensor)] = _Bound(tensor, payload, symbol, len(self._sources) - 1)
        tensor._data = symbol
        return symbol

    def _input(
        self, type_: TensorType, source: Source, name: str = "", at: CompNode | None = None
    ) -> GraphOperand:
        operand = self._builder.input(type_, name)
        self._sources.append(source)
        self._where.inputs[operand.value] = at
        return operand

    def operand(self, tensor: Tensor) -> GraphOperand:
        """The graph's value of a tensor; a handle from outside becomes an input."""
        data = tensor._data
        if type(data) is not Symbol:
            data = self.bind(tensor, State(tensor))
        if data.capture is not self:
            raise TraceError(
                "jit",
                "a tensor belongs to a capture that has ended or runs elsewhere",
                hint="return tensors from the compiled function in place of storing them",
            )
        return data.operand

    def _wrapped(self, operands: Sequence[GraphOperand], device: CompNode) -> tuple[Tensor, ...]:
        node = operands[0].value.producer
        if node is not None:
            self._where.nodes[node] = device
        made = tuple([wrap(Symbol(self, o), eager_type(o.type.dtype, device)) for o in operands])
        self._made += [weakref.ref(t) for t in made]
        return made

    def read(self, value: Value) -> Array:
        """The array a value must have if it depends on nothing but constants.

        Raises:
            TraceError: it depends on inputs, so only a run of the program knows it.
        """
        known: dict[Value, Array] = {}
        if not self._fold(value, known):
            raise TraceError(
                "jit",
                "the function reads a value that is known only when the program runs",
                saw=f"{value.type} from {value.producer.op.name if value.producer else 'an input'}",
                hint=_WITHOUT_VALUES,
            ).of_run()
        return known[value]

    def _fold(self, value: Value, known: dict[Value, Array]) -> bool:
        """Compute a value from constants, if that is all it depends on."""
        return _folded(value, known)

    # -- the end ---------------------------------------------------------------------------

    def _output(self, tensor: Tensor) -> int:
        """The number of the output that a tensor's value is; equal values share one."""
        value = self.operand(tensor)
        key = value.value, tensor._kind
        if key not in self._outputs:
            self._outputs[key] = len(self._outputs)
            self._builder.output(value)
            self._kinds.append(tensor._kind)
        return self._outputs[key]

    def finish(self, results: list[Any], shape: tree.Tree, decisions: Decisions) -> CapturedCall:
        """Collect outputs; `results` is emptied, so that only other holders keep tensors alive."""
        found = [Output(self._output(r)) if isinstance(r, Tensor) else r for r in results]
        results.clear()
        gradients, cleared, slots = self._gradients()
        updates = tuple(
            (self._output(b.tensor), b.place)
            for b in list(self._bound.values())
            if b.tensor._data is not b.symbol and not isinstance(self._source(b), GradOf)
        )
        read = (*self._host.values(), *self.streams.now.values())
        known = slots | set(map(id, read)) | set(self._bound)
        escaped = [
            (self._output(tensor), weakref.ref(tensor))
            for tensor in _alive(self._made, known, self._promotions)
        ]
        streams = tuple((self._output(now), s.leave) for s, now in self.streams.now.items())
        order = _order(self._sources)
        place = {i: n for n, i in enumerate(order)}
        self._builder.arrange_inputs(order)
        self._builder.guard(decisions.guards)
        graph, homes = self._builder.build(), self._where.homes()
        at, nodes = list(self._where.inputs.values()), self._builder.appended
        places = tuple(map(self._where.nodes.get, nodes)) if len(homes) > 1 else ()
        return CapturedCall(
            graph,
            tuple(self._sources[i] for i in order),
            tuple(self._kinds),
            tree.unflatten(shape, found),
            tuple((output, place[i]) for output, i in updates),
            gradients,
            cleared,
            tuple(escaped),
            streams,
            tuple(self._guards),
            tuple(self._slots),
            homes[0],
            tuple(at[i] for i in order),
            places,
            pins=decisions.pins,
        )

    def _source(self, bound: _Bound) -> Source:
        return self._sources[bound.place]

    def _gradients(
        self,
    ) -> tuple[tuple[tuple[int, Holder], ...], tuple[Holder, ...], set[int]]:
        """Slots that hold something new, slots that were emptied, ids of what slots hold."""
        changed: list[tuple[int, Holder]] = []
        cleared: list[Holder] = []
        held: set[int] = set()
        for tensor, before in self._grads.values():
            after = tensor.grad
            if after is None:
                cleared += [self._holder(tensor)] if before is not None else []
                continue
            held.add(id(after))
            tensor.__dict__["_left_stepped"] = "_stepped" in after.__dict__
            bound = self._bound.get(id(after))
            if bound is None or after._data is not bound.symbol:
                changed.append((self._output(after), self._holder(tensor)))
        return tuple(changed), tuple(cleared), held

    def restore(self) -> None:
        """Give handles their arrays, and slots their gradients, back: the program writes them."""
        for bound in self._bound.values():
            bound.tensor._data = bound.payload
        for tensor, before in self._grads.values():
            tensor.grad = before
        # Symbols that outlive the capture know it, and arrays that it held would be copied.
        self._bound.clear()
        self._grads.clear()


def _folded(value: Value, known: dict[Value, Array]) -> bool:
    """Compute a value from constants, if that is all it depends on."""
    stack = [value]
    while stack:
        node = stack[-1].producer
        if node is None or has_effect(node.op):
            return False
        waiting = [v for v in node.inputs if v not in known]
        if waiting:
            stack += waiting
            continue
        results = as_tuple(node.op.reference(*[known[v] for v in node.inputs]))
        known.update(zip(node.outputs, results, strict=True))
        stack.pop()
    return True


def _alive(made: list[weakref.ref[Tensor]], known: set[int], since: int) -> list[Tensor]:
    """Tensors that somebody outside holds, besides those whose ids are known."""

    def found() -> list[Tensor]:
        alive = [t for reference in made if (t := reference()) is not None]
        return [t for t in alive if id(t) not in known and type(t._data) is Symbol]

    if found():  # Some are only waiting in cycles, which are as young as this capture.
        collect_young(since)
    return found()


def _order(sources: Sequence[Source]) -> list[int]:
    """Inputs that differ from call to call come first; state, which seldom does, comes last."""
    rank = {Argument: 0, HostValue: 1, GradOf: 2}
    return sorted(range(len(sources)), key=lambda i: (rank.get(type(sources[i]), 3), i))


def _carry(op: Op, inputs: Sequence[Tensor], results: Sequence[Tensor], device: CompNode) -> None:
    """Mark results as quantized, and tagged, as they are when ops run one by one."""
    types = [t._data.operand.type for t in inputs], [t._data.operand.type for t in results]
    kinds = result_kinds(op, [t._kind for t in inputs], *types, device)
    for result, kind in zip(results, kinds, strict=True):
        result._kind = kind


@contextmanager
def recording(capture: Capture) -> Iterator[None]:
    """Send this thread's ops to the capture in the block, in place of whoever saw them before."""
    hook, outer = LOCAL.hook, LOCAL.capture
    install_capture(capture)
    try:
        yield
    finally:
        install_capture(outer, hook)


def _bound_arguments(
    recorder: Capture, function: Callable[..., Any], given: Any, shapes: Mapping[int, Shape]
) -> Any:
    """The arguments, with symbols in the tensors among them.

    One that the function also reaches from outside is passed as a handle of its own: the next call
    may pass another tensor, and will still reach this one.
    """
    leaves, structure = tree.flatten(given)
    reached = tensors_reached(function)
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and type(leaf._data) is not Symbol:
            if id(leaf) in reached:
                leaves[i] = leaf = wrap(leaf._data, leaf._kind)
            recorder.bind(leaf, Argument(i), shapes.get(i))
    return tree.unflatten(structure, leaves)


def _remember_step(tensor: Tensor, grad: Tensor | None) -> None:
    """Mark a gradient that the step of a program has used, and left there, as eager steps do."""
    if grad is not None and tensor.__dict__.pop("_left_stepped", False):
        grad.__dict__["_stepped"] = "once"


def _drawn() -> dict[str, Any]:
    """The states of the generators that Python and NumPy share among all."""
    shared: Any = np.random.get_state()
    return {"random": random.getstate(), "numpy.random": (bytes(shared[1]), *shared[2:])}


def _warn_of_frozen_numbers(name: str, before: Mapping[str, Any]) -> None:
    """Say that random numbers became constants of a program."""
    for module, state in _drawn().items():
        if state != before[module]:
            get_logger("jit").warning(
                "%s: numbers drawn from %s are constants of the program, the same at each call; "
                "treadle.random draws new ones", name, module,
            )  # fmt: skip


def capture(
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
    name: str,
    shapes: Mapping[int, Shape] | None = None,
    kind: Callable[[str], Capture] = Capture,
    extents: Mapping[str, int] | None = None,
    every: bool = False,
) -> CapturedCall:
    """The graph of one call; nothing is computed, and handles keep their values.

    Args:
        function: what to run, once.
        args, kwargs: what to run it with; tensors in them become the first inputs.
        name: the graph's name.
        shapes: symbolic shapes of arguments, by their number among the flattened ones.
        kind: makes what records.
        extents: of this call, by symbol: they answer what Python asks about symbolic extents.
        every: whether answers that the ranges of symbols give are guards, too.

    Raises:
        TraceError: the function's course depends on values that only a run would know.
    """
    recorder = kind(name)
    drawn = None if recorder.is_repeated else _drawn()
    with _TURN.lock, rare_collections():
        try:
            with recording(recorder), deciding(extents or {}, every=every) as decisions:
                given, named = _bound_arguments(recorder, function, (args, kwargs), shapes or {})
                results, shape = tree.flatten(function(*given, **named))
                for action in recorder.endings:
                    action()
                if drawn is not None:
                    _warn_of_frozen_numbers(name, drawn)
                return recorder.finish(results, shape, decisions)
        finally:
            recorder.restore()
