"""Makers of lines: calls of the API, each with operands that fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fuzz.generate import Generator


def floats(x: Any) -> bool:
    return bool(x._kind.dtype.is_float)


def whole(x: Any) -> bool:
    return not floats(x) and x._kind.dtype.name != "bool"


def number(x: Any) -> bool:
    return x._kind.dtype.name != "bool"


UNARY = (
    "F.relu({})", "F.sigmoid({})", "F.tanh({})", "F.gelu({})", "F.silu({})", "F.abs({})",
    "F.exp(F.clip({}, -3.0, 2.0))", "F.log(F.abs({}) + 0.5)", "F.sqrt(F.abs({}) + 0.25)",
    "F.sin({})", "F.cos({})", "F.square({})", "F.erf({})", "-{}", "F.sign({})", "{} * 2.0",
    "{} + 0.3", "1.0 - {}", "{} / 3.0", "F.floor({} + 0.3)", "F.round({} * 4.0) / 4.0",
    "F.ceil({})", "F.relu6({})", "F.leaky_relu({}, 0.1)", "F.softplus({})", "F.logsigmoid({})",
    "F.clip({}, -0.5, 0.75)", "F.hswish({})", "F.expm1(F.clip({}, -2.0, 2.0))", "{} ** 2",
    "F.log1p(F.abs({}))", "{} * {} + {}", "F.atan({})",
)  # fmt: skip
BINARY = (
    "{} + {}", "{} - {}", "{} * {}", "{} / (F.abs({}) + 0.5)", "F.maximum({}, {})",
    "F.minimum({}, {})", "F.where({0} > 0.1, {1}, F.zeros_like({1}))",
    "F.atan2({}, F.abs({}) + 0.5)",
    "F.logaddexp({}, {})", "F.mod({}, F.abs({}) + 1.0)",
)  # fmt: skip
COMPARE = ("{} > {}", "{} <= {}", "{} == {}", "{} != {}")
WHOLE = (
    "{} + {}", "{} - {}", "{} * {}", "F.maximum({}, {})", "{} // (F.abs({}) + 1)",
    "{} % (F.abs({}) + 1)", "{} & {}", "{} | {}", "{} ^ {}", "{} << ({} & 3)", "{} >> ({} & 3)",
)  # fmt: skip
REDUCE = ("sum", "mean", "max", "min", "prod", "var", "std", "argmax", "argmin")
WEIGHTS = ("{}", "{}", "{} * 2.0", "F.tanh({})", "F.round({} * 8.0) / 8.0", "F.relu({}) - 0.1")
"""What convolutions and products make of a parameter before they use it."""


def unary(g: Generator) -> str | None:
    x, form = g.float(), g.one(UNARY)
    return None if x is None else form.format(*[x] * form.count("{}"))


def binary(g: Generator) -> str | None:
    x, y = g.float(), g.float()
    return None if x is None or y is None else _filled(g.one(BINARY), x, y)


def integers(g: Generator) -> str | None:
    x, y = g.pick(whole), g.pick(whole)
    return None if x is None or y is None else _filled(g.one(WHOLE), x, y)


def compare(g: Generator) -> str | None:
    x, y = g.pick(number), g.pick(number)
    return None if x is None or y is None else _filled(g.one(COMPARE), x, y)


def _filled(form: str, x: str, y: str) -> str:
    return form.format(x, y)


def logical(g: Generator) -> str | None:
    mask = g.pick(lambda t: not number(t))
    x, y = g.float(), g.float()
    if mask is None or x is None or y is None:
        return None
    return str(g.one((f"F.where({mask}, {x}, {y})", f"~{mask}", f"{mask}.astype('float32')")))


def cast(g: Generator) -> str | None:
    kinds = ["float32", "int32", "bool", "uint8", "int8"]
    kinds += ["float16", "bfloat16", "float64", "float32", "float32"] if g.narrow else []
    x, kind = g.pick(), g.one(kinds)
    if x is None:
        return None
    if kind == "uint8" and floats(g.scope[x]):
        return f"F.clip({x} * 4.0, 0.0, 200.0).astype('uint8')"
    return f"{x}.astype({kind!r})"


def reduce(g: Generator) -> str | None:
    x = g.pick(lambda t: number(t) and t.ndim > 0 and t.size > 0)
    if x is None:
        return None
    rank, kind = g.scope[x].ndim, g.one(REDUCE)
    axis = g.one([*range(-rank, rank), *([None] if kind in ("sum", "mean", "max") else [])])
    axes = tuple(sorted(set(g.rng.integers(0, rank, 2).tolist())))
    if kind in ("sum", "mean", "max") and g.chance(0.2):
        axis = axes
    if kind in ("argmax", "argmin") or axis is None:
        return f"F.{kind}({x}, axis={axis})"
    return f"F.{kind}({x}, axis={axis}, keepdims={g.chance(0.5)})"


def along(g: Generator) -> Any:
    x = g.float(1)
    if x is None:
        return None
    axis = int(g.rng.integers(-g.scope[x].ndim, g.scope[x].ndim))
    n = g.scope[x].shape[axis]
    forms = [
        f"F.softmax({x}, axis={axis})", f"F.logsoftmax({x}, axis={axis})",
        f"F.logsumexp({x}, axis={axis})", f"F.cumsum({x}, axis={axis})",
        f"F.normalize({x} + 0.01, axis={axis})",
        f"F.layer_norm({x}, {g.scope[x].shape[-1]}, False)",
    ]  # fmt: skip
    if g.chance(0.3) and n:
        a, b = g.fresh(), g.fresh()
        k = int(g.rng.integers(1, n + 1))
        if axis in (-1, g.scope[x].ndim - 1):
            text = f"F.topk({x}, {k}, descending={g.chance(0.5)})"
            return f"{a}, {b} = {g.one((text, f'F.sort({x})'))}", [a, b]
    return g.one(forms)


def move(g: Generator) -> str | None:
    x = g.pick(lambda t: t.ndim > 0)
    if x is None:
        return None
    t = g.scope[x]
    order = tuple(g.rng.permutation(t.ndim).tolist())
    axis = int(g.rng.integers(0, t.ndim))
    pads = tuple((int(a), int(b)) for a, b in g.rng.integers(0, 3, (t.ndim, 2)))
    wider = (*([int(g.one((1, 2, 3)))] * g.chance(0.4)), *t.shape)
    wide = tuple(3 if d == 1 and g.chance(0.6) else d for d in wider)
    forms = [
        f"F.transpose({x}, {order})", f"{x}.reshape(-1)", f"F.expand_dims({x}, {axis})",
        f"F.broadcast_to({x}, {wide})", f"F.roll({x}, {int(g.rng.integers(-3, 4))}, {axis})",
        f"F.tile({x}, {tuple(int(n) for n in g.rng.integers(1, 3, t.ndim))})",
        f"F.repeat({x}, {int(g.rng.integers(1, 3))}, axis={axis})", f"F.pad({x}, {pads})",
        f"F.pad({x}, {pads}, mode={g.one(('edge', 'reflect'))!r})",
        f"F.concat([{x}, {x}], axis={axis})", f"F.stack([{x}, {x}], axis={axis})",
        _reshape(g, x), _reshape(g, x), f"F.flatten({x})", f"{x}.T" if t.ndim == 2 else f"{x} * 1",
    ]  # fmt: skip
    return str(g.one(forms))


def _reshape(g: Generator, x: str) -> str:
    shape, left = [], g.scope[x].size
    while left > 1:
        d = int(g.one([d for d in range(2, left + 1) if left % d == 0]))
        shape.append(d)
        left //= d
    if g.chance(0.3):
        shape.insert(int(g.rng.integers(0, len(shape) + 1)), 1)
    return f"{x}.reshape({tuple(shape)})"


def joined(g: Generator) -> str | None:
    x = g.pick(lambda t: t.ndim > 0)
    if x is None:
        return None
    like = g.scope[x]
    y = g.pick(lambda t: t.shape == like.shape and t._kind is like._kind)
    axis = int(g.rng.integers(0, like.ndim))
    return f"F.concat([{x}, {y}, {x}], axis={axis})"


def key(g: Generator, shape: tuple[int, ...]) -> str:
    """An index of basic kinds."""
    parts = []
    for n in shape:
        low, high = sorted(int(i) for i in g.rng.integers(-n, n + 2, 2))
        parts.append(
            g.one(
                (":", "::2", "::-1", f"{low}:{high}", f"{int(g.rng.integers(-n, max(n, 1)))}", "1:")
            )
        )
    if g.chance(0.2):
        parts = parts[: int(g.rng.integers(0, len(parts) + 1))] or ["..."]
    if g.chance(0.1):
        parts.insert(0, "None")
    return ", ".join(parts)


def sliced_value(g: Generator) -> str | None:
    x = g.pick(lambda t: t.ndim > 0)
    return None if x is None else f"{x}[{key(g, g.scope[x].shape)}]"


def assigned(g: Generator) -> Any:
    """A copy that is written to in part."""
    x = g.pick(lambda t: t.ndim > 0 and number(t))
    if x is None:
        return None
    name, where = g.fresh(), key(g, g.scope[x].shape).replace("None, ", "")
    value = g.one(("0", "1", f"{x}[{where}] * 2", f"{name}[{where}] + 1"))
    lines = f"{name} = {x} * 1; {name}[{where}] {g.one(('=', '=', '+='))} {value}"
    return lines, [name]


def indexed(g: Generator) -> str | None:
    """Rows and elements by an index tensor; out of range now and then."""
    x = g.pick(lambda t: t.ndim > 0)
    if x is None:
        return None
    t = g.scope[x]
    n = max(t.shape[0], 1)
    i = g.pick(lambda v: v._kind.dtype.name in ("int32", "int64") and v.size <= 64)
    if i is None or g.chance(0.6):
        shape = tuple(int(d) for d in g.rng.integers(1, 4, g.one((1, 1, 2))))
        i = g.leaf("input", shape, "int32", -n if g.chance(0.3) else 0, n)
    plain = f"F.clip({i}, 0, {n - 1})" if g.chance(0.4) else i
    forms = [f"{x}[{plain}]", f"{x}[F.abs({i}) % {n}]"]
    if t.ndim == 2:
        forms.append(f"F.embedding(F.abs({i}) % {n}, {x})")
    return str(g.one(forms))


def product(g: Generator) -> str | None:
    x = g.float(1)
    if x is None:
        return None
    t = g.scope[x]
    n, m = t.shape[-1], int(g.one((1, 2, 3, 4, 8, 16, 20)))
    if not n:
        return None
    if g.chance(0.25) and t.ndim >= 2:
        return f"F.matmul({x}, F.transpose({x}, {(*range(t.ndim - 2), t.ndim - 1, t.ndim - 2)}))"
    w = g.leaf("param", (n, m))
    made = f"({g.one(WEIGHTS).format(w)})"
    if t._kind.dtype.name != "float32":
        made += f".astype('{t._kind.dtype.name}')"
    if t.ndim == 3 and g.chance(0.5):
        b = int(t.shape[0])
        return f"F.matmul({x}, F.broadcast_to({made}, ({b}, {n}, {m})))"
    return f"F.matmul({x}, {made})"


def heads(g: Generator) -> str | None:
    """A parameter's value split into heads, transposed and broadcast, as an operand."""
    b, h, r, d, m = (int(g.one((1, 2, 3, 4))) for _ in range(5))
    x = g.leaf("input", (b, h, r, d))
    w = g.leaf("param", (m, h * d))
    made = f"({g.one(WEIGHTS).format(w)}).reshape(1, {m}, {h}, {d}).transpose(0, 2, 3, 1)"
    if g.chance(0.5):
        made = f"F.broadcast_to({made}, ({b}, {h}, {d}, {m}))"
    return f"F.matmul({x}, {made})"


def convolution(g: Generator) -> str | None:
    x = g.pick(lambda t: t._kind.dtype.name == "float32" and t.ndim == 4 and 0 < t.shape[1] <= 16)
    if x is None or g.chance(0.4):
        c = int(g.one((1, 2, 3, 4, 6, 8, 16)))
        side = int(g.one((3, 5, 7, 8)))
        x = g.leaf("input", (int(g.one((1, 2))), c, side, int(g.one((side, 6)))))
    c = int(g.scope[x].shape[1])
    groups = int(g.one([d for d in range(1, c + 1) if c % d == 0]))
    out = groups * int(g.one((1, 1, 2, 3, 4, 8)))
    k, pad, stride = int(g.one((1, 2, 3, 3))), int(g.one((0, 1, 1))), int(g.one((1, 1, 2)))
    shape = (out, c, k, k) if groups == 1 else (groups, out // groups, c // groups, k, k)
    w = g.leaf("param", shape)
    form = g.one((*WEIGHTS, "({0} - F.mean({0})) / (F.std({0}) + 0.5)"))
    if g.chance(0.2) and groups == 1:
        w2 = w
        del g.leaves[w], g.scope[w]
        g.names.remove(w)
        w2 = g.leaf("param", (c, out, k, k))
        pad = min(pad, k - 1)
        return f"F.conv_transpose2d({x}, {form.format(w2)}, stride={stride}, padding={pad})"
    text = f"F.conv2d({x}, {form.format(w)}, padding={pad}, stride={stride}, groups={groups})"
    after = g.one(("{}", "F.relu({})", "{} * 0.5", "F.sigmoid({})"))
    return str(after.format(text))


def pooled(g: Generator) -> str | None:
    x = g.pick(lambda t: floats(t) and t.ndim == 4 and min(t.shape) >= 1)
    if x is None:
        return None
    k, s = int(g.one((1, 2, 3))), int(g.one((1, 2)))
    c = g.scope[x].shape[1]
    forms = [
        f"F.{kind}_pool2d({x}, {k}, {s}, {int(g.one((0, k // 2)))})" for kind in ("max", "avg")
    ]
    forms += [
        f"F.adaptive_avg_pool2d({x}, {k})",
        f"F.nn.group_norm({x}, {g.one([d for d in range(1, c + 1) if c % d == 0])}, False)",
        f"F.batch_norm({x}, training=True)",
    ]
    return str(g.one(forms))


def control(g: Generator) -> Any:
    x = g.float()
    if x is None:
        return None
    a, b = g.fresh(), g.fresh()
    t = g.scope[x]
    p = next(
        (n for n, leaf in g.leaves.items() if leaf.shape == () and leaf.dtype == "float32"), "0.5"
    )
    # Both branches use it: op by op, what only the other one uses has no gradient in place of 0.
    forms = [
        f"{a} = mge.jit.cond({x}.sum() > 0.1, lambda a: (a * 2 + {p}).astype(a.dtype), "
        f"lambda a: (a - {p}).astype(a.dtype), {x})",
        f"{a} = mge.jit.while_loop(lambda n, a: n < 3, lambda n, a: (n + 1, F.tanh(a) + 0.2), "
        f"(mge.tensor(0), {x}))[1]",
    ]
    if t.ndim:
        grown = "F.concat([a, F.tanh(a[:2]) + 0.5])"
        forms.append(
            f"{a} = mge.jit.while_loop(lambda n, a: n < 3, lambda n, a: (n + 1, {grown}), "
            f"(mge.tensor(0), {x}))[1].sum(0)"
        )  # Later steps ask for extents, which only a run knows in front of the sum.
    if t.ndim and t.shape[0] > 0:
        scan = f"mge.jit.scan(lambda s, e: (s * 0.5 + e, s.sum() + e), ({x}[0],), ({x},))"
        return g.one(
            (
                *((form, [a]) for form in forms),
                (f"({a},), ({b},) = {scan}", [a, b]),
                (f"({a},), ({b},) = {scan}", [a, b]),
            )
        )
    return g.one(forms), [a]


def looked_up(g: Generator) -> str | None:
    x = g.float(2)
    if x is None:
        return None
    t = g.scope[x]
    n = t.shape[1]
    i = g.leaf("input", (t.shape[0],), "int32", 0, max(n, 1))
    return str(g.one((f"F.indexing_one_hot({x}, {i})", f"F.nn.one_hot({i}, {n + 1})")))


MAKERS: list[Callable[[Generator], Any]] = [
    *[unary] * 7, *[binary] * 7, *[reduce] * 4, *[move] * 6, *[sliced_value] * 3, *[assigned] * 2,
    *[product] * 4, heads, *[convolution] * 4, pooled, *[along] * 3, *[cast] * 2, integers,
    compare, logical, *[indexed] * 2, joined, control, looked_up,
]  # fmt: skip

ROUNDING: list[Callable[[Generator], Any]] = [
    *[unary] * 8, *[binary] * 8, move, sliced_value, assigned, joined
]  # fmt: skip
"""For programs whose results are compared bit by bit: steps that round."""
