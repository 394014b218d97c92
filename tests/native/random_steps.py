"""What random functions are made of: one maker per family of ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tests.native.random_functions import SHAPES, Generator, Step

import treadle as mge
import treadle.functional as F

Maker = Callable[[Generator], Step | None]

FLOATS = ("float32",) * 8 + ("float16", "bfloat16", "float64")
WHOLE = ("int32", "int32", "int64", "int8", "uint8", "int16", "uint16", "uint32")


def is_float(x: mge.Tensor) -> bool:
    """Whether its elements are floats."""
    return x._kind.dtype.is_float


def is_whole(x: mge.Tensor) -> bool:
    """Whether its elements are integers, bool not counted."""
    return not is_float(x) and x._kind.dtype.name != "bool"


def is_number(x: mge.Tensor) -> bool:
    """Floats and integers."""
    return is_float(x) or is_whole(x)


def small(x: mge.Tensor) -> mge.Tensor:
    """The value, kept in [-3, 3]."""
    return F.clip(x, -3.0, 3.0)


SMOOTH: dict[str, Callable[[mge.Tensor], mge.Tensor]] = {
    "exp": lambda x: F.exp(small(x)),
    "cube": lambda x: small(x) ** 3,
    "expm1": lambda x: F.expm1(small(x)),
    "log": lambda x: F.log(F.abs(x) + 0.5),
    "log1p": lambda x: F.log1p(F.abs(x)),
    "sqrt": lambda x: F.sqrt(F.abs(x) + 0.25),
    "sin": F.sin,
    "cos": F.cos,
    "tan": lambda x: F.tan(small(x) / 3.0),
    "asin": lambda x: F.asin(small(x) / 4.0),
    "acos": lambda x: F.acos(small(x) / 4.0),
    "atan": F.atan,
    "sinh": lambda x: F.sinh(small(x)),
    "cosh": lambda x: F.cosh(small(x)),
    "tanh": F.tanh,
    "asinh": F.asinh,
    "acosh": lambda x: F.acosh(F.abs(x) + 1.5),
    "atanh": lambda x: F.atanh(small(x) / 4.0),
    "erf": F.erf,
    "sigmoid": F.sigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
}
EXACT: dict[str, Callable[[mge.Tensor], mge.Tensor]] = {
    "neg": F.neg,
    "abs": F.abs,
    "relu": F.relu,
    "relu6": F.relu6,
    "square": lambda x: F.square(small(x)),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.25),
    "hsigmoid": F.hsigmoid,
    "hswish": F.hswish,
    "clip": lambda x: F.clip(x, -1.5, 2.0),
    "plus": lambda x: x + 1.5,
    "minus": lambda x: 0.5 - x,
    "times": lambda x: x * -0.5,
    "over": lambda x: x / 2.0,
    "power": lambda x: small(x) ** 2,
}
JUMPING: dict[str, Callable[[mge.Tensor], mge.Tensor]] = {
    "floor": F.floor,
    "ceil": F.ceil,
    "round": F.round,
    "sign": F.sign,
    "isnan": F.isnan,
    "isfinite": F.isfinite,
}


def unary(g: Generator) -> Step | None:
    """An elementwise function of one value."""
    i = g.pick(is_float)
    if i is None:
        return None
    table = g.choice((SMOOTH, SMOOTH, EXACT, EXACT, JUMPING))
    name = g.choice(tuple(table))
    return Step(name, (i,), table[name], table is JUMPING, table is SMOOTH)


WHOLE_UNARY: dict[str, Callable[[mge.Tensor], mge.Tensor]] = {
    "abs": F.abs,
    "plus": lambda x: x + 3,
    "times": lambda x: x * 2,
    "floor_div": lambda x: x // 3,
    "mod": lambda x: x % 3,
    "square": lambda x: x * x,
    "left": lambda x: x << 1,
    "right": lambda x: x >> 1,
    "clip": lambda x: F.clip(x, 1, 5),
    "to float": lambda x: x.astype("float32"),
    "to bool": lambda x: x.astype("bool"),
    "true division": lambda x: x / 4,
}


def whole_unary(g: Generator) -> Step | None:
    """An elementwise function of integers."""
    i = g.pick(is_whole)
    name = g.choice(tuple(WHOLE_UNARY))
    return None if i is None else Step(f"whole {name}", (i,), WHOLE_UNARY[name])


BINARY: dict[str, tuple[Callable[[mge.Tensor, mge.Tensor], mge.Tensor], bool]] = {
    "add": (lambda x, y: x + y, False),
    "sub": (lambda x, y: x - y, False),
    "mul": (lambda x, y: x * y, False),
    "max": (F.maximum, False),
    "min": (F.minimum, False),
    "div": (lambda x, y: x / (F.abs(y) + 1), True),
    "atan2": (lambda x, y: F.atan2(x, F.abs(y) + 0.5), True),
    "logaddexp": (F.logaddexp, True),
    "pow": (lambda x, y: (F.abs(x) * 0.25 + 0.5) ** small(y), True),
}
COMPARE = (F.less, F.less_equal, F.greater, F.greater_equal, F.equal, F.not_equal)


def _fits(x: mge.Tensor) -> Callable[[mge.Tensor], bool]:
    def test(y: mge.Tensor) -> bool:
        try:
            np.broadcast_shapes(x.shape, y.shape)
        except ValueError:
            return False
        return True

    return test


def binary(g: Generator) -> Step | None:
    """An elementwise function of two values whose shapes broadcast."""
    i = g.pick(is_number)
    if i is None:
        return None
    fits = _fits(g.values[i])
    j = g.pick(lambda y: is_number(y) and fits(y))
    if j is None:
        return None
    if is_whole(g.values[i]) and is_whole(g.values[j]):
        name = g.choice(("add", "sub", "mul", "max", "min"))
    else:
        name = g.choice(tuple(BINARY))
    run, rounds = BINARY[name]
    return Step(name, (i, j), run, False, rounds)


def compare(g: Generator) -> Step | None:
    """A comparison of exact values."""
    i = g.pick(is_number, exact=True)
    if i is None:
        return None
    fits = _fits(g.values[i])
    j = g.pick(lambda y: is_number(y) and fits(y), exact=True)
    run = g.choice(COMPARE)
    return None if j is None else Step(run.__name__, (i, j), run, jumps=True)


def logic(g: Generator) -> Step | None:
    """Bool with bool."""
    i = g.pick(lambda x: x.dtype == bool)
    if i is None:
        return None
    fits = _fits(g.values[i])
    j = g.pick(lambda y: y.dtype == bool and fits(y))
    run = g.choice((F.logical_and, F.logical_or, F.logical_xor, lambda x, y: F.logical_not(x)))
    return None if j is None else Step("logic", (i, j), run)


def where(g: Generator) -> Step | None:
    """A choice between two values."""
    k = g.pick(lambda x: x.dtype == bool)
    i = g.pick(is_number)
    if k is None or i is None:
        return None
    kind = g.values[i].dtype
    fits = _fits(g.values[i])
    j = g.pick(lambda y: y.dtype == kind and fits(y))
    return None if j is None else Step("where", (k, i, j), F.where)


def cast(g: Generator) -> Step | None:
    """Another element type; only exact values become integers."""
    kind = g.choice((*g.floats, *WHOLE, "bool"))
    whole = "float" not in kind
    i = g.pick(lambda x: True, exact=whole)
    if i is None or (whole and g.special):
        return None
    if kind.startswith("uint"):
        return Step(f"cast {kind}", (i,), lambda x: F.abs(x * 1).astype(kind), jumps=True)
    return Step(f"cast {kind}", (i,), lambda x: x.astype(kind), jumps=whole)


REDUCE = (F.sum, F.mean, F.max, F.min, F.prod)


def reduce(g: Generator) -> Step | None:
    """A reduction over any axes."""
    i = g.pick(lambda x: is_number(x) and x.ndim > 0)
    if i is None:
        return None
    x = g.values[i]
    run = g.choice(REDUCE) if x.size else F.sum
    count = int(g.rng.integers(1, x.ndim + 1))
    axes: Any = tuple(int(a) for a in g.rng.permutation(x.ndim)[:count])
    if g.chance(0.3):
        axes = axes[0] - x.ndim
    if g.chance(0.15):
        return Step(f"{run.__name__} all", (i,), run)
    keep = g.chance()
    return Step(f"{run.__name__} {axes} {keep}", (i,), lambda x: run(x, axes, keep))


def spread(g: Generator) -> Step | None:
    """Variance, norms and such along an axis."""
    i = g.pick(lambda x: is_float(x) and x.ndim > 0 and x.size > 0)
    if i is None:
        return None
    axis = int(g.rng.integers(g.values[i].ndim))
    table: dict[str, Callable[[mge.Tensor], mge.Tensor]] = {
        "softmax": lambda x: F.softmax(x, axis),
        "logsoftmax": lambda x: F.logsoftmax(x, axis),
        "logsumexp": lambda x: F.logsumexp(x, axis),
        "var": lambda x: F.var(x, axis),
        "norm": lambda x: F.sqrt(F.sum(x * x, axis) + 0.1),
        "layer_norm": lambda x: F.layer_norm(x, x.shape[-1], False, eps=0.1),
        "standardize": lambda x: (x - F.mean(x, axis, True)) / F.sqrt(F.var(x, axis, True) + 0.1),
        "cumsum": lambda x: F.cumsum(x, axis),
    }
    name = g.choice(tuple(table))
    return Step(f"{name} {axis}", (i,), table[name], rounds=name != "cumsum")


def order(g: Generator) -> Step | None:
    """Sorting, top k, largest and their indices."""
    i = g.pick(lambda x: is_number(x) and x.ndim > 0 and x.size > 0, exact=True)
    if i is None or g.special:
        return None
    x = g.values[i]
    axis, last = int(g.rng.integers(x.ndim)), x.shape[-1]
    k, down = int(g.rng.integers(1, last + 1)), g.chance()
    table: dict[str, Callable[[mge.Tensor], Any]] = {
        "argmax": lambda x: F.argmax(x, axis),
        "argmin": lambda x: F.argmin(x, axis),
        "sort": lambda x: F.sort(x, down),
        "argsort": lambda x: F.argsort(x, down),
        "topk": lambda x: F.topk(x, k, descending=down)[0],
    }
    name = g.choice(tuple(table))
    return Step(f"{name} {axis} {k} {down}", (i,), table[name], jumps=True)


def _slices(g: Generator, shape: tuple[int, ...]) -> tuple[Any, ...]:
    found: list[Any] = []
    for extent in shape:
        kind = g.rng.integers(6)
        a, b = sorted(int(v) for v in g.rng.integers(0, extent + 1, 2))
        step = int(g.rng.integers(1, 4))
        if kind == 0 and extent:
            found.append(int(g.rng.integers(-extent, extent)))
        elif kind == 1:
            found.append(slice(None, None, -step))
        elif kind == 2:
            found.append(slice(a, b if b > a or g.chance(0.1) else None, step))
        elif kind == 3:
            found += [None, slice(None)]
        else:
            found.append(slice(None))
    return tuple(found)


def index(g: Generator) -> Step | None:
    """Basic indexing with steps, negative ones included."""
    i = g.pick(lambda x: x.ndim > 0)
    if i is None:
        return None
    key = _slices(g, g.values[i].shape)
    return Step(f"index {key}", (i,), lambda x: x[key])


def move(g: Generator) -> Step | None:
    """Transposes, reshapes, joins and paddings."""
    i = g.pick(lambda x: x.ndim > 0)
    if i is None:
        return None
    x = g.values[i]
    axis = int(g.rng.integers(x.ndim))
    axes = tuple(int(a) for a in g.rng.permutation(x.ndim))
    by, n = int(g.rng.integers(-3, 4)), int(g.rng.integers(1, 4))
    widths = tuple((int(a), int(b)) for a, b in g.rng.integers(0, 3, (x.ndim, 2)))
    mode = g.choice(("constant", "constant", "edge", "reflect"))
    table: dict[str, Callable[[mge.Tensor], Any]] = {
        "transpose": lambda x: F.transpose(x, axes),
        "transpose too": lambda x: F.transpose(x, axes),
        "flatten": lambda x: x.reshape(-1),
        "expand": lambda x: F.expand_dims(x, axis),
        "tall": lambda x: x.reshape((-1, 1)),
        "halves": lambda x: x.reshape((2, -1)),
        "broadcast": lambda x: F.broadcast_to(x, (n, *x.shape)),
        "roll": lambda x: F.roll(x, by, axis),
        "tile": lambda x: F.tile(x, (n,) * x.ndim),
        "repeat": lambda x: F.repeat(x, n, axis),
        "pad": lambda x: F.pad(x, widths, mode, 1),
        "concat": lambda x: F.concat([x, x[::-1]], axis),
        "stack": lambda x: F.stack([x, x * 1], axis),
        "split": lambda x: F.split(x, [x.shape[axis] // 2], axis),
    }
    name = g.choice(tuple(table))
    return Step(f"{name} {axis} {axes} {by} {n}", (i,), table[name])


def join(g: Generator) -> Step | None:
    """Two values of one type, one after the other."""
    i = g.pick(lambda x: x.ndim > 0)
    if i is None:
        return None
    x = g.values[i]
    axis = int(g.rng.integers(x.ndim))

    def fits(y: mge.Tensor) -> bool:
        if y.ndim != x.ndim or y.dtype != x.dtype:
            return False
        return all(k == axis or y.shape[k] == extent for k, extent in enumerate(x.shape))

    j = g.pick(fits)
    return None if j is None else Step(f"join {axis}", (i, j), lambda x, y: F.concat([x, y], axis))


def update(g: Generator) -> Step | None:
    """A part of a value replaced."""
    i = g.pick(lambda x: x.ndim > 0 and x.dtype != bool)
    if i is None:
        return None
    key, number = _slices(g, g.values[i].shape), int(g.rng.integers(0, 5))

    def run(x: mge.Tensor) -> mge.Tensor:
        y = x * 1
        y[key] = x[key] * 2 + number
        return y

    return Step(f"update {key}", (i,), run)


def take(g: Generator) -> Step | None:
    """Rows, entries and sums at places that indices name."""
    i = g.pick(lambda x: x.ndim > 0 and x.size > 0 and is_number(x))
    if i is None:
        return None
    x = g.values[i]
    axis, n = int(g.rng.integers(x.ndim)), int(g.rng.integers(1, 6))
    rows = g.rng.integers(-x.shape[0], x.shape[0], (n,)).astype("int32")
    places = g.rng.integers(0, x.shape[axis], x.shape).astype("int32")
    unique = np.argsort(g.rng.random(x.shape), axis=axis).astype("int32")
    mask = g.rng.random(x.shape) < 0.5
    table: dict[str, Callable[[mge.Tensor], mge.Tensor]] = {
        "rows": lambda x: x[mge.tensor(rows)],
        "gather": lambda x: F.gather(x, axis, mge.tensor(places)),
        "scatter": lambda x: F.scatter(x * 0, axis, mge.tensor(unique), x),
        "masked": lambda x: F.where(mge.tensor(mask), x, x * 2),
    }
    name = g.choice(tuple(table))
    return Step(f"{name} {axis}", (i,), table[name])


def product(g: Generator) -> Step | None:
    """Matrix products, plain and batched."""
    i = g.pick(lambda x: is_float(x) and x.ndim > 0)
    if i is None:
        return None
    x = g.values[i]
    if x.ndim == 1:
        j = g.pick(lambda y: y.dtype == x.dtype and y.shape == x.shape)
        return None if j is None else Step("dot", (i, j), lambda x, y: F.matmul(x, y) * 0.25)
    ta = g.chance(0.4)
    inner = x.shape[-2] if ta else x.shape[-1]

    def fits(y: mge.Tensor) -> bool:
        return y.dtype == x.dtype and y.ndim >= 2 and inner in y.shape[-2:]

    j = g.pick(fits)
    if j is None:
        return Step("gram", (i,), lambda x: F.matmul(x, x, False, True) * 0.125)
    tb = g.values[j].shape[-2] != inner
    return Step(f"matmul {ta} {tb}", (i, j), lambda x, y: F.matmul(x, y, ta, tb) * 0.125)


def linear(g: Generator) -> Step | None:
    """A layer with constant weights."""
    i = g.pick(lambda x: is_float(x) and x.ndim > 1 and x.size > 0)
    if i is None:
        return None
    n, m = g.values[i].shape[-1], int(g.choice((1, 3, 8, 16, 21)))
    w = g.array((m, n), "float32") if not g.special else np.ones((m, n), "float32")
    b = g.rng.integers(-4, 5, (m,)).astype("float32")
    act = g.choice((lambda x: x, F.relu, F.tanh))

    def run(x: mge.Tensor) -> mge.Tensor:
        kind = x._kind.dtype.name
        return act(F.linear(x, mge.tensor(w).astype(kind), mge.tensor(b).astype(kind)) * 0.125)

    return Step(f"linear {m}", (i,), run, rounds=act is F.tanh)


def image(g: Generator) -> Step | None:
    """Convolutions and pooling of images."""
    i = g.pick(lambda x: x.ndim == 4 and is_float(x) and x.size > 0)
    if i is None:
        return None
    c, m = g.values[i].shape[1], int(g.choice((1, 2, 5)))
    k, s, p = (int(g.choice(v)) for v in ((1, 2, 3), (1, 2), (0, 1)))
    w = (g.rng.integers(-4, 5, (m, c, k, k)) / 4).astype("float32")

    def weight(x: mge.Tensor) -> mge.Tensor:
        return mge.tensor(w).astype(x._kind.dtype.name)

    table: dict[str, Callable[[mge.Tensor], mge.Tensor]] = {
        "conv": lambda x: F.conv2d(x, weight(x), None, s, p) * 0.25,
        "conv relu": lambda x: F.relu(F.conv2d(x, weight(x), None, s, p) * 0.25 + 0.5),
        "transposed": lambda x: (
            F.conv_transpose2d(x, F.transpose(weight(x), (1, 0, 2, 3)), None, s, min(p, k - 1))
            * 0.25
        ),
        "max_pool": lambda x: F.max_pool2d(x, k, s, p if p < k else 0),
        "avg_pool": lambda x: F.avg_pool2d(x, k, s, p if p < k else 0),
        "adaptive": lambda x: F.adaptive_avg_pool2d(x, 2),
        "batch_norm": lambda x: F.batch_norm(x, training=True, eps=0.1)[0],
        "group_norm": lambda x: F.group_norm(x, 1, False, eps=0.1),
    }
    name = g.choice(tuple(table))
    return Step(f"{name} {k} {s} {p}", (i,), table[name], rounds="norm" in name)


def attention(g: Generator) -> Step | None:
    """Attention of a value with itself, as one op and spelled out."""
    i = g.pick(lambda x: x.ndim in (3, 4) and is_float(x) and x.size > 0)
    if i is None:
        return None
    causal = g.chance() and not g.special  # Masked infinities may be skipped.

    def spelled(x: mge.Tensor) -> mge.Tensor:
        axes = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
        scores = F.matmul(x, F.transpose(x, axes)) * 0.25
        return F.matmul(F.softmax(scores, -1), x)

    def fused(x: mge.Tensor) -> mge.Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=causal)

    return Step(f"attention {causal}", (i,), g.choice((spelled, fused)), rounds=True)


def control(g: Generator) -> Step | None:
    """A branch or a loop."""
    i = g.pick(lambda x: is_float(x) and x.size > 0, exact=True)
    if i is None or g.special:
        return None
    turns = int(g.rng.integers(0, 4))

    def branch(x: mge.Tensor) -> mge.Tensor:
        return mge.jit.cond(x.sum() > 0, lambda v: F.relu(v) + 1, lambda v: v * -2, x)

    def loop(x: mge.Tensor) -> mge.Tensor:
        made = mge.jit.while_loop(
            lambda n, v: n < turns, lambda n, v: (n + 1, v * 0.5 + x), (mge.tensor(0), x)
        )
        return made[1] * 1  # No turns give the operand itself, whose handle may be rebound.

    def scan(x: mge.Tensor) -> tuple[mge.Tensor, ...]:
        rows = x if x.ndim else x.reshape(1)
        carried, stacked = mge.jit.scan(lambda s, r: (s * 0.5 + r, s - r), (rows[0] * 0,), (rows,))
        return (*carried, *stacked)

    run = g.choice((branch, loop, scan) if g.narrow else (branch, scan))
    return Step(run.__name__, (i,), run, jumps=True)


MAKERS: tuple[Maker, ...] = (
    unary, unary, unary, binary, binary, binary, whole_unary, compare, logic, where, cast, reduce,
    reduce, spread, order, index, index, move, move, move, join, update, take, product, product,
    linear, image, image, attention, control,
)  # fmt: skip


def generate(
    seed: int,
    steps: int = 14,
    special: bool = False,
    order: int = 0,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
) -> Generator:
    """A generator that has made a function with some arguments, states, steps and results.

    Args:
        seed: of everything.
        steps: how many there are.
        special: put NaN, infinities and negative zeros into the arguments.
        order: how often the function has to be differentiable.
        shapes: of arguments and states.
    """
    g = Generator(seed, special)
    g.most = max(g.most, *(4 * math.prod(s) for s in shapes))
    g.narrow = not order
    makers = MAKERS if order < 2 else tuple(m for m in MAKERS if m is not control)
    g.floats = FLOATS if g.narrow else ("float32", "float32", "float64")
    kind = g.choice(g.floats)
    some = int(g.rng.integers(1, 4))
    for _ in range(some):
        g.add_input(g.array(g.choice(shapes), kind if g.chance(0.7) else g.choice(g.floats)))
    if g.chance():
        g.add_input(g.array(g.choice(shapes), g.choice((*WHOLE, "bool"))))
    for _ in range(int(g.rng.integers(0, 3))):
        g.add_input(g.array(g.choice(shapes), kind), state=True)
    tries = 0
    while len(g.function.steps) < steps and tries < 20 * steps:
        tries += 1
        g.add(g.choice(makers)(g))
    _finish(g)
    return g


def _finish(g: Generator) -> None:
    """Choose what is returned, and what becomes of states."""
    f, first = g.function, len(g.function.arguments) + len(g.function.states)
    made = list(range(first, len(g.values)))
    count = min(len(made), int(g.rng.integers(1, 5)))
    f.results = sorted({int(i) for i in g.rng.permutation(made)[:count]} | set(made[-1:]))
    for k in range(len(f.states)):
        state = g.values[len(f.arguments) + k]
        same = [
            i for i, v in enumerate(g.values) if v.shape == state.shape and v.dtype == state.dtype
        ]
        how = g.choice(("none", "reset", "reset", "whole", "mixed"))
        if how != "none" and same:
            f.updates.append((k, int(g.choice(same)), how))


__all__ = ["generate"]
