"""Eager dispatch: from (op, operand types, device) to a launch, found once and kept.

A launch takes the operands' payloads (NumPy arrays on the host, `DeviceArray`s elsewhere) and
returns new ones. Ops whose launches do not depend on shapes (`Op.shape_free`) are cached by
element type and device alone, so a new shape finds its launch ready.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from treadle.backends import registry
from treadle.backends.api import Kernel, Operand, Support, no
from treadle.base.dtype import DType, as_dtype
from treadle.base.errors import (
    DeviceError,
    DTypeError,
    IndexRangeError,
    OutOfMemory,
    ShapeError,
    TreadleError,
    UnsupportedOp,
)
from treadle.base.shape import is_static, size_of
from treadle.base.types import TensorType
from treadle.engine import fallback
from treadle.engine.devices import CompNode, resolve
from treadle.ops.families import Elementwise
from treadle.ops.op import Op
from treadle.ops.transfer import Transfer
from treadle.runtime.api import Device, Payload
from treadle.runtime.array import DeviceArray, from_host, to_host

Launch = Callable[..., Any]


class EagerType:
    """What a cached launch specialises on: element type and device. Interned, so `is` compares."""

    __slots__ = ("device", "dtype")

    def __init__(self, dtype: DType, device: CompNode) -> None:
        self.dtype = dtype
        self.device = device


class Entry(NamedTuple):
    """A cached decision: how to launch, and the element type and device of every result."""

    launch: Launch
    results: tuple[EagerType, ...]


_TYPES: dict[tuple[DType, CompNode], EagerType] = {}
_ENTRIES: dict[Any, Entry] = {}
_MOST_ENTRIES = 16384


def eager_type(dtype: DType, device: CompNode) -> EagerType:
    """The one `EagerType` for an element type and a device."""
    key = dtype, device
    found = _TYPES.get(key)
    return found if found is not None else _TYPES.setdefault(key, EagerType(dtype, device))


def type_of(kind: EagerType, payload: Payload) -> TensorType:
    """The logical type of a payload."""
    return TensorType(kind.dtype, payload.shape, kind.device.logical_name)


def run(op: Op, kinds: tuple[EagerType, ...], payloads: tuple[Payload, ...]) -> Any:
    """Launch `op`; returns (results' eager types, one payload or a tuple of them)."""
    if op.shape_free:
        key: Any = (op, kinds)
    else:
        key = (op, kinds, tuple([p.shape for p in payloads]))
    try:
        entry = _ENTRIES[key]
    except KeyError:
        entry = _find(op, kinds, payloads, key)
    try:
        return entry.results, entry.launch(*payloads)
    except TreadleError:
        raise
    except (ValueError, TypeError, IndexError, MemoryError, OverflowError) as error:
        raise explain_failure(op, kinds, payloads, error) from error


def lookup(key: Any) -> Entry | None:
    """The decision remembered under a key, for callers that keep launches of their own."""
    return _ENTRIES.get(key)


def run_nullary(op: Op, device: CompNode) -> tuple[tuple[EagerType, ...], Any]:
    """Launch an op without operands, such as `full`, on a device."""
    key = (op, device)
    entry = _ENTRIES.get(key)
    if entry is None:
        results = tuple(eager_type(t.dtype, device) for t in op.infer())
        entry = _remember(key, Entry(_launch(op, (), device), results))
    try:
        return entry.results, entry.launch()
    except MemoryError as error:
        if isinstance(error, TreadleError):
            raise
        raise explain_failure(op, (), (), error) from error


def _find(op: Op, kinds: tuple[EagerType, ...], payloads: tuple[Payload, ...], key: Any) -> Entry:
    """Infer, check devices, choose an engine or kernel, and remember the decision."""
    types = tuple(type_of(k, p) for k, p in zip(kinds, payloads, strict=True))
    inferred = op.infer(*types)
    device = common_device(op, kinds)
    target = resolve(op.device) if isinstance(op, Transfer) else device
    results = tuple(eager_type(t.dtype, target) for t in inferred)
    if isinstance(op, Transfer):
        return _remember(key, Entry(_transfer(target), results))
    return _remember(key, Entry(_launch(op, types, device), results))


def _remember(key: Any, entry: Entry) -> Entry:
    if len(_ENTRIES) >= _MOST_ENTRIES:
        # Shapes that never come back would grow the table for ever; finding again is cheap.
        _ENTRIES.clear()
    _ENTRIES[key] = entry
    return entry


def common_device(op: Op, kinds: tuple[EagerType, ...]) -> CompNode:
    """The one physical device of all operands; the first operand's logical name wins.

    Raises:
        DeviceError: operands live on different physical devices.
    """
    first = kinds[0].device
    for kind in kinds[1:]:
        if kind.device is not first and kind.device.place != first.place:
            raise DeviceError(
                op.name,
                f"operands are on different devices: {first} and {kind.device}",
                saw=", ".join(f"{k.dtype.name}@{k.device}" for k in kinds),
                hint=f"move one of them with x.to({str(first)!r})",
            )
    return first


def _launch(op: Op, types: tuple[TensorType, ...], device: CompNode) -> Launch:
    if device.on_host:
        return _host_launch(op, types)
    return _device_launch(op, types, device)


def _host_launch(op: Op, types: tuple[TensorType, ...]) -> Launch:
    """The launch of the best engine on the host that supports the op."""
    reasons = []
    for engine in registry.engines("cpu"):
        found = engine.prepare(op, None if op.shape_free else types)
        if not isinstance(found, Support):
            return found
        reasons.append(f"{engine.name}: {found.message}")
    raise UnsupportedOp(op.name, "no engine on the host runs it", saw="; ".join(reasons))


def _transfer(target: CompNode) -> Launch:
    """Copy a payload to another device. Arrays are immutable, so host to host shares memory."""
    if target.on_host:
        return to_host
    device = target.open()
    return lambda payload: from_host(to_host(payload), device)


def _device_launch(op: Op, types: tuple[TensorType, ...], where: CompNode) -> Launch:
    """A device kernel if one supports the call, else the host with copies."""
    device = where.open()
    entry = registry.for_kind(where.kind)
    kernels = [k for k in entry.backend.kernels() if k.op == op.name] if entry else []
    why = no("op", f"{where.kind} has no kernel for {op.name}")
    for kernel in sorted(kernels, key=lambda k: -k.priority):
        why = kernel.supports(op, types)
        if why:
            return _kernel_launch(op, kernel, device)
    return _fallback_launch(op, device, str(where), why)


def _kernel_launch(op: Op, kernel: Kernel, device: Device) -> Launch:
    def launch(*payloads: DeviceArray) -> Any:
        types = [TensorType(as_dtype(p.dtype), p.shape) for p in payloads]
        results = op.infer(*types)
        if isinstance(op, Elementwise):
            payloads = tuple(_expanded(p, results[0].shape, device) for p in payloads)
        ins = [Operand(p.buffer, TensorType(as_dtype(p.dtype), p.shape)) for p in payloads]
        outs = [Operand(device.alloc(t.nbytes), t) for t in results]
        kernel.run(device, outs, ins, op.attributes, device.stream())
        made = tuple(
            DeviceArray(device, o.type.dtype.numpy, _ints(o.type), buffer=o.buffer) for o in outs
        )
        return made[0] if op.n_outputs == 1 else made

    return launch


def _ints(type_: TensorType) -> tuple[int, ...]:
    return tuple(int(d) for d in type_.shape)


def _expanded(payload: DeviceArray, shape: Any, device: Device) -> DeviceArray:
    """An operand broadcast to the result's shape; kernels see dense equal shapes only."""
    if payload.shape == shape:
        return payload
    wide = np.ascontiguousarray(np.broadcast_to(payload.host(), shape))
    return DeviceArray(device, wide.dtype, wide.shape, host=wide)


def _fallback_launch(op: Op, device: Device, name: str, why: Support) -> Launch:
    on_host = _host_launch(op, ())

    def launch(*payloads: DeviceArray) -> Any:
        entry = fallback.admit(op.name, name, why)
        started = time.perf_counter()
        moved = sum(p.traffic for p in payloads)
        results = on_host(*(p.host() for p in payloads))
        several = results if isinstance(results, tuple) else (results,)
        made = tuple(from_host(np.asarray(r), device) for r in several)
        moved = sum(p.traffic for p in payloads) - moved
        fallback.count(entry, moved, time.perf_counter() - started)
        return made if isinstance(results, tuple) else made[0]

    return launch


# -- errors --------------------------------------------------------------------------------


def explain_failure(
    op: Op, kinds: Sequence[EagerType], payloads: Sequence[Payload], error: Exception
) -> Exception:
    """The designed error for what a kernel refused."""
    types = tuple(type_of(k, p) for k, p in zip(kinds, payloads, strict=True))
    if isinstance(error, MemoryError):
        return _out_of_memory(op, types, error)
    try:
        op.infer(*types)
    except TreadleError as designed:
        return designed
    if isinstance(error, IndexError):
        return IndexRangeError(op.name, str(error), saw=op.saw(types))
    kind = DTypeError if isinstance(error, TypeError) else ShapeError
    return kind(op.name, str(error), saw=op.saw(types))


def _out_of_memory(op: Op, types: tuple[TensorType, ...], error: Exception) -> Exception:
    try:
        wanted = [t for t in op.infer(*types) if is_static(t.shape)]
    except TreadleError:
        wanted = []
    size = ", ".join(f"{t} ({size_of(t.shape) * t.dtype.itemsize} bytes)" for t in wanted)
    return OutOfMemory(
        op.name,
        f"not enough memory for the result {size}".rstrip(),
        saw=op.saw(types),
        hint="use smaller batches or shapes",
    )
