"""Eager ops, compiled steps and training on the backend, over GPUs made of main memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tests.backends.cuda.host_backend import KIND, HostCuda
from tests.backends.cuda.host_gpu import host_compiler
from tests.backends.cuda.workloads import curve
from tests.backends.plugins import Plugins

import treadle as mge
import treadle.functional as F
from treadle.engine.eager import fallback

pytestmark = pytest.mark.skipif(host_compiler() is None, reason="needs g++")
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def gpu(plugins: Plugins, folder: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCuda]:
    monkeypatch.setenv("TREADLE_CACHE_DIR", folder)
    yield plugins.offer(KIND, HostCuda())


def on(device: str, array: np.ndarray) -> mge.Tensor:
    return mge.tensor(array, device=device)


def test_eager_ops_run_on_generated_kernels(gpu: HostCuda) -> None:
    a, b = (RNG.standard_normal((5, 7)).astype(np.float32) for _ in range(2))
    x, y = (on(f"{KIND}0", v) for v in (a, b))
    np.testing.assert_allclose(F.sum(x * y, axis=1).numpy(), (a * b).sum(1), 1e-5)
    np.testing.assert_allclose(F.matmul(x, y, transpose_b=True).numpy(), a @ b.T, 1e-5)
    assert gpu.gpus[0].launches and not fallback.fallback_report()


SLOW = [pytest.param(name, marks=pytest.mark.nvrtc) for name in ("mlp", "transformer")]


@pytest.mark.parametrize("name", ["cnn", *SLOW])
def test_training_follows_the_cpus_curve(name: str, gpu: HostCuda) -> None:
    expected = curve(name, "cpu0", 3)
    found = curve(name, f"{KIND}0", 3)
    np.testing.assert_allclose(found, expected, 2e-4)
    assert gpu.gpus[0].launches and not fallback.fallback_report()


def test_a_new_extent_takes_the_kernels_of_its_range(gpu: HostCuda) -> None:
    compiled = mge.jit.compile(dynamic={0: {0: "n"}})(
        lambda x: F.matmul(F.softmax(F.matmul(x, x, transpose_b=True), axis=1), x).mean(axis=0)
    )
    for n in (5, 9, 12, 7):
        x = RNG.standard_normal((n, 4)).astype(np.float32)
        scores = np.exp(x @ x.T)
        wanted = (scores / scores.sum(1, keepdims=True) @ x).mean(0)
        np.testing.assert_allclose(compiled(on(f"{KIND}0", x)).numpy(), wanted, 1e-4, 1e-5)
    (program,) = compiled.explain(form="json")["ranges"]
    assert not program["alone"] and len(program["programs"]) == 1
    assert not fallback.fallback_report()
