"""RNN, GRU and LSTM, turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.symbol import Dim
from treadle.interop.onnx.converters.quantized_ops import dynamic_product
from treadle.interop.onnx.converters.shapes import extents, filled, joined, part, reshaped
from treadle.interop.onnx.nodes import OnnxNode, Value, dtype_of
from treadle.interop.onnx.registry import converts
from treadle.jit.control import scan
from treadle.ops import activation, unary
from treadle.ops.matmul import Matmul
from treadle.ops.movement import Flip, Transpose
from treadle.ops.select import Clip, Where

Activation = Callable[[Value], Value]


def _activations(node: OnnxNode, default: Sequence[str], direction: int) -> list[Activation]:
    names = node.attr("activations", list(default) * 2)
    count = len(default)
    chosen = names[direction * count : (direction + 1) * count]
    alphas: list[float] = list(node.attr("activation_alpha", []))
    betas: list[float] = list(node.attr("activation_beta", []))
    return [_activation(n, alphas, betas, node) for n in chosen]


def _activation(name: str, alphas: list[float], betas: list[float], node: OnnxNode) -> Activation:
    simple = {
        "relu": unary.Relu(),
        "tanh": unary.Tanh(),
        "sigmoid": unary.Sigmoid(),
        "softsign": activation.Softsign(),
        "softplus": unary.Softplus(),
    }
    low = name.lower()
    if low in simple:
        return simple[low]
    alpha = alphas.pop(0) if alphas else {"leakyrelu": 0.01, "hardsigmoid": 0.2}.get(low, 1.0)
    if low == "leakyrelu":
        return activation.LeakyRelu(alpha)
    if low == "elu":
        return activation.Elu(alpha)
    beta = betas.pop(0) if betas else {"hardsigmoid": 0.5}.get(low, 1.0)
    if low == "hardsigmoid":
        return lambda x: Clip(0.0, 1.0)(x * alpha + beta)
    if low == "affine":
        return lambda x: x * alpha + beta
    if low == "scaledtanh":
        return lambda x: unary.Tanh()(x * beta) * alpha
    if low == "thresholdedrelu":
        return lambda x: x * (x > alpha).astype(dtype_of(x))
    raise node.refuse(f"activation {name!r} is unknown")


Product = Callable[[Value], Value]
"""Rows times the weights of all gates of one direction."""


def _product(weight: Value, direction: int) -> Product:
    turned = Transpose((1, 0))(_one(weight, direction))
    return lambda x: Matmul()(x, turned)


class _Cell:
    """The products and biases of one direction."""

    def __init__(
        self, node: OnnxNode, direction: int, w: Product, r: Product, b: Value, hidden: int
    ) -> None:
        self.hidden = hidden
        self.w, self.r = w, r
        self.wb = self.rb = None
        if b is not None:
            both = _one(b, direction)
            gates = extents(both)[0] // 2
            self.wb, self.rb = part(both, 0, 0, gates), part(both, 0, gates, 2 * gates)
        limit = node.attributes.get("clip")
        self.clip: Activation = (lambda x: x) if limit is None else Clip(-limit, limit)

    def gate(self, x: Value, number: int) -> Value:
        """One gate's part of what was computed for all."""
        return part(x, 1, number * self.hidden, (number + 1) * self.hidden)

    def from_input(self, x: Value) -> Value:
        """All gates' share of the input, its bias included."""
        y = self.w(x)
        return y if self.wb is None else y + self.wb

    def from_state(self, h: Value) -> Value:
        """All gates' share of the last state, its bias included."""
        y = self.r(h)
        return y if self.rb is None else y + self.rb


def _one(v: Value, i: int) -> Value:
    cut = part(v, 0, i, i + 1)
    return reshaped(cut, extents(cut)[1:])


Step = Callable[[Value, tuple[Value, ...]], tuple[Value, ...]]
"""A turn: from the input's share of all gates and the states to the states."""


def _recur(
    node: OnnxNode,
    x: Value,
    lengths: Array | None,
    initial: Sequence[Value],
    make: Callable[[int], tuple[_Cell, Step]],
    states: int,
) -> tuple[Value, ...]:
    """All directions over [time, batch, ...]: the sequence of states and the last ones.

    The input's share of the gates is one product for all turns, which reads the weights once.
    """
    batch_first = bool(node.attr("layout", 0))
    if batch_first:
        x = Transpose((1, 0, 2))(x)
        initial = [None if v is None else Transpose((1, 0, 2))(v) for v in initial]
    direction = node.attr("direction", "forward")
    ways = [False, True] if direction == "bidirectional" else [direction == "reverse"]
    hidden = int(node.attributes["hidden_size"])
    time, batch = extents(x)[:2]
    zero = filled(x, 0, (batch, hidden), dtype_of(x))
    sequences, lasts = [], []
    for number, backward in enumerate(ways):
        state = tuple(zero if v is None else _one(v, number) for v in initial[:states])
        cell, step = make(number)
        rows, state = _turns(cell.from_input(x), time, lengths, backward, step, state)
        sequences.append(_with_axis(rows, 1))
        lasts.append([_with_axis(s, 0) for s in state])
    y = joined(sequences, 1)
    last = [joined(list(column), 0) for column in zip(*lasts, strict=True)]
    if batch_first:
        y = Transpose((2, 0, 1, 3))(y)
        last = [Transpose((1, 0, 2))(v) for v in last]
    return (y, *last)


def _turns(
    x: Value,
    time: Dim,
    lengths: Array | None,
    backward: bool,
    step: Step,
    state: tuple[Value, ...],
) -> tuple[Value, tuple[Value, ...]]:
    """All turns: their first states, stacked, and the last states. Open time makes them a loop."""
    if lengths is None and not isinstance(time, int):
        return _loop(Flip((0,))(x) if backward else x, backward, step, state)
    rows: list[Value] = [None] * time
    for t in range(time)[::-1] if backward else range(time):
        made = step(_one(x, t), state)
        if lengths is not None and (lengths <= t).any():
            inside = x.constant((lengths > t)[:, None], dt.bool_)
            rows[t] = made[0] * inside.astype(dtype_of(x))
            state = tuple(Where()(inside, a, b) for a, b in zip(made, state, strict=True))
        else:
            rows[t], state = made[0], made
    return joined([_with_axis(r, 0) for r in rows], 0), state


def _loop(
    x: Value, backward: bool, step: Step, state: tuple[Value, ...]
) -> tuple[Value, tuple[Value, ...]]:
    """The turns over what comes first, first, as a loop of the program that is captured."""

    def turn(*held: Value) -> tuple[Value, ...]:
        made = step(held[-1], held[:-1])
        return *made, made[0]

    last, (rows,) = scan(turn, state, (x,))
    return (Flip((0,))(rows) if backward else rows), last


def _with_axis(v: Value, axis: int) -> Value:
    shape = list(extents(v))
    shape.insert(axis, 1)
    return reshaped(v, shape)


@converts("RNN", host=(4,))
def _rnn(
    node: OnnxNode,
    x: Value,
    w: Value,
    r: Value,
    b: Value = None,
    lengths: Array | None = None,
    h: Value = None,
) -> tuple[Value, ...]:
    def make(direction: int) -> tuple[_Cell, Step]:
        hidden = int(node.attributes["hidden_size"])
        cell = _Cell(node, direction, _product(w, direction), _product(r, direction), b, hidden)
        (f,) = _activations(node, ("Tanh",), direction)
        return cell, lambda own, s: (f(cell.clip(own + cell.from_state(s[0]))),)

    return _recur(node, x, lengths, [h], make, 1)


@converts("GRU", host=(4,))
def _gru(
    node: OnnxNode,
    x: Value,
    w: Value,
    r: Value,
    b: Value = None,
    lengths: Array | None = None,
    h: Value = None,
) -> tuple[Value, ...]:
    before = not node.attr("linear_before_reset", 0)

    def make(direction: int) -> tuple[_Cell, Step]:
        n = int(node.attributes["hidden_size"])
        cell = _Cell(node, direction, _product(w, direction), _product(r, direction), b, n)
        f, g = _activations(node, ("Sigmoid", "Tanh"), direction)
        r_h = Transpose((1, 0))(part(_one(r, direction), 0, 2 * n, 3 * n))
        rb_h = None if cell.rb is None else part(cell.rb, 0, 2 * n, 3 * n)

        def step(own: Value, s: tuple[Value, ...]) -> tuple[Value, ...]:
            last = cell.from_state(s[0])
            z = f(cell.clip(cell.gate(own, 0) + cell.gate(last, 0)))
            reset = f(cell.clip(cell.gate(own, 1) + cell.gate(last, 1)))
            if before:
                inner = Matmul()(reset * s[0], r_h)
                inner = inner if rb_h is None else inner + rb_h
            else:
                inner = reset * cell.gate(last, 2)
            new = g(cell.clip(cell.gate(own, 2) + inner))
            return ((1 - z) * new + z * s[0],)

        return cell, step

    return _recur(node, x, lengths, [h], make, 1)


@converts("LSTM", host=(4,))
def _lstm(
    node: OnnxNode,
    x: Value,
    w: Value,
    r: Value,
    b: Value = None,
    lengths: Array | None = None,
    h: Value = None,
    c: Value = None,
    p: Value = None,
) -> tuple[Value, ...]:
    products = [(_product(w, i), _product(r, i)) for i in range(extents(w)[0])]
    return _lstm_of(node, x, products, b, lengths, h, c, p)


def _lstm_of(
    node: OnnxNode,
    x: Value,
    products: Sequence[tuple[Product, Product]],
    b: Value,
    lengths: Array | None,
    h: Value,
    c: Value,
    p: Value,
) -> tuple[Value, ...]:
    def make(direction: int) -> tuple[_Cell, Step]:
        cell = _Cell(node, direction, *products[direction], b, int(node.attributes["hidden_size"]))
        f, g, last = _activations(node, ("Sigmoid", "Tanh", "Tanh"), direction)
        peep = None if p is None else _one(p, direction)

        def looked(i: int, state: Value) -> Value:
            n = cell.hidden
            return 0 if peep is None else part(peep, 0, i * n, (i + 1) * n) * state

        def step(own: Value, s: tuple[Value, ...]) -> tuple[Value, ...]:
            hidden, memory = s
            all_gates = own + cell.from_state(hidden)
            i = f(cell.clip(cell.gate(all_gates, 0) + looked(0, memory)))
            if node.attr("input_forget", 0):
                keep = 1 - i
            else:
                keep = f(cell.clip(cell.gate(all_gates, 2) + looked(2, memory)))
            new = keep * memory + i * g(cell.clip(cell.gate(all_gates, 3)))
            o = f(cell.clip(cell.gate(all_gates, 1) + looked(1, new)))
            return o * last(new), new

        return cell, step

    return _recur(node, x, lengths, [h, c], make, 2)


@converts("DynamicQuantizeLSTM", domain="com.microsoft", host=(4,))
def _dynamic_lstm(
    node: OnnxNode,
    x: Value,
    w: Value,
    r: Value,
    b: Value = None,
    lengths: Array | None = None,
    h: Value = None,
    c: Value = None,
    p: Value = None,
    *steps: Value,
) -> tuple[Value, ...]:
    """Run an LSTM whose inputs and states are rounded to bytes and multiplied as integers."""

    def product(weight: Value, i: int, scale: Value, zero: Value = None) -> Product:
        own = [None if v is None else reshaped(_one(v, i), (-1,)) for v in (scale, zero)]
        return partial(dynamic_product, w=_one(weight, i), scale=own[0], zero=own[1])

    each = range(extents(w)[0])
    products = [(product(w, i, *steps[:2]), product(r, i, *steps[2:])) for i in each]
    return _lstm_of(node, x, products, b, lengths, h, c, p)
