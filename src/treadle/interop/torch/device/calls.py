"""Calls of ATen operators on our tensors: their ops on the device, else PyTorch on the host.

What a call is written as depends on the operator, on types, shapes and strides of its tensors and
on its other arguments. It is written once and kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from treadle.base.errors import OutOfMemory
from treadle.base.process import RUNTIME
from treadle.interop.torch.device import fallback, hot, private, scalars
from treadle.interop.torch.device.forms import form_of
from treadle.interop.torch.device.planned import DeviceCall
from treadle.interop.torch.device.plans import DeviceLacksAll, OperatorRefused
from treadle.interop.torch.device.untraced import untraced

_MOST = 8192
_PLANS: dict[Any, Any] = RUNTIME.table("plans of PyTorch's calls", "devices")
_BUSY = threading.local()
_NUMBERS = (int, bool, str, type(None), torch.dtype, torch.layout, torch.memory_format)
_COMPOSED = torch._C.DispatchKey.CompositeExplicitAutograd
"""The key of what PyTorch does operator by operator, where there is no kernel."""


class _Unkeyed(Exception):
    """An argument that nothing can be kept for."""


class _Known(NamedTuple):
    """Properties of an operator that do not depend on its arguments.

    Attributes:
        opens: whether real numbers among its arguments may be others at every call.
        sees_bits: whether PyTorch hands it tensors that are conjugated or negated by a bit, or 0
            everywhere without memory.
        composed: whether PyTorch can do it by other operators.
    """

    opens: bool
    sees_bits: bool
    composed: bool


class ComposedCall:
    """A kind of call that PyTorch does by other operators.

    Args:
        op: the operator.
        why: it is not written in ops.

    Attributes:
        why: as given.
    """

    def __init__(self, op: Any, why: str) -> None:
        self._op = op
        self.why = why

    def __call__(self, args: Any, kwargs: Any) -> Any:
        """Run it."""
        return self._op._op_dk(_COMPOSED, *args, **kwargs)


_OPERATORS: dict[Any, _Known] = {}


def _look_at(op: Any) -> _Known:
    form, name = form_of(op), op.name()
    sees = any(name in private.registrations(k) for k in ("Conjugate", "Negative", "ZeroTensor"))
    composed = op._opname.startswith("_foreach_") and private.has_kernel(
        name, "CompositeExplicitAutograd"
    )
    return _OPERATORS.setdefault(
        op, _Known(form is not None and form.opened is not None, sees, composed)
    )


def _note(value: Any, parts: list[Any], tensors: list[Any], opens: bool) -> None:
    """Add to a key what a call depends on, and to its tensors; numbers that are open are some."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        parts += (value.dtype, value.shape, value.stride(), value.device)
    elif isinstance(value, (list, tuple)):
        parts += (type(value), len(value))
        for item in value:
            _note(item, parts, tensors, opens)
    elif isinstance(value, _NUMBERS):
        parts += (type(value), value)
    elif opens and isinstance(value, float):
        parts.append(float)
        tensors.append(value)
    elif isinstance(value, (float, complex)):
        # -0.0 equals 0.0, and NaN nothing.
        parts += (type(value), value if value and value == value else repr(value))
    elif isinstance(value, torch.device):
        parts.append(value)
    else:
        raise _Unkeyed


@untraced
def run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator on our tensors."""
    known = _OPERATORS.get(op) or _look_at(op)
    if known.sees_bits and (_has_bits(args) or _has_bits(kwargs.values())):
        return _without_bits(op, args, kwargs)
    parts: list[Any] = [op]
    tensors: list[Any] = []
    opens = known.opens and scalars.takes(args[0])
    try:
        for value in args:
            _note(value, parts, tensors, opens)
        for name, value in kwargs.items():
            parts.append(name)
            _note(value, parts, tensors, opens)
    except _Unkeyed:
        return _refused(op, args, kwargs, "an argument is not a plain value")(args, kwargs)
    key = tuple(parts)
    found = _PLANS.get(key)
    if found is None:
        found = _planned(op, args, kwargs, tensors)
        if len(_PLANS) >= _MOST:  # Shapes that never come back would grow it for ever.
            _PLANS.clear()
        _PLANS[key] = found
    if found.__class__ is not DeviceCall:
        return found(args, kwargs)
    found.calls += 1
    try:
        if found.calls == hot.HOT:
            found.warm(op, (args, kwargs), tensors, run)
        return found(tensors)
    except OutOfMemory as error:
        raise torch.OutOfMemoryError(str(error)) from error


def _has_bits(given: Any) -> bool:
    """Return whether a tensor is conjugated, negated or zero by a bit rather than in memory."""
    for x in given:
        if isinstance(x, torch.Tensor):
            if x.is_conj() or x.is_neg() or x._is_zerotensor():
                return True
        elif isinstance(x, (list, tuple)) and _has_bits(x):
            return True
    return False


def _without_bits(op: Any, args: Any, kwargs: Any) -> Any:
    """A call on tensors that are in memory what they are; what writes is left to the host."""
    if fallback.traits_of(op).written:
        return fallback.on_host(op, args, kwargs, "a tensor is conjugated or negated by a bit")

    def plain(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if x._is_zerotensor():
            return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
        return x.resolve_conj().resolve_neg()

    return run(op, *pytree.tree_map(plain, args), **pytree.tree_map(plain, kwargs))


def refusals() -> dict[str, str]:
    """Return why calls ran on the host so far, by operator."""
    calls = [(key, found) for key, found in _PLANS.items() if type(found) is not DeviceCall]
    return {key[0].name(): call.why for key, call in calls}


def _refused(
    op: Any, args: Any, kwargs: Any, why: str, *, is_bare: bool = False
) -> Callable[[Any, Any], Any]:
    """Return how a call runs that is not written in ops: by other operators, or on the host.

    Args:
        op, args, kwargs, why: see `HostCall`.
        is_bare: whether the device runs none of those operators.
    """
    if _OPERATORS[op].composed and not is_bare:
        return ComposedCall(op, why)
    return fallback.HostCall(op, args, kwargs, why)


def _planned(op: Any, args: Any, kwargs: Any, tensors: Sequence[Any]) -> Any:
    """Return the plan of a call, on the device or else the host."""
    # PyTorch's own propagation of shapes asks this device for nothing, but let it not ask for ever.
    if getattr(_BUSY, "now", False):
        return _refused(op, args, kwargs, "PyTorch asked while it looked at another call")
    _BUSY.now = True
    try:
        return DeviceCall(op, args, kwargs, tensors)
    except OperatorRefused as error:
        return _refused(op, args, kwargs, str(error), is_bare=isinstance(error, DeviceLacksAll))
    finally:
        _BUSY.now = False
