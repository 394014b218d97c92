"""Flags of load_and_run, one by one: what each writes, waits for, or leaves as it is."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.sim.backend import Sim

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.backends.codegen import tuned
from treadle.backends.cpu import tuning
from treadle.base.env import NUM_THREADS
from treadle.base.errors import CheckpointError
from treadle.engine.options import Options
from treadle.engine.package.models import read_models
from treadle.lite import LiteExtraConfig, LiteGlobal, LiteNetwork
from treadle.lite import globals as globals_of_lite
from treadle.tools import load_and_run
from treadle.utils import custom
from treadle.utils.custom_op_tools import build

X = np.random.default_rng(1).random((2, 6), np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> Path:
    """Two ops and their test case."""
    traced = jit.trace(lambda data: F.exp(data) @ mge.tensor(X.T.copy()), capture_as_const=True)
    traced(mge.tensor(X))
    path = tmp_path_factory.mktemp("flags") / "model.mge"
    traced.dump(path, arg_names=["data"], output_names=["scores"], input_data=[X])
    return path


def run(model: Path, *arguments: Any) -> int:
    return load_and_run.main([str(a) for a in (model, "--iter", 1, *arguments)])


def test_values_are_written_to_a_file_and_to_standard_error(
    model: Path, tmp_path: Path, capsys: Any
) -> None:
    dump = tmp_path / "values.txt"
    assert run(model, "--io-dump", dump, "--io-dump-stderr") == 0
    lines = dump.read_text().splitlines()
    assert capsys.readouterr().err.splitlines() == lines
    assert len(lines) >= 2 and any("exp" in line for line in lines)


def test_the_program_waits_for_a_line(model: Path, monkeypatch: Any, capsys: Any) -> None:
    given = io.StringIO("go\nrest")
    monkeypatch.setattr("sys.stdin", given)
    assert run(model, "--wait-gdb") == 0
    assert "press Enter to go on" in capsys.readouterr().out and given.read() == "rest"


def test_warm_up_runs_are_asked_for_apart(model: Path, monkeypatch: Any) -> None:
    seen, original = [], load_and_run.timed

    def spy(runner: Any, arrays: Any, warmup: int, count: int, tell: Any) -> Any:
        seen.append((warmup, count))
        return original(runner, arrays, warmup, count, tell)

    monkeypatch.setattr(load_and_run, "timed", spy)
    assert run(model, "--warmup-iter", 3) == 0 and run(model) == 0
    assert seen == [(3, 1), (1, 1)]


@pytest.mark.parametrize("flag", ["--multithread", "--multithread-default"])
def test_the_number_of_threads_is_set(model: Path, flag: str, monkeypatch: Any) -> None:
    for name in NUM_THREADS.names:
        monkeypatch.setenv(name, "1")
    assert run(model, flag, 2) == 0
    assert NUM_THREADS.get() == "2"


@pytest.mark.parametrize(
    "flag",
    ["--cpu", "--cpu-default", "--disable-mem-opt", "--no-sanity-check"],
)
def test_results_stay_the_same(model: Path, flag: str, tmp_path: Path, capsys: Any) -> None:
    assert run(model, flag, "--bin-out-dump", tmp_path) == 0
    assert "passed" in capsys.readouterr().out
    (found,) = [np.load(path) for path in tmp_path.glob("*.npy")]
    np.testing.assert_allclose(found, np.exp(X) @ X.T, 1e-5)


@pytest.mark.parametrize("how", [(), ("--lite",), ("--fake-first", "--thread", 2)])
def test_a_gpu_runs_the_model(
    model: Path, how: tuple[Any, ...], plugins: Any, tmp_path: Path, capsys: Any
) -> None:
    assert run(model, "--cuda", *how) == 1  # A machine without one says so.
    assert "gpu0" in capsys.readouterr().err
    gpu = plugins.offer("gpu", Sim("gpu"))
    assert run(model, "--cuda", *how, "--bin-out-dump", tmp_path / "out") == 0
    assert "passed" in capsys.readouterr().out
    (path,) = (tmp_path / "out").glob("*.npy")
    np.testing.assert_allclose(np.load(path), np.exp(X) @ X.T, 1e-5)
    assert gpu.opened[0].launches
    with pytest.raises(SystemExit):
        run(model, "--cuda", "--fast-run")
    assert "--fast-run is for the host" in capsys.readouterr().err


def test_a_gpu_is_reported_on(model: Path, plugins: Any, tmp_path: Path, capsys: Any) -> None:
    plugins.offer("gpu", Sim("gpu"))
    times = tmp_path / "times.json"
    flags = "--profile", times, "--check-dispatch", "--get-static-mem-info", tmp_path
    assert run(model, "--cuda", *flags) == 0
    assert "kernel gpu" in capsys.readouterr().out and (tmp_path / "static_memory.txt").exists()
    rows = json.loads(times.read_text())["kernels"]
    assert "gpu0" in [row["kernel"] for row in rows]  # This device does not time its kernels.


def test_rows_of_a_batch_do_not_depend_on_one_another(model: Path, tmp_path: Path) -> None:
    results = []
    for number, rows in enumerate((X, np.stack([X[0], X[0]]))):
        np.save(tmp_path / "x.npy", rows)
        folder = tmp_path / f"out{number}"
        options = "--binary-equal-between-batch", "--input", f"data:{tmp_path / 'x.npy'}"
        assert run(model, *options, "--bin-out-dump", folder) == 0
        (path,) = folder.glob("*.npy")
        results.append(np.load(path))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[1][0], results[1][1])


def test_times_and_the_model_are_written(model: Path, tmp_path: Path, capsys: Any) -> None:
    times, copy = tmp_path / "times.json", tmp_path / "fitted.mge"
    assert run(model, "--profile-host", times, "--fitting", "--dump-fitting-model", copy) == 0
    assert json.loads(times.read_text())["kernels"]
    assert list(read_models(copy)[0].inputs) == ["data"]


@pytest.fixture(scope="module")
def network(tmp_path_factory: Any) -> Path:
    """A convolution of 16 maps, for which layouts and algorithms differ."""
    rng = np.random.default_rng(2)
    w = mge.tensor(rng.standard_normal((16, 16, 3, 3), np.float32) / 12)
    traced = jit.trace(lambda data: F.relu(F.conv2d(data, w, padding=1)), capture_as_const=True)
    images = rng.standard_normal((2, 16, 10, 10)).astype("float32")
    traced(mge.tensor(images))
    path = tmp_path_factory.mktemp("network") / "model.mge"
    traced.dump(path, arg_names=["data"], output_names=["maps"], input_data=[images])
    return path


@pytest.fixture
def options(monkeypatch: Any) -> list[Options]:
    """What programs are compiled with, from here on."""
    seen: list[Options] = []
    original = load_and_run.Runner.__init__

    def spy(self: Any, graph: Any, options: Any = None, **more: Any) -> None:
        seen.append(options)
        original(self, graph, options, **more)

    monkeypatch.setattr(load_and_run.Runner, "__init__", spy)
    return seen


@pytest.mark.parametrize(
    ("flags", "layouts"),
    [
        (["--enable-nchw44"], ("blocked",)),
        (["--enable-nchw88"], ("blocked",)),
        (["--enable-nchw4"], ("blocked-4",)),
        (["--enable-nchw44-dot"], ("blocked-4",)),
        (["--enable-nchw32"], ("blocked-32",)),
        (["--enable-nchw64", "--enable-nchw32"], ("blocked-32", "blocked-64")),
        (["--enable-nhwcd4"], ("channels-last",)),
        (["--layout-transform", "cpu"], ("channels-last", "blocked")),
        (["--enable-nchw88", "--lite"], ("blocked",)),
    ],
)
def test_maps_are_held_in_the_layouts_asked_for(
    network: Path, flags: list[str], layouts: tuple[str, ...], options: list[Options], capsys: Any
) -> None:
    assert run(network, *flags) == 0 and "passed" in capsys.readouterr().out
    assert {o.layouts for o in options} == {layouts}


def test_products_are_computed_in_half_precision(network: Path, capsys: Any) -> None:
    assert run(network, "--enable-ioc16", "--check-dispatch", "--disable-assert-throw") == 0
    half = capsys.readouterr().out
    assert "float16" in half
    assert run(network, "--check-dispatch") == 0
    assert "float16" not in capsys.readouterr().out


def test_a_model_is_written_with_its_layouts(
    network: Path, tmp_path: Path, options: list[Options], capsys: Any
) -> None:
    copy = tmp_path / "laid_out.mge"
    assert run(network, "--enable-nchw44", "--layout-transform-dump", copy) == 0
    options.clear()
    assert run(copy) == 0 and options[-1].layouts == ("blocked",)
    loaded = LiteNetwork()
    loaded.load(str(copy))
    loaded.forward()
    assert options[-1].layouts == ("blocked",)
    assert run(network, "--layout-transform", "cuda") == 1
    assert "runs on cpu" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--fast-run", "--full-run"])
def test_kernels_are_measured_and_the_file_keeps_what_was_found(
    network: Path, flag: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(load_and_run, "SECONDS", {"fast": 0.01, "full": 0.02})
    before, policy = tuned.installed(), tmp_path / "policy.json"
    try:
        assert run(network, flag, "--fast-run-algo-policy", policy) == 0
        assert "ways, the best" in capsys.readouterr().out
        kept = json.loads(policy.read_text())["choices"]
        assert kept == {name: dict(choice) for name, choice in tuned.installed().items()}
        policy.write_text(json.dumps({"format": 1, "choices": {"someone asks": {"tile": 4}}}))
        assert run(network, "--fast-run-algo-policy", policy) == 0
        assert tuned.installed()["someone asks"] == {"tile": 4}
        for wrong in ("[]", '{"format": 9, "choices": {}}', '{"choices": {"a": 1}}', "{"):
            policy.write_text(wrong)
            assert run(network, "--fast-run-algo-policy", policy) == 1
    finally:
        tuned.install(before)


def test_what_was_measured_for_another_batch_size_is_used(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    weight = mge.tensor(np.random.default_rng(2).random((96, 200), np.float32))
    traced = jit.trace(lambda data: data @ weight, capture_as_const=True)
    x = np.random.default_rng(3).random((24, 96), np.float32)
    traced(mge.tensor(x))
    path, policy = tmp_path / "product.mge", tmp_path / "policy.json"
    traced.dump(path, input_data=[x])
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(load_and_run, "SECONDS", {"fast": 0.01, "full": 0.01})

    def first_other(rivals: Any, seconds: float) -> Any:
        """The first alternative wins every contest."""
        rivals[0].best, rivals[1].best = 2.0, 1.0
        return rivals[1]

    monkeypatch.setattr(tuning, "_contest", first_other)
    given = "--fast-run", "--fast-run-algo-policy", policy, "--fast-run-shared-batch-size"
    before = tuned.installed()
    try:
        tuned.install({})
        assert run(path, *given, 48) == 0
        carried = capsys.readouterr().out
        assert re.search(r"\b[1-9]\d* choices of batch size 48", carried), carried
        kept = json.loads(policy.read_text())["choices"]
        small, large = ([c for n, c in kept.items() if f"x{s}x200x96" in n] for s in (24, 48))
        assert small and all(choice in large for choice in small)
        tuned.install({})
        policy.unlink()
        assert run(path, *given[:3]) == 0
        assert "batch size" not in capsys.readouterr().out
    finally:
        tuned.install(before)
    traced = jit.trace(lambda data: F.exp(data), capture_as_const=True)
    traced(mge.tensor(x))
    traced.dump(path, input_data=[x])
    assert run(path, *given[::3], 48) == 0  # no kernel has alternatives
    assert "0 choices of batch size 48" in capsys.readouterr().out


def test_a_packed_model_runs_as_the_model_does(
    network: Path, tmp_path: Path, options: list[Options], capsys: Any
) -> None:
    packed, info, cache = (tmp_path / n for n in ("packed", "info.json", "cache.json"))
    info.write_text(json.dumps({"name": "net", "options": {"enable_nchw88": True}}))
    cache.write_text(json.dumps({"format": 1, "choices": {"packed asks": {"tile": 2}}}))
    before = tuned.installed()
    try:
        given = ("--packed-model-dump", packed, "--pack-info-json", info, "--pack-cache", cache)
        assert run(network, *given) == 0
        assert run(packed) == 0 and tuned.installed()["packed asks"] == {"tile": 2}
        assert capsys.readouterr().out.count("passed") == 2  # the case is packed, too
        for by_model, layouts in ((True, ("blocked",)), (False, ())):
            loaded = LiteNetwork()
            loaded.extra_configure(LiteExtraConfig(disable_configure_by_model_info=not by_model))
            loaded.load(str(packed))
            loaded.forward()
            assert options[-1].layouts == layouts
    finally:
        tuned.install(before)
    data = packed.read_bytes()
    for wrong in (data[:200], data.replace(b"enable_nchw88", b"enable_nchw99"), b"PK\3\4" * 9):
        packed.write_bytes(wrong)
        with pytest.raises(CheckpointError, match=r"damaged|unknown options"):
            LiteNetwork().load(str(packed))


def swapped(data: bytes, key: bytes) -> bytes:
    """A cipher that undoes itself."""
    return bytes(b ^ key[i % len(key)] for i, b in enumerate(data))


def test_packed_files_keep_what_is_encrypted_and_name_what_decrypts_it(
    model: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(globals_of_lite, "_METHODS", {})
    secret, facts, packed = (tmp_path / n for n in ("secret.mge", "info", "packed"))
    secret.write_bytes(swapped(model.read_bytes(), b"one"))
    facts.write_bytes(swapped(b'{"options": {"enable_nchw88": true}}', b"other"))
    both = "--pack-model-cryption", "first", "--pack-info-json", facts, "--pack-info-cryption"
    with pytest.raises(RuntimeError, match="no decryption method 'first' is registered"):
        run(secret, "--packed-model-dump", packed, *both, "second")
    LiteGlobal.register_decryption_and_key("first", swapped, b"one")
    LiteGlobal.register_decryption_and_key("second", swapped, b"other")
    assert run(secret, "--packed-model-dump", packed, *both, "second") == 0
    data = packed.read_bytes()
    assert secret.read_bytes() in data and facts.read_bytes() in data
    assert model.read_bytes() not in data
    assert run(packed) == 0 and capsys.readouterr().out.count("passed") == 2
    network = LiteNetwork()
    network.load(str(packed))
    (name,) = network.get_all_input_name()
    network.get_io_tensor(name).set_data_by_copy(X)
    network.forward()
    network.wait()
    (result,) = (network.get_io_tensor(n) for n in network.get_all_output_name())
    np.testing.assert_allclose(result.to_numpy(), np.exp(X) @ X.T, rtol=1e-5)
    LiteGlobal.update_decryption_key("second", b"wrong")
    with pytest.raises(CheckpointError, match="damaged"):
        LiteNetwork().load(str(packed))
    assert run(model, "--packed-model-dump", packed, "--pack-info-json", secret) == 1  # no JSON


def test_threads_run_on_the_cores_given(model: Path) -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    try:
        assert run(model, "--multi-thread-core-ids", core) == 0
        assert os.sched_getaffinity(0) == {core}
    finally:
        os.sched_setaffinity(0, before)
    assert run(model, "--multi-thread-core-ids", "none") == 1


@pytest.mark.parametrize("flag", ["--lite", "--mdl"])
def test_both_interfaces_give_the_results(model: Path, flag: str, tmp_path: Path) -> None:
    assert run(model, flag, "--bin-out-dump", tmp_path) == 0
    (path,) = tmp_path.glob("*.npy")
    np.testing.assert_allclose(np.load(path), np.exp(X) @ X.T, 1e-5)


OPS = """
#include "treadle_op.h"
static int half(const treadle_tensor *in, treadle_tensor *out, const double *params) {
    for (int64_t i = 0; i < treadle_size(in); i++)
        ((float *)out[0].data)[i] = ((const float *)in[0].data)[i] / 2;
    return 0;
}
#define treadle_ops list_of_ops
TREADLE_OPS({"flags_half", 1, 1, "", NULL, half, NULL})
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_ops_of_a_library_are_found(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "ops.c").write_text(OPS)
    library = build("ops", tmp_path / "ops.c", build_dir=tmp_path)
    custom.load(library, "list_of_ops")
    traced = jit.trace(lambda data: custom.flags_half()(data) + 1, capture_as_const=True)
    traced(mge.tensor(X))
    path = tmp_path / "halved.mge"
    traced.dump(path, arg_names=["data"], output_names=["halves"], input_data=[X])
    custom.unload(library)
    assert run(path) == 1 and "flags_half" in capsys.readouterr().err
    try:
        given = ("--c-opr-lib", library, "--c-opr-init-interface", "list_of_ops")
        assert run(path, *given) == 0 and "passed" in capsys.readouterr().out
    finally:
        custom.unload(library)
    assert run(path, "--c-opr-lib", library) == 1
    assert "not a library of ops" in capsys.readouterr().err
