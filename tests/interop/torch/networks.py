"""Small networks of PyTorch that the tests of both ways in share."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

    def forward(self, x: Any) -> Any:
        batch, time, width = x.shape
        parts = self.qkv(self.before(x)).view(batch, time, 3, 2, width // 2)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(batch, time, width))
        return x + self.mlp(self.after(x))


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.first = nn.Parameter(torch.zeros(1, 1, 16))
        self.place = nn.Parameter(torch.randn(1, 10, 16) * 0.02)
        self.block, self.head = Block(16, causal=False), nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.place
        return self.head(self.block(x)[:, 0])


class Language(nn.Module):
    """Tied weights, positions made in the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(30, 16), nn.Embedding(8, 16)
        self.block, self.head = Block(16, causal=True), nn.Linear(16, 30, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Any) -> Any:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.block(x))


class Masked(nn.Module):
    """Attention by hand with a mask, and by ATen with one that hides all keys of a query."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)).bool())

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        seen = self.mask[: x.shape[1], : x.shape[1]]
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(16)
        hand = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v
        none = torch.cat([torch.zeros_like(seen[:1]), seen[1:]])
        q, k, v = q[:, None], k[:, None], v[:, None]
        return hand + F.scaled_dot_product_attention(q, k, v, attn_mask=none)[:, 0]


def double(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, groups=2),
        nn.GroupNorm(2, outputs),
        nn.LeakyReLU(0.1, inplace=True),
    )


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = double(2, 4), double(4, 8)
        self.up, self.last = nn.ConvTranspose2d(8, 4, 2, 2), double(16, 4)

    def forward(self, x: Any) -> Any:
        x = self.down(x)
        deep = self.deep(F.max_pool2d(x, 2))
        wide = F.interpolate(deep[:, :4], scale_factor=2, mode="bilinear", align_corners=False)
        near = F.interpolate(deep[:, 4:], size=x.shape[2:], mode="nearest")
        return self.last(torch.cat([x, self.up(deep), wide, near], 1))


class InPlace(nn.Module):
    """Writes into tensors it made, and into a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        y = self.linear(x).clone()
        y[:, 0] = 0
        y[:, 1:3] += x[:, 1:3]
        y[y > 1] = 0.5
        z = torch.zeros_like(y)
        z[:, ::2] = y.mul_(2)[:, ::2]
        return z.add_(y) + self.calls


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, batch_first=True)
        self.norm = nn.RMSNorm(8)

    def forward(self, x: Any) -> Any:
        y, (last, _) = self.lstm(x)
        return self.norm(y) + last.transpose(0, 1)


class Mobile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(4, 8, 3, groups=4, padding=1),
            nn.Hardswish(),
            nn.InstanceNorm2d(8, affine=True),
            nn.AdaptiveAvgPool2d((3, 2)),
            nn.Hardsigmoid(),
            nn.PReLU(),
        )

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class Recommender(nn.Module):
    """DLRM: bags of rows, products of all pairs of features."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(20, 8, mode="sum") for _ in range(3))
        self.bottom = nn.Sequential(nn.Linear(5, 8), nn.ReLU())
        self.top = nn.Linear(8 + 6, 1)
        self.register_buffer("offsets", torch.tensor([0, 2, 2, 5]))
        self.register_buffer("rows", torch.tensor([i for i in range(4) for _ in range(i)]))
        self.register_buffer("columns", torch.tensor([j for i in range(4) for j in range(i)]))

    def forward(self, tokens: Any) -> Any:
        x = self.bottom(tokens[:, :5].float() / 20)
        bags = [bag(tokens[i], self.offsets) for i, bag in enumerate(self.bags)]
        each = torch.stack([x, *bags], 1)
        pairs = torch.bmm(each, each.transpose(1, 2))[:, self.rows, self.columns]
        return torch.sigmoid(self.top(torch.cat([x, pairs], 1)))


class Flow(nn.Module):
    """Coupling layers behind an invertible product, whose determinant is in the likelihood."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.linalg.qr(torch.randn(4, 4))[0])
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 4)) for _ in range(2)
        )

    def forward(self, x: Any) -> Any:
        total = torch.linalg.slogdet(self.mix)[1].expand(len(x))
        x = x @ self.mix
        for net in self.nets:
            a, b = x.chunk(2, 1)
            scale, shift = net(a).chunk(2, 1)
            x = torch.cat([b * torch.tanh(scale).exp() + shift, a], 1)
            total = total + torch.tanh(scale).sum(1)
        return total - 0.5 * (x**2).sum(1)


class Messages(nn.Module):
    """Attention over the edges of a graph: a softmax over what arrives at each node."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.score, self.out = nn.Linear(6, 8), nn.Linear(16, 1), nn.Linear(8, 3)
        self.register_buffer("source", torch.tensor([0, 1, 2, 3, 4, 5, 0, 1]))
        self.register_buffer("target", torch.tensor([1, 2, 2, 3, 3, 0, 0, 5]))

    def forward(self, x: Any) -> Any:
        h, target = self.lift(x), self.target
        ends = torch.cat([h[self.source], h[target]], 1)
        score = nn.functional.leaky_relu(self.score(ends))[:, 0]
        most = torch.full((len(x),), -1e30).scatter_reduce(0, target, score.detach(), "amax")
        weight = (score - most[target]).exp()
        share = weight / torch.zeros(len(x)).index_add(0, target, weight)[target]
        messages = share[:, None] * h[self.source]
        return self.out(torch.zeros_like(h).scatter_add(0, target[:, None].expand(-1, 8), messages))


NETWORKS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "vit": (VisionTransformer, lambda: torch.randn(2, 3, 12, 12)),
    "gpt": (Language, lambda: torch.randint(0, 30, (2, 8))),
    "masked": (Masked, lambda: torch.randn(2, 6, 16)),
    "unet": (UNet, lambda: torch.randn(2, 2, 8, 8)),
    "in place": (InPlace, lambda: torch.randn(4, 6)),
    "lstm": (Sequences, lambda: torch.randn(2, 4, 6)),
    "recommender": (Recommender, lambda: torch.randint(0, 20, (4, 7))),
    "flow": (Flow, lambda: torch.randn(5, 4)),
    "graph": (Messages, lambda: torch.randn(6, 6)),
    "mobile": (Mobile, lambda: torch.randn(2, 4, 7, 6)),
}
