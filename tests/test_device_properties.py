"""What devices are, and what they run by themselves: the host, OpenCL, a plug-in's."""

from __future__ import annotations

import pytest
from tests.backends.plugins import Plugins, plugins
from tests.backends.toy_backend import elementwise

import treadle as mge
import treadle.functional as F
from treadle.base.errors import DeviceError, UnsupportedOp
from treadle.device import get_device_properties

__all__ = ["plugins"]


def test_the_host_has_cores_and_runs_all_there_is() -> None:
    host = get_device_properties("cpu0")
    assert get_device_properties("multithread2").kind == host.kind == "cpu"
    assert host.device == "cpu0" and host.compiles and host.compute_capability is None
    assert host.threads >= 1 and host.cores >= 1 and host.total_memory > 2**20
    assert {"bool", "int64", "uint16", "uint32", "uint64", "float16"} <= set(host.dtypes)
    assert {"float32", "float64"} <= set(host.dtypes)
    assert set(host.units) <= {"bfloat16", "int8"}
    assert host.supports("conv", "float32") and host.supports("conv")
    asked = host.supports("exp", "int32")
    assert not asked and (asked.reason, asked.message) == ("dtype", "exp does not take int32")
    assert host.supports("convolute").message.startswith("no op is called 'convolute'")
    with pytest.raises(DeviceError):
        get_device_properties("atlas7")


def test_a_plugin_says_what_its_kernels_take_and_what_falls_back(plugins: Plugins) -> None:
    toy = plugins.toy(kernels=elementwise())
    toy.probe()
    found = get_device_properties("toy1")
    assert (found.device, found.kind, found.name) == ("toy1", "toy", "toy 1")
    assert (found.cores, found.threads, found.compiles) == (0, 0, False)
    assert found.dtypes == ("float32",)
    for op, dtype, reason in (
        ("add", "float32", ""),
        ("matmul", None, ""),
        ("add", "int32", "dtype"),
        ("exp", "float32", "op"),
    ):
        answer = found.supports(op, dtype)
        assert bool(answer) == (not reason) and answer.reason == reason, op
    # The answer is what dispatch does.
    x = mge.tensor([1.0, 2.0], device="toy1")
    with mge.fallback("error"):
        x + x
        with pytest.raises(UnsupportedOp):
            F.exp(x)


@pytest.mark.opencl
def test_opencl_tells_its_units() -> None:
    if not mge.device.get_device_count("opencl"):
        pytest.skip("no OpenCL device")
    found = get_device_properties("opencl0")
    assert found.cores >= 1 and found.compiles and found.total_memory > 2**20
    assert "float32" in found.dtypes and found.supports("conv", "float32")
