"""A small network on real images: trained, calibrated, trained with rounding, on integers."""

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import quantization as Q
from treadle.autodiff import GradManager
from treadle.jit import compile
from treadle.optimizer import Adam

TRAINED, SIZE = 1297, 50


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.quant = M.QuantStub()
        self.first = M.ConvBnRelu2d(1, 8, 3, padding=1)
        self.second = M.ConvBnRelu2d(8, 16, 3, padding=1)
        self.head = M.Linear(16 * 2 * 2, 10)
        self.dequant = M.DequantStub()

    def forward(self, x):
        x = F.max_pool2d(self.first(self.quant(x)), 2)
        x = F.max_pool2d(self.second(x), 2)
        return self.dequant(self.head(F.flatten(x, 1)))


@pytest.fixture(scope="module")
def digits():
    # Its import takes seconds, which only the process that runs these tests has to spend.
    datasets = pytest.importorskip("sklearn.datasets", reason="its bundled digits are the data")
    found = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images = (found.images[order, None] / 16).astype(np.float32)
    return images, found.target[order].astype(np.int32)


def train(net, digits, epochs, lr):
    images, labels = digits
    net.train()
    gm, opt = GradManager().attach(net.parameters()), Adam(net.parameters(), lr)

    @compile
    def step(x, y):
        with gm:
            loss = F.loss.cross_entropy(net(x), y)
            gm.backward(loss)
        opt.step().clear_grad()
        return loss

    rng = np.random.default_rng(1)
    for _ in range(epochs):
        order = rng.permutation(TRAINED)
        for start in range(0, TRAINED - SIZE + 1, SIZE):
            rows = order[start : start + SIZE]
            step(mge.tensor(images[rows]), mge.tensor(labels[rows]))


def accuracy(net, digits):
    images, labels = (part[TRAINED:] for part in digits)
    net.eval()
    scores = net(mge.tensor(images)).numpy()
    return float((scores.argmax(axis=1) == labels).mean())


@pytest.fixture(scope="module")
def trained(digits):
    mge.random.seed(0)
    net = Net()
    train(net, digits, epochs=6, lr=5e-3)
    return net


@pytest.fixture(scope="module")
def float_accuracy(trained, digits):
    found = accuracy(trained, digits)
    assert found > 0.96
    return found


def test_weights_in_integers_are_within_a_percent(trained, digits, float_accuracy):
    """Calibrated activations, too, are in `tests/examples`, on the same images."""
    rounded = Q.calibrate(trained, [digits[0][:200]], False, Q.weight_only_qconfig)
    assert accuracy(Q.quantize(rounded), digits) >= float_accuracy - 0.01


def test_integers_after_training_with_rounding_are_within_a_percent(
    trained, digits, float_accuracy
):
    rounded = Q.quantize_qat(trained, inplace=False)
    train(rounded, digits, epochs=1, lr=1e-3)
    rounded.eval()
    integers = Q.quantize(rounded, inplace=False)
    assert accuracy(integers, digits) >= float_accuracy - 0.01
    images = mge.tensor(digits[0][TRAINED:])
    program = compile(lambda x: integers(x))
    same = program(images).numpy().argmax(axis=1) == integers(images).numpy().argmax(axis=1)
    assert same.mean() > 0.99
    level = rounded.head.get_activation_qparams().scale.item()
    off = abs(integers(images).numpy() - rounded(images).numpy()) / level
    assert off.max() < 2.01  # A level lost in one layer may cost one more in the next.
    assert (off < 0.01).mean() > 0.99
