"""Networks that the tests of traced modules trace."""

from __future__ import annotations

from typing import Any

import numpy as np

import treadle as mge
import treadle.functional as F
import treadle.module as M


def images(*shape: int) -> mge.Tensor:
    """Numbers between 0 and 1, the same for the same shape."""
    return mge.tensor(np.random.RandomState(sum(shape)).rand(*shape).astype("float32"))


class Identity(M.Module):
    """Not one of Treadle's: it is looked into."""

    def forward(self, x: Any) -> Any:
        return x


class Block(M.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = M.Conv2d(inputs, outputs, 3, 1, padding=1, bias=False)
        self.bn1 = M.BatchNorm2d(outputs)
        self.nothing = Identity()

    def forward(self, x: Any) -> Any:
        x = F.relu(self.bn1(self.conv1(x))) + 1
        return self.nothing(x)


class Net(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block0, self.block1 = Block(8, 4), Block(4, 2)
        self.nothing = Identity()

    def forward(self, x: Any) -> Any:
        return self.nothing(self.block1(self.block0(x)))


class Cell(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.i, self.h = M.Linear(3, 4), M.Linear(4, 4)

    def forward(self, x: Any, h: Any = None) -> Any:
        y = self.i(x)
        return F.tanh(y if h is None else y + self.h(h))


class Rnn(M.Module):
    """A loop over time that calls its cell without and with a state."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = Cell()

    def forward(self, x: Any) -> Any:
        h, out = None, []
        for i in range(3):
            h = self.cell(x[i], h)
            out.append(h)
        return F.stack(out), h


class Attention(M.Module):
    """Takes its shapes from the input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = M.LayerNorm(8), M.Linear(8, 24), M.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        batch, time, dim = x.shape
        q, k, v = (
            F.transpose(y.reshape(batch, time, 2, dim // 2), (0, 2, 1, 3))
            for y in F.split(self.qkv(self.norm(x)), 3, axis=2)
        )
        scores = F.softmax(F.matmul(q, k, transpose_b=True) * (dim // 2) ** -0.5, axis=-1)
        mixed = F.transpose(F.matmul(scores, v), (0, 2, 1, 3)).reshape(batch, time, dim)
        return x + self.out(mixed)


class Inverted(M.Module):
    """MobileNetV2's block, in a Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.body = M.Sequential(
            M.Conv2d(4, 8, 1, bias=False),
            M.BatchNorm2d(8),
            M.ReLU(),
            M.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
            M.BatchNorm2d(8),
            M.Conv2d(8, 4, 1, bias=False),
            M.BatchNorm2d(4),
        )
        self.heads = {"a": M.Linear(4, 2), "b": [M.Linear(4, 3)]}

    def forward(self, x: Any) -> Any:
        y = F.mean(x + self.body(x), (2, 3))
        return {"a": self.heads["a"](y), "b": self.heads["b"][0](y)}


def settle(module: M.Module, *args: Any) -> None:
    """Give batch norms statistics other than 0 and 1, and switch to evaluation."""
    module.train()
    for _ in range(3):
        module(*args)
    module.eval()


def traced_net() -> tuple[Net, mge.Tensor]:
    """A net in evaluation mode and an input for it."""
    net, x = Net(), images(1, 8, 3, 3)
    settle(net, x)
    return net, x


def same(one: Any, other: Any) -> None:
    """Nested results are alike."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), list(other.values())
    if isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for x, y in zip(one, other, strict=True):
            same(x, y)
    elif isinstance(one, mge.Tensor):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-5)
    else:
        assert one == other
