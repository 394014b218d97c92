"""How a node of each operator is drawn: operands that fit, and attributes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import defs, helper
from tests.interop.onnx.fuzz.growing import RUNTIME, Growing, Misfit, Var

Recipe = Callable[[Growing, str], None]
RECIPES: dict[tuple[str, str], Recipe] = {}
"""By domain and operator."""
FLOATS = (np.float32, np.float64, np.float16)
INT = np.int64


def recipe(*names: str, domain: str = "") -> Callable[[Recipe], Recipe]:
    """Register how nodes of operators are drawn."""

    def take(draw: Recipe) -> Recipe:
        RECIPES.update(((domain, name), draw) for name in names)
        return draw

    return take


def since(g: Growing, op: str) -> int:
    """The version of an operator that a model has."""
    return int(defs.get_schema(op, g.opset, "").since_version)


def ranked(*ranks: int) -> Callable[[tuple[int, ...]], bool]:
    """Whether a shape has so many axes."""
    return lambda shape: len(shape) in ranks


def axis_of(g: Growing, x: Var) -> int:
    """An axis, counted from either end."""
    rank = len(x.shape)
    if not rank:
        raise Misfit
    return g.rng.randrange(-rank, rank)


def axes_of(g: Growing, x: Var, least: int = 0) -> list[int]:
    rank = len(x.shape)
    count = g.rng.randint(min(least, rank), rank)
    return [a - rank if g.chance(0.3) else a for a in sorted(g.rng.sample(range(rank), count))]


# -- elementwise -------------------------------------------------------------------------------

_RANGES = {
    "Log": (0.05, 3),
    "Sqrt": (0, 3),
    "Asin": (-1, 1),
    "Acos": (-1, 1),
    "Atanh": (-0.9, 0.9),
    "Acosh": (1, 3),
    "Reciprocal": (0.2, 3),
    "Tan": (-1.4, 1.4),
}
_ATTRIBUTES: dict[str, dict[str, tuple[float, float]]] = {
    "LeakyRelu": {"alpha": (0.01, 0.5)},
    "Elu": {"alpha": (0.2, 2)},
    "Selu": {"alpha": (1, 2), "gamma": (0.5, 1.5)},
    "Celu": {"alpha": (0.3, 2)},
    "HardSigmoid": {"alpha": (0.1, 0.5), "beta": (0, 0.7)},
    "ThresholdedRelu": {"alpha": (-1, 1)},
    "Shrink": {"lambd": (0, 1), "bias": (-1, 1)},
    "Swish": {"alpha": (0.5, 2)},
}


@recipe(
    *("Abs", "Neg", "Sign", "Ceil", "Floor", "Round", "Exp", "Log", "Sqrt", "Reciprocal", "Sin"),
    *("Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh"),
    *("Erf", "Sigmoid", "Softplus", "Softsign", "Relu", "LeakyRelu", "Elu", "Selu", "Celu"),
    *("HardSigmoid", "HardSwish", "ThresholdedRelu", "Mish", "Identity", "Not", "BitwiseNot"),
    *("IsNaN", "IsInf", "Shrink", "Swish"),
)
def _unary(g: Growing, op: str) -> None:
    schema = defs.get_schema(op, g.opset, "")
    x = g.any(
        g.types(op, schema.inputs[0].type_str),
        low=_RANGES.get(op, (-3, 3))[0],
        high=_RANGES.get(op, (-3, 3))[1],
    )
    attrs = {k: round(g.rng.uniform(*b), 3) for k, b in _ATTRIBUTES.get(op, {}).items()}
    g.add(op, [x], **(attrs if g.chance(0.6) else {}))


@recipe("Gelu")
def _gelu(g: Growing, op: str) -> None:
    g.add(op, [g.any(g.types(op, "T"))], approximate=g.rng.choice([None, "none", "tanh"]))


@recipe(
    *("Add", "Sub", "Mul", "And", "Or", "Xor", "Equal", "Less", "Greater", "LessOrEqual"),
    *("GreaterOrEqual", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "PRelu"),
)
def _binary(g: Growing, op: str) -> None:
    x = g.any(g.types(op, "T"))
    y = g.like(x)
    g.add(op, [y, x] if op != "PRelu" and g.chance(0.3) else [x, y])


@recipe("Div", "Mod")
def _division(g: Growing, op: str) -> None:
    x = g.any(g.types(op, "T"))
    shape = [1 if g.chance(0.3) else d for d in x.shape]
    divisor = g.numbers(x.dtype, shape, 1, 4)
    if x.array.dtype.kind in "fi":
        divisor = (divisor * g.rng.choice([-1, 1])).astype(x.dtype)
    whole = x.array.dtype.kind in "iu"
    fmod = None if op == "Div" else 1 if not whole else g.rng.choice([0, 1])
    g.add(op, [x, g.new(divisor)], fmod=fmod)


@recipe("Pow")
def _pow(g: Growing, op: str) -> None:
    x = g.any(g.types(op, "T"), low=0.1, high=3)
    kind = g.type(g.types(op, "T1"))
    shape = x.shape if g.chance(0.5) else ()
    y = g.numbers(kind, shape, 0 if x.array.dtype.kind == "i" else -2, 3)
    g.add(op, [x, g.new(y)])


@recipe("BitShift")
def _shift(g: Growing, op: str) -> None:
    x = g.any(g.types(op, "T"))
    y = g.new(g.numbers(x.dtype, x.shape, 0, 7))
    g.add(op, [x, y], direction=g.rng.choice(["LEFT", "RIGHT"]))


@recipe("Sum", "Mean", "Max", "Min")
def _variadic(g: Growing, op: str) -> None:
    x = g.any(g.types(op, "T"))
    g.add(op, [x, *(g.like(x) for _ in range(g.rng.randint(0, 3)))])


@recipe("Where")
def _where(g: Growing, op: str) -> None:
    x = g.any(g.types(op, "T"))
    y = g.like(x)
    mask = g.any([np.bool_], lambda s: s == x.shape, lambda: x.shape)
    g.add(op, [mask, *((x, y) if g.chance(0.5) else (y, x))])


@recipe("Clip")
def _clip(g: Growing, op: str) -> None:
    x = g.any(g.types(op, "T"))
    bounds = [
        g.new(g.numbers(x.dtype, (), *b)) if g.chance(0.7) else None for b in ((-2, 1), (0, 2))
    ]
    g.add(op, [x, *bounds])


@recipe("Cast")
def _cast(g: Growing, op: str) -> None:
    x = g.any(g.types(op, "T1"), low=0, high=3)
    to = g.type([t for t in g.types(op, "T2")])
    g.add(op, [x], to=helper.np_dtype_to_tensor_dtype(np.dtype(to)))


@recipe("CastLike")
def _cast_like(g: Growing, op: str) -> None:
    g.add(op, [g.any(g.types(op, "T1"), low=0, high=3), g.any(g.types(op, "T2"))])


@recipe("Dropout")
def _dropout(g: Growing, op: str) -> None:
    g.add(op, [g.any(g.types(op, "T"))], g.rng.choice([1, 2]))


# -- reductions --------------------------------------------------------------------------------


@recipe(
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
    *("ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
)
def _reduce(g: Growing, op: str) -> None:
    low = 0.2 if op == "ReduceLogSum" else -3
    types = g.types(op, "T")
    if op == "ReduceLogSumExp":
        # Of integers the specification has dropped it: runtimes round its exponentials or do not.
        types = [t for t in types if np.dtype(t).kind == "f"]
    x = g.any(types, low=low)
    if op == "ReduceLogSum" and x.array.dtype.kind == "i" and (x.array < 1).any():
        raise Misfit
    axes = axes_of(g, x)
    keep = g.rng.choice([None, 0, 1])
    if since(g, op) < (13 if op == "ReduceSum" else 18):
        g.add(op, [x], axes=axes or None, keepdims=keep)
        return
    noop = g.rng.choice([None, 0, 1])
    given = g.known(axes) if axes or g.chance(0.5) else None
    g.add(op, [x, given], keepdims=keep, noop_with_empty_axes=noop)


@recipe("ArgMax", "ArgMin")
def _arg(g: Growing, op: str) -> None:
    x = g.any(g.types(op, "T"))
    last = g.rng.choice([None, 0, 1])
    g.add(op, [x], axis=axis_of(g, x), keepdims=g.rng.choice([0, 1]), select_last_index=last)


@recipe("CumSum", "CumProd")
def _cumulative(g: Growing, op: str) -> None:
    x = g.any(g.types(op, "T"), low=-2, high=2)
    axis = g.known(axis_of(g, x))
    g.add(op, [x, axis], exclusive=g.rng.choice([0, 1]), reverse=g.rng.choice([0, 1]))


@recipe("TopK")
def _top_k(g: Growing, op: str) -> None:
    x = g.any(g.types(op, "T"))
    axis = axis_of(g, x)
    k = g.rng.randint(0, x.shape[axis])
    g.add(op, [x, g.known([k])], 2, axis=axis, largest=g.rng.choice([0, 1]), sorted=1)


@recipe("Softmax", "LogSoftmax", "Hardmax", "LpNormalization")
def _along(g: Growing, op: str) -> None:
    x = g.any(g.types(op, "T"), lambda s: len(s) > 0, lambda: g.shape(g.rng.randint(1, 4)))
    p = g.rng.choice([1, 2]) if op == "LpNormalization" else None
    g.add(op, [x], axis=axis_of(g, x), p=p)


@recipe("Einsum")
def _einsum(g: Growing, op: str) -> None:
    equation, shapes = g.rng.choice(
        [
            ("ij,jk->ik", ["ij", "jk"]),
            ("bij,bjk->bik", ["bij", "bjk"]),
            ("ij,ij->", ["ij", "ij"]),
            ("...ij,...jk->...ik", ["aij", "ajk"]),
            ("ii->i", ["ii"]),
            ("ij->ji", ["ij"]),
            ("bhid,bhjd->bhij", ["bhid", "bhjd"]),
            ("i,j,k->ijk", ["i", "j", "k"]),
            ("ij,jk,kl->il", ["ij", "jk", "kl"]),
            ("ij,kj", ["ij", "kj"]),
        ]
    )
    size = {c: g.rng.randint(1, 5) for c in "abhijkdl"}
    kind = g.type([np.float32, np.float64, np.int32, np.int64])
    wanted = [tuple(size[c] for c in s) for s in shapes]
    g.add(
        op, [g.any([kind], lambda s, w=w: s == w, lambda w=w: w) for w in wanted], equation=equation
    )


@recipe("NonZero")
def _non_zero(g: Growing, op: str) -> None:
    g.add(op, [g.any(g.types(op, "T"), lambda s: len(s) > 0, lambda: g.shape(2))])


@recipe("Unique")
def _unique(g: Growing, op: str) -> None:
    # Those that ONNX Runtime has: the reference evaluator sorts along an axis when it should not.
    kinds = [np.float32, np.float64, np.int64, np.int8]
    x = g.any(kinds, lambda s: len(s) > 0, lambda: g.shape(2))
    axis = axis_of(g, x) if g.chance(0.5) else None
    g.add(op, [x], g.rng.randint(1, 4), axis=axis, sorted=g.rng.choice([0, 1]))


@recipe("Det")
def _det(g: Growing, op: str) -> None:
    n = g.rng.randint(1, 5)
    lead = g.shape(g.rng.randint(0, 2))
    x = g.any(g.types(op, "T"), lambda s: len(s) > 1 and s[-1] == s[-2], lambda: (*lead, n, n))
    g.add(op, [x])


# -- products and norms ------------------------------------------------------------------------


def _pair(g: Growing) -> tuple[tuple[int, ...], tuple[int, ...]]:
    m, k, n = g.shape(3)
    lead = g.shape(g.rng.randint(0, 2))
    forms = [
        ((m, k), (k, n)),
        ((*lead, m, k), (k, n)),
        ((*lead, m, k), (*lead, k, n)),
        ((m, k), (*lead, k, n)),
        ((k,), (k, n)),
        ((m, k), (k,)),
        ((k,), (k,)),
    ]
    return g.rng.choice(forms)


@recipe("MatMul")
def _matmul(g: Growing, op: str) -> None:
    first, second = _pair(g)
    kind = g.type(g.types(op, "T"))
    x = g.any([kind], lambda s: s == first, lambda: first)
    g.add(op, [x, g.any([kind], lambda s: s == second, lambda: second)])


@recipe("Gemm")
def _gemm(g: Growing, op: str) -> None:
    m, k, n = g.shape(3)
    turned = [g.rng.choice([0, 1]) for _ in range(2)]
    kind = g.type(g.types(op, "T"))
    a = g.new(g.numbers(kind, (k, m) if turned[0] else (m, k)))
    b = g.new(g.numbers(kind, (n, k) if turned[1] else (k, n)))
    c = g.new(g.numbers(kind, g.rng.choice([(), (n,), (m, 1), (m, n)]))) if g.chance(0.6) else None
    factors = {"alpha": 0.5, "beta": 2.0} if g.chance(0.4) else {}
    g.add(op, [a, b, c], transA=turned[0], transB=turned[1], **factors)


@recipe("MatMulInteger")
def _matmul_integer(g: Growing, op: str) -> None:
    first, second = _pair(g)
    a = g.new(g.numbers(g.type([np.int8, np.uint8]), first, -100, 100))
    b = g.new(g.numbers(g.type([np.int8, np.uint8]), second, -100, 100))
    zeros = [g.new(g.numbers(v.dtype, (), 0, 9)) if g.chance(0.5) else None for v in (a, b)]
    g.add(op, [a, b, *zeros])


@recipe("DynamicQuantizeLinear")
def _dynamic(g: Growing, op: str) -> None:
    g.add(op, [g.any([np.float32])], 3)


@recipe("QuantizeLinear", "DequantizeLinear")
def _quantize(g: Growing, op: str) -> None:
    shape = g.shape(g.rng.randint(1, 4))
    kind = g.type([np.int8, np.uint8])
    axis = g.rng.randrange(len(shape))
    scales = (shape[axis],) if g.chance(0.4) else ()
    x = g.new(g.numbers(np.float32 if op == "QuantizeLinear" else kind, shape, -9, 9))
    scale = g.known(g.numbers(np.float32, scales, 0.05, 0.3), np.float32)
    zero = g.known(g.numbers(kind, scales, 0, 20), kind) if g.chance(0.8) else None
    g.add(op, [x, scale, zero], axis=axis if scales else None)


@recipe("BatchNormalization")
def _batch_norm(g: Growing, op: str) -> None:
    x = g.any(g.types(op, "T"), ranked(2, 3, 4), lambda: g.shape(g.rng.randint(2, 4)))
    c = x.shape[1]
    four = [g.new(g.numbers(x.dtype, (c,), *b)) for b in ((-1, 1), (-1, 1), (-1, 1), (0.1, 2))]
    g.add(op, [x, *four], epsilon=1e-3 if g.chance(0.5) else None)


@recipe("InstanceNormalization", "GroupNormalization")
def _instance_norm(g: Growing, op: str) -> None:
    x = g.new(g.numbers(g.type(FLOATS), g.shape(g.rng.randint(3, 4), 2)))
    c = x.shape[1]
    groups = g.rng.choice([n for n in range(1, c + 1) if c % n == 0])
    wide = c if op == "InstanceNormalization" or g.opset >= 21 else groups
    scale, bias = (g.new(g.numbers(x.dtype, (wide,))) for _ in range(2))
    g.add(op, [x, scale, bias], num_groups=groups if op == "GroupNormalization" else None)


@recipe("LayerNormalization", "RMSNormalization")
def _layer_norm(g: Growing, op: str) -> None:
    x = g.any(FLOATS, lambda s: len(s) > 0, lambda: g.shape(g.rng.randint(1, 4)))
    axis = axis_of(g, x)
    shape = x.shape[axis % len(x.shape) :]
    scale = g.new(g.numbers(x.dtype, shape))
    bias = g.new(g.numbers(x.dtype, shape)) if g.chance(0.7) else None
    g.add(op, [x, scale] if op != "LayerNormalization" else [x, scale, bias], axis=axis)


@recipe("LRN")
def _lrn(g: Growing, op: str) -> None:
    x = g.any([np.float32], ranked(4), lambda: g.shape(4))
    # ONNX Runtime takes odd sizes only, and the reference evaluator counts one channel too few.
    g.add(op, [x], size=g.rng.choice([1, 3, 5]), alpha=0.1, beta=0.6)


@recipe("MeanVarianceNormalization")
def _mvn(g: Growing, op: str) -> None:
    g.add(op, [g.any([np.float32], ranked(4), lambda: g.shape(4, 2))])


@recipe("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def _loss(g: Growing, op: str) -> None:
    n, c, *rest = g.shape(g.rng.randint(2, 4))
    x = g.new(g.numbers(np.float32, (n, c, *rest)))
    labels = g.new(g.numbers(np.int64, (n, *rest), 0, c - 1), known=False)
    weight = g.new(g.numbers(np.float32, (c,), 0.1, 2)) if g.chance(0.5) else None
    ignore = g.rng.randrange(c) if g.chance(0.3) else None
    how = g.rng.choice(["none", "sum", "mean"])
    g.add(op, [x, labels, weight], reduction=how, ignore_index=ignore)


# -- contrib operators -------------------------------------------------------------------------


@recipe("FusedMatMul", domain=RUNTIME)
def _fused_matmul(g: Growing, op: str) -> None:
    m, k, n = g.shape(3)
    turned = [g.rng.choice([0, 1]) for _ in range(2)]
    lead = g.shape(g.rng.randint(0, 2))
    a = g.new(g.numbers(np.float32, (*lead, *((k, m) if turned[0] else (m, k)))))
    b = g.new(g.numbers(np.float32, (*lead, *((n, k) if turned[1] else (k, n)))))
    g.add(op, [a, b], domain=RUNTIME, transA=turned[0], transB=turned[1], alpha=0.5)


@recipe("BiasGelu", "FastGelu", domain=RUNTIME)
def _bias_gelu(g: Growing, op: str) -> None:
    x = g.any([np.float32], lambda s: len(s) > 0, lambda: g.shape(3))
    bias = g.new(g.numbers(np.float32, x.shape[-1:]))
    g.add(op, [x, bias if op == "BiasGelu" or g.chance(0.5) else None], domain=RUNTIME)


@recipe("Gelu", "QuickGelu", domain=RUNTIME)
def _runtime_gelu(g: Growing, op: str) -> None:
    g.add(op, [g.any([np.float32])], domain=RUNTIME, alpha=1.5 if op == "QuickGelu" else None)


@recipe("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=RUNTIME)
def _skip_norm(g: Growing, op: str) -> None:
    x = g.any([np.float32], ranked(3), lambda: g.shape(3))
    skip = g.new(g.numbers(np.float32, x.shape))
    some = [g.new(g.numbers(np.float32, x.shape[-1:])) for _ in range(3)]
    beta, bias = (v if g.chance(0.6) else None for v in some[1:])
    rest = [some[0], beta, bias] if op == "SkipLayerNormalization" else [some[0], bias]
    g.add(op, [x, skip, *rest], domain=RUNTIME, epsilon=1e-5)


def drawn(g: Growing, chosen: list[tuple[str, str]]) -> bool:
    """Try to append a node of one of the operators; whether it fitted."""
    domain, op = g.rng.choice(chosen)
    before = len(g.nodes)
    try:
        if not domain and defs.get_schema(op, g.opset, "").deprecated:
            return False
        RECIPES[domain, op](g, op)
    except (Misfit, defs.SchemaError, KeyError):
        return False
    return len(g.nodes) > before
