"""Networks and tensors of Lite on devices with memory of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.plugins import Plugins, plugins
from tests.backends.toy_backend import elementwise

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.engine.devices.names import resolve
from treadle.lite import (
    LiteConfig,
    LiteDeviceType,
    LiteGlobal,
    LiteIO,
    LiteLayout,
    LiteNetwork,
    LiteNetworkIO,
    LiteTensor,
    LiteTensorConcat,
)

__all__ = ["plugins"]
X = np.random.default_rng(0).random((2, 5), np.float32)
NPU = LiteDeviceType.LITE_NPU


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> Path:
    traced = jit.trace(
        lambda data: F.relu(data) * data + data, symbolic=True, capture_as_const=True
    )
    traced(mge.tensor(X))
    path: Path = tmp_path_factory.mktemp("devices") / "model.mge"
    traced.dump(path, arg_names=["data"], output_names=["y"])
    return path


def model_of(x: Any) -> Any:
    return np.maximum(x, 0) * x + x


def test_a_network_runs_on_its_device_and_keeps_ends_there(plugins: Plugins, model: Path) -> None:
    plugins.toy("npu", kernels=elementwise())
    toy = resolve("npu1").open().raw
    config = LiteConfig(NPU, device_id=1)
    ends = LiteNetworkIO([LiteIO("data", is_host=False)], [LiteIO("y", is_host=False)])
    for io in (None, ends):
        network = LiteNetwork(config, io)
        network.load(model)
        data, y = network.get_io_tensor("data"), network.get_io_tensor("y")
        assert data.device_type is (LiteDeviceType.LITE_CPU if io is None else NPU)
        data.set_data_by_copy(X)
        with mge.fallback("silent"):
            network.forward()
        np.testing.assert_allclose(y.to_numpy(), model_of(X), 1e-6)
    launched, copied = toy.launches, toy.ins
    assert launched > 0 and (y.device_type, y.device_id) == (NPU, 1)
    second = network.clone()  # What the first one made, it takes where it lies.
    second.get_io_tensor("data").share_memory_with(y)
    with mge.fallback("silent"):
        second.forward()
    assert toy.launches > launched and toy.ins == copied
    np.testing.assert_allclose(second.get_io_tensor("y").to_numpy(), model_of(model_of(X)), 1e-5)
    assert LiteGlobal.get_device_count(NPU) == 2


def test_tensors_of_devices_go_in_and_out_by_copies(plugins: Plugins) -> None:
    plugins.toy("npu")
    there = LiteTensor(LiteLayout((2, 5)), NPU, 1)
    assert there.to_numpy().max() == 0 and there.nbytes == 40 and there.is_continue
    shared = LiteTensor(device_type=NPU, device_id=1)
    shared.share_memory_with(there)
    there.set_data_by_copy(X)
    np.testing.assert_array_equal(shared.to_numpy(), X)
    back, other = LiteTensor(), LiteTensor(device_type=NPU)
    back.copy_from(there)
    other.copy_from(back)
    there.fill_zero()
    assert shared.to_numpy().max() == 0
    np.testing.assert_array_equal(other.to_numpy(), X)
    other.reshape((5, 2))
    assert other.layout == LiteLayout((5, 2)) and repr(other).endswith("npu0)")
    joined = LiteTensorConcat([other, other], 0)
    assert (joined.device_type, joined.layout.shapes) == (NPU, (10, 2))
    there.layout = LiteLayout((3,), "int32")
    assert there.to_numpy().tolist() == [0, 0, 0] and shared.layout.shapes == (2, 5)
    for call in (
        lambda: there.get_data_by_share(),
        lambda: there.get_ctypes_memory(),
        lambda: there.set_data_by_share(X),
        lambda: there.slice((0,), (1,)),
        lambda: back.share_memory_with(there),
        lambda: there.share_memory_with(back),
        lambda: there.share_memory_with(other),
    ):
        with pytest.raises(RuntimeError, match="its memory is that of npu"):
            call()


def test_devices_that_are_not_there_are_refused() -> None:
    for make in (
        lambda: LiteTensor(device_type=LiteDeviceType.LITE_ATLAS),
        lambda: LiteNetwork(LiteConfig(LiteDeviceType.LITE_ATLAS)),
    ):
        with pytest.raises(RuntimeError, match="LITE_ATLAS is not available"):
            make()
    assert LiteGlobal.get_device_count(LiteDeviceType.LITE_ATLAS) == 0
