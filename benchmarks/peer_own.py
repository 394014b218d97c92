"""The benchmark workloads in Treadle; modes: compile, open batch, eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from int8 import quantized
from models import MLP, Bert, Decoder, GPTMini, LeNet, MobileNetV2, ResNet
from weights import BERT, GPT, RESNET18, RESNET50, weights_of
from workloads import DECODE_FROM, OPTIMIZERS, Call, Task, calibration_of, chain_data, data_of

import treadle as mge
import treadle.functional as F
from treadle.amp import autocast
from treadle.autodiff import GradManager
from treadle.optimizer import SGD, Adam, AdamW
from treadle.quantization import quantize_dynamic

mge.set_default_device("cpux")
MODELS: dict[str, Callable[[], Any]] = {
    "mlp": MLP,
    "lenet": LeNet,
    "resnet18": lambda: ResNet(*RESNET18),
    "resnet50": lambda: ResNet(*RESNET50),
    "mobilenetv2": MobileNetV2,
    "gpt": lambda: GPTMini(*GPT),
    "bert": lambda: Bert(*BERT),
}
OPTIMIZER_CLASSES: dict[str, Any] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}


def make(task: Task) -> Call:
    """The workload as a function; the number of threads is set by TREADLE_NUM_THREADS."""
    return {"train": train, "infer": infer, "decode": decode, "chain": chain}[task.work.kind](task)


def version() -> str:
    return f"Treadle {mge.__version__}"


def train(task: Task) -> Call:
    """One optimizer step per call; returns the loss."""
    model = load(task.work.model)
    optimizer = OPTIMIZER_CLASSES[task.work.opt](model.parameters(), **OPTIMIZERS[task.work.opt])
    gm = GradManager().attach(model.parameters())

    def update(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        with gm:
            with autocast(enabled=task.work.bfloat16, low_prec_dtype="bfloat16"):
                scores = model(x)
                loss = F.loss.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1))
            gm.backward(loss)
        optimizer.step().clear_grad()
        return loss

    step, (x, y) = compiled(update, task), map(tensor, data_of(task.work))
    return lambda: step(x, y).item()


def infer(task: Task) -> Call:
    """One forward pass per call."""
    model = load(task.work.model)
    model.eval()
    x = tensor(data_of(task.work)[0])
    if task.work.int8 and task.work.model == "bert":
        model = quantize_dynamic(model)
    elif task.work.int8:
        model = quantized(model, calibration_of(task.work))
    if not task.work.bfloat16:
        call = compiled(model, task)
        return lambda: call(x).numpy()
    for value in (*model.parameters(), *model.buffers()):
        value[...] = value.astype("bfloat16")

    def forward(x: mge.Tensor) -> mge.Tensor:
        x = x.astype("bfloat16") if x.dtype == np.float32 else x
        return model(x).astype("float32")

    short = compiled(forward, task)
    return lambda: short(x).numpy()


def decode(task: Task) -> Call:
    """Greedy decoding; the tokens."""
    model = load("gpt")
    model.eval()
    _, dim, heads, length, _ = GPT
    decoding = Decoder(model, length, heads, dim)
    step, tokens = compiled(decoding.step, task), tensor(data_of(task.work)[0])
    places = [mge.tensor(np.array([at], "int32")) for at in range(length)]
    first = tokens[:, DECODE_FROM : DECODE_FROM + 1]
    for at in range(DECODE_FROM):
        decoding.step(tokens[:, at : at + 1], places[at])

    def generate() -> list[int]:
        token, out = first, []
        for at in range(DECODE_FROM, length):
            token = step(token, places[at])
            out.append(token.item())
        return out

    return generate


def chain(task: Task) -> Call:
    """gelu(x * w + b) + r."""
    tensors = [tensor(a) for a in chain_data()]
    call = compiled(lambda x, w, b, r: F.gelu(x * w + b, approximate="tanh") + r, task)
    return lambda: call(*tensors).numpy()


def load(name: str) -> Any:
    """The model with the weights that all frameworks share."""
    model = MODELS[name]()
    state = model.state_dict()
    model.load_state_dict({k: v.reshape(state[k].shape) for k, v in weights_of(name).items()})
    return model


def tensor(array: np.ndarray) -> mge.Tensor:
    return mge.tensor(array.astype("int32") if array.dtype.kind == "i" else array)


def compiled(function: Callable[..., Any], task: Task) -> Callable[..., Any]:
    if task.mode == "open batch":
        places = {"train": (0, 1), "chain": (0, 3)}.get(task.work.kind, (0,))
        return mge.jit.compile(dynamic={place: {0: "n"} for place in places})(function)
    return mge.jit.compile(function) if task.mode == "compile" else function
