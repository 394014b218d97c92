"""Launches on devices other than the host: kernels where there are some, else the host's engines.

An op has one launch per device and element types, and within it a plan for each combination of
shapes, because kernels may refuse by shape.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Protocol

import numpy as np

from treadle.backends.api import Kernel, Operand, Support
from treadle.base.dtype import DType
from treadle.base.errors import DeviceError, OutOfMemory, TreadleError
from treadle.base.types import TensorType
from treadle.engine import fallback
from treadle.engine.choice import Decision, Launch, choose_engine, choose_kernel
from treadle.engine.devices import CompNode
from treadle.ops.creation import Full
from treadle.ops.families import Elementwise
from treadle.ops.movement import Broadcast
from treadle.ops.op import Array, Op, as_tuple
from treadle.runtime.array import DeviceArray, to_device
from treadle.runtime.opened import OpenDevice

Shape = tuple[int, ...]
_MOST_PLANS = 1024


class Plan(Protocol):
    """A launch for operands of certain types, with the reasons for it."""

    decision: Decision

    def __call__(self, *payloads: DeviceArray) -> Any:
        """Run the op."""
        ...


class PlacedLaunch:
    """An op on one device: a plan for each combination of operand shapes, made when first seen."""

    __slots__ = ("_dtypes", "_op", "_where", "plans")

    def __init__(self, op: Op, dtypes: tuple[DType, ...], where: CompNode) -> None:
        self._op = op
        self._dtypes = dtypes
        self._where = where
        self.plans: dict[tuple[Shape, ...], Plan] = {}

    def __call__(self, *payloads: DeviceArray) -> Any:
        """Run the op."""
        shapes = tuple([p.shape for p in payloads])
        plan = self.plans.get(shapes)
        if plan is None:
            if len(self.plans) >= _MOST_PLANS:
                self.plans.clear()
            plan = self.plans[shapes] = self._plan(shapes)
        return plan(*payloads)

    def _plan(self, shapes: tuple[Shape, ...]) -> Plan:
        place = self._where.logical_name
        pairs = zip(self._dtypes, shapes, strict=True)
        types = tuple(TensorType(dtype, shape, place) for dtype, shape in pairs)
        return plan_for(self._op, types, self._where)


def plan_for(op: Op, types: tuple[TensorType, ...], where: CompNode) -> Plan:
    """How a device runs an op on operands of these types.

    Raises:
        UnsupportedOp: neither the device nor any engine on the host runs it.
    """
    results = op.infer(*types)
    found = choose_kernel(op, types, results, where.kind)
    if isinstance(found, Kernel):
        return _KernelPlan(op, types, results, found, where)
    if not types:
        return _CreationPlan(op, found, where)
    return _FallbackPlan(op, types, found, where)


# -- kernels -------------------------------------------------------------------------------


class _KernelPlan:
    """Run a device kernel: broadcast operands, allocate results, launch."""

    def __init__(
        self,
        op: Op,
        types: tuple[TensorType, ...],
        results: tuple[TensorType, ...],
        kernel: Kernel,
        where: CompNode,
    ) -> None:
        self.decision = Decision(op, types, where.logical_name, "kernel")
        self._kernel = kernel
        self._device = where.open()
        self._attributes = op.attributes
        self._wide: list[tuple[int, Launch]] = []
        self._ins = list(types)
        self._outs = results
        self._shapes = [tuple(int(d) for d in t.shape) for t in results]
        self._empty = all(t.nbytes == 0 for t in results)
        if isinstance(op, Elementwise):
            self._broadcast(self._outs[0].shape, where)

    def _broadcast(self, shape: Any, where: CompNode) -> None:
        for i, type_ in enumerate(self._ins):
            if type_.shape != shape:
                self._wide.append((i, _widening(type_, shape, where)))
                self._ins[i] = type_.with_shape(shape)

    def __call__(self, *payloads: DeviceArray) -> Any:
        operands = list(payloads)
        made = self._results()
        if not self._empty:
            for i, widen in self._wide:
                operands[i] = widen(operands[i])
            self._launch(made, operands)
        return made[0] if self.decision.op.n_outputs == 1 else made

    def _results(self) -> tuple[DeviceArray, ...]:
        device = self._device
        try:
            return tuple(
                [
                    DeviceArray(device, t.dtype.numpy, shape, block=device.alloc(t.nbytes))
                    for t, shape in zip(self._outs, self._shapes, strict=True)
                ]
            )
        except OutOfMemory as error:
            raise self._out_of_memory(error) from error

    def _launch(self, made: tuple[DeviceArray, ...], operands: list[DeviceArray]) -> None:
        device = self._device
        outs = [Operand(p.buffer, t) for p, t in zip(made, self._outs, strict=True)]
        try:
            ins = [Operand(p.buffer, t) for p, t in zip(operands, self._ins, strict=True)]
            self._kernel.run(device.raw, outs, ins, self._attributes, device.stream)
        except MemoryError as error:
            raise self._out_of_memory(error) from error
        except TreadleError:
            raise
        except Exception as error:
            raise DeviceError(
                self.decision.op.name,
                f"the kernel of {device.name} failed: {type(error).__name__}: {error}",
                saw=self.decision.op.saw(self.decision.types),
                hint="the kernel said it supports this; report it to the backend's authors",
            ) from error

    def _out_of_memory(self, error: MemoryError) -> OutOfMemory:
        op, types = self.decision.op, self.decision.types
        why = (
            error if isinstance(error, OutOfMemory) else OutOfMemory(self._device.name, str(error))
        )
        saw = "; ".join(part for part in (op.saw(types), why.saw) if part)
        hint = why.hint or "use smaller batches or shapes"
        return OutOfMemory(op.name, f"{self._device.name} {why.problem}", saw=saw, hint=hint)


def _widening(type_: TensorType, shape: Any, where: CompNode) -> Launch:
    """How an operand gets the result's shape: an op like any other, so it may fall back, visibly.

    Single elements, such as Python numbers, are spread on the host without remark.
    """
    op = Broadcast(shape)
    found = choose_kernel(op, (type_,), op.infer(type_), where.kind)
    if isinstance(found, Support) and type_.nbytes == type_.dtype.itemsize:
        return partial(_spread, shape=shape, device=where.open())
    return plan_for(op, (type_,), where)


def _spread(payload: DeviceArray, *, shape: Shape, device: OpenDevice) -> DeviceArray:
    wide = np.broadcast_to(payload.host(), shape)
    return DeviceArray(device, payload.dtype, shape, host=wide, fill=_uniform_byte(payload.host()))


# -- the host --------------------------------------------------------------------------------


class _CreationPlan:
    """Make an array on the host; the device copy follows when a kernel asks for it."""

    __slots__ = ("_device", "_on_host", "decision")

    def __init__(self, op: Op, why: Support, where: CompNode) -> None:
        self._on_host, _ = choose_engine(op, (), where.logical_name)
        self._device = where.open()
        self.decision = Decision(op, (), where.logical_name, "host", ((where.kind, why),))

    def __call__(self, *payloads: DeviceArray) -> Any:
        op = self.decision.op
        arrays = as_tuple(self._on_host())
        made = tuple(
            DeviceArray(
                self._device,
                a.dtype,
                a.shape,
                host=a,
                fill=_uniform_byte(a.reshape(-1)[:1]) if isinstance(op, Full) else None,
            )
            for a in arrays
        )
        return made[0] if op.n_outputs == 1 else made


def _uniform_byte(element: Array) -> int | None:
    """The byte that an element consists of, if it is one byte over and over, such as zero."""
    found = set(element.tobytes())
    return found.pop() if len(found) == 1 else None


class _FallbackPlan:
    """Run the op with the host's engines, on copies; results stay on the host until needed."""

    __slots__ = ("_device", "_on_host", "_why", "decision")

    def __init__(
        self, op: Op, types: tuple[TensorType, ...], why: Support, where: CompNode
    ) -> None:
        self._on_host, _ = choose_engine(op, types, where.logical_name)
        self._device = where.open()
        self._why = why
        self.decision = Decision(op, types, where.logical_name, "host", ((where.kind, why),))

    def __call__(self, *payloads: DeviceArray) -> Any:
        decision, device = self.decision, self._device
        row = fallback.admit(decision.op.name, decision.device, self._why)
        charge = partial(fallback.charge, row)
        started = time.perf_counter()
        moved = sum({id(p): p.nbytes for p in payloads if not p.on_host}.values())
        arrays = self._on_host(*[p.host() for p in payloads])
        made = tuple(
            [DeviceArray(device, a.dtype, a.shape, host=a, charge=charge) for a in as_tuple(arrays)]
        )
        fallback.count(row, moved, time.perf_counter() - started)
        return made[0] if decision.op.n_outputs == 1 else made


# -- movement --------------------------------------------------------------------------------


def transfer(target: CompNode) -> Launch:
    """A launch that copies a payload to a device other than the host."""
    return partial(_move, device=target.open())


def _move(payload: Any, *, device: OpenDevice) -> DeviceArray:
    return to_device(payload, device)
