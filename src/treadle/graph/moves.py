"""Rewrite rules for ops that only move elements."""

from __future__ import annotations

from treadle.graph.algebra import FLOATS, keep
from treadle.graph.ir import Value
from treadle.graph.rewrite import Found, P, Rule
from treadle.ops.elementwise import Add, Div, Maximum, Minimum, Mul, Sub
from treadle.ops.movement import Broadcast, Reshape, Transpose
from treadle.ops.op import Op
from treadle.ops.reduce import Sum
from treadle.ops.transfer import Identity, StopGradient

ANY = ("float32", "bool", "int32", "complex64", "bfloat16")


def _compose(m: Found) -> Value | None:
    """result axis i is axis outer[i] of the middle, which is axis inner[outer[i]] of x."""
    outer, inner = m.attribute("", "permutation"), m.attribute("inner", "permutation")
    order = tuple(inner[axis] for axis in outer)
    if order == tuple(range(len(order))):
        return m["x"]
    return m.apply(Transpose(order), m["x"])


def _identity_order(m: Found) -> Value | None:
    order = m.attribute("", "permutation")
    return m["x"] if order == tuple(range(len(order))) else None


def _as_reshape(m: Found) -> Value | None:
    """A transpose that keeps the order of all axes but those of extent 1 moves nothing."""
    order, shape = m.attribute("", "permutation"), m["x"].type.shape
    long = [axis for axis in order if shape[axis] != 1]
    return m.apply(Reshape(m.type.shape), m["x"]) if long == sorted(long) else None


def _reshape(m: Found) -> Value | None:
    return m["x"] if m["x"].type == m.type else m.apply(Reshape(m.type.shape), m["x"])


def _broadcast(m: Found) -> Value | None:
    return m.apply(Broadcast(m.type.shape), m["x"])


def _sum_of_nothing(m: Found) -> Value | None:
    """Replace a sum along no axis, or along axes of extent 1, by a reshape."""
    if any(m["x"].type.shape[axis] != 1 for axis in m.attribute("", "axes")):
        return None
    return _reshape(m)


def _sum_of_sum(m: Found) -> Value | None:
    outer, inner = m.attribute("", "axes"), m.attribute("inner", "axes")
    if m.attribute("", "keepdims") or m.attribute("inner", "keepdims"):
        return None
    left = [axis for axis in range(m["x"].type.ndim) if axis not in inner]
    return m.apply(Sum(tuple(sorted((*inner, *(left[axis] for axis in outer))))), m["x"])


def _without_broadcast(op: Op, commutes: bool = False) -> Rule:
    """Elementwise ops repeat their operands themselves."""

    def build(m: Found) -> Value | None:
        # Without it the result must still have its shape, from the other operand.
        made = m.apply(op, m["x"], m["y"])
        return made if made.type == m.type else None

    return Rule(
        f"{op.name}(x, broadcast(y)) => {op.name}(x, y)",
        P(type(op), ("x", P(Broadcast, ("y",))), commutes=commutes),
        build,
        example=lambda x, y: op(x, y.broadcast_to(x.shape)),
        shapes=((2, 3), (3,)),
        dtypes=FLOATS,
    )


IDENTITY = Rule(
    "identity(x) => x",
    P(Identity, ("x",)),
    keep("x"),
    example=lambda x: Identity()(x),
    dtypes=ANY,
)

MOVEMENT = (
    IDENTITY,
    _without_broadcast(Add(), commutes=True),
    _without_broadcast(Mul(), commutes=True),
    _without_broadcast(Sub()),
    _without_broadcast(Div()),
    _without_broadcast(Maximum()),
    _without_broadcast(Minimum()),
    Rule(
        "transpose(transpose(x)) => transpose(x)",
        P(Transpose, (P(Transpose, ("x",), "inner"),)),
        _compose,
        example=lambda x: x.transpose((1, 2, 0)).transpose((2, 1, 0)),
        shapes=((2, 3, 4),),
        dtypes=ANY,
    ),
    Rule(
        "transpose(x) in the same order => x",
        P(Transpose, ("x",)),
        _identity_order,
        example=lambda x: x.transpose((0, 1)),
        dtypes=ANY,
    ),
    Rule(
        "transpose(x) that moves extents of 1 only => reshape(x)",
        P(Transpose, ("x",)),
        _as_reshape,
        example=lambda x: x.transpose((1, 0, 2)),
        shapes=((2, 1, 3),),
        dtypes=ANY,
    ),
    Rule(
        "reshape(reshape(x)) => reshape(x)",
        P(Reshape, (P(Reshape, ("x",)),)),
        _reshape,
        example=lambda x: x.reshape((3, 2)).reshape((6,)),
        dtypes=ANY,
    ),
    Rule(
        "reshape(x) to its own shape => x",
        P(Reshape, ("x",)),
        keep("x"),
        example=lambda x: Reshape((2, 3))(x),
        dtypes=ANY,
    ),
    Rule(
        "broadcast(broadcast(x)) => broadcast(x)",
        P(Broadcast, (P(Broadcast, ("x",)),)),
        _broadcast,
        example=lambda x: x.broadcast_to((2, 3)).broadcast_to((4, 2, 3)),
        shapes=((3,),),
        dtypes=ANY,
    ),
    Rule(
        "broadcast(x) to its own shape => x",
        P(Broadcast, ("x",)),
        keep("x"),
        example=lambda x: Broadcast((2, 3))(x),
        dtypes=ANY,
    ),
    Rule(
        "sum(x) of one element => reshape(x)",
        P(Sum, ("x",)),
        _sum_of_nothing,
        "safe",  # Some ways to sum turn a lone -0 into 0.
        example=lambda x: x.sum(1),
        shapes=((2, 1, 3),),
        dtypes=("float32", "int32", "bfloat16"),
    ),
    Rule(
        "sum(sum(x)) => sum(x)",
        P(Sum, (P(Sum, ("x",), "inner"),)),
        _sum_of_sum,
        "fast",
        example=lambda x: x.sum(1).sum(1),
        shapes=((2, 3, 4),),
        dtypes=("float32", "float64", "int32"),
    ),
)

AFTER_GRADIENTS = (
    IDENTITY,
    Rule(
        "stop_gradient(x) => x, once gradients are taken",
        P(StopGradient, ("x",)),
        keep("x"),
        example=lambda x: StopGradient()(x),
        dtypes=ANY,
    ),
)
