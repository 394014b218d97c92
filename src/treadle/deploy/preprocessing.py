"""Preprocessing of images, written into the model itself.

A configuration names an input of the model and says what arrives in its place: bytes of a camera
or of a decoder. The steps become ops in front of the input, which the engine fuses like any others.

    [data]                           # the input's name
    format = "rgb"                   # what arrives: rgb, bgr, rgba, bgra, gray, nv12 or nv21
    layout = "nhwc"                  # its axes, or "nchw"
    size = [480, 640]                # its height and width; left out: what the steps below need
    crop = [0, 80, 480, 480]         # top, left, height, width
    resize = "bilinear"              # or "nearest"; left out: sizes must agree
    channels = "bgr"                 # what the model takes: rgb, bgr, gray; left out: as it arrives
    scale = 0.00392156862745098      # times this,
    mean = [0.485, 0.456, 0.406]     # minus this (in the order of the model's channels),
    std = [0.229, 0.224, 0.225]      # divided by this
    pad = [0, 0, 0, 0]               # top, bottom, left, right, added last
    pad-value = 0.0
    model-layout = "nchw"            # of the model's input
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from treadle import functional as F
from treadle.base.errors import LoadError
from treadle.base.guards import recording_guards
from treadle.base.symbol import Dim, is_identical
from treadle.device import get_default_device
from treadle.engine.package.models import Model
from treadle.graph.evaluate import bound_extents, specialize
from treadle.graph.ir import Graph, Node, Value, lone_symbol, remake
from treadle.jit.capture import capture
from treadle.jit.dump import inference_graph
from treadle.tensor import Tensor

FORMATS = {"rgb": 3, "bgr": 3, "rgba": 4, "bgra": 4, "gray": 1, "nv12": 3, "nv21": 3}
"""Formats that may arrive, with their channels once they are taken apart. The last two are planes
of luminance above planes of half the height with pairs of chrominance."""
PLANAR = ("nv12", "nv21")
CHANNELS = {"rgb": 3, "bgr": 3, "gray": 1}
"""Orders of channels that models take."""
GRAY = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in luminance, by Recommendation ITU-R BT.601."""
_YUV = ((1.164, 0.0, 1.596), (1.164, -0.392, -0.813), (1.164, 2.017, 0.0))
"""Red, green and blue of (Y - 16, U - 128, V - 128), by the same, for the range of video."""

T = TypeVar("T")
Quad = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """The steps in front of one input, in the order in which they happen (see the module).

    Attributes:
        format, layout: what arrives.
        size: height and width of it; None for what the steps after it need.
        crop: top, left, height and width of the part that is used; None for all of it.
        resize: "bilinear" (half-pixel places, no smoothing), "nearest", or "".
        channels: order that the model takes; "" for the one that arrives.
        scale, mean, std: the model gets (x * scale - mean) / std, x being from 0 to 255.
        pad, pad_value: rows and columns around that.
        model_layout: of the model's input.
    """

    format: str = "rgb"
    layout: str = "nhwc"
    size: tuple[int, int] | None = None
    crop: Quad | None = None
    resize: str = ""
    channels: str = ""
    scale: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    pad: Quad = (0, 0, 0, 0)
    pad_value: float = 0.0
    model_layout: str = "nchw"

    def as_dict(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults, as JSON knows them."""
        plain = Preprocessing()
        items = asdict(self).items()
        return {k: v for k, v in items if v != getattr(plain, k) or k == "format"}

    @property
    def taken(self) -> str:
        """The order of channels that the model takes."""
        return self.channels or {"rgba": "rgb", "bgra": "bgr"}.get(self.format, _plain(self.format))


def _plain(format_: str) -> str:
    return "rgb" if format_ in PLANAR else format_


# -- configurations ------------------------------------------------------------------------------


def read_preprocessing(path: Path) -> dict[str, Preprocessing]:
    """The configurations in a file, by name of the input.

    Raises:
        LoadError: the file is not TOML, or says something that there is not.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(str(path), f"it cannot be read: {error}", hint="write TOML") from error
    if not tables:
        raise _wrong(str(path), "it is empty", hint="begin with [name of an input]")
    return {name: parsed_preprocessing(f"{path} [{name}]", t) for name, t in tables.items()}


def parsed_preprocessing(where: str, table: object) -> Preprocessing:
    """One configuration out of plain data.

    Raises:
        LoadError: a key is not known, or its value is none.
    """
    if not isinstance(table, Mapping):
        raise _wrong(where, "it is not a table", repr(table))
    known = {f.name for f in fields(Preprocessing)}
    given = {str(key).replace("-", "_"): value for key, value in table.items()}
    for key in given:
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"keys are {', '.join(sorted(known))}"
            raise _wrong(where, f"there is no key {key!r}", hint=hint)
    made = Preprocessing(**{k: _checked(where, k, v) for k, v in given.items()})
    channels = CHANNELS[made.taken]
    for key in ("mean", "std"):
        if len(getattr(made, key)) not in (0, 1, channels):
            numbers = f"{len(getattr(made, key))} numbers"
            raise _wrong(where, f"{key} has {numbers}, the model takes {made.taken}")
    if 0.0 in made.std:
        raise _wrong(where, "std has a zero")
    return made


_WORDS = {
    "format": tuple(FORMATS),
    "layout": ("nhwc", "nchw"),
    "model_layout": ("nhwc", "nchw"),
    "resize": ("", "bilinear", "nearest"),
    "channels": ("", *CHANNELS),
}
_COUNTS = {"size": 2, "crop": 4, "pad": 4}


def _checked(where: str, key: str, value: Any) -> Any:
    """A value of the right form for its key."""
    if key in _WORDS:
        if value not in _WORDS[key]:
            words = ", ".join(w for w in _WORDS[key] if w)
            raise _wrong(where, f"{key} cannot be {value!r}", hint=f"one of {words}")
        return value
    if key in _COUNTS:
        whole = isinstance(value, Sequence) and all(type(v) is int and v >= 0 for v in value)
        if not whole or len(value) != _COUNTS[key]:
            raise _wrong(where, f"{key} takes {_COUNTS[key]} whole numbers", repr(value))
        return tuple(value)
    try:
        if key in ("mean", "std"):
            return tuple(float(v) for v in (value if isinstance(value, Sequence) else (value,)))
        return float(value)
    except (TypeError, ValueError):
        raise _wrong(where, f"{key} takes numbers", repr(value)) from None


def _wrong(where: str, problem: str, saw: str = "", hint: str = "") -> LoadError:
    return LoadError(where, problem, saw=saw, hint=hint or "see the command line's page")


# -- graphs --------------------------------------------------------------------------------------


def with_preprocessing(model: Model, steps: Mapping[str, Preprocessing]) -> Model:
    """The model with other inputs in the place of those named: bytes, on which the steps are done.

    Cases and compiled segments are left out, as they belong to the model without.

    Raises:
        LoadError: the model has no such input, it is not an image, or sizes do not agree.
    """
    for name, what in steps.items():
        if name not in model.inputs:
            raise LoadError(
                "preprocessing",
                f"the model has no input {name!r}",
                saw=f"inputs {', '.join(model.inputs)}",
            )
        model = _in_front(model, model.inputs.index(name), what)
    return model


def _in_front(model: Model, index: int, steps: Preprocessing) -> Model:
    name = model.inputs[index]
    graph = _prepared(model.graph, index, name, steps)

    def opened(wide: Graph) -> Graph:
        """Prepare any number of images, which are as large as in the model's own graph."""
        shapes = [g.inputs[index].type.shape[1:] for g in (wide, model.graph)]
        with recording_guards():  # They are known.
            wide = specialize(wide, bound_extents([(shapes[0], shapes[1])]) or {})
        return _prepared(wide, index, name, steps)

    return model.changed(graph, opened)


def _prepared(whole: Graph, index: int, name: str, steps: Preprocessing) -> Graph:
    wanted = whole.inputs[index]
    batch, _, height, width = image_extents(name, wanted, steps)
    arriving = _arriving(name, steps, height, width)
    shape = _shape(batch, *arriving, steps)
    dtype = wanted.type.dtype.numpy

    def prepare(x: Tensor) -> Tensor:
        return _steps(x, steps, arriving, (height, width)).astype(dtype)

    device = wanted.type.device or str(get_default_device())
    images = lone_symbol(batch)
    extents = {} if images is None else {images.name: max(images.low, 2)}
    own = [extents[images.name] if images and not i else d for i, d in enumerate(shape)]
    sample = Tensor(np.zeros(own, np.uint8), dtype="uint8", device=device)
    captured = capture(prepare, (sample,), {}, "preprocessing", {0: shape}, extents=extents)
    return _join(whole, index, inference_graph("preprocessing", captured, [0]), name)


def image_extents(name: str, value: Value, steps: Preprocessing) -> tuple[Dim, int, int, int]:
    """Images, channels, height and width that the model takes.

    Raises:
        LoadError: the input is not an image of such channels and fixed extents.
    """
    shape = value.type.shape
    channels = CHANNELS[steps.taken]
    axis = 1 if steps.model_layout == "nchw" else 3
    static = all(isinstance(d, int) for d in shape[1:])
    if len(shape) != 4 or not static or not is_identical(shape[axis], channels):
        raise LoadError(
            "preprocessing",
            f"input {name} takes no {steps.taken} images in {steps.model_layout} order",
            saw=str(value.type),
            hint="set channels and model-layout, and fix extents with --shape",
        )
    rest = [int(d) for d in shape[1:]]
    rest.pop(axis - 1)
    return shape[0], channels, rest[0], rest[1]


def _arriving(name: str, steps: Preprocessing, height: int, width: int) -> tuple[int, int]:
    """Height and width of what arrives.

    Raises:
        LoadError: the steps do not lead from there to what the model takes.
    """
    top, bottom, left, right = steps.pad
    inner = height - top - bottom, width - left - right
    size = steps.size or (inner if steps.crop is None else None)
    if size is None or min(inner) < 1:
        raise _wrong(f"preprocessing of {name}", "say the size of the images that are cropped")
    used = size if steps.crop is None else steps.crop[2:]
    if steps.crop is not None and (
        steps.crop[0] + used[0] > size[0] or steps.crop[1] + used[1] > size[1] or min(used) < 1
    ):
        raise _wrong(f"preprocessing of {name}", f"crop {list(steps.crop)} is not in {list(size)}")
    if used != inner and not steps.resize:
        raise LoadError(
            f"preprocessing of {name}",
            f"{used[0]}x{used[1]} arrive, the model takes {inner[0]}x{inner[1]}",
            hint='add resize = "bilinear"',
        )
    if steps.format in PLANAR and (size[0] % 2 or size[1] % 2):
        raise _wrong(f"preprocessing of {name}", f"{steps.format} has even extents", str(size))
    return size


def _shape(batch: Dim, height: int, width: int, steps: Preprocessing) -> tuple[Dim, ...]:
    if steps.format in PLANAR:
        return (batch, height * 3 // 2, width)
    channels = FORMATS[steps.format]
    nhwc = steps.layout == "nhwc"
    return (batch, height, width, channels) if nhwc else (batch, channels, height, width)


def _steps(
    x: Tensor, steps: Preprocessing, arriving: tuple[int, int], wanted: tuple[int, int]
) -> Tensor:
    """All steps, on maps (batch, channels, height, width)."""
    if steps.format in PLANAR:
        x = _from_planes(x, *arriving, swapped=steps.format == "nv21")
    elif steps.layout == "nhwc":
        x = F.transpose(x, (0, 3, 1, 2))
    if steps.crop is not None:
        top, left, height, width = steps.crop
        x = x[:, :, top : top + height, left : left + width]
    x = _channels(x.astype("float32"), _plain(steps.format), steps.taken)
    top, bottom, left, right = steps.pad
    size = wanted[0] - top - bottom, wanted[1] - left - right
    if tuple(x.shape[2:]) != size:
        x = F.vision.interpolate(x, size=size, mode=steps.resize)
    x = _normalized(x, steps)
    if any(steps.pad):
        around = ((0, 0), (0, 0), (top, bottom), (left, right))
        x = F.nn.pad(x, around, mode="constant", constant_value=steps.pad_value)
    return x if steps.model_layout == "nchw" else F.transpose(x, (0, 2, 3, 1))


def _normalized(x: Tensor, steps: Preprocessing) -> Tensor:
    """(x * scale - mean) / std as one product and one sum, their factors rounded once."""
    std = np.array(steps.std or (1.0,)).reshape(1, -1, 1, 1)
    factor, offset = steps.scale / std, np.array(steps.mean or (0.0,)).reshape(1, -1, 1, 1) / std
    if (factor != 1).any():
        x = x * Tensor(factor.astype(np.float32), device=x.device)
    return x - Tensor(offset.astype(np.float32), device=x.device) if offset.any() else x


def _channels(x: Tensor, arriving: str, wanted: str) -> Tensor:
    """The channels in another order; alpha is dropped."""
    own = arriving[:3] if arriving != "gray" else arriving
    if own == wanted:
        return x if arriving == own else x[:, :3]
    if own == "gray":
        n, _, h, w = x.shape
        return F.broadcast_to(x, (n, 3, h, w))
    if wanted == "gray":
        parts = [x[:, "rgb".index(c) if own == "rgb" else "bgr".index(c)] for c in "rgb"]
        mixed = parts[0] * GRAY[0] + parts[1] * GRAY[1] + parts[2] * GRAY[2]
        return F.expand_dims(mixed, 1)
    return F.concat([x[:, 2:3], x[:, 1:2], x[:, 0:1]], axis=1)


def _from_planes(x: Tensor, height: int, width: int, *, swapped: bool) -> Tensor:
    """Red, green and blue of luminance and pairs of chrominance, each pair for 2 x 2 pixels."""
    n = x.shape[0]
    luma = F.expand_dims(x[:, :height], 1).astype("float32") - 16.0
    pairs = x[:, height:].reshape((n, height // 2, 1, width // 2, 1, 2)).astype("float32") - 128.0
    wide = F.broadcast_to(pairs, (n, height // 2, 2, width // 2, 2, 2))
    chroma = F.transpose(wide.reshape((n, height, width, 2)), (0, 3, 1, 2))
    first, second = chroma[:, 0:1], chroma[:, 1:2]
    u, v = (second, first) if swapped else (first, second)
    rows = [luma * a + u * b + v * c for a, b, c in _YUV]
    return F.clip(F.concat(rows, axis=1), 0.0, 255.0)


def _join(graph: Graph, index: int, front: Graph, name: str) -> Graph:
    """The graph with one graph more in front of an input."""
    old = graph.inputs[index]
    arriving = Value(front.inputs[0].type, None, index, name)
    known: dict[Value, Value] = {front.inputs[0]: arriving}
    nodes: list[Node] = []

    def append(node: Node) -> None:
        made = remake(node, node.op, tuple(known[v] for v in node.inputs))
        nodes.append(made)
        known.update(zip(node.outputs, made.outputs, strict=True))

    for node in front.nodes:
        append(node)
    known[old] = known[front.outputs[0]]
    for value in graph.inputs:
        if value is not old:
            known[value] = value
    for node in graph.nodes:
        append(node)
    inputs = tuple(arriving if v is old else v for v in graph.inputs)
    outputs = tuple(known[v] for v in graph.outputs)
    return Graph(graph.name, inputs, tuple(nodes), outputs, graph.guards)


__all__ = ["Preprocessing", "parsed_preprocessing", "read_preprocessing", "with_preprocessing"]
