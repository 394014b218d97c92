"""Products by cuBLASLt: what it is asked for, and with which arguments; the library is a fake."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.backends.cuda.fake_cublaslt import FakeCublasLt
from tests.backends.cuda.host_backend import KIND, HostCuda
from tests.backends.cuda.host_gpu import QUEUES, host_compiler
from tests.backends.cuda.workloads import curve
from tests.backends.plugins import Plugins

import treadle as mge
import treadle.functional as F
from treadle.backends.api import Support
from treadle.backends.cuda.libraries import blaslt, products
from treadle.backends.cuda.libraries.products import PREFIX, Sizes, View, calls_of, parsed
from treadle.base import dtype as dt
from treadle.base.errors import DeviceError
from treadle.engine.eager import fallback
from treadle.jit import compile as jit_compile
from treadle.ops.conv import Conv, ConvGradInput, ConvGradWeight
from treadle.ops.matmul import Matmul

DEVICE = f"{KIND}0"
SHAPES = [
    ((40, 30), (30, 50), False, False),
    ((30, 40), (30, 50), True, False),
    ((40, 30), (50, 30), False, True),
    ((30, 40), (50, 30), True, True),
    ((3, 20, 30), (3, 30, 40), False, False),
    ((3, 30, 20), (3, 40, 30), True, True),
    ((2, 3, 20, 30), (30, 40), False, False),
    ((2, 3, 20, 30), (40, 30), False, True),
    ((30, 20), (4, 30, 40), True, False),
    ((3, 30, 20), (30, 40), True, False),
    ((1, 1, 200, 30), (6, 30, 40), False, False),
    ((2, 1, 40, 30), (1, 3, 30, 40), False, False),
    ((1, 300), (300, 200), False, False),
    ((300, 200), (200, 1), False, False),
]


class WithProducts(HostCuda):
    """The backend as it is where nvmath-python is installed."""

    def libraries(self) -> tuple[str, ...]:
        return ("cublasLt",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def library(
    plugins: Plugins, folder: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeCublasLt]:
    monkeypatch.setenv("TREADLE_CACHE_DIR", folder)
    plugins.offer(KIND, WithProducts())
    made = FakeCublasLt(lambda stream, work: QUEUES[stream].submit(work))
    opened = blaslt.BlasLt(made)
    monkeypatch.setattr(blaslt, "library_of", lambda device: opened)
    yield made


def draw(shape: tuple[int, ...], dtype: str = "float32") -> mge.Tensor:
    """Small whole numbers: products are exact in every type."""
    array = np.random.default_rng(len(shape)).integers(-3, 4, shape).astype("float32")
    return mge.tensor(array, device="cpu0").astype(dtype)


@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_shapes_and_transposes(case: Any, library: FakeCublasLt) -> None:
    x, y, transpose_x, transpose_y = case
    op = Matmul(transpose_x, transpose_y)
    one, two = draw(x), draw(y)
    found = op(one.to(DEVICE), two.to(DEVICE))
    np.testing.assert_array_equal(found.numpy(), op.reference(one.numpy(), two.numpy()))
    assert library.calls and not fallback.fallback_report()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_element_types(dtype: str, library: FakeCublasLt) -> None:
    x, y = draw((40, 30), dtype), draw((30, 50), dtype)
    found, expected = (F.matmul(x.to(d), y.to(d)).astype("float32") for d in (DEVICE, "cpu0"))
    np.testing.assert_array_equal(found.numpy(), expected.numpy())
    assert library.computes == [68]


def test_plans_are_made_once_and_tensor_cores_are_asked_for_openly(
    library: FakeCublasLt, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = draw((40, 30)).to(DEVICE), draw((30, 50)).to(DEVICE)
    for _ in range(3):
        F.matmul(x, y)
    assert library.heuristics == 1 and library.computes == [68] * 3
    monkeypatch.setenv("TREADLE_CUDA_TF32", "1")
    F.matmul(x, y)
    assert library.heuristics == 2 and library.computes[-1] == 77


def test_products_are_recorded_with_their_scratch_memory(library: FakeCublasLt) -> None:
    def turned(x: mge.Tensor, w: mge.Tensor) -> mge.Tensor:
        for _ in range(5):
            x = F.matmul(x, w)
        return x

    run, order = jit_compile(turned), np.roll(np.eye(40, dtype=np.float32), 1, 0)
    x, w = draw((30, 40)), mge.tensor(order, device=DEVICE)
    given, expected = x.to(DEVICE), np.roll(x.numpy(), -5, 1)
    for _ in range(6):
        np.testing.assert_array_equal(run(given, w).numpy(), expected)
    assert library.calls == 6 * 5
    counters = mge.report(DEVICE).counters
    assert counters["recordings replayed"] == 4 and counters["submissions spared"] == 16


def test_no_algorithm_is_an_error(library: FakeCublasLt) -> None:
    library.answers = 0
    with pytest.raises(DeviceError, match="no algorithm"):
        F.matmul(draw((40, 30)).to(DEVICE), draw((30, 50)).to(DEVICE))


GEOMETRIES = [
    ((2, 3, 9, 8), (4, 3, 3, 3), ((1, 1), ((1, 1), (1, 1)), (1, 1), 1)),
    ((2, 4, 7, 7), (6, 4, 1, 1), ((1, 1), ((0, 0), (0, 0)), (1, 1), 1)),
    ((1, 3, 10, 11), (5, 3, 3, 2), ((2, 3), ((1, 0), (2, 1)), (2, 1), 1)),
    ((3, 2, 8, 8), (4, 2, 1, 1), ((2, 2), ((0, 0), (0, 0)), (1, 1), 1)),
]


@pytest.mark.skipif(host_compiler() is None, reason="needs g++")
@pytest.mark.parametrize("case", GEOMETRIES, ids=lambda c: str(c[:2]))
def test_convolutions_are_products_over_columns(
    case: Any, library: FakeCublasLt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "LEAST", 1)
    shape, kernel, attributes = case
    x, w = draw(shape), draw(kernel)
    y = Conv(*attributes).reference(x.numpy(), w.numpy())
    dy = draw(y.shape)
    for op, given in (
        (Conv(*attributes), (x, w)),
        (ConvGradInput(*attributes, shape[2:]), (dy, w)),
        (ConvGradWeight(*attributes, kernel[2:]), (x, dy)),
    ):
        before = library.calls
        found = op(*(t.to(DEVICE) for t in given))
        np.testing.assert_array_equal(
            found.numpy(), op.reference(*(t.numpy() for t in given)), op.name
        )
        assert library.calls == before + 1, op.name
    assert not fallback.fallback_report()


@pytest.mark.skipif(host_compiler() is None, reason="needs g++")
def test_groups_are_products_and_a_kernel(library: FakeCublasLt) -> None:
    def head(x: mge.Tensor, w: mge.Tensor, b: mge.Tensor) -> mge.Tensor:
        return F.relu(F.matmul(x, w, transpose_b=True) + b)

    given = draw((64, 40)), draw((50, 40)), draw((50,))
    found = jit_compile(head)(*(t.to(DEVICE) for t in given))
    np.testing.assert_array_equal(found.numpy(), head(*given).numpy())
    assert library.calls == 1 and not fallback.fallback_report()


@pytest.mark.skipif(host_compiler() is None, reason="needs g++")
@pytest.mark.parametrize(
    ("name", "calls"),
    [
        pytest.param("mlp", 8, marks=pytest.mark.nvrtc),
        pytest.param("cnn", 8, marks=pytest.mark.nvrtc),
        ("transformer", 26),
    ],
)
@pytest.mark.long
def test_training_follows_the_cpus_curve(
    name: str, calls: int, library: FakeCublasLt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "LEAST", 1)
    found = curve(name, DEVICE, 3)
    np.testing.assert_allclose(found, curve(name, "cpu0", 3), 2e-4)
    assert library.calls == 3 * calls  # three per product, but for the first layer's input


# -- arguments alone -----------------------------------------------------------------------------


def test_heads_are_read_where_they_lie() -> None:
    """Scores of two batches of four heads of 16, split from rows of 64: a call per batch."""
    sizes = Sizes(32, 32, 16, (2, 4))
    q = View(0, 64, 1, (32 * 64, 16))
    k = View(2 * 32 * 64, 1, 64, (32 * 64, 16))
    calls = calls_of(dt.float32, sizes, q, k)
    assert not isinstance(calls, Support)
    assert [(c.x, c.y, c.result) for c in calls] == [
        (0, 4096, 0),
        (2048, 6144, 4 * 32 * 32),
    ]
    product = calls[0].product
    assert product.count == 4 and product.first.transposed and not product.second.transposed
    assert (product.first.pitch, product.first.step) == (64, 16)
    assert parsed(product.symbol) == product and product.symbol.startswith(PREFIX)


def test_alignment_is_that_of_every_matrix() -> None:
    calls = calls_of(
        dt.float16, Sizes(64, 33, 64, (2,)), View(4, 64, 1, (4096,)), View(0, 33, 1, (0,))
    )
    assert not isinstance(calls, Support)
    product = calls[0].product
    assert (product.second.aligned, product.first.aligned) == (8, 2)


@pytest.mark.parametrize(
    ("dtype", "sizes", "x", "reason"),
    [
        (dt.float32, Sizes(4, 5, 3, ()), View(0, 3, 1, ()), "size-limit"),
        (dt.float32, Sizes(40, 40, 0, ()), View(0, 1, 1, ()), "shape"),
        (dt.int32, Sizes(40, 40, 40, ()), View(0, 40, 1, ()), "dtype"),
        (dt.float32, Sizes(40, 40, 40, ()), View(0, 80, 2, ()), "layout"),
        (dt.float32, Sizes(40, 40, 40, ()), View(39, 40, -1, ()), "layout"),
    ],
)
def test_refusals(dtype: Any, sizes: Sizes, x: View, reason: str) -> None:
    found = calls_of(dtype, sizes, x, View(0, 40, 1, ()))
    assert isinstance(found, Support) and found.reason == reason
