"""Base of vision transforms: one rule per kind of field, and an order that names the fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.base.errors import ShapeError
from treadle.data.transform.base import Transform

# A box is moved by its four corners: (x1, y1), (x2, y1), (x1, y2), (x2, y2).
_CORNERS = [0, 1, 2, 1, 0, 3, 2, 3]


class VisionTransform(Transform):
    """Base of the transforms of images and of what belongs to them.

    Args:
        order: what the fields of a sample are, first to last; ("image",) if None. Fields beyond
            the order, and those named `...category` or `...info` that a subclass has no rule for,
            stay as they are.

    =============  =============================================================================
    field          what it is
    =============  =============================================================================
    `image`        array (H, W, C), channels in OpenCV's order: blue, green, red
    `mask`         array (H, W, 1) of class numbers; never interpolated
    `coords`       array (N, 2) of points (x, y) in pixels, from the top left corner
    `boxes`        array (N, 4), each (x1, y1, x2, y2); stays an upright box
    `keypoints`    array (N, K, 3): K points (x, y, visibility) of each of N instances
    `polygons`     per instance a list of arrays (M, 2)
    =============  =============================================================================

    A sample is a tuple of fields; anything else is its one field. Arrays that come in are never
    written to. Points and boxes outside the image are kept and not clipped: what to do with them
    depends on the task. A subclass gives `_apply_image` and, for the other kinds, `_apply_mask`
    and `_apply_coords`; `_apply_<kind>` adds a kind of its own.

    Raises:
        ValueError: `order` is not a sequence of names, or holds "batch".
        NotImplementedError: a field has no rule in this class.
    """

    def __init__(self, order: Sequence[str] | None = None) -> None:
        self.set_order(("image",) if order is None else order)

    def set_order(self, order: Sequence[str]) -> None:
        if isinstance(order, str) or not isinstance(order, Sequence):
            raise ValueError(f"order should be a sequence, but got order={order!r}")
        for field in order:
            if field == "batch":
                raise ValueError(f"{field} is invalid data type")
            if not self._has_rule(field):
                raise NotImplementedError(
                    f"{field} is unsupported data type: {type(self).__name__} has no _apply_{field}"
                )
        super().set_order(order)

    def _has_rule(self, field: str) -> bool:
        """Return whether an order may name the field."""
        return field.endswith(("category", "info")) or self._get_apply(field) is not None

    def apply(self, input: Any) -> Any:
        fields = input if isinstance(input, tuple) else (input,)
        output = list(fields)
        # A sample may have fewer fields than the order names, and more.
        for position, (name, value) in enumerate(zip(self._names(), fields, strict=False)):
            rule = self._get_apply(name)
            if rule is not None:
                output[position] = rule(value)
        return output[0] if len(output) == 1 else tuple(output)

    def _names(self) -> tuple[str, ...]:
        return self.order or ("image",)

    def _get_apply(self, key: str) -> Callable[[Any], Any] | None:
        return getattr(self, f"_apply_{key}", None)

    def _get_image(self, input: Any) -> Array:
        """The image of a sample, checked."""
        fields = input if isinstance(input, tuple) else (input,)
        name = type(self).__name__
        if "image" not in self._names()[: len(fields)]:
            raise ValueError(f"{name} needs an image, but order={self._names()} has none here")
        return checked_image(name, fields[self._names().index("image")])

    def _apply_image(self, image: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no rule for images")

    def _apply_mask(self, mask: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no rule for masks")

    def _apply_coords(self, coords: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no rule for points")

    def _apply_boxes(self, boxes: Any) -> Any:
        corners = np.asarray(boxes).reshape(-1, 4)[:, _CORNERS].reshape(-1, 2)
        moved = np.asarray(self._apply_coords(corners)).reshape(-1, 4, 2)
        return np.concatenate((moved.min(axis=1), moved.max(axis=1)), axis=1)

    def _apply_keypoints(self, keypoints: Any) -> Any:
        points = np.asarray(keypoints)
        if points.ndim != 3 or points.shape[-1] < 2:
            raise ShapeError(
                type(self).__name__,
                "keypoints must have the shape (N, K, 3)",
                saw=f"{points.shape}",
            )
        moved = np.asarray(self._apply_coords(points[..., :2].reshape(-1, 2)))
        return np.concatenate((moved.reshape(*points.shape[:2], 2), points[..., 2:]), axis=-1)

    def _apply_polygons(self, polygons: Any) -> Any:
        return [[self._apply_coords(part) for part in instance] for instance in polygons]


class ToMode(VisionTransform):
    """Moves the channels of images and masks to the front: (H, W, C) becomes (C, H, W).

    Args:
        mode: "CHW", the only one.
        order: see `VisionTransform`.

    Raises:
        ValueError: another mode.
        ShapeError: an image or mask without channels.
    """

    def __init__(self, mode: str = "CHW", *, order: Sequence[str] | None = None) -> None:
        super().__init__(order)
        if mode != "CHW":
            raise ValueError(f"unsupported mode: {mode}; there is only 'CHW'")
        self.mode = mode

    def _apply_image(self, image: Any) -> Array:
        return np.ascontiguousarray(np.moveaxis(checked_image("ToMode", image), 2, 0))

    def _apply_mask(self, mask: Any) -> Array:
        return np.ascontiguousarray(np.moveaxis(checked_image("ToMode", mask, "a mask"), 2, 0))

    def _apply_coords(self, coords: Any) -> Any:
        return coords


def checked_image(where: str, image: Any, what: str = "an image") -> Array:
    """An array of shape (H, W, C) that is not empty.

    Raises:
        ShapeError: anything else.
    """
    if isinstance(image, np.ndarray) and image.ndim == 3 and image.size:
        return image
    if not isinstance(image, np.ndarray):
        saw, hint = type(image).__name__, "read the file with cv2.imread or a dataset of images"
    else:
        saw = f"{image.dtype}[{','.join(map(str, image.shape))}]"
        hint = "give a grey image its axis: image[:, :, None]" if image.ndim == 2 else ""
    raise ShapeError(where, f"{what} must be an array (H, W, C)", saw=saw, hint=hint)


def checked_mask(where: str, mask: Any, image_size: tuple[int, int]) -> Array:
    """A mask (H, W, C) as large as its image.

    Raises:
        ShapeError: anything else.
    """
    array = checked_image(where, mask, "a mask")
    if array.shape[:2] != image_size:
        raise ShapeError(
            where,
            "a mask must be as large as its image",
            saw=f"mask {array.shape[:2]}, image {image_size}",
        )
    return array


def move_points(
    where: str,
    points: Any,
    origin: tuple[int, int],
    scale: tuple[float, float] | None = None,
) -> Array:
    """Points (x, y) seen from a new origin, then scaled.

    Floating points keep their dtype; whole numbers keep theirs until they are scaled, which makes
    them float32 (MegEngine cuts the fraction off).
    """
    array = np.asarray(points)
    if array.ndim != 2 or array.shape[1] != 2:
        raise ShapeError(where, "points must have the shape (N, 2)", saw=f"{array.shape}")
    if array.dtype.kind != "f":
        # A point may come to lie left of the origin, where unsigned numbers have no value.
        array = array.astype(np.int64) if array.dtype.kind in "bu" else array
        if scale is not None:
            array = array.astype(np.float32)
    moved: Array = array - np.asarray(origin, dtype=array.dtype)
    if scale is not None:
        moved *= np.asarray(scale, dtype=array.dtype)
    return moved
