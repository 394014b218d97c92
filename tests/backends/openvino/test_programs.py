"""Compiled functions and model files whose parts OpenVINO runs: the JIT inference mode."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.backends import registry
from treadle.backends.openvino import backend
from treadle.base.errors import CompileError
from treadle.engine.execute.segments import SegmentLaunch
from treadle.jit import Compiled, Options, engines, trace
from treadle.quantization import min_max_fakequant_qconfig, quantize, quantize_qat

pytest.importorskip("openvino", reason="needs the openvino extra")
engine: Any = importlib.import_module("treadle.backends.openvino.engine")

pytestmark = pytest.mark.usefixtures("eager")

WITH = Options(engines=("openvino", "cpu"))


class Block(M.Module):
    """Two convolutions with norms, around which the input passes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = M.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = M.BatchNorm2d(channels)
        self.second = M.Conv2d(channels, channels, 3, padding=1, groups=2)
        self.norm2 = M.BatchNorm2d(channels)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        y = F.relu(self.norm1(self.first(x)))
        return F.relu(self.norm2(self.second(y)) + x)


def cnn() -> tuple[M.Module, mge.Tensor]:
    """A small residual network."""
    mge.random.seed(3)
    net = M.Sequential(
        M.Conv2d(3, 16, 3, stride=2, padding=1),
        M.MaxPool2d(2),
        Block(16),
        M.AdaptiveAvgPool2d((1, 1)),
        M.Identity(),
    )
    images = mge.tensor(np.random.default_rng(0).normal(size=(2, 3, 32, 32)).astype("float32"))
    net.train()
    net(images)  # Means and variances of their own.
    net.eval()
    return net, images


class Encoder(M.Module):
    """A layer of a transformer encoder over tokens."""

    def __init__(self, dim: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.table = M.Embedding(50, dim)
        self.norm1, self.norm2 = M.LayerNorm(dim), M.LayerNorm(dim)
        self.qkv, self.out = M.Linear(dim, 3 * dim), M.Linear(dim, dim)
        self.up, self.down = M.Linear(dim, 4 * dim), M.Linear(4 * dim, dim)

    def forward(self, tokens: mge.Tensor) -> mge.Tensor:
        x = self.table(tokens)
        n, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(n, t, 3, self.heads, d // self.heads)
        q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
        scores = F.softmax(F.matmul(q, k, transpose_b=True) / (d // self.heads) ** 0.5, axis=-1)
        mixed = F.matmul(scores, v).transpose(0, 2, 1, 3).reshape(n, t, d)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def encoder() -> tuple[M.Module, mge.Tensor]:
    mge.random.seed(4)
    net = Encoder()
    net.eval()
    tokens = np.random.default_rng(0).integers(0, 50, (2, 12)).astype("int32")
    return net, mge.tensor(tokens)


def launches(function: Any) -> list[SegmentLaunch]:
    """The segments of a function that was called with one kind of arguments."""
    assert isinstance(function, Compiled)
    (variants,) = function._variants.values()
    runner: Any = variants[0].inspected.executor
    return [x for x in runner._host_tasks._launches.values() if isinstance(x, SegmentLaunch)]


@pytest.mark.parametrize("make", [cnn, encoder])
def test_whole_models_are_one_segment(make: Any) -> None:
    net, x = make()
    wanted = mge.jit.compile(net)(x).numpy()
    function = mge.jit.compile(net, options=WITH)
    for _ in range(2):
        np.testing.assert_allclose(function(x).numpy(), wanted, rtol=1e-4, atol=1e-5)
    (launch,) = launches(function)
    assert launch.notes.outcome in ("compiled", "restored")
    assert "f32 (hint f32), 2 threads" in launch.notes.detail
    assert launch.notes.copied == 0  # It reads arguments and writes results where they are.


def test_weights_may_be_replaced() -> None:
    net, x = cnn()
    function = mge.jit.compile(net, options=WITH)
    function(x)
    for parameter in net.parameters():
        parameter[...] = parameter * 0.5
    wanted = mge.jit.compile(net)(x).numpy()
    np.testing.assert_allclose(function(x).numpy(), wanted, rtol=1e-4, atol=1e-5)


def mixed(x: mge.Tensor, w: mge.Tensor) -> Any:
    """Products with ops between them that have no translation."""
    y = F.relu(F.matmul(x, w))
    order = F.argsort(y[0], descending=True)[1]
    z = F.matmul(F.sort(y)[0], w) * F.cumsum(y, axis=1)
    return F.softmax(z, axis=1), order


def test_what_has_no_translation_runs_on_the_processor() -> None:
    rng = np.random.default_rng(1)
    x, w = (mge.tensor(rng.normal(size=(96, 96)).astype("float32")) for _ in range(2))
    function = mge.jit.compile(mixed, options=WITH)
    for found, wanted in zip(function(x, w), mge.jit.compile(mixed)(x, w), strict=True):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-6)
    made = launches(function)
    assert 1 <= len(made) <= 3
    (variants,) = function._variants.values()
    explained = str(variants[0].inspected.report)
    assert "there is no translation of sort" in explained


def test_training_steps_may_have_segments() -> None:
    mge.random.seed(0)
    weight = mge.Parameter(np.random.default_rng(2).normal(size=(64, 64)).astype("float32"))
    x = mge.tensor(np.random.default_rng(3).normal(size=(64, 64)).astype("float32"))

    def losses(options: Options) -> list[float]:
        w = mge.Parameter(weight.numpy().copy())
        optimizer = mge.optimizer.SGD([w], lr=0.05)
        manager = GradManager().attach([w])

        def update(x: mge.Tensor) -> mge.Tensor:
            with manager:
                loss = (F.tanh(F.matmul(x, w)) ** 2).mean()
                manager.backward(loss)
            optimizer.step().clear_grad()
            return loss

        step = mge.jit.compile(update, options=options)
        return [step(x).item() for _ in range(4)]

    np.testing.assert_allclose(losses(WITH), losses(Options()), rtol=1e-4)


def test_threads_share_a_segment() -> None:
    net, x = cnn()
    function = mge.jit.compile(net, options=WITH)
    wanted = function(x).numpy()
    found: list[np.ndarray] = []

    def work() -> None:
        found.extend(function(x).numpy() for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 15
    assert all((x == wanted).all() for x in found)


# -- precision ---------------------------------------------------------------------------------


def test_the_hint_is_always_given(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    core = engine.core()

    class Watching:
        def __getattr__(self, name: str) -> Any:
            def call(*args: Any) -> Any:
                seen.extend(a for a in args if isinstance(a, dict))
                return getattr(core, name)(*args)

            return call

    monkeypatch.setattr(engine, "core", Watching)
    net, x = encoder()
    mge.jit.compile(net, options=WITH)(x)
    assert seen
    assert all(s["INFERENCE_PRECISION_HINT"] == "f32" for s in seen)


def test_a_precision_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_OPENVINO_PRECISION", "f8")
    with pytest.raises(CompileError, match="there is no precision 'f8'"):
        engine.precision()


def quantized() -> tuple[M.Module, M.Module, mge.Tensor]:
    """A network that rounds to grids, the same in integers, and images."""
    mge.random.seed(0)
    net = M.Sequential(
        M.QuantStub(),
        M.ConvBnRelu2d(3, 16, 3, padding=1),
        M.ConvBnRelu2d(16, 16, 3, stride=2, padding=1),
        M.DequantStub(),
    )
    images = np.random.default_rng(0).normal(size=(2, 3, 16, 16)).astype("float32")
    x = mge.tensor(images)
    rounding = quantize_qat(net, min_max_fakequant_qconfig)
    rounding.train()
    rounding(x)
    rounding.eval()
    whole = quantize(rounding, inplace=False)
    whole.eval()
    return rounding, whole, x


def precisions(function: Any) -> set[str]:
    """The element types in which OpenVINO computes the convolutions of a function."""
    made: list[Any] = [x.executable for x in launches(function)]
    nodes = [n for e in made for n in e._compiled.get_runtime_model().get_ops()]
    told = [n.get_rt_info() for n in nodes]
    kinds = [(t["layerType"].astype(str), t["runtimePrecision"].astype(str)) for t in told]
    return {precision for layer, precision in kinds if layer == "Convolution"}


@pytest.mark.parametrize("mode", ["f32", "int8"])
def test_quantized_networks_are_the_same_or_a_step_apart(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("TREADLE_OPENVINO_PRECISION", mode)
    rounding, whole, x = quantized()
    # Which sign integers have is OpenVINO's choice: with AMX it takes the one, else the other.
    kinds = {"f32": ["f32"], "int8": ["u8", "i8"]}[mode]
    for net, allowed in ((rounding, kinds), (whole, ["f32"])):
        wanted = mge.jit.compile(net)(x).numpy()
        step = np.unique(np.abs(wanted[wanted != 0])).min()
        function = mge.jit.compile(net, options=WITH)
        apart = np.abs(function(x).numpy() - wanted)
        assert apart.max() < step * 1.001  # What lies between two levels may go either way.
        assert (apart > step / 2).mean() < 0.02
        assert precisions(function) in [{kind} for kind in allowed]


# -- files -------------------------------------------------------------------------------------


def traced(path: Path, **asked: Any) -> tuple[np.ndarray, np.ndarray]:
    """A model file; an input, and what the model makes of it."""
    net, x = cnn()

    @trace(symbolic=True, capture_as_const=True)
    def predict(data: mge.Tensor) -> mge.Tensor:
        return F.softmax(net(data).reshape(2, -1), axis=1)

    wanted = predict(x).numpy()
    predict.dump(str(path), arg_names=["data"], output_names=["scores"], **asked)
    return x.numpy(), wanted


def outcome(path: Path, x: np.ndarray) -> tuple[np.ndarray, SegmentLaunch]:
    with engines("openvino", "cpu"):
        model = mge.utils.comp_graph_tools.GraphInference(str(path))
        found = model.run(x)["scores"]
    runner: Any = model._runner.stages.running
    (launch,) = [v for v in runner._host_tasks._launches.values() if isinstance(v, SegmentLaunch)]
    return found, launch


@pytest.fixture
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments are neither read from the cache on disk nor kept there."""
    (cpu,) = [e for e in registry.engines("cpu") if e.name == "cpu"]
    compiler: Any = cpu.compiler()  # type: ignore[attr-defined]
    monkeypatch.setattr(type(compiler), "saved", lambda self, key: None)
    monkeypatch.setattr(type(compiler), "save", lambda self, key, data: None)


@pytest.mark.usefixtures("no_disk")
def test_files_carry_compiled_segments(tmp_path: Path) -> None:
    x, wanted = traced(tmp_path / "with.mge", engines=("openvino",))
    found, launch = outcome(tmp_path / "with.mge", x)
    assert launch.notes.outcome == "restored"
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    # Whoever does not ask for the engine runs the program itself.
    plain = mge.utils.comp_graph_tools.GraphInference(str(tmp_path / "with.mge"))
    np.testing.assert_allclose(plain.run(x)["scores"], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("no_disk")
def test_a_blob_of_another_version_gives_way_to_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {**engine.compat(), "OpenVINO version": "2020.1"}
    with monkeypatch.context() as past:
        past.setattr(engine, "compat", lambda: made)
        x, wanted = traced(tmp_path / "old.mge", engines=("openvino",))
    found, launch = outcome(tmp_path / "old.mge", x)
    assert launch.notes.outcome == "compiled"
    (remark,) = launch.notes.remarks
    assert "made for OpenVINO version '2020.1', here it is '20" in remark
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_blobs_are_kept_on_disk_and_judged() -> None:
    assert backend.judge(engine.compat()).fit == "compatible"
    other = backend.judge({**engine.compat(), "processor": "another one"})
    assert (other.fit, "another one" in other.reason) == ("slower", True)
    assert backend.judge({**engine.compat(), "precision": "bf16"}).fit == "incompatible"
    net, x = encoder()
    outcomes = []
    for _ in range(2):
        function = mge.jit.compile(net, options=WITH)
        function(x)
        outcomes += [n.notes.outcome for n in launches(function)]
    assert outcomes[1] == "restored"


# -- without it --------------------------------------------------------------------------------


def test_where_it_is_not_installed_others_run_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(backend, "_warned", False)
    net, x = encoder()
    function = mge.jit.compile(net, options=WITH)
    with caplog.at_level("WARNING", "treadle"):
        function(x)
    assert not launches(function)
    assert caplog.text.count("pip install 'treadle[openvino]'") <= 1
    (variants,) = function._variants.values()
    assert "openvino is not installed" in str(variants[0].inspected.report)


def test_importing_treadle_does_not_import_it() -> None:
    code = "import sys, treadle; treadle.tensor([1]) + 1; sys.exit('openvino' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
