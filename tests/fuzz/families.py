"""More makers of lines, in families: a program takes some of them, so that they meet often."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.fuzz.makers import WEIGHTS, floats, number, whole
from tests.fuzz.program import SAMPLED

from treadle.base.errors import TreadleError

if TYPE_CHECKING:
    from tests.fuzz.generate import Generator

RARER = (
    "F.acos(F.clip({}, -0.9, 0.9))", "F.asin(F.clip({}, -0.9, 0.9))",
    "F.tan(F.clip({}, -1.0, 1.0))",
    "F.sinh(F.clip({}, -2.0, 2.0))", "F.cosh(F.clip({}, -2.0, 2.0))", "F.asinh({})",
    "F.acosh(F.abs({}) + 1.25)", "F.atanh(F.clip({}, -0.75, 0.75))", "F.hsigmoid({})",
    "1.0 / (F.abs({}) + 0.5)", "(F.abs({}) + 0.5) ** 1.5", "(F.abs({}) + 0.5) ** -0.5",
    "{} ** 3", "2.0 ** F.clip({}, -3.0, 3.0)", "{}.detach() * {}", "F.copy({})",
    "F.isnan({})", "F.isinf(1.0 / {})", "F.isfinite({})", "F.relu({} - 0.5) - F.relu(-{})",
    "F.nn.prelu({}, mge.tensor([0.25]))", "op('elu')(F.clip({}, -4.0, 4.0))",
    "op('softsign')({})", "op('trunc')({})", "op('round_even')({} * 2.0)",
    "op('rsqrt')({} * {} + 0.5)",
    "op('reciprocal')(F.abs({}) + 0.5)", "op('identity')({})", "F.full_like({}, 0.5) + {}",
    "op('stop_gradient')({}) + {}", "F.nn.dropout({}, 0.5, training=False)",
    "F.real(F.complex({}, {}) * F.complex({}, {}))", "F.imag(F.polar(F.abs({}), {}))",
)  # fmt: skip
PAIRED = (
    "op('copysign')({}, {})", "(F.abs({}) + 0.5) ** F.clip({}, -2.0, 2.0)",
    "F.logical_or({} > 0.25, {} < 0.5)", "F.logical_xor({} > 0.25, {} < 0.5)",
    "F.where(F.isfinite({0} / {1}), {0}, {1})", "F.nn.square_loss({0}, {0} * 0.5) + {1}",
    "F.floor_div({}, F.abs({}) + 0.5)", "F.clip({}, -1.0, F.abs({}) + 0.5)",
)  # fmt: skip
MASKED = ("F.all({}, axis={})", "F.any({}, axis={})", "~{}", "{}.astype('int32').sum(axis={})")


def rarer(g: Generator) -> str | None:
    x, form = g.float(), g.one(RARER)
    return None if x is None else str(form.format(*[x] * form.count("{}")))


def paired(g: Generator) -> str | None:
    x, y = g.float(), g.float()
    return None if x is None or y is None else str(g.one(PAIRED).format(x, y))


def masks(g: Generator) -> str | None:
    x = g.pick(lambda t: t._kind.dtype.name == "bool" and t.ndim > 0)
    if x is None:
        return None
    return str(g.one(MASKED).format(x, int(g.rng.integers(g.scope[x].ndim))))


def bits(g: Generator) -> str | None:
    """Integers: shifts, complements, powers, extreme values."""
    x = g.pick(whole)
    if x is None:
        return None
    forms = (
        "~{}", "{} << 2", "{} >> 1", "{} ** 2", "{} * {}", "F.abs({})", "-{}", "{} // 3", "{} % 3",
        "F.clip({}, 0, 3)", "F.cumsum({}, axis=0)", "{}.astype('float32') / 2", "{} / 3",
        "F.equal({}, 1)", "F.logical_not({} > 1)", "op('sign')({})", "F.sort({})[1]",
    )  # fmt: skip
    form = g.one(forms)
    return str(form.format(*[x] * form.count("{}")))


# -- images ------------------------------------------------------------------------------------


def image(g: Generator, channels: int = 0, least: int = 4) -> str:
    """A value of four axes with float32 elements, or a new one."""

    def fits(t: Any) -> bool:
        shape, name = t.shape, t._kind.dtype.name
        right = t.ndim == 4 and min(shape) > 0 and min(shape[2:]) >= least
        return bool(right and name == "float32" and channels in (0, shape[1]))

    found = g.pick(fits)
    if found is not None and g.chance(0.7):
        return found
    big = g.most > 6000
    c = channels or int(g.one((8, 16, 24, 32) if big else (1, 2, 3, 4, 8, 16)))
    h = int(g.one((14, 16, 20, 28) if big else (4, 5, 7, 8)))
    w = h if g.chance(0.6) else h + int(g.one((1, 2, 3)))
    return g.leaf(g.one(("input", "input", "param")), (int(g.one((1, 2, 3))), c, h, w))


def network(g: Generator) -> str | None:
    """A 3x3 convolution of a layer's usual size, with what follows it."""
    x = image(g)
    c = int(g.scope[x].shape[1])
    out = int(g.one((c, 2 * c, 16, 24, 32)))
    k, stride = int(g.one((3, 3, 3, 1, 5))), int(g.one((1, 1, 1, 2)))
    pad = k // 2
    if g.chance(0.3):
        w = g.leaf("param", (c, 1, 1, k, k))
        made = f"F.conv2d({x}, {_weight(g, w)}, stride={stride}, padding={pad}, groups={c})"
        out = c
    else:
        w = g.leaf("param", (out, c, k, k))
        scale = 0.5 / max(c, 1)
        made = f"F.conv2d({x}, {_weight(g, w)} * {scale}, stride={stride}, padding={pad})"
    b = g.leaf("param", (1, out, 1, 1))
    after = (
        "{}", "F.relu({})", f"F.relu({{}} + {b})", f"F.silu({{}} * {b})",
        "F.batch_norm({}, training=True)",
        "F.relu(F.batch_norm({}, training=True))", "F.hswish({})", f"F.relu({{}}) + {x}",
        "F.max_pool2d(F.relu({}), 2, 2)", "F.avg_pool2d({}, 2, 2)", f"F.maximum({{}}, {b})",
        f"F.batch_norm({{}}, F.zeros((1, {out}, 1, 1)), F.ones((1, {out}, 1, 1)) * 2.0, {b}, {b})",
        "F.mean({}, axis=(2, 3))", "{}.astype('float16').astype('float32')",
    )  # fmt: skip
    return str(g.one(after).format(made))


def _weight(g: Generator, w: str) -> str:
    return f"({g.one(WEIGHTS).format(w)})"


def odd_convolution(g: Generator) -> str | None:
    """One and three spatial axes, unequal strides, dilation, weights per place, biases."""
    x = image(g, least=5)
    n, c, h, w = (int(d) for d in g.scope[x].shape)
    o, s, t = int(g.one((1, 2, 5))), int(g.one((1, 2))), int(g.one((1, 1, 2)))
    p, q = int(g.one((0, 1, 2))), int(g.one((0, 1)))
    way = int(g.rng.integers(7))
    if way == 0:
        k = g.leaf("param", (o, c, 3))
        return f"F.conv1d({x}[:, :, 0], {_weight(g, k)}, stride={s}, padding={p}, dilation={t})"
    if way == 1:
        k = g.leaf("param", (o, c, 2, 2, 1))
        cube = f"F.stack([{x}, {x} * 0.5, -{x}], axis=2)"
        return f"F.conv3d({cube}, {_weight(g, k)}, stride={s}, padding={q})"
    if way == 2:
        k = g.leaf("param", (o, c, 3, 1))
        b = g.leaf("param", (1, o, 1, 1))
        rest = f"stride=({s}, {t}), padding=({p}, {q}), dilation=({t}, 1)"
        return f"F.conv2d({x}, {_weight(g, k)}, {b}, {rest})"
    if way == 3:
        k = g.leaf("param", (1, h - 2, w - 2, c, 3, 3, o))
        return f"F.local_conv2d({x}, {_weight(g, k)})"
    if way == 4:
        k, d = g.leaf("param", (o, c, 3, 3)), g.leaf("input", (n, 18, h, w))
        m = g.leaf("input", (n, 9, h, w))
        return f"F.deformable_conv2d({x}, {_weight(g, k)}, {d} * 0.5, {m}, padding=1)"
    if way == 5:
        k, f = g.leaf("param", (c, 1, o, 3, 3)), f"output_padding={int(s == 2 and g.chance(0.5))}"
        rest = f"stride={s}, padding={q}, {f}, groups={c}"
        return f"F.conv_transpose2d({x}, {_weight(g, k)}, {rest})"
    k = g.leaf("param", (c, o, 2, 2, 2))
    cube = f"F.stack([{x}, {x} * 0.5], axis=2)"
    return f"F.conv_transpose3d({cube}, {_weight(g, k)}, stride={s})"


def vision(g: Generator) -> str | None:
    """Resizing, warping, regions, windows."""
    x = image(g)
    n, _, h, w = (int(d) for d in g.scope[x].shape)
    oh, ow = int(g.one((1, 3, h, 2 * h))), int(g.one((2, 5, w)))
    mode = g.one(("bilinear", "bicubic", "nearest"))
    corners = f", align_corners={g.chance(0.5)}" if mode == "bilinear" else ""
    border = g.one(("replicate", "reflect", "reflect_101", "wrap", "constant"))
    inter = g.one(("linear", "nearest", "cubic"))
    matrix = f"mge.tensor([[[0.75, 0.25, 0.5], [-0.125, 1.25, 0.375], [0.0, 0.0, 1.0]]] * {n})"
    rois = f"mge.tensor([[0, 0.5, 0.25, 3.0, 2.75], [{n - 1}, 1.0, 0.0, 2.5, 3.5]])"
    way = f"border_mode={border!r}, interp_mode={inter!r}"
    forms = [
        f"F.vision.interpolate({x}, ({oh}, {ow}), mode={mode!r}{corners})",
        f"F.vision.interpolate({x}, scale_factor=2, mode={mode!r}{corners})",
        f"F.vision.warp_perspective({x}, {matrix}, ({oh}, {ow}), {way})",
        f"F.vision.warp_affine({x}, {matrix}[:, :2], ({oh}, {ow}), {way}, format='NCHW')",
        f"F.vision.remap({x}, F.sin({x}.reshape({n}, -1)[:, :8]).reshape({n}, 2, 2, 2) * 3, {way})",
        f"F.vision.roi_align({x}, {rois}, (2, 3), {g.one(('average', 'max'))!r})",
        f"F.vision.roi_pooling({x}, {rois}, (2, 2), {g.one(('average', 'max'))!r})",
        f"F.nn.adaptive_max_pool2d({x}, ({min(h, 3)}, 2))",
        f"F.nn.adaptive_avg_pool2d({x}, (3, 2))",
        f"F.max_pool2d({x}, (3, 2), (2, 1), (1, 0))", f"F.avg_pool2d({x}, (2, 3), (1, 2), (0, 1))",
        f"F.nn.sliding_window({x}, 2, padding=1, stride=2)",
        f"F.nn.sliding_window_transpose(F.nn.sliding_window({x}, 3), ({h}, {w}), 3)",
        f"F.vision.flip({x}, vertical={g.chance(0.5)}, horizontal=True)", f"F.vision.rot90({x})",
        f"F.nn.local_response_norm({x}, 3)", f"F.nn.instance_norm({x}, False)",
        f"F.vision.correlation({x}, {x} * 0.5, 3, 1, 1, 1, 1)",
        f"F.nn.pixel_shuffle(F.concat([{x}] * 4, axis=1), 2)",
    ]  # fmt: skip
    return str(g.one(forms))


# -- sequences, losses, indices ----------------------------------------------------------------


def attention(g: Generator) -> str | None:
    """Attention by name and written out, with masks."""
    b, h, t, s = (int(g.one(c)) for c in ((1, 2), (1, 2, 3), (1, 4, 7, 17), (2, 5, 16, 33)))
    d, e = int(g.one((2, 4, 8))), int(g.one((3, 8)))
    q, k, v = (
        g.leaf("input", (b, h, t, d)),
        g.leaf("input", (b, h, s, d)),
        g.leaf("input", (b, h, s, e)),
    )
    if g.chance(0.3):
        k = g.leaf("param", (b, h, s, d))
    mask = g.one((None, (t, s), (b, 1, t, s), (1, s)))
    kind = g.one(("bool", "float32"))
    m = None if mask is None else g.leaf("input", mask, kind)
    if g.chance(0.5):
        # A row without any key has no result.
        added = "" if m is None else f", {m} | (F.arange({s}) < 1)" if kind == "bool" else f", {m}"
        causal = f", is_causal={m is None and g.chance(0.4)}"
        return f"F.scaled_dot_product_attention({q}, {k}, {v}{added}{causal})"
    scores = f"F.matmul({q} * 0.5, F.transpose({k}, (0, 1, 3, 2)))"
    if m is not None:
        scores += f" + {m}" if kind == "float32" else f" + ({m}.astype('float32') - 1.0) * 10.0"
    return f"F.matmul(F.softmax({scores}, axis=-1), {v})"


def heads_at_once(g: Generator) -> str | None:
    n, t, h, d = int(g.one((1, 2))), int(g.one((1, 3, 6))), int(g.one((1, 2))), int(g.one((2, 4)))
    e = h * d
    x, w = g.leaf("input", (n, t, e)), g.leaf("param", (4 * e * e,))
    rest = f"{e}, {h}, 0.0, 0.0, {w} * 0.25, is_causal={g.chance(0.3)}"
    return f"F.nn.multi_head_attention({x}, {x}, {x}, {rest})[0]"


def caches(g: Generator) -> str | None:
    """Keys and values that are kept: positions turned, caches written and attended over."""
    b, h, t, s = (int(g.one(c)) for c in ((1, 2, 3), (1, 2), (1, 1, 3, 9), (9, 16, 33)))
    d, shared = int(g.one((2, 4, 8, 16))), int(g.one((1, 2, 4)))
    kind = str(g.one(("float32", "float32", "bfloat16", "float16", "" if g.only else "int8")))
    kind = kind or "float32"
    pages = int(g.one((1, 1, 1, 2, 3)))
    s = 128 if pages > 1 and g.chance(0.5) else s  # what kernels take
    n = b * pages + int(g.one((0, 0, 1)))
    lines = (n, h, s) if pages == 1 else (1, h, n * s)
    k, v = (g.leaf("input", (*lines, d), kind) for _ in range(2))
    q, x = g.leaf("input", (b, h * shared, t, d)), g.leaf("input", (b, h, t, d))
    starts = g.leaf("input", (b,), g.one(("int32", "int32", "int64")), 0, s * pages - t + 1)
    if g.chance(0.5):
        table = (s * pages, int(g.one((d // 2, max(d // 4, 1)))))
        angle = g.leaf(g.one(("input", "param")), table)
        turned = f"F.cos({angle}), F.sin({angle}), {starts}, interleaved={g.chance(0.5)}"
        q, x = f"F.rope({q}, {turned})", f"F.rope({x}, {turned})"
    ends = f"{starts} + {int(g.one((t, t, max(t - 1, 1))))}"
    rows = g.one(("", f", F.arange({n - 1}, {n - 1 - b}, -1, dtype='int32')")) if n > 1 else ""
    if n > b and not rows:
        rows = f", F.arange({b}, dtype='int32')"
    if pages > 1:
        last = n - 1 - b * pages
        rows = (
            f", F.reshape(F.arange({n - 1}, {last}, -1, dtype='int32'), ({b}, {pages})), page={s}"
        )
    written = f"F.cache_update({k}, {x}, {starts}, {ends}{rows})"
    name = g.fresh()
    if not g.add(f"{name} = {written}", [name]):
        return None
    more = g.one(("", "", f", window={int(g.one((1, 4)))}", ", softcap=3.0", ", scale=0.25"))
    if g.chance(0.3):
        more += f", sinks={g.leaf('param', (h * shared,))}"
    if kind == "int8":
        scales = [g.leaf("input", (*lines, 1)) for _ in range(2)]
        more += f", scales=({', '.join(scales)})"
    return f"F.cached_attention({q}, {name}, {v}, {starts}, {ends}{rows}{more})"


def quantized_blocks(g: Generator) -> str:
    """Products with weights in quantized blocks, of numbers that rounding leaves as they are."""
    form = str(g.one(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")))
    rows, terms = int(g.one((1, 5, 16, 17, 33))), 32 * int(g.one((1, 2, 4, 5)))
    shape = (*g.one(((), (1,), (2,), (3, 1), (7,), (18,), (40,))), terms)
    x = g.leaf(g.one(("input", "param")), shape)
    weight = f"mge.tensor(blocks({form!r}, {rows}, {terms}, {int(g.rng.integers(99))}))"
    bias = f", {g.leaf('param', (rows,))}" if g.chance(0.4) else ""
    how = g.one(("int16", "int16", "int8", "bfloat16"))
    return f"F.block_linear({x}, {weight}, {form!r}, {rows}{bias}, activations={how!r})"


def losses(g: Generator) -> str | None:
    x = g.pick(lambda t: floats(t) and t.ndim >= 2 and t.size > 0)
    if x is None:
        return None
    t = g.scope[x]
    classes, reduction = int(t.shape[1]), g.one(("mean", "sum", "none"))
    shape = tuple(int(d) for i, d in enumerate(t.shape) if i != 1)
    label = g.leaf("input", shape, g.one(("int32", "int32", "uint8")), 0, classes)
    smooth = g.one((0, 0, 0.125))
    how = f"reduction={reduction!r}"
    forms = [
        f"F.nn.cross_entropy({x}, {label}, label_smooth={smooth}, {how})",
        f"F.nn.cross_entropy(F.softmax({x}, axis=1), {label}, with_logits=False, {how})",
        f"F.nn.binary_cross_entropy({x}, F.sigmoid({x} * 0.5), {how})",
        f"F.nn.l1_loss({x}, F.tanh({x}), {how})", f"F.nn.square_loss({x}, F.tanh({x}), {how})",
        f"F.nn.hinge_loss({x}, F.sign({x} + 0.1), {g.one(('L1', 'L2'))!r}, {how})",
    ]  # fmt: skip
    return str(g.one(forms))


def picked(g: Generator) -> Any:
    """Gathering, scattering, and assignments through tensors."""
    x = g.pick(lambda t: t.ndim > 0 and number(t) and t.size > 0)
    if x is None:
        return None
    t = g.scope[x]
    axis = int(g.rng.integers(t.ndim))
    n, shape = int(t.shape[axis]), tuple(int(d) for d in t.shape)
    like = tuple(d if a != axis else 2 for a, d in enumerate(shape))
    along = g.leaf("input", like, "int32", 0, n)
    rows = g.leaf("input", (int(g.one((1, 3, 5))),), g.one(("int32", "int64")), -n, n)
    before = ":, " * axis
    name = g.fresh()
    one = f"{along}[{before}:1]"
    forms = [
        f"F.gather({x}, {axis}, {along})", f"{x}[{before}{rows}]", f"{x}[{before}{rows} % {n}]",
        f"F.scatter({x} * 1, {axis}, {one}, F.gather({x}, {axis}, {one}) * 2)", f"F.argsort({x})",
        f"F.cumsum({x}, axis={axis}) * 1", f"F.concat(F.split({x}, {n}, {axis})[::-1], {axis})",
        f"F.nn.one_hot(F.abs({rows}), {n + 1})", f"{x}[{x} > 0.5].sum() * 0 + {x}",
    ]  # fmt: skip
    if g.chance(0.4):
        key = g.one((f"{before}{rows}", f"{x} > 0.25", f"{before}{rows} % {n}"))
        return f"{name} = {x} * 1; {name}[{key}] = {g.one((0, 1))}", [name]
    return g.one(forms)


def made(g: Generator) -> str | None:
    """Values from nothing but extents."""
    n, m = int(g.one((1, 3, 8, 17))), int(g.one((1, 2, 5)))
    forms = (
        f"F.arange({n})", f"F.linspace(-1.0, 1.0, {n})", f"F.eye({n}, {m})", f"F.ones(({m}, {n}))",
        f"F.full(({n}, {m}), 0.75)", f"F.zeros(({n}, {m})) + F.arange({m})",
        f"F.diag(F.arange({n}) * 0.25)",
        f"F.meshgrid(F.arange({n}) * 1.0, F.arange({m}) * 0.5)[{g.one((0, 1))}]",
        f"F.arange(0, {n}, dtype='int32')",
    )  # fmt: skip
    return str(g.one(forms))


def algebra(g: Generator) -> str | None:
    x = g.pick(lambda t: t._kind.dtype.name == "float32" and t.ndim >= 2 and 0 < t.size < 2000)
    if x is None:
        return None
    t = g.scope[x]
    n, m = int(t.shape[-2]), int(t.shape[-1])
    last = "abcdefgh"[: t.ndim - 2]
    gram = f"F.matmul({x}, {x}, transpose_b=True) + F.eye({n}) * {float(4 * m)}"
    forms = [
        f"F.einsum('{last}ij,{last}kj->{last}ik', {x}, {x})", f"F.einsum('...ij->...ji', {x})",
        f"F.einsum('{last}ij,j->{last}i', {x}, F.arange({m}) * 0.125)", f"F.norm({x}, axis=-1)",
        f"F.norm({x} + 0.03, ord=1, axis=-2)", f"F.matmul({x}, {x}, transpose_a=True)",
        f"F.dot({x}.reshape(-1), {x}.reshape(-1))", f"F.swapaxes({x}, -1, -2)",
    ]  # fmt: skip
    if n <= 8 and m <= 16:
        forms += [f"F.matinv({gram})", f"op('cholesky')({gram})"]
    if m >= 3:
        forms.append(f"F.cross({x}[..., :3], {x}[..., :3][..., ::-1] + 0.5)")
    return str(g.one(forms))


def quantized(g: Generator) -> str | None:
    """Numbers rounded to grids, and products of them, which have kernels on integers."""
    grid, unsigned = (
        "mge.core.tensor.dtype.qint8(0.0625)",
        "mge.core.tensor.dtype.quint8(0.0625, 99)",
    )
    x = g.float(1)
    if x is None or g.scope[x]._kind.dtype.name != "float32":
        return None
    levels = f"rounded({x}, 0.0625)"
    if g.scope[x].ndim == 4 and g.scope[x].shape[1] > 0 and g.chance(0.7):
        c = int(g.scope[x].shape[1])
        w = g.leaf("param", (4, c, 1, 1))
        return f"F.relu(rounded(F.conv2d({levels}, rounded({w}, 0.03125)), 0.25))"
    n = int(g.scope[x].shape[-1])
    if g.chance(0.6) and n and g.scope[x].ndim > 1:
        w = g.leaf("param", (n, int(g.one((2, 5, 16)))))
        return f"rounded(F.matmul({levels}, rounded({w}, 0.03125)), 0.25)"
    return str(
        g.one(
            (
                levels,
                f"{x}.astype({grid}).astype('float32')",
                f"{x}.astype({unsigned}).astype('float32')",
            )
        )
    )


def drawn(g: Generator) -> str | None:
    """Random numbers, the same ones in every way to run a program."""
    x = g.float()
    if x is None:
        return None
    shape = tuple(int(d) for d in g.scope[x].shape)
    forms = (
        f"mge.random.uniform(0.0, 1.0, {shape}) + {x}",
        f"mge.random.normal(0.0, 1.0, {shape}) * {x}",
        f"F.nn.dropout({x}, 0.25)", f"mge.random.normal({x}, 0.5, {shape})",
    )  # fmt: skip
    g.random = True
    return str(g.one(forms))


def state(g: Generator) -> Any:
    """A parameter that the program changes; what comes later reads the new value."""
    p = g.pick(
        lambda t: any(t is g.scope[n] for n, leaf in g.leaves.items() if leaf.kind == "param")
    )
    if p is None or not floats(g.scope[p]) or not g.scope[p].ndim or not g.scope[p].size:
        return None
    g.stateful = True
    name = g.fresh()
    forms = (
        f"{name} = {p} * 0.5 + 0.25; {p}[...] = {name}", f"{name} = {p} * 1; {p}[0] = 0.5",
        f"{name} = F.tanh({p}); {p}[...] = {name}[...] * 0.5",
        f"{name} = {p}[0] + 1; {p}[0] = {name}",
    )  # fmt: skip
    return g.one(forms), [name]


def sampled(g: Generator, name: str = "") -> Any:
    """Any op of the table, or that of a name, called as one of its samples."""
    name = name or str(g.one(sorted(SAMPLED)))
    samples = SAMPLED[name]
    k = int(g.rng.integers(len(samples)))
    sample = samples[k]
    kinds = [d.name for d in sample.element_types()]
    kind = "float32" if "float32" in kinds and not (g.narrow and g.chance(0.4)) else g.one(kinds)
    if any(arg.dtype is not None and arg.dtype.kind == "complex" for arg in sample.args):
        return None
    operands, values = [], []
    for i, arg in enumerate(sample.args):
        own = kind if arg.dtype is None else arg.dtype.name
        shape = tuple(arg.shape) if arg.values is None else np.shape(arg.values)
        x = g.pick(lambda t, s=shape, o=own: t.shape == s and t._kind.dtype.name == o)
        if x is None or arg.values is not None or own != "float32" or g.chance(0.6):
            role = "param" if own == "float32" and g.chance(0.4) else "input"
            x = g.leaf(role, shape, own, source=f"{name}/{k}/{kind}/{i}")
        operands.append(f"({x} * 1.0)" if own == "float32" and g.chance(0.3) else x)
        values.append(g.scope[x])
    try:
        results = [g.fresh() for _ in sample.op.outputs(*values)]
    except TreadleError:
        return None
    left = results[0] if len(results) == 1 else f"({', '.join(results)})"
    called = f"sample({name!r}, {k}).outputs({', '.join(operands)})"
    return f"{left} = {called}" + "[0]" * (len(results) == 1), results


FAMILIES: list[Callable[[Generator], Any]] = [
    rarer, paired, masks, bits, network, network, odd_convolution, vision, attention, heads_at_once,
    losses, picked, made, algebra, quantized, quantized_blocks, drawn, state, caches,
    *[sampled] * 4,
]  # fmt: skip
