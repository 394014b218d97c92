"""Branches, loops, sequences and optionals, run by Python; programs capture what ran."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from treadle.interop.onnx.converters.shapes import extents, joined, part, reshaped
from treadle.interop.onnx.nodes import Array, Node, Value, concrete, is_known, known
from treadle.interop.onnx.registry import converts
from treadle.ops.movement import Flip

MOST_TURNS = 10_000_000
"""Of one loop: more than any model means."""


@converts("If", host=(0,))
def _if(node: Node, condition: Array) -> tuple[Value, ...]:
    chosen = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
    return tuple(node.run(node.attributes[chosen], ()))


@converts("Loop", host=(0, 1), separate=True)
def _loop(
    node: Node, most: Array | None = None, condition: Array | None = None, *carried: Value
) -> tuple[Value, ...]:
    body: onnx.GraphProto = node.attributes["body"]
    turns = MOST_TURNS if most is None else int(most.reshape(-1)[0])
    goes_on = True if condition is None else bool(condition.reshape(-1)[0])
    state = list(carried)
    collected: list[list[Value]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    turn = 0
    while goes_on and turn < turns:
        inputs = [known(np.array(turn, np.int64)), known(np.array(goes_on)), *state]
        test, *made = node.run(body, inputs[: len(body.input)])
        goes_on = bool(concrete(test, node, "the condition").reshape(-1)[0])
        state = made[: len(carried)]
        for column, value in zip(collected, made[len(carried) :], strict=True):
            column.append(value)
        turn += 1
    outs = body.output[1 + len(carried) :]
    return (*state, *(_stacked(c, o) for c, o in zip(collected, outs, strict=True)))


def _stacked(values: list[Value], declared: onnx.ValueInfoProto, axis: int = 0) -> Value:
    """Values of all turns along a new axis; none of them: an empty array of the declared type."""
    if not values:
        kind = declared.type.tensor_type
        shape = [d.dim_value for d in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type or 1)
        return known(np.zeros((0, *shape), dtype))
    rank = len(extents(values[0])) + 1
    where = axis % rank
    return joined(_alike([_with_axis(v, where) for v in values]), where)


def _alike(values: list[Value]) -> list[Value]:
    anchor = next((v for v in values if not is_known(v)), None)
    if anchor is None:
        return values
    return [anchor.constant(v.array) if is_known(v) else v for v in values]


def _with_axis(x: Value, axis: int) -> Value:
    shape = list(extents(x))
    shape.insert(axis, 1)
    return reshaped(x, shape)


@converts("Scan", since=9, separate=True)
def _scan(node: Node, *inputs: Value) -> tuple[Value, ...]:
    body: onnx.GraphProto = node.attributes["body"]
    count = int(node.attributes["num_scan_inputs"])
    state, entries = list(inputs[: len(inputs) - count]), inputs[len(inputs) - count :]
    axes = node.ints("scan_input_axes", [0] * count)
    backward = node.ints("scan_input_directions", [0] * count)
    kept = len(state)
    columns: list[list[Value]] = [[] for _ in range(len(body.output) - kept)]
    length = extents(entries[0])[axes[0]]
    for turn in range(length):
        seen = [
            _entry(x, a % len(extents(x)), length - 1 - turn if b else turn)
            for x, a, b in zip(entries, axes, backward, strict=True)
        ]
        made = node.run(body, [*state, *seen])
        state = made[:kept]
        for column, value in zip(columns, made[kept:], strict=True):
            column.append(value)
    out_axes = node.ints("scan_output_axes", [0] * len(columns))
    turned = node.ints("scan_output_directions", [0] * len(columns))
    results = []
    for column, axis, back, declared in zip(
        columns, out_axes, turned, body.output[kept:], strict=True
    ):
        results.append(_stacked(column[::-1] if back else column, declared, axis))
    return (*state, *results)


def _entry(x: Value, axis: int, i: int) -> Value:
    one = part(x, axis, i, i + 1)
    return reshaped(one, [d for j, d in enumerate(extents(one)) if j != axis])


@converts("Scan", separate=True)
def _scan_8(node: Node, lengths: Value, *inputs: Value) -> tuple[Value, ...]:
    """Before opset 9 there was a batch axis around everything."""
    body: onnx.GraphProto = node.attributes["body"]
    count = int(node.attributes["num_scan_inputs"])
    batches = extents(inputs[0])[0]
    backward = node.ints("directions", [0] * count)
    rows = []
    for batch in range(batches):
        own = [_entry(x, 0, batch) for x in inputs]
        state, entries = own[: len(own) - count], own[len(own) - count :]
        entries = [Flip((0,))(e) if b else e for e, b in zip(entries, backward, strict=True)]
        columns: list[list[Value]] = [[] for _ in range(len(body.output) - len(state))]
        for turn in range(extents(entries[0])[0]):
            made = node.run(body, [*state, *(_entry(e, 0, turn) for e in entries)])
            state = made[: len(state)]
            for column, value in zip(columns, made[len(state) :], strict=True):
                column.append(value)
        outs = body.output[len(state) :]
        rows.append([*state, *(_stacked(c, o) for c, o in zip(columns, outs, strict=True))])
    return tuple(
        joined(_alike([_with_axis(v, 0) for v in column]), 0) for column in zip(*rows, strict=True)
    )


# -- sequences ---------------------------------------------------------------------------------


def _place(position: Array | None, default: int) -> int:
    return default if position is None else int(position.reshape(-1)[0])


@converts("SequenceConstruct", separate=True)
def _sequence(node: Node, *values: Value) -> Value:
    return list(values)


@converts("SequenceEmpty")
def _sequence_empty(node: Node) -> Value:
    return []


@converts("SequenceInsert", host=(2,), separate=True)
def _sequence_insert(
    node: Node, sequence: list[Value], value: Value, position: Array | None = None
) -> Value:
    made = list(sequence)
    at = _place(position, len(made))
    made.insert(at + len(made) if at < 0 else at, value)
    return made


@converts("SequenceErase", host=(1,), separate=True)
def _sequence_erase(node: Node, sequence: list[Value], position: Array | None = None) -> Value:
    made = list(sequence)
    del made[_place(position, -1)]
    return made


@converts("SequenceAt", host=(1,), separate=True)
def _sequence_at(node: Node, sequence: list[Value], position: Array) -> Value:
    return sequence[_place(position, 0)]


@converts("SequenceLength", separate=True)
def _sequence_length(node: Node, sequence: list[Value]) -> Value:
    return known(np.array(len(sequence), np.int64))


@converts("ConcatFromSequence")
def _concat_from_sequence(node: Node, sequence: list[Value]) -> Value:
    axis = int(node.attributes["axis"])
    if not node.attr("new_axis", 0):
        return joined(sequence, axis)
    where = axis % (len(extents(sequence[0])) + 1)
    return joined([_with_axis(v, where) for v in sequence], where)


@converts("SplitToSequence", host=(1,), separate=True)
def _split_to_sequence(node: Node, x: Value, sizes: Array | None = None) -> Value:
    axis = node.attr("axis", 0) % len(extents(x))
    extent = extents(x)[axis]
    if sizes is None:
        keep = bool(node.attr("keepdims", 1))
        return [part(x, axis, i, i + 1) if keep else _entry(x, axis, i) for i in range(extent)]
    if sizes.ndim == 0:
        step = int(sizes)
        ends = [min(i + step, extent) for i in range(0, extent, step)]
    else:
        ends = np.cumsum(sizes).tolist()
    return [part(x, axis, a, b) for a, b in zip([0, *ends], ends, strict=False)]


@converts("SequenceMap", separate=True)
def _sequence_map(node: Node, *inputs: Value) -> tuple[Value, ...]:
    body: onnx.GraphProto = node.attributes["body"]
    first: list[Value] = inputs[0]
    columns: list[list[Value]] = [[] for _ in body.output]
    for i in range(len(first)):
        given = [v[i] if isinstance(v, list) else v for v in inputs]
        for column, value in zip(columns, node.run(body, given), strict=True):
            column.append(value)
    return tuple(columns)


# -- optionals ---------------------------------------------------------------------------------


@converts("Optional", separate=True)
def _optional(node: Node, value: Value = None) -> Value:
    return value


@converts("OptionalGetElement", separate=True)
def _optional_get(node: Node, value: Value) -> Value:
    if value is None:
        raise node.refuse("the optional is empty", "ask OptionalHasElement first")
    return value


@converts("OptionalHasElement", separate=True)
def _optional_has(node: Node, value: Any = None) -> Value:
    return known(np.array(value is not None))
