"""Recurrent layers: one step and whole sequences, eager and compiled, against NumPy."""

from typing import Any

import numpy as np
import pytest

import treadle.jit as jit
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.base.errors import ShapeError
from treadle.tensor import Tensor


def _x(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).normal(size=shape).astype("float32"))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _lstm_step(cell: Any, x: np.ndarray, h: np.ndarray, c: np.ndarray) -> Any:
    sums = x @ cell.weight_ih.numpy().T + cell.bias_ih.numpy()
    sums = sums + h @ cell.weight_hh.numpy().T + cell.bias_hh.numpy()
    i, f, g, o = np.split(sums, 4, axis=1)
    c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
    return _sigmoid(o) * np.tanh(c), c


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
@pytest.mark.parametrize("bias", [True, False])
def test_rnn_cell(nonlinearity: str, bias: bool) -> None:
    cell = M.RNNCell(3, 4, bias, nonlinearity)
    x, h = _x(2, 3), _x(2, 4)
    sums = x.numpy() @ cell.weight_ih.numpy().T + h.numpy() @ cell.weight_hh.numpy().T
    sums = sums + cell.bias_ih.numpy() + cell.bias_hh.numpy()
    wanted = np.tanh(sums) if nonlinearity == "tanh" else np.maximum(sums, 0)
    np.testing.assert_allclose(cell(x, h).numpy(), wanted, rtol=1e-5, atol=1e-6)
    assert set(dict(cell.named_parameters())) == {"weight_ih", "weight_hh"} | (
        {"bias_ih", "bias_hh"} if bias else set()
    )
    assert set(cell.state_dict()) == {"weight_ih", "weight_hh", "bias_ih", "bias_hh"}


def test_lstm_cell_starts_from_zeros() -> None:
    cell = M.LSTMCell(3, 4)
    x, zeros = _x(2, 3), np.zeros((2, 4), np.float32)
    h, c = cell(x)
    wanted = _lstm_step(cell, x.numpy(), zeros, zeros)
    np.testing.assert_allclose(h.numpy(), wanted[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(c.numpy(), wanted[1], rtol=1e-5, atol=1e-6)
    bound = 1 / np.sqrt(4)
    assert all(np.abs(p.numpy()).max() <= bound for p in cell.parameters())


def test_lstm_is_its_cells_moment_by_moment() -> None:
    layer = M.LSTM(3, 4, num_layers=2, bidirectional=True)
    x = _x(5, 2, 3)
    out, (h, c) = layer(x)
    assert out.shape == (5, 2, 8)
    assert h.shape == c.shape == (4, 2, 4)
    below, ends = x.numpy(), []
    for cells in layer.cells:
        sides = []
        for way, cell in enumerate(cells):
            state = (np.zeros((2, 4), np.float32),) * 2
            moments = range(5) if way == 0 else range(4, -1, -1)
            made: dict[int, np.ndarray] = {}
            for t in moments:
                state = _lstm_step(cell, below[t], *state)
                made[t] = state[0]
            sides.append(np.stack([made[t] for t in range(5)]))
            ends.append(state)
        below = np.concatenate(sides, axis=2)
    np.testing.assert_allclose(out.numpy(), below, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(h.numpy(), np.stack([e[0] for e in ends]), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(c.numpy(), np.stack([e[1] for e in ends]), rtol=1e-4, atol=1e-5)


def test_batch_first_and_given_states() -> None:
    layer = M.RNN(3, 4, 2, batch_first=True, nonlinearity="relu")
    x, h = _x(2, 5, 3), _x(2, 2, 4)
    out, last = layer(x, h)
    assert out.shape == (2, 5, 4)
    np.testing.assert_array_equal(out.numpy()[:, -1], last.numpy()[1])
    layer.batch_first = False
    again, _ = layer(x.transpose(1, 0, 2), h)
    np.testing.assert_array_equal(again.numpy().transpose(1, 0, 2), out.numpy())


# 6 moments are unrolled in a program, 70 become a loop.
@pytest.mark.parametrize("moments", [6, 70])
def test_compiled_training_equals_eager(moments: int) -> None:
    layer = M.LSTM(2, 3)
    manager = GradManager().attach(layer.parameters())

    def step(x: Tensor) -> Tensor:
        with manager:
            out, (_, c) = layer(x)
            loss = (out * out).sum() + c.sum()
            manager.backward(loss)
        return loss

    x = _x(moments, 2, 2)
    eager = step(x).item()
    grads = {k: p.grad.numpy() for k, p in layer.named_parameters()}
    for parameter in layer.parameters():
        parameter.grad = None
    np.testing.assert_allclose(jit.compile(step)(x).item(), eager, rtol=1e-4)
    for key, parameter in layer.named_parameters():
        np.testing.assert_allclose(parameter.grad.numpy(), grads[key], rtol=1e-3, atol=1e-4)


def test_dropout_between_layers_in_training_only() -> None:
    layer = M.RNN(3, 4, 2, dropout=0.5)
    x = _x(3, 1, 3)
    assert not np.array_equal(layer(x)[0].numpy(), layer(x)[0].numpy())
    layer.eval()
    np.testing.assert_array_equal(layer(x)[0].numpy(), layer(x)[0].numpy())


def test_names_and_repr() -> None:
    layer = M.LSTM(3, 4, num_layers=2, bias=False, bidirectional=True, proj_size=2)
    names = set(dict(layer.named_parameters()))
    kinds = ("weight_hh", "weight_hr", "weight_ih")
    assert names == {f"cells.{n}.{d}.{w}" for n in (0, 1) for d in (0, 1) for w in kinds}
    assert repr(layer).startswith(
        "LSTM(\n  3, 4, num_layers=2, proj_size=2, bias=False, bidirectional=True\n  (cells.0.0): "
    )


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="nonlinearity must be one of tanh, relu"):
        M.RNN(2, 3, nonlinearity="sigmoid")
    with pytest.raises(ValueError, match="proj_size must be 0 or smaller"):
        M.LSTM(2, 3, proj_size=3)
    with pytest.raises(ValueError, match="LSTM only"):
        M.RNN(2, 3, proj_size=1)
    with pytest.raises(ValueError, match="dropout must be in"):
        M.LSTM(2, 3, dropout=1.5)
    with pytest.raises(ShapeError, match=r"expects \(T, N, 2\)"):
        M.LSTM(2, 3)(_x(4, 2))
    with pytest.raises(ShapeError, match=r"expects a state of shape \(1, 2, 3\)"):
        M.RNN(2, 3)(_x(4, 2, 2), _x(2, 2, 3))
    with pytest.raises(ShapeError, match=r"expects \(N, 2\)"):
        M.LSTMCell(2, 3)(_x(4, 3))


def test_no_moments_and_arrays() -> None:
    out, (h, c) = M.LSTM(2, 3)(np.zeros((0, 4, 2), np.float32))
    assert out.shape == (0, 4, 3)
    assert not h.numpy().any()
    assert not c.numpy().any()
    assert M.RNNCell(2, 3)(np.zeros((4, 2), np.float32)).shape == (4, 3)


def test_batch_and_time_may_be_dynamic() -> None:
    layer = M.LSTM(2, 3)
    batched = jit.compile(lambda x: layer(x)[0], dynamic={0: {1: "batch"}})
    for count in (2, 5):
        x = _x(4, count, 2)
        np.testing.assert_allclose(batched(x).numpy(), layer(x)[0].numpy(), rtol=1e-4, atol=1e-6)
    timed = jit.compile(lambda x: layer(x)[0], dynamic={0: {0: "time"}})
    for moments in (4, 2, 1, 70):  # From some number on, the turns are a loop.
        x = _x(moments, 2, 2)
        np.testing.assert_allclose(timed(x).numpy(), layer(x)[0].numpy(), rtol=1e-4, atol=1e-6)
