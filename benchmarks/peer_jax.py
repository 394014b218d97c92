"""The benchmark workloads in JAX: functions of a dictionary of weights, images channels-last."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from weights import BERT, GPT, RESNET18, RESNET50, weights_of
from workloads import DECODE_FROM, OPTIMIZERS, Call, Task, chain_data, data_of

Array = jax.Array
Weights = dict[str, Array]


def make(task: Task) -> Call:
    """The workload as a function; JAX takes every core that the process may use."""
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, allowed[: task.threads])
    return {"train": train, "infer": infer, "decode": decode, "chain": chain}[task.work.kind](task)


def version() -> str:
    return f"JAX {jax.__version__}"


# -- models ------------------------------------------------------------------------------------


def linear(w: Weights, name: str, x: Array) -> Array:
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def layer_norm(w: Weights, name: str, x: Array) -> Array:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def conv(w: Weights, name: str, x: Array, stride: int = 1, padding: int | None = None) -> Array:
    kernel = w[f"{name}.weight"]
    around = kernel.shape[0] // 2 if padding is None else padding
    layout = ("NHWC", "HWIO", "NHWC")
    strides, padded = (stride, stride), [(around, around)] * 2
    return lax.conv_general_dilated(x, kernel, strides, padded, dimension_numbers=layout)


def max_pool(x: Array, size: int, stride: int, padding: int = 0) -> Array:
    around = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, around)


def batch_norm(w: Weights, name: str, x: Array, running: Weights | None) -> Array:
    """Given a dictionary, it takes the batch's statistics and puts the running ones there."""
    mean, variance = w[f"{name}.running_mean"], w[f"{name}.running_var"]
    if running is not None:
        count = x.size // x.shape[-1]
        now, spread = x.mean((0, 1, 2)), x.var((0, 1, 2))
        running[f"{name}.running_mean"] = 0.9 * mean + 0.1 * now
        running[f"{name}.running_var"] = 0.9 * variance + 0.1 * spread * count / (count - 1)
        mean, variance = now, spread
    scale = lax.rsqrt(variance + 1e-5) * w[f"{name}.weight"]
    return (x - mean) * scale + w[f"{name}.bias"]


def mlp(w: Weights, x: Array, running: Weights | None = None) -> Array:
    for name in ("fc1", "fc2"):
        x = jax.nn.relu(linear(w, name, x))
    return linear(w, "fc3", x)


def lenet(w: Weights, x: Array, running: Weights | None = None) -> Array:
    x = max_pool(jax.nn.relu(conv(w, "c1", x) + w["c1.bias"]), 2, 2)
    x = max_pool(jax.nn.relu(conv(w, "c2", x, padding=0) + w["c2.bias"]), 2, 2)
    return mlp(w, x.transpose(0, 3, 1, 2).reshape(x.shape[0], -1))


def resnet(layers: tuple[int, ...], deep: bool, classes: int, small: bool) -> Callable[..., Array]:
    def unit(w: Weights, names: tuple[str, str], x: Array, stride: int, running: Any) -> Array:
        return batch_norm(w, names[1], conv(w, names[0], x, stride), running)

    def block(w: Weights, at: str, x: Array, stride: int, running: Any) -> Array:
        first, second = (1, stride) if deep else (stride, 1)
        y = jax.nn.relu(unit(w, (f"{at}.c1", f"{at}.b1"), x, first, running))
        y = unit(w, (f"{at}.c2", f"{at}.b2"), y, second, running)
        if deep:
            y = unit(w, (f"{at}.c3", f"{at}.b3"), jax.nn.relu(y), 1, running)
        if f"{at}.down.0.weight" in w:
            x = unit(w, (f"{at}.down.0", f"{at}.down.1"), x, stride, running)
        return jax.nn.relu(y + x)

    def forward(w: Weights, x: Array, running: Weights | None = None) -> Array:
        x = jax.nn.relu(unit(w, ("stem", "bn"), x, 1 if small else 2, running))
        x = x if small else max_pool(x, 3, 2, 1)
        strides = [2 if i and not j else 1 for i, count in enumerate(layers) for j in range(count)]
        for number, stride in enumerate(strides):
            x = block(w, f"blocks.{number}", x, stride, running)
        return linear(w, "fc", x.mean((1, 2)))

    return forward


def attend(q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)
    return mixed.reshape(*q.shape[:2], -1)


def gpt_block(w: Weights, at: str, x: Array, cache: Any, place: Any) -> tuple[Array, Any]:
    """A block on all tokens or, with a cache, on the one at a place."""
    parts = jnp.split(linear(w, f"{at}.qkv", layer_norm(w, f"{at}.ln1", x)), 3, -1)
    q, k, v = (t.reshape(*t.shape[:2], GPT[2], -1) for t in parts)
    if cache is None:
        every = jnp.arange(x.shape[1])
        mask = every[:, None] >= every
    else:
        k, v = (
            lax.dynamic_update_slice(old, new, (0, place, 0, 0))
            for old, new in zip(cache, (k, v), strict=True)
        )
        mask = jnp.arange(k.shape[1]) <= place
    x = x + linear(w, f"{at}.proj", attend(q, k, v, mask))
    inner = linear(w, f"{at}.up", layer_norm(w, f"{at}.ln2", x))
    return x + linear(w, f"{at}.dn", jax.nn.gelu(inner, approximate=True)), (k, v)


def gpt(w: Weights, x: Array, running: Weights | None = None) -> Array:
    h = w["tok.weight"][x] + w["pos.weight"][: x.shape[1]]
    for i in range(GPT[0]):
        h, _ = gpt_block(w, f"blocks.{i}", h, None, None)
    return linear(w, "head", layer_norm(w, "ln", h))


def gpt_step(w: Weights, token: Array, place: Array, caches: Any) -> tuple[Array, Any]:
    h, updated = w["tok.weight"][token] + w["pos.weight"][place], []
    for i, cache in enumerate(caches):
        h, cache = gpt_block(w, f"blocks.{i}", h, cache, place)
        updated.append(cache)
    return linear(w, "head", layer_norm(w, "ln", h)).argmax(-1), updated


def bert(w: Weights, x: Array, running: Weights | None = None) -> Array:
    h = layer_norm(w, "ln", w["tok.weight"][x] + w["pos.weight"][: x.shape[1]])
    for i in range(BERT[0]):
        at = f"layers.{i}"
        parts = (linear(w, f"{at}.{name}", h) for name in "qkv")
        q, k, v = (t.reshape(*t.shape[:2], BERT[2], -1) for t in parts)
        h = layer_norm(w, f"{at}.ln1", h + linear(w, f"{at}.o", attend(q, k, v)))
        inner = jax.nn.gelu(linear(w, f"{at}.up", h), approximate=False)
        h = layer_norm(w, f"{at}.ln2", h + linear(w, f"{at}.dn", inner))
    return h


MODELS: dict[str, Callable[..., Array]] = {
    "mlp": mlp,
    "lenet": lenet,
    "resnet18": resnet(*RESNET18),
    "resnet50": resnet(*RESNET50),
    "gpt": gpt,
    "bert": bert,
}


# -- workloads ---------------------------------------------------------------------------------


def load(name: str) -> Weights:
    """The weights that all frameworks share, kernels of convolutions with the outputs last."""
    found = weights_of(name)
    images = {k: v.transpose(2, 3, 1, 0) for k, v in found.items() if v.ndim == 4}
    return {k: jnp.asarray(v) for k, v in (found | images).items()}


def data(task: Task) -> tuple[Array, Array]:
    x, y = data_of(task.work)
    return jnp.asarray(x.transpose(0, 2, 3, 1) if x.ndim == 4 else x), jnp.asarray(y)


def train(task: Task) -> Call:
    """One optimizer step per call; returns the loss."""
    weights, (x, y), forward = load(task.work.model), data(task), MODELS[task.work.model]
    fixed = {k: v for k, v in weights.items() if "running" in k}
    learned = {k: v for k, v in weights.items() if "running" not in k}
    update = sgd if task.work.opt == "sgd" else adam
    settings = OPTIMIZERS[task.work.opt]

    def loss_of(learned: Weights, fixed: Weights) -> tuple[Array, Weights]:
        running: Weights = {}
        scores = jax.nn.log_softmax(forward(learned | fixed, x, running), -1)
        return -jnp.take_along_axis(scores, y[..., None], -1).mean(), running

    def step(learned: Weights, fixed: Weights, moments: Any) -> tuple[Any, ...]:
        (loss, fixed), grads = jax.value_and_grad(loss_of, has_aux=True)(learned, fixed)
        learned, moments = update(learned, grads, moments, settings)
        return loss, learned, fixed, moments

    zeros = [jax.tree.map(jnp.zeros_like, learned) for _ in range(2)]
    compiled = jax.jit(step, donate_argnums=(0, 1, 2))
    state: list[Any] = [learned, fixed, (*zeros, jnp.float32(0))]

    def run() -> float:
        loss, *state[:] = compiled(*state)
        jax.block_until_ready(state)
        return float(loss)

    return run


def sgd(weights: Any, grads: Any, moments: Any, settings: dict[str, float]) -> tuple[Any, Any]:
    first, second, count = moments
    first = jax.tree.map(lambda m, g: settings["momentum"] * m + g, first, grads)
    weights = jax.tree.map(lambda p, m: p - settings["lr"] * m, weights, first)
    return weights, (first, second, count)


def adam(weights: Any, grads: Any, moments: Any, settings: dict[str, float]) -> tuple[Any, Any]:
    first, second, count = moments
    count = count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grads)
    rate, decay = settings["lr"], settings["weight_decay"]
    scale, left = rate / (1 - 0.9**count), 1 - 0.999**count

    def update(p: Array, m: Array, v: Array) -> Array:
        return p * (1 - rate * decay) - scale * m / (jnp.sqrt(v / left) + 1e-8)

    return jax.tree.map(update, weights, first, second), (first, second, count)


def infer(task: Task) -> Call:
    """One forward pass per call."""
    weights, (x, _), call = load(task.work.model), data(task), jax.jit(MODELS[task.work.model])
    return lambda: np.asarray(call(weights, x))


def decode(task: Task) -> Call:
    """Greedy decoding; the tokens."""
    layers, dim, heads, length, _ = GPT
    weights, (tokens, _) = load("gpt"), data(task)
    step = jax.jit(gpt_step, donate_argnums=3)
    shape = (1, length, heads, dim // heads)
    caches: list[Any] = [(jnp.zeros(shape), jnp.zeros(shape)) for _ in range(layers)]
    for at in range(DECODE_FROM):
        _, caches[:] = step(weights, tokens[:, at : at + 1], at, caches)

    def generate() -> list[int]:
        token, out = tokens[:, DECODE_FROM : DECODE_FROM + 1], []
        for at in range(DECODE_FROM, length):
            token, caches[:] = step(weights, token, at, caches)
            out.append(int(token[0, 0]))
        return out

    return generate


def chain(task: Task) -> Call:
    """gelu(x * w + b) + r."""
    arrays = [jnp.asarray(a) for a in chain_data()]
    call = jax.jit(lambda x, w, b, r: jax.nn.gelu(x * w + b, approximate=True) + r)
    return lambda: np.asarray(call(*arrays))
