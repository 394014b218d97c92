"""How nodes are drawn whose operands must fit in shape: movement, windows, places, recurrences."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper
from tests.interop.onnx.fuzz.growing import Growing, Misfit, Var
from tests.interop.onnx.fuzz.recipes import axes_of, axis_of, ranked, recipe, since

# -- shapes ------------------------------------------------------------------------------------


def _some(g: Growing, op: str, parameter: str = "T", least: int = 1) -> Var:
    return g.any(
        g.types(op, parameter), lambda s: len(s) >= least, lambda: g.shape(g.rng.randint(least, 4))
    )


@recipe("Reshape")
def _reshape(g: Growing, op: str) -> None:
    x = _some(g, op, least=0)
    size, made = x.array.size, []
    while size > 1 and len(made) < 4:
        d = g.rng.choice([n for n in range(1, size + 1) if size % n == 0])
        made.append(d)
        size //= d
    made.append(size)
    g.rng.shuffle(made)
    if g.chance(0.4) and x.array.size:
        made[g.rng.randrange(len(made))] = -1
    elif made and x.shape and made[0] == x.shape[0] and made[0]:
        made[0] = 0
    g.add(op, [x, g.known(made)])


@recipe("Flatten")
def _flatten(g: Growing, op: str) -> None:
    x = _some(g, op)
    g.add(op, [x], axis=g.rng.randint(-len(x.shape), len(x.shape)))


@recipe("Squeeze")
def _squeeze(g: Growing, op: str) -> None:
    x = g.any(g.types(op, "T"), lambda s: 1 in s, lambda: (1, *g.shape(2), 1))
    ones = [i for i, d in enumerate(x.shape) if d == 1]
    chosen = g.rng.sample(ones, g.rng.randint(1, len(ones)))
    g.add(op, [x, g.known(chosen)] if g.chance(0.8) else [x])


@recipe("Unsqueeze")
def _unsqueeze(g: Growing, op: str) -> None:
    x = g.any(g.types(op, "T"), ranked(0, 1, 2, 3))
    count = g.rng.randint(1, 2)
    rank = len(x.shape) + count
    axes = [a - rank if g.chance(0.3) else a for a in g.rng.sample(range(rank), count)]
    g.add(op, [x, g.known(axes)])


@recipe("Transpose")
def _transpose(g: Growing, op: str) -> None:
    x = _some(g, op, least=0)
    order = list(range(len(x.shape)))
    g.rng.shuffle(order)
    g.add(op, [x], perm=order if order and g.chance(0.8) else None)


@recipe("Expand")
def _expand(g: Growing, op: str) -> None:
    x = g.any(g.types(op, "T"), lambda s: len(s) < 4, lambda: [g.rng.choice([1, 3]) for _ in "abc"])
    wanted = [d if d > 1 or g.chance(0.3) else g.rng.randint(1, 4) for d in x.shape]
    wanted = [*g.shape(g.rng.randint(0, 1)), *wanted]
    g.add(op, [x, g.known([1 if g.chance(0.2) else d for d in wanted])])


@recipe("Tile")
def _tile(g: Growing, op: str) -> None:
    x = _some(g, op)
    g.add(op, [x, g.known([g.rng.randint(0 if g.chance(0.1) else 1, 3) for _ in x.shape])])


@recipe("Concat")
def _concat(g: Growing, op: str) -> None:
    x = _some(g, op)
    axis = axis_of(g, x)
    parts = [x]
    for _ in range(g.rng.randint(0, 3)):
        shape = list(x.shape)
        shape[axis] = g.rng.randint(0 if g.chance(0.1) else 1, 4)
        parts.append(g.new(g.numbers(x.dtype, shape)))
    g.rng.shuffle(parts)
    g.add(op, parts, axis=axis)


@recipe("Slice")
def _slice(g: Growing, op: str) -> None:
    x = _some(g, op)
    axes = axes_of(g, x, 1)
    far = [-(2**31), 2**31 - 1, *range(-7, 8)]
    starts, ends = ([g.rng.choice(far) for _ in axes] for _ in range(2))
    steps = [g.rng.choice([1, 1, 2, 3, -1, -2]) for _ in axes]
    kind = g.type([np.int32, np.int64])
    given = [g.known(v, kind) for v in (starts, ends, axes, steps)]
    g.add(op, [x, *given[: 4 if g.chance(0.8) else 3]])


@recipe("Split")
def _split(g: Growing, op: str) -> None:
    x = _some(g, op)
    axis = axis_of(g, x)
    count = g.rng.randint(1, 3)
    if g.chance(0.5):
        cuts = sorted(g.rng.randint(0, x.shape[axis]) for _ in range(count - 1))
        sizes = np.diff([0, *cuts, x.shape[axis]])
        g.add(op, [x, g.known(sizes)], count, axis=axis)
    elif since(g, op) >= 18:
        g.add(op, [x], count, axis=axis, num_outputs=count)
    elif x.shape[axis] % count == 0:
        g.add(op, [x], count, axis=axis)


@recipe("Pad")
def _pad(g: Growing, op: str) -> None:
    x = _some(g, op)
    mode = g.rng.choice(["constant", "constant", "reflect", "edge", "wrap"])
    if mode == "wrap" and since(g, op) < 19:
        raise Misfit
    axes = axes_of(g, x, 1) if since(g, op) >= 18 and g.chance(0.5) else list(range(len(x.shape)))
    most = min((x.shape[a] for a in axes), default=1) - 1 if mode != "constant" else 3
    low = -1 if mode == "constant" else 0
    pads = [g.rng.randint(low, max(most, 0)) for _ in range(2 * len(axes))]
    value = g.new(g.numbers(x.dtype, ())) if mode == "constant" and g.chance(0.6) else None
    given = [x, g.known(pads), value]
    g.add(op, [*given, g.known(axes)] if len(axes) < len(x.shape) else given, mode=mode)


@recipe("Shape", "Size")
def _shape(g: Growing, op: str) -> None:
    ends = {"start": g.rng.randint(-3, 3), "end": g.rng.randint(-3, 4)} if g.chance(0.5) else {}
    g.add(op, [_some(g, op, least=0)], **(ends if op == "Shape" else {}))


@recipe("ConstantOfShape")
def _constant_of_shape(g: Growing, op: str) -> None:
    kind = g.type(g.types(op, "T2"))
    value = helper.make_tensor(
        "value", helper.np_dtype_to_tensor_dtype(np.dtype(kind)), [1], [g.rng.randint(0, 3)]
    )
    g.add(op, [g.known(g.shape(g.rng.randint(0, 3), 0))], value=value)


@recipe("Range")
def _range(g: Growing, op: str) -> None:
    kind = g.type(g.types(op, "T"))
    step = g.rng.choice([1, 2, 3, -1, -2])
    g.add(op, [g.known(v, kind) for v in (g.rng.randint(-3, 3), g.rng.randint(-9, 9), step)])


@recipe("EyeLike")
def _eye(g: Growing, op: str) -> None:
    x = g.any(g.types(op, "T1"), ranked(2), lambda: g.shape(2))
    g.add(op, [x], k=g.rng.randint(-2, 2), dtype=g.rng.choice([None, 1, 7]))


@recipe("Trilu")
def _trilu(g: Growing, op: str) -> None:
    x = _some(g, op, least=2)
    k = g.known(g.rng.randint(-4, 4)) if g.chance(0.7) else None
    g.add(op, [x, k], upper=g.rng.choice([0, 1]))


@recipe("DepthToSpace", "SpaceToDepth")
def _depth(g: Growing, op: str) -> None:
    n, c, h, w = g.shape(4, 1, 3)
    b = g.rng.randint(1, 3)
    shape = (n, c * b * b, h, w) if op == "DepthToSpace" else (n, c, h * b, w * b)
    x = g.any([np.float32], lambda s: s == shape, lambda: shape)
    g.add(op, [x], blocksize=b, mode=g.rng.choice(["DCR", "CRD"]) if op == "DepthToSpace" else None)


@recipe("ReverseSequence")
def _reverse_sequence(g: Growing, op: str) -> None:
    x = g.any(g.types(op, "T"), lambda s: len(s) >= 2, lambda: g.shape(3))
    time = g.rng.randint(0, 1)
    lengths = g.known([g.rng.randint(1, x.shape[time]) for _ in range(x.shape[1 - time])])
    g.add(op, [x, lengths], time_axis=time, batch_axis=1 - time)


@recipe("CenterCropPad")
def _center(g: Growing, op: str) -> None:
    x = _some(g, op)
    axes = sorted(a % len(x.shape) for a in axes_of(g, x, 1))
    g.add(op, [x, g.known(g.shape(len(axes), 1, 8))], axes=axes)


# -- places ------------------------------------------------------------------------------------


def _places(g: Growing, extent: int, shape: tuple[int, ...]) -> Var:
    if not extent:
        raise Misfit
    low = -extent if g.chance(0.5) else 0
    kind = g.type([np.int32, np.int64])
    return g.new(g.numbers(kind, shape, low, extent - 1))


@recipe("Gather")
def _gather(g: Growing, op: str) -> None:
    x = _some(g, op)
    axis = axis_of(g, x)
    g.add(op, [x, _places(g, x.shape[axis], g.shape(g.rng.randint(0, 2)))], axis=axis)


@recipe("GatherElements")
def _gather_elements(g: Growing, op: str) -> None:
    x = _some(g, op)
    axis = axis_of(g, x)
    shape = [g.rng.randint(1, d) if d else 0 for d in x.shape]
    shape[axis] = g.rng.randint(1, 5)
    g.add(op, [x, _places(g, x.shape[axis], tuple(shape))], axis=axis)


@recipe("GatherND")
def _gather_nd(g: Growing, op: str) -> None:
    x = _some(g, op)
    batch = g.rng.randint(0, len(x.shape) - 1)
    depth = g.rng.randint(1, len(x.shape) - batch)
    lead = g.shape(g.rng.randint(0, 2))
    columns = [
        g.numbers(np.int64, (*x.shape[:batch], *lead, 1), -d, d - 1)
        for d in x.shape[batch : batch + depth]
    ]
    g.add(op, [x, g.new(np.concatenate(columns, -1))], batch_dims=batch)


def _reduction(g: Growing, op: str) -> str | None:
    if since(g, op) < 16:
        return None
    more = ["max", "min"] if since(g, op) >= 18 else []
    return g.rng.choice([None, "none", "add", "mul", *more])


@recipe("ScatterElements")
def _scatter_elements(g: Growing, op: str) -> None:
    x = _some(g, op)
    axis = axis_of(g, x)
    how = _reduction(g, op)
    shape = [g.rng.randint(1, d) if d else 0 for d in x.shape]
    if how in (None, "none"):  # what meets at one place must be in no doubt
        order = np.argsort(g.numbers(np.float64, shape), axis % len(shape))
        places = g.new(order.astype(np.int64))
    else:
        shape[axis] = g.rng.randint(1, 5)
        places = _places(g, x.shape[axis], tuple(shape))
    g.add(op, [x, places, g.new(g.numbers(x.dtype, shape))], axis=axis, reduction=how)


@recipe("ScatterND")
def _scatter_nd(g: Growing, op: str) -> None:
    x = _some(g, op)
    how = _reduction(g, op)
    depth = g.rng.randint(1, len(x.shape))
    cells = int(np.prod(x.shape[:depth]))
    if not cells:
        raise Misfit
    count = g.rng.randint(1, cells)
    pick = g.rng.sample(range(cells), count) if how in (None, "none") else None
    flat = pick if pick is not None else [g.rng.randrange(cells) for _ in range(count)]
    index = np.stack(np.unravel_index(flat, x.shape[:depth]), -1).astype(np.int64)
    if g.chance(0.3):
        index = index - np.array(x.shape[:depth])
    updates = g.numbers(x.dtype, (count, *x.shape[depth:]))
    g.add(op, [x, g.new(index), g.new(updates)], reduction=how)


@recipe("OneHot")
def _one_hot(g: Growing, op: str) -> None:
    depth = g.rng.randint(1, 5)
    index = g.new(g.numbers(np.int64, g.shape(g.rng.randint(0, 2)), -depth - 1, depth + 1))
    values = g.new(np.array([0, 3], g.type([np.float32, np.int64])))
    axis = g.rng.randint(-1, len(index.shape))
    g.add(op, [index, g.known(depth), values], axis=axis)


@recipe("Compress")
def _compress(g: Growing, op: str) -> None:
    x = _some(g, op)
    axis = axis_of(g, x) if g.chance(0.6) else None
    extent = x.array.size if axis is None else x.shape[axis]
    mask = g.numbers(np.bool_, (g.rng.randint(1, max(extent, 1)),))
    g.add(op, [x, g.new(mask) if g.chance(0.6) else g.known(mask, np.bool_)], axis=axis)


@recipe("NonMaxSuppression")
def _nms(g: Growing, op: str) -> None:
    batch, n, classes = g.shape(3)
    corner = g.numbers(np.float32, (batch, n, 2), 0, 3)
    size = g.numbers(np.float32, (batch, n, 2), 0.3, 2)
    boxes = g.new(np.concatenate([corner, corner + size], -1))
    scores = g.new(
        np.random.default_rng(n)
        .permuted(np.linspace(0, 1, batch * classes * n, dtype=np.float32))
        .reshape(batch, classes, n)
    )
    most = g.known([g.rng.randint(0, 4)])
    more = [g.known([v], np.float32) for v in (g.rng.choice([0.2, 0.5]), 0.3)]
    given = [boxes, scores, most, *more[: g.rng.randint(0, 2)]]
    g.add(op, given, center_point_box=g.rng.choice([0, 1]))


# -- windows -----------------------------------------------------------------------------------


def _window(
    g: Growing, spatial: int, kernel: tuple[int, ...], *, pool: bool = False
) -> dict[str, object]:
    attrs: dict[str, object] = {}
    if g.chance(0.6):
        attrs["strides"] = [g.rng.randint(1, 3) for _ in range(spatial)]
    if g.chance(0.4):
        attrs["dilations"] = [g.rng.randint(1, 2) for _ in range(spatial)]
    choice = g.rng.random()
    if choice < 0.5:
        most = [k - 1 for k in kernel] * 2 if pool else [2] * 2 * spatial
        attrs["pads"] = [g.rng.randint(0, min(m, 3)) for m in most]
    elif choice < 0.7:
        if pool:  # ONNX Runtime's pools forget the dilation when they pad
            attrs.pop("dilations", None)
        if isinstance(steps := attrs.get("strides"), list):  # Else it would pad by less than none.
            attrs["strides"] = [min(s, k) for s, k in zip(steps, kernel, strict=True)]
        attrs["auto_pad"] = g.rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
    return attrs


def _image(g: Growing, rank: int, channels: int) -> Var:
    shape = (g.rng.randint(1, 2), channels, *g.shape(rank, 2, 8))
    return g.any([np.float32], lambda s: len(s) == rank + 2 and s[1] == channels, lambda: shape)


@recipe("Conv")
def _conv(g: Growing, op: str) -> None:
    rank, group = g.rng.randint(1, 3), g.rng.choice([1, 1, 2, 3])
    inside, outs = g.rng.randint(1, 3), g.rng.randint(1, 3) * group
    x = _image(g, rank, inside * group)
    kernel = g.shape(rank, 1, 3)
    w = g.new(g.numbers(np.float32, (outs, inside, *kernel)))
    bias = g.new(g.numbers(np.float32, (outs,))) if g.chance(0.5) else None
    g.add(op, [x, w, bias], group=group, **_window(g, rank, kernel))


@recipe("ConvTranspose")
def _conv_transpose(g: Growing, op: str) -> None:
    rank, group = g.rng.randint(1, 2), g.rng.choice([1, 1, 2])
    inside, outs = g.rng.randint(1, 3) * group, g.rng.randint(1, 3)
    x = _image(g, rank, inside)
    kernel = g.shape(rank, 1, 3)
    attrs = _window(g, rank, kernel)
    if "strides" in attrs and g.chance(0.4):
        attrs["output_padding"] = [max(s - 1, 0) for s in attrs["strides"]]  # type: ignore[attr-defined]
    w = g.new(g.numbers(np.float32, (inside, outs, *kernel)))
    g.add(op, [x, w], group=group, **attrs)


@recipe("MaxPool", "AveragePool", "LpPool")
def _pool(g: Growing, op: str) -> None:
    rank = g.rng.randint(1, 3)
    x = _image(g, rank, g.rng.randint(1, 3))
    kernel = g.shape(rank, 1, 3)
    attrs = _window(g, rank, kernel, pool=True)
    if op != "MaxPool" and since(g, op) < 18:
        attrs.pop("dilations", None)
    if op != "LpPool" or since(g, op) >= 18:
        attrs["ceil_mode"] = g.rng.choice([0, 1])
    if op == "AveragePool":
        attrs["count_include_pad"] = g.rng.choice([0, 1])
    if op == "LpPool":
        attrs["p"] = g.rng.randint(1, 3)
    outputs = 2 if op == "MaxPool" and g.chance(0.4) else 1
    g.add(op, [x], outputs, kernel_shape=kernel, **attrs)


@recipe("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(g: Growing, op: str) -> None:
    x = _image(g, g.rng.randint(1, 3), g.rng.randint(1, 3))
    g.add(op, [x], p=g.rng.randint(1, 3) if op == "GlobalLpPool" else None)


@recipe("ConvInteger")
def _conv_integer(g: Growing, op: str) -> None:
    rank, inside, outs = 2, g.rng.randint(1, 3), g.rng.randint(1, 3)
    x = g.new(g.numbers(g.type([np.uint8, np.int8]), (1, inside, *g.shape(rank, 3, 6)), -90, 90))
    kernel = g.shape(rank, 1, 3)
    w = g.new(g.numbers(g.type([np.uint8, np.int8]), (outs, inside, *kernel), -90, 90))
    zeros = [g.known(g.rng.randint(0, 9), v.dtype) if g.chance(0.5) else None for v in (x, w)]
    g.add(op, [x, w, *zeros], **_window(g, rank, kernel))
    if not g.values[g.nodes[-1].output[0]].size:  # Elsewhere an error: no window fits.
        g.nodes.pop()
        raise Misfit


@recipe("Resize")
def _resize(g: Growing, op: str) -> None:
    x = g.any([np.float32], ranked(3, 4), lambda: g.shape(g.rng.randint(3, 4), 2, 6))
    rank = len(x.shape)
    mode = g.rng.choice(["nearest", "linear", "cubic"])
    if mode == "cubic" and rank != 4:
        raise Misfit
    places = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
    attrs = {"mode": mode, "coordinate_transformation_mode": g.rng.choice(places)}
    if mode == "nearest":
        ways = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
        attrs["nearest_mode"] = g.rng.choice(ways)
    factors = [1.0, 1.0, *(g.rng.choice([0.5, 0.75, 1.0, 1.5, 2.0, 3.0]) for _ in range(rank - 2))]
    if g.chance(0.5):
        g.add(op, [x, None, g.known(factors, np.float32)], **attrs)
    else:
        sizes = [max(int(d * f), 1) for d, f in zip(x.shape, factors, strict=True)]
        g.add(op, [x, None, None, g.known(sizes)], **attrs)


@recipe("GridSample")
def _grid_sample(g: Growing, op: str) -> None:
    x = _image(g, 2, g.rng.randint(1, 3))
    grid = g.new(g.numbers(np.float32, (x.shape[0], *g.shape(2), 2), -1.3, 1.3))
    modes = ["linear", "nearest", "cubic"] if since(g, op) >= 20 else ["bilinear", "nearest"]
    padding = g.rng.choice(["zeros", "border", "reflection"])
    corners = g.rng.choice([0, 1])
    g.add(op, [x, grid], mode=g.rng.choice(modes), padding_mode=padding, align_corners=corners)


@recipe("RoiAlign")
def _roi_align(g: Growing, op: str) -> None:
    x = _image(g, 2, g.rng.randint(1, 3))
    count = g.rng.randint(1, 3)
    corner = g.numbers(np.float32, (count, 2), 0, 3)
    boxes = g.new(np.concatenate([corner, corner + g.numbers(np.float32, (count, 2), 0.5, 4)], 1))
    batch = g.known(g.numbers(np.int64, (count,), 0, x.shape[0] - 1))
    height, width = g.shape(2, 1, 3)
    g.add(
        op,
        [x, boxes, batch],
        output_height=height,
        output_width=width,
        mode=g.rng.choice(["avg", "max"]),
        sampling_ratio=g.rng.randint(0, 2),
    )


@recipe("Col2Im")
def _col2im(g: Growing, op: str) -> None:
    block, image = g.shape(2, 1, 2), g.shape(2, 2, 5)
    cells = int(np.prod([i - b + 1 for i, b in zip(image, block, strict=True)]))
    x = g.new(g.numbers(np.float32, (1, 2 * int(np.prod(block)), cells)))
    g.add(op, [x, g.known(image), g.known(block)])


# -- recurrences and control flow --------------------------------------------------------------


@recipe("RNN", "GRU", "LSTM")
def _recurrent(g: Growing, op: str) -> None:
    time, batch, size, hidden = g.shape(4, 1, 4)
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    way = g.rng.choice(["forward", "reverse", "bidirectional"])
    ways = 2 if way == "bidirectional" else 1
    x = g.any([np.float32], lambda s: s == (time, batch, size), lambda: (time, batch, size))

    def made(*shape: int) -> Var:
        return g.known(g.numbers(np.float32, shape, -1, 1), np.float32)

    given: list[Var | None] = [
        x,
        made(ways, gates * hidden, size),
        made(ways, gates * hidden, hidden),
    ]
    given.append(made(ways, 2 * gates * hidden) if g.chance(0.7) else None)
    lengths = [g.rng.randint(1, time) for _ in range(batch)]
    given.append(g.known(lengths, np.int32) if g.chance(0.4) else None)
    given.append(made(ways, batch, hidden) if g.chance(0.5) else None)
    if op == "LSTM":
        given += [made(ways, batch, hidden) if g.chance(0.5) else None]
        given += [made(ways, 3 * hidden) if g.chance(0.3) else None]
    before = g.rng.choice([0, 1]) if op == "GRU" else None
    g.add(
        op,
        given,
        g.rng.randint(2, 3 if op == "LSTM" else 2),
        hidden_size=hidden,
        direction=way,
        linear_before_reset=before,
    )


@recipe("If")
def _if(g: Growing, op: str) -> None:
    x = g.any([np.float32], ranked(1, 2), lambda: g.shape(2))
    test = g.new(np.array(g.chance(0.5)))
    out = helper.make_tensor_value_info("b", TensorProto.FLOAT, x.shape)
    scaled = np.asarray(g.numbers(np.float32, ()))
    branches = {}
    for name, kind in (("then_branch", "Mul"), ("else_branch", "Sub")):
        weight = helper.make_tensor("k", TensorProto.FLOAT, [], [float(scaled)])
        node = helper.make_node(kind, [x.name, "k"], ["b"])
        branches[name] = helper.make_graph([node], name, [], [out], [weight])
    g.add(op, [test], outer=[x], **branches)
