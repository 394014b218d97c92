"""MegEngine Lite's API: tensors, networks, callbacks, decryption, batches."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import jit, lite
from treadle.base.errors import CheckpointError, TreadleError
from treadle.engine.package.models import read_models
from treadle.lite import (
    LiteConfig,
    LiteDataType,
    LiteDeviceType,
    LiteGlobal,
    LiteIO,
    LiteIOType,
    LiteLayout,
    LiteNetwork,
    LiteNetworkIO,
    LiteOptions,
    LiteTensor,
    LiteTensorConcat,
    LiteTensorPhase,
    TensorBatchCollector,
)

X = np.random.default_rng(0).random((2, 3, 8, 8), np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> tuple[Path, Any]:
    """A file with two outputs, and what computes them."""
    mge.random.seed(0)
    conv, head = M.Conv2d(3, 4, 3), M.Linear(4, 5)

    def forward(data: Any) -> Any:
        features = F.mean(F.relu(conv(data)), (2, 3))
        return [F.softmax(head(features), axis=1), features]

    traced = jit.trace(forward, symbolic=True, capture_as_const=True)
    traced(mge.tensor(X))
    path = tmp_path_factory.mktemp("lite") / "model.mge"
    traced.dump(path, arg_names=["data"], output_names=["scores", "features"])
    return path, lambda x: [y.numpy() for y in forward(mge.tensor(x))]


def loaded(model: Any, **settings: Any) -> LiteNetwork:
    network = LiteNetwork(**settings)
    network.load(str(model[0]))
    return network


# -- networks ---------------------------------------------------------------------------------


def test_a_network_runs(model: Any) -> None:
    network = loaded(model)
    assert network.get_all_input_name() == ["data"]
    assert network.get_all_output_name() == ["scores", "features"]
    assert (network.get_input_name(0), network.get_output_name(1)) == ("data", "features")
    data = network.get_io_tensor("data")
    assert data.layout == LiteLayout((2, 3, 8, 8), "float32")
    data.set_data_by_copy(X)
    network.forward()
    network.wait()
    scores, features = model[1](X)
    out = network.get_io_tensor("scores", LiteTensorPhase.LITE_OUTPUT)
    np.testing.assert_allclose(out.to_numpy(), scores, rtol=1e-5, atol=1e-6)
    other = network.get_io_tensor("features").to_numpy()
    np.testing.assert_allclose(other, features, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="no tensor 'nobody'"):
        network.get_io_tensor("nobody")


def test_shapes_may_change_from_run_to_run(model: Any) -> None:
    network = loaded(model)
    for n in (1, 5, 2, 5):
        x = np.random.default_rng(n).random((n, 3, 8, 8), np.float32)
        network.get_io_tensor("data").set_data_by_copy(x)
        network.forward()
        found = network.get_io_tensor("scores").to_numpy()
        np.testing.assert_allclose(found, model[1](x)[0], rtol=1e-5, atol=1e-6)
    network.get_io_tensor("data").set_data_by_copy(np.zeros((1, 7, 8, 8), np.float32))
    with pytest.raises(TreadleError):
        network.forward()


def test_data_is_shared_without_a_copy(model: Any) -> None:
    network = loaded(model)
    x = X.copy()
    network.get_io_tensor("data").set_data_by_share(x)
    network.forward()
    x[...] = 0
    network.forward()
    want = model[1](np.zeros_like(X))[0]
    found = network.get_io_tensor("scores").to_numpy()
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
    with pytest.raises(AssertionError, match="dense"):
        network.get_io_tensor("data").set_data_by_share(X[:, ::2])


def test_chosen_outputs_layouts_and_shapes(model: Any) -> None:
    io = LiteNetworkIO()
    io.add_input(LiteIO("data", layout=LiteLayout((4, 3, 8, 8), "float32")))
    io.add_output("features", True, LiteIOType.LITE_IO_SHAPE)
    network = loaded(model, io=io)
    assert network.get_all_output_name() == ["features"]
    assert network.get_io_tensor("data").layout.shapes == (4, 3, 8, 8)
    network.forward()
    assert network.get_io_tensor("features").to_numpy().tolist() == [4, 4]
    with pytest.raises(ValueError, match="has no 'x'"):
        loaded(model, io=LiteNetworkIO(["x"]))


def test_callbacks_and_async_runs(model: Any) -> None:
    network, seen = loaded(model), []
    network.set_start_callback(lambda tensors: seen.append(("start", list(tensors))) or 0)
    network.set_finish_callback(lambda tensors: seen.append(("finish", list(tensors))) or 0)
    network.forward()
    assert seen == [("start", ["data"]), ("finish", ["scores", "features"])]
    assert all(isinstance(io, LiteIO) for _, ios in seen for io in ios)
    done: list[int] = []
    network.async_with_callback(lambda: done.append(1) or 0)
    network.forward()
    network.wait()
    assert done == [1]
    network.get_io_tensor("data").set_data_by_copy(np.zeros((1, 7, 8, 8), np.float32))
    network.forward()
    with pytest.raises(TreadleError):
        network.wait()


@pytest.mark.parametrize(
    "method", ["async_with_callback", "set_start_callback", "set_finish_callback"]
)
def test_what_cannot_be_called_is_refused_at_once(method: str) -> None:
    network = LiteNetwork()
    with pytest.raises(TypeError, match=f"{method}: int cannot be called; give a function"):
        getattr(network, method)(3)
    getattr(network, method)(None)


def test_weights_are_shared(model: Any) -> None:
    first, second = loaded(model), LiteNetwork()
    second.share_weights_with(first)
    second.share_runtime_memroy(first)
    second.get_io_tensor("data").set_data_by_copy(X)
    second.forward()
    found = second.get_io_tensor("scores").to_numpy()
    np.testing.assert_allclose(found, model[1](X)[0], rtol=1e-5, atol=1e-6)
    assert first.get_io_tensor("data").to_numpy().max() == 0
    first.set_start_callback(lambda ios: ios["data"].fill_zero() or 0)
    clone = first.clone()
    assert clone.get_all_output_name() == first.get_all_output_name()
    clone.get_io_tensor("data").set_data_by_copy(X)
    clone.forward()
    first.forward()
    assert clone._model is first._model
    np.testing.assert_array_equal(clone.get_io_tensor("scores").to_numpy(), found)
    assert np.abs(first.get_io_tensor("scores").to_numpy() - found).max() > 1e-3
    with pytest.raises(RuntimeError, match="no model is loaded"):
        LiteNetwork().clone()


def test_looking_inside(model: Any, tmp_path: Path) -> None:
    network = loaded(model)
    network.enable_profile_performance(str(tmp_path / "profile.json"))
    network.io_txt_dump(str(tmp_path / "io.txt"))
    network.get_io_tensor("data").set_data_by_copy(X)
    network.forward()
    assert json.loads((tmp_path / "profile.json").read_text())["kernels"]
    lines = (tmp_path / "io.txt").read_text().splitlines()
    assert any(" conv " in line and "float32[2, 4, 6, 6]" in line for line in lines)
    network.io_bin_dump(str(tmp_path / "bin"))
    network.forward()
    arrays = sorted((tmp_path / "bin").iterdir())
    np.testing.assert_allclose(np.load(arrays[-1]).shape, (2, 5))
    network.get_static_memory_alloc_info(str(tmp_path / "log"))
    assert "arena" in (tmp_path / "log" / "static_memory.txt").read_text()


def test_settings_are_accepted_or_refused(model: Any) -> None:
    network = LiteNetwork()
    network.stream_id, network.device_id = 1, 2
    network.load(str(model[0]))
    assert (network.stream_id, network.device_id) == (1, 2)
    for name in ("stream_id", "device_id"):
        with pytest.raises(RuntimeError, match=f"{name} is set before a model is loaded"):
            setattr(network, name, 1)
    assert not network.is_cpu_inplace_mode()
    network.enable_cpu_inplace_mode()
    assert network.is_cpu_inplace_mode()
    network.set_network_algo_policy(lite.LiteAlgoSelectStrategy.LITE_ALGO_PROFILE)
    network.set_network_algo_workspace_limit(1 << 20)
    network.enable_global_layout_transform()
    network.extra_configure(lite.LiteExtraConfig(disable_configure_by_model_info=True))
    with pytest.raises(RuntimeError, match="TensorRT"):
        network.use_tensorrt()
    with pytest.raises(RuntimeError, match="LITE_CUDA"):
        LiteNetwork(LiteConfig(device_type=LiteDeviceType.LITE_CUDA))
    with pytest.raises(RuntimeError, match="load"):
        LiteNetwork().forward()


def test_the_number_of_threads_is_that_of_the_process(model: Any) -> None:
    network, other = loaded(model), loaded(model)
    before = network.threads_number
    try:
        network.threads_number = 3
        assert other.threads_number == 3
        network.get_io_tensor("data").set_data_by_copy(X)
        network.forward()
        found = network.get_io_tensor("scores").to_numpy()
        np.testing.assert_allclose(found, model[1](X)[0], rtol=1e-5, atol=1e-6)
        with pytest.raises(TreadleError, match="not a number of threads"):
            network.threads_number = 0
    finally:
        network.threads_number = before


def test_layouts_and_budgets_reach_the_engine(model: Any, tmp_path: Any) -> None:
    network = loaded(model)
    network.enable_global_layout_transform()
    network.dump_layout_transform_model(str(tmp_path / "laid_out.mge"))
    again = loaded((tmp_path / "laid_out.mge",))
    [written] = read_models(tmp_path / "laid_out.mge")
    assert written.options["layouts"] == ["channels-last", "blocked"]
    for each in (network, again):
        each.get_io_tensor("data").set_data_by_copy(X)
        each.forward()
    first, second = (n.get_io_tensor(n.get_output_name(0)).to_numpy() for n in (network, again))
    np.testing.assert_array_equal(first, second)
    network.set_network_algo_workspace_limit(1)
    with pytest.raises(TreadleError, match="memory budget"):
        network.forward()
    options = LiteOptions(enable_nhwcd4=True, force_dynamic_alloc=True)
    found = LiteNetwork(LiteConfig(option=options))._settings
    assert found.layouts == ("channels-last",) and not found.reuse_memory


def test_parts_of_an_input(model: Any) -> None:
    network = loaded(model)
    for i in range(2):
        network.get_discrete_tensor("data", i).get_data_by_share()[...] = X[i]
    network.forward()
    found = network.get_io_tensor("scores").to_numpy()
    np.testing.assert_allclose(found, model[1](X)[0], rtol=1e-5, atol=1e-6)


# -- the process --------------------------------------------------------------------------------


def test_encrypted_models(model: Any, tmp_path: Path) -> None:
    @lite.decryption_func
    def xor(data: Any, key: bytes) -> bytes:
        return bytes(b ^ key[0] for b in data)

    secret = tmp_path / "secret"
    secret.write_bytes(xor(model[0].read_bytes(), b"\x2a"))
    name = f"xor {tmp_path}"
    config = LiteConfig(bare_model_cryption_name=name)
    with pytest.raises(RuntimeError, match="no decryption method"):
        LiteNetwork(config).load(secret)
    LiteGlobal.register_decryption_and_key(name, xor, [1])
    with pytest.raises(RuntimeError, match="registered already"):
        LiteGlobal.register_decryption_and_key(name, xor, [1])
    with pytest.raises(CheckpointError):
        LiteNetwork(config).load(secret)
    LiteGlobal.update_decryption_key(name, [0x2A])
    network = LiteNetwork(config)
    network.load(secret)
    assert network.get_input_name(0) == "data"


def test_facts_about_a_model(model: Any) -> None:
    found = lite.get_model_io_info(str(model[0]))
    assert [(i.name, i.config_layout.shapes) for i in found.inputs] == [("data", (2, 3, 8, 8))]
    assert [o.name for o in found.outputs] == ["scores", "features"]


def test_settings_of_the_process(tmp_path: Path) -> None:
    assert LiteGlobal.get_device_count(LiteDeviceType.LITE_CPU) == 1
    assert LiteGlobal.get_device_count(LiteDeviceType.LITE_CUDA) == 0
    LiteGlobal.register_memory_pair(ctypes.c_void_p(16), ctypes.c_void_p(32), 8, 0)
    assert LiteGlobal.lookup_physic_ptr(16, 0) == 32
    LiteGlobal.clear_memory_pair(16, 32, 0)
    with pytest.raises(KeyError):
        LiteGlobal.lookup_physic_ptr(16, 0)
    LiteGlobal.set_persistent_cache(str(tmp_path / "c"))
    LiteGlobal.dump_persistent_cache(str(tmp_path / "c"))
    LiteGlobal.set_tensorrt_cache("x")
    LiteGlobal.dump_tensorrt_cache()
    LiteGlobal.try_coalesce_all_free_memory()
    with pytest.raises(RuntimeError, match="not a loader library"):
        LiteGlobal.set_loader_lib_path("x.so")
    before = lite.get_log_level()
    lite.set_log_level(lite.LiteLogLevel.ERROR)
    assert lite.get_log_level() is lite.LiteLogLevel.ERROR
    lite.set_log_level(before)
    assert lite.version == mge.__version__
    assert lite.lite_dtype_2_numpy(LiteDataType.LITE_HALF) == np.float16
    assert lite.wrap_async_callback(int) is int
    assert lite.start_finish_callback(len) is len


# -- tensors --------------------------------------------------------------------------------------


def test_layouts() -> None:
    layout = LiteLayout([2, 3], LiteDataType.LITE_INT8)
    assert (layout.ndim, layout.dtype, layout.shapes) == (2, np.dtype(np.int8), (2, 3))
    assert layout == LiteLayout((2, 3), "int8")
    assert layout != LiteLayout((2, 3), "uint8")
    with pytest.raises(AssertionError, match="at most 7"):
        LiteLayout(range(8))
    with pytest.raises(TypeError, match="no element type"):
        LiteLayout((1,), "float64")


def test_tensors_share_copy_and_slice() -> None:
    a = LiteTensor(LiteLayout((4, 3), "int32"))
    assert (a.nbytes, a.is_continue, a.is_pinned_host, a.device_id) == (48, True, False, 0)
    a.set_data_by_copy(np.arange(12, dtype=np.int32).reshape(4, 3))
    b, c = LiteTensor(), LiteTensor()
    b.share_memory_with(a)
    c.copy_from(a)
    part = a.slice((1,), (3,))
    part.fill_zero()
    assert b.to_numpy()[1:3].sum() == 0
    assert c.to_numpy().sum() == 66
    assert part.layout.shapes == (2, 3)
    assert not a.slice((0, 0), (4, 2)).is_continue
    a.reshape((3, 4))
    assert a.layout.shapes == (3, 4)
    a.update()
    a.layout = LiteLayout((2,), "float32")
    assert a.to_numpy().tolist() == [0, 0]
    a.set_data_by_copy([1, 2])
    assert a.to_numpy().dtype == np.float32
    joined = LiteTensorConcat([c, c], 0)
    assert joined.layout.shapes == (8, 3)


def test_tensors_read_addresses() -> None:
    source = np.arange(6, dtype=np.float32)
    address = ctypes.c_void_p(source.ctypes.data)
    tensor, layout = LiteTensor(), LiteLayout((2, 3), "float32")
    tensor.set_data_by_share(address, 24, layout)
    source[0] = 9
    assert tensor.to_numpy()[0, 0] == 9
    assert tensor.get_ctypes_memory().value == source.ctypes.data
    tensor.set_data_by_copy(address, 24, layout)
    source[0] = 7
    assert tensor.get_data_by_share()[0, 0] == 9
    with pytest.raises(AssertionError, match="cannot hold"):
        tensor.set_data_by_copy(address, 8, layout)
    with pytest.raises(AssertionError, match="needs a layout"):
        tensor.set_data_by_copy(address, 8)


def test_batches_are_collected() -> None:
    batch = TensorBatchCollector((3, 2), LiteDataType.LITE_INT)
    assert [batch.collect(np.array([i, i])) for i in (1, 2)] == [0, 1]
    batch.collect_id([3, 3], 2)
    assert batch.collect([9, 9]) == -1
    with pytest.raises(AssertionError, match="not free"):
        batch.collect_id([9, 9], 2)
    assert batch.to_numpy().tolist() == [[1, 1], [2, 2], [3, 3]]
    batch.free(1)
    other = np.array([5, 6], np.int32)
    assert batch.collect_by_ctypes(ctypes.c_void_p(other.ctypes.data), 8) == 1
    assert batch.get_tensor_at(1).to_numpy().tolist() == [[5, 6]]
    assert batch.get().layout.shapes == (3, 2)
