"""Inputs of models out of files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.base.array import Array
from treadle.base.errors import LoadError
from treadle.base.files.numpy_files import load_array, load_arrays
from treadle.engine.package.models import Model
from treadle.graph.ir import Value

if TYPE_CHECKING:
    from treadle.deploy.preprocessing import Preprocessing

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
FOREIGN = (".pt", ".pth", ".bin", ".safetensors", ".pkl", ".onnx", ".tm")
FORMS = "give .npy, .npz, .npz:member, .json, an image, or numbers such as [1, 2]"


def read_inputs(
    model: Model, given: Sequence[str], image: Preprocessing | None = None
) -> dict[str, Array]:
    """Arrays by input.

    Args:
        model: whose inputs are meant.
        given: texts like `x=file.npy`; the name may be left out where there is one input, or where
            an .npz has arrays of the inputs' names.
        image: what is done to images, for inputs that the model does not say it of.

    Raises:
        LoadError: an input is not there, or a file cannot be read.
    """
    found: dict[str, Array] = {}
    ends = dict(zip(model.inputs, model.graph.inputs, strict=True))
    for text in given:
        name, sign, place = text.partition("=")
        if sign and name in ends:
            found[name] = _read(model, name, ends[name], place, image)
        elif text.endswith(".npz") and not sign:
            found.update(_named(Path(text), ends))
        elif len(ends) == 1 and not sign:
            (name,) = ends
            found[name] = _read(model, name, ends[name], text, image)
        else:
            raise LoadError(
                "--input",
                f"{text!r} names no input",
                saw=f"inputs {', '.join(ends)}",
                hint=f"write {next(iter(ends), 'x')}=file.npy",
            )
    return found


def _named(path: Path, ends: Mapping[str, Value]) -> dict[str, Array]:
    """The arrays of a file that have the names of inputs."""
    arrays = read_arrays(path)
    unknown = set(arrays) - set(ends)
    if unknown:
        raise LoadError(
            str(path),
            f"the model has no input {', '.join(sorted(unknown))}",
            saw=f"inputs {', '.join(ends)}",
        )
    return {name: np.asarray(a, ends[name].type.dtype.numpy) for name, a in arrays.items()}


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an .npz.

    Raises:
        LoadError: it cannot be read.
    """
    try:
        return load_arrays(path)
    except OSError as error:
        raise LoadError(str(path), f"it cannot be read: {error}") from error


def _read(model: Model, name: str, value: Value, place: str, image: Preprocessing | None) -> Array:
    if place.lower().endswith(IMAGES):
        from treadle.cli.models.images import as_input  # with all that ops need

        return as_input(model, name, value, Path(place), image)
    try:
        return np.asarray(_array(place, name), value.type.dtype.numpy)
    except (ValueError, TypeError) as error:
        raise LoadError(place, f"it holds no numbers for {name}: {error}", hint=FORMS) from error


def _array(place: str, name: str) -> Any:
    try:
        if place.startswith("["):
            return json.loads(place)
        if place.endswith(FOREIGN):
            raise ValueError("it is a file of another framework")
        if place.endswith(".json"):
            return json.loads(Path(place).read_text("utf-8"))
        path, sign, member = place.partition(".npz:")
        if sign or place.endswith(".npz"):
            found = load_arrays(f"{path}.npz" if sign else place)
            only = next(iter(found)) if len(found) == 1 else name
            return found[member or (name if name in found else only)]
        return load_array(place)
    except (OSError, ValueError, KeyError) as error:
        raise LoadError(place, f"it cannot be read: {error}", hint=FORMS) from error
