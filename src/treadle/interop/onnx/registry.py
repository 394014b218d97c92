"""Registry of converters by ONNX operator; open to users.

Operators that an op declares as its own (`Op.onnx`) need no converter; what has neither is replaced
by the function that its ONNX schema defines, where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.base.errors import UnsupportedOp
from treadle.interop.onnx.nodes import OnnxNode, Value
from treadle.ops import REGISTRY
from treadle.ops.custom import custom_op_of_onnx
from treadle.ops.op import Op

Convert = Callable[..., Any]
"""Takes the node and its values; returns a value, or a tuple where there are several."""


@dataclass(frozen=True, slots=True)
class Converter:
    """Converter of nodes of one operator to ops.

    Attributes:
        convert: called with the node and one value per input; None stands for what is left out.
        since: the first version of the domain it is for.
        host: numbers of the inputs it gets as arrays of the host (or None), since they decide
            shapes; -1 stands for all.
        separate: inputs come as they are, some on the host, some not.
        symbols: what it gets on the host may hold extents that are expressions, as objects.
    """

    convert: Convert
    since: int = 1
    host: tuple[int, ...] = ()
    separate: bool = False
    symbols: bool = False


CONVERTERS: dict[tuple[str, str], list[Converter]] = {}


def converts(
    *names: str,
    domain: str = "",
    since: int = 1,
    host: tuple[int, ...] = (),
    separate: bool = False,
    symbols: bool = False,
) -> Callable[[Convert], Convert]:
    """Register a converter; a later one of the same version takes the place of an earlier one.

    Args:
        names: the operators.
        domain: their domain; "" is ONNX's own.
        since: the first version of the domain it is for; the newest that fits a model is taken.
        host: numbers of inputs that decide shapes and are handed over as NumPy arrays; -1: all.
        separate: do not turn arrays into constants beside tensors.
        symbols: take expressions among the extents that are handed over; without `host`, take
            `Extents` themselves.
    """

    def add(convert: Convert) -> Convert:
        for name in names:
            entries = CONVERTERS.setdefault((_domain(domain), name), [])
            entries[:] = [e for e in entries if e.since != since]
            entries.append(Converter(convert, since, host, separate, symbols))
            entries.sort(key=lambda e: -e.since)
        return convert

    return add


def find(node: OnnxNode) -> Converter | None:
    """The converter of a node's operator in its version; None if there is none."""
    for entry in CONVERTERS.get((_domain(node.domain), node.op_type), ()):
        if entry.since <= node.opset:
            return entry
    return _declared(node) if not _domain(node.domain) else _custom(node)


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _custom(node: OnnxNode) -> Converter | None:
    """A converter made of the op that a user registered for the operator."""
    kernel = custom_op_of_onnx(node.domain, node.op_type)
    if kernel is None:
        return None

    def convert(node: OnnxNode, *inputs: Value) -> Value:
        if any(x is None for x in inputs):
            raise node.refuse(f"{kernel.name} takes all of its inputs")
        return kernel(**{k: _setting(v) for k, v in node.attributes.items()}).outputs(*inputs)

    return Converter(convert)


def _setting(value: Any) -> Any:
    """An attribute as the op was given it: ONNX has no doubles, and no tuples."""
    if isinstance(value, list):
        return tuple(map(_setting, value))
    if isinstance(value, float) and math.isfinite(value):
        return float(np.format_float_positional(np.float32(value), trim="0"))
    return value


def _declared(node: OnnxNode) -> Converter | None:
    """A converter made of the declaration of an op that is the operator."""
    cls = _DECLARED.get(node.op_type)
    if cls is None or cls.onnx is None:
        return None
    pairs = cls.onnx.attributes

    def convert(node: OnnxNode, *inputs: Value) -> Value:
        given = {mine: node.attributes[his] for mine, his in pairs if his in node.attributes}
        operator: Any = cls
        try:
            made: Op = operator(
                **{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
            )
        except TypeError as error:
            raise UnsupportedOp(f"onnx {node.op_type}", str(error)) from error
        return made(*inputs)

    return Converter(convert)


_DECLARED: dict[str, type[Op]] = {
    c.onnx.op_type: c for c in REGISTRY.values() if c.onnx is not None
}
