"""One program over an OpenCL device and the host."""

import os
import subprocess
import sys

import numpy as np

import treadle as mge
from treadle.engine.execute import Scheduler


def test_parts_run_where_their_values_are() -> None:
    @mge.jit.compile
    def there_and_back(x: mge.Tensor) -> tuple[mge.Tensor, mge.Tensor]:
        there = x.to("opencl0") * 2.0
        return there, there.to("cpu0") + 1.0

    x = np.arange(6, dtype=np.float32)
    for _ in range(2):
        there, back = there_and_back(mge.tensor(x, device="cpu0"))
        assert (there.device, back.device) == ("opencl0", "cpu0")
        np.testing.assert_array_equal(there.numpy(), x * 2)
        np.testing.assert_array_equal(back.numpy(), x * 2 + 1)
    assert isinstance(there_and_back.variants[0].inspected.executor, Scheduler)
    assert there_and_back.counters.copies == 2 * 2
    timeline = there_and_back.profile(mge.tensor(x, device="cpu0"), repeats=1)
    assert {span.device for span in timeline.spans} == {"opencl0", "cpu0"}


def test_two_devices_copy_from_one_another_without_the_host() -> None:
    code = (
        "import numpy as np, treadle as mge\n"
        "from treadle.runtime.array import DeviceArray, to_device\n"
        "from treadle.runtime.opened import OpenDevice\n"
        "from treadle.backends.opencl import backend\n"
        "one, two = (OpenDevice(f'opencl{i}', backend.open(i)) for i in (0, 1))\n"
        "x = np.arange(100000, dtype=np.float32)\n"
        "first = DeviceArray(one, x.dtype, x.shape, one.upload(x))\n"
        "second = to_device(first, two)\n"
        "assert second.device is two and not first.on_host and not second.on_host\n"
        "assert two.traffic.peer_copies == 1 and one.traffic.downloads == 0\n"
        "np.testing.assert_array_equal(second.host(), x)\n"
        "lone = backend.open(1)\n"
        "import pyopencl as cl\n"
        "lone.context = cl.Context([lone.device]); lone.queue = cl.CommandQueue(lone.context)\n"
        "lone._stream = type(lone._stream)(lone.queue)\n"
        "third = to_device(first, OpenDevice('opencl1', lone))\n"
        "np.testing.assert_array_equal(third.host(), x)\n"
    )
    environment = {**os.environ, "POCL_DEVICES": "pthread pthread"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
