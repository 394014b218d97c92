"""Kernels of a library: asked and run with a td_call."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from ctypes import byref, c_double, c_int64
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from treadle.backends.api import Device, Kernel, Operand, Reason, Stream, Support, no, yes
from treadle.backends.c_device.device import CDevice, handle_of
from treadle.backends.c_device.header import (
    ABSENT,
    DTYPES,
    FLOATS,
    INTS,
    TEXT,
    Attribute,
    CKernel,
    TdCall,
    Tensor,
)
from treadle.backends.c_device.library import DeviceLibrary
from treadle.base.dtype import DType
from treadle.base.types import TensorType

if TYPE_CHECKING:  # Processes that run compiled code need no op.
    from treadle.ops.op import Op

_ANSWERS: tuple[Reason, ...] = (
    "op",  # TD_YES, which is no reason
    "dtype",
    "rank",
    "shape",
    "attribute",
    "size-limit",
    "precision",
    "device-feature",
    "policy",
)
_MOST_PLANS = 1024


class _Unsayable(Exception):
    """An attribute has no counterpart in a td_attribute."""


class _CallPlan:
    """Calls of a kernel on operands of certain types, with certain attributes.

    A call is filled in anew each time it is used; those of other threads are others.
    """

    def __init__(
        self, op: bytes, ins: Sequence[TensorType], outs: Sequence[TensorType], given: Any
    ) -> None:
        self._op = op
        self._count = len(ins)
        self._types = (*ins, *outs)
        self._attributes = given
        self._shapes = [(c_int64 * t.ndim)(*map(int, t.shape)) for t in self._types]
        self._said = [_attribute(name, value) for name, value in given.items()]
        self._values = (Attribute * len(self._said))(*self._said)
        self._free: list[_Filled] = []

    def take(self) -> _Filled:
        """A call without memory, which nobody else has."""
        try:
            return self._free.pop()
        except IndexError:
            return self._made()

    def give_back(self, filled: _Filled) -> None:
        """Make a call's structures free to be taken again."""
        self._free.append(filled)

    def _made(self) -> _Filled:
        tensors = (Tensor * len(self._types))(*map(_tensor, self._types, self._shapes))
        at = ctypes.addressof(tensors)
        call = TdCall(
            self._op,
            inputs=at,
            outputs=at + self._count * ctypes.sizeof(Tensor),
            attributes=ctypes.addressof(self._values),
            n_inputs=self._count,
            n_outputs=len(self._types) - self._count,
            n_attributes=len(self._said),
        )
        return _Filled(call, tensors, list(tensors), byref(call))


class _Filled(NamedTuple):
    """A td_call, the array it points into with its elements, and a pointer to it."""

    call: TdCall
    array: Any
    tensors: list[Tensor]
    pointer: Any


class Launcher:
    """Asks and runs one kernel of a library."""

    def __init__(self, library: DeviceLibrary, entry: CKernel) -> None:
        self._library = library
        self._op = entry.op
        self._supports = entry.supports
        self._run = entry.run
        self._names = [name for n, name in enumerate(DTYPES) if entry.dtypes >> n & 1]
        self._plans: dict[tuple[int, ...], _CallPlan] = {}

    def kernel(self) -> Kernel:
        """Return the framework's kernel that calls the library."""
        return Kernel(self._op.decode(errors="replace"), self.run, self.supports)

    def supports(self, op: Op, types: Sequence[TensorType], /) -> Support:
        outs = op.infer(*types)
        for type_ in (*types, *outs):
            if type_.dtype.name not in self._names:
                return no("dtype", f"{_either(self._names)}, not {type_.dtype.name}")
            if not type_.is_static:
                return no("dynamic-shape", "extents have to be known")
        try:
            plan = _CallPlan(self._op, types, outs, op.attributes)
        except _Unsayable as error:
            return no("attribute", str(error))
        filled = plan.take()
        answer = self._supports(filled.pointer) if self._supports else 0
        if not answer:
            return yes()
        if answer not in range(len(_ANSWERS)):
            return no("policy", f"its supports returned {answer}, which is not a td_answer")
        return no(_ANSWERS[answer], self._library.said())

    def run(
        self,
        device: Device,
        outs: Sequence[Operand],
        ins: Sequence[Operand],
        attributes: Mapping[str, Any],
        stream: Stream,
        /,
    ) -> None:
        """Run the library's kernel on a stream; a status other than 0 is an error."""
        operands = (*ins, *outs)
        # Those who launch keep types and attributes; a plan keeps them, too, and so their numbers.
        key = (id(attributes), *[id(operand.type) for operand in operands])
        plan = self._plans.get(key) or self._planned(key, ins, outs, attributes)
        filled = plan.take()
        for tensor, operand in zip(filled.tensors, operands, strict=True):
            tensor.memory = operand.buffer.handle
        status = self._run(cast(CDevice, device).handle, handle_of(stream), filled.pointer)
        plan.give_back(filled)
        if status:
            self._library.fail("run", status)

    def _planned(
        self, key: tuple[int, ...], ins: Sequence[Operand], outs: Sequence[Operand], given: Any
    ) -> _CallPlan:
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        plan = _CallPlan(self._op, [i.type for i in ins], [o.type for o in outs], given)
        self._plans[key] = plan
        return plan


def _tensor(type_: TensorType, shape: Any) -> Tensor:
    return Tensor(None, shape, type_.nbytes, DTYPES.index(type_.dtype.name), type_.ndim)


def _attribute(name: str, value: Any) -> Attribute:
    """A value of an op's attribute as a td_attribute.

    Raises:
        _Unsayable: it is of another kind.
    """
    made = Attribute(name.encode())
    if value is None:
        made.kind = ABSENT
    elif isinstance(value, str):
        made.kind, made.text = TEXT, value.encode()
    else:
        numbers: list[Any] = list(_numbers(name, value))
        made.count = len(numbers)
        if any(isinstance(number, float) for number in numbers):
            made.kind, made.floats = FLOATS, (c_double * len(numbers))(*numbers)
        else:
            made.kind, made.ints = INTS, (c_int64 * len(numbers))(*numbers)
    return made


def _numbers(name: str, value: Any) -> Iterator[int | float]:
    if isinstance(value, tuple):
        for part in value:
            yield from _numbers(name, part)
    elif isinstance(value, DType):
        yield DTYPES.index(value.name)
    elif isinstance(value, float) or (isinstance(value, int) and -(1 << 63) <= value < 1 << 63):
        yield value
    else:
        raise _Unsayable(f"{name} is a {type(value).__name__}, which treadle_device.h cannot say")


def _either(names: Sequence[str]) -> str:
    return " or ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
