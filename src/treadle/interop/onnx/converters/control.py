"""Branches and loops, run by Python; programs capture what ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx

from treadle.base import dtype as dt
from treadle.base.errors import TreadleError, UnsupportedOp
from treadle.base.guards import data_decide
from treadle.base.modes import LOCAL
from treadle.base.symbol import Dim, Expr, evaluate, symbols_of
from treadle.base.types import TensorType
from treadle.graph.ir import symbols_in
from treadle.interop.onnx.converters.sequences import (
    Rows,
    alike,
    as_rows,
    computed,
    entry,
    no_rows,
    with_axis,
)
from treadle.interop.onnx.converters.shapes import extents, joined
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
from treadle.jit.control import collecting_loop, cond, is_growing, run_apart, scan, while_loop
from treadle.ops import logic
from treadle.ops.abstract import ArrayOperand
from treadle.ops.check import AssertEqual
from treadle.ops.creation import Iota
from treadle.ops.gather import Counted, Take
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

    A branch that cannot be run on extents such as these is replaced by a check that fails; one that
    gives an empty sequence waits for the other one, which has its type.
    """
    branches = _Branches(node, condition.reshape(()))
    try:
        return branches.both(True)
    except TreadleError as error:
        if not branches.failed and not branches.waits:
            raise branches.refused(error) from error
    try:
        return branches.both(branches.failed == "else_branch")
    except TreadleError as error:
        raise branches.refused(error) from error


class _Branches:
    """The two graphs of an If node.

    Attributes:
        failed: name of the one that could not be run, if there is one.
        waits: whether the first one gives an empty sequence.
    """

    def __init__(self, node: OnnxNode, test: Tensor) -> None:
        self._node = node
        self._test = test
        self._sequences: set[int] = set()
        self.failed = ""
        self.waits = False

    def both(self, first: bool) -> tuple[Value, ...]:
        """Capture the branch for `first`, then the other one, or a check in its place."""
        names = ("then_branch", "else_branch") if first else ("else_branch", "then_branch")
        held: list[Tensor] = []

        def one() -> tuple[Tensor, ...]:
            held[:] = self._run(names[0])
            return tuple(held)

        def other() -> tuple[Tensor, ...]:
            never = self.failed == names[1]
            return _never(self._test, first, held) if never else self._run(names[1], held)

        test = self._test if first else logic.LogicalNot()(self._test)
        made: tuple[Value, ...] = cond(test, one, other)
        return tuple(Rows(x) if i in self._sequences else x for i, x in enumerate(made))

    def _run(self, name: str, like: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
        """The results of a branch, sequences as rows; `like` are those of the other one."""
        try:
            given = self._node.run(self._node.attributes[name], ())
            self._sequences |= {i for i, v in enumerate(given) if isinstance(v, list | Rows)}
            for i in self._sequences:
                if given[i] == [] and like:
                    given[i] = Rows(no_rows(like[i].type.dtype, like[i].shape[1:]))
                self.waits |= given[i] == []
                given[i] = _uncounted(_held(as_rows(self._node, given[i])))
            made = tuple(map(_held, given))
        except TreadleError:
            if like or not self.waits:
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


def _uncounted(rows: Tensor) -> Tensor:
    """The rows, with a number that is found: the other branch may give more or fewer."""
    length = rows.type.shape[0]
    if not isinstance(length, int):
        return rows
    made: Tensor = Take(0)(rows, Counted()(Tensor(length, dtype=dt.int64)))
    return made


def _never(test: Tensor, wanted: bool, like: list[Tensor]) -> tuple[Tensor, ...]:
    """Values of the types of others, after a check that the condition is as wanted."""
    found = test.astype(dt.float32)
    checked = AssertEqual(0.0)(found.constant(float(wanted)), found)
    shapes = [tuple(map(_of_nothing, v.shape)) for v in like]
    typed = [checked.astype(v.type.dtype) for v in like]
    return tuple(v.broadcast_to(shape) for v, shape in zip(typed, shapes, strict=True))


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
    if isinstance(most, Extents) and is_known(condition) and _stays(node, body):
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
    state = map(computed, carried)
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
        most, condition, *carried = values
        self._sequences = {i for i, v in enumerate(carried) if isinstance(v, list | Rows)}
        if not all(isinstance(v, Tensor) or i in self._sequences for i, v in enumerate(carried)):
            raise node.refuse("it carries more than tensors", "run the model eagerly")
        self._node, self._body = node, body
        self._most = None if most is None else most.reshape(()).astype(dt.int64)
        goes_on = known(np.array(True)) if condition is None else condition
        self._goes_on: Tensor = _held(goes_on).reshape(()).astype(dt.bool_)
        self._carried = self._as_tensors(carried)

    def _as_tensors(self, carried: Sequence[Value]) -> list[Tensor]:
        """The carried values, sequences as rows; an empty one has those that a turn inserts."""
        empty = [i for i, v in enumerate(carried) if isinstance(v, list) and not v]
        found: list[Value] = []

        def turn() -> None:
            inputs = [self._zero(), self._goes_on, *carried][: len(self._body.input)]
            made = self._node.run(self._body, inputs)
            found[:] = [_first_of(made[1 + i]) for i in empty]

        if empty:
            run_apart(turn)
        kinds = dict(zip(empty, found, strict=True))
        known_here = {s.name for v in carried if isinstance(v, Tensor) for s in symbols_in(v.type)}
        for kind in found:
            apart = {n for d in kind.shape if data_decide(d) for n in symbols_of(d)}
            if apart - known_here:
                raise self._node.refuse(
                    "a turn finds the extents of what it inserts into a sequence",
                    "insert values of one shape, or run the model eagerly",
                )
        return [
            v
            if isinstance(v, Tensor)
            else no_rows(kinds[i].dtype, kinds[i].shape)
            if i in kinds
            else _held(as_rows(self._node, v))
            for i, v in enumerate(carried)
        ]

    def _with_sequences(self, state: Sequence[Tensor]) -> list[Value]:
        """The state as the nodes take it."""
        return [Rows(x) if i in self._sequences else x for i, x in enumerate(state)]

    def _run(self, turn: Tensor, goes_on: Tensor, state: Sequence[Tensor]) -> list[Value]:
        """One turn: the next condition, the next state, what is collected."""
        inputs = [turn, goes_on, *self._with_sequences(state)][: len(self._body.input)]
        given = self._node.run(self._body, inputs)
        for i in self._sequences:
            given[1 + i] = as_rows(self._node, given[1 + i])
        made = [_held(computed(v)) for v in given]
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
        return *self._with_sequences(state[2:]), *rows

    def _zero(self) -> Tensor:
        return Tensor(0, dtype=dt.int64)

    def state(self) -> tuple[Value, ...]:
        """The state behind the last turn."""
        return tuple(self._with_sequences(self._ended()[2:]))

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
        return *self._with_sequences(state[:count]), *rows

    def _grows(self) -> bool:
        """Return whether the turns change the extents of what is carried."""
        return is_growing(
            lambda turn, *given: (turn + 1, *self._run(turn, given[0], given[1:])), self._begin()
        )

    def _count(self) -> Tensor:
        """The number of turns."""
        if self._most is not None and _stays(self._node, self._body):
            most: Tensor = Where()(self._goes_on, self._most, self._zero())
            return most
        streams: Any = getattr(LOCAL.capture, "streams", None)
        before = dict(streams.now)
        found = self._ended()[0]
        if any(now is not before.get(stream) for stream, now in streams.now.items()):
            raise self._node.refuse("it draws random numbers", "run the model eagerly")
        return found


def _first_of(sequence: Any) -> TensorType:
    """The type of the values of a sequence that a turn has made."""
    if isinstance(sequence, Rows):
        whole: TensorType = sequence.tensor.type
        return whole.with_shape(whole.shape[1:])
    if not sequence:
        raise UnsupportedOp("onnx Loop", "a turn inserts nothing into an empty sequence")
    found: TensorType = _held(computed(sequence[-1])).type
    return found


def _never_ends(body: onnx.GraphProto) -> bool:
    """Return whether the condition a turn returns is the one it was given, or a constant."""
    made = {name: node for node in body.node for name in node.output}
    constants = {i.name for i in body.initializer}
    constants.update(n for n, node in made.items() if node.op_type == "Constant")
    return _passes_on(body) or _condition(body) in constants


def _stays(node: OnnxNode, body: onnx.GraphProto) -> bool:
    """Return whether a condition that is true once stays so: turns pass it on, or give true."""
    if _passes_on(body):
        return True
    name = _condition(body)
    made = [n for n in body.node if name in n.output]
    if name in {i.name for i in body.input} or any(n.op_type != "Constant" for n in made):
        return False
    constants = [i for i in body.initializer if i.name == name]
    end = onnx.ValueInfoProto(name=name)
    (value,) = node.run(onnx.GraphProto(node=made, initializer=constants, output=[end]), ())
    return value is not None and is_known(value) and bool(value.array.reshape(-1)[0])


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
    values = [computed(v) for v in values]
    rank = len(extents(values[0])) + 1
    where = axis % rank
    return joined(alike([with_axis(v, where) for v in values]), where)


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
            entry(x, node.place(a, len(extents(x))), length - 1 - turn if b else turn)
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
    return lambda *given: tuple(_held(computed(v)) for v in node.run(body, list(given)))


def _moved(x: Value, source: int, target: int) -> Value:
    """The value with one axis at another place."""
    order = list(range(len(extents(x))))
    order.insert(target, order.pop(source))
    return x if source == target else Transpose(tuple(order))(x)


@converts("Scan", separate=True)
def _scan_8(node: OnnxNode, lengths: Value, *inputs: Value) -> tuple[Value, ...]:
    """Run a Scan of opset 8, which had a batch axis around everything."""
    body: onnx.GraphProto = node.attributes["body"]
    count = int(node.attributes["num_scan_inputs"])
    batches = extents(inputs[0])[0]
    backward = node.ints("directions", [0] * count)
    rows = []
    for batch in range(batches):
        own = [entry(x, 0, batch) for x in inputs]
        state, entries = own[: len(own) - count], own[len(own) - count :]
        entries = [Flip((0,))(e) if b else e for e, b in zip(entries, backward, strict=True)]
        columns: list[list[Value]] = [[] for _ in range(len(body.output) - len(state))]
        for turn in range(extents(entries[0])[0]):
            made = node.run(body, [*state, *(entry(e, 0, turn) for e in entries)])
            state = made[: len(state)]
            for column, value in zip(columns, made[len(state) :], strict=True):
                column.append(value)
        outs = body.output[len(state) :]
        rows.append([*state, *(_stacked(c, o) for c, o in zip(columns, outs, strict=True))])
    return tuple(
        joined(alike([with_axis(v, 0) for v in column]), 0) for column in zip(*rows, strict=True)
    )
