"""Eager dispatch: from (op, operand types, device) to a launch, found once and kept.

A launch takes the operands' payloads (NumPy arrays on the host, `DeviceArray`s elsewhere) and
returns new ones. Ops whose launches do not depend on shapes (`Op.shape_free`) are cached by
element type and device alone, so a new shape finds its launch ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from treadle.backends import registry
from treadle.base.dtype import DType
from treadle.base.errors import DeviceError, TreadleError
from treadle.base.types import TensorType
from treadle.engine.choice import Decision, Launch, choose_engine
from treadle.engine.devices import CompNode, resolve
from treadle.engine.failures import EXPLAINED, explain
from treadle.engine.placed import PlacedLaunch, plan_for, transfer
from treadle.ops.op import Op
from treadle.ops.transfer import Transfer
from treadle.runtime.api import Payload
from treadle.runtime.array import to_host

__all__ = [
    "EagerType",
    "Entry",
    "Launch",
    "decision",
    "eager_type",
    "explain_failure",
    "lookup",
    "run",
    "run_nullary",
    "type_of",
]


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
        key = (op, kinds, payloads[0].shape if len(payloads) == 1 else _shapes(payloads))
    entry = _ENTRIES.get(key)
    if entry is None:
        entry = _find(op, kinds, payloads, key)
    try:
        return entry.results, entry.launch(*payloads)
    except TreadleError:
        raise
    except EXPLAINED as error:
        raise explain_failure(op, kinds, payloads, error) from error


def _shapes(payloads: tuple[Payload, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple([p.shape for p in payloads])


def run_nullary(op: Op, device: CompNode) -> tuple[tuple[EagerType, ...], Any]:
    """Launch an op without operands, such as `full`, on a device."""
    key = (op, device)
    entry = _ENTRIES.get(key)
    if entry is None:
        results = tuple(eager_type(t.dtype, device) for t in op.infer())
        entry = _remember(key, Entry(_launch(op, (), device), results))
    try:
        return entry.results, entry.launch()
    except TreadleError:
        raise
    except EXPLAINED as error:
        raise explain_failure(op, (), (), error) from error


def lookup(key: Any) -> Entry | None:
    """The decision remembered under a key, for callers that keep launches of their own."""
    return _ENTRIES.get(key)


def decision(op: Op, types: tuple[TensorType, ...], device: CompNode) -> Decision:
    """Who runs an op on operands of these types, and why not the others; nothing is launched.

    Raises:
        UnsupportedOp: nobody does.
    """
    if device.on_host:
        return choose_engine(op, types, device.logical_name)[1]
    return plan_for(op, types, device).decision


def _find(op: Op, kinds: tuple[EagerType, ...], payloads: tuple[Payload, ...], key: Any) -> Entry:
    """Infer, check devices, choose an engine or kernel, and remember the decision."""
    types = tuple(type_of(k, p) for k, p in zip(kinds, payloads, strict=True))
    inferred = op.infer(*types)
    device = common_device(op, kinds)
    if isinstance(op, Transfer):
        target = resolve(op.device) if op.device else device
        launch = to_host if target.on_host else transfer(target)
    else:
        target, launch = device, _launch(op, types, device)
    return _remember(key, Entry(launch, tuple(eager_type(t.dtype, target) for t in inferred)))


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
        return choose_engine(op, types, device.logical_name)[0]
    return PlacedLaunch(op, tuple(t.dtype for t in types), device)


def explain_failure(
    op: Op, kinds: Sequence[EagerType], payloads: Sequence[Payload], error: Exception
) -> Exception:
    """The designed error for what a launch raised."""
    return explain(op, tuple(type_of(k, p) for k, p in zip(kinds, payloads, strict=True)), error)


def _forget() -> None:
    """After a rescan other engines may be better, and devices that were closed are gone."""
    _ENTRIES.clear()
    for key in [k for k in _TYPES if not k[1].on_host]:
        del _TYPES[key]


registry.on_rescan(_forget)
