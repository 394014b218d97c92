"""Extents as values of a model: what `Shape` gives where a program serves many extents.

They stay on the host as expressions: sums, products, parts and joins of them are computed there,
and reach the nodes that take a shape. A node that needs their numbers gets those of the call, which
pins them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import helper

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType, as_dtype
from treadle.base.guards import data_decide
from treadle.base.symbol import (
    Dim,
    Expr,
    Relation,
    equal,
    is_identical,
    less_equal,
    maximum,
    minimum,
)
from treadle.interop.onnx.nodes import OnnxNode, Value, known
from treadle.interop.onnx.registry import Converter
from treadle.ops import logic
from treadle.ops.abstract import ArrayOperand
from treadle.ops.creation import Extent, Iota
from treadle.ops.movement import Broadcast, Concat, Reshape


class Question:
    """A comparison of extents that data decide, which only a run answers.

    Attributes:
        name: ONNX's operator.
        x, y: its operands.
    """

    __slots__ = ("name", "x", "y")

    def __init__(self, name: str, x: Dim, y: Dim) -> None:
        self.name, self.x, self.y = name, x, y

    def __bool__(self) -> bool:
        return bool(_QUESTIONS[self.name](self.x, self.y))

    def computed(self, anchor: Value) -> Value:
        """The answer as a value of the program."""
        x, y = (extent_as(anchor, v, dt.int64) for v in (self.x, self.y))
        answer: Value = _ASKED[self.name]()(x, y)
        return answer

    def asks_for_nothing(self) -> bool | None:
        """True for `extent == 0`, False for `extent > 0`, None for other questions."""
        if not is_identical(self.y, 0) or self.name not in ("Equal", "Greater"):
            return None
        return self.name == "Equal"


class Extents:
    """Extents of which some are expressions, or questions about such.

    Attributes:
        array: of objects: integers and expressions.
        dtype: the element type that the model gives them.
        anchor: a value of the program that they belong to.
    """

    __slots__ = ("anchor", "array", "dtype")

    def __init__(self, array: Array, dtype: np.dtype[Any], anchor: Value) -> None:
        self.array = array
        self.dtype = dtype
        self.anchor = anchor

    @property
    def is_found(self) -> bool:
        """True if data decide one of them, so that there are no numbers while it is captured."""
        flat = self.array.reshape(-1)
        return any(isinstance(d, Question) or data_decide(d) for d in flat)

    def numbers(self) -> ArrayOperand:
        """Return the extents as numbers in the call that is captured; they are pinned."""
        flat = [int(d) for d in self.array.reshape(-1)]
        return known(np.array(flat, self.dtype).reshape(self.array.shape))

    def computed(self) -> Value:
        """The same as a value that the program computes at each call."""
        kind = as_dtype(self.dtype)
        flat = [
            d.computed(self.anchor)
            if isinstance(d, Question)
            else self.anchor.apply(Extent(d, kind), ())[0]
            for d in self.array.reshape(-1)
        ]
        if self.array.ndim:
            flat = [Concat(0)(*[Reshape((1,))(v) for v in flat])]
        return flat[0] if self.array.ndim < 2 else Reshape(self.array.shape)(flat[0])


def shape_value(shape: Sequence[Dim], anchor: Value) -> Value:
    """A shape, or some extents of it, as a value."""
    return _found(np.array(list(shape), object), np.dtype(np.int64), anchor)


def extent_as(like: Value, extent: Dim, kind: DType | None = None) -> Value:
    """An extent as a number of the program, by default of the element type of `like`."""
    dtype = kind or like.type.dtype
    if isinstance(extent, Expr):
        return like.apply(Extent(extent, dtype), ())[0]
    return like.constant(extent, dtype)


def with_extents(node: OnnxNode, inputs: Sequence[Value], entry: Converter) -> Any:
    """The result of a node some of whose inputs are extents; None where they are numbers to it.

    Args:
        node: the node.
        inputs: of it.
        entry: its converter, for arrays of the host.
    """
    mine = [v for v in inputs if isinstance(v, Extents)]
    if not all(v is None or isinstance(v, Extents | ArrayOperand) for v in inputs):
        return None
    anchor, name = mine[0].anchor, node.op_type
    arrays: list[Any] = [None if v is None else v.array for v in inputs]
    if name == "ConstantOfShape":
        fill = np.asarray(node.attr("value", np.zeros(1, np.float32))).reshape(-1)[0]
        return Broadcast(tuple(arrays[0]))(anchor.constant(fill, as_dtype(fill.dtype)))
    if name == "Range":
        return _range(mine[0].dtype, *[a.reshape(-1)[0] for a in arrays], anchor=anchor)
    if name == "Cast":
        return _cast(node, mine[0])
    if name in _OPERATIONS and len(arrays) == 2:
        return _operated(name, inputs, anchor)
    if name in _REDUCED and mine[0] is inputs[0] and mine[0].array.ndim == 1:
        folded = functools.reduce(_OPERATIONS[_REDUCED[name]], _whole(arrays[0]).tolist())
        kept = (1,) if node.attr("keepdims", 1) else ()
        return _found(np.array(folded, object).reshape(kept), _type_of(mine[0]), anchor)
    if name == "Where" and any(isinstance(d, Question) for d in arrays[0].reshape(-1)):
        return None
    if name in _MOVED:
        made = entry.convert(
            node,
            *[a if a is None or i in entry.host else known(a) for i, a in enumerate(arrays)],
        )
        kind = made.array.dtype if name in _COUNTED else _type_of(inputs[name == "Where"])
        return _found(made.array, kind, anchor)
    return None


def _operated(name: str, inputs: Sequence[Value], anchor: Value) -> Value:
    """An operation on extents; None where its results are none."""
    x, y = np.broadcast_arrays(*[_whole(v.array) for v in inputs])
    kind = np.dtype(bool) if name in _QUESTIONS else _type_of(inputs[0])
    if not _stays_whole(name, kind, x, y):
        return None
    operation = functools.partial(_asked, name) if name in _QUESTIONS else _OPERATIONS[name]
    return _found(np.frompyfunc(operation, 2, 1)(x, y), kind, anchor)


_COUNTED = frozenset(("Shape", "Size"))
"""Operators that ask how many elements there are."""
_MOVED = _COUNTED | frozenset(
    ("Concat", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze", "Where")
)
"""Operators whose converters move elements of arrays, whatever they are, or count them."""


def _stays_whole(name: str, kind: np.dtype[Any], x: Array, y: Array) -> bool:
    """Return whether the results of an operation are extents again, or questions about such."""
    if any(isinstance(v, float | Question) for v in (*x.reshape(-1), *y.reshape(-1))):
        return False
    if name != "Div" or kind.kind in "iu":
        return True
    both = zip(x.reshape(-1), y.reshape(-1), strict=True)
    return all(not is_identical(b, 0) and is_identical(a % b, 0) for a, b in both)


def _quotient(x: Any, y: Any) -> Any:
    """Return x / y, integers, rounded toward zero."""
    return x // y if (x >= 0) == (y >= 0) else -(-x // y)


_QUESTIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "Equal": lambda x, y: bool(x == y),
    "Greater": lambda x, y: bool(x > y),
    "GreaterOrEqual": lambda x, y: bool(x >= y),
    "Less": lambda x, y: bool(x < y),
    "LessOrEqual": lambda x, y: bool(x <= y),
}
_STATED: Mapping[str, Callable[[Dim, Dim], Relation]] = {
    "Equal": equal,
    "Greater": lambda x, y: less_equal(y + 1, x),
    "GreaterOrEqual": lambda x, y: less_equal(y, x),
    "Less": lambda x, y: less_equal(x + 1, y),
    "LessOrEqual": less_equal,
}
_ASKED: Mapping[str, Callable[[], Any]] = {
    "Equal": logic.Equal,
    "Greater": logic.Greater,
    "GreaterOrEqual": logic.GreaterEqual,
    "Less": logic.Less,
    "LessOrEqual": logic.LessEqual,
}


def _asked(name: str, x: Dim, y: Dim) -> bool | Question:
    """The answer to a question about extents; the question where data decide it."""
    if data_decide(x - y):
        truth = _STATED[name](x, y).truth()
        return Question(name, x, y) if truth is None else truth
    return bool(_QUESTIONS[name](x, y))


_OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": lambda x, y: x + y,
    "Sub": lambda x, y: x - y,
    "Mul": lambda x, y: x * y,
    "Div": _quotient,
    "Max": maximum,
    "Min": minimum,
    **_QUESTIONS,
}


_REDUCED = {"ReduceMin": "Min", "ReduceMax": "Max", "ReduceSum": "Add", "ReduceProd": "Mul"}
"""Reductions of a list of extents, by what joins two of them."""


def _type_of(value: Extents | ArrayOperand) -> np.dtype[Any]:
    return value.dtype if isinstance(value, Extents) else value.array.dtype


def _whole(array: Array) -> Array:
    """An array of objects: Python's integers where elements are whole."""
    flat = [
        int(v) if not isinstance(v, Expr) and float(v).is_integer() else v
        for v in array.reshape(-1).tolist()
    ]
    made = np.empty(len(flat), object)
    made[:] = flat
    return made.reshape(array.shape)


def _found(array: Any, dtype: np.dtype[Any], anchor: Value) -> Value:
    """A result: numbers where no expression is left."""
    made = np.asarray(array, object)
    if any(isinstance(v, Expr | Question) for v in made.reshape(-1)):
        return Extents(made, dtype, anchor)
    return known(made.astype(dtype))


def _cast(node: OnnxNode, x: Extents) -> Value:
    target = np.dtype(helper.tensor_dtype_to_np_dtype(int(node.attributes["to"])))
    if target == x.dtype:
        return x
    if x.dtype.kind == "b":
        return None
    if target.kind in "iuf" and target.itemsize >= 4:
        return Extents(x.array, target, x.anchor)
    return None


def _range(dtype: np.dtype[Any], first: Any, last: Any, step: Any, *, anchor: Value) -> Value:
    first, last, step = _whole(np.array([first, last, step], object))
    if any(isinstance(v, float) for v in (first, last, step)):
        return None
    count = max(-((first - last) // step), 0)
    return anchor.apply(Iota(first, step, count, as_dtype(dtype)), ())[0]
