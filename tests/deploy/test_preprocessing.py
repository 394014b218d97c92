"""Steps in front of a model's input, beside NumPy and OpenCV."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
from treadle.base.dtype import as_dtype
from treadle.base.errors import LoadError
from treadle.base.types import TensorType
from treadle.deploy.preprocessing import (
    Preprocessing,
    parsed_preprocessing,
    read_preprocessing,
    with_preprocessing,
)
from treadle.engine.package.models import Model, Runner
from treadle.graph.ir import Graph, Value

Array = np.ndarray[Any, Any]
HEIGHT, WIDTH = 12, 16


@pytest.fixture(autouse=True)
def _on_the_cpu() -> None:
    mge.set_default_device("cpux")


def model(*shape: int, dtype: str = "float32") -> Model:
    """A model that gives back its input."""
    end = Value(TensorType(as_dtype(dtype), shape or (2, 3, HEIGHT, WIDTH)), None, 0, "data")
    return Model(Graph("same", (end,), (), (end,)), ("data",), ("same",))


def image(*shape: int) -> Array:
    return np.random.default_rng(3).integers(0, 256, shape).astype(np.uint8)


def prepared(given: Array, wanted: Model | None = None, **table: Any) -> Array:
    """What a model sees of these bytes."""
    steps = {"data": parsed_preprocessing("test", table)}
    made = with_preprocessing(wanted or model(), steps)
    assert made.graph.inputs[0].type.shape == given.shape
    assert made.graph.inputs[0].type.dtype.name == "uint8"
    (found,) = made.graph.evaluate([given])
    return found


def planes(x: Array) -> Array:
    return x.transpose(0, 3, 1, 2)


def test_bytes_become_maps() -> None:
    rgb = image(2, HEIGHT, WIDTH, 3)
    np.testing.assert_array_equal(prepared(rgb), planes(rgb))
    np.testing.assert_array_equal(prepared(planes(rgb).copy(), layout="nchw"), planes(rgb))
    last = model(2, HEIGHT, WIDTH, 3)
    np.testing.assert_array_equal(prepared(rgb, last, **{"model-layout": "nhwc"}), rgb)


def test_numbers_are_scaled_per_channel_of_the_model() -> None:
    rgb = image(2, HEIGHT, WIDTH, 3)
    mean, std = [0.1, 0.2, 0.3], [2.0, 3.0, 4.0]
    found = prepared(rgb, channels="bgr", scale=1 / 255, mean=mean, std=std)
    wanted = (rgb[..., ::-1] / 255 - np.array(mean)) / np.array(std)
    np.testing.assert_allclose(found, planes(wanted), atol=1e-6)


@pytest.mark.parametrize(
    ("format_", "channels", "order"),
    [("bgr", "rgb", [2, 1, 0]), ("rgba", "rgb", [0, 1, 2]), ("bgra", "rgb", [2, 1, 0])],
)
def test_channels_are_put_in_order(format_: str, channels: str, order: list[int]) -> None:
    given = image(2, HEIGHT, WIDTH, len(format_))
    found = prepared(given, format=format_, channels=channels)
    np.testing.assert_array_equal(found, planes(given[..., order]))


def test_gray_comes_and_goes() -> None:
    gray, rgb = image(2, HEIGHT, WIDTH, 1), image(2, HEIGHT, WIDTH, 3)
    spread = prepared(gray, format="gray", channels="rgb")
    np.testing.assert_array_equal(spread, planes(gray.repeat(3, axis=3)))
    mixed = prepared(rgb, model(2, 1, HEIGHT, WIDTH), channels="gray")
    luminance = rgb @ np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(mixed[:, 0], luminance, rtol=1e-5)


def test_parts_are_cut_out_and_padded() -> None:
    large = image(2, 40, 50, 3)
    found = prepared(large, size=[40, 50], crop=[5, 7, HEIGHT, WIDTH])
    np.testing.assert_array_equal(found, planes(large[:, 5 : 5 + HEIGHT, 7 : 7 + WIDTH]))
    small = image(2, HEIGHT - 3, WIDTH - 7, 3)
    found = prepared(small, pad=[1, 2, 3, 4], **{"pad-value": 9})
    wanted = np.full((2, 3, HEIGHT, WIDTH), 9.0)
    wanted[:, :, 1:-2, 3:-4] = planes(small)
    np.testing.assert_array_equal(found, wanted)


def test_sizes_are_those_of_opencv() -> None:
    cv2 = pytest.importorskip("cv2", reason="needs the vision extra")
    large = image(2, 33, 47, 3)
    found = prepared(large, size=[33, 47], resize="bilinear")
    wanted = [cv2.resize(x.astype(np.float32), (WIDTH, HEIGHT)) for x in large]
    np.testing.assert_allclose(found, planes(np.stack(wanted)), atol=1e-3)


@pytest.mark.parametrize(("format_", "code"), [("nv12", "NV12"), ("nv21", "NV21")])
def test_planes_of_video_are_those_of_opencv(format_: str, code: str) -> None:
    cv2 = pytest.importorskip("cv2", reason="needs the vision extra")
    frames = np.clip(image(2, HEIGHT * 3 // 2, WIDTH), 16, 235)  # the range of video
    found = prepared(frames, format=format_)
    wanted = [cv2.cvtColor(x, getattr(cv2, f"COLOR_YUV2RGB_{code}")) for x in frames]
    np.testing.assert_allclose(found, planes(np.stack(wanted)), atol=1.5)  # it rounds to bytes


def test_models_keep_their_element_type_and_run_compiled() -> None:
    rgb = image(2, HEIGHT, WIDTH, 3)
    made = with_preprocessing(model(dtype="float16"), {"data": Preprocessing(scale=0.5)})
    (found,) = Runner(made.graph)([rgb])
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, planes(rgb) / 2)


def test_configurations_are_read_from_files(tmp_path: Path) -> None:
    path = tmp_path / "camera.toml"
    path.write_text('[data]\nformat = "bgr"\nmodel-layout = "nhwc"\nmean = 128\n')
    steps = read_preprocessing(path)
    assert steps == {"data": Preprocessing("bgr", model_layout="nhwc", mean=(128.0,))}
    assert steps["data"].as_dict() == {"format": "bgr", "model_layout": "nhwc", "mean": (128.0,)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty"),
        ("data = 1", "it is not a table"),
        ("[data", "it cannot be read"),
        ("[data]\nmeam = 1", "did you mean mean"),
        ('[data]\nformat = "yuyv"', "format cannot be 'yuyv'"),
        ("[data]\nsize = [1]", "size takes 2 whole numbers"),
        ("[data]\ncrop = [0, 0, -1, 4]", "crop takes 4 whole numbers"),
        ('[data]\nscale = "much"', "scale takes numbers"),
        ("[data]\nmean = [1, 2]", "mean has 2 numbers"),
        ("[data]\nstd = 0", "std has a zero"),
    ],
)
def test_wrong_configurations_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "camera.toml"
    path.write_text(text)
    with pytest.raises(LoadError, match=message):
        read_preprocessing(path)


@pytest.mark.parametrize(
    ("name", "table", "message"),
    [
        ("image", {}, "no input 'image'"),
        ("data", {"channels": "gray"}, "takes no gray images"),
        ("data", {"size": [5, 5]}, "5x5 arrive, the model takes 12x16"),
        ("data", {"crop": [0, 0, 4, 4]}, "say the size"),
        ("data", {"size": [8, 8], "crop": [4, 4, 8, 8]}, "is not in"),
        ("data", {"format": "nv12", "size": [13, 17], "resize": "nearest"}, "even extents"),
        ("data", {"pad": [12, 0, 0, 0]}, "say the size"),
    ],
)
def test_steps_that_do_not_lead_to_the_model_are_refused(
    name: str, table: dict[str, Any], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        with_preprocessing(model(), {name: parsed_preprocessing("test", table)})
