"""How nodes are drawn that hold graphs, and those of ONNX Runtime's own domain."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper
from tests.interop.onnx.fuzz.growing import RUNTIME, Growing
from tests.interop.onnx.fuzz.recipes import recipe


def _info(name: str, shape: tuple[int, ...], code: int = TensorProto.FLOAT) -> object:
    return helper.make_tensor_value_info(name, code, shape)


@recipe("Loop")
def _loop(g: Growing, op: str) -> None:
    shape = g.shape(g.rng.randint(1, 2))
    x = g.any([np.float32], lambda s: s == shape, lambda: shape)
    kind = g.rng.choice(["Add", "Sub", "Max"])
    nodes = [
        helper.make_node("Identity", ["on"], ["again"]),
        helper.make_node(kind, ["a", "k"], ["b"]),
        helper.make_node("Tanh", ["b"], ["row"]),
    ]
    weight = helper.make_tensor("k", TensorProto.FLOAT, [], [0.3])
    body = helper.make_graph(
        nodes,
        "body",
        [_info("turn", (), 7), _info("on", (), 9), _info("a", shape)],
        [_info("again", (), 9), _info("b", shape), _info("row", shape)],
        [weight],
    )
    g.add(op, [g.known(g.rng.randint(1, 4)), None, x], 2, body=body)


@recipe("Scan")
def _scan(g: Growing, op: str) -> None:
    time, width = g.shape(2)
    state = g.any([np.float32], lambda s: s == (width,), lambda: (width,))
    rows = g.any([np.float32], lambda s: s == (time, width), lambda: (time, width))
    nodes = [
        helper.make_node(g.rng.choice(["Add", "Mul", "Min"]), ["s", "e"], ["next"]),
        helper.make_node("Sigmoid", ["next"], ["out"]),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [_info("s", (width,)), _info("e", (width,))],
        [_info("next", (width,)), _info("out", (width,))],
    )
    turned = {"scan_input_directions": [1]} if g.chance(0.4) else {}
    g.add(op, [state, rows], 2, body=body, num_scan_inputs=1, **turned)


@recipe("Attention", domain=RUNTIME)
def _attention(g: Growing, op: str) -> None:
    batch, length, heads, size = g.shape(4, 1, 4)
    width = heads * size
    x = g.any([np.float32], lambda s: s == (batch, length, width), lambda: (batch, length, width))
    weights = g.new(g.numbers(np.float32, (width, 3 * width), -1, 1))
    bias = g.new(g.numbers(np.float32, (3 * width,), -1, 1))
    mask = None
    if g.chance(0.5):
        kept = g.numbers(np.int32, (batch, length), 0, 1)
        kept[:, 0] = 1
        mask = g.new(kept)
    one_way = g.rng.choice([None, 1]) if mask is None else None
    g.add(op, [x, weights, bias, mask], domain=RUNTIME, num_heads=heads, unidirectional=one_way)


@recipe("FusedConv", domain=RUNTIME)
def _fused_conv(g: Growing, op: str) -> None:
    inside, outs = g.shape(2, 1, 3)
    x = g.new(g.numbers(np.float32, (1, inside, *g.shape(2, 3, 6))))
    w = g.new(g.numbers(np.float32, (outs, inside, 3, 3)))
    bias = g.new(g.numbers(np.float32, (outs,))) if g.chance(0.5) else None
    name = g.rng.choice(["Relu", "Tanh", "Sigmoid"])
    g.add(op, [x, w, bias], domain=RUNTIME, activation=name, pads=[1] * 4)


@recipe("FusedGemm", domain=RUNTIME)
def _fused_gemm(g: Growing, op: str) -> None:
    m, k, n = g.shape(3)
    given = [g.new(g.numbers(np.float32, s)) for s in ((m, k), (k, n), (n,))]
    g.add(op, given, domain=RUNTIME, activation=g.rng.choice(["Relu", "Tanh"]))


@recipe("EmbedLayerNormalization", domain=RUNTIME)
def _embed(g: Growing, op: str) -> None:
    batch, length, width = g.shape(3, 1, 5)
    ids = g.new(g.numbers(np.int32, (batch, length), 0, 5))
    kinds = g.new(g.numbers(np.int32, (batch, length), 0, 1))
    tables = [g.new(g.numbers(np.float32, (n, width))) for n in (6, length + 1, 2)]
    norm = [g.new(g.numbers(np.float32, (width,))) for _ in range(2)]
    mask = g.new(g.numbers(np.int32, (batch, length), 0, 1)) if g.chance(0.4) else None
    g.add(op, [ids, kinds, *tables, *norm, mask], 2, domain=RUNTIME, epsilon=1e-5)


@recipe("DynamicQuantizeLSTM", domain=RUNTIME)
def _quantized_lstm(g: Growing, op: str) -> None:
    time, batch, size, hidden = g.shape(4, 1, 4)
    x = g.any([np.float32], lambda s: s == (time, batch, size), lambda: (time, batch, size))
    # Two products of bytes with larger weights overflow ONNX Runtime's sums of 16 bits on AVX2.
    w, r = (
        g.known(g.numbers(np.int8, (1, k, 4 * hidden), -64, 63), np.int8) for k in (size, hidden)
    )
    bias = g.known(g.numbers(np.float32, (1, 8 * hidden), -1, 1), np.float32)
    steps = [g.known([0.01], np.float32), g.known([0], np.int8)] * 2
    given = [x, w, r, bias, None, None, None, None, *steps]
    g.add(op, given, 2, domain=RUNTIME, hidden_size=hidden)
