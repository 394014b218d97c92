"""Launches on devices other than the host: kernels, else generated code, else the host's engines.

An op has one launch per device and element types, and within it a plan for each combination of
shapes, because kernels may refuse by shape.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, Protocol

import numpy as np

from treadle.backends.api import Kernel, Operand, Support
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.base.errors import DeviceError, OutOfMemory, TreadleError, out_of_range
from treadle.base.loc import Loc, user_location
from treadle.base.types import TensorType
from treadle.engine.devices.names import CompNode
from treadle.engine.eager import fallback, tally
from treadle.engine.eager.choice import (
    Decision,
    Launch,
    LaunchChoice,
    check_results,
    choose_engine,
    choose_on_device,
    note,
)
from treadle.engine.eager.guarded import Guarded, Launchable
from treadle.graph.index_findings import finding
from treadle.ops.check import CheckIndices
from treadle.ops.creation import Full
from treadle.ops.families import Elementwise
from treadle.ops.index_numpy import asking
from treadle.ops.movement import Broadcast
from treadle.ops.op import Op, as_tuple
from treadle.runtime.array import DeviceArray, resident, to_device
from treadle.runtime.opened import OpenDevice

Shape = tuple[int, ...]
_MOST_PLANS = 1024
_SHAPE, _OPERAND = attrgetter("shape"), attrgetter("operand")


class PlannedCall(Protocol):
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
        self.plans: dict[tuple[Shape, ...], Launch] = {}

    def __call__(self, *payloads: DeviceArray) -> Any:
        """Run the op."""
        shapes = tuple(map(_SHAPE, payloads))
        plan = self.plans.get(shapes)
        if plan is None:
            if len(self.plans) >= _MOST_PLANS:
                self.plans.clear()
            plan = self.plans[shapes] = self._plan(shapes)
        return plan(*payloads)

    def _plan(self, shapes: tuple[Shape, ...]) -> Launch:
        place = self._where.logical_name
        pairs = zip(self._dtypes, shapes, strict=True)
        types = tuple(TensorType(dtype, shape, place) for dtype, shape in pairs)
        made = plan_for(self._op, types, self._where)
        for decision in (*made.decision.before, made.decision):
            note(decision)
        return made.__call__  # Bound once, since every call of the op comes by here.


def plan_for(
    op: Op, types: tuple[TensorType, ...], where: CompNode, purpose: str = ""
) -> PlannedCall:
    """Return how a device runs an op on operands of these types.

    Args:
        op, types, where: what is to run, and the device.
        purpose: see `Decision`.

    Raises:
        UnsupportedOp: neither the device nor any engine on the host runs it.
    """
    results = op.infer(*types)
    found = choose_on_device(op, types, results, where.kind)
    made: Launchable
    if found.kernel is not None:
        decision = _decision(op, types, found, "kernel", where, purpose)
        made = _KernelPlan(decision, results, found.kernel, where)
    elif found.launch is not None:
        decision = _decision(op, types, found, found.name, where, purpose)
        made = _EnginePlan(decision, results, found.launch, where.open())
    else:
        return _on_host(op, types, found, where, purpose, found.why)
    if type(op).index_ranges is not Op.index_ranges:
        made = _CheckedPlan(made, where)
    return Guarded(made, where.open(), partial(_on_host, op, types, found, where, purpose))


def decision_of(launch: object) -> Decision | None:
    """The decision that a launch came of; None for what is not a plan of this module."""
    if isinstance(launch, Guarded | _CreationPlan | _FallbackPlan):
        return launch.decision
    return None


def host_plan(op: Op, types: tuple[TensorType, ...], where: CompNode, source: str) -> PlannedCall:
    """Return how the host runs an op on operands of a device because `source` wants that."""
    found = LaunchChoice(None, None, "host", (), source)
    return _on_host(op, types, found, where, "", found.why)


def _on_host(
    op: Op,
    types: tuple[TensorType, ...],
    found: LaunchChoice,
    where: CompNode,
    purpose: str,
    why: Support,
) -> PlannedCall:
    """Return how the host runs an op in place of a device."""
    launch, chosen = choose_engine(op, types, where.logical_name, fallen=True)
    decision = replace(
        _decision(op, types, found, "host", where, purpose),
        implementation=chosen.implementation,
    )
    if not types:
        return _CreationPlan(decision, launch, where.open())
    return _FallbackPlan(decision, launch, why, where.open())


def _decision(
    op: Op,
    types: tuple[TensorType, ...],
    found: LaunchChoice,
    runner: str,
    where: CompNode,
    purpose: str,
) -> Decision:
    place, refusals = where.logical_name, found.refusals
    return Decision(op, types, place, runner, refusals, found.name, found.forced, purpose)


# -- kernels -------------------------------------------------------------------------------


class _KernelPlan:
    """Run a device kernel: broadcast operands, allocate results, launch."""

    def __init__(
        self,
        decision: Decision,
        results: tuple[TensorType, ...],
        kernel: Kernel,
        where: CompNode,
    ) -> None:
        self.decision = decision
        op = decision.op
        self._run: Callable[..., object] = kernel.run
        self._device = device = where.open()
        self._raw = device.raw
        self._attributes = op.attributes
        self._wide: list[tuple[int, Launch]] = []
        self._ins = list(decision.types)
        self._outs = [(t, t.dtype.numpy, tuple(int(d) for d in t.shape), t.nbytes) for t in results]
        self._single = self._outs[0] if op.n_outputs == 1 else None
        self._empty = all(t.nbytes == 0 for t in results)
        if isinstance(op, Elementwise):
            self._broadcast(results[0].shape, where)

    def _broadcast(self, shape: Any, where: CompNode) -> None:
        for i, type_ in enumerate(self._ins):
            if type_.shape != shape:
                purpose = f"operand {self.decision.op.operands[i]} of {self.decision.op.name}"
                launch, chosen = _widening(type_, shape, where, purpose)
                self._wide.append((i, launch))
                self._ins[i] = type_.with_shape(shape)
                if chosen is not None:
                    before = (*self.decision.before, chosen)
                    self.decision = replace(self.decision, before=before)

    def __call__(self, *payloads: DeviceArray) -> Any:
        device = self._device
        try:
            if self._single is not None:  # What most ops are, and therefore short.
                type_, dtype, shape, nbytes = self._single
                block = device.alloc(nbytes)
                result: Any = resident(device, dtype, shape, block)
                result.operand = operand = Operand(block.buffer, type_)
                outs = [operand]
            else:
                made = [
                    DeviceArray(device, dtype, shape, device.alloc(nbytes))
                    for _, dtype, shape, nbytes in self._outs
                ]
                outs = [Operand(p.buffer, out[0]) for p, out in zip(made, self._outs, strict=True)]
                result = tuple(made)
        except OutOfMemory as error:
            raise _no_room(self.decision, device, error) from error
        if self._empty:
            return result
        try:
            operands = self._widened(payloads) if self._wide else payloads
            try:
                ins = list(map(_OPERAND, operands))
            except AttributeError:  # of an array that no kernel has seen
                ins = list(map(_operand, operands, self._ins))
            if self._run(self._raw, outs, ins, self._attributes, device.stream) is not None:
                raise TypeError("it returned something; results are written into `outs`")
        except MemoryError as error:
            raise _no_room(self.decision, device, error) from error
        except TreadleError:
            raise
        except Exception as error:
            raise _failed("the kernel", self.decision, device, error) from error
        return result

    def _widened(self, payloads: tuple[DeviceArray, ...]) -> list[DeviceArray]:
        began, operands = time.perf_counter(), list(payloads)
        for i, widen in self._wide:
            operands[i] = widen(operands[i])
        # An op of its own, which counts its own time.
        tally.ran(self.decision.op.name, self.decision.device).seconds -= (
            time.perf_counter() - began
        )
        return operands


def _operand(array: DeviceArray, type_: TensorType) -> Operand:
    """Return the operand that kernels get for an array, which keeps it."""
    array.operand = made = Operand(array.buffer, type_)
    return made


def _failed(what: str, decision: Decision, device: OpenDevice, error: Exception) -> DeviceError:
    """Return the error for what a kernel raised, with its op and device."""
    return DeviceError(
        decision.op.name,
        f"{what} of {device.name} failed: {type(error).__name__}: {error}",
        saw=decision.op.saw(decision.types),
        hint=f"{what} said it supports this; report it to the backend's authors",
    )


def _no_room(decision: Decision, device: OpenDevice, error: MemoryError) -> OutOfMemory:
    op, types = decision.op, decision.types
    why = error if isinstance(error, OutOfMemory) else OutOfMemory(device.name, str(error))
    saw = "; ".join(part for part in (op.saw(types), why.saw) if part)
    hint = why.hint or "use smaller batches or shapes"
    return OutOfMemory(op.name, f"{device.name} {why.problem}", saw=saw, hint=hint)


def _widening(
    type_: TensorType, shape: Any, where: CompNode, purpose: str
) -> tuple[Launch, Decision | None]:
    """Return the launch that gives an operand the result's shape: an op like any other, so it may
    fall back, visibly.

    Single elements, such as Python numbers, are spread on the host without remark or decision.
    """
    op = Broadcast(shape)
    if type_.nbytes == type_.dtype.itemsize:
        found = choose_on_device(op, (type_,), op.infer(type_), where.kind)
        if found.kernel is None and found.launch is None:
            return partial(_spread, shape=shape, device=where.open()), None
    made = plan_for(op, (type_,), where, purpose)
    return made, made.decision


def _spread(payload: DeviceArray, *, shape: Shape, device: OpenDevice) -> DeviceArray:
    wide = np.broadcast_to(payload.host(), shape)
    return DeviceArray(device, payload.dtype, shape, host=wide, fill=_uniform_byte(payload.host()))


# -- indices -----------------------------------------------------------------------------------


class _CheckedPlan:
    """A launch whose indices are looked at: those on the host now, others by the device.

    What the device finds is raised when somebody waits for it.
    """

    def __init__(self, plan: Launchable, where: CompNode) -> None:
        self.decision = plan.decision
        self._run: Launch = plan.__call__
        op, types = plan.decision.op, plan.decision.types
        self._looks: list[tuple[int, CheckIndices, PlannedCall | None]] = []
        for operand, low, high in op.index_ranges(types):
            check = CheckIndices(asking(op), low, high)
            own = (types[operand],)
            found = choose_on_device(check, own, check.infer(*own), where.kind)
            there = found.kernel is not None or found.launch is not None
            self._looks.append((operand, check, plan_for(check, own, where) if there else None))

    def __call__(self, *payloads: DeviceArray) -> Any:
        for operand, check, look in self._looks:
            array = payloads[operand]
            if look is None or array.on_host:
                check.reference(array.host())
            else:
                array.device.later.add(partial(self._raised, check, look(array), user_location()))
        return self._run(*payloads)

    def _raised(self, check: CheckIndices, status: DeviceArray, at: Loc) -> None:
        found = finding(status.host())
        if found is not None:
            saw = self.decision.op.saw(self.decision.types)
            error = out_of_range(check.of, found[1], int(check.low), int(check.high), saw)
            error.locate(at)
            raise error


# -- generated code ----------------------------------------------------------------------------


class _EnginePlan:
    """Run an op with an engine of the device, which generated code for it."""

    __slots__ = ("_device", "_expected", "_launch", "decision")

    def __init__(
        self,
        decision: Decision,
        results: tuple[TensorType, ...],
        launch: Launch,
        device: OpenDevice,
    ) -> None:
        self.decision = decision
        self._launch = launch
        self._device = device
        self._expected: tuple[TensorType, ...] | None = results

    def __call__(self, *payloads: DeviceArray) -> Any:
        try:
            made = self._launch(*payloads)
        except MemoryError as error:
            raise _no_room(self.decision, self._device, error) from error
        except TreadleError:
            raise
        except Exception as error:
            raise _failed("generated code", self.decision, self._device, error) from error
        if self._expected is not None:  # Looked at once; it is the same every time.
            self._check(made if isinstance(made, tuple | list) else (made,), self._expected)
            self._expected = None
        return made

    def _check(self, made: Sequence[Any], expected: Sequence[TensorType]) -> None:
        decision = self.decision
        check_results(decision.op, expected, made, decision.implementation)
        if not all(type(a) is DeviceArray and a.device is self._device for a in made):
            raise DeviceError(
                decision.op.name,
                f"a result of {decision.implementation} is not on {self._device.name}",
                hint="report it to the backend's authors",
            )


# -- the host --------------------------------------------------------------------------------


class _CreationPlan:
    """Make an array on the host; the device copy follows when a kernel asks for it."""

    __slots__ = ("_device", "_on_host", "decision")

    def __init__(self, decision: Decision, launch: Launch, device: OpenDevice) -> None:
        self._on_host = launch
        self._device = device
        self.decision = decision

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
        self, decision: Decision, launch: Launch, why: Support, device: OpenDevice
    ) -> None:
        self._on_host = launch
        self._device = device
        self._why = why
        self.decision = decision

    def __call__(self, *payloads: DeviceArray) -> Any:
        decision, device = self.decision, self._device
        row = fallback.admit(decision.op.name, decision.device, self._why, decision.purpose)
        charge = partial(fallback.charge, row)
        moved = sum({id(p): p.nbytes for p in payloads if not p.on_host}.values())
        if moved:
            device.synchronize()  # what the device still has to do is no cost of falling back
        started = time.perf_counter()
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
