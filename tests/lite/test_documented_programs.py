"""Programs as MegEngine's documentation of Lite writes them, on both kinds of files."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import jit
from treadle.deploy import compile_offline
from treadle.engine.package.models import read_models, write_models
from treadle.lite import (
    LiteBackend,
    LiteConfig,
    LiteDataType,
    LiteDeviceType,
    LiteIO,
    LiteIOType,
    LiteLayout,
    LiteNetwork,
    LiteNetworkIO,
    LiteOptions,
    LiteTensor,
    LiteTensorPhase,
    TensorBatchCollector,
    start_finish_callback,
    wrap_async_callback,
)

DATA = np.random.default_rng(3).random((4, 3, 8, 8), np.float32)


@pytest.fixture(scope="module")
def want_and_files(tmp_path_factory: Any) -> tuple[Any, dict[str, Path]]:
    """What the model makes of `DATA`; the file to be compiled, and the compiled one."""
    mge.random.seed(1)
    conv, head = M.Conv2d(3, 4, 3), M.Linear(4, 5)

    @jit.trace(symbolic=True, capture_as_const=True)
    def classify(data: Any) -> Any:
        return F.softmax(head(F.mean(F.relu(conv(data)), (2, 3))), axis=1)

    want = classify(mge.tensor(DATA)).numpy()
    folder = tmp_path_factory.mktemp("programs")
    classify.dump(folder / "portable.mge", arg_names=["data"], output_names=["prob"])
    native = compile_offline(read_models(folder / "portable.mge")[0])
    write_models(folder / "native.mge", [native], "test")
    return want, {kind: folder / f"{kind}.mge" for kind in ("portable", "native")}


@pytest.fixture(params=["portable", "native"])
def model(request: pytest.FixtureRequest, want_and_files: Any) -> str:
    return str(want_and_files[1][request.param])


@pytest.fixture
def want(want_and_files: Any) -> Any:
    return want_and_files[0]


def close(found: Any, want: Any) -> None:
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-6)


def test_basic(model: str, want: Any) -> None:
    network = LiteNetwork()
    network.load(model)
    input_tensor = network.get_io_tensor(network.get_input_name(0))
    output_tensor = network.get_io_tensor(network.get_output_name(0))
    assert input_tensor.layout.shapes == (4, 3, 8, 8)
    assert input_tensor.layout.data_type == LiteDataType.LITE_FLOAT
    assert input_tensor.device_type == LiteDeviceType.LITE_CPU
    input_tensor.set_data_by_share(DATA)
    for _ in range(3):
        network.forward()
        network.wait()
    close(output_tensor.to_numpy(), want)


def test_shared_and_copied_data(model: str, want: Any) -> None:
    network = LiteNetwork()
    network.load(model)
    input_tensor = network.get_io_tensor("data")
    arr = np.ones([4, 3, 8, 8], "float32")
    input_tensor.set_data_by_share(arr)
    arr[...] = DATA
    network.forward()
    network.wait()
    close(network.get_io_tensor("prob").to_numpy(), want)
    input_tensor.set_data_by_copy(DATA.flatten(), 0, LiteLayout([4, 3, 8, 8], "float32"))
    network.forward()
    close(network.get_io_tensor("prob").to_numpy(), want)


def test_configuration(model: str, want: Any) -> None:
    config = LiteConfig()
    config.backend = LiteBackend.LITE_DEFAULT
    config.device_type = LiteDeviceType.LITE_CPU
    config.options.weight_preprocess = True
    config.options.const_shape = True
    config.options.var_sanity_check_first_run = False
    config = LiteConfig(LiteDeviceType.LITE_CPU, config.options)
    io = LiteNetworkIO()
    io.add_input("data", layout=LiteLayout([4, 3, 8, 8]))
    io.add_output("prob", True, LiteIOType.LITE_IO_VALUE)
    network = LiteNetwork(config, io)
    network.enable_cpu_inplace_mode()
    network.load(model)
    network.get_io_tensor("data", LiteTensorPhase.LITE_INPUT).set_data_by_copy(DATA)
    network.forward()
    network.wait()
    close(network.get_io_tensor("prob", LiteTensorPhase.LITE_OUTPUT).to_numpy(), want)


def test_outputs_by_layout(model: str) -> None:
    io = LiteNetworkIO([["data", True]], [LiteIO("prob", io_type=LiteIOType.LITE_IO_SHAPE)])
    network = LiteNetwork(io=io)
    network.load(model)
    network.get_io_tensor("data").set_data_by_copy(DATA)
    network.forward()
    network.wait()
    assert network.get_io_tensor("prob").to_numpy().tolist() == [4, 5]


def test_output_in_memory_of_the_user(model: str, want: Any) -> None:
    option = LiteOptions()
    option.force_output_use_user_specified_memory = True
    network = LiteNetwork(config=LiteConfig(option=option))
    network.load(model)
    out_array = np.zeros([4, 5], "float32")
    network.get_io_tensor("prob").set_data_by_share(out_array)
    network.get_io_tensor("data").set_data_by_share(DATA)
    network.forward()
    network.wait()
    close(out_array, want)


def test_async_with_callback(model: str, want: Any) -> None:
    network, finished = LiteNetwork(), threading.Event()
    network.load(model)

    @wrap_async_callback
    def async_callback() -> int:
        finished.set()
        return 0

    network.async_with_callback(async_callback)
    network.get_io_tensor("data").set_data_by_share(DATA)
    network.forward()
    assert finished.wait(300)
    network.wait()
    close(network.get_io_tensor("prob").to_numpy(), want)


def test_start_and_finish_callbacks(model: str) -> None:
    network, seen = LiteNetwork(), []
    network.load(model)

    @start_finish_callback
    def callback(ios: dict[LiteIO, Any]) -> int:
        for key in ios:
            assert ios[key.name] is ios[key]
            seen.append((key.name, ios[key].layout.shapes))
        return 0

    network.set_start_callback(callback)
    network.set_finish_callback(callback)
    network.forward()
    network.wait()
    assert seen == [("data", (4, 3, 8, 8)), ("prob", (4, 5))]


def test_shared_weights_and_runtime_memory(model: str, want: Any) -> None:
    src_network = LiteNetwork()
    src_network.load(model)
    sharing = LiteNetwork()
    sharing.enable_cpu_inplace_mode()
    sharing.share_weights_with(src_network)
    together = LiteNetwork()
    together.share_runtime_memroy(src_network)
    together.load(model)
    for network in (src_network, sharing, together):
        network.get_io_tensor("data").set_data_by_share(DATA)
        network.forward()
        network.wait()
        close(network.get_io_tensor("prob").to_numpy(), want)


def test_profile_and_dump(model: str, tmp_path: Path) -> None:
    network = LiteNetwork()
    network.enable_profile_performance(str(tmp_path / "profile.json"))
    network.load(model)
    network.io_txt_dump(str(tmp_path / "io.txt"))
    network.get_io_tensor("data").set_data_by_share(DATA)
    network.forward()
    network.wait()
    assert json.loads((tmp_path / "profile.json").read_text())["seconds"] > 0
    assert "float32[4, 5]" in (tmp_path / "io.txt").read_text()
    network.get_static_memory_alloc_info(str(tmp_path / "logs"))
    assert (tmp_path / "logs" / "static_memory.txt").stat().st_size


def test_a_batch_that_is_collected(model: str, want: Any) -> None:
    network = LiteNetwork()
    network.load(model)
    batch = TensorBatchCollector(
        [4, 3, 8, 8], LiteDataType.LITE_FLOAT, tensor=network.get_io_tensor("data")
    )
    for image in DATA:
        batch.collect(image)
    network.forward()
    network.wait()
    close(network.get_io_tensor("prob").to_numpy(), want)


def test_results_of_one_network_are_inputs_of_another(model: str, want: Any) -> None:
    first, second = LiteNetwork(), LiteNetwork()
    for network in (first, second):
        network.load(model)
    source = LiteTensor(LiteLayout([4, 3, 8, 8], "float32"))
    first.get_io_tensor("data").share_memory_with(source)
    second.get_io_tensor("data").share_memory_with(source)
    source.get_data_by_share()[...] = DATA
    joined = LiteTensor(LiteLayout([8, 5], "float32"))
    first.get_io_tensor("prob").share_memory_with(joined.slice([0], [4]))
    second.get_io_tensor("prob").share_memory_with(joined.slice([4], [8]))
    for network in (first, second):
        network.forward()
        network.wait()
    close(joined.to_numpy(), np.concatenate([want, want]))
