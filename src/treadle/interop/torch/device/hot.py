"""Calls that come often: one program each, and small ones without Python.

The first calls of a kind run op by op (`plans.GraphSteps`). After `HOT` of them the graph is
compiled as one program; results may then differ in their last digits, at the same call in every
run. Where that takes less than Python needs to look at the arguments, native code does that as well
(`native`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from treadle.base.env import TORCH_HOT
from treadle.base.observer import OBSERVER
from treadle.base.process import RUNTIME
from treadle.base.shape import row_major_strides
from treadle.base.types import TensorType
from treadle.engine.execute import Executor
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.graph.ir import Graph, Value
from treadle.interop.torch.device import private
from treadle.interop.torch.device.forms import form_of
from treadle.interop.torch.native.entries import Given, Lies, Made, NativeCall, NativeKernel, key_of
from treadle.interop.torch.native.library import library
from treadle.interop.torch.straight import SMALL
from treadle.interop.torch.strides import placed
from treadle.ops.families import Movement
from treadle.ops.movement import Broadcast

HOT = int(TORCH_HOT.get()) if TORCH_HOT.get().isdecimal() else int(TORCH_HOT.default)
"""Calls of a kind after which it is compiled; 0: never."""


class Seen(NamedTuple):
    """The layout of a tensor, as a program reads it.

    Attributes:
        memory: shape of its input, which is the tensor's in the order of memory.
        axes: of the tensor, in that order.
        shape: of the tensor.
        gathers: whether the tensor has gaps, and is read row by row.
    """

    memory: tuple[int, ...]
    axes: tuple[int, ...]
    shape: tuple[int, ...]
    gathers: bool

    def operand(self, x: GraphOperand) -> GraphOperand:
        """The tensor as ops see it, made of what lies in memory."""
        back = tuple(int(i) for i in np.argsort(self.axes))
        x = x if back == tuple(range(len(back))) else x.transpose(back)
        return x if x.type.shape == self.shape else Broadcast(self.shape)(x)

    def array(self, strided: Any) -> Any:
        """Return the memory of an array with the tensor's shape and strides, in its order."""
        whole = zip(self.axes, self.memory, strict=True)
        moved = strided.transpose(self.axes)
        cut = moved[tuple([slice(0, n) if n < self.shape[a] else slice(None) for a, n in whole])]
        return np.ascontiguousarray(cut)


def seen(tensor: torch.Tensor | float) -> Seen:
    """Return the layout of a tensor of real numbers, or of one such number."""
    if isinstance(tensor, float):
        return Seen((), (), (), False)
    shape = tuple(tensor.shape)
    order = tuple(range(len(shape)))
    place = placed(tensor)
    if place is None:
        gathers = tensor.stride() != row_major_strides(shape)
        return Seen(shape, order, shape, gathers)
    memory = tuple([1 if not place.strides[a] else shape[a] for a in place.axes])
    return Seen(memory, place.axes, shape, False)


class CompiledCall:
    """A call's graph as one program.

    Args:
        graph: of ops; its inputs are tensors.
        reads: how those lie.

    Attributes:
        bound: see `Executor.bound`; None where Python has to run it.
        peak: bytes of scratch memory.
    """

    def __init__(self, graph: Graph, reads: Sequence[Seen]) -> None:
        self.reads = reads
        options = Options(engines=())  # Those that were asked for are for programs.
        runner = Stages(_reading(graph, reads), options=options).compile()
        self._run = runner.run
        self.bound = runner.bound() if isinstance(runner, Executor) else None
        self.peak = runner.peak if isinstance(runner, Executor) else 0

    def __call__(self, strided: Sequence[Any]) -> list[Any]:
        """Results for arrays on the tensors' memory, with their strides."""
        return list(self._run([s.array(a) for s, a in zip(self.reads, strided, strict=True)]))


def _reading(graph: Graph, reads: Sequence[Seen]) -> Graph:
    """A graph whose inputs lie row by row."""
    builder = GraphBuilder("call")
    known: dict[Value, Value] = {}
    for value, how in zip(graph.inputs, reads, strict=True):
        given = builder.input(TensorType(value.type.dtype, how.memory))
        known[value] = how.operand(given).value
    for node in graph.nodes:
        made = builder.copy(node, tuple([known[v] for v in node.inputs]))
        known.update(zip(node.outputs, made.outputs, strict=True))
    builder.output(*[builder.operand(known[v]) for v in graph.outputs])
    return builder.build()


def is_worth_it(graph: Graph, given: Sequence[Any]) -> bool:
    """Return whether a program is faster than op by op; single large ops are compiled anyway."""
    if any(isinstance(t, torch.Tensor) and (t.is_complex() or not t.numel()) for t in given):
        return False
    if torch.are_deterministic_algorithms_enabled():  # One way to compute, whatever it costs.
        return False
    ops = sum(bool(node.inputs) and not isinstance(node.op, Movement) for node in graph.nodes)
    return ops > 1 or is_small(given)


def is_small(given: Sequence[Any], scratch: int = 0) -> bool:
    """Return whether tensors, places of results and scratch memory are few bytes."""
    return scratch + sum(0 if isinstance(x, float) else int(x.nbytes) for x in given) <= SMALL


# -- without Python ----------------------------------------------------------------------------

_KERNELS: dict[Any, NativeKernel] = {}
"""Native kernels by operator."""
_REGISTER: list[Callable[[str, Any], None]] = []


def register_by(register: Callable[[str, Any], None]) -> None:
    """Set the function that tells PyTorch, by name, of kernels that become native."""
    _REGISTER[:] = [register]


def kernel(op: Any, run: Callable[..., Any], *, opens: bool | None = None) -> Any:
    """A kernel of PyTorch for an operator, native where it can be.

    Args:
        op: the operator.
        run: takes it and the arguments.
        opens: whether real numbers among these may change; None: see its form.
    """
    native = library()
    if native is None:
        return partial(run, op)
    if op not in _KERNELS:
        if opens is None:
            form = form_of(op)
            opens = form is not None and form.opened is not None
        _KERNELS[op] = NativeKernel(native, partial(run, op), opens=opens)
    return _KERNELS[op].function


def _sees_bits(name: str) -> bool:
    """Return whether PyTorch hands an operator tensors that are negated by a bit."""
    return name in private.registrations("Negative")


def _may_be_native(op: Any) -> bool:
    name = op.name()
    implicit = private.has_kernel(name, "CompositeImplicitAutograd")
    return not implicit and not _sees_bits(name) and op.namespace == "aten"


class ResultPlace(NamedTuple):
    """The place of a result.

    Attributes:
        dtype: of PyTorch.
        type, device: of a tensor, in DLPack's words.
        shape, strides: of the result.
        nbytes: in memory.
        target: number of the tensor that it is written into; None: it is new.
    """

    dtype: torch.dtype
    type: int
    device: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    nbytes: int
    target: int | None


def add(
    op: Any,
    call: tuple[Any, Any],
    compiled: CompiledCall,
    tensors: Sequence[Any],
    places: Sequence[ResultPlace],
    returns: tuple[Sequence[int], int],
    run: Callable[..., Any],
    *,
    opens: bool,
) -> None:
    """Register a kind of calls that native code runs from now on, where it can.

    Args:
        op: the operator.
        call: arguments and names.
        compiled: the program.
        tensors: of the call, and its numbers that may change.
        places: for each output of the program.
        returns: see `NativeCall`; and their form.
        run: see `kernel`.
        opens: whether real numbers may change.
    """
    native = library()
    if native is None or compiled.bound is None or not _may_be_native(op):
        return
    key = key_of(native, *call, opens=opens)
    if key is None:
        return
    is_new = op not in _KERNELS
    function = kernel(op, run, opens=opens)
    if _KERNELS[op].is_full:
        return
    inputs = [
        Given(i, _lies(tensors[i]) if how.gathers else None) for i, how in enumerate(compiled.reads)
    ]
    outputs = [_made(place, tensors) for place in places]
    _KERNELS[op].add(NativeCall(compiled.bound, inputs, outputs, *returns, key))
    native.wake()
    if is_new and _REGISTER:
        _REGISTER[0](op.name().partition("::")[2], function)


def _lies(tensor: torch.Tensor) -> Lies:
    return Lies(tuple(tensor.shape), tensor.stride(), tensor.itemsize)


def _made(place: ResultPlace, tensors: Sequence[Any]) -> Made:
    lies = Lies(place.shape, place.strides, place.dtype.itemsize)
    into = None if place.target is None else _lies(tensors[place.target])
    return Made(
        lies, place.nbytes, place.type, place.device, place.shape, place.strides, place.target, into
    )


def _look_at_observer() -> None:
    """Send calls through Python, op by op, while an observer watches them."""
    native = library()
    if native is not None:
        native.enable(OBSERVER.now is None)


RUNTIME.after("launches", _look_at_observer)
