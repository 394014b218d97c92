"""The networks that the benchmarks train and run, written as a user would write them."""

from __future__ import annotations

import numpy as np
from weights import INVERTED

import treadle as mge
import treadle.functional as F
import treadle.module as M


class MLP(M.Module):
    """784 pixels to 10 classes through two hidden layers of 512."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = M.Linear(784, 512), M.Linear(512, 512), M.Linear(512, 10)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class LeNet(M.Module):
    """LeNet-5 for 28x28 images."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = M.Conv2d(1, 6, 5, padding=2), M.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = M.Linear(400, 120), M.Linear(120, 84), M.Linear(84, 10)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.flatten(F.max_pool2d(F.relu(self.c2(x)), 2), 1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


def conv(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> M.Conv2d:
    """A convolution that keeps the extent of maps but for its stride."""
    return M.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)


class ResBlock(M.Module):
    """Two 3x3 convolutions, or 1x1, 3x3 and 1x1 in a `deep` one, beside a residual path."""

    def __init__(self, inputs: int, width: int, stride: int, deep: bool) -> None:
        super().__init__()
        outputs = width * 4 if deep else width
        self.c1 = conv(inputs, width, 1) if deep else conv(inputs, width, 3, stride)
        self.c2 = conv(width, width, 3, stride if deep else 1)
        self.b1, self.b2 = M.BatchNorm2d(width), M.BatchNorm2d(width)
        self.deep, self.down = deep, None
        if deep:
            self.c3, self.b3 = conv(width, outputs, 1), M.BatchNorm2d(outputs)
        if stride != 1 or inputs != outputs:
            self.down = M.Sequential(conv(inputs, outputs, 1, stride), M.BatchNorm2d(outputs))

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        y = self.b2(self.c2(F.relu(self.b1(self.c1(x)))))
        if self.deep:
            y = self.b3(self.c3(F.relu(y)))
        return F.relu(y + (x if self.down is None else self.down(x)))


class ResNet(M.Module):
    """ResNet for images of 32x32 (`small`) or 224x224 pixels."""

    def __init__(self, layers: tuple[int, ...], deep: bool, classes: int, small: bool) -> None:
        super().__init__()
        self.stem = conv(3, 64, 3) if small else conv(3, 64, 7, 2)
        self.bn, self.small = M.BatchNorm2d(64), small
        blocks, inputs = [], 64
        for i, count in enumerate(layers):
            for j in range(count):
                blocks.append(ResBlock(inputs, 64 << i, 2 if i and not j else 1, deep))
                inputs = (64 << i) * (4 if deep else 1)
        self.blocks, self.fc = blocks, M.Linear(inputs, classes)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        x = F.relu(self.bn(self.stem(x)))
        x = x if self.small else F.max_pool2d(x, 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return self.fc(F.mean(x, (2, 3)))


class ReLU6(M.Module):
    """A rectifier that stops at 6."""

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        return F.relu6(x)


class Inverted(M.Module):
    """MobileNetV2's block: wider, depthwise, narrower again."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        wide = inputs * expand
        first = [] if expand == 1 else [conv(inputs, wide, 1), M.BatchNorm2d(wide), ReLU6()]
        depthwise = [conv(wide, wide, 3, stride, wide), M.BatchNorm2d(wide), ReLU6()]
        last = [conv(wide, outputs, 1), M.BatchNorm2d(outputs)]
        self.seq = M.Sequential(*first, *depthwise, *last)
        self.skip = stride == 1 and inputs == outputs

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        return x + self.seq(x) if self.skip else self.seq(x)


class MobileNetV2(M.Module):
    """MobileNetV2 for images of 224x224 pixels and 1000 classes."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[M.Module] = [conv(3, 32, 3, 2), M.BatchNorm2d(32), ReLU6()]
        inputs = 32
        for expand, outputs, count, stride in INVERTED:
            for j in range(count):
                layers.append(Inverted(inputs, outputs, 1 if j else stride, expand))
                inputs = outputs
        layers += [conv(inputs, 1280, 1), M.BatchNorm2d(1280), ReLU6()]
        self.seq, self.fc = M.Sequential(*layers), M.Linear(1280, 1000)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        return self.fc(F.mean(self.seq(x), (2, 3)))


def split_heads(x: mge.Tensor, heads: int) -> mge.Tensor:
    """(batch, time, dim) to (batch, heads, time, dim / heads)."""
    batch, time, dim = x.shape
    return F.transpose(x.reshape(batch, time, heads, dim // heads), (0, 2, 1, 3))


def join_heads(x: mge.Tensor) -> mge.Tensor:
    """(batch, heads, time, size) to (batch, time, heads * size)."""
    batch, heads, time, size = x.shape
    return F.transpose(x, (0, 2, 1, 3)).reshape(batch, time, heads * size)


class GPTBlock(M.Module):
    """Causal attention and a two-layer network, each behind a norm and beside a residual path."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = M.LayerNorm(dim), M.LayerNorm(dim)
        self.qkv, self.proj = M.Linear(dim, 3 * dim), M.Linear(dim, dim)
        self.up, self.dn = M.Linear(dim, 4 * dim), M.Linear(4 * dim, dim)

    def _qkv(self, x: mge.Tensor) -> list[mge.Tensor]:
        return [split_heads(t, self.heads) for t in F.split(self.qkv(self.ln1(x)), 3, axis=-1)]

    def _mlp(self, x: mge.Tensor) -> mge.Tensor:
        return x + self.dn(F.gelu(self.up(self.ln2(x)), approximate="tanh"))

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        q, k, v = self._qkv(x)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self._mlp(x + self.proj(join_heads(mixed)))

    def step(
        self, x: mge.Tensor, keys: mge.Tensor, values: mge.Tensor, at: mge.Tensor, seen: mge.Tensor
    ) -> mge.Tensor:
        """One token at position `at`; keys and values of the earlier ones are cached."""
        q, k, v = self._qkv(x)
        keys[:, :, at] = k
        values[:, :, at] = v
        mixed = F.scaled_dot_product_attention(q, keys, values, seen)
        return self._mlp(x + self.proj(join_heads(mixed)))


class GPTMini(M.Module):
    """A small GPT: scores of the next token at every position."""

    def __init__(
        self, layers: int = 6, dim: int = 256, heads: int = 8, seq: int = 128, vocab: int = 256
    ) -> None:
        super().__init__()
        self.tok, self.pos = M.Embedding(vocab, dim), M.Embedding(seq, dim)
        self.blocks = [GPTBlock(dim, heads) for _ in range(layers)]
        self.ln, self.head = M.LayerNorm(dim), M.Linear(dim, vocab, bias=False)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        h = self.tok(x) + self.pos.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.ln(h))


class Decoder:
    """Greedy decoding with cached keys and values, one token at a time."""

    def __init__(self, model: GPTMini, seq: int, heads: int, dim: int) -> None:
        self.model = model
        self.positions = mge.tensor(np.arange(seq, dtype="int32"))
        shape = (1, heads, seq, dim // heads)
        zeros = np.zeros(shape, "float32")
        self.caches = [(mge.tensor(zeros), mge.tensor(zeros)) for _ in model.blocks]

    def step(self, token: mge.Tensor, at: mge.Tensor) -> mge.Tensor:
        """The token after `token` (1, 1), which stands at position `at` (1,)."""
        model = self.model
        h = model.tok(token) + model.pos(at)
        seen = self.positions <= at
        for block, (keys, values) in zip(model.blocks, self.caches, strict=True):
            h = block.step(h, keys, values, at, seen)
        return F.argmax(model.head(model.ln(h)), axis=-1)


class BertLayer(M.Module):
    """Attention and a two-layer network, each followed by a norm."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (M.Linear(dim, dim) for _ in range(4))
        self.up, self.dn = M.Linear(dim, hidden), M.Linear(hidden, dim)
        self.ln1, self.ln2 = M.LayerNorm(dim), M.LayerNorm(dim)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        q, k, v = (split_heads(m(x), self.heads) for m in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = self.ln1(x + self.o(join_heads(mixed)))
        return self.ln2(x + self.dn(F.gelu(self.up(x))))


class Bert(M.Module):
    """A BERT encoder: tokens to hidden states."""

    def __init__(
        self, layers: int, dim: int, heads: int, hidden: int, seq: int, vocab: int
    ) -> None:
        super().__init__()
        self.tok, self.pos, self.ln = (
            M.Embedding(vocab, dim),
            M.Embedding(seq, dim),
            M.LayerNorm(dim),
        )
        self.layers = [BertLayer(dim, heads, hidden) for _ in range(layers)]

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        h = self.ln(self.tok(x) + self.pos.weight[: x.shape[1]])
        for layer in self.layers:
            h = layer(h)
        return h
