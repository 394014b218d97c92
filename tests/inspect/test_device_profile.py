"""Profiles of programs on devices: whose clock it is, what each step took, what the trace says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.compiling_toy import CompilingToy, PartedDevice, ToyExecutable
from tests.backends.plugins import Plugins, plugins
from tests.backends.toy_backend import ToyBuffer
from tests.inspect.test_profile import check_trace

import treadle as mge
import treadle.functional as F
from treadle.backends.api import Event, Stream, SynchronousStream
from treadle.base.errors import DeviceError, EngineError
from treadle.engine.execute import Timeline
from treadle.engine.options import Options
from treadle.inspect.profile import Profile

__all__ = ["plugins"]
X = np.linspace(-2, 2, 8, dtype=np.float32)


class Tick:
    """An event of a device whose clock moves a microsecond with every event."""

    def __init__(self, at: int) -> None:
        self.at = at

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        return None

    def since(self, start: Event, /) -> float:
        assert isinstance(start, Tick)
        return (self.at - start.at) * 1e-6


class Spanning(Tick):
    """One that also knows its work, which took half of the time."""

    def span(self) -> tuple[int, int]:
        return self.at * 1000 - 500, self.at * 1000


class Ticking(SynchronousStream):
    """A queue of such events."""

    def __init__(self, kind: type[Tick]) -> None:
        self.kind, self.events = kind, 0

    def record(self) -> Event:
        self.events += 1
        return self.kind(self.events)


class TimingDevice(PartedDevice):
    """A toy device with a queue that knows times."""

    kind: type[Tick] = Tick

    def __init__(self, index: int, capacity: int) -> None:
        super().__init__(index, capacity)
        self.queues: list[Ticking] = []
        self.written_in: list[Stream] = []

    def timing_stream(self) -> Stream:
        self.queues.append(Ticking(self.kind))
        return self.queues[-1]

    def copy_in(self, dst: ToyBuffer, src: memoryview, stream: Stream, /) -> None:
        self.written_in.append(stream)
        super().copy_in(dst, src, stream)


class SpanningDevice(TimingDevice):
    """One whose events know their work."""

    kind = Spanning


def chain(x: mge.Tensor) -> mge.Tensor:
    return F.relu(F.exp(x * 2.0)) + 1.0


def profiled(plugins: Plugins, **options: Any) -> tuple[Profile, CompilingToy]:
    """A profile of a program that returns to the host for its relu."""
    toy = plugins.offer("toy", CompilingToy(**options))
    run = mge.jit.compile(options=Options(force_fallback=("relu",)))(chain)
    with mge.fallback("silent"):
        found = run.profile(mge.tensor(X, device="toy0"), repeats=3)
        wanted = np.maximum(np.exp(X * 2), 0) + 1
        np.testing.assert_allclose(run(mge.tensor(X, device="toy0")).numpy(), wanted, rtol=1e-6)
    assert isinstance(found, Profile)
    return found, toy


def test_without_a_clock_of_its_own_the_hosts_waits_for_every_step(plugins: Plugins) -> None:
    found, _ = profiled(plugins)
    assert "the host's clock" in found.clock and "toy0" in found.title
    assert [s.kernel == "host" for s in found.steps].count(True) == 1
    assert all(s.duration > 0 and s.turns == 1 for s in found.steps)
    ends = [s.start + s.duration for s in found.steps]
    assert all(a <= b.start + 1e-9 for a, b in zip(ends, found.steps[1:], strict=False))
    assert found.title in str(found) and found.clock in str(found)


@pytest.mark.parametrize("device", [TimingDevice, SpanningDevice])
def test_events_of_the_device_tell_the_time(device: Any, plugins: Plugins, tmp_path: Path) -> None:
    found, toy = profiled(plugins, device=device)
    opened = toy.opened[0]
    assert found.clock == "events of the device"
    each = 5e-7 if device is SpanningDevice else 1e-6
    kernels = [s for s in found.steps if s.kernel != "host"]
    assert len(kernels) >= 2
    assert [s.duration for s in kernels] == pytest.approx([each] * len(kernels))
    (host,) = [s for s in found.steps if s.kernel == "host"]
    before = found.steps[found.steps.index(host) - 1]
    assert host.start == pytest.approx(before.start + before.duration) and host.duration > 0
    # Everything of the profile, copies included, was in its queue, and nothing afterwards.
    (queue,) = opened.queues
    assert queue in opened.written_in and opened.written_in[-1] is not queue
    found.save(tmp_path / "trace.json")
    events = check_trace(json.loads((tmp_path / "trace.json").read_text()))
    assert {e["cat"] for e in events} == {"kernel", "host", "compile"}


def test_loops_count_their_turns(plugins: Plugins) -> None:
    plugins.offer("toy", CompilingToy(device=SpanningDevice))

    @mge.jit.compile
    def doubled(x: mge.Tensor) -> mge.Tensor:
        return mge.jit.while_loop(lambda y: y.sum() < 100.0, lambda y: y * 2.0, (x,))[0]

    found = doubled.profile(mge.tensor(np.float32([1, 2]), device="toy0"), repeats=1)
    assert max(s.turns for s in found.steps) >= 6
    assert sum(k.calls for k in found.kernels) == sum(s.turns for s in found.steps)


def test_programs_that_cannot_be_watched_have_a_timeline(plugins: Plugins) -> None:
    toy = plugins.offer("toy", CompilingToy())
    toy.code.executable = ToyExecutable
    run, x = mge.jit.compile(chain), mge.tensor(X, device="toy0")
    assert isinstance(run.profile(x), Timeline)
    executor: Any = run.variants[0].inspected.executor
    with pytest.raises(EngineError, match="cannot be watched"):
        executor.profile([x._data])


def test_a_launch_that_fails_in_a_profile_names_the_device(plugins: Plugins) -> None:
    toy = plugins.offer("toy", CompilingToy(device=TimingDevice))
    run, x = mge.jit.compile(chain), mge.tensor(X, device="toy0")
    run(x)
    opened = toy.opened[0]

    class Broken(ToyExecutable):
        def run_watched(self, *_: Any) -> int:
            raise RuntimeError("the wire came off")

    executor: Any = run.variants[0].inspected.executor
    executor.loaded.main = Broken(executor.loaded.main.program, toy.code)
    with pytest.raises(DeviceError, match="the wire came off"):
        run.profile(x)
    executor.loaded.main = ToyExecutable(executor.loaded.main.program, toy.code)
    assert run(x).numpy().shape == X.shape
    assert opened.written_in[-1] is not opened.queues[-1]
