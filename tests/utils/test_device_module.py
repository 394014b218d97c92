"""Functions for one kind of devices: there for every backend, with what the backend adds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.backends.plugins import Plugins, plugins
from tests.backends.toy_backend import Toy, elementwise
from tests.sim.backend import Sim
from tests.sim.device import SimDevice, SimEvent, SimStream

import treadle as mge
import treadle.module as M
from treadle.base.errors import DeviceError

__all__ = ["plugins"]


class Extended(Toy):
    """A backend with a function of its own."""

    extras = {"performance_mode": lambda level: f"level {level}"}


def test_every_backend_with_devices_has_its_functions(plugins: Plugins) -> None:
    plugins.toy("toy", kernels=elementwise())
    toy = mge.get_device_module("toy")
    assert mge.toy is toy
    assert (toy.is_available(), toy.device_count(), toy.current_device()) == (True, 2, "toy0")
    x = mge.tensor(np.ones((8, 4), np.float32), device="toy1")
    y = x + x
    toy.synchronize("toy1")
    assert toy.memory_allocated("toy1") == x.numpy().nbytes + y.numpy().nbytes
    assert toy.max_memory_allocated("toy1") >= toy.memory_allocated("toy1")
    toy.reset_max_memory_allocated("toy1")
    assert toy.mem_info("toy1") == (1 << 26, (1 << 26) - 2 * 128)
    assert toy.info().name == "toy 0"
    assert {row["op"] for row in toy.ops()} == {"add", "sub", "mul", "relu", "matmul"}
    mge.set_default_device("toy1")
    assert toy.current_device() == "toy1"
    assert M.Linear(4, 2).to(toy.current_device()).weight.device == "toy1"
    assert repr(toy) == "<functions for toy devices>"


def test_random_numbers_are_the_same_on_every_device(plugins: Plugins) -> None:
    plugins.toy("toy")
    toy, cpu = mge.toy, mge.get_device_module("cpu")
    toy.seed(5)
    state = toy.get_rng_state()
    first = mge.random.normal(size=(4,)).numpy()
    cpu.set_rng_state(state)
    np.testing.assert_array_equal(mge.random.normal(size=(4,)).numpy(), first)
    with mge.fallback("silent"):
        here, there = (m.generator(3).uniform(size=(4,)) for m in (cpu, toy))
    assert there.device == "toy0"
    np.testing.assert_array_equal(here.numpy(), there.numpy())


def test_a_backend_adds_functions(plugins: Plugins) -> None:
    plugins.offer("extended", Extended("extended"))
    assert mge.extended.performance_mode(2) == "level 2"
    assert "performance_mode" in dir(mge.extended)
    with pytest.raises(AttributeError, match="no function 'clock'; its backend adds perf"):
        _ = mge.extended.clock


def test_names_without_devices(plugins: Plugins) -> None:
    plugins.write("broken", "raise OSError('no driver')")
    with pytest.raises(DeviceError, match="no backend has devices called 'nothing'"):
        mge.get_device_module("nothing")
    with pytest.raises(AttributeError, match=r"(?s)no attribute 'broken'.*no driver"):
        _ = mge.broken
    with pytest.raises(AttributeError, match="no attribute 'reference'"):
        _ = mge.reference
    with pytest.raises(DeviceError, match="cpu0 is not a device of kind toy"):
        plugins.toy("toy")
        mge.toy.synchronize("cpu0")


# -- streams and events ------------------------------------------------------------------------


def test_events_of_a_device_that_works_at_once(plugins: Plugins) -> None:
    plugins.toy("toy", kernels=elementwise())
    stream = mge.toy.current_stream()
    assert stream == mge.toy.stream()  # it has one queue
    x = mge.tensor(np.ones(4, np.float32), device="toy0")
    start = stream.record()
    y = x + x
    end = stream.record()
    assert start.query() and end.query()
    assert start.elapsed(end) > 0
    stream.wait(end)
    stream.synchronize()
    assert y.tolist() == [2.0] * 4
    with pytest.raises(DeviceError, match="was not recorded"):
        mge.toy.Event().query()


class TimedSimEvent(SimEvent):
    """An event that notes when it was reached."""

    at = 0.0

    def reach(self) -> None:
        self.at = time.perf_counter()
        super().reach()

    def since(self, start: Any, /) -> float:
        return self.at - start.at


class TimedStream(SimStream):
    """A stream that counts what it is given."""

    given = 0

    def submit(self, work: Callable[[], None]) -> None:
        self.given += 1
        super().submit(work)

    def record(self) -> TimedSimEvent:
        event = TimedSimEvent()
        self.submit(event.reach)
        return event


class SeveralQueues(SimDevice):
    """A device that works late, on as many queues as one asks for."""

    def stream(self) -> TimedStream:
        return self.add(TimedStream(self))

    new_stream = stream


def test_work_goes_to_the_current_stream_and_stays_in_order(plugins: Plugins) -> None:
    plugins.offer("sim", Sim(device=lambda index: SeveralQueues(index, delay=2e-3)))
    first, side = mge.sim.current_stream(), mge.sim.stream()
    assert side != first and side == side and len({first, side, mge.sim.current_stream()}) == 2
    x = mge.tensor(np.ones(16, np.float32), device="sim0")
    start = first.record()
    for _ in range(20):  # memory is freed and taken again on both sides of every switch
        before = side._queue.given
        with side:
            assert mge.sim.current_stream() == side
            x = x + x
        assert side._queue.given > before
        x = x - mge.tensor(np.full(16, 1.0, np.float32), device="sim0")
    assert mge.sim.current_stream() == first
    end = first.record()
    assert x.tolist() == [1.0] * 16
    assert start.elapsed(end) > 0
    end.wait()
    assert end.query()


def test_a_stream_waits_for_an_event_of_another(plugins: Plugins) -> None:
    plugins.offer("sim", Sim(device=SeveralQueues))
    first, side = mge.sim.current_stream(), mge.sim.stream()
    gate = threading.Event()
    first._queue.submit(gate.wait)
    point = first.record()
    side.wait(point)
    behind = side.record()
    assert not point.query() and not behind.query()
    gate.set()
    side.synchronize()
    assert point.query() and behind.query()


def test_a_device_that_is_lost_inside_of_the_block_says_so(plugins: Plugins) -> None:
    sim = plugins.offer("sim", Sim(device=SeveralQueues))
    side = mge.sim.stream()
    with pytest.raises(DeviceError, match=r"sim0 was lost: unplugged"), side:
        sim.opened[0].lose()
        mge.sim.synchronize()
    mge.device.reset("sim0")
    with pytest.raises(DeviceError, match="sim0"), side:
        pass  # a stream of the device as it was
    x = mge.tensor(np.ones(4, np.float32), device="sim0")
    with mge.sim.stream():
        assert (x + x).tolist() == [2.0] * 4


def test_events_that_do_not_know_their_time_say_so(plugins: Plugins) -> None:
    plugins.offer("sim", Sim())
    stream = mge.sim.current_stream()
    start = stream.record()
    with pytest.raises(DeviceError, match=r"sim0.*do not say when they happen"):
        start.elapsed(stream.record())
