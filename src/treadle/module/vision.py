"""Image transforms as layers, on batches of images (N, C, H, W) unless said otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np

import treadle.functional as F
from treadle.base.errors import ShapeError
from treadle.module.module import Module
from treadle.tensor import Tensor


def require_images(x: object, where: str) -> Tensor:
    """The argument, a tensor with four axes.

    Raises:
        TypeError: it is not a tensor.
        ShapeError: it has another number of axes.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{where}: expected input is a tensor, got {type(x).__name__}")
    if x.ndim != 4:
        raise ShapeError(
            where, "expects images (N, C, H, W)", saw=str(x.type), hint="add the missing axes"
        )
    return x


class Flip(Module):
    """`F.flip` as a layer: images (N, H, W, C), upside down, left to right, or both.

    Args:
        vertical: whether rows change their order.
        horizontal: whether columns do.
    """

    def __init__(self, vertical: bool = True, horizontal: bool = True) -> None:
        super().__init__()
        self.vertical = vertical
        self.horizontal = horizontal

    def forward(self, inp: Tensor) -> Tensor:
        return F.vision.flip(require_images(inp, "Flip"), self.vertical, self.horizontal)

    def _module_info_string(self) -> str:
        return f"vertical={self.vertical}, horizontal={self.horizontal}"


class RandomHorizontalFlip(Flip):
    """Images (N, H, W, C) left to right, the whole batch with a probability.

    Args:
        prob: how often, from 0 to 1.
    """

    def __init__(self, prob: float = 0.5) -> None:
        super().__init__(vertical=False)
        self.prob = prob

    def forward(self, inp: Tensor) -> Tensor:
        return super().forward(inp) if np.random.rand() < self.prob else inp


class RandomVerticalFlip(Flip):
    """Images (N, H, W, C) upside down, the whole batch with a probability.

    Args:
        prob: how often, from 0 to 1.
    """

    def __init__(self, prob: float = 0.5) -> None:
        super().__init__(horizontal=False)
        self.prob = prob

    def forward(self, inp: Tensor) -> Tensor:
        return super().forward(inp) if np.random.rand() < self.prob else inp


class Resize(Module):
    """`F.resize` as a layer.

    Args:
        size: extents (H, W) of the result.
        format: "NCHW" or "NHWC".
        imode: how values between cells are found, "linear" by default.
    """

    def __init__(self, size: Any, format: str = "NCHW", imode: str = "linear") -> None:
        super().__init__()
        _require_format(format, "Resize")
        self.size = size
        self.format = format
        self.imode = imode

    def forward(self, inp: Tensor) -> Tensor:
        x = require_images(inp, "Resize")
        out: Tensor = F.vision.resize(x, self.size, self.format, self.imode)
        return out

    def _module_info_string(self) -> str:
        return f"size={self.size}, format={self.format}, imode={self.imode}"


class Rot90(Module):
    """`F.rot90` as a layer: images (N, H, W, C), a quarter turn clockwise or the other way."""

    def __init__(self, clockwise: bool = True) -> None:
        super().__init__()
        self.clockwise = clockwise

    def forward(self, inp: Tensor) -> Tensor:
        out: Tensor = F.vision.rot90(require_images(inp, "Rot90"), self.clockwise)
        return out

    def _module_info_string(self) -> str:
        return f"clockwise={self.clockwise}"


class Rotate(Module):
    """`F.rotate` as a layer.

    Args:
        angle: degrees.
        format: "NCHW" or "NHWC".
        interp_mode: how values between cells are found.
    """

    def __init__(
        self, angle: float = 0.0, format: str = "NCHW", interp_mode: str = "bilinear"
    ) -> None:
        super().__init__()
        _require_format(format, "Rotate")
        self.angle = angle
        self.format = format
        self.interp_mode = interp_mode

    def forward(self, inp: Tensor) -> Tensor:
        x = require_images(inp, "Rotate")
        out: Tensor = F.vision.rotate(x, self.angle, self.format, self.interp_mode)
        return out

    def _module_info_string(self) -> str:
        return f"angle={self.angle}, format={self.format}, interp_mode={self.interp_mode}"


class Remap(Module):
    """Reads images at given places.

    `forward(inp, map_1, map_2, interpolation="linear", borderMode="replicate", borderValue=0.0)`
    takes columns `map_1` and rows `map_2`, both (N, OH, OW), or both in `map_1` (N, OH, OW, 2)
    beside an empty `map_2`. The result is (N, C, OH, OW); see `F.remap` for the modes.
    """

    def forward(
        self,
        inp: Tensor,
        map_1: Tensor,
        map_2: Tensor,
        interpolation: str = "linear",
        borderMode: str = "replicate",
        borderValue: float = 0.0,
    ) -> Tensor:
        x = require_images(inp, "Remap")
        places = map_1
        if map_2.size:
            if map_1.shape != map_2.shape:
                raise ShapeError(
                    "Remap",
                    "the maps of columns and rows differ in shape",
                    saw=f"map_1 {map_1.type}, map_2 {map_2.type}",
                    hint="pass both as (N, OH, OW)",
                )
            places = F.stack([map_1, map_2], axis=map_1.ndim)
        return F.vision.remap(x, places, borderMode, borderValue, interpolation)


class CropAndPad(Module):
    """Crops or pads every image by a share of its extents, and resizes it to what it was.

    `forward(inp, percent, pad_val=None)` takes shares (N,): where positive, so much is added at
    every side, where negative, cut off; and values (N,) to pad with, zeros if left out.

    Args:
        mode: "bilinear" or "nearest".
        align_corners: whether the outermost cells keep their place; for "bilinear" only.

    Raises:
        ValueError: there is no such mode.
    """

    def __init__(self, mode: str = "bilinear", align_corners: bool = False) -> None:
        super().__init__()
        if mode not in ("bilinear", "nearest"):
            raise ValueError(f"CropAndPad: mode must be bilinear or nearest, got {mode!r}")
        self.mode = mode
        self.align_corners = align_corners

    def forward(self, inp: Tensor, percent: Tensor, pad_val: Tensor | None = None) -> Tensor:
        x = require_images(inp, "CropAndPad")
        n, _, height, width = x.shape
        rows = self._places(percent, height).reshape(n, height, 1)
        columns = self._places(percent, width).reshape(n, 1, width)
        places = F.stack([t.broadcast_to(n, height, width) for t in (columns, rows)], axis=3)
        interp = "linear" if self.mode == "bilinear" else "nearest"
        # What lies outside counts as the value to pad with: zero, once that is subtracted.
        base = pad_val.reshape(n, 1, 1, 1) if pad_val is not None and pad_val.size else None
        shifted = x if base is None else x - base
        out: Tensor = F.vision.remap(shifted, places, "constant", 0.0, interp)
        return out if base is None else out + base

    def _places(self, percent: Tensor, extent: int) -> Tensor:
        """Return the position in the image of each cell of the result: (N, extent)."""
        added = F.floor(percent.reshape(-1, 1) * extent + 0.5)
        have = extent + 2 * added
        cells = F.arange(extent).reshape(1, -1)
        if self.mode == "nearest":
            places = F.floor((cells + 0.5) * have / extent)
        elif self.align_corners:
            places = cells * (have - 1) / max(extent - 1, 1)
        else:
            places = (cells + 0.5) * have / extent - 0.5
        return F.minimum(F.maximum(places, 0.0), have - 1) - added

    def _module_info_string(self) -> str:
        return f"mode={self.mode}, align_corners={self.align_corners}"


class Dilation(Module):
    """Every cell becomes the largest value under a structuring element centred on it.

    `forward(inp, kernel)` takes the element (kh, kw): cells that are not 0 belong to it.

    Args:
        iterations: how often.
        border_type: "BORDER_CONSTANT"; what lies outside counts as `border_value`.
        border_value: see there.

    Raises:
        ValueError: there is no such border.
    """

    def __init__(
        self,
        iterations: int = 1,
        border_type: str = "BORDER_CONSTANT",
        border_value: float = 0.0,
    ) -> None:
        super().__init__()
        if border_type != "BORDER_CONSTANT":
            raise ValueError(f"Dilation: border_type must be BORDER_CONSTANT, got {border_type!r}")
        self.iterations = iterations
        self.border_type = border_type
        self.border_value = border_value

    def forward(self, inp: Tensor, kernel: Any) -> Tensor:
        x = require_images(inp, "Dilation")
        element = np.asarray(kernel)
        if element.ndim != 2:
            raise ShapeError("Dilation", f"the element has {element.ndim} axes", hint="pass 2")
        for _ in range(self.iterations):
            x = self._once(x, np.argwhere(element).tolist(), element.shape)
        return x

    def _once(self, x: Tensor, cells: list[list[int]], extent: tuple[int, ...]) -> Tensor:
        widths = [((size - 1) // 2, size // 2) for size in extent]
        wide = F.pad(x, [(0, 0), (0, 0), *widths], constant_value=self.border_value)
        height, width = x.shape[2:]
        best = None
        for row, column in cells:
            part = wide[:, :, row : row + height, column : column + width]
            best = part if best is None else F.maximum(best, part)
        return x if best is None else best

    def _module_info_string(self) -> str:
        return (
            f"iterations={self.iterations}, border_type={self.border_type}, "
            f"border_value={self.border_value}"
        )


class FillPoly(Module):
    """Fills polygons.

    `forward(inp, points, color)` takes the corners (N, P, 2) of one polygon per image, as (column,
    row), and values (C,) or (N, C). A cell is filled where its centre lies inside by the even-odd
    rule; the result has the type of the images.
    """

    def forward(self, inp: Tensor, points: Tensor, color: Tensor) -> Tensor:
        x = require_images(inp, "FillPoly")
        n, channels, height, width = x.shape
        if points.ndim != 3 or points.shape[0] != n or points.shape[2] != 2:
            raise ShapeError(
                "FillPoly",
                "points are (N, P, 2), one polygon per image",
                saw=f"inp {x.type}, points {points.type}",
                hint="reshape them",
            )
        rows = F.arange(height, device=x.device).reshape(1, height, 1, 1)
        columns = F.arange(width, device=x.device).reshape(1, 1, width, 1)
        inside = _inside(points.astype("float32"), rows, columns)
        values = color.astype(x.dtype).reshape(-1, channels, 1, 1).broadcast_to(*x.shape)
        filled = inside.reshape(n, 1, height, width).broadcast_to(*x.shape)
        out: Tensor = F.where(filled, values, x)
        return out


def _inside(points: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return whether a line from each cell to the right crosses the polygon an odd number
    of times.
    """
    n, count, _ = points.shape
    ahead = F.concat([points[:, 1:], points[:, :1]], axis=1)
    corners = (points[..., 0], points[..., 1], ahead[..., 0], ahead[..., 1])
    x0, y0, x1, y1 = (p.reshape(n, 1, 1, count) for p in corners)
    crosses = (y0 > rows) ^ (y1 > rows)
    rise = F.where(crosses, (y1 - y0).broadcast_to(*crosses.shape), F.ones(crosses.shape))
    reached = (x1 - x0) * (rows - y0) / rise + x0
    hits = F.logical_and(columns < reached, crosses).astype("float32").sum(axis=3)
    odd: Tensor = F.floor(hits / 2) * 2 != hits
    return odd


def _require_format(format: str, where: str) -> None:
    if format not in ("NCHW", "NHWC"):
        raise RuntimeError(f"{where}: the format must be NCHW or NHWC, got {format}")
