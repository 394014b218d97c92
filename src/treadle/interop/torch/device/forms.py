"""Operators that write into arguments, as functions that do not, and where their results go."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from treadle.interop.torch.device import scalars, steps

aten = torch.ops.aten


class OperatorForm(NamedTuple):
    """The way in which an operator is computed.

    Attributes:
        compute: an operator or a function, which writes nothing.
        drops: names of the arguments that it does not take.
        writes: for each of the first results of `compute` the argument that it is written into, by
            position or name; None: it is the operator's own result. Lists of tensors are written
            into lists.
        gives: the results of `compute` that the operator returns; arguments among them stand for
            themselves. None: what `compute` returns, as it returns it.
        opened: the same for calls with real numbers that may change: it takes them as tensors
            without axes. None: they never do.
    """

    compute: Any
    drops: frozenset[str]
    writes: tuple[int | str | None, ...]
    gives: tuple[int, ...] | None
    opened: Any = None


def _index_put(x: Any, indices: Any, values: Any, accumulate: bool = False, _: Any = False) -> Any:
    return aten.index_put(x, indices, values, accumulate)


_FORMS: dict[Any, OperatorForm | None] = {}
_BATCH_NORM = ("aten::native_batch_norm", "aten::_native_batch_norm_legit")
"""They write running means and variances, whether the schema says so or not."""


def form_of(op: Any) -> OperatorForm | None:
    """Return how an operator is computed; None where there is no way but the host's. Read once."""
    if op not in _FORMS:
        _FORMS[op] = _read(op)
    return _FORMS[op]


def _read(op: Any) -> OperatorForm | None:
    schema = op._schema
    name = schema.name.partition("::")[2]
    if op.namespace != "aten" or any("Generator" in str(a.type) for a in schema.arguments):
        return None
    if op.name() in _BATCH_NORM:
        functional = aten._native_batch_norm_legit_functional.default
        return OperatorForm(functional, frozenset(), (None, None, None, 3, 4), (0, 1, 2))
    if op.name() == "aten::_index_put_impl_":
        return OperatorForm(_index_put, frozenset(), (0,), None)
    if op in steps.STEPS:
        step, writes = steps.STEPS[op]
        return OperatorForm(step, frozenset(), writes, None, step)
    written = [a for a in schema.arguments if a.alias_info and a.alias_info.is_write]
    if written:
        return _opened(_writing(op, name, written))
    # A view, or what may be one, is PyTorch's business.
    is_view = any(r.alias_info for r in schema.returns)
    return None if is_view else _opened(OperatorForm(op, frozenset(), (), None))


def _opened(form: OperatorForm | None) -> OperatorForm | None:
    """The form with what takes real numbers as tensors, where there is a function for that."""
    return None if form is None else form._replace(opened=scalars.opened(form.compute))


def _writing(op: Any, name: str, written: list[Any]) -> OperatorForm | None:
    """The form of what writes into all of `out=`, or into one argument."""
    outs = frozenset(a.name for a in written if a.is_out)
    lists = str(written[0].type) == "List[Tensor]" and not outs
    if not lists and any(str(a.type) != "Tensor" for a in written):
        return None
    if len(written) != (len(outs) or 1):
        return None
    found = _functional(op, name if outs else name.removesuffix("_"), outs)
    if found is None or len(found._schema.returns) != len(written):
        return None
    place: Any = op._schema.arguments.index(written[0])
    keys = tuple(a.name for a in written) if outs else (place,)
    return OperatorForm(found, outs, keys, None)


def _functional(op: Any, name: str, outs: frozenset[str]) -> Any:
    """The overload that takes the same and writes nothing."""
    packet = getattr(aten, name, None)
    if packet is None:
        return None
    wanted = [(a.name, str(a.type)) for a in op._schema.arguments if a.name not in outs]
    for overload in packet.overloads():
        other = getattr(packet, overload)
        arguments = other._schema.arguments
        if any(a.alias_info and a.alias_info.is_write for a in arguments):
            continue
        if any(r.alias_info for r in other._schema.returns):
            continue
        if [(a.name, str(a.type)) for a in arguments] == wanted:
            return other
    return None
