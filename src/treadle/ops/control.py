"""Control flow: ops that hold regions, which are programs of their own.

Values go in and out of a region explicitly; nothing is captured from outside.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from typing import Any, Protocol

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import DTypeError, ShapeError, TreadleError
from treadle.base.shape import require_equal
from treadle.base.symbol import Dim, is_identical, symbol
from treadle.base.types import TensorType
from treadle.ops.abstract import ArrayOperand, TypeOperand
from treadle.ops.arg import Arg
from treadle.ops.gather import numbering
from treadle.ops.movement import Concat
from treadle.ops.op import BadSample, Op, Sample, op
from treadle.ops.reduce import Sum

Types = tuple[TensorType, ...]

_REASON = "is differentiated on graphs, where its regions can be: treadle.graph.gradient"


class Region(Protocol):
    """A typed program. Regions with equal content are equal and hash alike."""

    @property
    def input_types(self) -> Types:
        """Types of the arguments."""
        ...

    @property
    def output_types(self) -> Types:
        """Types of the results."""
        ...

    def evaluate(self, arrays: Sequence[Array], /) -> tuple[Array, ...]:
        """Run with the oracles of the ops inside."""
        ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class FunctionRegion:
    """A region given by a Python function over operands; equal if the function is the same.

    Attributes:
        name: how it prints.
        input_types: types of the arguments.
        function: takes one operand per argument, returns one operand or a tuple.
    """

    name: str
    input_types: Types
    function: Callable[..., Any]

    @property
    def output_types(self) -> Types:
        """Types of the results, inferred from the arguments'."""
        return tuple(r.type for r in self._run([TypeOperand(t) for t in self.input_types]))

    def evaluate(self, arrays: Sequence[Array], /) -> tuple[Array, ...]:
        """Run with the oracles of the ops inside."""
        return tuple(r.array for r in self._run([ArrayOperand(np.asarray(a)) for a in arrays]))

    def _run(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        results = self.function(*operands)
        return results if isinstance(results, tuple) else (results,)

    def __str__(self) -> str:
        return f"region {self.name}"


def match_types(name: str, what: str, wanted: Types, given: Types) -> None:
    """Raise unless `given` values fit a region that wants `wanted` ones."""
    if len(wanted) != len(given):
        raise ShapeError(
            name,
            f"{what}: expected {len(wanted)} values, got {len(given)}",
            saw=", ".join(map(str, given)) or "no values",
            hint="regions take every value they use as an argument",
        )
    for i, (w, g) in enumerate(zip(wanted, given, strict=True)):
        _match_type(name, f"{what}: value {i} does not fit", w, g)


def _match_type(name: str, problem: str, wanted: TensorType, given: TensorType) -> None:
    saw = f"{given} where {wanted} is expected"
    if wanted.dtype is not given.dtype:
        raise DTypeError(name, problem, saw=saw, hint="cast with astype()")

    def mismatch() -> TreadleError:
        return ShapeError(name, problem, saw=saw, hint="reshape the value to the region's type")

    if wanted.ndim != given.ndim:
        raise mismatch()
    for x, y in zip(wanted.shape, given.shape, strict=True):
        require_equal(x, y, mismatch)


def check_predicate(name: str, what: str, predicate: TensorType) -> None:
    """Raise unless a value is one truth value."""
    if predicate.dtype is not dt.bool_:
        raise DTypeError(
            name, f"{what} must be bool", saw=str(predicate), hint="compare, or cast with astype()"
        )
    if predicate.shape != ():
        raise ShapeError(
            name, f"{what} must be one value", saw=str(predicate), hint="reshape it to ()"
        )


class ControlFlow(Op):
    """An op that runs regions; it has as many results as they have."""

    work = "control"
    dtypes = dt.ALL
    n_outputs = -1
    no_gradient = _REASON

    @abc.abstractmethod
    def results(self) -> Types:
        """Types of the results of the region that decides how many there are."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_outputs", len(self.results()))


@op
class Cond(ControlFlow):
    """`then(*xs)` where the predicate (bool, 0-d) is true, else `otherwise(*xs)`."""

    then: Region
    otherwise: Region

    name = "cond"
    operands = ("predicate", "*xs")
    dtypes = (dt.bool_,)

    def results(self) -> Types:
        return self.then.output_types

    def infer(self, predicate: TensorType, *xs: TensorType) -> Types:
        check_predicate(self.name, "the predicate", predicate)
        match_types(self.name, "the branch taken when true", self.then.input_types, xs)
        match_types(self.name, "the branch taken when false", self.otherwise.input_types, xs)
        results = self.then.output_types
        match_types(self.name, "the branches' results", results, self.otherwise.output_types)
        return results

    def reference(self, predicate: Array, *xs: Array) -> tuple[Array, ...]:
        return (self.then if predicate else self.otherwise).evaluate(xs)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        op_, xs = cls(_DOUBLE, _NEGATE), (Arg((2, 3), dt.float32),)
        return tuple(
            Sample(op_, (Arg((), dt.bool_, values=p), *xs), gradient=False, label=f"cond({p})")
            for p in (True, False)
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        yes, x = Arg((), dt.bool_, values=True), Arg((2, 3))
        made = partial(cls, _DOUBLE, _NEGATE)
        return (
            BadSample(made, (Arg((2,), dt.bool_), x), ShapeError, "one value"),
            BadSample(made, (Arg(()), x), DTypeError, "must be bool"),
            BadSample(made, (yes, Arg((3, 2))), ShapeError, "value 0"),
            BadSample(made, (yes,), ShapeError, "expected 1 values"),
            BadSample(lambda: cls(_DOUBLE, _SMALL), (yes, x), ShapeError, "value 0"),
        )


@op
class FindingCond(Cond):
    """A branch whose results have extents that data decide: new symbols of this op.

    Axes that have one extent in each of the branches have one symbol.
    """

    found: tuple[tuple[int, int], ...] = ()
    """The result and axis of each such extent."""

    name = "finding_cond"

    def infer(self, predicate: TensorType, *xs: TensorType) -> Types:
        check_predicate(self.name, "the predicate", predicate)
        match_types(self.name, "the branch taken when true", self.then.input_types, xs)
        match_types(self.name, "the branch taken when false", self.otherwise.input_types, xs)
        results, others = self.then.output_types, self.otherwise.output_types
        given: Types = tuple(starmap(self._without_found, enumerate(results)))
        wanted: Types = tuple(starmap(self._without_found, enumerate(others)))
        match_types(self.name, "the branches' results", given, wanted)
        named: list[tuple[tuple[Dim, Dim], Dim]] = []
        return tuple(
            x.with_shape(
                tuple(
                    _of_both(named, (d, y.shape[axis])) if (i, axis) in self.found else d
                    for axis, d in enumerate(x.shape)
                )
            )
            for i, (x, y) in enumerate(zip(results, others, strict=True))
        )

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        op_, xs = cls(_DOUBLE, _TURNED, ((0, 0), (0, 1))), (Arg((2, 3), dt.float32),)
        return tuple(
            Sample(op_, (Arg((), dt.bool_, values=p), *xs), gradient=False, label=f"found({p})")
            for p in (True, False)
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        given, found = (Arg((), dt.bool_, values=True), Arg((2, 3))), ((0, 0),)
        return (
            BadSample(lambda: cls(_DOUBLE, _TURNED, found), given, ShapeError, "value 0"),
            BadSample(lambda: cls(_DOUBLE, _SMALL, found), given, ShapeError, "value 0"),
        )

    def _without_found(self, i: int, type_: TensorType) -> TensorType:
        """Return a type with 0 for extents that the branch decides."""
        shape = (0 if (i, axis) in self.found else d for axis, d in enumerate(type_.shape))
        return type_.with_shape(tuple(shape))


def _of_both(named: list[tuple[tuple[Dim, Dim], Dim]], pair: tuple[Dim, Dim]) -> Dim:
    """Return the symbol for extents of the two branches; pairs that are known grow."""
    for known, extent in named:
        if is_identical(known[0], pair[0]) and is_identical(known[1], pair[1]):
            return extent
    made = symbol(f"cond{numbering().fresh()}", 0)
    named.append((pair, made))
    return made


@op
class While(ControlFlow):
    """`state = body(*state)` as long as `condition(*state)` (bool, 0-d) is true.

    The types of the state do not change from turn to turn.
    """

    condition: Region
    body: Region

    name = "while"
    operands = ("*state",)

    def results(self) -> Types:
        return self.body.output_types

    def infer(self, *state: TensorType) -> Types:
        match_types(self.name, "the condition", self.condition.input_types, state)
        match_types(self.name, "the body", self.body.input_types, state)
        _check_condition(self.name, self.condition)
        match_types(self.name, "the body's results", self.body.input_types, self.body.output_types)
        return self.body.output_types

    def reference(self, *state: Array) -> tuple[Array, ...]:
        while self.condition.evaluate(state)[0]:
            state = self.body.evaluate(state)
        return tuple(np.asarray(s) for s in state)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        low = Arg((), dt.float32, values=1.0)
        high = Arg((), dt.float32, values=99.0)
        op_ = cls(_SMALL, _GROW)
        return tuple(Sample(op_, (start,), gradient=False) for start in (low, high))

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        one, x = Arg(()), Arg((2, 3))
        return (
            BadSample(lambda: cls(_SMALL, _GROW), (x,), ShapeError, "the condition: value 0"),
            BadSample(lambda: cls(_GROW, _GROW), (one,), DTypeError, "must be bool"),
            BadSample(lambda: cls(_SMALL, _SMALL), (one,), DTypeError, "the body's results"),
        )


def _check_condition(name: str, condition: Region) -> None:
    """Raise unless a loop's condition gives one truth value."""
    test = condition.output_types
    if len(test) != 1:
        raise ShapeError(
            name,
            f"the condition has {len(test)} results",
            saw=", ".join(map(str, test)),
            hint="return one bool",
        )
    check_predicate(name, "the condition's result", test[0])


@op
class FindingWhile(ControlFlow):
    """A `While` whose state has extents that change from turn to turn, and which may stack rows.

    In its regions such an extent is a symbol of the loop; axes with one symbol are equal at the
    beginning, and stay so. What the body returns behind the next state has one type in all turns.
    Results: the last state, with new symbols for those extents, then what all turns returned,
    stacked along a new axis 0, whose extent is the number of turns.
    """

    condition: Region
    body: Region
    found: tuple[tuple[int, int], ...]
    """The value of the state and the axis of each extent that changes."""

    name = "finding_while"
    operands = ("*state",)

    def results(self) -> Types:
        return self.body.output_types

    @property
    def changing(self) -> tuple[Dim, ...]:
        """The extents that change, as the regions have them."""
        types = self.body.input_types
        return tuple(dict.fromkeys(types[i].shape[axis] for i, axis in self.found))

    def infer(self, *state: TensorType) -> Types:
        inside, following = self.body.input_types, self.body.output_types[: len(state)]
        for i, (before, after) in enumerate(zip(state, following, strict=False)):
            if before.ndim != after.ndim:
                raise self.error(
                    f"value {i} has {before.ndim} axes before a turn and {after.ndim} after it",
                    (before,),
                    "keep the number of axes, as x[mask] with one bool per row does, or "
                    "F.where(mask, x, F.zeros_like(x))",
                )
        match_types(self.name, "the condition", self.condition.input_types, inside)
        given, wanted, results = (
            tuple(starmap(self._without_found, enumerate(types)))
            for types in (state, inside, following)
        )
        match_types(self.name, "the body", wanted, given)
        _check_condition(self.name, self.condition)
        match_types(self.name, "the body's results", wanted, results)
        made = self._named(state)
        turns = symbol(f"turns{numbering().fresh()}", 0)
        ends = tuple(
            x.with_shape(tuple(made.get((i, axis), d) for axis, d in enumerate(x.shape)))
            for i, x in enumerate(state)
        )
        rows = self.body.output_types[len(state) :]
        return *ends, *(t.with_shape((turns, *t.shape)) for t in rows)

    def _named(self, state: Types) -> dict[tuple[int, int], Dim]:
        """Return a new symbol for each changing extent, one where the regions have one."""
        first: dict[Dim, tuple[int, int]] = {}
        made: dict[tuple[int, int], Dim] = {}
        for i, axis in self.found:
            mismatch = partial(self._uneven, state, i, axis)
            extent = self.body.input_types[i].shape[axis]
            if isinstance(extent, int):
                raise mismatch()
            j, other = first.setdefault(extent, (i, axis))
            require_equal(state[i].shape[axis], state[j].shape[other], mismatch)
            after = self.body.output_types
            if not is_identical(after[i].shape[axis], after[j].shape[other]):
                raise mismatch()
            if (j, other) == (i, axis):
                made[i, axis] = symbol(f"loop{numbering().fresh()}", 0)
            made[i, axis] = made[j, other]
        return made

    def _uneven(self, state: Types, i: int, axis: int) -> TreadleError:
        """The error for an axis that is not as another one with its symbol."""
        return self.error(
            f"axis {axis} of value {i} should be equal to one that it is not",
            state,
            "give extents that change in their own way symbols of their own",
        )

    def _without_found(self, i: int, type_: TensorType) -> TensorType:
        """Return a type with 0 for extents that change."""
        shape = (0 if (i, axis) in self.found else d for axis, d in enumerate(type_.shape))
        return type_.with_shape(tuple(shape))

    def reference(self, *state: Array) -> tuple[Array, ...]:
        count = len(state)
        types = self.body.output_types[count:]
        columns: list[list[Array]] = [[] for _ in types]
        while self.condition.evaluate(state)[0]:
            made = self.body.evaluate(state)
            state = made[:count]
            for column, value in zip(columns, made[count:], strict=True):
                column.append(value)
        empty: list[Any] = [np.empty((0, *t.shape), t.dtype.numpy) for t in types]
        rows = (np.stack(c) if c else e for c, e in zip(columns, empty, strict=True))
        return *(np.asarray(s) for s in state), *rows

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        op_ = cls(_FEW, _APPENDED, ((0, 0),))
        return tuple(
            Sample(op_, (Arg((n, 3), dt.float32),), gradient=False, label=f"rows({n})")
            for n in (1, 4, 0)
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        list_ = (Arg((2, 3)),)
        return (
            BadSample(lambda: cls(_FEW, _APPENDED, ()), list_, ShapeError, "the body: value 0"),
            BadSample(lambda: cls(_APPENDED, _APPENDED, ((0, 0),)), list_, DTypeError, "be bool"),
            BadSample(
                lambda: cls(_FEW, _APPENDED, ((0, 0), (0, 1))), list_, ShapeError, "axis 1 of value"
            ),
        )


@op
class FindingWhileGradient(FindingWhile):
    """The gradient of a `FindingWhile`, or `While`, by the floating values of its state.

    The turns are run once more, and their states kept; then `back` walks them backwards, from the
    last to the first: it takes a turn's state and the cotangents of what the turn returns, the next
    state first, and returns those of the state. Operands: the first state, then the cotangents of
    the loop's floating results, in order.
    """

    back: Region
    later: tuple[Dim, ...] = ()
    """Symbols in `back` for extents of the next state that only the turn finds."""

    name = "finding_while_gradient"
    operands = ("*given",)
    no_gradient = "is a gradient of a loop whose turns are not known, and has none itself"

    def results(self) -> Types:
        return self.back.output_types

    @property
    def changing(self) -> tuple[Dim, ...]:
        """The extents that change, as the regions have them."""
        return *super().changing, *self.later

    @property
    def carried(self) -> tuple[int, ...]:
        """The values of the state that have cotangents."""
        return tuple(i for i, t in enumerate(self.body.input_types) if t.dtype.is_inexact)

    def infer(self, *given: TensorType) -> Types:
        count = len(self.body.input_types)
        state = given[:count]
        results = [t for t in super().infer(*state) if t.dtype.is_inexact]
        if [t.ndim for t in results] != [t.ndim for t in given[count:]]:
            raise self.error(
                f"takes cotangents of {len(results)} floating results",
                given,
                "give each result one of its type",
            )
        return tuple(state[i] for i in self.carried)

    def reference(self, *given: Array) -> tuple[Array, ...]:
        count, n = len(self.body.input_types), len(self.carried)
        state, dys, rows = given[:count], given[count : count + n], given[count + n :]
        turns: list[Sequence[Array]] = []
        while self.condition.evaluate(state)[0]:
            turns.append(state)
            state = self.body.evaluate(state)[:count]
        for i, before in reversed(list(enumerate(turns))):
            dys = self.back.evaluate((*before, *dys, *(r[i] for r in rows)))
        return tuple(np.asarray(d) for d in dys)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        op_ = cls(_FEW, _APPENDED, ((0, 0),), _TAKEN)
        return tuple(
            Sample(
                op_,
                (Arg((n, 3), dt.float32, low=0.9, high=1.0), Arg((after, 3), dt.float32)),
                gradient=False,
                label=f"rows({n})",
            )
            for n, after in ((1, 7), (0, 7), (9, 9))
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        made = partial(cls, _FEW, _APPENDED, ((0, 0),), _TAKEN)
        return (BadSample(made, (Arg((2, 3)),), ShapeError, "1 floating"),)


@op
class Scan(ControlFlow):
    """A loop of `length` turns over the first axis of stacked inputs.

    The first `n_carried` operands are the state; the others have `length` entries along axis 0.
    Each turn calls `body(*state, *entries)`, whose first `n_carried` results are the next state.
    Results: the last state, then the remaining results of all turns, stacked along a new axis 0.
    If `backwards`, turns go from the last entries to the first, and results lie where the entries
    of their turn do.
    """

    body: Region
    n_carried: int
    length: Dim
    backwards: bool = False

    name = "scan"
    operands = ("*inputs",)

    def results(self) -> Types:
        return self.body.output_types

    @property
    def turns(self) -> range:
        """The entry of each turn, in their order, of a scan whose length is a number."""
        length = int(self.length)
        return range(length)[::-1] if self.backwards else range(length)

    def infer(self, *inputs: TensorType) -> Types:
        n = self.n_carried
        if self.length < 0 or not 0 <= n <= len(inputs):
            raise self.error(
                f"cannot carry {n} of {len(inputs)} values through {self.length} turns",
                inputs,
                "length is 0 or more, n_carried at most the number of inputs",
            )
        entries = tuple(self._entry(t) for t in inputs[n:])
        match_types(self.name, "the body", self.body.input_types, (*inputs[:n], *entries))
        results = self.body.output_types
        match_types(self.name, "the next state", inputs[:n], results[:n])
        return *results[:n], *(t.with_shape((self.length, *t.shape)) for t in results[n:])

    def _entry(self, stacked: TensorType) -> TensorType:
        def mismatch() -> TreadleError:
            return self.error(
                f"a stacked input needs {self.length} entries along axis 0",
                (stacked,),
                "pass length equal to the first extent",
            )

        if stacked.ndim == 0:
            raise mismatch()
        require_equal(stacked.shape[0], self.length, mismatch)
        return stacked.with_shape(stacked.shape[1:])

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        n = self.n_carried
        state, stacked = inputs[:n], inputs[n:]
        types: Any = [(t, (int(self.length), *t.shape)) for t in self.body.output_types[n:]]
        columns = [np.empty(shape, t.dtype.numpy) for t, shape in types]
        for i in self.turns:
            results = self.body.evaluate((*state, *(x[i] for x in stacked)))
            state = results[:n]
            for column, value in zip(columns, results[n:], strict=True):
                column[i] = value
        return *(np.asarray(s) for s in state), *columns

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        state = Arg((2, 3), dt.float32)
        return tuple(
            Sample(cls(_TOTAL, 1, n, back), (state, Arg((n, 2, 3), dt.float32)), gradient=False)
            for n, back in ((4, False), (1, False), (0, False), (4, True))
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        state = Arg((2, 3))
        return (
            BadSample(lambda: cls(_TOTAL, 1, 4), (state, Arg((5, 2, 3))), ShapeError, "4 entries"),
            BadSample(lambda: cls(_TOTAL, 1, 4), (state, Arg(())), ShapeError, "4 entries"),
            BadSample(lambda: cls(_TOTAL, 1, -1), (state,), ShapeError, "-1 turns"),
            BadSample(lambda: cls(_TOTAL, 0, 2), (state,), ShapeError, "expected 2 values"),
        )


_PLANE = TensorType(dt.float32, (2, 3))
_ONE = TensorType(dt.float32, ())
_DOUBLE = FunctionRegion("double", (_PLANE,), lambda x: x + x)
_TURNED = FunctionRegion("turned", (_PLANE,), lambda x: x.reshape((3, 2)))
_NEGATE = FunctionRegion("negate", (_PLANE,), lambda x: -x)
_SMALL = FunctionRegion("small", (_ONE,), lambda x: x < 10.0)
_GROW = FunctionRegion("grow", (_ONE,), lambda x: x + x)
_TOTAL = FunctionRegion("total", (_PLANE, _PLANE), lambda s, x: (s + x, s * x))
_LIST = TensorType(dt.float32, (symbol("rows", 0), 3))
_FEW = FunctionRegion("few", (_LIST,), lambda x: Sum((0, 1), False)(x) < 20.0)
_ROW = np.ones((1, 3), np.float32)
_APPENDED = FunctionRegion("appended", (_LIST,), lambda x: Concat(0)(x, x.constant(_ROW)))
_LONGER = TensorType(dt.float32, (symbol("rows", 0) + 1, 3))
_TAKEN = FunctionRegion("taken", (_LIST, _LONGER), lambda x, dy: Sum((0, 1), False)(dy) * 0.1 * x)
