"""A native library of C functions becomes kernels of a device, a line per op."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.plugins import Plugins, fresh_report

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.backends.adapters import Library
from treadle.backends.api import Kernel
from treadle.base.errors import DeviceError

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
RNG = np.random.default_rng(3)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    made = tmp_path_factory.mktemp("library") / "adapters.so"
    source = Path(__file__).with_name("adapters.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
    return ctypes.CDLL(str(made))


def kernels(library: Any) -> list[Kernel]:
    """What a backend's author writes."""
    make = Library(address=lambda buffer: buffer.bytes.ctypes.data)
    return [
        make.elementwise("add", library.add),
        make.elementwise("relu", library.relu),
        make.elementwise("leaky_relu", library.leaky_relu, attributes=("alpha",)),
        make.elementwise("exp", library.fails),
        make.reduction("sum", library.sum),
        make.matmul(library.matmul),
        make.conv(library.conv),
        make.conv(library.conv_grad_input, "conv_grad_input"),
        make.conv(library.conv_grad_weight, "conv_grad_weight"),
    ]


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


X, Y, IMAGE = normal(2, 3, 4), normal(2, 4, 5), normal(2, 4, 7, 6)
WEIGHT = normal(6, 2, 3, 2)
CALLS: dict[str, Any] = {
    "add": lambda t: t(X) + t(X[0]),
    "relu": lambda t: F.relu(t(X)),
    "leaky_relu": lambda t: F.leaky_relu(t(X), 0.3),
    "sum": lambda t: F.sum(t(X), axis=1),
    "sum of all": lambda t: t(X).sum(),
    "sum of the last two": lambda t: F.sum(t(X), axis=(1, 2), keepdims=True),
    "matmul": lambda t: F.matmul(t(X), t(Y)),
    "matmul, transposed": lambda t: F.matmul(t(X[0]), t(X[1]), transpose_b=True),
    "conv": lambda t: F.conv2d(t(IMAGE), t(WEIGHT), None, (2, 1), (1, 2), (1, 2), groups=2),
}


@pytest.mark.parametrize("name", CALLS)
def test_families_compute_what_the_host_does(plugins: Plugins, library: Any, name: str) -> None:
    plugins.toy(kernels=kernels(library))
    compute = CALLS[name]
    expected = compute(lambda a: mge.tensor(a, device="cpu0"))
    with mge.fallback("silent"):
        got = compute(lambda a: mge.tensor(a, device="toy0"))
    np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-5, atol=1e-5)
    op = name.partition(" ")[0].rstrip(",")
    assert op not in {row.op for row in mge.fallback_report()}


def test_gradients_run_on_kernels_of_the_library(plugins: Plugins, library: Any) -> None:
    plugins.toy(kernels=kernels(library))
    found = {}
    for device in ("cpu0", "toy0"):
        fresh_report()
        x, w = (mge.tensor(a, device=device) for a in (IMAGE, WEIGHT))
        gm = GradManager().attach([x, w])
        with mge.fallback("silent"), gm:
            gm.backward(F.relu(F.conv2d(x, w, None, (2, 1), (1, 2), groups=2)).sum())
        found[device] = [x.grad.numpy(), w.grad.numpy()]
    for got, expected in zip(found["toy0"], found["cpu0"], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    fallen = {row.op for row in mge.fallback_report()}
    assert not fallen & {"conv", "conv_grad_input", "conv_grad_weight", "sum", "relu"}


def test_what_the_library_does_not_take_is_left_to_the_host(plugins: Plugins, library: Any) -> None:
    plugins.toy(kernels=kernels(library))
    x = mge.tensor(X, device="toy0")
    reasons = {
        "sum": F.sum(x, axis=(0, 2)).shape and "attribute: axes [0, 2] do not lie side by side",
        "matmul": F.matmul(x, x[0].T).shape and "shape: as many matrices on either side only",
        "add": (x.astype("int32") + 1).shape and "dtype: float32, not int32",
    }
    told = {row.op: row.reason for row in mge.fallback_report()}
    assert {op: told[op] for op in reasons} == reasons


def test_a_status_other_than_zero_is_an_error(plugins: Plugins, library: Any) -> None:
    plugins.toy(kernels=kernels(library))
    with pytest.raises(DeviceError, match=r"exp: the kernel of toy0 failed.*returned 7"):
        F.exp(mge.tensor(X, device="toy0"))


def test_the_stream_is_passed_on(plugins: Plugins) -> None:
    given = []

    @ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 2, ctypes.c_int64, ctypes.c_void_p)
    def function(x: int, y: int, n: int, queue: int) -> int:
        given.append((n, queue))
        return 0

    make = Library(lambda buffer: buffer.bytes.ctypes.data, stream=lambda stream: 42)
    plugins.toy(kernels=[make.elementwise("neg", function)])
    _ = -mge.tensor(X, device="toy0")
    assert given == [(X.size, 42)]
