"""Image files as inputs of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from treadle.base.array import Array
from treadle.base.dtype import as_dtype
from treadle.base.errors import LoadError
from treadle.base.types import TensorType
from treadle.cli.status import Misuse
from treadle.deploy.preprocessing import (
    CHANNELS,
    FORMATS,
    PLANAR,
    Preprocessing,
    parsed_preprocessing,
    with_preprocessing,
)
from treadle.engine.package.models import Model
from treadle.graph.ir import Graph, Value


def image_steps(layout: str, channels: str, scale: float, mean: str, std: str) -> Preprocessing:
    """Return the steps on images that options ask for.

    Raises:
        Misuse: one of them makes no sense.
    """
    table = {"model_layout": layout, "channels": channels, "scale": scale}
    for name, text in (("mean", mean), ("std", std)):
        if text:
            table[name] = text.split(",")
    try:
        return parsed_preprocessing("options for images", table)
    except LoadError as error:
        raise Misuse(error.where, error.problem, saw=error.saw, hint=error.hint) from error


def own_preprocessing(model: Model) -> dict[str, Preprocessing]:
    """Return the model's own steps on images, by input.

    Raises:
        LoadError: what the file says of it makes no sense.
    """
    tables = model.info.get("preprocessing", {}) if isinstance(model.info, Mapping) else {}
    if not isinstance(tables, Mapping):
        raise LoadError("model", "its preprocessing is not a table", saw=str(tables))
    return {name: parsed_preprocessing(name, table) for name, table in tables.items()}


def as_input(
    model: Model, name: str, value: Value, path: Path, image: Preprocessing | None
) -> Array:
    """An image file as an input takes it, once per image of a batch.

    Args:
        model: what it says of its own steps counts.
        name, value: of the input.
        path: of the image.
        image: steps for inputs that the model says nothing of.

    Raises:
        LoadError: the input takes no images, or OpenCV is not installed.
        FileNotFoundError, ImageError: there is no such image, or it is damaged.
    """
    shape = [int(d) for d in value.type.shape if isinstance(d, int)]
    if len(shape) != value.type.ndim or len(shape) < 3:
        raise LoadError(str(path), f"input {name} takes no image", saw=str(value.type))
    pixels = _pixels(path)
    inside = own_preprocessing(model).get(name)
    one = (
        _as_it_arrives(pixels, inside, shape)
        if inside is not None
        else _prepared(pixels, name, value, image or Preprocessing())
    )
    return np.broadcast_to(one, (shape[0], *one.shape[1:])).astype(value.type.dtype.numpy)


def _pixels(path: Path) -> Array:
    """Bytes of an image file: height, width; blue, green, red."""
    try:
        from treadle.data.image_file import read_image
    except ModuleNotFoundError as error:
        raise LoadError(str(path), str(error), hint="pip install treadle[vision]") from error
    return read_image(path)


def _as_it_arrives(pixels: Array, inside: Preprocessing, shape: Sequence[int]) -> Array:
    """The image in the format that the model's own preprocessing begins with."""
    if inside.format in PLANAR:
        raise LoadError("--input", f"an image file is not {inside.format}", hint="give .npy")
    height, width = shape[1:3] if inside.layout == "nhwc" else shape[2:4]
    four = FORMATS[inside.format] == 4
    steps = Preprocessing(channels=inside.format[:3] if four else inside.format)
    made = _steps_alone(pixels, steps, (1, CHANNELS[steps.taken], height, width))
    # Whole numbers again behind the resizing: the model takes bytes.
    made = np.clip(np.rint(made), 0, 255).astype(np.uint8)
    if four:
        made = np.concatenate([made, np.full_like(made[:, :1], 255)], axis=1)
    return made if inside.layout == "nchw" else made.transpose(0, 2, 3, 1)


def _prepared(pixels: Array, name: str, value: Value, image: Preprocessing) -> Array:
    """The image as an input takes it that knows of no preprocessing."""
    shape = tuple(int(d) for d in value.type.shape if isinstance(d, int))
    axis = 1 if image.model_layout == "nchw" else 3
    if len(shape) != 4 or shape[axis] not in (1, 3):
        raise LoadError(
            "--input",
            f"input {name} takes no image in {image.model_layout} order",
            saw=str(value.type),
            hint="say the order with --layout",
        )
    channels = image.channels or ("gray" if shape[axis] == 1 else "rgb")
    return _steps_alone(pixels, replace(image, channels=channels), (1, *shape[1:]))


def _steps_alone(pixels: Array, steps: Preprocessing, shape: tuple[int, ...]) -> Array:
    """The steps on one image, computed by the references of their ops."""
    height, width = pixels.shape[:2]
    arriving = replace(steps, format="bgr", size=(height, width), resize="bilinear")
    end = Value(TensorType(as_dtype(np.float32), shape))
    model = Model(Graph("image", (end,), (), (end,)), ("image",), ("image",))
    made = with_preprocessing(model, {"image": arriving})
    (found,) = made.graph.evaluate([pixels[None]])
    return np.asarray(found)
