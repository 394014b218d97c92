"""What only a machine with a GPU can show; skipped everywhere else. It has never been run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.backends.codegen import irregular
from tests.backends.cuda.test_cudnn import ATTENTIONS, GEOMETRIES, close, draw
from tests.backends.cuda.test_custom import LIBRARY, ScaledSum
from tests.backends.cuda.workloads import MODELS, curve

import treadle as mge
import treadle.functional as F
from treadle.backends.api import Support
from treadle.backends.cuda import backend
from treadle.backends.cuda.libraries import products
from treadle.backends.cuda.libraries.cudnn import library
from treadle.base.dtype import as_dtype
from treadle.base.errors import OutOfMemory
from treadle.base.types import TensorType
from treadle.engine.devices.names import resolve
from treadle.engine.eager import fallback
from treadle.ops import REGISTRY
from treadle.ops.attention import Attention, AttentionGrad
from treadle.ops.conv import Conv, ConvGradInput, ConvGradWeight
from treadle.ops.op import Op, as_tuple
from treadle.runtime.array import DeviceArray
from treadle.utils import custom
from treadle.utils.custom_op_tools import build_and_load

FOUND = backend.probe()
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not FOUND.ok, reason=FOUND.reason),
    pytest.mark.timeout(1200),
]
OPS = sorted(
    (c for c in REGISTRY.values() if c.__module__.startswith("treadle.")), key=lambda c: c.name
)


@pytest.mark.parametrize("op", OPS, ids=lambda c: c.name)
def test_samples_of_every_op(op: type[Op]) -> None:
    device = resolve("gpu0").open()
    for sample in op.samples():
        for dtype in (d for d in sample.element_types() if d.kind != "complex"):
            arrays = sample.arrays(dtype)
            types = tuple(TensorType(as_dtype(a.dtype), a.shape) for a in arrays)
            launch = backend.prepare(sample.op, types)
            if isinstance(launch, Support):
                assert launch.message
                continue
            payloads = [DeviceArray(device, a.dtype, a.shape, host=a) for a in arrays]
            with np.errstate(all="ignore"):
                expected = as_tuple(sample.op.reference(*arrays))
            made = launch(*payloads)
            results = made if isinstance(made, tuple) else (made,)
            for got, wanted in zip(results, expected, strict=True):
                irregular.check(got.host(), np.asarray(wanted), str(sample), exact=False)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_training_follows_the_cpus_curve(name: str, compiled: bool) -> None:
    found = curve(name, "gpu0", 50, compiled)
    np.testing.assert_allclose(found, curve(name, "cpu0", 50), 1e-2, 1e-3)
    assert not fallback.fallback_report()


@pytest.mark.skipif(not (FOUND.ok and library.version()), reason="needs cuDNN")
def test_convolutions_and_attention_by_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "LEAST", 1)
    for dtype in ("float32", "float16"):
        for shape, kernel, attributes in GEOMETRIES:
            x, w = draw(shape, dtype), draw(kernel, dtype)
            y = Conv(*attributes).reference(x.numpy(), w.numpy())
            dy = draw(y.shape, dtype, 1)
            for op, given in (
                (Conv(*attributes), (x, w)),
                (ConvGradInput(*attributes, shape[2:]), (dy, w)),
                (ConvGradWeight(*attributes, kernel[2:]), (x, dy)),
            ):
                found = op(*(t.to("gpu0") for t in given)).numpy()
                close(found, op.reference(*(t.numpy() for t in given)))
    for shapes, mask, causal, scale in ATTENTIONS:
        more = [draw(mask[0], mask[1])] if mask else []
        given = [draw(s, "float16", i) for i, s in enumerate(shapes)]
        y = Attention(causal, scale).reference(*(t.numpy() for t in (*given, *more)))
        dy = draw(y.shape, "float16", 5)
        found = Attention(causal, scale)(*(t.to("gpu0") for t in (*given, *more)))
        close(found.numpy(), y)
        op = AttentionGrad(causal, scale)
        results = op.outputs(*(t.to("gpu0") for t in (*given, dy, *more)))
        expected = op.reference(*(t.numpy() for t in (*given, dy, *more)))
        for one, other in zip(results, expected, strict=True):
            close(one.numpy(), other)


def test_recorded_steps_are_those_submitted_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = curve("cnn", "gpu0", 20)
    counters = mge.report("gpu0").counters
    assert counters["recordings replayed"] >= 10 and not counters["recordings refused"]
    monkeypatch.setenv("TREADLE_CUDA_GRAPHS", "0")
    np.testing.assert_allclose(curve("cnn", "gpu0", 20), found, 1e-6)


def test_the_conformance_kit_finds_nothing() -> None:
    run = "from treadle.conformance.cli import main; raise SystemExit(main())"
    done = subprocess.run(
        [sys.executable, "-c", run, "cuda", "--quick"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]


def test_ops_of_users_run_on_their_kernels(tmp_path: Path) -> None:
    a, b = np.ones((9, 13), np.float32), np.arange(13, dtype=np.float32)
    x, y = (mge.tensor(v, device="gpu0") for v in (a, b))
    for run in (ScaledSum(factor=0.5), mge.jit.compile(lambda *xs: ScaledSum(factor=0.5)(*xs))):
        np.testing.assert_allclose(run(x, y).numpy(), a + 0.5 * b, 1e-6)
    if shutil.which("nvcc"):
        (tmp_path / "twice.cu").write_text(LIBRARY.replace("NAME", "gputest_nvcc"))
        path = build_and_load("twice", tmp_path / "twice.cu", build_dir=tmp_path)
        np.testing.assert_allclose(custom.gputest_nvcc(by=3)(x + 1).numpy(), 3 * (a + 1))
        custom.unload(path)
    assert not fallback.fallback_report()


def test_results_do_not_depend_on_the_run() -> None:
    x = np.random.default_rng(0).standard_normal((300, 500)).astype(np.float32)
    runs = []
    for _ in range(3):
        t = mge.tensor(x, device="gpu0")
        runs.append(F.softmax(F.matmul(t, t, transpose_b=True), axis=1).numpy().tobytes())
    assert len(set(runs)) == 1


def test_out_of_memory_is_an_error_and_the_device_goes_on() -> None:
    device = resolve("gpu0").open()
    with pytest.raises(OutOfMemory, match="gpu0"):
        device.alloc(2 * device.memory()[0])
    assert F.sum(F.ones((4,), device="gpu0")).item() == 4.0
