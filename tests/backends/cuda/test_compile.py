"""Generated kernels compile to machine code of GPUs; no GPU is needed."""

from __future__ import annotations

import ctypes
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.backends.cuda.compiling import (
    ARCHITECTURES,
    Recorder,
    batches,
    kernels_of,
    needs_nvrtc,
    recorded,
    to_cubin,
)
from tests.backends.cuda.host_backend import KIND
from tests.backends.cuda.workloads import MODELS, curve
from tests.backends.plugins import Plugins

from treadle.backends.codegen.kernel.ir import KernelModule
from treadle.backends.cuda.libraries.columns import TYPES, Windows, from_columns, to_columns
from treadle.backends.cuda.renderer import CudaRenderer, _code_for
from treadle.backends.program import Ref
from treadle.base import dtype as dt
from treadle.base.errors import CompileError
from treadle.ops import REGISTRY

FAMILIES = {
    "loops": ("add", "erf", "softmax", "sum", "transpose", "where"),
    "integers": ("bit_and", "floor_div"),
    "contractions": ("matmul", "conv", "conv_grad_weight"),
    "attention": ("attention",),
    "windows": ("max_pool", "avg_pool_grad", "resize"),
    "order": ("sort", "top_k", "argmax", "cum_sum"),
    "places": ("take", "scatter_along_axis", "concat", "random_bits"),
}
"""Ops whose kernels come from all generators."""
EVERY = sorted(n for n, c in REGISTRY.items() if c.__module__.startswith("treadle."))


PAIRS = [(f, "sm_90a") for f in FAMILIES] + [("contractions", "sm_80")]


@needs_nvrtc
@pytest.mark.parametrize(("family", "architecture"), PAIRS)
def test_kernels_of_every_generator_compile(family: str, architecture: str) -> None:
    names = FAMILIES[family]
    kernels = kernels_of(names, {dt.float32, dt.int32, dt.uint32}, most=1)
    assert len(kernels) > len(names) // 2  # some share theirs
    code = to_cubin(list(kernels.values()), architecture)
    assert code[:4] == b"\x7fELF"


@needs_nvrtc
def test_every_element_type_compiles() -> None:
    types = (dt.bool_, dt.float16, dt.bfloat16, dt.float64, dt.int8, dt.uint8, dt.int64)
    kernels: dict[str, KernelModule] = {}
    for dtype in types:
        kernels |= kernels_of(["maximum"], {dtype}, most=1)
    assert len(kernels) > 3
    assert to_cubin(list(kernels.values()), "sm_80")[:4] == b"\x7fELF"


@pytest.fixture
def recorder(
    plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Recorder]:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path))
    yield plugins.offer(KIND, Recorder())


@needs_nvrtc
@pytest.mark.parametrize("name", MODELS)
def test_kernels_of_training_steps_compile(name: str, recorder: Recorder) -> None:
    kernels = recorded(recorder, lambda device: curve(name, device, 1))
    assert len(kernels) > 5
    smallest = dict(sorted(kernels.items(), key=lambda item: len(item[1].parameters))[:4])
    for batch in batches(smallest):
        assert to_cubin(batch, "sm_80")[:4] == b"\x7fELF"


@pytest.mark.nvrtc
@needs_nvrtc
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", MODELS)
def test_all_kernels_of_training_steps_compile(
    name: str, architecture: str, recorder: Recorder
) -> None:
    kernels = recorded(recorder, lambda device: curve(name, device, 1))
    kernels |= recorded(recorder, lambda device: curve(name, device, 1, compiled=False))
    for batch in batches(kernels):
        assert to_cubin(batch, architecture)[:4] == b"\x7fELF"


@pytest.mark.nvrtc
@needs_nvrtc
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("first", sorted({n[0] for n in EVERY}))
def test_kernels_of_all_samples_compile(first: str, architecture: str) -> None:
    names = [n for n in EVERY if n.startswith(first)]
    kernels = kernels_of(names, {dt.float32, dt.bfloat16, dt.int32, dt.bool_})
    for batch in batches(kernels):
        assert to_cubin(batch, architecture)[:4] == b"\x7fELF"


@needs_nvrtc
def test_kernels_around_products_compile() -> None:
    pair, here = (1, 1), Ref("input", 0)
    windows = Windows(1, 1, 4, 4, pair, pair, pair, pair, pair)
    kernels = [to_columns(windows, d, here, here, (1, 1)).kernel for d in TYPES]
    kernels += [from_columns(windows, d, here, here).kernel for d in TYPES]
    assert to_cubin(kernels, "sm_80")[:4] == b"\x7fELF"


@needs_nvrtc
def test_integers_reach_kernels_as_8_bytes_with_a_sign() -> None:
    handler: Any = importlib.import_module("cuda.core._kernel_arg_handler")
    given = (5, -1, 1 << 62)
    held = handler.ParamHolder(given)
    places = ctypes.cast(held.ptr, ctypes.POINTER(ctypes.POINTER(ctypes.c_int64)))
    assert [places[i][0] for i in range(3)] == [5, -1, 1 << 62]


@needs_nvrtc
def test_only_fma_is_fused_and_rounding_is_that_of_ieee_754() -> None:
    options: Any = importlib.import_module("treadle.backends.cuda.nvrtc").options_for
    bindings: Any = importlib.import_module("cuda.bindings.nvrtc")
    body = "x[0] = x[0] * x[1] + x[2]; x[3] = x[4] / x[5]; x[6] = sqrtf(x[7]);"
    source = f'extern "C" __global__ void f(float *x) {{ {body} }}'
    _, program = bindings.nvrtcCreateProgram(source.encode(), b"f.cu", 0, [], [])
    given = options("compute_80").as_bytes("nvrtc")
    (status,) = bindings.nvrtcCompileProgram(program, len(given), given)
    _, size = bindings.nvrtcGetPTXSize(program)
    text = bytearray(size)
    bindings.nvrtcGetPTX(program, text)
    assert int(status) == 0
    for word in (b"mul.rn.f32", b"add.rn.f32", b"div.rn.f32", b"sqrt.rn.f32"):
        assert word in text, word
    assert b"fma" not in text and b"ftz" not in text


@needs_nvrtc
def test_refused_source_shows_what_the_compiler_says() -> None:
    with pytest.raises(CompileError, match='identifier "nonsense" is undefined'):
        CudaRenderer(["sm_80"]).compile("__global__ void f() { nonsense(); }")


def test_a_binary_has_code_for_every_architecture() -> None:
    renderer = CudaRenderer(
        ["sm_80", "sm_90a", "sm_80"], "test", lambda source, name: f"{name}:{source}".encode()
    )
    binary = renderer.compile("// scratch kernel_1 512\n")
    for name in ARCHITECTURES:
        header, code = _code_for(binary, name)
        assert code.decode() == f"{name}:// scratch kernel_1 512\n"
        assert json.loads(json.dumps(header))["scratch"] == {"kernel_1": 512}
    with pytest.raises(CompileError, match="sm_75"):
        _code_for(binary, "sm_75")
    assert renderer.fingerprint == "sm_80+sm_90a test"
