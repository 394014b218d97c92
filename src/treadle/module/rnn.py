"""Recurrent layers: Elman's network, and long short-term memory (Hochreiter and Schmidhuber, 1997).

The products with the inputs of all moments are one matrix product; only what depends on the state
before runs moment by moment.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

import treadle.functional as F
from treadle.base.errors import ShapeError
from treadle.base.modes import capturing
from treadle.functional.arguments import as_tensor
from treadle.jit.control import scan
from treadle.module import init
from treadle.module.module import Module
from treadle.module.window import require_size
from treadle.tensor import Parameter, Tensor

State = tuple[Tensor, ...]

_UNROLLED = 64
"""Longest sequence that a compiled program unrolls, which runs faster and compiles slower. One of
open length is a loop."""


class RNNCellBase(Module):
    """Weights of one recurrent cell, with one block of rows per gate."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        num_chunks: int,
        name: str | None = None,
        *,
        output_size: int | None = None,
    ) -> None:
        super().__init__(name)
        require_size(input_size, f"{type(self).__name__}: input_size")
        require_size(hidden_size, f"{type(self).__name__}: hidden_size", least=1)
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        self.gate_hidden_size = rows = num_chunks * hidden_size
        # What comes back as state is narrower than the cell where it is projected.
        width = hidden_size if output_size is None else output_size
        make = Parameter if bias else Tensor
        self.weight_ih = Parameter(np.zeros((rows, input_size), np.float32))
        self.weight_hh = Parameter(np.zeros((rows, width), np.float32))
        self.bias_ih = make(np.zeros(rows, np.float32))
        self.bias_hh = make(np.zeros(rows, np.float32))
        self.weight_hr: Parameter | None = None
        if output_size is not None:
            self.weight_hr = Parameter(np.zeros((output_size, hidden_size), np.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters uniformly from +-1 / sqrt(hidden_size)."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    @abc.abstractmethod
    def _turn(self, state: State, gates: Tensor) -> State:
        """The state after a moment, given that before it and the gates' sums (N, rows)."""

    def _from_input(self, x: Tensor) -> Tensor:
        """The inputs' share of the gates' sums, for x (..., input_size)."""
        return F.linear(x, self.weight_ih, self.bias_ih + self.bias_hh if self.bias else None)

    def _sums(self, state: State, gates: Tensor) -> Tensor:
        """All of the gates' sums."""
        return gates + F.linear(state[0], self.weight_hh)

    def _checked(self, given: Any) -> Tensor:
        """One moment of each sequence, as a tensor."""
        x = as_tensor(given)
        if x.ndim != 2 or x.shape[1] != self.input_size:
            raise ShapeError(
                type(self).__name__,
                f"expects (N, {self.input_size})",
                saw=str(x.type),
                hint="pass one moment of each sequence",
            )
        return x

    def _module_info_string(self) -> str:
        return f"input_size={self.input_size}, hidden_size={self.hidden_size}, bias={self.bias}"


class RNNCell(RNNCellBase):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh) (Elman, 1990), or relu in the place of tanh.

    `forward(input, hx=None)` takes x (N, input_size) and h (N, hidden_size), zeros if left out,
    and returns h' (N, hidden_size).

    Args:
        input_size: features of the input.
        hidden_size: features of the state.
        bias: whether to add trainable biases; without them they are buffers of zeros.
        nonlinearity: "tanh" or "relu".

    Parameters: `weight_ih` (hidden, input), `weight_hh` (hidden, hidden), `bias_ih` and `bias_hh`
    (hidden,); all uniform over +-1 / sqrt(hidden_size).

    Raises:
        ValueError: there is no such nonlinearity.
        ShapeError: the input does not fit.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
    ) -> None:
        if nonlinearity not in _NONLINEAR:
            known = ", ".join(_NONLINEAR)
            raise ValueError(f"nonlinearity must be one of {known}; got {nonlinearity!r}")
        self.nonlinearity = nonlinearity
        super().__init__(input_size, hidden_size, bias, 1)

    def _turn(self, state: State, gates: Tensor) -> State:
        return (_NONLINEAR[self.nonlinearity](self._sums(state, gates)),)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        input = self._checked(input)
        h = zeros_of((input.shape[0], self.hidden_size), input) if hx is None else hx
        return self._turn((h,), self._from_input(input))[0]


class LSTMCell(RNNCellBase):
    """One step of long short-term memory.

    With the sums i, f, g, o = W_ih x + b_ih + W_hh h + b_hh, four blocks of rows in this order:
    c' = sigmoid(f) c + sigmoid(i) tanh(g); h' = sigmoid(o) tanh(c'). `forward(input, hx=None)`
    takes x (N, input_size) and (h, c), both (N, hidden_size), zeros if left out, and returns
    (h', c').

    Args:
        input_size: features of the input.
        hidden_size: features of the state.
        bias: whether to add trainable biases; without them they are buffers of zeros.

    Parameters: `weight_ih` (4 hidden, input), `weight_hh` (4 hidden, hidden), `bias_ih` and
    `bias_hh` (4 hidden,); all uniform over +-1 / sqrt(hidden_size).

    Raises:
        ShapeError: the input does not fit.
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size, bias, 4)

    def _turn(self, state: State, gates: Tensor) -> State:
        return _lstm_turn(self, state, gates)

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        input = self._checked(input)
        zeros = (input.shape[0], self.hidden_size)
        state = (zeros_of(zeros, input), zeros_of(zeros, input)) if hx is None else tuple(hx)
        h, c = self._turn(state, self._from_input(input))
        return h, c


class _ProjectedLSTMCell(RNNCellBase):
    """An LSTM cell whose h is multiplied by `weight_hr` (Sak et al., 2014)."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool, proj_size: int) -> None:
        super().__init__(input_size, hidden_size, bias, 4, output_size=proj_size)

    def _turn(self, state: State, gates: Tensor) -> State:
        h, c = _lstm_turn(self, state, gates)
        return (h if self.weight_hr is None else F.linear(h, self.weight_hr)), c

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor]) -> State:
        return self._turn(tuple(hx), self._from_input(input))


def _lstm_turn(cell: RNNCellBase, state: State, gates: Tensor) -> State:
    i, f, g, o = F.split(cell._sums(state, gates), 4, axis=1)
    c = F.sigmoid(f) * state[1] + F.sigmoid(i) * F.tanh(g)
    return F.sigmoid(o) * F.tanh(c), c


_NONLINEAR: dict[str, Callable[[Tensor], Tensor]] = {"tanh": F.tanh, "relu": F.relu}


class RNNBase(Module):
    """Layers of recurrent cells, run over sequences in one direction or both."""

    _states: ClassVar[int]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0,
        bidirectional: bool = False,
        proj_size: int = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        require_size(num_layers, f"{type(self).__name__}: num_layers", least=1)
        if isinstance(dropout, bool) or not 0 <= dropout < 1:
            raise ValueError(f"{type(self).__name__}: dropout must be in [0, 1), got {dropout!r}")
        if not 0 <= proj_size < hidden_size:
            raise ValueError(
                f"{type(self).__name__}: proj_size must be 0 or smaller than hidden_size, "
                f"got {proj_size} beside {hidden_size}"
            )
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.num_directions = 2 if bidirectional else 1
        self.proj_size = proj_size
        self.cells = [
            [self.create_cell(layer) for _ in range(self.num_directions)]
            for layer in range(num_layers)
        ]

    @abc.abstractmethod
    def create_cell(self, layer: int) -> RNNCellBase:
        """The cell of a layer, in one direction."""

    def reset_parameters(self) -> None:
        """Draw all parameters uniformly from +-1 / sqrt(hidden_size)."""
        for row in self.cells:
            for cell in row:
                cell.reset_parameters()

    @property
    def _width(self) -> int:
        """Features of what one direction puts out."""
        return self.proj_size or self.hidden_size

    def _layer_input(self, layer: int) -> int:
        return self.num_directions * self._width if layer else self.input_size

    def _run(self, given: Any, state: State | None) -> tuple[Tensor, State]:
        """All layers over the input: the last one's outputs, and all last states."""
        x = as_tensor(given)
        if x.ndim != 3 or x.shape[2] != self.input_size:
            wanted = "(N, T, {})" if self.batch_first else "(T, N, {})"
            raise ShapeError(
                type(self).__name__,
                f"expects {wanted.format(self.input_size)}",
                saw=str(x.type),
                hint="give a single sequence a batch axis of 1",
            )
        x = x.transpose(1, 0, 2) if self.batch_first else x
        first = self._first_state(x, state)
        lasts: list[State] = []
        for layer, cells in enumerate(self.cells):
            if layer and self.dropout and self.training:
                x = F.dropout(x, self.dropout, training=True)
            begin = layer * self.num_directions
            outs = []
            for way, cell in enumerate(cells):
                held = tuple(s[begin + way] for s in first)
                out, last = _over_time(cell, x, held, backwards=way == 1)
                outs.append(out)
                lasts.append(last)
            x = outs[0] if len(outs) == 1 else F.concat(outs, axis=2)
        ends = tuple(F.stack([last[i] for last in lasts]) for i in range(self._states))
        return (x.transpose(1, 0, 2) if self.batch_first else x), ends

    def _first_state(self, x: Tensor, state: State | None) -> State:
        count = self.num_layers * self.num_directions
        widths = (self._width, self.hidden_size)[: self._states]
        shapes = [(count, x.shape[1], width) for width in widths]
        if state is None:
            return tuple(zeros_of(shape, x) for shape in shapes)
        for given, shape in zip(state, shapes, strict=True):
            if tuple(given.shape) != shape:
                raise ShapeError(
                    type(self).__name__,
                    f"expects a state of shape {shape}",
                    saw=str(given.type),
                    hint="(num_layers * num_directions, N, features), batch_first or not",
                )
        return state

    def _module_info_string(self) -> str:
        parts = [f"{self.input_size}, {self.hidden_size}"]
        parts += [f"num_layers={self.num_layers}"] if self.num_layers != 1 else []
        parts += [f"proj_size={self.proj_size}"] if self.proj_size else []
        parts += ["bias=False"] if not self.bias else []
        parts += ["batch_first=True"] if self.batch_first else []
        parts += [f"dropout={self.dropout}"] if self.dropout else []
        parts += ["bidirectional=True"] if self.bidirectional else []
        return ", ".join(parts)


class RNN(RNNBase):
    """Elman networks over sequences, in layers.

    `forward(input, hx=None)` takes x (T, N, input_size), or (N, T, input_size) with `batch_first`,
    and h (num_layers * D, N, hidden_size), zeros if left out; D is 2 for both directions, else 1.
    It returns the last layer's states at all moments (T, N, D * hidden_size), or with N first, and
    every layer's last states, of the shape of h. `cells` holds a list of `RNNCell` per layer.

    Args:
        input_size: features of the input.
        hidden_size: features of the state.
        num_layers: layers, each fed by the one before.
        bias: whether cells have trainable biases.
        batch_first: whether the batch is the first axis of input and output.
        dropout: probability of zero between layers in training, in [0, 1).
        bidirectional: run every layer forwards and backwards, and join both.
        proj_size: must be 0; `LSTM` projects.
        nonlinearity: "tanh" or "relu".
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
        proj_size: int = 0,
        nonlinearity: str = "tanh",
        name: str | None = None,
    ) -> None:
        if proj_size:
            raise ValueError(f"RNN: proj_size is for LSTM only, got {proj_size}")
        self.nonlinearity = nonlinearity
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
            name,
        )

    def create_cell(self, layer: int) -> RNNCellBase:
        """The cell of a layer, in one direction."""
        size = self._layer_input(layer)
        return RNNCell(size, self.hidden_size, self.bias, self.nonlinearity)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        out, (h,) = self._run(input, None if hx is None else (hx,))
        return out, h


class LSTM(RNNBase):
    """Long short-term memory over sequences, in layers.

    `forward(input, hx=None)` takes x (T, N, input_size), or (N, T, input_size) with `batch_first`,
    and (h, c) of shapes (num_layers * D, N, H) and (num_layers * D, N, hidden_size), zeros if left
    out; D is 2 for both directions, else 1, and H is `proj_size` or else `hidden_size`. It
    returns the last layer's h at all moments (T, N, D * H), or with N first, and every layer's last
    (h, c). `cells` holds a list of `LSTMCell` per layer.

    Args:
        input_size: features of the input.
        hidden_size: features of c, and of h where it is not projected.
        num_layers: layers, each fed by the one before.
        bias: whether cells have trainable biases.
        batch_first: whether the batch is the first axis of input and output.
        dropout: probability of zero between layers in training, in [0, 1).
        bidirectional: run every layer forwards and backwards, and join both.
        proj_size: where not 0, every h is multiplied by a matrix `weight_hr` (proj_size,
            hidden_size) (Sak et al., 2014).
        name: a name for messages and graphs.

    Raises:
        ValueError: an argument is out of its range.
        ShapeError: the input or the state does not fit.
    """

    _states = 2

    def create_cell(self, layer: int) -> RNNCellBase:
        """The cell of a layer, in one direction."""
        size = self._layer_input(layer)
        if self.proj_size:
            return _ProjectedLSTMCell(size, self.hidden_size, self.bias, self.proj_size)
        return LSTMCell(size, self.hidden_size, self.bias)

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out, (h, c) = self._run(input, None if hx is None else tuple(hx))
        return out, (h, c)


def _over_time(
    cell: RNNCellBase, x: Tensor, state: State, *, backwards: bool
) -> tuple[Tensor, State]:
    """One cell over x (T, N, features): what it puts out at all moments, and the last state."""
    gates = cell._from_input(x[::-1] if backwards else x)
    moments: Any = gates.shape[0]
    if capturing() is None or (isinstance(moments, int) and moments <= _UNROLLED):
        outs = []
        for t in range(moments):
            state = cell._turn(state, gates[t])
            outs.append(state[0])
        out = F.stack(outs) if outs else zeros_of((0, *state[0].shape), x)
    else:
        state, (out,) = scan(lambda *held: _and_output(cell, held), state, (gates,))
    return (out[::-1] if backwards else out), state


def _and_output(cell: RNNCellBase, held: tuple[Tensor, ...]) -> State:
    """One turn of a loop: the next state, and the output to be stacked."""
    state = cell._turn(held[:-1], held[-1])
    return (*state, state[0])


def zeros_of(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """A state of zeros beside an input."""
    # Broadcast, as an extent may be symbolic.
    return like.constant(0.0).broadcast_to(shape)
