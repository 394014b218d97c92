"""The networks of `models.py` in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from weights import BERT, GPT, INVERTED, RESNET18, RESNET50, weights_of

Cache = tuple[torch.Tensor, torch.Tensor]


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, 512), nn.Linear(512, 512), nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.max_pool2d(F.relu(self.c2(x)), 2).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


def conv(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)


class ResBlock(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int, deep: bool) -> None:
        super().__init__()
        outputs = width * 4 if deep else width
        self.c1 = conv(inputs, width, 1) if deep else conv(inputs, width, 3, stride)
        self.c2 = conv(width, width, 3, stride if deep else 1)
        self.b1, self.b2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.deep, self.down = deep, None
        if deep:
            self.c3, self.b3 = conv(width, outputs, 1), nn.BatchNorm2d(outputs)
        if stride != 1 or inputs != outputs:
            self.down = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.b2(self.c2(F.relu(self.b1(self.c1(x)))))
        if self.deep:
            y = self.b3(self.c3(F.relu(y)))
        return F.relu(y + (x if self.down is None else self.down(x)))


class ResNet(nn.Module):
    def __init__(self, layers: tuple[int, ...], deep: bool, classes: int, small: bool) -> None:
        super().__init__()
        self.stem = conv(3, 64, 3) if small else conv(3, 64, 7, 2)
        self.bn, self.small = nn.BatchNorm2d(64), small
        blocks, inputs = [], 64
        for i, count in enumerate(layers):
            for j in range(count):
                blocks.append(ResBlock(inputs, 64 << i, 2 if i and not j else 1, deep))
                inputs = (64 << i) * (4 if deep else 1)
        self.blocks, self.fc = nn.ModuleList(blocks), nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn(self.stem(x)))
        x = x if self.small else F.max_pool2d(x, 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return self.fc(x.mean((2, 3)))


class Inverted(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        wide = inputs * expand
        first = [] if expand == 1 else [conv(inputs, wide, 1), nn.BatchNorm2d(wide), nn.ReLU6()]
        depthwise = [conv(wide, wide, 3, stride, wide), nn.BatchNorm2d(wide), nn.ReLU6()]
        last = [conv(wide, outputs, 1), nn.BatchNorm2d(outputs)]
        self.seq = nn.Sequential(*first, *depthwise, *last)
        self.skip = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.seq(x) if self.skip else self.seq(x)


class MobileNetV2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv(3, 32, 3, 2), nn.BatchNorm2d(32), nn.ReLU6()]
        inputs = 32
        for expand, outputs, count, stride in INVERTED:
            for j in range(count):
                layers.append(Inverted(inputs, outputs, 1 if j else stride, expand))
                inputs = outputs
        layers += [conv(inputs, 1280, 1), nn.BatchNorm2d(1280), nn.ReLU6()]
        self.seq, self.fc = nn.Sequential(*layers), nn.Linear(1280, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.seq(x).mean((2, 3)))


def split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


class GPTBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.dn = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def _qkv(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [split_heads(t, self.heads) for t in self.qkv(self.ln1(x)).chunk(3, -1)]

    def _after(self, x: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.dn(F.gelu(self.up(self.ln2(x)), approximate="tanh"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self._qkv(x)
        return self._after(x, F.scaled_dot_product_attention(q, k, v, is_causal=True))

    def masked_step(self, x: torch.Tensor, cache: Cache, at: torch.Tensor) -> torch.Tensor:
        """One token beside a cache of full length; `at` is a tensor, so nothing recompiles."""
        q, k, v = self._qkv(x)
        keys, values = cache
        keys.index_copy_(2, at, k)
        values.index_copy_(2, at, v)
        mask = (torch.arange(keys.shape[2]) <= at)[None, None, None]
        return self._after(x, F.scaled_dot_product_attention(q, keys, values, mask))

    def sliced_step(self, x: torch.Tensor, cache: Cache, at: int) -> torch.Tensor:
        """One token beside what the cache holds so far."""
        q, k, v = self._qkv(x)
        keys, values = cache
        keys[:, :, at : at + 1], values[:, :, at : at + 1] = k, v
        seen = keys[:, :, : at + 1], values[:, :, : at + 1]
        return self._after(x, F.scaled_dot_product_attention(q, *seen))

    def growing_step(
        self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One token and the longer keys and values: what can be exported."""
        q, k, v = self._qkv(x)
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        scores = torch.softmax(q @ keys.transpose(2, 3) / math.sqrt(q.shape[-1]), -1)
        return self._after(x, scores @ values), keys, values


class GPTMini(nn.Module):
    def __init__(self, layers: int, dim: int, heads: int, tokens: int, vocabulary: int) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocabulary, dim), nn.Embedding(tokens, dim)
        self.blocks = nn.ModuleList(GPTBlock(dim, heads) for _ in range(layers))
        self.ln, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tok(x) + self.pos.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.ln(h))

    def masked_step(
        self, token: torch.Tensor, at: torch.Tensor, caches: list[Cache]
    ) -> torch.Tensor:
        h = self.tok(token) + self.pos(at)
        for block, cache in zip(self.blocks, caches, strict=True):
            h = block.masked_step(h, cache, at)
        return self.head(self.ln(h)).argmax(-1)

    def sliced_step(self, token: torch.Tensor, at: int, caches: list[Cache]) -> torch.Tensor:
        h = self.tok(token) + self.pos.weight[at : at + 1]
        for block, cache in zip(self.blocks, caches, strict=True):
            h = block.sliced_step(h, cache, at)
        return self.head(self.ln(h)).argmax(-1)


class GrowingDecoder(nn.Module):
    """A step of decoding as a function of stacked keys and values, for export."""

    def __init__(self, model: GPTMini) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, token: torch.Tensor, at: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        h, longer = self.model.tok(token) + self.model.pos(at), []
        for i, block in enumerate(self.model.blocks):
            h, *cache = block.growing_step(h, keys[i], values[i])
            longer.append(cache)
        token = self.model.head(self.model.ln(h)).argmax(-1)
        return token, *(torch.stack(part) for part in zip(*longer, strict=True))


class BertLayer(nn.Module):
    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.up, self.dn = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (split_heads(m(x), self.heads) for m in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.ln1(x + self.o(mixed))
        return self.ln2(x + self.dn(F.gelu(self.up(x))))


class Bert(nn.Module):
    def __init__(
        self, layers: int, dim: int, heads: int, hidden: int, tokens: int, vocabulary: int
    ) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocabulary, dim), nn.Embedding(tokens, dim)
        self.ln = nn.LayerNorm(dim)
        self.layers = nn.ModuleList(BertLayer(dim, heads, hidden) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.ln(self.tok(x) + self.pos.weight[: x.shape[1]])
        for layer in self.layers:
            h = layer(h)
        return h


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": MLP,
    "lenet": LeNet,
    "resnet18": lambda: ResNet(*RESNET18),
    "resnet50": lambda: ResNet(*RESNET50),
    "mobilenetv2": MobileNetV2,
    "gpt": lambda: GPTMini(*GPT),
    "bert": lambda: Bert(*BERT),
}


def load(name: str) -> nn.Module:
    """The model with the weights that all frameworks share."""
    model = MODELS[name]()
    state = {k: torch.from_numpy(v) for k, v in weights_of(name).items()}
    counters = {k: v for k, v in model.state_dict().items() if k.endswith("batches_tracked")}
    model.load_state_dict(state | counters)
    return model
