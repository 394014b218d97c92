"""A call of an operator as it runs on a device: its graph, and where results go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from treadle.base.errors import TreadleError
from treadle.base.log import get_logger
from treadle.base.observer import OBSERVER
from treadle.base.shape import row_major_strides
from treadle.interop.torch.arrays import PARTS, to_array, to_tensor
from treadle.interop.torch.device import fallback, hot
from treadle.interop.torch.device.forms import OperatorForm, form_of
from treadle.interop.torch.device.memory import StorageBytes, adopt, allocate, host_alias, memory_of
from treadle.interop.torch.device.places import NAME, place
from treadle.interop.torch.device.plans import (
    DeviceLacksAll,
    GraphSteps,
    OperatorRefused,
    ReturnedTensor,
    element_type,
    fakes,
    left_to_host,
    write,
)
from treadle.interop.torch.native.entries import DLPACK_TYPES, EXTERNAL, dlpack_device, dlpack_type
from treadle.interop.torch.native.layout import AS_TUPLE, NO_RESULT, ONE_RESULT
from treadle.runtime.array import DeviceArray, to_host

aten = torch.ops.aten
Given: TypeAlias = torch.Tensor | float
"""An operand of a call: a tensor, or a number that may change."""


def _form(op: Any, args: Any) -> OperatorForm:
    form = form_of(op)
    if form is None:
        raise OperatorRefused("it has no form without writes")
    if form.writes == (None, None, None, 3, 4) and args[3] is None:
        plain = aten._native_batch_norm_legit.no_stats
        return OperatorForm(plain, frozenset({"3", "4"}), (), None)
    return form


_MIXED = ("index", "_index", "_unsafe_index", "_ctc_loss", "_pack_padded_sequence", "_fused")
"""Operators of which PyTorch takes some tensors from the CPU."""


def _index(op: Any, tensors: Sequence[Given]) -> int:
    """The device of a call.

    Raises:
        RuntimeError: its tensors are on several.
    """
    index = -1
    given = [t for t in tensors if isinstance(t, torch.Tensor)]
    for tensor in given:
        device = tensor.device
        if device.type == NAME:
            if index not in (-1, device.index):
                raise fallback.apart(f"{NAME}:{index}", device)
            index = int(device.index)
    if index < 0:
        raise OperatorRefused("nothing is on a device")
    for tensor in given:
        if tensor.device.type != NAME and (tensor.dim() or tensor.device.type != "cpu"):
            if op._opname.startswith(_MIXED):
                raise OperatorRefused("a tensor is on the CPU")
            raise fallback.apart(f"{NAME}:{index}", tensor.device)
    return index


def _overlaps(tensor: torch.Tensor) -> bool:
    """Return whether two elements have one place, as far as zero strides tell."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return any(extent > 1 and not step for extent, step in pairs)


class DeviceCall:
    """A call on a device.

    Args:
        op: the operator.
        args, kwargs: its arguments.
        tensors: those among them, in order, and numbers that may change.

    Attributes:
        calls: how many there were.

    Raises:
        Refused: it cannot be written in ops.
    """

    def __init__(self, op: Any, args: Any, kwargs: Any, tensors: Sequence[Given]) -> None:
        self._form = form = _form(op, args)
        self._index = _index(op, tensors)
        self._returns_nothing = not op._schema.returns
        self._opens = any(isinstance(t, float) for t in tensors)
        if any(isinstance(t, torch.Tensor) and t._is_zerotensor() for t in tensors):
            raise OperatorRefused("a tensor of zeros without memory")
        given = [a for i, a in enumerate(args) if str(i) not in form.drops]
        named = {k: v for k, v in kwargs.items() if k not in form.drops}
        compute = form.opened if self._opens else form.compute
        written = write(compute, given, named, opens=self._opens)
        if self._index:
            # PyTorch's own kernel is one step on the host where ops would be several.
            why = left_to_host(written.graph, place(self._index))
            if why:
                raise DeviceLacksAll(why)
        self._results = written.results
        self._is_single = written.is_single
        self._targets = self._find_targets(args, kwargs, tensors, written.lengths)
        if form.writes:
            self._check_writes(op, args, kwargs, tensors)
        # The last tensors are those that are written to; one may be read under another name.
        outs = sum(name in kwargs for name in form.drops)
        self._reads = list(range(len(tensors) - outs))
        self._dtypes = [_element(tensors[i]) for i in self._reads]
        self._graph = written.graph
        self._steps = GraphSteps(written.graph, place(self._index))
        self._copies: list[bool] | None = None
        self._compiled: hot.CompiledCall | None = None
        self.calls = 0

    def _find_targets(
        self, args: Any, kwargs: Any, tensors: Sequence[Given], lengths: Sequence[int | None]
    ) -> list[int | None]:
        """Return for each result the number of the tensor that it is written into, or None."""
        found: list[int | None] = []
        for number, length in enumerate(lengths):
            key = self._form.writes[number] if number < len(self._form.writes) else None
            if key is None:
                found += [None] * (1 if length is None else length)
                continue
            target = args[key] if isinstance(key, int) else kwargs[key]
            several = isinstance(target, (list, tuple))
            if several and length not in (0, len(target)):
                raise OperatorRefused("lists have other lengths")
            for x in target[:length] if several else [target]:
                if x is None:
                    raise OperatorRefused("nothing to write")
                found.append(next(i for i, t in enumerate(tensors) if t is x))
        return found

    def _check_writes(self, op: Any, args: Any, kwargs: Any, tensors: Sequence[Given]) -> None:
        """PyTorch says what is wrong with such a call, on tensors without memory."""
        for number, result in zip(self._targets, self._results, strict=True):
            if number is None:
                continue
            target = tensors[number]
            if result is None or not isinstance(target, torch.Tensor):
                raise OperatorRefused("nothing to write")
            is_out = bool(self._form.drops)
            if tuple(target.shape) != result.shape and (not is_out or target.numel()):
                raise OperatorRefused("an argument is resized")
            if _overlaps(target):
                raise OperatorRefused("elements of an argument share memory")
        mode, given, named = fakes(args, kwargs)
        try:
            with mode:
                op(*given, **named)
        except Exception as error:
            raise OperatorRefused(f"{type(error).__name__}: {error}".partition("\n")[0]) from error

    def __call__(self, tensors: Sequence[Given]) -> Any:
        """Run it on tensors that are as those that it was made for."""
        index = self._index
        pairs = zip(self._reads, self._dtypes, strict=True)
        if index:
            made = self._steps([on_device(tensors[i], d, index) for i, d in pairs])
            return self._given(made, tensors, self._placed)
        payloads = [_array(tensors[i], d) for i, d in pairs]
        if self._compiled is not None and OBSERVER.now is None:
            return self._given(self._compiled(payloads), tensors, self._adopted)
        made = self._steps(payloads)
        if self._copies is None:
            self._copies = _shared(made, [*payloads, *self._steps.known])
        for i, copies in enumerate(self._copies):
            array = np.asarray(made[i])
            if copies or not (array.flags.c_contiguous and array.flags.writeable):
                array = np.array(array, order="C")
            made[i] = array
        return self._given(made, tensors, self._adopted)

    def _given(self, made: list[Any], tensors: Sequence[Given], wrap: Any) -> Any:
        form = self._form
        results: list[Any] = []
        arrays = iter(made)
        for target, result in zip(self._targets, self._results, strict=True):
            array = None if result is None else next(arrays)
            if target is not None:
                _store(tensors[target], array, result)
                results.append(tensors[target])
            else:
                results.append(None if result is None else wrap(array, result))
        if self._returns_nothing:
            return None
        if form.gives is not None:
            return tuple([results[i] for i in form.gives])
        return results[0] if self._is_single else tuple(results)

    def _adopted(self, array: Any, result: ReturnedTensor) -> torch.Tensor:
        return adopt(_host_tensor(array, result), 0)

    def _placed(self, array: DeviceArray, result: ReturnedTensor) -> torch.Tensor:
        strides = None if result.place is None else result.place.strides
        made = allocate(result.shape, strides, result.dtype, self._index)
        memory_of(made).replace(array)
        return made

    # -- calls that come often -----------------------------------------------------------------

    def warm(
        self, op: Any, call: tuple[Any, Any], tensors: Sequence[Given], run: Callable[..., Any]
    ) -> None:
        """Compile the call, where that pays: this is not the last one of its kind.

        Args:
            op: the operator.
            call: its arguments and names.
            tensors: as for a call.
            run: takes the operator and arguments.
        """
        given = [tensors[i] for i in self._reads]
        if self._index or not hot.is_worth_it(self._graph, given):
            return
        try:
            compiled = hot.CompiledCall(self._graph, [hot.seen(t) for t in given])
            arrays = [_array(t, d) for t, d in zip(given, self._dtypes, strict=True)]
            compiled(arrays)
        except TreadleError as error:
            get_logger("torch").info("%s stays op by op: %s", op.name(), error)
            return
        self._compiled = compiled
        places = self._places(tensors)
        if places is not None and hot.is_small([*given, *places], compiled.peak):
            returns, opens = self._returns(places), self._form.opened is not None
            hot.add(op, call, compiled, tensors, places, returns, run, opens=opens)

    def _places(self, tensors: Sequence[Given]) -> list[hot.ResultPlace] | None:
        """Return the places of results that are tensors; None if an argument is cast or resized."""
        made = []
        for target, result in zip(self._targets, self._results, strict=True):
            if result is None:
                continue
            if target is not None:
                tensor: Any = tensors[target]
                if tensor.dtype is not result.dtype or tuple(tensor.shape) != result.shape:
                    return None
            made.append(_place(result, target))
        return made

    def _returns(self, places: Sequence[hot.ResultPlace]) -> tuple[list[int], int]:
        """Return the results of native code, and their form; see `Entry`."""
        outputs = iter(range(len(places)))
        found = []
        for result, target in zip(self._results, self._targets, strict=True):
            number = -1 if result is None else next(outputs)
            found.append(number if target is None else -2 - target)
        if self._returns_nothing:
            return [], NO_RESULT
        if self._form.gives is not None:
            return [found[i] for i in self._form.gives], AS_TUPLE
        return found, ONE_RESULT if self._is_single else AS_TUPLE


def _element(given: Given) -> np.dtype[Any]:
    """NumPy's type of what a program reads."""
    return np.dtype(np.float64) if isinstance(given, float) else element_type(given.dtype)


def _place(result: ReturnedTensor, target: int | None) -> hot.ResultPlace:
    """Return the place of a result on the host."""
    dtype, shape = result.dtype, result.shape
    strides = row_major_strides(shape) if result.place is None else result.place.strides
    repeats = 1
    for extent, step in zip(shape, strides, strict=True):
        repeats *= extent if not step else 1
    nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64)) // max(repeats, 1)
    type_, device = dlpack_type(*DLPACK_TYPES[dtype]), dlpack_device(EXTERNAL, 0)
    return hot.ResultPlace(dtype, type_, device, shape, strides, nbytes, target)


def _host_tensor(array: Any, result: ReturnedTensor) -> torch.Tensor:
    """A result on the host as a tensor of the CPU on its memory."""
    made = to_tensor(array, result.dtype)
    return made if result.place is None else result.place.given(made)


def _store(target: Any, array: Any, result: Any) -> None:
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
    """Return for each result whether others share its memory; it is the same at every call."""
    found = []
    for i, array in enumerate(made):
        array = np.asarray(array)
        against = [*others, *made[:i]]
        found.append(any(np.may_share_memory(array, np.asarray(x)) for x in against))
    return found


def _array(given: Given, dtype: np.dtype[Any]) -> Any:
    """The memory of a tensor as an array; a number as one."""
    if isinstance(given, float):
        return np.array(given)
    if given.device.type != NAME:
        return to_array(given)
    return memory_of(given).view(given, dtype)


def on_device(given: Given, dtype: np.dtype[Any], index: int) -> DeviceArray:
    """A tensor, or a number, as an array of the device."""
    if isinstance(given, float):
        return DeviceArray(place(index).open(), dtype, (), host=np.array(given))
    if given.device.type != NAME:
        host = to_array(given).copy()
        return DeviceArray(place(index).open(), host.dtype, host.shape, host=host)
    memory: StorageBytes = memory_of(given)
    nbytes = given.numel() * given.dtype.itemsize
    if given.is_contiguous() and nbytes == given.untyped_storage().nbytes():
        shape = (*given.shape, 2) if given.dtype in PARTS else tuple(given.shape)
        return memory.array(dtype, shape)
    host = np.array(memory.view(given, dtype), order="C")
    return DeviceArray(place(index).open(), dtype, host.shape, host=host)
