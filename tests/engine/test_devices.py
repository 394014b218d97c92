"""Names become places: once for each name, the same object for all, on a plug-in or the host."""

import pickle

import pytest
from tests.backends import toy_backend
from tests.backends.plugins import Plugins

import treadle as mge
from treadle.backends import registry
from treadle.base.errors import DeviceError
from treadle.engine.devices import names as devices
from treadle.engine.devices.names import Name, parse, resolve
from treadle.runtime.api import DeviceInfo


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("cpux", Name("cpu", "x", 0)),
        ("cpu07", Name("cpu", "7", 0)),
        ("gpu1:2", Name("gpu", "1", 2)),
        ("multithread4", Name("multithread", "4", 0)),
        ("toy1:3", Name("toy", "1", 3)),
        ("toyx", Name("toy", "x", 0)),
    ],
)
def test_names_come_apart(text: str, parts: Name, plugins: Plugins) -> None:
    plugins.toy()
    assert parse(text) == parts


@pytest.mark.parametrize("text", ["", "cpu", "toy0", "0", "cpu-1", "cpu0:", "CPU0", "cpu0 "])
def test_malformed_and_unknown_names_list_the_forms(text: str) -> None:
    with pytest.raises(DeviceError, match="is not a device name") as caught:
        parse(text)
    assert "xpux, cpux" in str(caught.value)


def test_one_object_for_each_logical_name(plugins: Plugins) -> None:
    plugins.toy()
    assert resolve("toy0") is resolve("toy0:0") and resolve("toyx") is not resolve("toy0")
    assert resolve("toyx").place == resolve("toy0").place == resolve("toy0:1").place
    assert resolve("toyx").open() is resolve("toy0:1").open()
    assert resolve("toy0:1").physical_locator == ("toy", 0, 1)
    assert resolve("toy1").open().name == "toy1"
    assert repr(resolve("toyx")) == 'CompNode("toy0:0" from "toyx:0")'


def test_a_device_is_itself_again_after_pickling(plugins: Plugins) -> None:
    plugins.toy()
    for name in ("xpux", "cpu1", "toy0:1"):
        assert pickle.loads(pickle.dumps(resolve(name))) is resolve(name)


def test_equality_is_by_name_and_place(plugins: Plugins) -> None:
    plugins.toy()
    node = resolve("toy0")
    assert node == "toy0" and node == "toy0:0" and node != "toyx" and node != resolve("toyx")
    assert hash(node) == hash(resolve("toy0:0")) and node != 3


def test_xpux_follows_a_rescan_and_host_tensors_stay(plugins: Plugins) -> None:
    before = mge.tensor([1.0], device="xpux")
    if not before.device.on_host:
        pytest.skip("needs a machine whose fastest device is its CPU")
    plugins.toy(priority=3)
    after = mge.tensor([1.0], device="xpux")
    assert (before.device.physical_name, after.device.physical_name) == ("cpu0:0", "toy0:0")
    assert before.device != after.device
    with pytest.raises(DeviceError, match="different devices"):
        before + after
    kept = resolve("cpu0")
    assert (before + mge.tensor([1.0], device="cpu0")).item() == 2.0
    registry.rescan()
    assert resolve("cpu0") is kept


def test_places_open_anew_after_a_rescan(plugins: Plugins) -> None:
    toy = plugins.toy()
    mge.set_default_device("toy0")
    first, host = mge.tensor([1.0]).device.open(), resolve("cpu0").open()
    registry.rescan()
    assert first.closed and host.closed and toy.opened[0].closed
    second = mge.tensor([1.0]).device.open()
    assert second is not first and not second.closed
    assert not resolve("cpu0").open().closed


def test_memory_figures_come_from_the_device(plugins: Plugins) -> None:
    plugins.toy(capacity=1 << 20)
    x = mge.tensor([1.0] * 16, device="toy0")
    x._data.block
    assert mge.get_mem_status_bytes("toy0") == (1 << 20, (1 << 20) - 64)
    assert resolve("toy0").open().allocated == 64
    assert "64 bytes live" in repr(resolve("toy0").open())
    assert mge.get_allocated_memory("toy0") >= 64


def test_devices_are_opened_once_and_reopened_after_closing(plugins: Plugins) -> None:
    toy = plugins.toy()
    first = resolve("toy0").open()
    assert resolve("toyx").open() is first and set(toy.opened) == {0}
    devices.close_all()
    first.close()  # closing twice is closing once
    assert first.closed and resolve("toy1").open().name == "toy1"


def test_what_a_gpu_says_about_itself(plugins: Plugins, monkeypatch: pytest.MonkeyPatch) -> None:
    info = DeviceInfo("toy gpu", features=("float16", "compute_86"))
    monkeypatch.setattr(toy_backend, "DeviceInfo", lambda *_, **__: info)
    plugins.toy("gpu")
    assert mge.is_cuda_available() and mge.get_device_count("gpu") == 2
    assert mge.get_cuda_device_property(0) == info
    assert mge.get_cuda_compute_capability(1) == 86
    info = DeviceInfo("plain")
    registry.rescan()
    with pytest.raises(DeviceError, match="gpu0: its backend reports no compute_"):
        mge.get_cuda_compute_capability(0)
