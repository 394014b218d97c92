"""`treadle warm`: kernels of the commonest ops, compiled before they are wanted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from treadle import functional as F
from treadle import module as M
from treadle.autodiff import GradManager
from treadle.base.env import cache_directory
from treadle.base.errors import CompileError
from treadle.optimizer import SGD, Adam, AdamW, Optimizer
from treadle.tensor import Parameter, Tensor

_FUNCTIONS = (
    *(F.exp, F.log, F.sqrt, F.sin, F.cos, F.tanh, F.sigmoid, F.silu, F.gelu, F.softplus),
    *(F.hswish, F.hsigmoid, F.elu, F.leaky_relu, F.relu6, F.logsigmoid),
    *(F.sum, F.mean, F.max, F.min, F.argmax, F.var),
)
_PER_ROW = (F.softmax, F.logsoftmax, F.logsumexp, F.sum, F.mean, F.max, F.argmax, F.argsort)
_SIZES = ((64, 64), (1024, 1024))
"""Kernels differ by whether threads share the work."""


def command() -> None:
    """Compile the kernels of the commonest ops, so that their first calls need no compiler.

    Runs functions and one training step of three small networks op by op, in float32; what they
    compile stays in the cache directory, for every program of this user. Done once after an
    installation, or in the recipe of a container's image.
    """
    before, start = _kernels(), time.perf_counter()
    for work in _works():
        work()
    kernels, seconds = _kernels(), time.perf_counter() - start
    if not kernels:
        raise CompileError(
            "warm",
            f"kernels cannot be kept in {cache_directory()}",
            hint="set TREADLE_CACHE_DIR to a directory that you may write into",
        )
    count = len(kernels - before)
    said = f"{count} kernels compiled in {seconds:.1f} s" if count else "all kernels were there"
    print(f"{said}; they lie in {cache_directory()}")


def _kernels() -> frozenset[str]:
    """Names of the kernels' files in the cache."""
    return frozenset(path.name for path in cache_directory().glob("objects/*.o"))


def _works() -> Iterator[Callable[[], object]]:
    """Calls that compile kernels, one piece after another."""
    rng = np.random.default_rng(0)
    for size in _SIZES:
        x = Tensor(rng.random(size, "float32") + 0.5, device="cpux")
        yield from (lambda f=f, x=x: f(x) for f in _FUNCTIONS)
        yield from (lambda f=f, x=x: f(x, 1) for f in _PER_ROW)
        yield from (lambda f=f, x=x: f(x, x) for f in (F.matmul, F.maximum, F.pow))
    images = Tensor(rng.random((32, 3, 32, 32), "float32"), device="cpux")
    words = Tensor(rng.integers(0, 64, (8, 16)), device="cpux", dtype="int32")
    rows = images.reshape(32, -1)
    yield lambda: _train(_perceptron(), rows, lambda p: Adam(p, lr=1e-3))
    yield lambda: _train(_convolutions(), images, lambda p: SGD(p, lr=0.1, momentum=0.9))
    yield lambda: _train(_Transformer(), words, lambda p: AdamW(p, lr=1e-3))


def _train(network: M.Module, x: Tensor, make: Callable[[list[Parameter]], Optimizer]) -> None:
    """One step of training, then one of inference, with one row and with all."""
    parameters = list(network.parameters())
    optimizer, manager = make(parameters), GradManager().attach(parameters)
    labels = Tensor(np.zeros(len(x), "int32"), device="cpux")
    with manager:
        manager.backward(F.loss.cross_entropy(network(x), labels))
    optimizer.step().clear_grad()
    network.eval()
    network(x), network(x[:1])


def _perceptron() -> M.Module:
    return M.Sequential(
        M.Linear(3 * 32 * 32, 256),
        M.ReLU(),
        M.Dropout(0.1),
        M.Linear(256, 64),
        M.GELU(),
        M.Linear(64, 10),
    )


def _convolutions() -> M.Module:
    return M.Sequential(
        M.Conv2d(3, 32, 3, padding=1, bias=False), M.BatchNorm2d(32), M.ReLU(), M.MaxPool2d(2, 2),
        M.Conv2d(32, 32, 3, padding=1, groups=32), M.Conv2d(32, 64, 1), M.SiLU(),
        M.Conv2d(64, 64, 3, stride=2, padding=1), M.AvgPool2d(2, 2),
        M.AdaptiveAvgPool2d(1), M.Flatten(), M.Linear(64, 10),
    )  # fmt: skip


class _Transformer(M.Module):
    """A layer of 64 channels over 64 words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = M.Embedding(64, 64)
        self.norms = [M.LayerNorm(64), M.LayerNorm(64)]
        self.qkv, self.out = M.Linear(64, 192), M.Linear(64, 64)
        self.up, self.down = M.Linear(64, 256), M.Linear(256, 64)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        q, k, v = F.split(self.qkv(self.norms[0](x)), 3, axis=-1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v))
        x = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return F.mean(x, axis=1)
