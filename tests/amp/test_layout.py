"""Tags of channels-last tensors change neither shape nor values."""

import numpy as np
import pytest

import treadle.module as M
from treadle.amp import convert_module_format, convert_tensor_format
from treadle.tensor import Tensor


def test_tensors_are_tagged() -> None:
    x = Tensor(np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4))
    copied = convert_tensor_format(x, inplace=False)
    assert (x.format, copied.format) == ("default", "nhwc")
    assert convert_tensor_format(x) is x
    assert x.format == "nhwc"
    assert x.shape == copied.shape == (1, 2, 3, 4)
    np.testing.assert_array_equal(x.numpy(), copied.numpy())
    flat = Tensor([1.0])
    assert convert_tensor_format(flat).format == "default"
    with pytest.raises(TypeError, match="takes a tensor"):
        convert_tensor_format([1.0])  # type: ignore[arg-type]


def test_modules_keep_their_results() -> None:
    layer = M.Conv2d(2, 3, 3)
    x = Tensor(np.random.default_rng(0).normal(size=(1, 2, 5, 5)).astype("float32"))
    wanted = layer(x).numpy()
    copied = convert_module_format(layer, inplace=False)
    assert layer.weight.format == "default"
    assert copied.weight.format == "nhwc"
    assert convert_module_format(layer) is layer
    np.testing.assert_allclose(layer(convert_tensor_format(x)).numpy(), wanted, rtol=1e-6)
