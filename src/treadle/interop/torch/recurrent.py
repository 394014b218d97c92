"""Recurrent layers of ATen, turn by turn; what the input gives is one product for all turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from treadle.graph.builder import GraphOperand
from treadle.interop.torch.shaping import extents, part
from treadle.interop.torch.table import OperatorCall, lowers
from treadle.ops import unary
from treadle.ops.matmul import Matmul
from treadle.ops.movement import Concat

V = GraphOperand
State = tuple[V, ...]
Cell = Callable[[V, State, Sequence[V]], State]
"""A turn: what the input gives, the state, and w_hh, b_hh and w_hr, where they are there."""

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Layers that exported programs keep whole; PyTorch takes seconds to write their turns out."""


def _hidden(h: V, weights: Sequence[V]) -> V:
    product = Matmul(False, True)(h, weights[0])
    return product + weights[1] if len(weights) > 1 else product


def _gates(x: V, count: int) -> list[V]:
    width = extents(x)[-1] // count
    return [part(x, 1, i * width, (i + 1) * width) for i in range(count)]


def _lstm_cell(x: V, state: State, weights: Sequence[V]) -> State:
    sigmoid, tanh = unary.Sigmoid(), unary.Tanh()
    i, f, g, o = _gates(x + _hidden(state[0], weights), 4)
    c = sigmoid(f) * state[1] + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


def _gru_cell(x: V, state: State, weights: Sequence[V]) -> State:
    h, sigmoid = state[0], unary.Sigmoid()
    (xr, xz, xn), (hr, hz, hn) = _gates(x, 3), _gates(_hidden(h, weights), 3)
    n = unary.Tanh()(xn + sigmoid(xr + hr) * hn)
    return (n + sigmoid(xz + hz) * (h - n),)


def _plain_cell(activation: Any) -> Cell:
    def cell(x: V, state: State, weights: Sequence[V]) -> State:
        return (activation(x + _hidden(state[0], weights)),)

    return cell


def _direction(
    x: V, state: State, weights: Sequence[V], has_biases: bool, cell: Cell, backward: bool
) -> tuple[V, State]:
    """One layer in one direction over x [time, batch, width]; results and the last state."""
    time, batch, width = extents(x)
    bias = weights[2] if has_biases else None
    given = Matmul(False, True)(x.reshape((time * batch, width)), weights[0])
    given = given if bias is None else given + bias
    rows = given.reshape((time, batch, extents(given)[-1]))
    own, made = [weights[1], *weights[3:4]], []
    for turn in reversed(range(time)) if backward else range(time):
        row = part(rows, 0, turn, turn + 1).reshape(extents(rows)[1:])
        state = cell(row, state, own)
        made.append(state[0].reshape((1, *extents(state[0]))))
    if backward:
        made.reverse()
    return (made[0] if len(made) == 1 else Concat(0)(*made)), state


def _layers(cell: Cell, x: V, states: Sequence[V], *options: Any) -> tuple[V, ...]:
    """All layers; `options` as ATen gives them, from the weights on."""
    weights, has_biases, layers, dropout, train, both, batch_first = options
    if dropout and train:
        raise NotImplementedError("dropout between recurrent layers")
    if x.type.ndim != 3:
        raise NotImplementedError("a recurrent layer without a batch axis")
    directions, count = 1 + both, 4 if has_biases else 2
    if len(weights) != layers * directions * count:
        raise NotImplementedError("projections of recurrent layers")
    y = x.transpose((1, 0, 2)) if batch_first else x
    last: list[list[V]] = [[] for _ in states]
    for layer in range(layers):
        parts = []
        for direction in range(directions):
            at = layer * directions + direction
            own = tuple(part(s, 0, at, at + 1).reshape(extents(s)[1:]) for s in states)
            held = weights[at * count : (at + 1) * count]
            made, state = _direction(y, own, held, has_biases, cell, direction == 1)
            parts.append(made)
            for kept, value in zip(last, state, strict=True):
                kept.append(value.reshape((1, *extents(value))))
        y = parts[0] if len(parts) == 1 else Concat(2)(*parts)
    ends = (kept[0] if len(kept) == 1 else Concat(0)(*kept) for kept in last)
    return (y.transpose((1, 0, 2)) if batch_first else y), *ends


@lowers("lstm.input")
def _lstm(call: OperatorCall, x: V, states: Sequence[V], *options: Any) -> tuple[V, ...]:
    return _layers(_lstm_cell, x, states, *options)


def _one_state(name: str, cell: Cell) -> None:
    def lower(call: OperatorCall, x: V, state: V, *options: Any) -> tuple[V, ...]:
        return _layers(cell, x, (state,), *options)

    lowers(f"{name}.input")(lower)


_one_state("gru", _gru_cell)
_one_state("rnn_tanh", _plain_cell(unary.Tanh()))
_one_state("rnn_relu", _plain_cell(unary.Relu()))
