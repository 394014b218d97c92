"""Complex numbers of ATen as pairs of real ones.

Operators that move elements move both parts, sums are sums of the parts, and what multiplies or
is a function of complex numbers is written here. Where a program begins and ends, a complex tensor
is a real one with a last axis of two, as it lies in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from treadle.base.dtype import DType
from treadle.graph.builder import GraphOperand
from treadle.interop.torch.arrays import PARTS
from treadle.interop.torch.shaping import extents, part
from treadle.interop.torch.symbols import Described
from treadle.interop.torch.table import LOWERINGS, Lower, OperatorCall
from treadle.ops import elementwise as ew
from treadle.ops import logic, unary
from treadle.ops.movement import Concat
from treadle.ops.select import Where

V = GraphOperand


@dataclass(frozen=True, slots=True)
class Pair:
    """A complex tensor under construction: its two parts, of one type."""

    real: V
    imag: V

    @property
    def type(self) -> Any:
        """Type of either part."""
        return self.real.type


def joined(pair: Pair) -> V:
    """The parts as they lie in memory, on a last axis of two."""
    wide = (*extents(pair.real), 1)
    axis = pair.real.type.ndim
    return Concat(axis)(pair.real.reshape(wide), pair.imag.reshape(wide))


def parted(x: V) -> Pair:
    """The pair that lies on the last axis."""
    axis = x.type.ndim - 1
    shape = extents(x)[:-1]
    return Pair(part(x, axis, 0, 1).reshape(shape), part(x, axis, 1, 2).reshape(shape))


COMPLEX: dict[str, Lower] = {}
"""Lowerings of operators on complex numbers, by name."""


def _complex(*names: str) -> Callable[[Lower], Lower]:
    def add(lower: Lower) -> Lower:
        COMPLEX.update(dict.fromkeys(names, lower))
        return lower

    return add


def is_complex(values: Any) -> bool:
    """Return whether some of what an operator takes or gives is complex."""
    if isinstance(values, (tuple, list)):
        return any(map(is_complex, values))
    if isinstance(values, (torch.Tensor, Described)):
        return values.dtype in PARTS
    return isinstance(values, (Pair, complex))


def lower_complex(call: OperatorCall, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
    """Write an operator of which some operand or result is complex.

    Raises:
        NotImplementedError: it has no counterpart for complex numbers.
    """
    lower = COMPLEX.get(call.name)
    if lower is not None:
        return lower(call, *arguments, **named)
    if call.name.partition(".")[0] not in _BY_PARTS:
        raise NotImplementedError("it has no counterpart for complex numbers")
    of_parts = [
        LOWERINGS[call.name](
            call,
            *(_part(a, which) for a in arguments),
            **{k: _part(v, which) for k, v in named.items()},
        )
        for which in ("real", "imag")
    ]
    if isinstance(of_parts[0], (tuple, list)):
        return tuple(Pair(*parts) for parts in zip(*of_parts, strict=True))
    return Pair(*of_parts)


_BY_PARTS = frozenset(
    (
        "_reshape_alias",
        "_to_copy",
        "_unsafe_index_put",
        "_unsafe_view",
        "alias",
        "as_strided",
        "as_strided_copy",
        "cat",
        "clone",
        "constant_pad_nd",
        "contiguous",
        "copy",
        "cumsum",
        "detach",
        "diagonal",
        "diagonal_scatter",
        "diagonal_copy",
        "embedding",
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "expand",
        "expand_copy",
        "flip",
        "gather",
        "index",
        "index_add",
        "index_copy",
        "index_fill",
        "index_put",
        "index_select",
        "lift_fresh_copy",
        "mean",
        "neg",
        "new_empty",
        "new_empty_strided",
        "new_zeros",
        "permute",
        "permute_copy",
        "repeat",
        "reshape",
        "roll",
        "scatter",
        "scatter_add",
        "select",
        "select_copy",
        "select_scatter",
        "slice",
        "slice_copy",
        "slice_scatter",
        "split",
        "split_with_sizes",
        "squeeze",
        "squeeze_copy",
        "stack",
        "sum",
        "t",
        "transpose",
        "unbind",
        "unfold",
        "unfold_backward",
        "unsqueeze",
        "unsqueeze_copy",
        "view",
        "view_copy",
        "zeros",
        "zeros_like",
    )
)
"""Operators that do to both parts what they do to real numbers."""


def _part(value: Any, which: str) -> Any:
    """The real or the imaginary part; what is not a number stays as it is."""
    if isinstance(value, (Pair, complex)):
        return getattr(value, which)
    if isinstance(value, (tuple, list)) and any(isinstance(v, Pair) for v in value):
        return [_part(v, which) if v is not None else None for v in value]
    is_value = isinstance(value, GraphOperand) and value.type.dtype.is_float
    if is_value and which == "imag":
        return value.constant(0).broadcast_to(extents(value))
    return value


def _pair(call: OperatorCall, value: Any, dtype: DType) -> Pair:
    """A value as a pair; real ones have no imaginary part."""
    if isinstance(value, Pair):
        return Pair(value.real.astype(dtype), value.imag.astype(dtype))
    if isinstance(value, GraphOperand):
        real = value.astype(dtype)
        return Pair(real, real.constant(0).broadcast_to(extents(real)))
    number = complex(value)
    builder = call.builder
    return Pair(
        builder.constant(dtype.numpy.type(number.real)),
        builder.constant(dtype.numpy.type(number.imag)),
    )


# -- parts -------------------------------------------------------------------------------------


@_complex("view_as_real.default", "view_as_real_copy.default")
def _as_real(call: OperatorCall, x: Pair) -> V:
    return joined(x)


@_complex("view_as_complex.default", "view_as_complex_copy.default")
def _as_complex(call: OperatorCall, x: V) -> Pair:
    return parted(x)


@_complex("complex.default")
def _make(call: OperatorCall, real: V, imag: V) -> Pair:
    return Pair(real.broadcast_to(call.shape), imag.broadcast_to(call.shape))


@_complex("polar.default")
def _polar(call: OperatorCall, size: V, angle: V) -> Pair:
    return Pair(size * unary.Cos()(angle), size * unary.Sin()(angle))


@_complex("real.default")
def _real(call: OperatorCall, x: Pair) -> V:
    return x.real


@_complex("imag.default")
def _imag(call: OperatorCall, x: Pair) -> V:
    return x.imag


@_complex("_conj.default", "_conj_physical.default", "conj_physical.default", "_conj_copy.default")
def _conj(call: OperatorCall, x: Any) -> Pair:
    pair = _pair(call, x, call.dtype)
    return Pair(pair.real, -pair.imag)


@_complex("resolve_conj.default", "resolve_neg.default", "positive.default")
def _same(call: OperatorCall, x: Any) -> Any:
    return x


@_complex("_to_copy.default", "convert_element_type.default", "copy.default")
def _to_copy(call: OperatorCall, x: Any, *args: Any, **kwargs: Any) -> Any:
    given = args[0] if args and isinstance(args[0], (GraphOperand, Pair)) else x
    if not is_complex(call.values):
        real = given.real if isinstance(given, Pair) else given
        made: V = real.astype(call.dtype).broadcast_to(call.shape)
        return made
    pair = _pair(call, given, call.dtype)
    return Pair(pair.real.broadcast_to(call.shape), pair.imag.broadcast_to(call.shape))


@_complex("abs.default")
def _abs(call: OperatorCall, x: Pair) -> V:
    """Return |x| without overflow: the greater part times sqrt(1 + the square of the quotient)."""
    first, second = unary.Abs()(x.real), unary.Abs()(x.imag)
    most, least = ew.Maximum()(first, second), ew.Minimum()(first, second)
    none = logic.Equal()(most, most.constant(0))
    share = least / Where()(none, most.constant(1), most)
    size: V = Where()(logic.IsInf()(most), most, most * unary.Sqrt()(share * share + 1))
    return size


@_complex("angle.default")
def _angle(call: OperatorCall, x: Any) -> V:
    if not isinstance(x, Pair):
        x = x.astype(call.dtype)
        half = Where()(logic.Less()(x, x.constant(0)), x.constant(math.pi), x.constant(0))
        found: V = Where()(logic.IsNan()(x), x, half)
        return found
    return ew.Atan2()(x.imag, x.real)


@_complex("sgn.default")
def _sgn(call: OperatorCall, x: Pair) -> Pair:
    size = _abs(call, x)
    none = logic.Equal()(size, size.constant(0))
    whole = Where()(none, size.constant(1), size)
    zero = size.constant(0)
    return Pair(Where()(none, zero, x.real / whole), Where()(none, zero, x.imag / whole))


# -- arithmetic --------------------------------------------------------------------------------


def _times(x: Pair, y: Pair) -> Pair:
    return Pair(x.real * y.real - x.imag * y.imag, x.real * y.imag + x.imag * y.real)


def _inverse(x: Pair) -> Pair:
    size = x.real * x.real + x.imag * x.imag
    return Pair(x.real / size, -x.imag / size)


@_complex("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar")
def _add(call: OperatorCall, x: Any, y: Any, *, alpha: Any = 1) -> Pair:
    first, second = _pair(call, x, call.dtype), _pair(call, y, call.dtype)
    if alpha != 1:
        second = _times(second, _pair(call, alpha, call.dtype))
    op: Any = ew.Add() if call.name.startswith("add") else ew.Sub()
    return Pair(op(first.real, second.real), op(first.imag, second.imag))


@_complex("mul.Tensor", "mul.Scalar")
def _mul(call: OperatorCall, x: Any, y: Any) -> Pair:
    for one, other in ((x, y), (y, x)):
        if isinstance(one, Pair) and not isinstance(other, (Pair, complex)):
            factor = call.operand(other, call.dtype, one.real)
            return Pair(one.real.astype(call.dtype) * factor, one.imag.astype(call.dtype) * factor)
    return _times(_pair(call, x, call.dtype), _pair(call, y, call.dtype))


@_complex("div.Tensor", "div.Scalar")
def _div(call: OperatorCall, x: Any, y: Any) -> Pair:
    if not isinstance(y, (Pair, complex)):
        divisor = call.operand(y, call.dtype, x.real)
        return Pair(x.real.astype(call.dtype) / divisor, x.imag.astype(call.dtype) / divisor)
    return _times(_pair(call, x, call.dtype), _inverse(_pair(call, y, call.dtype)))


@_complex("reciprocal.default")
def _reciprocal(call: OperatorCall, x: Pair) -> Pair:
    return _inverse(x)


@_complex("mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default")
def _product(call: OperatorCall, x: Any, y: Any) -> Pair:
    first, second = _pair(call, x, call.dtype), _pair(call, y, call.dtype)
    real = (first.real @ second.real) - (first.imag @ second.imag)
    return Pair(real, (first.real @ second.imag) + (first.imag @ second.real))


@_complex("addmm.default", "baddbmm.default")
def _add_product(
    call: OperatorCall, bias: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1
) -> Pair:
    product = _times(_product(call, x, y), _pair(call, alpha, call.dtype))
    added = _times(_pair(call, bias, call.dtype), _pair(call, beta, call.dtype))
    return Pair(product.real + added.real, product.imag + added.imag)


@_complex("eq.Tensor", "eq.Scalar", "ne.Tensor", "ne.Scalar")
def _equal(call: OperatorCall, x: Any, y: Any) -> V:
    kind = next(v.type.dtype for v in (x, y) if isinstance(v, Pair))
    first, second = _pair(call, x, kind), _pair(call, y, kind)
    op = logic.Equal()
    same = op(first.real, second.real) & op(first.imag, second.imag)
    return logic.LogicalNot()(same) if call.name.startswith("ne") else same


@_complex("full.default", "full_like.default", "new_full.default", "ones.default")
@_complex("ones_like.default", "new_ones.default", "scalar_tensor.default")
def _full(call: OperatorCall, *args: Any, **kwargs: Any) -> Pair:
    given = args[-1] if args else 0
    value = 1 if "ones" in call.name else kwargs.get("fill_value", given)
    number = _pair(call, value, call.dtype)
    return Pair(number.real.broadcast_to(call.shape), number.imag.broadcast_to(call.shape))


@_complex("masked_fill.Scalar")
def _masked_fill(call: OperatorCall, x: Pair, mask: V, value: Any) -> Pair:
    made: Pair = _where(call, mask, value, x)
    return made


@_complex("where.self")
def _where(call: OperatorCall, mask: V, x: Any, y: Any) -> Pair:
    first, second = _pair(call, x, call.dtype), _pair(call, y, call.dtype)
    real = Where()(mask, first.real, second.real).broadcast_to(call.shape)
    return Pair(real, Where()(mask, first.imag, second.imag).broadcast_to(call.shape))


# -- functions ---------------------------------------------------------------------------------


@_complex("exp.default")
def _exp(call: OperatorCall, x: Pair) -> Pair:
    size = unary.Exp()(x.real)
    return Pair(size * unary.Cos()(x.imag), size * unary.Sin()(x.imag))


@_complex("log.default")
def _log(call: OperatorCall, x: Pair) -> Pair:
    return Pair(unary.Log()(_abs(call, x)), ew.Atan2()(x.imag, x.real))


@_complex("pow.Tensor_Scalar")
def _pow(call: OperatorCall, x: Pair, exponent: Any) -> Pair:
    if isinstance(exponent, (int, float)) and exponent == int(exponent) and 0 < exponent <= 8:
        made: Pair = x
        for _ in range(int(exponent) - 1):
            made = _times(made, x)
        return made
    found: Pair = _exp(call, _times(_log(call, x), _pair(call, exponent, call.dtype)))
    return found


@_complex("sqrt.default")
def _sqrt(call: OperatorCall, x: Pair) -> Pair:
    size = _abs(call, x)
    real = unary.Sqrt()(ew.Maximum()((size + x.real) * 0.5, size.constant(0)))
    imag = unary.Sqrt()(ew.Maximum()((size - x.real) * 0.5, size.constant(0)))
    below = logic.Less()(x.imag, x.imag.constant(0))
    return Pair(real, Where()(below, -imag, imag))


@_complex("isnan.default")
def _isnan(call: OperatorCall, x: Pair) -> V:
    return logic.IsNan()(x.real) | logic.IsNan()(x.imag)


@_complex("isinf.default")
def _isinf(call: OperatorCall, x: Pair) -> V:
    return logic.IsInf()(x.real) | logic.IsInf()(x.imag)


@_complex("prod.default", "prod.dim_int", "cumprod.default")
def _refused(call: OperatorCall, *args: Any, **kwargs: Any) -> Pair:
    raise NotImplementedError("products over axes of complex numbers")


@_complex("linalg_vector_norm.default")
def _norm(call: OperatorCall, x: Pair, *args: Any, **kwargs: Any) -> V:
    made: V = LOWERINGS[call.name](call, _abs(call, x), *args, **kwargs)
    return made
