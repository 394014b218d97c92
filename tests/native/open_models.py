"""Small models of the kinds that strangers bring, whose inputs have no fixed size."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import treadle as mge
import treadle.functional as F
import treadle.module as M

WIDTH = 16


def numbers(*shape: int) -> mge.Tensor:
    rng = np.random.default_rng(sum(shape))
    return mge.tensor(rng.standard_normal(shape).astype("float32"))


def indices(high: int, *shape: int) -> mge.Tensor:
    return mge.tensor(np.random.default_rng(sum(shape)).integers(0, high, shape).astype("int32"))


def attend(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """Attention with four heads."""

    def heads(x: Any) -> Any:
        return x.reshape(x.shape[0], x.shape[1], 4, -1).transpose(0, 2, 1, 3)

    scores = F.matmul(heads(q), heads(k), transpose_b=True) / 2.0
    if mask is not None:
        scores = F.where(mask, scores, F.full_like(scores, -1e9))
    found = F.matmul(F.softmax(scores, -1), heads(v))
    return found.transpose(0, 2, 1, 3).reshape(q.shape)


def projections(count: int) -> list[M.Module]:
    return [M.Linear(WIDTH, WIDTH) for _ in range(count)]


class Encoder(M.Module):
    """Texts with a mask made of their lengths, and a mean over what is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = M.Embedding(50, WIDTH), M.Embedding(300, WIDTH)
        self.q, self.k, self.v = projections(3)
        self.norm = M.LayerNorm(WIDTH)

    def forward(self, ids: Any, lengths: Any) -> Any:
        n, t = ids.shape
        x = self.words(ids) + self.places(F.arange(t).astype("int32"))
        inside = F.arange(t).reshape(1, t) < lengths.reshape(n, 1)
        mask = inside.reshape(n, 1, 1, t)
        x = self.norm(x + attend(self.q(x), self.k(x), self.v(x), mask))
        kept = inside.astype("float32").reshape(n, t, 1)
        return (x * kept).sum(1) / kept.sum(1)


class Translator(M.Module):
    """A decoder over a text of another length."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = projections(4)
        self.norm = M.LayerNorm(WIDTH)

    def forward(self, source: Any, target: Any) -> Any:
        place = F.arange(target.shape[1])
        seen = F.expand_dims(place, 1) >= F.expand_dims(place, 0)
        y = target + attend(self.q(target), self.k(target), self.v(target), seen)
        y = self.norm(y)
        return self.o(y + attend(y, self.k(source), self.v(source)))


class UNet(M.Module):
    """Pictures padded to a multiple of four, with joins, and cut back."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((3, 6), (6, 8), (14, 4))
        self.a, self.b, self.c = [M.Conv2d(i, o, 3, padding=1) for i, o in sizes]

    def forward(self, x: Any) -> Any:
        height, width = x.shape[2:]
        x = F.pad(x, ((0, 0), (0, 0), (0, -height % 4), (0, -width % 4)))
        fine = F.relu(self.a(x))
        coarse = F.relu(self.b(F.max_pool2d(fine, 2)))
        up = F.vision.interpolate(coarse, size=fine.shape[2:], mode="bilinear")
        return self.c(F.concat([up, fine], 1))[:, :, :height, :width]


class Joint(M.Module):
    """Sound and text of an RNN transducer, each of its length."""

    def __init__(self) -> None:
        super().__init__()
        self.sound, self.text = M.LSTM(WIDTH, WIDTH), M.Embedding(30, WIDTH)
        self.out = M.Linear(WIDTH, 30)

    def forward(self, x: Any, y: Any) -> Any:
        sound = F.expand_dims(self.sound(x)[0].transpose(1, 0, 2), 2)
        joined = F.tanh(sound + F.expand_dims(self.text(y), 1))
        return F.logsoftmax(self.out(joined), -1)


class Conformer(M.Module):
    """Attention and a convolution over time with statistics of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = projections(4)
        self.wide, self.deep = M.Conv1d(WIDTH, 2 * WIDTH, 1), M.Conv1d(WIDTH, WIDTH, 5, padding=2)
        self.norm = M.BatchNorm1d(WIDTH)

    def forward(self, x: Any) -> Any:
        x = x + attend(self.q(x), self.k(x), self.v(x))
        a, b = F.split(self.wide(x.transpose(0, 2, 1)), 2, axis=1)
        y = F.silu(self.norm(self.deep(a * F.sigmoid(b))))
        return self.out(x + y.transpose(0, 2, 1))


class Windows(M.Module):
    """Attention in shifted windows of a picture, which is padded to a multiple of them."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.qkv = M.Conv2d(3, 8, 2, 2), M.Linear(8, 24)

    def forward(self, x: Any) -> Any:
        x = self.patches(x).transpose(0, 2, 3, 1)
        n, h, w, d = x.shape
        y = F.pad(x, ((0, 0), (0, -h % 4), (0, -w % 4), (0, 0)))
        y = F.roll(y, (-2, -2), (1, 2))
        rows, columns = y.shape[1] // 4, y.shape[2] // 4
        y = y.reshape(n, rows, 4, columns, 4, d).transpose(0, 1, 3, 2, 4, 5).reshape(-1, 16, d)
        q, k, v = F.split(self.qkv(y), 3, axis=-1)
        y = F.matmul(F.softmax(F.matmul(q, k, transpose_b=True), -1), v)
        y = y.reshape(n, rows, columns, 4, 4, d).transpose(0, 1, 3, 2, 4, 5)
        y = F.roll(y.reshape(n, rows * 4, columns * 4, d), (2, 2), (1, 2))
        return x + y[:, :h, :w]


class Queries(M.Module):
    """Ten questions to a picture with places in it, as DETR asks them."""

    def __init__(self) -> None:
        super().__init__()
        self.map, self.head = M.Conv2d(3, WIDTH, 3, 4, 1), M.Linear(WIDTH, 5)
        self.asked = mge.Parameter(np.random.default_rng(0).random((10, WIDTH), "float32"))
        self.k, self.v = projections(2)

    def forward(self, x: Any) -> Any:
        f = F.relu(self.map(x))
        n, d, h, w = f.shape
        f = f + F.sin((F.arange(h) / h).reshape(1, 1, h, 1))
        f = f + F.cos((F.arange(w) / w).reshape(1, 1, 1, w))
        memory = F.flatten(f, 2).transpose(0, 2, 1)
        asked = F.broadcast_to(F.expand_dims(self.asked, 0), (n, 10, d))
        return self.head(attend(asked, self.k(memory), self.v(memory)))


class Squeezed(M.Module):
    """Depthwise convolutions of a picture, scaled by what all of it says."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.deep = M.ConvBn2d(3, 12, 3, 2, 1), M.Conv2d(12, 12, 5, 2, 2, groups=12)
        self.less, self.more, self.head = M.Conv2d(12, 3, 1), M.Conv2d(3, 12, 1), M.Linear(12, 5)

    def forward(self, x: Any) -> Any:
        x = F.silu(self.deep(F.silu(self.stem(x))))
        x = x * F.sigmoid(self.more(F.silu(self.less(F.adaptive_avg_pool2d(x, 1)))))
        return self.head(x.mean(axis=(2, 3)))


class Waves(M.Module):
    """Dilated convolutions that see the past only."""

    def __init__(self) -> None:
        super().__init__()
        self.into = M.Conv1d(1, 6, 1)
        self.layers = [M.Conv1d(6, 12, 2, dilation=2**i) for i in range(3)]

    def forward(self, x: Any) -> Any:
        x = self.into(x)
        for i, layer in enumerate(self.layers):
            a, b = F.split(layer(F.pad(x, ((0, 0), (0, 0), (2**i, 0)))), 2, axis=1)
            x = x + F.tanh(a) * F.sigmoid(b)
        return x


class Upscaled(M.Module):
    """Pixel shuffle beside a cubic enlargement."""

    def __init__(self) -> None:
        super().__init__()
        self.more = M.Conv2d(3, 12, 3, padding=1)

    def forward(self, x: Any) -> Any:
        large = F.vision.interpolate(x, scale_factor=2, mode="bicubic")
        return F.pixel_shuffle(self.more(x), 2) + large


class Ragged(M.Module):
    """Rows of many texts in one, summed by text, and some of them taken."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = M.Linear(WIDTH, WIDTH)

    def forward(self, x: Any, starts: Any, chosen: Any) -> Any:
        y = F.relu(self.layer(x))
        place = F.expand_dims(F.arange(x.shape[0]), 0)
        text = (place >= F.expand_dims(starts, 1)).astype("float32").sum(0) - 1
        own = F.expand_dims(F.arange(starts.shape[0]), 1) == F.expand_dims(text, 0)
        totals = F.matmul(own.astype("float32"), y)
        return F.concat([totals, y[chosen]], 0)


class Relative(M.Module):
    """Places relative to one another, shifted as Transformer-XL does."""

    def __init__(self) -> None:
        super().__init__()
        self.table = mge.Parameter(np.random.default_rng(0).random((640, WIDTH), "float32"))

    def forward(self, x: Any) -> Any:
        n, t, _ = x.shape
        scores = F.matmul(x, self.table[321 - t : 320 + t], transpose_b=True)
        scores = F.pad(scores, ((0, 0), (0, 0), (1, 0))).reshape(n, 2 * t, t)
        return F.softmax(scores[:, 1:].reshape(n, t, 2 * t - 1)[:, :, :t], -1)


class Tagger(M.Module):
    """Sums over all ways through a text, by a scan over its places."""

    def __init__(self) -> None:
        super().__init__()
        self.moves = mge.Parameter(np.random.default_rng(0).random((5, 5), "float32"))

    def forward(self, x: Any) -> Any:
        def turn(state: Any, row: Any) -> Any:
            state = F.logsumexp(F.expand_dims(state, 2) + self.moves, 1) + row
            return state, state.mean(1)

        (state,), (means,) = mge.jit.scan(turn, (x[0],), (x[1:],))
        return F.logsumexp(state, 1) + means.mean(0)


class Patches(M.Module):
    """Windows of a picture, each weighted by its own mean."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = M.Linear(27, 4)

    def forward(self, x: Any) -> Any:
        y = F.sliding_window(x, (3, 3), (1, 1), (2, 2))
        n, c, h, w, *_ = y.shape
        return self.layer(y.transpose(0, 2, 3, 1, 4, 5).reshape(n, h, w, c * 9))


Draw = Callable[[random.Random], tuple[mge.Tensor, ...]]


def _length(draw: random.Random) -> int:
    return draw.choice((draw.randint(2, 15), draw.randint(16, 127), draw.randint(128, 250)))


def _picture(draw: random.Random) -> tuple[mge.Tensor, ...]:
    return (numbers(draw.randint(1, 3), 3, draw.randint(9, 60), draw.randint(9, 60)),)


def _text(draw: random.Random) -> tuple[mge.Tensor, ...]:
    return (numbers(draw.randint(1, 4), _length(draw), WIDTH),)


def _texts(draw: random.Random) -> tuple[mge.Tensor, ...]:
    n = draw.randint(1, 4)
    return numbers(n, _length(draw), WIDTH), numbers(n, _length(draw), WIDTH)


def _masked(draw: random.Random) -> tuple[mge.Tensor, ...]:
    n, t = draw.randint(1, 4), _length(draw)
    return indices(50, n, t), indices(t, n) + 1


def _spoken(draw: random.Random) -> tuple[mge.Tensor, ...]:
    n = draw.randint(1, 3)
    return numbers(draw.randint(2, 80), n, WIDTH), indices(30, n, draw.randint(1, 20))


def _ragged(draw: random.Random) -> tuple[mge.Tensor, ...]:
    n = _length(draw)
    starts = np.sort(np.random.default_rng(n).integers(0, n, draw.randint(1, 9)))
    starts[0] = 0
    return numbers(n, WIDTH), mge.tensor(starts.astype("int32")), indices(n, draw.randint(1, 30))


MODELS: dict[str, tuple[Callable[[], M.Module], Draw]] = {
    "encoder": (Encoder, _masked),
    "translator": (Translator, _texts),
    "unet": (UNet, _picture),
    "joint": (Joint, _spoken),
    "conformer": (Conformer, _text),
    "windows": (Windows, _picture),
    "queries": (Queries, _picture),
    "squeezed": (Squeezed, _picture),
    "waves": (Waves, lambda draw: (numbers(draw.randint(1, 3), 1, _length(draw)),)),
    "upscaled": (Upscaled, _picture),
    "ragged": (Ragged, _ragged),
    "relative": (Relative, _text),
    "tagger": (Tagger, lambda draw: (numbers(draw.randint(3, 90), draw.randint(1, 4), 5),)),
    "patches": (Patches, _picture),
}
