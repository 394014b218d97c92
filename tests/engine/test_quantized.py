"""Quantized networks in compiled programs: integers all the way, one kernel per convolution."""

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.base import dtype as dt
from treadle.ops.conv import IntConv
from treadle.ops.quant import Dequantize, Quantize

CHANNELS = 32
CASES = {"int8": (dt.int8, -128, 127, 0), "uint8": (dt.uint8, 0, 255, 3)}


class Network:
    """A residual block of quantized convolutions, a pool, and a mean."""

    def __init__(self, kind):
        rng = np.random.default_rng(0)
        self.kind = CASES[kind]
        shapes = [(CHANNELS, 3, 3, 3), (CHANNELS, CHANNELS, 1, 1), (CHANNELS, CHANNELS, 3, 3)]
        self.weights = [self.tensor(rng.integers(-127, 128, s).astype(np.int8)) for s in shapes]
        shape = (1, CHANNELS, 1, 1)
        self.biases = [self.tensor(rng.integers(-500, 500, shape).astype(np.int32)) for _ in shapes]
        factors = [rng.uniform(0.5, 1.5, shape) * size for size in (1e-4, 4e-4, 1e-4)]
        self.factors = [self.tensor(f.astype(np.float32)) for f in factors]

    @staticmethod
    def tensor(array):
        return mge.tensor(array, device="cpux")

    def real(self, i, x):
        pad = (self.weights[i].shape[-1] // 2,) * 2
        sums = IntConv((1, 1), (pad, pad), (1, 1), 1)(x, self.weights[i]) + self.biases[i]
        return sums.astype("float32") * self.factors[i]

    def quantized(self, x):
        dtype, low, high, zero = self.kind
        step, zero = x.constant(0.02, dt.float32), x.constant(zero, dt.int32)
        return Quantize(dtype, low, high)(x, step, zero)

    def dequantized(self, x):
        step, zero = x.constant(0.02, dt.float32), x.constant(self.kind[3], dt.int32)
        return Dequantize()(x, step, zero)

    def __call__(self, x):
        x = self.quantized(F.relu(self.real(0, self.quantized(x))))
        y = self.quantized(F.relu(self.real(1, x)))
        y = self.quantized(F.relu(self.real(2, y) + self.dequantized(x)))
        y = F.max_pool2d(y, 2)
        return y, F.mean(self.dequantized(y), (2, 3))


@pytest.mark.parametrize("kind", CASES)
def test_a_quantized_block(kind):
    network = Network(kind)
    image = np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype(np.float32)
    x = mge.tensor(image, device="cpux")
    compiled = mge.jit.compile(network)
    (levels, means), (wanted, real) = compiled(x), network(x)
    found = compiled.explain(x, form="json")
    np.testing.assert_array_equal(levels.numpy(), wanted.numpy())
    np.testing.assert_allclose(means.numpy(), real.numpy(), rtol=1e-6)
    assert len(np.unique(levels.numpy())) > 16
    groups = [g for g in found["groups"] if "int_conv" in g["ops"]]
    assert len(groups) == 3 and all("saturate" in g["ops"] for g in groups)
    assert "cast" not in [g["ops"] for g in found["groups"]]
