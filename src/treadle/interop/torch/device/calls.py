"""Calls of ATen operators on our tensors: their ops on the device, else PyTorch on the host.

What a call is written as depends on the operator, on types, shapes and strides of its tensors and
on its other arguments. It is written once and kept.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from treadle.base.errors import OutOfMemory
from treadle.base.process import RUNTIME
from treadle.interop.torch.arrays import PARTS, to_array, to_tensor
from treadle.interop.torch.device import fallback
from treadle.interop.torch.device.forms import Form, form_of
from treadle.interop.torch.device.memory import (
    Memory,
    adopt,
    allocate,
    host_alias,
    memory_of,
)
from treadle.interop.torch.device.places import NAME, place
from treadle.interop.torch.device.plans import Refused, Result, Steps, element_type, fakes, write
from treadle.runtime.array import DeviceArray, to_host

aten = torch.ops.aten
_MOST = 8192
_PLANS: dict[Any, Any] = RUNTIME.table("plans of PyTorch's calls", "devices")
_BUSY = threading.local()
_NUMBERS = (int, bool, str, type(None), torch.dtype, torch.layout, torch.memory_format)


class _Unkeyed(Exception):
    """An argument that nothing can be kept for."""


def _note(value: Any, parts: list[Any], tensors: list[torch.Tensor]) -> None:
    """Add to a key what a call depends on, and to its tensors."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        parts += (value.dtype, value.shape, value.stride(), value.device)
    elif isinstance(value, (list, tuple)):
        parts += (type(value), len(value))
        for item in value:
            _note(item, parts, tensors)
    elif isinstance(value, _NUMBERS):
        parts += (type(value), value)
    elif isinstance(value, (float, complex)):
        # -0.0 equals 0.0, and NaN nothing.
        parts += (type(value), value if value and value == value else repr(value))
    elif isinstance(value, torch.device):
        parts.append(value)
    else:
        raise _Unkeyed


def run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator on our tensors."""
    parts: list[Any] = [op]
    tensors: list[torch.Tensor] = []
    try:
        for value in args:
            _note(value, parts, tensors)
        for name, value in kwargs.items():
            parts.append(name)
            _note(value, parts, tensors)
    except _Unkeyed:
        return fallback.on_host(op, args, kwargs, "an argument is no plain value")
    key = tuple(parts)
    found = _PLANS.get(key)
    if found is None:
        found = _planned(op, args, kwargs, tensors)
        if len(_PLANS) >= _MOST:  # Shapes that never come back would grow it for ever.
            _PLANS.clear()
        _PLANS[key] = found
    if found.__class__ is str:
        return fallback.on_host(op, args, kwargs, found)
    try:
        return found(args, kwargs, tensors)
    except OutOfMemory as error:
        raise torch.OutOfMemoryError(str(error)) from error


def refusals() -> dict[str, str]:
    """Return why calls ran on the host so far, by operator."""
    return {key[0].name(): found for key, found in _PLANS.items() if found.__class__ is str}


def _planned(op: Any, args: Any, kwargs: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """Return how a call is run on its device; a text where it cannot be."""
    # PyTorch's own propagation of shapes asks this device for nothing, but let it not ask for ever.
    if getattr(_BUSY, "now", False):
        return "PyTorch asked while it looked at another call"
    _BUSY.now = True
    try:
        return _Plan(op, args, kwargs, tensors)
    except Refused as error:
        return str(error)
    finally:
        _BUSY.now = False


def _form(op: Any, args: Any) -> Form:
    form = form_of(op)
    if form is None:
        raise Refused("it has no form without writes")
    if form.writes == (None, None, None, 3, 4) and args[3] is None:
        plain = aten._native_batch_norm_legit.no_stats
        return Form(plain, frozenset({"3", "4"}), (), None)
    return form


_MIXED = ("index", "_index", "_unsafe_index", "_ctc_loss", "_pack_padded_sequence", "_fused")
"""Operators of which PyTorch takes some tensors from the CPU."""


def _index(op: Any, tensors: Sequence[torch.Tensor]) -> int:
    """The device of a call.

    Raises:
        RuntimeError: its tensors are on several.
    """
    index = -1
    for tensor in tensors:
        device = tensor.device
        if device.type == NAME:
            if index not in (-1, device.index):
                raise fallback.apart(f"{NAME}:{index}", device)
            index = int(device.index)
    if index < 0:
        raise Refused("nothing is on a device")
    for tensor in tensors:
        if tensor.device.type != NAME and (tensor.dim() or tensor.device.type != "cpu"):
            if op._opname.startswith(_MIXED):
                raise Refused("a tensor is on the CPU")
            raise fallback.apart(f"{NAME}:{index}", tensor.device)
    return index


def _overlaps(tensor: torch.Tensor) -> bool:
    """Return whether two elements have one place, as far as zero strides tell."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return any(extent > 1 and not step for extent, step in pairs)


class _Plan:
    """A call on a device."""

    def __init__(self, op: Any, args: Any, kwargs: Any, tensors: Sequence[torch.Tensor]) -> None:
        self._form = form = _form(op, args)
        self._index = _index(op, tensors)
        if any(t._is_zerotensor() for t in tensors):
            raise Refused("a tensor of zeros without memory")
        given = [a for i, a in enumerate(args) if str(i) not in form.drops]
        named = {k: v for k, v in kwargs.items() if k not in form.drops}
        written = write(form.op, given, named)
        self._results = written.results
        self._is_single = written.is_single
        if form.writes:
            self._check_writes(op, args, kwargs)
        # The last tensors are those that are written to; one may be read under another name.
        outs = sum(name in kwargs for name in form.drops)
        self._reads = list(range(len(tensors) - outs))
        self._dtypes = [element_type(tensors[i].dtype) for i in self._reads]
        self._steps = Steps(written.graph, place(self._index))
        self._copies: list[bool] | None = None

    def _check_writes(self, op: Any, args: Any, kwargs: Any) -> None:
        """PyTorch says what is wrong with such a call, on tensors without memory."""
        form = self._form
        for key, result in zip(form.writes, self._results, strict=True):
            if key is None:
                continue
            target = args[key] if isinstance(key, int) else kwargs[key]
            if result is None or target is None:
                raise Refused("nothing to write")
            if tuple(target.shape) != result.shape and (isinstance(key, int) or target.numel()):
                raise Refused("an argument is resized")
            if _overlaps(target):
                raise Refused("elements of an argument share memory")
        mode, given, named = fakes(args, kwargs)
        try:
            with mode:
                op(*given, **named)
        except Exception as error:
            raise Refused(f"{type(error).__name__}: {error}".partition("\n")[0]) from error

    def __call__(self, args: Any, kwargs: Any, tensors: Sequence[torch.Tensor]) -> Any:
        index = self._index
        if index:
            payloads = [
                on_device(tensors[i], d, index)
                for i, d in zip(self._reads, self._dtypes, strict=True)
            ]
        else:
            payloads = [
                _array(tensors[i], d) for i, d in zip(self._reads, self._dtypes, strict=True)
            ]
        made = self._steps(payloads)
        if index:
            return self._given(made, args, kwargs, self._placed)
        if self._copies is None:
            self._copies = _shared(made, [*payloads, *self._steps.known])
        for i, copies in enumerate(self._copies):
            array = np.asarray(made[i])
            if copies or not (array.flags.c_contiguous and array.flags.writeable):
                array = np.array(array, order="C")
            made[i] = array
        return self._given(made, args, kwargs, self._adopted)

    def _given(self, made: list[Any], args: Any, kwargs: Any, wrap: Any) -> Any:
        form = self._form
        results: list[Any] = []
        arrays = iter(made)
        for number, result in enumerate(self._results):
            array = None if result is None else next(arrays)
            key = form.writes[number] if form.writes else None
            if key is not None:
                target = args[key] if isinstance(key, int) else kwargs[key]
                _store(target, array, result)
                results.append(target)
            else:
                results.append(None if result is None else wrap(array, result))
        if form.gives is not None:
            return tuple([results[i] for i in form.gives])
        return results[0] if self._is_single else tuple(results)

    def _adopted(self, array: Any, result: Result) -> torch.Tensor:
        return adopt(_host_tensor(array, result), 0)

    def _placed(self, array: DeviceArray, result: Result) -> torch.Tensor:
        strides = None if result.place is None else result.place.strides
        made = allocate(result.shape, strides, result.dtype, self._index)
        memory_of(made).replace(array)
        return made


def _host_tensor(array: Any, result: Result) -> torch.Tensor:
    """A result on the host as a tensor of the CPU on its memory."""
    made = to_tensor(array, result.dtype)
    return made if result.place is None else result.place.given(made)


def _store(target: torch.Tensor, array: Any, result: Any) -> None:
    """Put a result into the memory of an argument; one without elements takes its shape."""
    if tuple(target.shape) != result.shape:
        target.resize_(result.shape)
    if (
        type(array) is DeviceArray
        and result.place is None
        and result.dtype is target.dtype
        and target.is_contiguous()
        and array.nbytes == target.untyped_storage().nbytes()
    ):
        memory_of(target).replace(array)
        return
    host = np.array(to_host(array), order="C") if type(array) is DeviceArray else array
    host_alias(target, written=True).copy_(_host_tensor(host, result))


def _shared(made: Sequence[Any], others: Sequence[Any]) -> list[bool]:
    """For results whether their memory is someone else's, too; it is the same at every call."""
    found = []
    for i, array in enumerate(made):
        array = np.asarray(array)
        against = [*others, *made[:i]]
        found.append(any(np.may_share_memory(array, np.asarray(x)) for x in against))
    return found


def _array(tensor: torch.Tensor, dtype: np.dtype[Any]) -> Any:
    """The memory of a tensor as an array."""
    if tensor.device.type != NAME:
        return to_array(tensor)
    return memory_of(tensor).view(tensor, dtype)


def on_device(tensor: torch.Tensor, dtype: np.dtype[Any], index: int) -> DeviceArray:
    """A tensor as an array of the device."""
    if tensor.device.type != NAME:
        host = to_array(tensor).copy()
        return DeviceArray(place(index).open(), host.dtype, host.shape, host=host)
    memory: Memory = memory_of(tensor)
    nbytes = tensor.numel() * tensor.dtype.itemsize
    if tensor.is_contiguous() and nbytes == tensor.untyped_storage().nbytes():
        shape = (*tensor.shape, 2) if tensor.dtype in PARTS else tuple(tensor.shape)
        return memory.array(dtype, shape)
    host = np.array(memory.view(tensor, dtype), order="C")
    return DeviceArray(place(index).open(), dtype, host.shape, host=host)
