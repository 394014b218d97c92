"""Gated recurrent units (Cho et al., 2014)."""

from __future__ import annotations

import treadle.functional as F
from treadle.module.rnn import RNNBase, RNNCellBase, State, zeros_of
from treadle.tensor import Tensor


class GRUCell(RNNCellBase):
    """One step of a gated recurrent unit.

    With the blocks of rows r, z, n in this order, a = W_ih x + b_ih and b = W_hh h + b_hh:
    r = sigmoid(a_r + b_r); z = sigmoid(a_z + b_z); n = tanh(a_n + r b_n);
    h' = (1 - z) n + z h. `forward(input, hx=None)` takes x (N, input_size) and h (N, hidden_size),
    zeros if left out, and returns h' (N, hidden_size).

    Args:
        input_size: features of the input.
        hidden_size: features of the state.
        bias: whether to add trainable biases; without them they are buffers of zeros.

    Parameters: `weight_ih` (3 hidden, input), `weight_hh` (3 hidden, hidden), `bias_ih` and
    `bias_hh` (3 hidden,); all uniform over +-1 / sqrt(hidden_size).

    Raises:
        ShapeError: the input does not fit.
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size, bias, 3)

    def _from_input(self, x: Tensor) -> Tensor:
        # The bias of the state's share stays there: r multiplies a part of it.
        return F.linear(x, self.weight_ih, self.bias_ih if self.bias else None)

    def _turn(self, state: State, gates: Tensor) -> State:
        (h,) = state
        own = F.linear(h, self.weight_hh, self.bias_hh if self.bias else None)
        size = self.hidden_size
        r, z = F.split(F.sigmoid(gates[:, : 2 * size] + own[:, : 2 * size]), 2, axis=1)
        n = F.tanh(gates[:, 2 * size :] + r * own[:, 2 * size :])
        return (n + z * (h - n),)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        input = self._checked(input)
        h = zeros_of((input.shape[0], self.hidden_size), input) if hx is None else hx
        return self._turn((h,), self._from_input(input))[0]


class GRU(RNNBase):
    """Gated recurrent units over sequences, in layers.

    `forward(input, hx=None)` takes x (T, N, input_size), or (N, T, input_size) with `batch_first`,
    and h (num_layers * D, N, hidden_size), zeros if left out; D is 2 for both directions, else 1.
    It returns the last layer's states at all moments (T, N, D * hidden_size), or with N first, and
    every layer's last states, of the shape of h. `cells` holds a list of `GRUCell` per layer.

    Args:
        input_size: features of the input.
        hidden_size: features of the state.
        num_layers: layers, each fed by the one before.
        bias: whether cells have trainable biases.
        batch_first: whether the batch is the first axis of input and output.
        dropout: probability of zero between layers in training, in [0, 1).
        bidirectional: run every layer forwards and backwards, and join both.
        name: a name for messages and graphs.

    Raises:
        ValueError: an argument is out of its range.
        ShapeError: the input or the state does not fit.
    """

    _states = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0,
        bidirectional: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            name=name,
        )

    def create_cell(self, layer: int) -> RNNCellBase:
        """The cell of a layer, in one direction."""
        return GRUCell(self._layer_input(layer), self.hidden_size, self.bias)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        out, (h,) = self._run(input, None if hx is None else (hx,))
        return out, h
