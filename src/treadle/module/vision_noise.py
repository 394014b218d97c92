"""Random changes of images as layers: noise, contrast, filters, mixtures of two samples."""

from __future__ import annotations

import abc
import math
from typing import Any

import numpy as np

import treadle.functional as F
from treadle.base.modes import uncast
from treadle.module.module import Module
from treadle.module.vision import require_images
from treadle.module.window import Extents, extents
from treadle.random import RNG
from treadle.tensor import Tensor


class AdditiveElemwise(Module):
    """Adds noise to images; a subclass says which by `sample(size)`.

    Args:
        per_channel: whether each channel gets its own noise, or all of an image the same.
        name: a name for messages and graphs.
    """

    def __init__(self, per_channel: bool = False, name: str | None = None) -> None:
        super().__init__(name)
        if not isinstance(per_channel, bool):
            raise NotImplementedError("per_channel is True or False; shares are not supported")
        self.per_channel = per_channel

    @abc.abstractmethod
    def sample(self, size: tuple[int, ...]) -> Tensor:
        """Noise of the given shape."""

    def forward(self, inp: Tensor) -> Tensor:
        x = require_images(inp, type(self).__name__)
        shape = x.shape
        if not self.per_channel:
            # The channels of images tagged as channels-last keep their place in the shape.
            shape = (x.shape[0], 1, *x.shape[2:])
        return x + self.sample(shape).to(x.device)

    def _module_info_string(self) -> str:
        return f"per_channel={self.per_channel}"


class _Seeded:
    """A generator that starts anew whenever its seed is set."""

    def __init__(self, seed: int | None) -> None:
        _check_seed(seed)
        self.value = seed
        self.rng = RNG(seed)

    def __getstate__(self) -> tuple[int | None, tuple[int, int]]:
        return self.value, self.rng.get_state()

    def __setstate__(self, state: tuple[int | None, tuple[int, int]]) -> None:
        self.value, where = state
        self.rng = RNG(self.value)
        self.rng.set_state(where)


def _check_seed(seed: object) -> None:
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise TypeError(f"seed must be an int or None, got {type(seed).__name__}")


class _SeededNoise(AdditiveElemwise):
    """Noise from a generator of its own."""

    def __init__(self, per_channel: bool, seed: int | None) -> None:
        super().__init__(per_channel)
        self._source = _Seeded(seed)

    @property
    def seed(self) -> int | None:
        """The generator's seed; setting it starts anew."""
        return self._source.value

    @seed.setter
    def seed(self, seed: int) -> None:
        self._source = _Seeded(seed)


class AdditiveGaussianNoise(_SeededNoise):
    """Adds normally distributed noise.

    Args:
        mean, std: of the noise.
        per_channel: whether each channel gets its own noise.
        seed: of the layer's generator; taken from the operating system if left out.
    """

    def __init__(
        self,
        mean: float = 0.0,
        std: float = 1.0,
        per_channel: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(per_channel, seed)
        self.mean = mean
        self.std = std

    def sample(self, size: tuple[int, ...]) -> Tensor:
        """Noise of the given shape."""
        return self._source.rng.normal(self.mean, self.std, size)


class AdditiveLaplaceNoise(_SeededNoise):
    """Adds noise of Laplace's distribution, with density exp(-|x - mean| / std) / (2 std).

    Args:
        mean, std: centre and scale of the noise.
        per_channel: whether each channel gets its own noise.
        seed: of the layer's generator; taken from the operating system if left out.
    """

    def __init__(
        self,
        mean: float = 0.0,
        std: float = 1.0,
        per_channel: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(per_channel, seed)
        self.mean = mean
        self.std = std

    def sample(self, size: tuple[int, ...]) -> Tensor:
        """Noise of the given shape, by the inverse of the distribution function."""
        u = self._source.rng.uniform(float(np.finfo(np.float32).eps) - 1, 1, size)
        return self.mean - self.std * F.sign(u) * F.log1p(-F.abs(u))


class AdditivePoissonNoise(_SeededNoise):
    """Adds noise of Poisson's distribution.

    Args:
        lam: mean and variance of the noise.
        per_channel: whether each channel gets its own noise.
        seed: of the layer's generator; taken from the operating system if left out.
    """

    def __init__(
        self, lam: float = 1.0, per_channel: bool = False, seed: int | None = None
    ) -> None:
        super().__init__(per_channel, seed)
        self.lam = lam

    def sample(self, size: tuple[int, ...]) -> Tensor:
        """Noise of the given shape."""
        drawn: Tensor = self._source.rng.poisson(self.lam, size)
        return drawn


def _drawn(value: Any, rng: RNG, size: tuple[int, ...] = (1,)) -> Tensor | float:
    """A number, or for a pair (a, b) draws from [a, b)."""
    if isinstance(value, tuple) and len(value) == 2:
        return rng.uniform(value[0], value[1], size)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"expected a number, or a pair of bounds, got {value!r}")
    return float(value)


class ActiveBlur(Module):
    """Filters images by a 3x3 kernel drawn at each call; a subclass gives it by `get_kernel`."""

    @abc.abstractmethod
    def get_kernel(self, inp: Tensor, c: int) -> Tensor:
        """Weights (c, 1, 1, 3, 3) of a convolution in `c` groups."""

    def forward(self, inp: Tensor) -> Tensor:
        x = require_images(inp, type(self).__name__)
        channels = x.shape[1]
        around = F.pad(x.astype("float32"), [(0, 0), (0, 0), (1, 1), (1, 1)], "reflect")
        kernel = self.get_kernel(x, channels)
        with uncast():  # Mixed precision would round pictures to 16 bits.
            filtered = F.conv2d(around, kernel, groups=channels)
        return _as_images(filtered, x)


def _as_images(result: Tensor, like: Tensor) -> Tensor:
    """A float32 result in the type of the images, clamped to what it holds."""
    dtype = like.dtype
    if dtype.kind == "b":
        return result > 0.5
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        result = F.clip(result, float(limits.min), float(limits.max))
    return result if result.dtype == dtype else result.astype(dtype)


class _Blend(ActiveBlur):
    """A mixture of the image and of a filtered one."""

    def __init__(self, alpha: Any, strength: Any, seed: int | None) -> None:
        super().__init__()
        self.alpha = alpha
        self._strength = strength
        self._source = _Seeded(seed)
        self.seed = seed

    @abc.abstractmethod
    def _effect(self, strength: Tensor | float) -> Tensor:
        """The filter (3, 3)."""

    def get_kernel(self, inp: Tensor, c: int) -> Tensor:
        """Weights (c, 1, 1, 3, 3) of a convolution in `c` groups."""
        rng = self._source.rng
        alpha, strength = _drawn(self.alpha, rng), _drawn(self._strength, rng)
        same = _kernel([[0, 0, 0], [0, 1, 0], [0, 0, 0]])
        mixed = same * (1 - alpha) + self._effect(strength) * alpha
        return mixed.reshape(1, 1, 1, 3, 3).broadcast_to(c, 1, 1, 3, 3)


def _kernel(rows: list[list[int]]) -> Tensor:
    return Tensor(np.array(rows, np.float32))


class Emboss(_Blend):
    """Mixes images with an embossed version, which brings out highlights and shadows.

    Args:
        alpha: share of the embossed version, or a pair (a, b) to draw from [a, b) at each call.
        strength: how strong, usually 0 to 2, or a pair.
        seed: of the layer's generator; taken from the operating system if left out.
    """

    def __init__(self, alpha: Any, strength: Any, seed: int | None = None) -> None:
        super().__init__(alpha, strength, seed)
        self.strength = strength

    def _effect(self, strength: Tensor | float) -> Tensor:
        fixed = _kernel([[-1, 0, 0], [0, 1, 0], [0, 0, 1]])
        return fixed + _kernel([[-1, -1, 0], [-1, 0, 1], [0, 1, 1]]) * strength


class Sharpen(_Blend):
    """Mixes images with a sharpened version.

    Args:
        alpha: share of the sharpened version, or a pair (a, b) to draw from [a, b) at each call.
        lightness: how bright, usually 0.5 to 2, or a pair.
        seed: of the layer's generator; taken from the operating system if left out.
    """

    def __init__(self, alpha: Any, lightness: Any, seed: int | None = None) -> None:
        super().__init__(alpha, lightness, seed)
        self.lightness = lightness

    def _effect(self, strength: Tensor | float) -> Tensor:
        fixed = _kernel([[-1, -1, -1], [-1, 8, -1], [-1, -1, -1]])
        return fixed + _kernel([[0, 0, 0], [0, 1, 0], [0, 0, 0]]) * strength


class LinearContrast(Module):
    """Moves every value v away from, or towards, the middle m: m + alpha * (v - m).

    m is 127 for uint8, the middle of their range for other integers, and 0 for floats. uint8
    results are clamped to 0 to 255.

    Args:
        alpha: the factor, or a pair (a, b) to draw from [a, b) for every image.
        per_channel: whether factors are drawn for every channel.
        seed: of the layer's generator; taken from the operating system if left out.
    """

    def __init__(self, alpha: Any, per_channel: bool = False, seed: int | None = None) -> None:
        super().__init__()
        self.alpha = alpha
        self.per_channel = per_channel
        self.seed = seed
        self._source = _Seeded(seed)

    def forward(self, inp: Tensor) -> Tensor:
        x = require_images(inp, "LinearContrast")
        size = (x.shape[0], x.shape[1] if self.per_channel else 1, 1, 1)
        alpha = _drawn(self.alpha, self._source.rng, size)
        middle = _middle(x.dtype)
        return _as_images((x.astype("float32") - middle) * alpha + middle, x)

    def _module_info_string(self) -> str:
        return f"alpha={self.alpha}, per_channel={self.per_channel}"


def _middle(dtype: np.dtype[Any]) -> float:
    if dtype.kind == "u":
        return float(np.iinfo(dtype).max // 2)
    return -0.5 if dtype.kind == "i" else 0.0


class Mixup(Module):
    """Mixes two batches, images and labels alike (Zhang et al., mixup, 2018).

    `forward(data1, label1, data2, label2)` takes images (N, C, H, W) and labels (N,) and returns
    lamb * first + (1 - lamb) * second for both, with lamb drawn for every sample.

    Args:
        beta: both parameters of the beta distribution that shares are drawn from.
        seed: of the layer's generator; taken from the operating system if left out.
    """

    def __init__(self, beta: float, seed: int | None = None) -> None:
        super().__init__()
        self.beta = beta
        self._source = _Seeded(seed)

    def sample(self, batch: int) -> Tensor:
        """Shares (batch,) of the first samples."""
        drawn: Tensor = self._source.rng.beta(self.beta, self.beta, size=(batch,))
        return drawn

    def forward(
        self, data1: Tensor, label1: Tensor, data2: Tensor, label2: Tensor
    ) -> tuple[Tensor, Tensor]:
        x = require_images(data1, "Mixup")
        y = require_images(data2, "Mixup")
        lamb = self.sample(x.shape[0])
        wide = lamb.reshape(-1, 1, 1, 1)
        return wide * x + (1.0 - wide) * y, lamb * label1 + (1.0 - lamb) * label2

    def _module_info_string(self) -> str:
        return f"beta={self.beta}"


class Cutmix(Module):
    """Puts a box of each second image into the first (Yun et al., CutMix, 2019).

    `forward(data1, label1, data2, label2)` takes images (N, C, H, W) and labels (N,). The box has
    the share 1 - lamb of the area, around a centre drawn uniformly, clipped to the image; labels
    are mixed by lamb.

    Args:
        beta: both parameters of the beta distribution that shares are drawn from.
        seed: of the layer's generator; taken from the operating system if left out.
    """

    def __init__(self, beta: float, seed: int | None = None) -> None:
        super().__init__()
        self.beta = beta
        self._source = _Seeded(seed)

    def sample(self, batch: int) -> Tensor:
        """Shares (batch,) of the first samples."""
        drawn: Tensor = self._source.rng.beta(self.beta, self.beta, size=(batch,))
        return drawn

    def forward(
        self, data1: Tensor, label1: Tensor, data2: Tensor, label2: Tensor
    ) -> tuple[Tensor, Tensor]:
        x = require_images(data1, "Cutmix")
        y = require_images(data2, "Cutmix")
        n, _, height, width = x.shape
        lamb = self.sample(n)
        side = F.sqrt(1.0 - lamb)
        rows = self._within(height, side).reshape(n, 1, height, 1)
        columns = self._within(width, side).reshape(n, 1, 1, width)
        box = F.logical_and(rows, columns).broadcast_to(*x.shape)
        mixed: Tensor = F.where(box, y, x)
        return mixed, lamb * label1 + (1.0 - lamb) * label2

    def _within(self, extent: int, side: Tensor) -> Tensor:
        """Return whether each row or column lies in the box: (N, extent)."""
        length = F.floor(side * extent).reshape(-1, 1)
        centre = F.floor(self._source.rng.uniform(0, extent, size=(side.shape[0],))).reshape(-1, 1)
        first = centre - F.floor(length / 2)
        cells = F.arange(extent).reshape(1, -1)
        within: Tensor = F.logical_and(cells >= first, cells < first + length)
        return within

    def _module_info_string(self) -> str:
        return f"beta={self.beta}"


_BORDERS = {"REPLICATE": "edge", "REFLECT": "symmetric", "REFLECT_101": "reflect", "WRAP": "wrap"}
"""OpenCV's names of borders, and NumPy's."""


class GaussianBlur(Module):
    """Blurs images (N, H, W, C) of one channel or three, as OpenCV's GaussianBlur.

    Args:
        kernel_size: odd extents (height, width) of the filter; an int stands for both.
        sigma_x: deviation along the columns; 0 means 0.3 ((width - 1) / 2 - 1) + 0.8.
        sigma_y: deviation along the rows; 0 means that of the columns, or by height if that is 0.
        border_mode: "REPLICATE", "REFLECT", "REFLECT_101", "WRAP" or "CONSTANT" (zeros).

    Raises:
        ValueError: a size is even, or the border is none of these.
        ShapeError: the images have another number of channels.
    """

    def __init__(
        self,
        kernel_size: Extents,
        sigma_x: float = 0,
        sigma_y: float = 0,
        border_mode: str = "REPLICATE",
    ) -> None:
        super().__init__()
        self.kernel_size = extents(kernel_size, 2, "GaussianBlur: kernel_size")
        if any(size % 2 == 0 for size in self.kernel_size):
            raise ValueError(f"GaussianBlur: kernel sizes are odd, got {self.kernel_size}")
        if border_mode not in (*_BORDERS, "CONSTANT"):
            known = ", ".join((*_BORDERS, "CONSTANT"))
            raise ValueError(f"GaussianBlur: border_mode is one of {known}; got {border_mode!r}")
        self.sigma_x = sigma_x
        self.sigma_y = sigma_y
        self.border_mode = border_mode

    def forward(self, inp: Tensor) -> Tensor:
        x = require_images(inp, "GaussianBlur")
        self._check_channels(x)
        out = x.astype("float32")
        for axis, size, sigma in self._sides():
            out = self._filtered(out, axis, _bell(size, sigma))
        if x.dtype.kind in "iu":
            out = F.round(out)
        return _as_images(out, x)

    def _sides(self) -> tuple[tuple[int, int, float], tuple[int, int, float]]:
        height, width = self.kernel_size
        return (1, height, self.sigma_y or self.sigma_x), (2, width, self.sigma_x)

    def _check_channels(self, x: Tensor) -> None:
        if x.shape[3] not in (1, 3):
            raise ValueError(
                f"GaussianBlur: expects images (N, H, W, C) of 1 or 3 channels, got {x.type}; "
                "transpose images (N, C, H, W) by (0, 2, 3, 1)"
            )

    def _filtered(self, x: Tensor, axis: int, weights: list[float]) -> Tensor:
        half, extent = len(weights) // 2, x.shape[axis]
        widths = [(half, half) if i == axis else (0, 0) for i in range(4)]
        if self.border_mode == "CONSTANT":
            wide = F.pad(x, widths)
        else:
            mode: Any = _BORDERS[self.border_mode]
            cells = np.pad(np.arange(extent), half, mode).astype(np.int32)
            wide = x[(slice(None),) * axis + (Tensor(cells),)]
        before = (slice(None),) * axis
        parts = (wide[(*before, slice(i, i + extent))] * w for i, w in enumerate(weights))
        total = next(parts)
        for part in parts:
            total = total + part
        return total

    def _module_info_string(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, sigma_x={self.sigma_x}, sigma_y={self.sigma_y}, "
            f"border_mode={self.border_mode}"
        )


def _bell(size: int, sigma: float) -> list[float]:
    """Weights of a Gaussian filter that sum to 1."""
    deviation = sigma if sigma > 0 else 0.3 * ((size - 1) * 0.5 - 1) + 0.8
    raw = [math.exp(-((i - size // 2) ** 2) / (2 * deviation**2)) for i in range(size)]
    return [w / sum(raw) for w in raw]
