"""Profiles on the OpenCL device: times of single kernels, from its own clock."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

import treadle as mge
import treadle.functional as F
from treadle.backends.api import SpanEvent, TimingDevice
from treadle.engine.options import Options
from treadle.inspect.profile import Profile


def test_kernels_have_times_rates_and_lines() -> None:
    options = Options(force_fallback=("tanh",))
    w = mge.Parameter(np.full((64, 48), 0.01, "float32"), device="opencl0")

    @mge.jit.compile(options=options)
    def layer(x: mge.Tensor) -> mge.Tensor:
        return F.exp(F.tanh(F.matmul(x, w))) * 2.0

    x = mge.tensor(np.ones((128, 64), "float32"), device="opencl0")
    with mge.fallback("silent"):
        found = layer.profile(x, repeats=2)
    assert isinstance(found, Profile) and found.clock == "events of the device"
    assert found.device == "opencl0"
    product, host, last = found.steps
    assert "matmul" in product.label and product.flops == 2 * 128 * 64 * 48
    assert host.kernel == "host" and "exp" in last.label
    assert product.start < host.start < last.start and all(s.duration > 0 for s in found.steps)
    assert next(k for k in found.kernels if "matmul" in k.label).gflops > 0
    groups = layer.explain(form="json")["groups"]
    assert sum(g["measured"] for g in groups) > 0
    assert any(__file__.rpartition("/")[2] in line for g in groups for line in map(str, g["lines"]))


def test_events_of_the_queue_for_profiles_know_their_work(device: Any, compiler: Any) -> None:
    assert isinstance(device, TimingDevice)
    stream, memory = device.timing_stream(), device.alloc(1 << 16)
    before: Any = stream.record()
    device.fill(memory, 3, 1 << 16, stream)
    after: Any = stream.record()
    stream.synchronize()
    assert isinstance(after, SpanEvent)
    assert after.since(before) > 0
    assert after.span()[0] == after.span()[1]  # no kernel was launched in between
    read = np.empty(4, np.uint8)
    device.copy_out(read.data, memory, stream)
    assert read.tolist() == [3] * 4
    device.free(memory)
    module = importlib.import_module("treadle.backends.opencl.device")
    assert not isinstance(device.stream().record(), module.TimedClEvent)
