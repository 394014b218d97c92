"""Image files: one result for every kind, and an error for what is none."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from tests.data import image_samples as samples

from treadle.data.failure import ImageError
from treadle.data.image_file import decode_image, read_gray, read_image
from treadle.data.image_header import read_header

COLOR = np.zeros((32, 48, 3), np.uint8)
COLOR[...] = np.linspace(0, 255, 48).astype(np.uint8)[None, :, None]
COLOR[:16, :, 0] = 40


def encoded(extension: str, image: np.ndarray = COLOR) -> bytes:
    return bytes(cv2.imencode(extension, image)[1])


@pytest.mark.parametrize("extension", [".png", ".bmp", ".ppm", ".tiff", ".webp", ".jpg"])
def test_formats(extension: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{extension}"
    path.write_bytes(encoded(extension))
    image = read_image(path)
    assert image.dtype == np.uint8 and image.shape == COLOR.shape
    tolerance = 3 if extension in (".webp", ".jpg") else 0
    assert np.abs(image.astype(int) - COLOR).mean() <= tolerance
    header = read_header(path.read_bytes())
    assert header.pixels == 32 * 48 and header.is_whole


RED = [40, 40, 200]


@pytest.mark.parametrize(
    ("data", "shape", "color", "tolerance"),
    [
        (samples.CMYK_JPEG, (16, 8), RED, 12),
        (samples.ANIMATED_WEBP, (16, 8), RED, 1),
        (samples.ANIMATED_GIF, (16, 8), RED, 60),
        (samples.TURNED_JPEG, (8, 16), RED, 12),
        (samples.PALETTE_PNG, (16, 8), RED, 0),
    ],
)
def test_unusual_kinds(
    data: bytes, shape: tuple[int, int], color: list[int], tolerance: int
) -> None:
    image = decode_image(data, cv2.IMREAD_COLOR)
    assert image.shape == (*shape, 3)
    assert np.abs(image.reshape(-1, 3).mean(axis=0) - color).max() <= tolerance
    assert read_header(data).pixels == 128 and read_header(data).is_whole


def test_gray_16_bit_and_transparent() -> None:
    gray = np.full((2, 3), 77, np.uint8)
    np.testing.assert_array_equal(decode_image(encoded(".png", gray), 1), np.full((2, 3, 3), 77))
    deep = np.full((2, 3), 0x4D99, np.uint16)
    np.testing.assert_array_equal(decode_image(encoded(".png", deep), 1), np.full((2, 3, 3), 0x4D))
    clear = np.full((2, 3, 4), (1, 2, 3, 0), np.uint8)
    assert decode_image(encoded(".png", clear), 1)[0, 0].tolist() == [1, 2, 3]


def test_masks_keep_their_numbers(tmp_path: Path) -> None:
    mask = np.arange(6, dtype=np.uint8).reshape(2, 3)
    (tmp_path / "mask.png").write_bytes(encoded(".png", mask))
    np.testing.assert_array_equal(read_gray(tmp_path / "mask.png"), mask)


@pytest.mark.parametrize("extension", [".jpg", ".png", ".bmp", ".webp", ".tiff", ".ppm"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.8])
def test_a_file_cut_off_anywhere(extension: str, share: float) -> None:
    data = encoded(extension)
    with pytest.raises(ImageError, match=r"damaged or cut off|not an image|refuses") as caught:
        decode_image(data[: int(len(data) * share)], cv2.IMREAD_COLOR, "cat.jpg")
    assert str(caught.value).startswith("cat.jpg: ")


def test_a_jpeg_without_its_end_is_cut_off() -> None:
    data = encoded(".jpg")
    assert not read_header(data[:-2]).is_whole
    # A preview inside of it ends, too, but comes before the scan.
    preview = b"\xff\xe1" + (2 + len(data)).to_bytes(2, "big") + data
    assert not read_header(data[:2] + preview + data[2:-2]).is_whole
    assert read_header(data[:2] + preview + data[2:]).is_whole


@pytest.mark.parametrize(
    "data", [b"", b"x", b"<html>not found</html>" * 9, b"\xff\xd8\xff", b"P6\n"]
)
def test_what_is_no_image(data: bytes) -> None:
    with pytest.raises(ImageError):
        decode_image(data, cv2.IMREAD_COLOR)


def test_a_damaged_png() -> None:
    data = bytearray(encoded(".png"))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(ImageError, match="damaged"):
        decode_image(bytes(data), cv2.IMREAD_COLOR)


def test_a_bomb_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImageError, match="3600000000 pixels, more than the limit of 178956970"):
        decode_image(samples.png_bomb(60000, 60000), cv2.IMREAD_COLOR)
    monkeypatch.setenv("TREADLE_MAX_IMAGE_PIXELS", "100")
    for extension in (".jpg", ".png", ".bmp", ".webp", ".tiff", ".ppm"):
        with pytest.raises(ImageError, match="TREADLE_MAX_IMAGE_PIXELS"):
            decode_image(encoded(extension), cv2.IMREAD_COLOR)
    with pytest.raises(ImageError, match="128 pixels"):
        decode_image(samples.ANIMATED_GIF, cv2.IMREAD_COLOR)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_image(tmp_path / "none.png")
