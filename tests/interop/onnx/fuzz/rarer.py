"""Recipes of rarer operators: integers with scales, signals, sequences, ONNX Runtime's own."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper
from tests.interop.onnx.fuzz.growing import RUNTIME, Array, Growing, Var
from tests.interop.onnx.fuzz.recipes import axis_of, ranked, recipe

BYTES = (np.uint8, np.int8)


def _levels(g: Growing, kind: Any, shape: tuple[int, ...], known: bool | None = None) -> list[Var]:
    """Integers, their scale and their zero point."""
    made = g.numbers(kind, shape, -90, 90)
    return [g.new(made, known=known), *_grid(g, kind)]


def _grid(g: Growing, kind: Any) -> list[Var]:
    scale = g.known(g.rng.choice([0.0613717, 0.1273213, 0.5110937]), np.float32)
    zero = g.rng.randint(0, 200) if kind is np.uint8 else g.rng.randint(-40, 40)
    return [scale, g.known(zero, kind)]


# -- integers ----------------------------------------------------------------------------------


@recipe("QLinearMatMul")
def _qlinear_matmul(g: Growing, op: str) -> None:
    m, k, n = g.shape(3)
    lead, kind = g.shape(g.rng.randint(0, 1)), g.rng.choice(BYTES)
    a, b = _levels(g, kind, (*lead, m, k)), _levels(g, kind, (*lead, k, n))
    g.add(op, [*a, *b, *_grid(g, kind)])


@recipe("QLinearConv")
def _qlinear_conv(g: Growing, op: str) -> None:
    groups, kind = g.rng.choice([1, 1, 2]), g.rng.choice(BYTES)
    inside, outs = groups * g.rng.randint(1, 3), groups * g.rng.randint(1, 3)
    x = _levels(g, kind, (g.rng.randint(1, 2), inside, *g.shape(2, 3, 7)), False)
    w = g.known(g.numbers(np.int8, (outs, inside // groups, 3, 2), -60, 60), np.int8)
    by_channel = g.chance(0.4)
    scale = g.known(np.full(outs, 0.125) if by_channel else 0.125, np.float32)
    zero = g.known(np.zeros(outs if by_channel else ()), np.int8)
    bias = g.known(g.numbers(np.int32, (outs,), -99, 99), np.int32) if g.chance(0.5) else None
    y = [g.known(1.9037191, np.float32), _grid(g, kind)[1]]
    pads, strides = [g.rng.randint(0, 1) for _ in range(4)], [g.rng.randint(1, 2) for _ in range(2)]
    g.add(op, [*x, w, scale, zero, *y, bias], pads=pads, strides=strides, group=groups)


@recipe("QGemm", domain=RUNTIME)
def _qgemm(g: Growing, op: str) -> None:
    m, k, n = g.shape(3)
    turned, kind = g.rng.choice([0, 1]), g.rng.choice(BYTES)
    a = _levels(g, kind, (m, k), False)
    b = _levels(g, kind, (n, k) if turned else (k, n), True)
    bias = g.known(g.numbers(np.int32, (n,), -50, 50), np.int32) if g.chance(0.5) else None
    y = [g.known(3.7113719, np.float32), _grid(g, kind)[1]] if g.chance(0.7) else []
    g.add(op, [*a, *b, bias, *y], domain=RUNTIME, transB=turned, alpha=1.0)


@recipe("QLinearAdd", "QLinearMul", domain=RUNTIME)
def _qlinear_binary(g: Growing, op: str) -> None:
    shape, kind = g.shape(g.rng.randint(1, 4)), g.rng.choice(BYTES)
    other = shape if g.chance(0.6) else shape[-1:]
    y = [g.known(1.9037191, np.float32), _grid(g, kind)[1]]
    g.add(op, [*_levels(g, kind, shape), *_levels(g, kind, other), *y], domain=RUNTIME)


# Not QLinearSoftmax and QLinearGlobalAveragePool: ONNX Runtime's are off by a level now and then.
@recipe("QLinearSigmoid", "QLinearLeakyRelu", domain=RUNTIME)
def _qlinear_unary(g: Growing, op: str) -> None:
    kind = g.rng.choice(BYTES)
    shape = g.shape(g.rng.randint(2, 3))
    y = [g.known(1 / 250.3719, np.float32), g.known(0 if kind is np.uint8 else -128, kind)]
    end = _grid(g, kind) if op == "QLinearLeakyRelu" else y
    g.add(op, [*_levels(g, kind, shape), *end], domain=RUNTIME)


@recipe("QLinearAveragePool", domain=RUNTIME)
def _qlinear_pool(g: Growing, op: str) -> None:
    kind = g.rng.choice(BYTES)
    x = _levels(g, kind, (*g.shape(2, 1, 3), *g.shape(2, 3, 6)))
    how = {"kernel_shape": [2, 2], "strides": [g.rng.randint(1, 2), 1], "pads": [0, 1, 0, 0]}
    end = [g.known(0.2371171, np.float32), _grid(g, kind)[1]]  # Means of equal grids would be ties.
    g.add(op, [*x, *end], domain=RUNTIME, **how)


@recipe("QLinearConcat", domain=RUNTIME)
def _qlinear_concat(g: Growing, op: str) -> None:
    shape, kind = g.shape(3), g.rng.choice(BYTES)
    parts = [v for _ in range(g.rng.randint(1, 3)) for v in _levels(g, kind, shape)]
    g.add(op, [*_grid(g, kind), *parts], domain=RUNTIME, axis=g.rng.randint(0, 2))


@recipe("MatMulIntegerToFloat", "DynamicQuantizeMatMul", domain=RUNTIME)
def _integer_products(g: Growing, op: str) -> None:
    m, k, n = g.shape(3)
    b, scale, zero = _levels(g, np.uint8, (k, n), True)
    bias = g.new(g.numbers(np.float32, (n,))) if g.chance(0.5) else None
    if op == "DynamicQuantizeMatMul":
        a = g.any([np.float32], lambda s: len(s) > 1 and s[-1] == k, lambda: (m, k))
        return g.add(op, [a, b, scale, zero, bias], domain=RUNTIME)
    a, sa, za = _levels(g, np.uint8, (m, k))
    return g.add(op, [a, b, sa, scale, za, zero, bias], domain=RUNTIME)


# -- kernels of ONNX Runtime -------------------------------------------------------------------


@recipe("MultiHeadAttention", domain=RUNTIME)
def _multi_head(g: Growing, op: str) -> None:
    n, t, s, h, d = (g.rng.randint(1, 4) for _ in range(5))
    e = h * d

    def drawn(*shape: int) -> Var:
        return g.new(g.numbers(np.float32, shape))

    bias = drawn(3 * e) if g.chance(0.4) else None
    past = g.chance(0.3)
    before = g.rng.randint(1, 3) if past else 0
    mask = None
    if g.chance(0.4):
        kept = np.ones((n, before + s), np.int32)
        kept[:, g.rng.randint(1, before + s) :] = 0
        mask = g.new(kept)
    added = drawn(1, h, t, before + s) if g.chance(0.4) else None
    operands = [drawn(n, t, e), drawn(n, s, e), drawn(n, s, e), bias, mask, added]
    if past:
        operands += [drawn(n, h, before, d), drawn(n, h, before, d)]
    scale = 0.5 if g.chance(0.3) else None
    turned = 1 if g.chance(0.2) and t == s else None
    g.add(op, operands, 3 if past else 1, RUNTIME, num_heads=h, scale=scale, unidirectional=turned)


# -- signals, images, sequences ----------------------------------------------------------------


@recipe("DFT")
def _dft(g: Growing, op: str) -> None:
    n, parts = g.rng.randint(2, 9), g.rng.choice([1, 2])
    x = g.new(g.numbers(np.float32, (g.rng.randint(1, 3), n, parts)))
    inverse = int(parts == 2 and g.chance(0.4))
    onesided = int(parts == 1 and g.chance(0.5))
    if g.opset >= 20:
        return g.add(op, [x, None, g.known(1)], inverse=inverse, onesided=onesided)
    return g.add(op, [x], axis=1, inverse=inverse, onesided=onesided)


@recipe("STFT")
def _stft(g: Growing, op: str) -> None:
    n = g.rng.choice([8, 12])
    x = g.new(g.numbers(np.float32, (g.rng.randint(1, 2), 3 * n, 1)))
    window = g.known(np.hanning(n + 1)[:-1], np.float32)
    g.add(op, [x, g.known(g.rng.randint(2, n)), window, g.known(n)], onesided=1)


@recipe("MelWeightMatrix")
def _mel(g: Growing, op: str) -> None:
    given = (g.rng.randint(2, 8), 16, 8000, 10.0, 3000.0)
    kinds = (np.int64, np.int64, np.int64, np.float32, np.float32)
    g.add(op, [g.known(v, k) for v, k in zip(given, kinds, strict=True)])


@recipe("DeformConv")
def _deform(g: Growing, op: str) -> None:
    n, c, o = g.rng.randint(1, 2), g.rng.randint(1, 3), g.rng.randint(1, 3)
    h, w = g.shape(2, 4, 6)
    x, weight = g.new(g.numbers(np.float32, (n, c, h, w))), g.numbers(np.float32, (o, c, 3, 2))
    rows, columns = h, w - 1
    offset = g.new(g.numbers(np.float32, (n, 12, rows, columns), -1.4, 1.4))
    bias = g.new(g.numbers(np.float32, (o,))) if g.chance(0.5) else None
    mask = g.new(g.numbers(np.float32, (n, 6, rows, columns), 0, 1)) if g.chance(0.5) else None
    g.add(op, [x, g.new(weight), offset, bias, mask], kernel_shape=[3, 2], pads=[1, 0, 1, 0])


@recipe("MaxUnpool")
def _unpool(g: Growing, op: str) -> None:
    n, c, h, w = g.shape(4, 1, 3)
    x = g.new(g.numbers(np.float32, (n, c, h, w)))
    places = np.arange(n * c * 4 * h * w).reshape(n * c, h, 2, w, 2)[
        :, :, 1, :, g.rng.choice([0, 1])
    ]
    g.add(op, [x, g.new(places.reshape(n, c, h, w))], kernel_shape=[2, 2], strides=[2, 2])


@recipe("TensorScatter")
def _tensor_scatter(g: Growing, op: str) -> None:
    n, s, d = g.rng.randint(1, 3), g.rng.randint(2, 6), g.rng.randint(1, 4)
    count = g.rng.randint(1, s)
    x, update = g.new(g.numbers(np.float32, (n, s, d))), g.new(g.numbers(np.float32, (n, count, d)))
    starts = g.known([g.rng.randint(0, s - count) for _ in range(n)])
    g.add(op, [x, update, starts], axis=1)


@recipe("SplitToSequence")
def _sequence(g: Growing, op: str) -> None:
    """A sequence lives within a branch, since values between nodes are tensors here."""
    x = g.any([np.float32], lambda s: len(s) > 0 and s[0] > 1, lambda: g.shape(2, 2, 5))
    axis, at = 0, g.rng.randint(0, 1)
    nodes = [helper.make_node("SplitToSequence", [x.name], ["parts"], axis=axis)]
    where = helper.make_node("Constant", [], ["at"], value_int=at)
    ends = (
        [where, helper.make_node("SequenceAt", ["parts", "at"], ["y"])],
        [helper.make_node("ConcatFromSequence", ["parts"], ["y"], axis=axis)],
        [
            where,
            helper.make_node("SequenceErase", ["parts", "at"], ["rest"]),
            helper.make_node("SequenceInsert", ["rest", x.name], ["more"]),
            helper.make_node("ConcatFromSequence", ["more"], ["y"], axis=axis),
        ],
        [helper.make_node("SequenceLength", ["parts"], ["y"])],
        [
            helper.make_node("SequenceConstruct", [x.name, x.name], ["two"]),
            helper.make_node("ConcatFromSequence", ["two"], ["y"], axis=axis, new_axis=1),
        ],
    )
    nodes += g.rng.choice(ends)
    kind = 7 if nodes[-1].op_type == "SequenceLength" else 1
    result = helper.make_tensor_value_info("y", kind, None)
    same = [helper.make_node("Identity", [n.name], ["z"]) for n in (x,)] if kind == 1 else []
    if not same:
        same = [helper.make_node("Size", [x.name], ["z"])]
    other = helper.make_tensor_value_info("z", kind, None)
    g.add(
        "If",
        [g.known(True, np.bool_)],
        outer=[x],
        then_branch=helper.make_graph(nodes, "then", [], [result]),
        else_branch=helper.make_graph(same, "else", [], [other]),
    )


# -- ai.onnx.ml --------------------------------------------------------------------------------

ML = "ai.onnx.ml"


@recipe("Binarizer", domain=ML)
def _binarizer(g: Growing, op: str) -> None:
    g.add(op, [g.any([np.float32])], domain=ML, threshold=g.rng.choice([0.0, 0.5]))


@recipe("ArrayFeatureExtractor", domain=ML)
def _extractor(g: Growing, op: str) -> None:
    x = g.any([np.float32], ranked(2, 3), lambda: g.shape(2))
    axis_of(g, x)
    at: Array = g.numbers(np.int64, (1, g.rng.randint(1, 4)), 0, x.shape[-1] - 1)
    g.add(op, [x, g.new(at)], domain=ML)


@recipe("LabelEncoder", domain=ML)
def _labels(g: Growing, op: str) -> None:
    x = g.known(g.numbers(np.int64, g.shape(2)))  # A table of the host.
    keys = {"keys_int64s": [-1, 0, 2], "values_floats": [0.5, 1.5, -2.0], "default_float": 9.0}
    g.add(op, [x], domain=ML, **keys)
