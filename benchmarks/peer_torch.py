"""The benchmark workloads in PyTorch; modes are words: eager or compile, channels-last, frozen."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.nn.functional as F
from torch_models import load
from weights import GPT
from workloads import DECODE_FROM, OPTIMIZERS, Call, Task, chain_data, data_of

OPTIMIZER_CLASSES: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def make(task: Task) -> Call:
    """The workload as a function."""
    torch.set_num_threads(task.threads)
    return {"train": train, "infer": infer, "decode": decode, "chain": chain}[task.work.kind](task)


def version() -> str:
    return f"PyTorch {torch.__version__}"


def train(task: Task) -> Call:
    """One optimizer step per call; returns the loss."""
    model, x, y = prepared(task)
    model.train()
    settings = OPTIMIZERS[task.work.opt]
    optimizer = OPTIMIZER_CLASSES[task.work.opt](model.parameters(), **settings, fused=True)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=task.work.bfloat16):
            return F.cross_entropy(model(x).flatten(0, -2), y.flatten())

    forward = compiled(loss_of, task)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = forward(x, y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def infer(task: Task) -> Call:
    """One forward pass per call."""
    model, x, _ = prepared(task)
    if task.work.bfloat16:
        model, x = model.bfloat16(), x.bfloat16() if x.is_floating_point() else x
    if task.work.int8:
        tools = importlib.import_module("torch.ao.quantization")
        model = tools.quantize_dynamic(model.eval(), {torch.nn.Linear}, torch.qint8)
    call = compiled(model.eval(), task)
    # Constants are folded where gradients are off, but not in inference mode.
    mode: Any = torch.no_grad if "frozen" in task.mode else torch.inference_mode

    def run() -> Any:
        with mode():
            return call(x).float().numpy()

    return run


def decode(task: Task) -> Call:
    """Greedy decoding; the tokens."""
    model: Any = load("gpt").eval()
    _, dim, heads, length, _ = GPT
    caches = [
        tuple(torch.zeros(1, heads, length, dim // heads) for _ in "kv") for _ in model.blocks
    ]
    tokens = torch.from_numpy(data_of(task.work)[0])
    masked = "compile" in task.mode
    places: list[Any] = [torch.tensor([i]) for i in range(length)] if masked else [*range(length)]
    step = compiled(model.masked_step, task) if masked else model.sliced_step
    first = tokens[:, DECODE_FROM : DECODE_FROM + 1]
    with torch.no_grad():
        for at in range(DECODE_FROM):
            model.sliced_step(tokens[:, at : at + 1], at, caches)

    def generate() -> list[int]:
        token, out = first, []
        with torch.no_grad():
            for at in range(DECODE_FROM, length):
                token = step(token, places[at], caches)
                out.append(token.item())
        return out

    return generate


def chain(task: Task) -> Call:
    """gelu(x * w + b) + r."""
    x, w, b, r = (torch.from_numpy(a) for a in chain_data())

    def formula(x: Any, w: Any, b: Any, r: Any) -> Any:
        return F.gelu(x * w + b, approximate="tanh") + r

    call = compiled(formula, task)

    def run() -> Any:
        with torch.inference_mode():
            return call(x, w, b, r).numpy()

    return run


def prepared(task: Task) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """Model, inputs and labels in the layout of the mode."""
    model = load(task.work.model)
    x, y = map(torch.from_numpy, data_of(task.work))
    if "channels-last" in task.mode:
        model = model.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    return model, x, y


def compiled(function: Any, task: Task) -> Any:
    if "compile" not in task.mode:
        return function
    if "frozen" in task.mode:
        torch._inductor.config.freezing = True
    return torch.compile(function)
