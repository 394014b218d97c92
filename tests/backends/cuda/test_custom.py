"""Ops of users on the CUDA backend: their kernels and libraries, over GPUs made of main memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.cuda.compiling import ARCHITECTURES, needs_nvrtc
from tests.backends.cuda.host_backend import KIND, HostCuda
from tests.backends.cuda.host_gpu import QUEUES, host_compiler
from tests.backends.plugins import Plugins

import treadle as mge
from treadle import jit
from treadle.autodiff import GradManager
from treadle.backends.foreign import ForeignOp
from treadle.base.errors import EngineError, NumericError, UnsupportedOp
from treadle.base.types import TensorType
from treadle.engine.eager import fallback
from treadle.utils import custom
from treadle.utils.custom_op_tools import CudaKernel, CustomOp, build_and_load

needs_host = pytest.mark.skipif(host_compiler() is None, reason="needs g++")
RNG = np.random.default_rng(0)
SOURCE = """
extern "C" __global__ void scaled_sum(
    const float *x, const float *y, float *z, long long rows, long long columns, double factor)
{
  int i = blockIdx.y * blockDim.y + threadIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < rows && j < columns) z[i * columns + j] = x[i * columns + j] + float(factor) * y[j];
}
"""


class ScaledSum(CustomOp):
    """x + factor y, of rows."""

    name = "gputest.scaled_sum"

    def forward(self, x: Any, y: Any) -> Any:
        return x + x.dtype.type(self.factor) * y

    def backward(self, inputs: Any, outputs: Any, grads: Any) -> Any:
        return grads[0], grads[0].sum(axis=0) * self.factor

    def cuda(self, x: TensorType, y: TensorType) -> CudaKernel:
        if x.dtype.name != "float32" or x.ndim != 2:
            raise UnsupportedOp(self.name, "its kernel takes matrices of float32")
        rows, columns = (int(d) for d in x.shape)
        blocks = (-(-columns // 8), -(-rows // 4))
        beside = (rows, columns, self.factor)
        return CudaKernel(SOURCE, "scaled_sum", blocks, (8, 4), beside)


@pytest.fixture
def gpu(plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCuda]:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path))
    yield plugins.offer(KIND, HostCuda())


def on_gpu(array: np.ndarray) -> mge.Tensor:
    return mge.tensor(array, device=f"{KIND}0")


@needs_host
def test_a_kernel_of_an_op_runs_eagerly_compiled_and_with_its_gradient(gpu: HostCuda) -> None:
    a, b = RNG.standard_normal((9, 13)).astype(np.float32), np.arange(13, dtype=np.float32)
    op, x, y = ScaledSum(factor=0.5), on_gpu(a), on_gpu(b)
    np.testing.assert_allclose(op(x, y).numpy(), a + 0.5 * b, 1e-6)
    assert gpu.gpus[0].launches[-1] == (2 * 3, 32)
    compiled = jit.compile(lambda x, y: op(x * 2, y) + 1)
    for _ in range(3):
        np.testing.assert_allclose(compiled(x, y).numpy(), 2 * a + 0.5 * b + 1, 1e-6)

    def step() -> mge.Tensor:
        with GradManager().attach([y]) as gm:
            total = (op(x, y) * 3).sum()
            gm.backward(total)
        return y.grad

    for run in (step, jit.compile(step)):
        y.grad = None
        np.testing.assert_allclose(run().numpy(), np.full(13, 9 * 3 * 0.5), 1e-6)
    empty = op(on_gpu(np.empty((0, 13), np.float32)), y)
    assert empty.numpy().shape == (0, 13)
    assert not fallback.fallback_report()


@needs_host
def test_what_a_kernel_refuses_runs_on_the_host_and_is_counted(gpu: HostCuda) -> None:
    a = RNG.standard_normal((3, 4))
    x = mge.tensor(a, dtype="float64", device=f"{KIND}0")
    np.testing.assert_allclose(ScaledSum(factor=2.0)(x, x[0]).numpy(), a + 2 * a[0])
    (row,) = (r for r in fallback.fallback_report() if r.op == "custom")
    assert "its kernel takes matrices of float32" in row.reason


@needs_nvrtc
def test_a_kernel_of_an_op_compiles_and_mistakes_are_shown(tmp_path: Path) -> None:
    from treadle.backends.cuda import nvrtc

    for architecture in ARCHITECTURES:
        assert nvrtc.to_cubin(SOURCE, architecture)[:4] == b"\x7fELF"


@needs_host
def test_a_kernel_that_does_not_compile_is_an_error_and_not_a_fallback(
    gpu: HostCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    from treadle.backends.cuda.renderer import CudaRenderer
    from treadle.base.errors import CompileError

    class Broken(ScaledSum):
        name = "gputest.broken"

        def cuda(self, x: TensorType, y: TensorType) -> CudaKernel:
            return CudaKernel("no kernel", "missing", 1)

    def refuse(self: Any, source: str, /) -> bytes:
        raise CompileError("nvrtc", "does not compile", saw="treadle.cu(1): error: no")

    monkeypatch.setattr(CudaRenderer, "compile", refuse)
    x = on_gpu(np.ones((2, 2), np.float32))
    with pytest.raises(EngineError, match=r"(?s)kernel missing in CUDA.*treadle\.cu\(1\): error"):
        Broken(factor=1.0)(x, x[0])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"blocks": (1, 1, 1, 1)}, ValueError, "blocks of k are one to three extents"),
        ({"blocks": 1, "threads": (2, -1)}, ValueError, "threads of k"),
        ({"blocks": 1.5}, ValueError, "blocks of k"),
        ({"blocks": 1, "arguments": ("x",)}, TypeError, "arguments of k are numbers"),
    ],
)
def test_launches_are_checked(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        CudaKernel("", "k", **given)


LIBRARY = """
#include "treadle_op.hpp"
#ifdef __CUDACC__
static const char *failed() {
    const cudaError_t found = cudaGetLastError();
    return found == cudaSuccess ? nullptr : cudaGetErrorString(found);
}
template <class T>
__global__ void twice(const T *x, T *y, int64_t n, T by) {
    const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
    if (i < n) y[i] = x[i] * by;
}
template <class T>
void launch(const T *x, T *y, int64_t n, T by, void *stream) {
    twice<<<(n + 255) / 256, 256, 0, static_cast<cudaStream_t>(stream)>>>(x, y, n, by);
    if (const char *words = failed()) throw std::runtime_error(words);
}
#else
template <class T>
void launch(const T *x, T *y, int64_t n, T by, void *) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * by;
}
#endif

struct Twice {
    static constexpr auto name = "NAME";
    static constexpr auto params = "by=2 fails:bool=0";
    static constexpr int inputs = 1, outputs = 1;

    static void forward(treadle::Inputs in, treadle::Outputs out, treadle::Params params) {
        treadle::dispatch<float, double>(in[0].dtype(), [&](auto zero) {
            using T = decltype(zero);
            for (int64_t i = 0; i < in[0].size(); i++)
                out[0].data<T>()[i] = in[0].data<T>()[i] * params.get<T>("by");
        });
    }
    static void forward_cuda(treadle::Inputs in, treadle::Outputs out, treadle::Params params,
                             void *stream) {
        if (params.get<bool>("fails")) throw std::runtime_error("the launch failed");
        treadle::dispatch<float, double>(in[0].dtype(), [&](auto zero) {
            using T = decltype(zero);
            launch(in[0].data<T>(), out[0].data<T>(), in[0].size(), params.get<T>("by"), stream);
        });
    }
    static void backward(treadle::Inputs dy, treadle::Inputs, treadle::Inputs, treadle::Outputs dx,
                         treadle::Params params) {
        treadle::dispatch<float, double>(dy[0].dtype(), [&](auto zero) {
            using T = decltype(zero);
            for (int64_t i = 0; i < dy[0].size(); i++)
                dx[0].data<T>()[i] = dy[0].data<T>()[i] * params.get<T>("by");
        });
    }
    static void backward_cuda(treadle::Inputs dy, treadle::Inputs in, treadle::Inputs,
                              treadle::Outputs dx, treadle::Params params, void *stream) {
        forward_cuda(dy, dx, params, stream);
    }
};
TREADLE_REGISTER(Twice)
"""


@needs_host
def test_a_library_s_functions_put_work_into_the_stream(
    gpu: HostCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []
    real = ForeignOp.on_gpu

    def queued(self: Any, which: str, groups: Any, values: Any, stream: int) -> None:
        called.append(which)
        if values["fails"]:
            real(self, which, groups, values, stream)
        QUEUES[stream].submit(lambda: real(self, which, groups, values, stream))

    monkeypatch.setattr(ForeignOp, "on_gpu", queued)
    (tmp_path / "twice.cpp").write_text(LIBRARY.replace("NAME", "gputest_twice"))
    path = build_and_load("twice", tmp_path / "twice.cpp", ["-O0"], build_dir=tmp_path / "built")
    a = RNG.standard_normal((5, 3)).astype(np.float32)
    x = on_gpu(a)
    op = custom.gputest_twice(by=3)

    def step() -> tuple[mge.Tensor, mge.Tensor]:
        with GradManager().attach([x]) as gm:
            y = op(x)
            gm.backward((y * y).sum())
        return y, x.grad

    for run in (step, jit.compile(step)):
        called.clear()
        x.grad = None
        y, slope = run()
        np.testing.assert_allclose(y.numpy(), 3 * a, 1e-6)
        np.testing.assert_allclose(slope.numpy(), 18 * a, 1e-5)
        assert called == ["forward", "backward"]
    assert not fallback.fallback_report()
    with pytest.raises(NumericError, match="forward_cuda function failed: the launch failed"):
        custom.gputest_twice(fails=True)(x)
    custom.unload(path)


@pytest.mark.nvrtc
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs NVIDIA's CUDA toolkit")
def test_sources_in_cuda_are_built_by_nvcc_and_open_without_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "twice.cu").write_text(LIBRARY.replace("NAME", "nvcctest_twice"))
    path = build_and_load("twice", tmp_path / "twice.cu", build_dir=tmp_path)
    assert custom.nvcctest_twice(by=3)(mge.tensor([1.0, 2.0], device="cpux")).tolist() == [3, 6]
    assert build_and_load("twice", tmp_path / "twice.cu", build_dir=tmp_path) == path
    custom.unload(path)
