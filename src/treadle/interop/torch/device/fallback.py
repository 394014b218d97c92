"""Calls without a kernel: PyTorch's for the CPU, on the same memory, counted by operator."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from treadle.backends.api import no
from treadle.engine.eager import fallback, tally
from treadle.interop.torch.device import generators, private
from treadle.interop.torch.device.memory import (
    adopt,
    host_alias,
    host_twin,
    memory_of,
    set_storage,
)
from treadle.interop.torch.device.places import NAME
from treadle.interop.torch.native.entries import DLPACK_TYPES


class Traits(NamedTuple):
    """Facts from an operator's schema.

    Attributes:
        name: as in `aten::add.out`.
        written: arguments that are written to, by position or name.
        tensors: positions of arguments that are one tensor, where a number may stand.
        generator: position of the generator, -1 if it is given by name, None if there is none.
        returned: for each result the argument that it is, or None.
    """

    name: str
    written: frozenset[int | str]
    tensors: tuple[int, ...]
    generator: int | None
    returned: tuple[int | str | None, ...]


_TRAITS: dict[Any, Traits] = {}


def traits_of(op: Any) -> Traits:
    """Return the facts from an operator's schema; read once."""
    found = _TRAITS.get(op)
    if found is None:
        found = _TRAITS[op] = _read(op)
    return found


def _read(op: Any) -> Traits:
    arguments = op._schema.arguments
    keys: list[int | str] = [a.name if a.kwarg_only else i for i, a in enumerate(arguments)]
    pairs = list(zip(keys, arguments, strict=True))
    written = {
        k: a.alias_info.before_set for k, a in pairs if a.alias_info and a.alias_info.is_write
    }
    if op.name() == "aten::native_batch_norm":  # whose schema keeps quiet about it
        written |= {3: set(), 4: set()}
    generator = next((k for k, a in pairs if "Generator" in str(a.type)), None)
    returned = [
        next(
            (k for k, names in written.items() if r.alias_info and names & r.alias_info.before_set),
            None,
        )
        for r in op._schema.returns
    ]
    return Traits(
        op.name(),
        frozenset(written),
        tuple(i for i, (_, a) in enumerate(pairs) if str(a.type) == "Tensor" and not a.kwarg_only),
        -1 if isinstance(generator, str) else generator,
        tuple(returned),
    )


def apart(one: str, other: object) -> RuntimeError:
    """Return PyTorch's error for tensors on two devices."""
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{one} and {other}!"
    )


class _Call:
    """One call on the host: arguments as tensors of the CPU, and back."""

    def __init__(self) -> None:
        self.index = -1
        self.moved = 0
        self.aliases: list[tuple[torch.Tensor, torch.Tensor, bool]] = []

    def tensor(self, given: torch.Tensor, written: bool) -> torch.Tensor:
        """A tensor of the CPU on the memory of one of ours."""
        if given.device.type != NAME:
            return given
        if self.index < 0:
            self.index = given.device.index
        elif self.index != given.device.index:
            raise apart(f"{NAME}:{self.index}", given.device)
        if self.index:
            self.moved += memory_of(given).missing
        alias = host_alias(given, written=written)
        self.aliases.append((given, alias, written))
        return alias

    def value(self, given: Any, written: bool = False) -> Any:
        """An argument as the CPU takes it."""
        if isinstance(given, torch.Tensor):
            return self.tensor(given, written)
        if isinstance(given, (list, tuple)):
            return type(given)([self.value(v, written) for v in given])
        if isinstance(given, torch.device) and given.type == NAME:
            self.index = given.index or 0
            return torch.device("cpu")
        return given

    def result(self, made: Any) -> Any:
        """Return the CPU's result, on the device."""
        if isinstance(made, torch.Tensor):
            return self._wrapped(made)
        if isinstance(made, (list, tuple)):
            return type(made)([self.result(v) for v in made])
        return made

    def _wrapped(self, made: torch.Tensor) -> torch.Tensor:
        if made._is_zerotensor():  # Gradients that are 0 everywhere come without memory.
            made = torch.zeros(made.size(), dtype=made.dtype)
        address = made.untyped_storage().data_ptr()
        for given, alias, _ in self.aliases:
            if made is alias:
                return given
            if address and alias.untyped_storage().data_ptr() == address:
                if alias.dtype is not made.dtype:
                    made = made.clone()
                    break
                offset = made.storage_offset() - alias.storage_offset() + given.storage_offset()
                view: torch.Tensor = torch.ops.aten.as_strided.default.redispatch(
                    private.CPU_KEY, given, made.size(), made.stride(), offset
                )
                return view
        return adopt(made, max(self.index, 0))

    def settle(self) -> None:
        """Take over what arguments became that are written to."""
        for given, alias, written in self.aliases:
            if written and (
                alias.untyped_storage().data_ptr() != given.untyped_storage().data_ptr()
                or alias.size() != given.size()
                or alias.stride() != given.stride()
            ):
                set_storage(given, alias, alias.size(), alias.stride())


def _row(name: str, index: int, why: str) -> tally.Fallen:
    """The row to count in, where falling back is allowed."""
    device, reason = f"{NAME}:{index}", no("op", why)
    if index or fallback.policy(name) == "error":
        return fallback.admit(name, device, reason)
    # On the host's own memory nothing is moved, so nobody is warned.
    return tally.fallen(name, device, reason.reason, f"{reason.reason}: {reason.message}")


def on_host(op: Any, args: Sequence[Any], kwargs: dict[str, Any], why: str) -> Any:
    """Run an operator with PyTorch's kernel for the CPU.

    Args:
        op: the operator.
        args, kwargs: what it was called with.
        why: the device does not run it.

    Raises:
        UnsupportedOp: falling back is an error here; see `treadle.fallback`.
    """
    traits, call = traits_of(op), _Call()
    started = time.perf_counter()
    written = traits.written
    given = [call.value(a, i in written) for i, a in enumerate(args)]
    named = {k: call.value(a, k in written) for k, a in kwargs.items()}
    for i in traits.tensors:
        if i < len(given) and isinstance(given[i], (bool, int, float, complex)):
            given[i] = torch.tensor(given[i], device="cpu")
    index = max(call.index, 0)
    _generate(traits.generator, index, given, named)
    # What reads no tensor, or draws numbers, is made on the host by design.
    made_here = traits.generator is not None or all(w for _, _, w in call.aliases)
    row = None if made_here else _row(traits.name, index, why)
    made = op(*given, **named)
    if written:
        call.settle()
        results = _returned(traits, call, made, args, kwargs)
    else:
        results = call.result(made)
    if row is not None:
        fallback.count(row, call.moved, time.perf_counter() - started)
    return results


class HostCall:
    """A kind of call that runs on the host, as `on_host` does, with what stays from call to call.

    Args:
        op: the operator.
        args, kwargs: its arguments.
        why: the device does not run it.

    Attributes:
        why: as given.
    """

    def __init__(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], why: str) -> None:
        self._op = op
        self._traits = traits = traits_of(op)
        self.why = why
        keyed: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        found = [(i, a) for i, a in keyed if isinstance(a, torch.Tensor)]
        self._tensors = [(i, i in traits.written) for i, _ in found]
        known = [i for i in traits.tensors if i < len(args)]
        self._numbers = [i for i in known if not isinstance(args[i], torch.Tensor)]
        self._index = found[0][1].device.index if found else 0
        self._is_plain = _is_plain(op, args, kwargs, dict(found))
        self._keeps_storages = not traits.written

    def __call__(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run it with arguments of the same kind: only what tensors hold differs."""
        if not self._is_plain:
            return on_host(self._op, args, kwargs, self.why)
        if not self._keeps_storages:
            return self._watched(args, kwargs)
        started = time.perf_counter()
        call, traits, index = _Call(), self._traits, self._index
        call.index = index
        given, named = list(args), dict(kwargs)
        for key, written in self._tensors:
            of: Any = given if key.__class__ is int else named
            tensor = of[key]
            if index:
                memory = memory_of(tensor)
                call.moved += memory.missing
                memory.host(written=written)
            of[key] = twin = host_twin(tensor)
            call.aliases.append((tensor, twin, written))
        for i in self._numbers:
            given[i] = torch.tensor(given[i], device="cpu")
        row = _row(traits.name, index, self.why)
        made = self._op(*given, **named)
        if traits.written:
            call.settle()  # what they hold may decide sizes
            results = _returned(traits, call, made, args, kwargs)
        else:
            results = call.result(made)
        fallback.count(row, call.moved, time.perf_counter() - started)
        return results

    def _watched(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run it the slow way, and note whether arguments that it writes to keep their sizes."""
        given = [args[k] if isinstance(k, int) else kwargs[k] for k, w in self._tensors if w]
        before = [(t.data_ptr(), t.size(), t.stride()) for t in given]
        results = on_host(self._op, args, kwargs, self.why)
        same = before == [(t.data_ptr(), t.size(), t.stride()) for t in given]
        packet = self._op.overloadpacket
        tags = [tag for name in packet.overloads() for tag in getattr(packet, name).tags]
        self._keeps_storages = same and torch.Tag.dynamic_output_shape not in tags
        return results


def _is_plain(
    op: Any, args: Sequence[Any], kwargs: dict[str, Any], tensors: dict[int | str, torch.Tensor]
) -> bool:
    """Return whether a call reads a tensor, and takes plain ones of one device, and numbers."""
    traits = traits_of(op)
    others = [a for a in [*args, *kwargs.values()] if not isinstance(a, torch.Tensor)]
    return (
        traits.generator is None
        and not tensors.keys() <= traits.written
        and all(map(_is_number, others))
        and all(map(_has_twin, tensors.values()))
        and len({t.device for t in tensors.values()}) == 1
    )


def _is_number(value: Any) -> bool:
    """Return whether the host takes an argument as it is."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_number, value))
    return isinstance(value, (int, float, str, type(None), torch.dtype))


def _has_twin(tensor: torch.Tensor) -> bool:
    """Return whether `host_twin` takes a tensor."""
    known = tensor.dtype in DLPACK_TYPES and not tensor.dtype.is_complex
    return known and tensor.device.type == NAME and tensor.numel() > 0


def _generate(where: int | None, index: int, given: list[Any], named: dict[str, Any]) -> None:
    """Pass the device's own generator of random numbers where none is given."""
    if where is None:
        return
    if 0 <= where < len(given):
        if given[where] is None:
            given[where] = generators.of(index)
    elif named.get("generator") is None:
        named["generator"] = generators.of(index)


def _returned(
    traits: Traits, call: _Call, made: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Results, which may be arguments that were written to."""
    if not traits.returned:
        return None
    several = isinstance(made, (tuple, list)) and len(traits.returned) > 1
    results = []
    for key, value in zip(traits.returned, made if several else [made], strict=True):
        argument = None
        if isinstance(key, int) and key < len(args):
            argument = args[key]
        elif key is not None:
            argument = kwargs.get(str(key))
        results.append(call.result(value) if argument is None else argument)
    return tuple(results) if several else results[0]
