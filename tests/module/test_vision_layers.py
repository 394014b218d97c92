"""Image transforms as layers: against the functions they call, or sums written out."""

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest

import treadle.functional as F
import treadle.module as M
from treadle.base.errors import ShapeError
from treadle.tensor import Tensor


def _image(*shape: int, dtype: str = "float32") -> Tensor:
    values = np.random.default_rng(0).uniform(0, 200, shape)
    return Tensor(values.astype(dtype))


def test_flip_and_turns_are_the_functions() -> None:
    x = Tensor(np.arange(4, dtype=np.float32).reshape(1, 2, 2, 1))
    assert M.Flip()(x).numpy().ravel().tolist() == [3, 2, 1, 0]
    assert M.Flip(vertical=False)(x).numpy().ravel().tolist() == [1, 0, 3, 2]
    assert M.Rot90()(x).numpy().ravel().tolist() == [2, 0, 3, 1]
    turned = M.Rot90(clockwise=False)(x)
    np.testing.assert_array_equal(turned.numpy(), F.vision.rot90(x, False).numpy())


def test_resize_and_rotate_are_the_functions() -> None:
    x = Tensor(np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4))
    assert M.Resize([2, 2])(x).numpy().ravel().tolist() == [2.5, 4.5, 10.5, 12.5]
    np.testing.assert_array_equal(
        M.Rotate(30.0)(x).numpy(), F.vision.rotate(x, 30.0, "NCHW", "bilinear").numpy()
    )
    for make in (M.Resize, M.Rotate):
        with pytest.raises(RuntimeError, match="NCHW or NHWC"):
            make(1, format="CHW")


def test_remap_takes_one_map_or_two() -> None:
    x = Tensor(np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4))
    columns = Tensor(np.array([[[1, 0], [0, 0]]], np.float32))
    rows = Tensor(np.array([[[1, 1], [1, 1]]], np.float32))
    assert M.Remap()(x, columns, rows).tolist() == [[[[5.0, 4.0], [4.0, 4.0]]]]
    both = F.stack([columns, rows], axis=3)
    assert M.Remap()(x, both, Tensor([])).tolist() == [[[[5.0, 4.0], [4.0, 4.0]]]]
    with pytest.raises(ShapeError, match="differ in shape"):
        M.Remap()(x, columns, rows[:, :1])


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_crop_and_pad(mode: str) -> None:
    x = _image(3, 2, 8, 8)
    share, fill = Tensor([0.25, -0.25, 0.0]), Tensor([7.0, 7.0, 7.0])
    out = M.CropAndPad(mode)(x, share, fill).numpy()
    assert out.shape == x.shape
    np.testing.assert_allclose(out[2], x.numpy()[2], rtol=1e-5)
    assert out[0, 0, 0, 0] == pytest.approx(7.0, abs=1e-3)  # Two cells at every side are new.
    inner = Tensor(x.numpy()[1:2, :, 2:6, 2:6])
    if mode == "bilinear":
        wanted = F.vision.interpolate(inner, size=(8, 8)).numpy()[0]
    else:
        wanted = np.repeat(np.repeat(inner.numpy()[0], 2, 1), 2, 2)
    np.testing.assert_allclose(out[1], wanted, rtol=1e-4, atol=1e-3)
    assert M.CropAndPad(mode)(x, share).numpy()[0, 0, 0, 0] == pytest.approx(0.0, abs=1e-4)
    with pytest.raises(ValueError, match="mode must be"):
        M.CropAndPad("cubic")


def test_dilation() -> None:
    x = np.zeros((1, 1, 5, 5), np.float32)
    x[0, 0, 2, 2] = 1
    cross = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]])
    once = M.Dilation()(Tensor(x), cross).numpy()[0, 0]
    wanted = np.zeros((5, 5))
    wanted[1:4, 2] = wanted[2, 1:4] = 1
    np.testing.assert_array_equal(once, wanted)
    assert M.Dilation(iterations=2)(Tensor(x), cross).numpy().sum() == 13
    assert M.Dilation(border_value=3.0)(Tensor(x), cross).numpy()[0, 0, 0, 0] == 3
    with pytest.raises(ValueError, match="BORDER_CONSTANT"):
        M.Dilation(border_type="BORDER_WRAP")


def test_polygons_are_filled() -> None:
    x = F.zeros((2, 2, 6, 6))
    square = np.array([[[1, 1], [4, 1], [4, 4], [1, 4]]] * 2, np.float32)
    out = M.FillPoly()(x, Tensor(square), Tensor([1.0, 2.0])).numpy()
    assert out[0, 0].sum() == 9
    assert out[1, 1, 2, 2] == 2
    assert out[0, 0, 5, 5] == 0
    with pytest.raises(ShapeError, match="one polygon per image"):
        M.FillPoly()(x, Tensor(square[:1]), Tensor([1.0, 2.0]))


NOISES: dict[str, tuple[Callable[..., M.AdditiveElemwise], float, float]] = {
    "gaussian": (lambda p, s: M.AdditiveGaussianNoise(1.0, 2.0, p, s), 1.0, 4.0),
    "laplace": (lambda p, s: M.AdditiveLaplaceNoise(1.0, 2.0, p, s), 1.0, 8.0),
    "poisson": (lambda p, s: M.AdditivePoissonNoise(3.0, p, s), 3.0, 3.0),
}


@pytest.mark.parametrize("name", NOISES)
def test_noise(name: str) -> None:
    make, mean, variance = NOISES[name]
    x = F.zeros((4, 3, 40, 40))
    noise = make(True, 5)
    first = noise(x).numpy()
    assert first.mean() == pytest.approx(mean, abs=0.15)
    assert first.var() == pytest.approx(variance, rel=0.1)
    assert not np.array_equal(first[:, 0], first[:, 1])
    same = make(False, 5)(x).numpy()
    np.testing.assert_array_equal(same[:, 0], same[:, 2])
    noise.seed = 5
    assert noise.seed == 5
    np.testing.assert_allclose(noise(x).numpy(), first, rtol=1e-4, atol=1e-5)
    with pytest.raises(TypeError, match="seed must be an int"):
        make(True, 1.5)


def test_emboss_and_sharpen() -> None:
    x = _image(2, 3, 6, 6)
    np.testing.assert_allclose(M.Emboss(0, 1)(x).numpy(), x.numpy(), rtol=1e-5)
    np.testing.assert_allclose(M.Sharpen(0, 1)(x).numpy(), x.numpy(), rtol=1e-5)
    wide = np.pad(x.numpy(), [(0, 0), (0, 0), (1, 1), (1, 1)], "reflect")
    kernels = {
        M.Emboss(0.5, 2.0): np.array([[-3, -2, 0], [-2, 1, 2], [0, 2, 3]]),
        M.Sharpen(0.5, 2.0): np.array([[-1, -1, -1], [-1, 10, -1], [-1, -1, -1]]),
    }
    for layer, effect in kernels.items():
        kernel = 0.5 * np.array([[0, 0, 0], [0, 1, 0], [0, 0, 0]]) + 0.5 * effect
        wanted = sum(
            kernel[i, j] * wide[:, :, i : i + 6, j : j + 6] for i in range(3) for j in range(3)
        )
        np.testing.assert_allclose(layer(x).numpy(), wanted, rtol=1e-4, atol=1e-3)
    bytes_out = M.Sharpen((0.5, 1.0), (0.5, 1.0), seed=1)(_image(1, 1, 6, 6, dtype="uint8"))
    assert bytes_out.dtype == np.uint8
    with pytest.raises(TypeError, match="expected a number"):
        M.Emboss(True, 1)(x)


def test_contrast() -> None:
    x = Tensor(np.array([0, 100, 127, 250], np.uint8).reshape(1, 1, 2, 2))
    assert M.LinearContrast(2.0)(x).numpy().ravel().tolist() == [0, 73, 127, 255]
    y = _image(2, 3, 4, 4)
    factors = M.LinearContrast((0.5, 1.5), per_channel=True, seed=3)(y).numpy() / y.numpy()
    np.testing.assert_allclose(factors, factors[:, :, :1, :1].repeat(4, 2).repeat(4, 3), rtol=1e-4)
    assert np.unique(np.round(factors, 4)).size == 6


def test_mixup_and_cutmix() -> None:
    x, y = F.zeros((8, 2, 6, 6)), F.ones((8, 2, 6, 6))
    labels = F.zeros(8), F.ones(8)
    data, label = M.Mixup(2.0, seed=1)(x, labels[0], y, labels[1])
    np.testing.assert_allclose(data.numpy()[:, 0, 0, 0], label.numpy(), rtol=1e-5)
    assert ((label.numpy() > 0) & (label.numpy() < 1)).all()
    data, label = M.Cutmix(2.0, seed=1)(x, labels[0], y, labels[1])
    assert set(np.unique(data.numpy())) <= {0.0, 1.0}
    assert data.numpy().any()
    np.testing.assert_array_equal(data.numpy()[:, 0], data.numpy()[:, 1])


def test_gaussian_blur() -> None:
    data = np.arange(75, dtype=np.float32).reshape(1, 3, 5, 5).transpose(0, 2, 3, 1)
    out = M.GaussianBlur(3, 1, border_mode="REFLECT_101")(Tensor(data)).numpy()
    # What torchvision's GaussianBlur((3, 3), 1) gives for the first row of the first channel.
    wanted = [3.2888236, 3.7406862, 4.7406864, 5.7406864, 6.1925488]
    np.testing.assert_allclose(out[0, 0, :, 0], wanted, rtol=1e-5)
    for border in ("REPLICATE", "REFLECT", "WRAP", "CONSTANT"):
        flat = M.GaussianBlur((3, 5), border_mode=border)(F.ones((1, 4, 6, 1))).numpy()
        assert flat[0, 2, 3, 0] == pytest.approx(1.0)
        assert (flat[0, 0, 0, 0] == pytest.approx(1.0)) == (border != "CONSTANT")
    assert M.GaussianBlur(3)(_image(1, 4, 4, 3, dtype="uint8")).dtype == np.uint8
    with pytest.raises(ValueError, match="sizes are odd"):
        M.GaussianBlur(4)
    with pytest.raises(ValueError, match="border_mode is one of"):
        M.GaussianBlur(3, border_mode="ISOLATED")
    with pytest.raises(ValueError, match="1 or 3 channels"):
        M.GaussianBlur(3)(_image(1, 3, 8, 8))


def test_images_are_asked_for() -> None:
    for layer in (M.Flip(), M.Rot90(), M.LinearContrast(1.0), M.GaussianBlur(3)):
        with pytest.raises(TypeError, match="expected input is a tensor"):
            layer([1.0])
        with pytest.raises(ShapeError, match="expects images"):
            layer(F.ones((2, 2)))


def test_copies_go_on_with_the_same_numbers() -> None:
    x = F.zeros((1, 1, 3, 3))
    noise = M.AdditiveGaussianNoise(seed=4)
    noise(x)
    for twin in (copy.deepcopy(noise), pickle.loads(pickle.dumps(noise))):
        assert twin.seed == 4
        wanted = copy.deepcopy(noise)(x).numpy()
        np.testing.assert_allclose(twin(x).numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_a_filter_of_ones_own() -> None:
    class Box(M.ActiveBlur):
        def get_kernel(self, inp: Tensor, c: int) -> Tensor:
            return F.ones((c, 1, 1, 3, 3)) / 9.0

    x = _image(1, 2, 5, 5)
    wanted = x.numpy()[:, :, 1:4, 1:4].mean((2, 3))
    np.testing.assert_allclose(Box()(x).numpy()[:, :, 2, 2], wanted, rtol=1e-5)
