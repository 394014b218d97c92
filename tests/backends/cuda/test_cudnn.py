"""Convolutions and attention by cuDNN: which calls are made, and what they mean on main memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.backends.cuda.fake_cublaslt import FakeCublasLt
from tests.backends.cuda.fake_cudnn import FakeCudnn
from tests.backends.cuda.host_backend import KIND, HostCuda
from tests.backends.cuda.host_gpu import QUEUES, host_compiler
from tests.backends.cuda.workloads import curve
from tests.backends.plugins import Plugins

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.backends import cuda
from treadle.backends.api import Support, no, yes
from treadle.backends.cuda.libraries import blaslt, products
from treadle.backends.cuda.libraries.cudnn import calls, library
from treadle.backends.cuda.libraries.cudnn.attention import lower_attention
from treadle.backends.cuda.libraries.cudnn.calls import KIND as CUDNN
from treadle.backends.cuda.libraries.lowering import Offers, lower_product
from treadle.backends.cuda.renderer import TARGET
from treadle.backends.program import Lowered
from treadle.base import dtype as dt
from treadle.base.errors import DeviceError
from treadle.base.process import RUNTIME
from treadle.base.types import TensorType
from treadle.engine.eager import fallback
from treadle.jit import compile as jit_compile
from treadle.ops.attention import Attention, AttentionGrad
from treadle.ops.conv import Conv, ConvGradInput, ConvGradWeight

DEVICE = f"{KIND}0"


class WithLibraries(HostCuda):
    """The backend as it is where cuDNN's frontend and nvmath-python are installed."""

    def libraries(self) -> tuple[str, ...]:
        return ("cublasLt", "cudnn")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def cudnn(plugins: Plugins, folder: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCudnn]:
    monkeypatch.setenv("TREADLE_CACHE_DIR", folder)
    monkeypatch.setattr(products, "LEAST", 1)

    def submit(stream: int, work: Any) -> None:
        QUEUES[stream].submit(work)

    made = FakeCudnn(submit)
    monkeypatch.setattr(library, "frontend", lambda: made)
    monkeypatch.setattr(library, "count_devices", lambda: (2, ""))
    opened = blaslt.BlasLt(FakeCublasLt(submit))
    monkeypatch.setattr(blaslt, "library_of", lambda device: opened)
    with RUNTIME.anew():
        plugins.offer(KIND, WithLibraries())
        yield made


def draw(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> mge.Tensor:
    """Small whole numbers: products are exact in every type."""
    array = np.random.default_rng(len(shape) + seed).integers(-3, 4, shape).astype("float32")
    return mge.tensor(array, device="cpu0").astype(dtype)


GEOMETRIES = [
    ((2, 3, 9, 8), (4, 3, 3, 3), ((1, 1), ((1, 1), (1, 1)), (1, 1), 1)),
    ((2, 4, 7, 7), (6, 4, 1, 1), ((2, 2), ((0, 0), (0, 0)), (1, 1), 1)),
    ((1, 6, 10, 11), (4, 3, 3, 2), ((2, 3), ((1, 0), (2, 1)), (2, 1), 2)),
    ((3, 4, 8, 8), (8, 1, 3, 3), ((1, 1), ((1, 1), (1, 1)), (1, 1), 4)),
    ((2, 3, 12), (4, 3, 5), ((2,), ((2, 1),), (1,), 1)),
    ((2, 4, 12), (4, 1, 3), ((1,), ((2, 0),), (2,), 4)),
    ((2, 4, 5, 6, 7), (6, 2, 2, 3, 3), ((1, 2, 1), ((0, 0), (1, 1), (1, 1)), (1, 1, 2), 2)),
]


@pytest.mark.parametrize("case", GEOMETRIES, ids=lambda c: str(c[:2]))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_convolutions_and_their_gradients(case: Any, dtype: str, cudnn: FakeCudnn) -> None:
    shape, kernel, attributes = case
    x, w = draw(shape, dtype), draw(kernel, dtype)
    y = Conv(*attributes).reference(x.numpy(), w.numpy())
    dy = draw(y.shape, dtype, 1)
    for op, given, kind in (
        (Conv(*attributes), (x, w), "forward"),
        (ConvGradInput(*attributes, shape[2:]), (dy, w), "input"),
        (ConvGradWeight(*attributes, kernel[2:]), (x, dy), "weight"),
    ):
        found = op(*(t.to(DEVICE) for t in given)).numpy()
        expected = op.reference(*(t.numpy() for t in given))
        np.testing.assert_array_equal(found.astype("float32"), expected.astype("float32"), op.name)
        assert cudnn.runs.pop() == kind and not cudnn.runs
    assert not fallback.fallback_report()


@pytest.mark.skipif(host_compiler() is None, reason="needs g++")
def test_channels_last_maps_are_read_where_they_lie(cudnn: FakeCudnn) -> None:
    def blurred(x: mge.Tensor, w: mge.Tensor, b: mge.Tensor) -> mge.Tensor:
        return F.relu(F.conv2d(F.transpose(x, (0, 3, 1, 2)), w, b, padding=1))

    given = draw((2, 9, 8, 4)), draw((6, 4, 3, 3)), draw((1, 6, 1, 1))
    found = jit_compile(blurred)(*(t.to(DEVICE) for t in given))
    np.testing.assert_array_equal(found.numpy(), blurred(*given).numpy())
    (graph,) = cudnn.built
    assert graph.operands["image"].stride == [288, 1, 32, 4] and cudnn.runs == ["forward"]


def test_float32_keeps_its_bits_unless_asked(
    cudnn: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = draw((1, 2, 5, 5)).to(DEVICE), draw((3, 2, 3, 3)).to(DEVICE)
    for _ in range(2):
        F.conv2d(x, w)
    assert len(cudnn.built) == 1 and "TENSOR_CORE" in cudnn.built[0].refused
    monkeypatch.setenv("TREADLE_CUDA_TF32", "1")
    F.conv2d(x, w)
    assert len(cudnn.built) == 2 and cudnn.asked == 1
    assert {"TENSOR_CORE", "DOWN_CONVERT_INPUTS"}.isdisjoint(cudnn.built[1].refused)
    assert all("NONDETERMINISTIC" in graph.refused for graph in cudnn.built)


@pytest.mark.skipif(host_compiler() is None, reason="needs g++")
def test_what_it_has_no_plan_for_is_a_product(cudnn: FakeCudnn) -> None:
    cudnn.unsupported.add("forward")
    x, w = draw((1, 2, 5, 5)), draw((3, 2, 1, 1))
    found = F.conv2d(x.to(DEVICE), w.to(DEVICE)).numpy()
    np.testing.assert_array_equal(found, F.conv2d(x, w).numpy())
    assert not cudnn.runs


def test_a_plan_that_is_not_built_is_an_error(cudnn: FakeCudnn) -> None:
    cudnn.unbuildable.add("forward")
    with pytest.raises(DeviceError, match="no plan computes this"):
        F.conv2d(draw((1, 2, 5, 5)).to(DEVICE), draw((3, 2, 3, 3)).to(DEVICE))


# -- attention -----------------------------------------------------------------------------------

HEADS = ((2, 3, 6, 8),) * 3
ATTENTIONS: list[tuple[Any, Any, bool, float | None]] = [
    (HEADS, None, False, None),
    (HEADS, None, True, 0.5),
    (((2, 3, 6, 8), (2, 3, 5, 8), (2, 3, 5, 16)), None, True, None),
    (((2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 8)), ((4, 6), "float16"), False, None),
    (HEADS, ((2, 1, 1, 6), "float16"), True, None),
    (HEADS, ((3, 1, 6), "float16"), False, None),
    (((4, 6, 8),) * 3, None, False, None),
    (((6, 8),) * 3, None, False, None),
]


@pytest.mark.parametrize("case", ATTENTIONS, ids=str)
def test_attention_and_its_gradient(case: Any, cudnn: FakeCudnn) -> None:
    shapes, mask, causal, scale = case
    q, k, v = (draw(s, "float16", i) for i, s in enumerate(shapes))
    more = [draw(mask[0], mask[1])] if mask else []
    op, grad = Attention(causal, scale), AttentionGrad(causal, scale)
    given = [t.numpy() for t in (q, k, v)]
    rest = [t.numpy() for t in more]
    y = op.reference(*given, *rest)
    found = op(*(t.to(DEVICE) for t in (q, k, v, *more))).numpy()
    close(found, y)
    dy = draw(y.shape, "float16", 5)
    results = grad.outputs(*(t.to(DEVICE) for t in (q, k, v, dy, *more)))
    for made, expected in zip(results, grad.reference(*given, dy.numpy(), *rest), strict=True):
        close(made.numpy(), expected)
    assert cudnn.runs == ["attention", "attention", "attention gradient"]
    assert not fallback.fallback_report()


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(
        found.astype("float32"), expected.astype("float32"), rtol=2e-2, atol=2e-2
    )


@pytest.mark.skipif(host_compiler() is None, reason="needs g++")
def test_masks_of_truth_values_are_added(cudnn: FakeCudnn) -> None:
    q, k, v = (draw(s, "float16", i) for i, s in enumerate(HEADS))
    seen = np.random.default_rng(0).random((2, 1, 6, 6)) < 0.6
    seen[..., 0] = True
    mask = mge.tensor(seen, device="cpu0")
    found = Attention()(*(t.to(DEVICE) for t in (q, k, v, mask))).numpy()
    close(found, Attention().reference(*(t.numpy() for t in (q, k, v, mask))))
    assert cudnn.runs == ["attention"]


@pytest.mark.skipif(host_compiler() is None, reason="needs g++")
def test_packed_heads_are_read_and_written_where_they_lie(cudnn: FakeCudnn) -> None:
    """Projections for three heads in one array, as transformers have them, and the way back."""

    def step(packed: mge.Tensor) -> tuple[mge.Tensor, mge.Tensor]:
        with GradManager() as manager:
            manager.attach([packed])
            heads = F.transpose(packed.reshape(2, 6, 3, 3, 8), (2, 0, 3, 1, 4))
            y = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
            y = F.transpose(y, (0, 2, 1, 3)).reshape(2, 6, 24)
            manager.backward(y, draw((2, 6, 24), "float16").to(packed.device))
        grad = packed.grad
        packed.grad = None
        assert grad is not None
        return y, grad

    packed = draw((2, 6, 72), "float16")
    found = jit_compile(step)(packed.to(DEVICE))
    for made, expected in zip(found, step(packed), strict=True):
        close(made.numpy(), expected.numpy())
    assert cudnn.runs == ["attention", "attention", "attention gradient"]
    graph = cudnn.built[0]
    assert graph.operands["k"].stride == [432, 8, 72, 1]


@pytest.mark.nvrtc
@pytest.mark.skipif(host_compiler() is None, reason="needs g++")
def test_training_follows_the_cpus_curve(cudnn: FakeCudnn) -> None:
    found = curve("cnn", DEVICE, 3)
    np.testing.assert_allclose(found, curve("cnn", "cpu0", 3), 2e-4)
    assert cudnn.runs == ["forward", "weight"] * 3


@pytest.mark.skipif(host_compiler() is None, reason="needs g++")
def test_attention_it_does_not_compute_is_taken_apart(cudnn: FakeCudnn) -> None:
    attend = jit_compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v))
    given = [draw(s, "float32", i) for i, s in enumerate(HEADS)]
    expected = Attention().reference(*(t.numpy() for t in given))
    np.testing.assert_allclose(attend(*(t.to(DEVICE) for t in given)).numpy(), expected, 1e-5)
    assert not cudnn.runs


# -- lowering alone ------------------------------------------------------------------------------


def types(dtype: Any, *shapes: tuple[int, ...]) -> list[TensorType]:
    return [TensorType(dtype, s) for s in shapes]


@pytest.mark.parametrize(
    ("op", "given", "reason"),
    [
        (Attention(), types(dt.float32, *HEADS), "dtype"),
        (Attention(), types(dt.float16, *((2, 3, 6, 12),) * 3), "shape"),
        (Attention(), types(dt.float16, *((2, 3, 6, 136),) * 3), "shape"),
        (Attention(), types(dt.float16, (2, 3, 0, 8), (2, 3, 6, 8), (2, 3, 6, 8)), "shape"),
        (Attention(), types(dt.float16, (2, 3, 6, 8), (1, 3, 6, 8), (1, 3, 6, 8)), "layout"),
        (Attention(), types(dt.float16, *HEADS, (6, 1)), "layout"),
        (AttentionGrad(), types(dt.float16, *((2, 3, 1, 8),) * 4), "shape"),
        (
            AttentionGrad(),
            types(dt.float16, (2, 3, 6, 8), (2, 1, 6, 8), (2, 1, 6, 8), (2, 3, 6, 8)),
            "shape",
        ),
        (Conv((1,), ((0, 0),), (1,), 1), types(dt.float32, (1, 1, 9), (1, 1, 2)), "size-limit"),
        (Conv((1,), ((0, 0),), (1,), 1), types(dt.float32, (0, 1, 9), (1, 1, 2)), "shape"),
    ],
)
def test_refusals(op: Any, given: list[TensorType], reason: str) -> None:
    found: Lowered | Support
    if isinstance(op, Conv):
        found = lower_product(op, given, TARGET, Offers(False, lambda call: yes()))
    else:
        found = lower_attention(op, given, lambda call: yes(), TARGET)
    assert isinstance(found, Support) and found.reason == reason


def test_keys_that_heads_share_are_not_repeated() -> None:
    given = types(dt.bfloat16, (2, 4, 6, 8), (2, 1, 6, 8), (2, 1, 6, 8))
    found = lower_attention(Attention(), given, lambda call: yes(), TARGET)
    assert isinstance(found, Lowered)
    call = found.launches[0].kernel
    assert call.k.shape == (2, 1, 6, 8) and call.q.shape == (2, 4, 6, 8)


def test_a_call_is_made_again_from_its_symbol() -> None:
    given = types(dt.bfloat16, *((2, 4, 6, 8),) * 4)
    found = lower_attention(AttentionGrad(True), given, lambda call: yes(), TARGET)
    assert isinstance(found, Lowered)
    for launch in found.launches:
        again = calls.parsed(launch.kernel.symbol)
        assert again == launch.kernel and launch.kernel.symbol.startswith(f"{CUDNN} ")
        assert len(calls.named(again)) == len(launch.arguments)


def test_the_librarys_reason_is_the_answer() -> None:
    given = types(dt.float16, *HEADS)
    found = lower_attention(
        Attention(), given, lambda call: no("device-feature", "too old"), TARGET
    )
    assert isinstance(found, Support) and found.message == "too old"


def test_libraries_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_is_installed", lambda name: True)
    assert cuda.Cuda().libraries() == ("cublasLt", "cudnn", "nccl")
    monkeypatch.setenv("TREADLE_CUDA_LIBRARIES", "cublasLt,nccl")
    assert cuda.Cuda().libraries() == ("cublasLt", "nccl")


def test_a_library_that_is_not_there_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ImportError("libcudnn.so.9 was not found")

    monkeypatch.setattr(library, "frontend", missing)
    RUNTIME.invalidate("backends")
    assert library.version() == 0
    array = calls.dense((1, 1, 4, 4), dt.float32)
    call = calls.Convolution("forward", array, array, array, (1, 1), (0, 0), (0, 0), (1, 1))
    monkeypatch.setattr(library, "count_devices", lambda: (1, ""))
    answer = library.accepts(call)
    assert not answer and "libcudnn.so.9 was not found" in answer.message
