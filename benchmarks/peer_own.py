"""The benchmark workloads in Treadle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from models import MLP, Bert, Decoder, GPTMini

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.optimizer import Adam, AdamW

Weights = dict[str, np.ndarray]
MODELS: dict[str, Any] = {"mlp": MLP, "gpt": GPTMini, "bert": Bert}
mge.set_default_device("cpux")


def _load(name: str, shape: tuple[int, ...], weights: Weights) -> Any:
    model = MODELS[name](*shape)
    state = model.state_dict()
    model.load_state_dict({k: v.reshape(state[k].shape) for k, v in weights.items()})
    return model


def shapes(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters, by name."""
    return {k: tuple(v.shape) for k, v in MODELS[name](*shape).state_dict().items()}


def _tensor(array: np.ndarray) -> mge.Tensor:
    return mge.tensor(array.astype("int32") if array.dtype.kind == "i" else array)


def _compiled(function: Callable[..., Any], mode: str) -> Callable[..., Any]:
    return mge.jit.compile(function) if mode == "compile" else function


def train(
    name: str,
    shape: tuple[int, ...],
    weights: Weights,
    x: np.ndarray,
    y: np.ndarray,
    opt: str,
    mode: str,
) -> Callable[[], float]:
    """One optimizer step per call; returns the loss."""
    model = _load(name, shape, weights)
    cls = AdamW if opt == "adamw" else Adam
    rate, decay = (3e-4, 0.1) if opt == "adamw" else (1e-3, 0.0)
    optimizer = cls(model.parameters(), rate, weight_decay=decay)
    gm = GradManager().attach(model.parameters())

    def update(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        with gm:
            scores = model(x)
            loss = F.loss.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1))
            gm.backward(loss)
        optimizer.step().clear_grad()
        return loss

    step, inputs, labels = _compiled(update, mode), _tensor(x), _tensor(y)
    return lambda: step(inputs, labels).item()


def infer(
    name: str, shape: tuple[int, ...], weights: Weights, x: np.ndarray, mode: str
) -> Callable[[], np.ndarray]:
    """One forward pass per call."""
    model = _load(name, shape, weights)
    model.eval()
    call, inputs = _compiled(model, mode), _tensor(x)
    return lambda: call(inputs).numpy()


def decode(
    shape: tuple[int, ...], weights: Weights, prompt: np.ndarray, start: int, mode: str
) -> Callable[[], list[int]]:
    """Greedy decoding of positions `start` and on; the tokens."""
    model = _load("gpt", shape, weights)
    model.eval()
    _, dim, heads, seq, _ = shape
    decoding = Decoder(model, seq, heads, dim)
    step, tokens = _compiled(decoding.step, mode), _tensor(prompt)
    places = [mge.tensor(np.array([at], "int32")) for at in range(seq)]
    for at in range(start):
        step(tokens[:, at : at + 1], places[at])
    first = tokens[:, start : start + 1]

    def generate() -> list[int]:
        token, out = first, []
        for at in range(start, seq):
            token = step(token, places[at])
            out.append(token.item())
        return out

    return generate


def chain(arrays: tuple[np.ndarray, ...], mode: str) -> Callable[[], np.ndarray]:
    """gelu(x * w + b) + r."""
    tensors = [_tensor(a) for a in arrays]
    call = _compiled(lambda x, w, b, r: F.gelu(x * w + b, approximate="tanh") + r, mode)
    return lambda: call(*tensors).numpy()


def set_threads(n: int) -> None:
    """Threads are set by the environment variable TREADLE_NUM_THREADS, before the import."""


def version() -> str:
    """Name and version."""
    return f"Treadle {mge.__version__}"
