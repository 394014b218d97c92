"""Recurrent layers and attention give PyTorch's results and gradients with its weights."""

from typing import Any

import numpy as np
import pytest

import treadle.jit as jit
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.tensor import Tensor

pytestmark = pytest.mark.oracle

RECURRENT: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("LSTM", {}),
    "lstm two layers both ways": ("LSTM", {"num_layers": 2, "bidirectional": True}),
    "lstm projected": ("LSTM", {"num_layers": 2, "proj_size": 3}),
    "lstm batch first": ("LSTM", {"batch_first": True, "bias": False}),
    "gru": ("GRU", {}),
    "gru two layers both ways": ("GRU", {"num_layers": 2, "bidirectional": True}),
    "gru without bias": ("GRU", {"batch_first": True, "bias": False}),
    "rnn": ("RNN", {"num_layers": 2}),
    "rnn relu both ways": ("RNN", {"nonlinearity": "relu", "bidirectional": True}),
}


def _x(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def _torch_name(key: str) -> str:
    _, layer, way, weight = key.split(".")
    return f"{weight}_l{layer}" + ("_reverse" if way == "1" else "")


# 5 moments are unrolled in a program, 70 become a loop.
@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")  # PyTorch's, of itself
@pytest.mark.parametrize("moments", [5, 70])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers(name: str, compiled: bool, moments: int) -> None:
    torch = pytest.importorskip("torch", reason="the comparison framework is not installed")
    kind, settings = RECURRENT[name]
    ours, theirs = getattr(M, kind)(4, 5, **settings), getattr(torch.nn, kind)(4, 5, **settings)
    named = dict(theirs.named_parameters())
    for key, parameter in ours.named_parameters():
        with torch.no_grad():
            named[_torch_name(key)].copy_(torch.from_numpy(parameter.numpy().copy()))
    manager = GradManager().attach(ours.parameters())

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        with manager:
            out, state = ours(x)
            last = state[0] if isinstance(state, tuple) else state
            manager.backward((out * out).sum() + (last * last * last).sum())
        return out, last

    x = _x(moments, 3, 4)
    out, last = (jit.compile(step) if compiled else step)(Tensor(x))
    wanted, state = theirs(torch.from_numpy(x))
    end = state[0] if isinstance(state, tuple) else state
    ((wanted * wanted).sum() + (end**3).sum()).backward()
    np.testing.assert_allclose(out.numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last.numpy(), end.detach().numpy(), rtol=1e-4, atol=1e-5)
    for key, parameter in ours.named_parameters():
        grad = named[_torch_name(key)].grad.numpy()
        np.testing.assert_allclose(parameter.grad.numpy(), grad, rtol=1e-3, atol=1e-3)


ATTENTION: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "weights": ({}, {"need_weights": True}),
    "no bias, other widths": ({"bias": False, "kdim": 3, "vdim": 4}, {}),
    "further keys": ({"add_bias_kv": True, "add_zero_attn": True}, {"need_weights": True}),
    "padding": ({}, {"key_padding_mask": np.array([[0, 0, 0, 1, 1], [0, 1, 0, 0, 0]], bool)}),
    "mask": ({}, {"attn_mask": _x(4, 3, 5, seed=9)}),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str) -> None:
    torch = pytest.importorskip("torch", reason="the comparison framework is not installed")
    settings, masks = ATTENTION[name]
    ours = M.MultiHeadAttention(6, 2, **settings)
    theirs = torch.nn.MultiheadAttention(6, 2, batch_first=True, **settings)
    _copy_weights(torch, ours, theirs)
    inputs = _x(2, 3, 6), _x(2, 5, ours.kdim, seed=1), _x(2, 5, ours.vdim, seed=2)
    manager = GradManager().attach(ours.parameters())
    given = {k: Tensor(v) if isinstance(v, np.ndarray) else v for k, v in masks.items()}
    with manager:
        out, weights = ours(*map(Tensor, inputs), **given)
        manager.backward((out * out).sum())
    given = {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in masks.items()}
    given = {"need_weights": False, **given, "average_attn_weights": False}
    wanted, shares = theirs(*map(torch.from_numpy, inputs), **given)
    (wanted * wanted).sum().backward()
    np.testing.assert_allclose(out.numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-5)
    if weights is not None:
        flat = shares.detach().numpy().reshape(weights.shape)
        np.testing.assert_allclose(weights.numpy(), flat, rtol=1e-4, atol=1e-5)
    rows = 6 * (6 + ours.kdim + ours.vdim)
    grad = ours.io_weight_bias.grad.numpy()[0, rows : rows + 36].reshape(6, 6)
    np.testing.assert_allclose(grad, theirs.out_proj.weight.grad.numpy().T, rtol=1e-3, atol=1e-4)


def _copy_weights(torch: Any, ours: M.MultiHeadAttention, theirs: Any) -> None:
    """Give PyTorch's layer the weights of ours, which multiplies from the other side."""
    packed, at, weights = torch.from_numpy(ours.io_weight_bias.numpy()[0].copy()), 0, []
    for rows in (6, ours.kdim, ours.vdim, 6):
        weights.append(packed[at : at + rows * 6].reshape(rows, 6).T.contiguous())
        at += rows * 6
    with torch.no_grad():
        if theirs.in_proj_weight is not None:
            theirs.in_proj_weight.copy_(torch.cat(weights[:3]))
        else:
            for name, weight in zip("qkv", weights, strict=False):
                getattr(theirs, f"{name}_proj_weight").copy_(weight)
        theirs.out_proj.weight.copy_(weights[3])
        if ours.bias_k is not None:
            theirs.bias_k.copy_(torch.from_numpy(ours.bias_k.numpy().copy()))
            theirs.bias_v.copy_(torch.from_numpy(ours.bias_v.numpy().copy()))
