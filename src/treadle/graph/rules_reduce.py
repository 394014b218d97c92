"""Rewrite rules for reductions, matrix products, and what is repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treadle.base import dtype as dt
from treadle.base.shape import is_static, product, size_of
from treadle.graph.algebra import FLOATS, NUMBERS
from treadle.graph.ir import Value, constant_of
from treadle.graph.rewrite import Found, Level, P, Rule
from treadle.ops.elementwise import Cast, Mul, Neg
from treadle.ops.families import Elementwise, Reduce
from treadle.ops.matmul import Matmul, MatrixProduct, WideMatmul
from treadle.ops.movement import Broadcast, Reshape, Transpose
from treadle.ops.reduce import Max, Mean, Min, Prod, Sum
from treadle.ops.unary import Exp, Log, Sqrt, Square, Tanh

ANY = ("float32", "bool", "int32", "bfloat16")


def _reshaped(m: Found, value: Value) -> Value:
    return value if value.type == m.type else m.apply(Reshape(m.type.shape), value)


# -- reductions --------------------------------------------------------------------------------


def _of_one(m: Found) -> Value | None:
    if any(m["x"].type.shape[a] != 1 for a in m.attribute("", "axes")):
        return None
    return _reshaped(m, m["x"])


def _one_element(op: Callable[..., Reduce], level: Level) -> Rule:
    made = op((1,))
    return Rule(
        f"{made.name}(x) of one element => reshape(x)",
        P(type(made), ("x",)),
        _of_one,
        level,
        example=lambda x: made(x),
        shapes=((2, 1, 3),),
        dtypes=("float32", "bfloat16"),
    )


def _merged_axes(m: Found) -> tuple[int, ...]:
    """Both sets of axes, counted in x."""
    outer, inner = m.attribute("", "axes"), m.attribute("inner", "axes")
    left = [a for a in range(m["x"].type.ndim) if a not in inner]
    return tuple(sorted((*inner, *(left[a] for a in outer))))


def _twice(op: Callable[..., Reduce]) -> Rule:
    made = op((1,))

    def build(m: Found) -> Value | None:
        if m.attribute("", "keepdims") or m.attribute("inner", "keepdims"):
            return None
        return m.apply(op(_merged_axes(m)), m["x"])

    return Rule(
        f"{made.name}({made.name}(x)) => {made.name}(x)",
        P(type(made), (P(type(made), ("x",), "inner"),)),
        build,
        example=lambda x: made(made(x)),
        shapes=((2, 3, 4),),
        dtypes=("float32", "int32"),
    )


def _kept(op: Callable[..., Reduce], dtypes: tuple[str, ...]) -> Rule:
    """The form that broadcasts against x without a reshape."""
    made = op((1,))

    def build(m: Found) -> Value | None:
        inner = m.nodes["inner"].op
        if not isinstance(inner, Reduce) or inner.keepdims:
            return None
        if m.type.shape != inner.kept_shape(m["x"].type):
            return None
        return m.apply(op(inner.axes, True), m["x"])

    return Rule(
        f"reshape({made.name}(x)) that keeps the axes => {made.name}(x) with keepdims",
        P(Reshape, (P(type(made), ("x",), "inner"),)),
        build,
        example=lambda x: made(x).reshape((x.shape[0], 1, x.shape[2])),
        shapes=((2, 3, 4),),
        dtypes=dtypes,
    )


def _repeats(m: Found) -> int | None:
    """Return how often each element of x counts, where the reduction runs over repeated
    axes alone.
    """
    shape, inner = m.nodes["inner"].output.type.shape, m["x"].type.shape
    lead = len(shape) - len(inner)
    axes = m.attribute("", "axes")
    if not is_static(shape) or any(a >= lead and inner[a - lead] != 1 for a in axes):
        return None
    # What is left of the repetition must be nothing, so that a reshape is all that remains.
    rest = [d for a, d in enumerate(shape) if a not in axes]
    return size_of([shape[a] for a in axes]) if size_of(rest) == size_of(inner) else None


def _of_repeated(op: Callable[..., Reduce], level: Level, total: bool = False) -> Rule:
    made = op((0, 2))

    def build(m: Found) -> Value | None:
        count = _repeats(m)
        if not count:
            return None
        x = _reshaped(m, m["x"])
        return m.apply(Mul(), x, m.constant(count)) if total else x

    result = "x * count" if total else "x"
    return Rule(
        f"{made.name}(broadcast(x)) over what is repeated => {result}",
        P(type(made), (P(Broadcast, ("x",), "inner"),)),
        build,
        level,
        example=lambda x: made(x.broadcast_to((4, *x.shape[:1], 5))),
        shapes=((2, 1),),
        dtypes=("float32", "float64"),
    )


def _scalar_outside(m: Found) -> Value | None:
    """sum(x * c) with one number c."""
    data = constant_of(m["c"])
    if data is None or data.nbytes != data.dtype.itemsize or m["x"].type.shape != _inner_shape(m):
        return None
    total = m.apply(m.root.op, m["x"])
    made = m.apply(Mul(), total, m["c"])
    return made if made.type == m.type else None


def _inner_shape(m: Found) -> Any:
    return m.nodes["inner"].output.type.shape


def _outside(op: Callable[..., Reduce]) -> Rule:
    made = op((1,))
    return Rule(
        f"{made.name}(x * number) => {made.name}(x) * number",
        P(type(made), (P(Mul, ("x", "c"), "inner", commutes=True),)),
        _scalar_outside,
        "fast",
        example=lambda x: made(x * 0.5),
        shapes=((2, 3),),
        dtypes=("float32", "float64"),
    )


def _sum_of_transpose(m: Found) -> Value | None:
    order, axes = m.attribute("inner", "permutation"), m.attribute("", "axes")
    left = [order[a] for a in range(len(order)) if a not in axes]
    if m.attribute("", "keepdims") or left != sorted(left):
        return None
    return m.apply(Sum(tuple(sorted(order[a] for a in axes))), m["x"])


REDUCTIONS = (
    _one_element(Max, "exact"),
    _one_element(Min, "exact"),
    _one_element(Mean, "safe"),
    _one_element(Prod, "safe"),
    _twice(Max),
    _twice(Min),
    _kept(Sum, NUMBERS),
    _kept(Mean, FLOATS),
    _kept(Max, NUMBERS),
    _of_repeated(Max, "exact"),
    _of_repeated(Min, "exact"),
    _of_repeated(Mean, "fast"),
    _of_repeated(Sum, "fast", total=True),
    _outside(Sum),
    _outside(Mean),
    Rule(
        "sum(transpose(x)) that leaves the order => sum(x)",
        P(Sum, (P(Transpose, ("x",), "inner"),)),
        _sum_of_transpose,
        "fast",
        example=lambda x: x.transpose((2, 0, 1)).sum((0,)),
        shapes=((2, 3, 4),),
        dtypes=("float32", "int32"),
    ),
)


# -- products ----------------------------------------------------------------------------------


def _swaps_last(order: tuple[int, ...]) -> bool:
    n = len(order)
    return n >= 2 and order == (*range(n - 2), n - 1, n - 2)


def _into_flag(first: bool) -> Callable[[Found], Value | None]:
    def build(m: Found) -> Value | None:
        if not _swaps_last(m.attribute("inner", "permutation")):
            return None
        x, y = m.attribute("", "transpose_x"), m.attribute("", "transpose_y")
        op = Matmul(not x, y) if first else Matmul(x, not y)
        return m.apply(op, m["x"], m["y"])

    return build


def _wide(x: Any) -> Any:
    return Cast(dt.float32)(x)


def _cast_where_it_lies(op: type[MatrixProduct], first: bool) -> Rule:
    """Transpose a product's operand behind its cast: products read views, not so casts."""
    name = "x" if first else "y"
    moved = P(Cast, (P(Transpose, (name,), "inner"),), "cast")

    def build(m: Found) -> Value | None:
        if not _swaps_last(m.attribute("inner", "permutation")):
            return None
        turned = m.apply(m.nodes["inner"].op, m.apply(m.nodes["cast"].op, m[name]))
        return m.apply(m.root.op, *((turned, m["y"]) if first else (m["x"], turned)))

    def example(x: Any, y: Any) -> Any:
        if first:
            return op()(_wide(x.transpose((0, 2, 1))), _wide(y))
        return op()(_wide(x), _wide(y.transpose((0, 2, 1))))

    pair = ("cast(transpose(x)), y", "transpose(cast(x)), y")
    if not first:
        pair = ("x, cast(transpose(y))", "x, transpose(cast(y))")
    return Rule(
        f"{op.name}({pair[0]}) => {op.name}({pair[1]})",
        P(op, (moved, "y") if first else ("x", moved)),
        build,
        example=example,
        shapes=((2, 3, 4), (2, 3, 2)) if first else ((2, 2, 3), (2, 4, 3)),
        dtypes=("float16", "bfloat16", "int8"),
    )


def _stacked_product(m: Found) -> Value | None:
    """The sum over a stack of x^T y is one product, with the stack laid end to end."""
    x, y = m["x"].type, m["y"].type
    batch = x.ndim - 2
    if m.attribute("", "axes") != tuple(range(batch)) or m.attribute("", "keepdims"):
        return None
    if not m.attribute("product", "transpose_x") or m.attribute("product", "transpose_y"):
        return None
    if batch < 1 or x.shape[:-1] != y.shape[:-1]:
        return None
    rows = product(x.shape[:-1])
    flat = [m.apply(Reshape((rows, t.type.shape[-1])), t) for t in (m["x"], m["y"])]
    return m.apply(Matmul(True, False), *flat)


def _scale_into_constant(m: Found) -> Value | None:
    """(x y) * c with constants y and c: the product of both is computed once."""
    c = constant_of(m["c"])
    if c is None or c.nbytes != c.dtype.itemsize or constant_of(m["y"]) is None:
        return None
    if m.nodes["product"].output.type != m.type:
        return None
    scaled = m.apply(Mul(), m["y"], m["c"])
    return m.apply(m.nodes["product"].op, m["x"], scaled) if scaled.type == m["y"].type else None


def _weight(x: Any) -> Any:
    return x.constant([[0.5, -1.0], [2.0, 0.25], [1.0, 3.0]], x.type.dtype)


def _of_nothing(m: Found) -> Value | None:
    axis = -2 if m.attribute("", "transpose_x") else -1
    none = m["x"].type.shape[axis]
    if not isinstance(none, int) or none:
        return None
    return m.apply(Broadcast(m.type.shape), m.constant(0.0))


def _without_terms(op: Callable[..., MatrixProduct]) -> Rule:
    """A product whose sums have no term, which kernels do not take."""
    made = op()
    return Rule(
        f"{made.name}(x, y) of no terms => zeros",
        P(type(made), ("x", "y")),
        _of_nothing,
        example=lambda x, y: made(x, y),
        shapes=((2, 0), (0, 3)),
        dtypes=("float32", "float64"),
    )


PRODUCTS = (
    *(_without_terms(op) for op in (Matmul, WideMatmul)),
    Rule(
        "matmul(transpose(x), y) => matmul(x, y) with transpose_x",
        P(Matmul, (P(Transpose, ("x",), "inner"), "y")),
        _into_flag(True),
        example=lambda x, y: Matmul()(x.transpose((0, 2, 1)), y),
        shapes=((2, 3, 4), (2, 3, 2)),
        dtypes=("float32", "float64"),
        level="fast",
    ),
    Rule(
        "matmul(x, transpose(y)) => matmul(x, y) with transpose_y",
        P(Matmul, ("x", P(Transpose, ("y",), "inner"))),
        _into_flag(False),
        example=lambda x, y: Matmul()(x, y.transpose((1, 0))),
        shapes=((2, 3), (4, 3)),
        dtypes=("float32", "float64"),
        level="fast",
    ),
    *(_cast_where_it_lies(op, first) for op in (Matmul, WideMatmul) for first in (True, False)),
    Rule(
        "sum(matmul(x^T, y)) over the stack => one matmul",
        P(Sum, (P(Matmul, ("x", "y"), "product"),)),
        _stacked_product,
        "fast",
        example=lambda x, y: Matmul(True, False)(x, y).sum((0,)),
        shapes=((2, 3, 4), (2, 3, 2)),
        dtypes=("float32", "float64"),
    ),
    Rule(
        "matmul(x, constant) * number => matmul(x, constant * number)",
        P(Mul, (P(Matmul, ("x", "y"), "product"), "c"), commutes=True),
        _scale_into_constant,
        "fast",
        example=lambda x: Matmul()(x, _weight(x)) * 0.5,
        dtypes=("float32", "float64"),
    ),
)


# -- what is repeated --------------------------------------------------------------------------


def _single(m: Found) -> Value | None:
    """Replace a move of one element, which looks the same in every order, by a broadcast."""
    x = m["x"]
    if not x.type.is_static or size_of(x.type.shape) != 1:
        return None
    flat = x if not x.type.ndim else m.apply(Reshape(()), x)
    return m.apply(Broadcast(m.type.shape), flat)


def _without_leading_ones(m: Found) -> Value | None:
    x, middle = m["x"].type.shape, m.nodes["inner"].output.type.shape
    lead = len(middle) - len(x)
    if lead < 0 or middle[lead:] != x or any(d != 1 for d in middle[:lead]):
        return None
    return m.apply(Broadcast(m.type.shape), m["x"])


def _compute_first(op: Elementwise, dtypes: tuple[str, ...]) -> Rule:
    """Compute few elements and repeat the results."""

    def build(m: Found) -> Value | None:
        return m.apply(Broadcast(m.type.shape), m.apply(op, m["x"]))

    return Rule(
        f"{op.name}(broadcast(x)) => broadcast({op.name}(x))",
        P(type(op), (P(Broadcast, ("x",)),)),
        build,
        example=lambda x: op(x.broadcast_to((4, *x.shape))),
        shapes=((3,),),
        dtypes=dtypes,
    )


REPETITION = (
    Rule(
        "transpose(broadcast(x)) of one element => broadcast(x)",
        P(Transpose, (P(Broadcast, ("x",), "inner"),)),
        _single,
        example=lambda x: x.broadcast_to((2, 3)).transpose((1, 0)),
        shapes=((),),
        dtypes=ANY,
    ),
    Rule(
        "reshape(broadcast(x)) of one element => broadcast(x)",
        P(Reshape, (P(Broadcast, ("x",), "inner"),)),
        _single,
        example=lambda x: x.broadcast_to((2, 3)).reshape((6,)),
        shapes=((1,),),
        dtypes=ANY,
    ),
    Rule(
        "broadcast(reshape(x)) that puts ones in front => broadcast(x)",
        P(Broadcast, (P(Reshape, ("x",), "inner"),)),
        _without_leading_ones,
        example=lambda x: x.reshape((1, *x.shape)).broadcast_to((4, *x.shape)),
        shapes=((2, 3),),
        dtypes=ANY,
    ),
    *(_compute_first(op, FLOATS) for op in (Neg(), Exp(), Log(), Sqrt(), Square(), Tanh())),
)
