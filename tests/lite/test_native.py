"""Lite on files with native code: nothing is compiled, nothing is copied, little is imported."""

from __future__ import annotations

import json
import os
import platform
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
from treadle import jit
from treadle.base.errors import DTypeError, ShapeError, TreadleError
from treadle.deploy import compile_offline
from treadle.engine.package.models import Model, read_models, write_models
from treadle.lite import (
    LiteConfig,
    LiteGlobal,
    LiteIO,
    LiteLayout,
    LiteNetwork,
    LiteNetworkIO,
    LiteOptions,
    get_model_io_info,
)
from treadle.lite.packed import pack

X = np.random.default_rng(0).random((4, 3, 8, 8), np.float32)
GEARS = [{"data": (4, 3, 8, 8)}, {"data": (1, 3, 8, 8)}]


@pytest.fixture(scope="module")
def compute() -> Any:
    """What the model computes, of arrays."""
    mge.random.seed(0)
    conv, head = M.Conv2d(3, 4, 3), M.Linear(4, 5)

    def forward(data: Any) -> Any:
        features = F.mean(F.relu(conv(data)), (2, 3))
        return [F.softmax(head(features), axis=1), features]

    return forward


@pytest.fixture(scope="module")
def portable(compute: Any, tmp_path_factory: Any) -> Model:
    traced = jit.trace(compute, symbolic=True, capture_as_const=True)
    traced(mge.tensor(X))
    path = tmp_path_factory.mktemp("portable") / "model.mge"
    traced.dump(path, arg_names=["data"], output_names=["scores", "features"])
    return read_models(path)[0]


@pytest.fixture(scope="module")
def file(portable: Model, tmp_path_factory: Any) -> Path:
    path: Path = tmp_path_factory.mktemp("native") / "model.mge"
    write_models(path, [compile_offline(portable, GEARS)], "test")
    return path


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the compiler was needed for, as users are told."""
    found: list[str] = []
    logger = mge.get_logger("treadle").getChild("lite")
    monkeypatch.setattr(logger, "warning", lambda text, *rest: found.append(text % rest))
    return found


def loaded(file: Path, **settings: Any) -> LiteNetwork:
    network = LiteNetwork(**settings)
    network.load(file)
    return network


def scores(network: LiteNetwork, x: Any) -> Any:
    network.get_io_tensor("data").set_data_by_copy(x)
    network.forward()
    network.wait()
    return network.get_io_tensor("scores").to_numpy()


def wanted(compute: Any, x: Any) -> Any:
    return compute(mge.tensor(x))[0].numpy()


# -- what is needed ------------------------------------------------------------------------------

_ALONE = """
import json, sys
sys.modules["llvmlite"] = None  # Importing it fails.
import numpy as np
from treadle.lite import LiteNetwork

network = LiteNetwork()
network.load(sys.argv[1])
network.get_io_tensor("data").set_data_by_share(np.load(sys.argv[2]))
network.forward()
network.wait()
found = network.get_io_tensor("scores").to_numpy().tolist()
print(json.dumps([found, [name for name, module in sys.modules.items() if module]]))
"""


def test_a_run_imports_and_compiles_nothing(compute: Any, file: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    ran = subprocess.run(
        [sys.executable, "-c", _ALONE, str(file), str(tmp_path / "x.npy")],
        env={**os.environ, "TREADLE_CACHE_DIR": str(tmp_path / "empty")},
        capture_output=True,
        text=True,
        check=True,
    )
    found, modules = json.loads(ran.stdout)
    np.testing.assert_allclose(found, wanted(compute, X), rtol=1e-5, atol=1e-6)
    ours = {name for name in modules if name.startswith("treadle.")}
    packages = {name.split(".")[1] for name in ours}
    assert packages == {"backends", "base", "engine", "lite", "runtime"}
    assert not {"llvmlite", "rich", "typer", "onnx"} & set(modules)
    stages = {"prepare", "partition", "optimize", "compile", "load", "execute", "package.models"}
    assert not {f"treadle.engine.{name}" for name in stages} & ours
    generators = {name for name in ours if name.startswith("treadle.backends.codegen.")}
    assert generators <= {"treadle.backends.codegen.target"}
    assert not list(tmp_path.glob("empty/**/*.so"))


# -- shapes --------------------------------------------------------------------------------------


def test_gears_are_the_shapes_that_need_no_compiler(
    compute: Any, file: Path, told: list[str]
) -> None:
    network = loaded(file)
    assert network.gears == GEARS
    for n in (4, 1, 4):
        np.testing.assert_allclose(scores(network, X[:n]), wanted(compute, X[:n]), rtol=1e-5)
    assert told == []
    for _ in range(2):
        np.testing.assert_allclose(scores(network, X[:3]), wanted(compute, X[:3]), rtol=1e-5)
    assert len(told) == 1
    assert "[3, 3, 8, 8]" in told[0]
    with pytest.raises(TreadleError):
        scores(network, np.zeros((1, 7, 8, 8), np.float32))
    np.testing.assert_allclose(scores(network, X), wanted(compute, X), rtol=1e-5)


def test_a_portable_file_has_no_gears(portable: Model, tmp_path: Path, told: list[str]) -> None:
    write_models(tmp_path / "m", [portable], "test")
    assert loaded(tmp_path / "m").gears == []
    assert told == []


def test_a_gear_is_chosen_by_configuration(file: Path) -> None:
    io = LiteNetworkIO([LiteIO("data", layout=LiteLayout((1, 3, 8, 8), "float32"))])
    network = loaded(file, io=io)
    assert network.get_io_tensor("data").layout.shapes == (1, 3, 8, 8)
    network.forward()
    assert network.get_io_tensor("scores").layout.shapes == (1, 5)
    found = get_model_io_info(file)
    assert [i.config_layout.shapes for i in (*found.inputs, *found.outputs)] == [
        (4, 3, 8, 8),
        (4, 5),
        (4, 4),
    ]


def test_code_for_other_machines_is_left_alone(
    compute: Any, portable: Model, tmp_path: Path, told: list[str]
) -> None:
    foreign = "avx2" if platform.machine() in ("aarch64", "arm64") else "neon"
    write_models(tmp_path / "m", [compile_offline(portable, target=foreign)], "test")
    network = loaded(tmp_path / "m")
    assert network.gears == []
    assert len(told) == 1
    assert f"for other machines ({foreign})" in told[0]
    np.testing.assert_allclose(scores(network, X), wanted(compute, X), rtol=1e-5)


# -- memory --------------------------------------------------------------------------------------


def test_nothing_is_copied_in_or_out(compute: Any, file: Path) -> None:
    network = loaded(file)
    data, out = network.get_io_tensor("data"), network.get_io_tensor("scores")
    x, y = X.copy(), np.zeros((4, 5), np.float32)
    data.set_data_by_share(x)
    out.set_data_by_share(y)
    features = network.get_io_tensor("features").get_ctypes_memory().value
    network.forward()
    np.testing.assert_allclose(y, wanted(compute, X), rtol=1e-5)
    x[...] = X[::-1]
    network.forward()
    np.testing.assert_allclose(y, wanted(compute, X[::-1]), rtol=1e-5)
    assert out.get_data_by_share() is y
    assert network.get_io_tensor("features").get_ctypes_memory().value == features


def test_results_that_do_not_fit_go_elsewhere_or_are_refused(compute: Any, file: Path) -> None:
    small = np.zeros((1, 5), np.float32)
    network = loaded(file)
    network.get_io_tensor("scores").set_data_by_share(small)
    np.testing.assert_allclose(scores(network, X), wanted(compute, X), rtol=1e-5)
    assert not small.any()
    frozen = np.zeros((4, 5), np.float32)
    frozen.flags.writeable = False
    network.get_io_tensor("scores").set_data_by_share(frozen)
    np.testing.assert_allclose(scores(network, X), wanted(compute, X), rtol=1e-5)
    strict = LiteOptions(force_output_use_user_specified_memory=True)
    network = loaded(file, config=LiteConfig(option=strict))
    network.get_io_tensor("scores").set_data_by_share(small)
    with pytest.raises(RuntimeError, match="does not fit the memory"):
        scores(network, X)
    np.testing.assert_allclose(scores(network, X[:1]), wanted(compute, X[:1]), rtol=1e-5)
    assert small.any()


def test_a_result_may_replace_an_input(tmp_path: Path) -> None:
    @jit.trace(symbolic=True, capture_as_const=True)
    def reverse(x: Any) -> Any:
        return x[::-1] * 2

    x = np.arange(6, dtype=np.float32)
    reverse(mge.tensor(x))
    reverse.dump(tmp_path / "m", arg_names=["x"], output_names=["y"])
    model = compile_offline(read_models(tmp_path / "m")[0])
    write_models(tmp_path / "m", [model], "test")
    network = loaded(tmp_path / "m")
    for name in ("x", "y"):
        network.get_io_tensor(name).set_data_by_share(x)
    network.forward()
    assert x.tolist() == [10, 8, 6, 4, 2, 0]


def _mappings(file: Path) -> int:
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return sum(line.endswith(str(file)) for line in lines)


def test_networks_share_weights_and_run_at_once(compute: Any, file: Path) -> None:
    first = loaded(file)
    networks = [first] + [LiteNetwork() for _ in range(3)]
    for network in networks[1:]:
        network.share_weights_with(first)
        network.share_runtime_memroy(first)
    if sys.platform == "linux":
        assert _mappings(file) == 1
    want = [wanted(compute, X[i : i + 1]) for i in range(4)]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(50):
            if not np.allclose(scores(networks[i], X[i : i + 1]), want[i], rtol=1e-5):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_threads_may_share_a_network(file: Path) -> None:
    network, ran = loaded(file), []
    network.set_finish_callback(lambda outputs: ran.append(list(outputs)) or 0)
    threads = [threading.Thread(target=network.forward) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ran == [["scores", "features"]] * 8


# -- looking inside ------------------------------------------------------------------------------


def test_looking_inside_uses_the_portable_part(
    compute: Any, file: Path, tmp_path: Path, told: list[str]
) -> None:
    network = loaded(file)
    network.enable_profile_performance(str(tmp_path / "profile.json"))
    network.io_bin_dump(str(tmp_path / "values"))
    for _ in range(2):
        np.testing.assert_allclose(scores(network, X), wanted(compute, X), rtol=1e-5)
    network.get_static_memory_alloc_info(str(tmp_path))
    assert len(told) == 1
    assert "values and times" in told[0]
    assert json.loads((tmp_path / "profile.json").read_text())["kernels"]
    last = sorted((tmp_path / "values").iterdir())[-1]
    np.testing.assert_allclose(np.load(last), wanted(compute, X), rtol=1e-5)


def test_options_that_change_the_code_have_it_compiled(
    compute: Any, file: Path, told: list[str]
) -> None:
    network = loaded(file, config=LiteConfig(option=LiteOptions(enable_nhwcd4=True)))
    np.testing.assert_allclose(scores(network, X), wanted(compute, X), rtol=1e-5)
    assert len(told) == 1
    assert "options of the network" in told[0]
    network = loaded(file)
    network.set_network_algo_workspace_limit(1)
    with pytest.raises(TreadleError, match="memory budget"):
        scores(network, X)


# -- files in other files ------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="code is opened from memory on Linux only")
def test_encrypted_and_packed_files_run_native_code(
    compute: Any, file: Path, tmp_path: Path, told: list[str]
) -> None:
    name = f"backwards {tmp_path}"
    LiteGlobal.register_decryption_and_key(name, lambda data, key: data[::-1], b"")
    (tmp_path / "secret").write_bytes(file.read_bytes()[::-1])
    secret = loaded(tmp_path / "secret", config=LiteConfig(bare_model_cryption_name=name))
    facts = b'{"options": {"enable_nchw88": false}}'
    pack(tmp_path / "packed", file.read_bytes(), facts, {}, {"model": "", "info": ""})
    packed = loaded(tmp_path / "packed")
    stream = LiteNetwork()
    with file.open("rb") as opened:
        stream.load(opened)
    for network in (secret, packed, stream):
        assert network.gears == GEARS
        np.testing.assert_allclose(scores(network, X), wanted(compute, X), rtol=1e-5)
    assert told == []


def test_without_files_in_memory_bytes_are_compiled(
    compute: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    network = LiteNetwork()
    with file.open("rb") as opened:
        network.load(opened)
    assert network.gears == []
    np.testing.assert_allclose(scores(network, X), wanted(compute, X), rtol=1e-5)


# -- in the background ---------------------------------------------------------------------------


def test_runs_in_the_background_come_in_order(file: Path) -> None:
    network, events = loaded(file), []
    network.set_start_callback(lambda inputs: events.append("start") or 0)
    network.set_finish_callback(lambda outputs: events.append("finish") or 0)
    network.async_with_callback(lambda: events.append("done") or 0)
    for _ in range(3):
        network.forward()
    network.wait()
    assert events == ["start", "finish", "done"] * 3
    network.wait()


def test_runs_that_nobody_waits_for_leave_nothing_behind(file: Path) -> None:
    network, done = loaded(file), threading.Semaphore(0)
    network.async_with_callback(lambda: done.release() or 0)
    for _ in range(20):
        network.forward()
        assert done.acquire(timeout=300)
    assert len(network._background._running) <= 2
    network.wait()


def test_forward_does_not_wait_for_a_run(file: Path) -> None:
    network, go = loaded(file), threading.Event()
    network.set_start_callback(lambda inputs: int(not go.wait(300)))
    network.async_with_callback(lambda: 0)
    network.forward()
    network.forward()  # The first is still at its beginning.
    go.set()
    network.wait()


def test_wait_raises_what_any_run_raised(portable: Model, tmp_path: Path) -> None:
    write_models(tmp_path / "m", [portable], "test")
    network, done = loaded(tmp_path / "m"), []
    network.async_with_callback(lambda: done.append(1) or 0)
    go, data = threading.Event(), network.get_io_tensor("data")
    shapes = iter([(1, 7, 8, 8), (4, 3, 8, 8)])

    def next_input(inputs: Any) -> int:
        inputs["data"].layout = LiteLayout(next(shapes), "float32")
        return int(not go.wait(300))

    network.set_start_callback(next_input)
    network.forward()
    network.forward()
    go.set()
    with pytest.raises(ShapeError):
        network.wait()
    assert done == [1]
    assert data.layout.shapes == (4, 3, 8, 8)
    network.wait()


# -- mistakes ------------------------------------------------------------------------------------


def test_shapes_that_a_model_does_not_take_are_told_by_input(file: Path, told: list[str]) -> None:
    for shape in ((4, 8, 8, 3), (3, 8, 8), ()):
        with pytest.raises(ShapeError) as raised:
            scores(loaded(file), np.zeros(shape, np.float32))
        assert f"data [{', '.join(map(str, shape))}]" in str(raised.value)
        assert "it was made for data [4, 3, 8, 8]" in str(raised.value)


def test_element_types_that_would_lose_numbers_are_refused(
    compute: Any, file: Path, portable: Model, tmp_path: Path
) -> None:
    """float64 and bytes were and are taken for float32; 0.7 and 300 became bytes 0 and 44."""
    for good in (X.astype(np.float64), (X * 255).astype(np.uint8), X > 0.5):
        want = wanted(compute, good.astype(np.float32))
        np.testing.assert_allclose(scores(loaded(file), good), want, rtol=1e-4)
    traced = jit.trace(lambda data: data * 2, symbolic=True, capture_as_const=True)
    traced(mge.tensor(np.zeros(2), dtype="uint8"))
    traced.dump(tmp_path / "graph.mge", arg_names=["data"], output_names=["scores"])
    native = compile_offline(read_models(tmp_path / "graph.mge")[0])
    write_models(tmp_path / "native.mge", [native], "test")
    for name in ("graph.mge", "native.mge"):
        network = loaded(tmp_path / name)
        assert scores(network, np.array([3, 4])).tolist() == [6, 8]
        for bad in (np.array([0.7, 1]), np.array([1, 300]), np.array([-1, 0])):
            with pytest.raises(DTypeError, match="does not fit uint8"):
                scores(network, bad)
    with pytest.raises(DTypeError, match="'data' does not fit float32"):
        scores(loaded(file), X + 1j)
    for nothing in (None, ["cat"], np.array(["cat"])):
        with pytest.raises(TypeError, match="holds no numbers"):
            scores(loaded(file), nothing)


def test_what_is_no_file_is_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"bytes is neither a path.*io\.BytesIO"):
        loaded(file.read_bytes())  # type: ignore[arg-type]
    (tmp_path / "text").write_text("a model?")
    with (tmp_path / "text").open() as text, pytest.raises(TypeError, match="opened as text"):
        loaded(text)  # type: ignore[arg-type]


def test_a_machine_without_a_home_runs_what_it_is_told_to(
    compute: Any, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    (tmp_path / "no directory").write_text("")
    monkeypatch.setenv("TREADLE_CONFIG_DIR", str(tmp_path / "no directory" / "treadle"))
    logger = mge.get_logger("treadle")
    monkeypatch.setattr(logger, "warning", lambda text, *rest: told.append(text % rest))
    network = LiteNetwork()
    network.load(file, allow_native=True)
    assert network.gears == GEARS
    np.testing.assert_allclose(scores(network, X), wanted(compute, X), rtol=1e-5)
    assert told == []
    loaded(file)
    assert len(told) == 1 and "not made by you here" in told[0]
