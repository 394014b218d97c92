"""What is timed: workloads, their data, and in which modes each framework runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from weights import BERT, GPT

Call = Callable[[], Any]
DECODE_FROM = 64
"""Decoding fills the positions before this one untimed."""
IMAGES = {
    "lenet": ((1, 28, 28), 10),
    "resnet18": ((3, 32, 32), 10),
    "resnet50": ((3, 224, 224), 1000),
    "mobilenetv2": ((3, 224, 224), 1000),
}
"""Shape of an image and number of classes."""
OPTIMIZERS = {
    "sgd": {"lr": 0.01, "momentum": 0.9},
    "adam": {"lr": 1e-3, "weight_decay": 0.0},
    "adamw": {"lr": 3e-4, "weight_decay": 0.1},
}
"""Settings; the rest is as PyTorch has it: betas 0.9 and 0.999, epsilon 1e-8."""


@dataclass(frozen=True)
class Workload:
    """One row of the table.

    Attributes:
        title: for people.
        kind: "train" is an optimizer step whose loss is read, "infer" a forward pass, "decode" 64
            tokens one by one, "chain" an elementwise expression.
        model: of `models.py` and its peers.
        batch: examples.
        opt: of `OPTIMIZERS`.
        items: what one call counts for.
        eager: whether op by op.
        bfloat16: whether weights and activations have 16 bits; of training, what each framework's
            `autocast` gives them.
        int8: whether they are quantized to 8, by each framework in its own way, with ranges found
            on `calibration_of`, or, of transformers, while they run.
    """

    title: str
    kind: str
    model: str = ""
    batch: int = 1
    opt: str = ""
    items: int = 1
    eager: bool = False
    bfloat16: bool = False
    int8: bool = False


WORKLOADS = {
    "T1": Workload("MLP step, batch 128, Adam", "train", "mlp", 128, "adam"),
    "T2": Workload("LeNet-5 step, batch 64, SGD", "train", "lenet", 64, "sgd"),
    "T3": Workload("ResNet-18 step, 32x32, batch 32, SGD", "train", "resnet18", 32, "sgd"),
    "T4": Workload("GPT-mini step, batch 8, AdamW", "train", "gpt", 8, "adamw"),
    "T3b": Workload("T3 in bfloat16 and float32", "train", "resnet18", 32, "sgd", bfloat16=True),
    "T4b": Workload("T4 in bfloat16 and float32", "train", "gpt", 8, "adamw", bfloat16=True),
    "T5": Workload("ResNet-50 step, batch 4, SGD", "train", "resnet50", 4, "sgd"),
    "I1": Workload("ResNet-50 forward, batch 1", "infer", "resnet50"),
    "I1b": Workload("ResNet-50 forward, batch 16", "infer", "resnet50", 16),
    "I2": Workload("MobileNetV2 forward", "infer", "mobilenetv2"),
    "I3": Workload("BERT-base forward, 128 tokens", "infer", "bert"),
    "I3b": Workload("BERT-base forward, bfloat16", "infer", "bert", bfloat16=True),
    "I3q": Workload("BERT-base forward, int8", "infer", "bert", int8=True),
    "I4": Workload("ResNet-50 forward, bfloat16", "infer", "resnet50", bfloat16=True),
    "I4q": Workload("ResNet-50 forward, int8", "infer", "resnet50", int8=True),
    "I5": Workload("GPT-mini decoding, per token", "decode", "gpt", items=GPT[3] - DECODE_FROM),
    "O2": Workload("gelu(x w + b) + r, 16.8 M", "chain"),
    "O2e": Workload("the same, eager", "chain", eager=True),
}
PEERS = ("own", "torch", "jax", "onnxruntime", "openvino")
TITLES = {
    "own": "Treadle",
    "torch": "PyTorch",
    "jax": "JAX",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
}
EXPORTED = ("onnxruntime", "openvino")
"""Frameworks that read what PyTorch exports."""
_MODES: dict[str, dict[str, tuple[str, ...]]] = {
    "own": {
        "train": ("compile",),
        "infer": ("compile", "eager"),
        "decode": ("compile",),
        "chain": ("compile",),
    },
    "torch": {
        "train": ("eager", "compile"),
        "infer": ("eager", "compile", "compile frozen"),
        "decode": ("eager", "compile"),
        "chain": ("eager", "compile"),
    },
    "jax": dict.fromkeys(("train", "infer", "decode", "chain"), ("jit",)),
    "onnxruntime": {"infer": ("session",), "decode": ("session",)},
    "openvino": {"infer": ("latency",)},
}
_QUANTIZING = ("own", "onnxruntime", "openvino")
_NOT_IN_JAX = ("I1", "I1b", "I2", "I4")  # It was never near the best there.


@dataclass(frozen=True)
class Task:
    """What a process runs; `file` is the exported model where the framework reads one."""

    key: str
    mode: str
    threads: int
    file: str = ""

    @property
    def work(self) -> Workload:
        return WORKLOADS[self.key]


def modes_of(peer: str, key: str) -> tuple[str, ...]:
    """The modes in which a framework runs a workload, or nothing."""
    work = WORKLOADS[key]
    if work.eager:
        return ("eager",) if peer in ("own", "torch") else ()
    if work.int8 and peer == "torch":
        return ("eager",) if work.model == "bert" else ()
    if work.int8 and peer not in _QUANTIZING:
        return ()
    if (peer == "jax" and key in _NOT_IN_JAX) or (peer == "onnxruntime" and work.bfloat16):
        return ()
    modes = _MODES[peer].get(work.kind, ())
    if peer == "torch" and work.model in IMAGES:
        modes += ("eager channels-last", "compile channels-last")
    return modes


def data_of(work: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels; tokens and labels are int64."""
    rng = np.random.default_rng(0)
    if work.model in IMAGES:
        shape, classes = IMAGES[work.model]
        x = rng.standard_normal((work.batch, *shape), "float32")
        return x, rng.integers(0, classes, work.batch)
    if work.model == "mlp":
        x = rng.standard_normal((work.batch, 784), "float32")
        return x, rng.integers(0, 10, work.batch)
    tokens, vocabulary = BERT[-2:] if work.model == "bert" else GPT[-2:]
    text = rng.integers(0, vocabulary, (work.batch, tokens + 1))
    return text[:, :-1].copy(), text[:, 1:].copy()


def calibration_of(work: Workload, count: int = 16) -> list[np.ndarray]:
    """Inputs of the kind that `data_of` makes, others than those."""
    rng = np.random.default_rng(1)
    shape = IMAGES[work.model][0]
    return [rng.standard_normal((1, *shape), "float32") for _ in range(count)]


def chain_data() -> tuple[np.ndarray, ...]:
    """Operands x, w, b and r of the elementwise chain."""
    rng, big = np.random.default_rng(0), (4096, 4096)
    shapes: tuple[tuple[int, ...], ...] = (big, (4096,), (4096,), big)
    return tuple(rng.standard_normal(shape, "float32") for shape in shapes)
