"""Eager dispatch: from (op, operand types, device) to a launch, found once and kept.

A launch takes the operands' payloads (NumPy arrays on the host, `DeviceArray`s elsewhere) and
returns new ones. Ops whose launches do not depend on shapes (`Op.shape_free`) are cached by
element type and device alone, so a new shape finds its launch ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from treadle.base.dtype import DType
from treadle.base.errors import DeviceError, TreadleError
from treadle.base.observer import OBSERVER
from treadle.base.process import RUNTIME
from treadle.base.quantized import QuantizedType
from treadle.base.types import TensorType
from treadle.engine.devices.names import CompNode, resolve
from treadle.engine.eager.choice import Decision, Launch, choose_engine, note
from treadle.engine.eager.failures import EXPLAINED, explain
from treadle.engine.eager.formats import DEFAULT, inherited
from treadle.engine.eager.placed import PlacedLaunch, plan_for, transfer
from treadle.engine.eager.scales import carried_scale
from treadle.ops.op import Op
from treadle.ops.transfer import Transfer
from treadle.runtime.api import Payload
from treadle.runtime.array import to_host

__all__ = [
    "DispatchEntry",
    "EagerType",
    "Launch",
    "decision",
    "eager_type",
    "explain_failure",
    "lookup",
    "result_kinds",
    "run",
    "run_nullary",
    "tagged",
    "type_of",
]


class EagerType:
    """Key of a cached launch: element type and device. Interned, so `is` compares.

    `quantized` is what the integers of a quantized tensor stand for, `surface` the dtype that users
    see, `format` MegEngine's name for the order of the axes. Ops know nothing of these.
    """

    __slots__ = ("device", "dtype", "format", "quantized", "surface")

    def __init__(
        self,
        dtype: DType,
        device: CompNode,
        quantized: QuantizedType | None = None,
        format: str = DEFAULT,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self.quantized = quantized
        self.format = format
        self.surface = dtype.numpy if quantized is None else quantized.numpy


class DispatchEntry(NamedTuple):
    """A cached decision: how to launch, and the element type and device of every result."""

    launch: Launch
    results: tuple[EagerType, ...]


_TYPES: dict[Any, EagerType] = {}
_ENTRIES: dict[Any, DispatchEntry] = RUNTIME.table("launches of ops", "launches")
_MOST_ENTRIES = 16384


def eager_type(dtype: DType, device: CompNode, quantized: QuantizedType | None = None) -> EagerType:
    """The one `EagerType` for an element type, a device, and what its integers stand for."""
    key = (dtype, device) if quantized is None else (dtype, device, quantized)
    found = _TYPES.get(key)
    if found is None:
        found = _TYPES.setdefault(key, EagerType(dtype, device, quantized))
    return found


def tagged(kind: EagerType, format: str) -> EagerType:
    """The same eager type with another name for the order of its axes."""
    if format == DEFAULT:
        return eager_type(kind.dtype, kind.device, kind.quantized)
    key = (kind.dtype, kind.device, kind.quantized, format)
    made = EagerType(kind.dtype, kind.device, kind.quantized, format)
    return _TYPES.setdefault(key, made)


def type_of(kind: EagerType, payload: Payload) -> TensorType:
    """The logical type of a payload."""
    return TensorType(kind.dtype, payload.shape, kind.device.logical_name)


def run(op: Op, kinds: tuple[EagerType, ...], payloads: tuple[Payload, ...]) -> Any:
    """Launch `op`; returns (results' eager types, one payload or a tuple of them)."""
    if op.shape_free:
        key: Any = (op, kinds)
    else:
        key = _key(op, kinds, payloads)
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
        entry = _remember(key, DispatchEntry(_launch(op, (), device), results))
    try:
        return entry.results, entry.launch()
    except TreadleError:
        raise
    except EXPLAINED as error:
        raise explain_failure(op, (), (), error) from error


def known(
    op: Op, kinds: tuple[EagerType, ...], payloads: tuple[Payload, ...]
) -> DispatchEntry | None:
    """The decision by which `run` launches an op on these operands, if it has been made."""
    return _ENTRIES.get((op, kinds) if op.shape_free else _key(op, kinds, payloads))


def _key(op: Op, kinds: tuple[EagerType, ...], payloads: tuple[Payload, ...]) -> Any:
    return op, kinds, payloads[0].shape if len(payloads) == 1 else _shapes(payloads)


def lookup(key: Any) -> DispatchEntry | None:
    """The decision remembered under a key, for callers that keep launches of their own."""
    return _ENTRIES.get(key)


def decision(op: Op, types: tuple[TensorType, ...], device: CompNode) -> Decision:
    """Return who runs an op on operands of these types, and why not the others; nothing is
    launched.

    Raises:
        UnsupportedOp: nobody does.
    """
    if device.on_host:
        return choose_engine(op, types, device.logical_name)[1]
    return plan_for(op, types, device).decision


def _find(
    op: Op, kinds: tuple[EagerType, ...], payloads: tuple[Payload, ...], key: Any
) -> DispatchEntry:
    """Infer, check devices, choose an engine or kernel, and remember the decision."""
    types = tuple(type_of(k, p) for k, p in zip(kinds, payloads, strict=True))
    inferred = op.infer(*types)
    device = common_device(op, kinds)
    if isinstance(op, Transfer):
        target = resolve(op.device) if op.device else device
        launch = to_host if target.on_host else transfer(target)
    else:
        target, launch = device, _launch(op, types, device)
    return _remember(key, DispatchEntry(launch, result_kinds(op, kinds, types, inferred, target)))


def result_kinds(
    op: Op,
    kinds: Sequence[EagerType],
    types: Sequence[TensorType],
    results: Sequence[TensorType],
    device: CompNode,
) -> tuple[EagerType, ...]:
    """The eager types of an op's results, which keep quantization and format where it may."""
    carried = carried_scale(op, [k.quantized for k in kinds], types, results)
    made = [
        eager_type(t.dtype, device, carried if carried and t.dtype is carried.stored else None)
        for t in results
    ]
    formats = [kind.format for kind in kinds]
    if any([format is not DEFAULT for format in formats]):
        format = inherited(op, formats, types, results)
        made = [tagged(kind, format) for kind in made]
    return tuple(made)


def _remember(key: Any, entry: DispatchEntry) -> DispatchEntry:
    if len(_ENTRIES) >= _MOST_ENTRIES:
        # Shapes that never come back would grow the table for ever; finding again is cheap.
        _ENTRIES.clear()
    if OBSERVER.now is not None:
        entry = DispatchEntry(OBSERVER.now.launch(key[0], entry.launch), entry.results)
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
        launch, decided = choose_engine(op, types, device.logical_name)
        note(decided)
        return launch
    return PlacedLaunch(op, tuple(t.dtype for t in types), device)


def explain_failure(
    op: Op, kinds: Sequence[EagerType], payloads: Sequence[Payload], error: Exception
) -> Exception:
    """The designed error for what a launch raised."""
    return explain(op, tuple(type_of(k, p) for k, p in zip(kinds, payloads, strict=True)), error)


def _forget() -> None:
    """Forget the types of devices that a rescan has closed."""
    for key in [k for k in _TYPES if not k[1].on_host]:
        del _TYPES[key]


RUNTIME.after("backends", _forget)
