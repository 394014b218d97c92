"""Branches, loops, sequences and optionals, run by Python; programs capture what ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import TreadleError, UnsupportedOp
from treadle.base.guards import data_decide
from treadle.base.modes import LOCAL
from treadle.base.symbol import Dim, Expr, evaluate, symbols_of
from treadle.interop.onnx.converters.shapes import extents, joined, part, reshaped
from treadle.interop.onnx.nodes import (
    OnnxNode,
    Value,
    concrete,
    is_concrete,
    is_known,
    known,
    supported,
)
from treadle.interop.onnx.registry import converts
from treadle.interop.onnx.sizes import Extents, Question
from treadle.jit.control import collecting_loop, cond, is_growing, scan, while_loop
from treadle.ops import logic
from treadle.ops.abstract import ArrayOperand
from treadle.ops.check import AssertEqual
from treadle.ops.creation import Iota
from treadle.ops.gather import Counted
from treadle.ops.movement import Flip, Transpose
from treadle.ops.select import Where
from treadle.tensor import Tensor

MOST_TURNS = 1_000_000
"""Of one loop that ends by its condition: more than any model means."""


@converts("If", separate=True, symbols=True)
def _if(node: OnnxNode, condition: Value) -> tuple[Value, ...]:
    if isinstance(condition, Extents):
        question = condition.array.reshape(-1)[0]
        if isinstance(question, Question):
            some = _of_some(node, question)
            return some or _either(node, condition.computed())
        condition = condition.numbers()
    if not is_known(condition) and LOCAL.capture is not None:
        return _either(node, condition)
    truth = concrete(condition, node, "the condition")
    chosen = "then_branch" if bool(truth.reshape(-1)[0]) else "else_branch"
    return tuple(node.run(node.attributes[chosen], ()))


def _of_some(node: OnnxNode, question: Question) -> tuple[Value, ...]:
    """The branch for some elements, which serves none of them, too, if the other one gives nothing.

    Exporters guard what would fail on an empty tensor so: ops here take no elements as well, and
    find nothing in nothing. () where it is another question.
    """
    nothing = question.asks_for_nothing()
    if nothing is None:
        return ()
    names = ("then_branch", "else_branch") if nothing else ("else_branch", "then_branch")
    empty = [extents(v) for v in map(_held, node.run(node.attributes[names[0]], ()))]
    if not all(0 in shape for shape in empty):
        return ()
    made = tuple(node.run(node.attributes[names[1]], ()))
    shapes = [tuple(map(_of_nothing, extents(v))) for v in made]
    return made if shapes == empty else ()


def _of_nothing(extent: Dim) -> Dim:
    """An extent where data decide that there is nothing."""
    if not data_decide(extent):
        return extent
    return evaluate(extent, {name: 0 for name in symbols_of(extent)})


def _either(node: OnnxNode, condition: Tensor) -> tuple[Value, ...]:
    """Both branches in the program that is being captured, which runs one of them.

    A branch that cannot be run on extents such as these is replaced by a check that fails.
    """
    branches = _Branches(node, condition.reshape(()))
    try:
        return branches.both(True)
    except TreadleError as error:
        if not branches.failed:
            raise branches.refused(error) from error
    try:
        return branches.both(branches.failed == "else_branch")
    except TreadleError as error:
        raise branches.refused(error) from error


class _Branches:
    """The two graphs of an If node.

    Attributes:
        failed: name of the one that could not be run, if there is one.
    """

    def __init__(self, node: OnnxNode, test: Tensor) -> None:
        self._node = node
        self._test = test
        self.failed = ""

    def both(self, first: bool) -> tuple[Value, ...]:
        """Capture the branch for `first`, then the other one, or a check in its place."""
        names = ("then_branch", "else_branch") if first else ("else_branch", "then_branch")
        held: list[Tensor] = []

        def one() -> tuple[Tensor, ...]:
            held[:] = self._run(names[0])
            return tuple(held)

        def other() -> tuple[Tensor, ...]:
            never = self.failed == names[1]
            return _never(self._test, first, held) if never else self._run(names[1])

        test = self._test if first else logic.LogicalNot()(self._test)
        made: tuple[Value, ...] = cond(test, one, other)
        return made

    def _run(self, name: str) -> tuple[Tensor, ...]:
        try:
            made = tuple(_held(v) for v in self._node.run(self._node.attributes[name], ()))
        except TreadleError:
            self.failed = name
            raise
        if not all(isinstance(v, Tensor) for v in made):
            raise self._node.refuse("a branch returns more than tensors", "run it eagerly")
        return made

    def refused(self, error: TreadleError) -> UnsupportedOp:
        """The error for branches that one program cannot hold."""
        return self._node.refuse(
            f"its condition is known only at run time, and: {error.problem}",
            "give results of equal types from both branches, or run the model eagerly",
        )


def _never(test: Tensor, wanted: bool, like: list[Tensor]) -> tuple[Tensor, ...]:
    """Values of the types of others, after a check that the condition is as wanted."""
    found = test.astype(dt.float32)
    checked = AssertEqual(0.0)(found.constant(float(wanted)), found)
    return tuple(checked.astype(v.type.dtype).broadcast_to(v.shape) for v in like)


def _held(value: Value) -> Value:
    """A result of a branch as a tensor, if it can be one."""
    if type(value) is ArrayOperand and supported(value.array.dtype):
        return Tensor(value.array, dtype=value.array.dtype)
    return value


@converts("Loop", separate=True, symbols=True)
def _loop(
    node: OnnxNode, most: Value = None, condition: Value = None, *carried: Value
) -> tuple[Value, ...]:
    body: onnx.GraphProto = node.attributes["body"]
    if isinstance(most, Extents) and is_known(condition) and _passes_on(body):
        results = _for_each(node, body, most, condition, carried)
        if results is not None:
            return results
    most, condition, *state = _without_extents([most, condition, *carried])
    if any(v is not None and not is_concrete(v) for v in (most, condition)):
        return _turning(node, body, most, condition, state)
    turns = None if most is None else int(concrete(most, node, "the limit").reshape(-1)[0])
    if (turns is None or turns > MOST_TURNS) and _never_ends(body):
        raise node.refuse(
            f"the loop has {turns or 'endless'} turns, and its condition never changes",
            "check the number of turns",
        )
    goes_on = condition is None or bool(concrete(condition, node, "the condition").reshape(-1)[0])
    collected: list[list[Value]] = [[] for _ in range(len(body.output) - 1 - len(state))]
    turn, count = 0, len(state)
    while goes_on and (turns is None or turn < turns):
        if turn == MOST_TURNS:
            raise node.refuse(f"the loop goes on after {turn} turns", "check its condition")
        inputs = [known(np.array(turn, np.int64)), known(np.array(goes_on)), *state]
        test, *made = node.run(body, inputs[: len(body.input)])
        if not is_concrete(test):
            if turn:
                problem = f"its condition is computed from turn {turn} on"
                raise node.refuse(problem, "run the model eagerly")
            return _turning(node, body, most, condition, state)
        goes_on = bool(concrete(test, node, "the condition").reshape(-1)[0])
        state = made[:count]
        for column, value in zip(collected, made[count:], strict=True):
            column.append(value)
        turn += 1
    outs = body.output[1 + count :]
    return (*state, *(_stacked(c, o) for c, o in zip(collected, outs, strict=True)))


def _without_extents(values: list[Value]) -> list[Value]:
    """The values with extents as numbers; computed, where data decide them."""
    return [
        (v.computed() if v.is_found else v.numbers()) if isinstance(v, Extents) else v
        for v in values
    ]


def _for_each(
    node: OnnxNode, body: onnx.GraphProto, most: Extents, condition: Value, carried: Sequence[Value]
) -> tuple[Value, ...] | None:
    """A loop with a turn for each of an open extent; None where its turns have to be written out.

    A state whose shape changes from turn to turn is a reason.
    """
    length = most.array.reshape(-1)[0]
    if not isinstance(length, Expr) or not (condition is None or bool(condition.array)):
        return None
    state = map(_computed, carried)
    try:
        loop = _Turns(node, body, [_held(v) for v in (None, condition, *state)])
        return loop.collected(most.anchor.apply(Iota(0, 1, length, dt.int64), ())[0])
    except TreadleError:
        return None


def _turning(
    node: OnnxNode, body: onnx.GraphProto, most: Value, condition: Value, carried: list[Value]
) -> tuple[Value, ...]:
    """A loop in the program that is being captured, whose turns are known when it runs.

    Where values are collected, a first loop finds the number of turns if the condition changes,
    since the result of the second one has that extent. A loop whose state grows is one.
    """
    loop = _Turns(node, body, [_held(v) for v in (most, condition, *carried)])
    try:
        return loop.collected() if len(body.output) - 1 > len(carried) else loop.state()
    except TreadleError as error:
        raise node.refuse(
            f"its number of turns is known only at run time, and: {error.problem}",
            "carry values of unchanging types and numbers of axes, or run the model eagerly",
        ) from error


class _Turns:
    """A Loop node as control flow of a program.

    Args:
        node: the node.
        body: its graph.
        values: limit, condition and what is carried.
    """

    def __init__(self, node: OnnxNode, body: onnx.GraphProto, values: list[Value]) -> None:
        most, condition, *self._carried = values
        if not all(isinstance(v, Tensor) for v in self._carried):
            raise node.refuse("it carries more than tensors", "run the model eagerly")
        self._node, self._body = node, body
        self._most = None if most is None else most.reshape(()).astype(dt.int64)
        goes_on = known(np.array(True)) if condition is None else condition
        self._goes_on: Tensor = _held(goes_on).reshape(()).astype(dt.bool_)

    def _run(self, turn: Tensor, goes_on: Tensor, state: Sequence[Tensor]) -> list[Value]:
        """One turn: the next condition, the next state, what is collected."""
        inputs = [turn, goes_on, *state][: len(self._body.input)]
        made = [_held(_computed(v)) for v in self._node.run(self._body, inputs)]
        return [made[0].reshape(()).astype(dt.bool_), *made[1:]]

    def _goes_on_at(self, turn: Tensor, condition: Tensor, *state: Tensor) -> Tensor:
        """Return whether there is another turn."""
        if self._most is None:
            return condition
        more: Tensor = logic.LogicalAnd()(condition, logic.Less()(turn, self._most))
        return more

    def _begin(self) -> tuple[Tensor, ...]:
        return (self._zero(), self._goes_on, *self._carried)

    def _ended(self) -> tuple[Tensor, ...]:
        """The number of turns, the condition, and the state behind the last turn."""

        def body(turn: Tensor, condition: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
            made = self._run(turn, condition, state)[: 1 + len(state)]
            return (turn + 1, *made)

        return while_loop(self._goes_on_at, body, self._begin())

    def _at_once(self) -> tuple[Value, ...]:
        """The state behind the last turn, and what all turns gave, stacked, of one loop."""

        def body(turn: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
            return (turn + 1, *self._run(turn, given[0], given[1:]))

        state, rows = collecting_loop(self._goes_on_at, body, self._begin())
        return *state[2:], *rows

    def _zero(self) -> Tensor:
        return Tensor(0, dtype=dt.int64)

    def state(self) -> tuple[Value, ...]:
        """The state behind the last turn."""
        return self._ended()[2:]

    def collected(self, turns: Tensor | None = None) -> tuple[Value, ...]:
        """The same, and what all turns gave, stacked; `turns` are their numbers, if known."""
        if turns is None and self._grows():
            return self._at_once()
        turns = Counted()(self._count()) if turns is None else turns
        count = len(self._carried)

        def body(*given: Tensor) -> tuple[Tensor, ...]:
            *state, turn = given
            return tuple(self._run(turn, Tensor(True), state)[1:])

        state, rows = scan(body, self._carried, (turns,))
        return *state[:count], *rows

    def _grows(self) -> bool:
        """Return whether the turns change the extents of what is carried."""
        return is_growing(
            lambda turn, *given: (turn + 1, *self._run(turn, given[0], given[1:])), self._begin()
        )

    def _count(self) -> Tensor:
        """The number of turns."""
        if self._most is not None and _passes_on(self._body):
            most: Tensor = Where()(self._goes_on, self._most, self._zero())
            return most
        streams: Any = getattr(LOCAL.capture, "streams", None)
        before = dict(streams.now)
        found = self._ended()[0]
        if any(now is not before.get(stream) for stream, now in streams.now.items()):
            raise self._node.refuse("it draws random numbers", "run the model eagerly")
        return found


def _never_ends(body: onnx.GraphProto) -> bool:
    """Return whether the condition a turn returns is the one it was given, or a constant."""
    made = {name: node for node in body.node for name in node.output}
    constants = {i.name for i in body.initializer}
    constants.update(n for n, node in made.items() if node.op_type == "Constant")
    return _passes_on(body) or _condition(body) in constants


def _passes_on(body: onnx.GraphProto) -> bool:
    """Return whether the condition a turn returns is the one it was given."""
    return _condition(body) == (body.input[1].name if len(body.input) > 1 else "")


def _condition(body: onnx.GraphProto) -> str:
    """Name of the condition a turn returns, or of what it is equal to."""
    made = {name: node for node in body.node for name in node.output}
    name = str(body.output[0].name)
    while name in made and made[name].op_type == "Identity":
        name = str(made[name].input[0])
    return name


def _stacked(values: list[Value], declared: onnx.ValueInfoProto, axis: int = 0) -> Value:
    """Values of all turns along a new axis; none of them: an empty array of the declared type."""
    if not values:
        kind = declared.type.tensor_type
        shape = [max(d.dim_value, 0) for d in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type or 1)
        return known(np.zeros((0, *shape), dtype))
    values = [_computed(v) for v in values]
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
def _scan(node: OnnxNode, *inputs: Value) -> tuple[Value, ...]:
    body: onnx.GraphProto = node.attributes["body"]
    count = int(node.attributes["num_scan_inputs"])
    state, entries = list(inputs[: len(inputs) - count]), inputs[len(inputs) - count :]
    axes = node.ints("scan_input_axes", [0] * count)
    backward = node.ints("scan_input_directions", [0] * count)
    kept = len(state)
    columns: list[list[Value]] = [[] for _ in range(len(body.output) - kept)]
    length: Any = extents(entries[0])[axes[0]]
    out_axes = node.ints("scan_output_axes", [0] * len(columns))
    turned = node.ints("scan_output_directions", [0] * len(columns))
    if not isinstance(length, int) and LOCAL.capture is not None:
        first = [
            _moved(_held(x), node.place(a, len(extents(x))), 0)
            for x, a in zip(entries, axes, strict=True)
        ]
        given = [Flip((0,))(x) if back else x for x, back in zip(first, backward, strict=True)]
        with suppress(TreadleError):  # What gives no tensors has its turns written out.
            last, rows = scan(_turn_of(node, body), [_held(v) for v in state], given)
            pairs = zip(rows, out_axes, turned, strict=True)
            return *last, *(_moved(Flip((0,))(v) if b else v, 0, a % v.ndim) for v, a, b in pairs)
    for turn in range(length):
        seen = [
            _entry(x, node.place(a, len(extents(x))), length - 1 - turn if b else turn)
            for x, a, b in zip(entries, axes, backward, strict=True)
        ]
        made = node.run(body, [*state, *seen])
        state = made[:kept]
        for column, value in zip(columns, made[kept:], strict=True):
            column.append(value)
    results = []
    for column, axis, back, declared in zip(
        columns, out_axes, turned, body.output[kept:], strict=True
    ):
        results.append(_stacked(column[::-1] if back else column, declared, axis))
    return (*state, *results)


def _turn_of(node: OnnxNode, body: onnx.GraphProto) -> Callable[..., tuple[Value, ...]]:
    """A turn of a loop that the program has once."""
    return lambda *given: tuple(_held(_computed(v)) for v in node.run(body, list(given)))


def _computed(value: Value) -> Value:
    """The value; extents as what the program computes."""
    return value.computed() if isinstance(value, Extents) else value


def _moved(x: Value, source: int, target: int) -> Value:
    """The value with one axis at another place."""
    order = list(range(len(extents(x))))
    order.insert(target, order.pop(source))
    return x if source == target else Transpose(tuple(order))(x)


def _entry(x: Value, axis: int, i: int) -> Value:
    one = part(x, axis, i, i + 1)
    return reshaped(one, [d for j, d in enumerate(extents(one)) if j != axis])


@converts("Scan", separate=True)
def _scan_8(node: OnnxNode, lengths: Value, *inputs: Value) -> tuple[Value, ...]:
    """Run a Scan of opset 8, which had a batch axis around everything."""
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
def _sequence(node: OnnxNode, *values: Value) -> Value:
    return list(values)


@converts("SequenceEmpty")
def _sequence_empty(node: OnnxNode) -> Value:
    return []


@converts("SequenceInsert", host=(2,), separate=True)
def _sequence_insert(
    node: OnnxNode, sequence: list[Value], value: Value, position: Array | None = None
) -> Value:
    made = list(sequence)
    at = _place(position, len(made))
    made.insert(at + len(made) if at < 0 else at, value)
    return made


@converts("SequenceErase", host=(1,), separate=True)
def _sequence_erase(node: OnnxNode, sequence: list[Value], position: Array | None = None) -> Value:
    made = list(sequence)
    del made[_place(position, -1)]
    return made


@converts("SequenceAt", host=(1,), separate=True)
def _sequence_at(node: OnnxNode, sequence: list[Value], position: Array) -> Value:
    return sequence[_place(position, 0)]


@converts("SequenceLength", separate=True)
def _sequence_length(node: OnnxNode, sequence: list[Value]) -> Value:
    return known(np.array(len(sequence), np.int64))


@converts("ConcatFromSequence")
def _concat_from_sequence(node: OnnxNode, sequence: list[Value]) -> Value:
    axis = int(node.attributes["axis"])
    if not node.attr("new_axis", 0):
        return joined(sequence, axis)
    where = axis % (len(extents(sequence[0])) + 1)
    return joined([_with_axis(v, where) for v in sequence], where)


@converts("SplitToSequence", host=(1,), separate=True)
def _split_to_sequence(node: OnnxNode, x: Value, sizes: Array | None = None) -> Value:
    axis = node.place(node.attr("axis", 0), len(extents(x)))
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
def _sequence_map(node: OnnxNode, *inputs: Value) -> tuple[Value, ...]:
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
