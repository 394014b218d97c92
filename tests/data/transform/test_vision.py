"""Vision transforms: every kind of field follows the image, nothing that came in is changed."""

from typing import Any

import cv2
import numpy as np
import pytest

from treadle.base.errors import DTypeError, ShapeError
from treadle.data import DataLoader, SequentialSampler
from treadle.data.dataset import Dataset
from treadle.data.transform import (
    BrightnessTransform,
    CenterCrop,
    ColorJitter,
    Compose,
    ContrastTransform,
    GaussianNoise,
    HueTransform,
    Lighting,
    Normalize,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResize,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    SaturationTransform,
    ShortestEdgeResize,
    ToMode,
    VisionTransform,
)

ORDER = ("image", "mask", "coords", "boxes", "keypoints", "polygons", "image_category", "info")
Array = np.ndarray[Any, Any]


def marked(height: int = 40, width: int = 60) -> tuple[Any, ...]:
    """A sample whose one bright patch is where all its points say it is: x 20..30, y 10..16."""
    image = np.zeros((height, width, 3), np.uint8)
    image[10:16, 20:30] = (200, 150, 100)
    mask = np.zeros((height, width, 1), np.int64)
    mask[10:16, 20:30] = 7
    corners = np.array([[20, 10], [30, 16]], np.float32)
    keypoints = np.array([[[20, 10, 2], [30, 16, 1]]], np.float32)
    return (
        image,
        mask,
        corners,
        corners.reshape(1, 4).copy(),
        keypoints,
        [[corners.copy()]],
        3,
        "name.jpg",
    )


GEOMETRIC = [
    Pad(5, mask_value=0),
    Pad((3, 4)),
    Pad((1, 2, 3, 4)),
    Resize((80, 30)),
    Resize(80),
    Resize((80, 120), cv2.INTER_NEAREST),
    ShortestEdgeResize((50, 70), 90),
    ShortestEdgeResize([50, 70, 90], 1000, "choice"),
    RandomResize((0.8, 2.0)),
    CenterCrop((30, 40)),
    RandomCrop((38, 55)),
    RandomCrop((60, 50), padding_size=4),
    RandomResizedCrop((48, 64), scale_range=(0.7, 1)),
    RandomHorizontalFlip(1),
    RandomVerticalFlip(1),
    RandomHorizontalFlip(0),
]


@pytest.mark.parametrize("transform", GEOMETRIC, ids=lambda t: repr(t))
def test_points_boxes_and_masks_follow_the_image(transform: VisionTransform) -> None:
    np.random.seed(3)
    transform.set_order(ORDER)
    sample = marked()
    before = marked()
    image, mask, coords, boxes, keypoints, polygons, category, info = transform.apply(sample)
    left, top, right, bottom = boxes[0]
    assert image.shape[:2] == mask.shape[:2] and mask.dtype == np.int64
    patch = np.zeros(image.shape[:2], bool)
    patch[
        max(0, round(float(top))) : round(float(bottom)),
        max(0, round(float(left))) : round(float(right)),
    ] = True
    # Interpolation blurs the patch's border by a pixel, which a share of the patch allows for.
    for found in (image[..., 0] > 100, mask[..., 0] == 7):
        assert (found & patch).sum() >= 0.7 * (found | patch).sum() > 0
    ordered = np.sort(coords, axis=0)
    np.testing.assert_allclose(ordered.ravel(), boxes[0], rtol=1e-5)
    np.testing.assert_allclose(keypoints[0, :, :2], coords, rtol=1e-5)
    np.testing.assert_array_equal(keypoints[0, :, 2], [2, 1])
    np.testing.assert_allclose(polygons[0][0], coords, rtol=1e-5)
    assert (category, info) == (3, "name.jpg")
    for was, now in zip(before[:5], sample[:5], strict=True):
        np.testing.assert_array_equal(was, now)


@pytest.mark.parametrize("transform", [*GEOMETRIC, GaussianNoise(0, 0.1), ColorJitter(0.1)])
def test_the_same_seed_gives_the_same_sample(transform: VisionTransform) -> None:
    transform.set_order(("image",))
    results = []
    for _ in range(2):
        np.random.seed(11)
        results.append([transform.apply(marked()[0]) for _ in range(3)])
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


def test_an_image_alone_and_fields_beyond_the_order() -> None:
    image = marked()[0]
    assert Resize(20).apply(image).shape == (20, 30, 3)
    (resized, label) = Resize(20).apply((image, 5))
    assert resized.shape == (20, 30, 3) and label == 5
    # An order may name more fields than there are.
    assert Resize(20, order=("image", "mask")).apply((image,)).shape == (20, 30, 3)


def test_no_points_at_all() -> None:
    image = marked()[0]
    fields = np.zeros((0, 4), np.float32), np.zeros((0, 17, 3), np.float32)
    _, boxes, keypoints = Resize(20, order=("image", "boxes", "keypoints")).apply((image, *fields))
    assert boxes.shape == (0, 4) and keypoints.shape == (0, 17, 3)


def test_whole_numbers_of_points() -> None:
    image = marked()[0]
    points = np.array([[3, 5]], np.uint8)
    _, moved = CenterCrop((20, 20), order=("image", "coords")).apply((image, points))
    np.testing.assert_array_equal(moved, [[3 - 20, 5 - 10]])
    _, scaled = Resize((60, 90), order=("image", "coords")).apply((image, points))
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, [[4.5, 7.5]])


@pytest.mark.parametrize(
    ("size", "expected"), [(20, (20, 30)), (40, (40, 60)), ((7, 9), (7, 9)), (7, (7, 10))]
)
def test_size_of_resize(size: Any, expected: tuple[int, int]) -> None:
    assert Resize(size).apply(marked()[0]).shape[:2] == expected
    turned = np.ascontiguousarray(marked()[0].transpose(1, 0, 2))
    flipped = expected[::-1] if isinstance(size, int) else expected
    assert Resize(size).apply(turned).shape[:2] == flipped


def test_shortest_edge_keeps_the_limit_of_the_longer_one() -> None:
    assert ShortestEdgeResize(100, 120).apply(marked()[0]).shape[:2] == (80, 120)
    assert ShortestEdgeResize(20, 120).apply(marked()[0]).shape[:2] == (20, 30)
    sizes = {ShortestEdgeResize((20, 22), 99).apply(marked()[0]).shape[0] for _ in range(40)}
    assert sizes == {20, 21, 22}


def bilinear(image: Array, height: int, width: int) -> Array:
    """Bilinear resize with pixel centers at +0.5, in float64."""

    def weights(new: int, old: int) -> tuple[Array, Array, Array]:
        at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
        low = np.floor(at).astype(int)
        return low, np.minimum(low + 1, old - 1), at - low

    top, bottom, dy = weights(height, image.shape[0])
    left, right, dx = weights(width, image.shape[1])
    source = image.astype(np.float64)
    dx, dy = dx[None, :, None], dy[:, None, None]
    above = source[top][:, left] * (1 - dx) + source[top][:, right] * dx
    below = source[bottom][:, left] * (1 - dx) + source[bottom][:, right] * dx
    return above * (1 - dy) + below * dy


@pytest.mark.parametrize("size", [(17, 23), (80, 90), (20, 30), (41, 61), (1, 1)])
@pytest.mark.parametrize("channels", [1, 3])
def test_bilinear_resize_is_within_one_level(size: tuple[int, int], channels: int) -> None:
    image = np.random.RandomState(0).randint(0, 256, (40, 60, channels), np.uint8)
    resized = Resize(size).apply(image)
    assert resized.shape == (*size, channels) and resized.dtype == np.uint8
    assert np.abs(resized - bilinear(image, *size)).max() <= 1


def test_crops_take_what_is_there() -> None:
    image = np.arange(6 * 8, dtype=np.uint8).reshape(6, 8, 1)
    np.testing.assert_array_equal(CenterCrop((2, 4)).apply(image), image[2:4, 2:6])
    np.random.seed(0)
    seen = {RandomCrop(5).apply(image)[0, 0, 0] for _ in range(200)}
    assert seen == {x + 8 * y for x in range(4) for y in range(2)}
    whole = RandomResizedCrop((6, 8), (1, 1), (8 / 6, 8 / 6)).apply(image)
    np.testing.assert_array_equal(whole, image)


def test_a_crop_that_never_fits_takes_the_middle() -> None:
    image = np.zeros((2, 200, 3), np.uint8)
    image[:, 97:103] = 9
    assert (RandomResizedCrop(4, (0.9, 1)).apply(image) == 9).mean() > 0.6


def test_padding() -> None:
    image = np.full((1, 2, 3), 7, np.uint8)
    padded = Pad((0, 1, 2, 0), value=(1, 2, 3)).apply(image)
    np.testing.assert_array_equal(padded[1], np.tile([1, 2, 3], (4, 1)))
    np.testing.assert_array_equal(padded[0, 2:], image[0])
    # One number is for all channels, and a fractional one makes the image float.
    assert Pad(1, value=5).apply(image)[0, 0].tolist() == [5, 5, 5]
    assert Pad(1, value=0.5).apply(image).dtype == np.float32
    mask = np.ones((1, 2, 1), bool)
    crop = RandomCrop((3, 4), 1, 0, 255, order=("image", "mask"))
    _, grown = crop.apply((image, mask.astype(np.uint8)))
    assert sorted(np.unique(grown)) == [1, 255]


def test_flips_of_programs_set_their_probability_themselves() -> None:
    class Flip(RandomHorizontalFlip):
        def __init__(self, prob: float, order: Any = None) -> None:
            super().__init__(order)
            self.prob = prob

        def _apply_coords(self, coords: Any) -> Any:
            assert (self._flipped, self._h, self._w) == (True, 1, 2)
            return super()._apply_coords(coords)

    image = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)
    for order in (None, ("image",)):
        np.testing.assert_array_equal(Flip(1.0, order).apply(image), image[:, ::-1])
    flip = Flip(1.0)
    flip.order = ("image", "coords")
    _, coords = flip.apply((image, np.array([[0.5, 0.0]])))
    assert coords.tolist() == [[1.5, 0.0]]
    with pytest.raises(ValueError, match="prob should be in"):
        RandomHorizontalFlip(1.5)


def test_flips_mirror() -> None:
    image, mask, *_ = marked()
    flipped, mirror = RandomHorizontalFlip(1, order=("image", "mask")).apply((image, mask))
    np.testing.assert_array_equal(flipped, image[:, ::-1])
    np.testing.assert_array_equal(mirror, mask[:, ::-1])
    np.testing.assert_array_equal(RandomVerticalFlip(1).apply(image), image[::-1])
    np.random.seed(0)
    hits = sum(RandomHorizontalFlip(0.3).apply(image)[10, 20, 0] == 0 for _ in range(400))
    assert 85 < hits < 155


def test_normalize_and_mode() -> None:
    image = np.random.RandomState(0).randint(0, 256, (5, 4, 3), np.uint8)
    chain = Compose([Normalize((103, 116, 123), (57.0, 57, 58)), ToMode()])
    result, label = chain.apply((image, 1))
    assert result.dtype == np.float32 and result.flags.c_contiguous and label == 1
    expected = (image - np.array([103, 116, 123.0])) / [57, 57, 58]
    np.testing.assert_allclose(result, expected.transpose(2, 0, 1), rtol=1e-6)
    assert Normalize().apply(image.astype(np.float64)).dtype == np.float32
    by_channel = Normalize(np.ones((3, 1, 1))).apply(image.transpose(2, 0, 1))
    np.testing.assert_allclose(by_channel, image.transpose(2, 0, 1) - 1.0)
    _, mask = ToMode(order=("image", "mask")).apply((image, image[..., :1]))
    assert mask.shape == (1, 5, 4)


GRADIENT = np.random.RandomState(1).randint(0, 256, (16, 16, 3), np.uint8)


def factor_of(seed: int, low: float, high: float) -> np.float32:
    np.random.seed(seed)
    return np.float32(np.random.uniform(low, high))


@pytest.mark.parametrize("kind", [BrightnessTransform, ContrastTransform, SaturationTransform])
@pytest.mark.parametrize("value", [0.4, (0.2, 0.6)])
def test_brightness_contrast_saturation(kind: Any, value: Any) -> None:
    limits = value if isinstance(value, tuple) else (1 - value, 1 + value)
    factor = factor_of(5, *limits)
    np.random.seed(5)
    result = kind(value).apply(GRADIENT)
    source = GRADIENT.astype(np.float64)
    gray = source @ [0.114, 0.587, 0.299]
    anchor = {
        BrightnessTransform: 0.0,
        ContrastTransform: gray.mean(),
        SaturationTransform: gray[..., None],
    }[kind]
    expected = (source * factor + anchor * (1 - factor)).clip(0, 255)
    assert result.dtype == np.uint8
    # Values are cut off, not rounded, as in MegEngine.
    assert np.abs(result - np.floor(expected)).max() <= 1
    assert kind(0).apply(GRADIENT) is GRADIENT


def test_hue_turns_colors() -> None:
    red = np.zeros((1, 1, 3), np.uint8)
    red[..., 2] = 255
    # A third of the circle makes green of red.
    green = HueTransform((1 / 3, 1 / 3)).apply(red)
    assert green[0, 0, 1] == 255 and green[0, 0, [0, 2]].max() < 8
    blue = HueTransform((-1 / 3, -1 / 3)).apply(red)
    assert blue[0, 0, 0] == 255 and blue[0, 0, 1:].max() < 8


def test_gray_images_have_no_hue_and_no_saturation() -> None:
    gray = GRADIENT[..., :1]
    np.testing.assert_array_equal(HueTransform(0.4).apply(gray), gray)
    assert np.abs(SaturationTransform(0.4).apply(gray).astype(int) - gray).max() <= 1
    assert ColorJitter(0.3, 0.3, 0.3, 0.3).apply(gray).shape == gray.shape


def test_jitter_runs_in_any_order_and_leaves_the_rest() -> None:
    jitter = ColorJitter(0.4, 0.4, 0.4, 0.1, order=("mask", "image"))
    mask = GRADIENT[..., :1]
    same, changed = jitter.apply((mask, GRADIENT))
    assert same is mask and changed.dtype == np.uint8 and (changed != GRADIENT).any()
    assert ColorJitter().apply((GRADIENT, 1)) == (GRADIENT, 1)


def test_noise_and_lighting() -> None:
    np.random.seed(0)
    flat = np.full((64, 64, 3), 128, np.uint8)
    noisy = GaussianNoise(0.1, 0.05).apply(flat).astype(float)
    assert abs(noisy.mean() - 128 - 25.5) < 1 and abs(noisy.std() - 0.05 * 255) < 1
    assert GaussianNoise(0, 5).apply(flat).min() == 0
    np.random.seed(2)
    alpha = np.random.normal(scale=0.1 * 255, size=3)
    np.random.seed(2)
    light = Lighting(0.1)
    lit = light.apply(flat.astype(np.float32))
    expected = 128 + light.eigvec @ (alpha * light.eigval)
    np.testing.assert_allclose(lit[0, 0], expected, rtol=1e-5)
    assert Lighting(0).apply(flat) is flat


def test_an_order_reaches_the_transforms_of_a_chain() -> None:
    chain = Compose(
        [RandomCrop(8, 2), RandomHorizontalFlip(1), ColorJitter(0.1)],
        order=("info", "image", "mask"),
    )
    image, mask, *_ = marked()
    name, cut, cut_mask = chain.apply(("a", image, mask))
    assert name == "a" and cut.shape == (8, 8, 3) and cut_mask.shape == (8, 8, 1)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Resize(5, order="image"), ValueError, "order should be a sequence"),
        (lambda: Resize(5, order=("batch",)), ValueError, "batch is invalid"),
        (lambda: Resize(5, order=("sound",)), NotImplementedError, "sound is unsupported"),
        (lambda: Compose([Resize(5)], order=("sound",)), NotImplementedError, "sound"),
        (lambda: Resize(0), ValueError, "output_size"),
        (lambda: RandomCrop((1, 2, 3)), ValueError, "output_size"),
        (lambda: Pad((1, 2, 3)), ValueError, "size should be"),
        (lambda: Pad(-1), ValueError, "negative"),
        (lambda: Pad(1, mask_value=0.5), ValueError, "mask_value"),
        (lambda: ToMode("HWC"), ValueError, "unsupported mode"),
        (lambda: ShortestEdgeResize(5, 9, "best"), NotImplementedError, "sample style"),
        (lambda: ShortestEdgeResize((9, 5), 9), ValueError, "least, most"),
        (lambda: RandomResize((0, 1)), ValueError, "scale_range"),
        (lambda: RandomResizedCrop(5, (1, 0.5)), ValueError, "scale_range"),
        (lambda: RandomHorizontalFlip(1.5), ValueError, "prob"),
        (lambda: Normalize(0, (1, 0, 1)), ValueError, "zero"),
        (lambda: GaussianNoise(0, -1), ValueError, "std"),
        (lambda: BrightnessTransform(-1), ValueError, "brightness value should be non-negative"),
        (lambda: ContrastTransform((2, 1)), ValueError, "contrast"),
        (lambda: HueTransform(0.6), ValueError, "hue value"),
        (lambda: Lighting(-1), ValueError, "lighting"),
    ],
)
def test_bad_arguments(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parametrize(
    ("transform", "sample", "error", "text"),
    [
        (Resize(5), np.zeros((4, 4), np.uint8), ShapeError, r"image\[:, :, None\]"),
        (Resize(5), [1, 2], ShapeError, "list"),
        (Resize(5), np.zeros((0, 4, 3), np.uint8), ShapeError, "(H, W, C)"),
        (Resize(5), np.zeros((4, 4, 3), np.int64), DTypeError, "interpolated"),
        (Resize(5, order=("info",)), ("a",), ValueError, "needs an image"),
        (CenterCrop(50), np.zeros((40, 60, 3), np.uint8), ShapeError, "bigger than image"),
        (ToMode(), np.zeros((4, 4), np.uint8), ShapeError, "(H, W, C)"),
        (Normalize((1, 2, 3)), np.zeros((3, 4, 5)), ShapeError, "put ToMode after Normalize"),
        (Pad(1, value=300), np.zeros((2, 2, 3), np.uint8), ValueError, "does not fit uint8"),
        (Pad(1, value=(1, 2)), np.zeros((2, 2, 3), np.uint8), ValueError, "one per channel"),
        (BrightnessTransform(1), np.zeros((2, 2, 3), np.uint16), DTypeError, "16-bit"),
        (HueTransform(0.1), np.zeros((2, 2, 4), np.uint8), ShapeError, "1 or 3 channels"),
        (Lighting(1), np.zeros((2, 2, 1), np.uint8), ShapeError, "3 channels"),
        (
            RandomCrop(2, order=("image", "mask")),
            (np.zeros((4, 4, 3), np.uint8), np.zeros((5, 4, 1), np.uint8)),
            ShapeError,
            "as large as its image",
        ),
        (
            Resize(2, order=("image", "keypoints")),
            (np.zeros((4, 4, 3), np.uint8), np.zeros((5, 3))),
            ShapeError,
            "(N, K, 3)",
        ),
    ],
)
def test_bad_samples(transform: Any, sample: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        transform.apply(sample)
    assert text.replace("\\", "") in str(caught.value)


class Photos(Dataset):
    """Images that differ."""

    def __getitem__(self, index: int) -> tuple[Array, int]:
        return np.random.RandomState(index).randint(0, 256, (20, 20, 3), np.uint8), index

    def __len__(self) -> int:
        return 8


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loaders_seed_decides_what_random_transforms_do(workers: int) -> None:
    chain = [RandomResizedCrop(8), RandomHorizontalFlip(), ColorJitter(0.4, 0.4, 0.4, 0.1)]

    def epoch(seed: int) -> list[Array]:
        np.random.seed(seed)
        sampler = SequentialSampler(Photos(), 2)
        loader = DataLoader(Photos(), sampler, Compose(chain), num_workers=workers)
        return [images for images, _ in loader]

    first, again, other = epoch(1), epoch(1), epoch(2)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
