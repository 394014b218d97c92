"""Sequences and optionals: lists of values, or one tensor where a loop of a program makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.base.symbol import Dim, is_identical
from treadle.interop.onnx.converters.shapes import extents, joined, part, reshaped
from treadle.interop.onnx.nodes import OnnxNode, Value, concrete, is_concrete, is_known, known
from treadle.interop.onnx.registry import converts
from treadle.interop.onnx.sizes import Extents, extent_as
from treadle.ops.gather import Take
from treadle.ops.movement import Reshape, Transpose
from treadle.tensor import Tensor


class Rows:
    """A sequence whose length a program finds: its values, which have one shape, as rows.

    Args:
        tensor: [length, *shape].

    Attributes:
        tensor: the same.
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def inserted(self, node: OnnxNode, value: Value, position: Value) -> Rows:
        """Return the sequence with one more value, at its end or beginning."""
        shape, own = extents(value), extents(self.tensor)[1:]
        if len(shape) != len(own) or not all(map(is_identical, shape, own)):
            raise node.refuse(
                f"a sequence of {list(own)} that a loop makes takes a value of {list(shape)}",
                "insert values of one shape, or run the model eagerly",
            )
        row, first = with_axis(value, 0), self._place(node, position, (None, 0)) == 0
        return Rows(joined(alike([row, self.tensor] if first else [self.tensor, row]), 0))

    def erased(self, node: OnnxNode, position: Value) -> Rows:
        """Return the sequence without its last or first value."""
        length = extents(self.tensor)[0]
        if self._place(node, position, (None, 0, -1)) == 0:
            return Rows(part(self.tensor, 0, 1, length))
        return Rows(part(self.tensor, 0, 0, length - 1))

    def at(self, position: Value) -> Value:
        """Return one value."""
        place = self.tensor.constant(position.array) if is_known(position) else position
        return Take(0)(self.tensor, place.reshape(()))

    def length(self) -> Value:
        """Return how many values there are."""
        return extent_as(self.tensor, extents(self.tensor)[0], dt.int64)

    def concatenated(self, axis: int, new_axis: bool) -> Value:
        """Return all values along an axis, or along a new one."""
        shape = extents(self.tensor)
        where = axis % (len(shape) - (0 if new_axis else 1))
        order = [*range(1, where + 1), 0, *range(where + 1, len(shape))]
        moved = self.tensor if where == 0 else Transpose(tuple(order))(self.tensor)
        if new_axis:
            return moved
        one = shape[1:]
        merged = (*one[:where], shape[0] * one[where], *one[where + 1 :])
        return Reshape(merged)(moved)

    def _place(self, node: OnnxNode, position: Value, taken: tuple[int | None, ...]) -> int | None:
        place = None
        if position is not None:
            place = int(concrete(position, node, "the position").reshape(-1)[0])
        if place not in taken:
            raise node.refuse(
                f"position {place} of a sequence that a loop makes",
                "insert and erase at its ends, or run the model eagerly",
            )
        return place


def as_rows(node: OnnxNode, sequence: Any) -> Any:
    """The values of a sequence as one tensor; there are some.

    Raises:
        UnsupportedOp: their shapes differ.
    """
    if isinstance(sequence, Rows):
        return sequence.tensor
    if not isinstance(sequence, list):
        raise node.refuse("one branch or turn gives a sequence, another one none")
    if not sequence:
        raise node.refuse("what an empty sequence holds is not known", "run the model eagerly")
    shapes = [extents(v) for v in sequence]
    if any(len(s) != len(shapes[0]) or not all(map(is_identical, s, shapes[0])) for s in shapes):
        raise node.refuse(
            "a loop carries a sequence of values of several shapes", "run the model eagerly"
        )
    return joined(alike([with_axis(v, 0) for v in sequence]), 0)


def no_rows(dtype: DType, shape: Sequence[Dim]) -> Tensor:
    """No values of a type, as rows."""
    return Tensor(0, dtype=dtype).broadcast_to((0, *shape))


def alike(values: list[Value]) -> list[Value]:
    """Values that are all on the host, or all in the program."""
    anchor = next((v for v in values if not is_known(v)), None)
    if anchor is None:
        return values
    return [anchor.constant(v.array) if is_known(v) else v for v in values]


def with_axis(x: Value, axis: int) -> Value:
    """The value with one more axis, of extent 1."""
    shape = list(extents(x))
    shape.insert(axis, 1)
    return reshaped(x, shape)


def computed(value: Value) -> Value:
    """The value; extents as what the program computes."""
    return value.computed() if isinstance(value, Extents) else value


def entry(x: Value, axis: int, i: int) -> Value:
    """One of the parts of a value along an axis, which it loses."""
    one = part(x, axis, i, i + 1)
    return reshaped(one, [d for j, d in enumerate(extents(one)) if j != axis])


# -- operators ---------------------------------------------------------------------------------


def _place(node: OnnxNode, position: Value, default: int) -> int:
    if position is None:
        return default
    return int(concrete(position, node, "the position").reshape(-1)[0])


@converts("SequenceConstruct", separate=True)
def _sequence(node: OnnxNode, *values: Value) -> Value:
    return list(values)


@converts("SequenceEmpty")
def _sequence_empty(node: OnnxNode) -> Value:
    return []


@converts("SequenceInsert", separate=True)
def _sequence_insert(
    node: OnnxNode, sequence: list[Value] | Rows, value: Value, position: Value = None
) -> Value:
    if isinstance(sequence, Rows):
        return sequence.inserted(node, value, position)
    made = list(sequence)
    at = _place(node, position, len(made))
    made.insert(at + len(made) if at < 0 else at, value)
    return made


@converts("SequenceErase", separate=True)
def _sequence_erase(node: OnnxNode, sequence: list[Value] | Rows, position: Value = None) -> Value:
    if isinstance(sequence, Rows):
        return sequence.erased(node, position)
    made = list(sequence)
    del made[_place(node, position, -1)]
    return made


@converts("SequenceAt", separate=True)
def _sequence_at(node: OnnxNode, sequence: list[Value] | Rows, position: Value) -> Value:
    if isinstance(sequence, list) and is_concrete(position):
        return sequence[_place(node, position, 0)]
    return Rows(as_rows(node, sequence)).at(position)


@converts("SequenceLength", separate=True)
def _sequence_length(node: OnnxNode, sequence: list[Value] | Rows) -> Value:
    if isinstance(sequence, Rows):
        return sequence.length()
    return known(np.array(len(sequence), np.int64))


@converts("ConcatFromSequence")
def _concat_from_sequence(node: OnnxNode, sequence: list[Value] | Rows) -> Value:
    axis, new_axis = int(node.attributes["axis"]), bool(node.attr("new_axis", 0))
    if isinstance(sequence, Rows):
        return sequence.concatenated(axis, new_axis)
    if not new_axis:
        return joined(sequence, axis)
    where = axis % (len(extents(sequence[0])) + 1)
    return joined([with_axis(v, where) for v in sequence], where)


@converts("SplitToSequence", host=(1,), separate=True)
def _split_to_sequence(node: OnnxNode, x: Value, sizes: Array | None = None) -> Value:
    axis = node.place(node.attr("axis", 0), len(extents(x)))
    extent = extents(x)[axis]
    if sizes is None:
        keep = bool(node.attr("keepdims", 1))
        return [part(x, axis, i, i + 1) if keep else entry(x, axis, i) for i in range(extent)]
    if sizes.ndim == 0:
        step = int(sizes)
        ends = [min(i + step, extent) for i in range(0, extent, step)]
    else:
        ends = np.cumsum(sizes).tolist()
    return [part(x, axis, a, b) for a, b in zip([0, *ends], ends, strict=False)]


@converts("SequenceMap", separate=True)
def _sequence_map(node: OnnxNode, *inputs: Value) -> tuple[Value, ...]:
    body: onnx.GraphProto = node.attributes["body"]
    if any(isinstance(v, Rows) for v in inputs):
        raise node.refuse("it maps a sequence that a loop makes", "run the model eagerly")
    first: list[Value] = inputs[0]
    columns: list[list[Value]] = [[] for _ in body.output]
    for i in range(len(first)):
        given = [v[i] if isinstance(v, list) else v for v in inputs]
        for column, value in zip(columns, node.run(body, given), strict=True):
            column.append(value)
    return tuple(columns)


# -- optionals ---------------------------------------------------------------------------------


@converts("Optional", separate=True)
def _optional(node: OnnxNode, value: Value = None) -> Value:
    return value


@converts("OptionalGetElement", separate=True)
def _optional_get(node: OnnxNode, value: Value) -> Value:
    if value is None:
        raise node.refuse("the optional is empty", "ask OptionalHasElement first")
    return value


@converts("OptionalHasElement", separate=True)
def _optional_has(node: OnnxNode, value: Any = None) -> Value:
    return known(np.array(value is not None))
