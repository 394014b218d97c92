"""Treadle in the harness that times all frameworks alike; modes: compile (default), eager."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from common import BERT, DECODE_FROM, GPT, OPT, THREADS, batch, weights  # the harness's own

os.environ.setdefault("TREADLE_NUM_THREADS", str(THREADS))

from models import MLP, Bert, Decoder, GPTMini, LeNet, MobileNetV2, ResNet

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.optimizer import SGD, Adam, AdamW

DEFAULT_MODE = "compile"
mge.set_default_device("cpux")

BUILD: dict[str, Callable[[], Any]] = {
    "mlp": MLP,
    "lenet": LeNet,
    "resnet18": lambda: ResNet((2, 2, 2, 2), False, 10, True),
    "resnet50": lambda: ResNet((3, 4, 6, 3), True, 1000, False),
    "mobilenetv2": MobileNetV2,
    "gpt": lambda: GPTMini(**GPT),
    "bert": lambda: Bert(
        BERT["layers"], BERT["dim"], BERT["heads"], BERT["ffn"], BERT["seq"], BERT["vocab"]
    ),
}


def load(name: str) -> Any:
    """The model with the weights that all frameworks share."""
    model = BUILD[name]()
    state = model.state_dict()
    known = {k: v for k, v in weights(name).items() if k in state}
    model.load_state_dict({k: v.reshape(state[k].shape) for k, v in known.items()})
    return model


def tensors(name: str, n: int) -> tuple[mge.Tensor, Any]:
    """The batch that all frameworks share; tokens and labels as int32."""
    x, y = batch(name, n)
    kind = "int32" if x.dtype.kind == "i" else "float32"
    return mge.tensor(x.astype(kind)), None if y is None else mge.tensor(y.astype("int32"))


def compiled(function: Callable[..., Any], mode: str) -> Callable[..., Any]:
    """The function as the mode wants it."""
    return mge.jit.compile(function) if mode == "compile" else function


def trainer(name: str, n: int, opt: str, mode: str) -> Callable[[], float]:
    model = load(name)
    model.train()
    x, y = tensors(name, n)
    o: Any = OPT[opt]
    if opt == "sgd":
        optimizer: Any = SGD(model.parameters(), o["lr"], o["momentum"])
    else:
        cls = AdamW if opt == "adamw" else Adam
        optimizer = cls(model.parameters(), o["lr"], (o["b1"], o["b2"]), o["eps"], o["wd"])
    gm = GradManager().attach(model.parameters())

    def update(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        with gm:
            scores = model(x)
            loss = F.loss.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1))
            gm.backward(loss)
        optimizer.step().clear_grad()
        return loss

    step = compiled(update, mode)
    return lambda: step(x, y).item()


def predictor(name: str, n: int, mode: str, dtype: str) -> Callable[[], np.ndarray]:
    if dtype not in ("f32", "bf16"):
        raise SystemExit(f"{dtype} is not measured yet")
    model = load(name)
    model.eval()
    x, _ = tensors(name, n)
    forward = compiled(model, mode)
    if dtype == "bf16":
        for value in (*model.parameters(), *model.buffers()):
            value[...] = value.astype("bfloat16")
        forward = compiled(lambda x: model(x.astype("bfloat16")).astype("float32"), mode)
    return lambda: forward(x).numpy()


def decoder(mode: str) -> Callable[[], list[int]]:
    model = load("gpt")
    model.eval()
    decoding = Decoder(model, GPT["seq"], GPT["heads"], GPT["dim"])
    prompt, _ = tensors("gpt", 1)
    positions = [mge.tensor(np.array([p], "int32")) for p in range(GPT["seq"])]
    step = compiled(decoding.step, mode)
    for p in range(DECODE_FROM):
        step(prompt[:, p : p + 1], positions[p])
    start = prompt[:, DECODE_FROM : DECODE_FROM + 1]

    def generate() -> list[int]:
        token, out = start, []
        for p in range(DECODE_FROM, GPT["seq"]):
            token = step(token, positions[p])
            out.append(token.item())
        return out

    return generate


def tiny_ops() -> dict[str, Callable[[int], None]]:
    a, b = (mge.tensor(np.ones(16, "float32")) for _ in range(2))
    m = mge.tensor(np.ones((16, 16), "float32"))
    ag, mg = mge.tensor(np.ones(16, "float32")), mge.tensor(np.ones((16, 16), "float32"))
    gm = GradManager().attach([ag, mg])

    def loop(op: Callable[[Any, Any], Any], x: Any, y: Any) -> Callable[[int], None]:
        def run(n: int) -> None:
            for _ in range(n):
                op(x, y)

        return run

    def recorded(op: Callable[[Any, Any], Any], x: Any, y: Any) -> Callable[[int], None]:
        plain = loop(op, x, y)

        def run(n: int) -> None:
            with gm:
                plain(n)

        return run

    add, matmul = (lambda x, y: x + y), (lambda x, y: x @ y)
    return {
        "add": loop(add, a, b),
        "matmul": loop(matmul, m, m),
        "add-grad": recorded(add, ag, b),
        "matmul-grad": recorded(matmul, mg, m),
    }


def chain(mode: str) -> Callable[[], np.ndarray]:
    rng = np.random.default_rng(0)
    x, r = (mge.tensor(rng.standard_normal((4096, 4096), "float32")) for _ in range(2))
    w, b = (mge.tensor(rng.standard_normal(4096, "float32")) for _ in range(2))
    f = compiled(lambda x, w, b, r: F.gelu(x * w + b, approximate="tanh") + r, mode)
    return lambda: f(x, w, b, r).numpy()
