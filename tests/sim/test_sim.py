"""The framework on the simulated device: memory it cannot see, work that comes late, failures."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.backends.plugins import Plugins
from tests.backends.test_tier0 import cnn, mlp, train
from tests.sim.backend import Sim, SimSegment, SimWithSegments
from tests.sim.device import Protected, SimDevice, SimEvent

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import jit
from treadle.autodiff import GradManager
from treadle.base.errors import DeviceError, DeviceLost, OutOfMemory
from treadle.optimizer import SGD


@pytest.fixture
def quiet() -> Iterator[None]:
    with mge.fallback("silent"):
        yield


def test_the_host_sees_nothing_of_the_memory(plugins: Plugins) -> None:
    plugins.offer("sim", Sim())
    x = mge.tensor([1.0, 2.0], device="sim0")
    buffer = x._data.buffer
    for look in (np.asarray, memoryview, len, lambda b: b[0]):
        with pytest.raises((Protected, TypeError)):
            look(buffer)
    with pytest.raises(Protected, match="a thread that is not its own"):
        x._data.device.raw.at(buffer, 8)
    assert x.tolist() == [1.0, 2.0]


def test_ops_return_before_the_device_has_run_them(plugins: Plugins) -> None:
    plugins.offer("sim", Sim())
    x = mge.tensor([1.0, 2.0], device="sim0")
    gate = SimEvent()
    x._data.device.stream.wait(gate)  # nothing gets past it
    y = x + x
    z = y * y
    finished = z._data.device.stream.record()
    assert not finished.done() and z.shape == (2,)
    gate.reach()
    assert z.tolist() == [4.0, 16.0] and finished.done()


@pytest.mark.parametrize("build", [mlp, cnn], ids=["mlp", "cnn"])
def test_training_never_touches_it(build: Any, plugins: Plugins, quiet: None) -> None:
    backend = plugins.offer("sim", Sim())
    expected, _ = train("cpux", build)
    got, _ = train("sim0", build)
    np.testing.assert_allclose(got, expected, rtol=1e-4)
    assert backend.opened[0].launches > 20


def test_a_step_ends_when_the_device_is_lost_and_the_rest_goes_on(
    plugins: Plugins, quiet: None
) -> None:
    backend = plugins.offer("sim", Sim())
    net = M.Linear(4, 2).to("sim0")
    kept = {name: np.array(value) for name, value in net.state_dict().items()}
    manager, optimizer = GradManager().attach(net.parameters()), SGD(net.parameters(), lr=0.1)
    x = mge.tensor(np.ones((3, 4)), device="sim0")
    with manager:
        manager.backward((net(x) ** 2).mean())
    backend.opened[0].lose("unplugged")
    with pytest.raises(DeviceLost, match="sim0 was lost: unplugged") as caught:
        optimizer.step()
        net(x).numpy()
    assert "device.reset('sim0')" in str(caught.value)
    assert (mge.tensor([1.0], device="sim1") + 1).tolist() == [2.0], "the other one goes on"
    with pytest.raises(DeviceError):
        net(x)
    mge.device.reset("sim0")
    again = M.Linear(4, 2).to("sim0")
    again.load_state_dict(kept)
    assert again(mge.tensor(np.ones((3, 4)), device="sim0")).shape == (3, 2)


def test_a_small_device_is_full_for_a_while_only(plugins: Plugins, quiet: None) -> None:
    plugins.offer("sim", Sim(device=lambda i: SimDevice(i, capacity=1 << 14)))
    x = mge.tensor(np.ones(1024, np.float32), device="sim0")
    y = x + x
    with pytest.raises(OutOfMemory, match="sim0 cannot allocate 4096 bytes"):
        [y + y for _ in range(4)]
    assert (y + x).tolist() == [3.0] * 1024


def test_copies_between_devices_outlive_their_source(plugins: Plugins) -> None:
    backend = plugins.offer("sim", Sim())
    for turn in range(5):
        x = mge.tensor(np.full(2048, turn, np.float32), device="sim0") + 0.5
        y = x.to("sim1")
        del x
        z = mge.tensor(np.full(2048, -1.0, np.float32), device="sim0") + 0.0
        assert y.tolist() == [turn + 0.5] * 2048 and z.tolist() == [-1.0] * 2048
    assert backend.opened[1].memory()[1] <= backend.opened[1].capacity


# -- segments ----------------------------------------------------------------------------------


def function(x: Any, w: Any) -> Any:
    return F.softmax(F.relu(x @ w) * 2.0 + 1.0, axis=1)


def operands(device: str) -> tuple[mge.Tensor, mge.Tensor]:
    rng = np.random.default_rng(1)
    x, w = (rng.normal(size=shape).astype("float32") for shape in ((4, 6), (6, 5)))
    return mge.tensor(x, device=device), mge.tensor(w, device=device)


def test_compiled_functions_run_in_segments(plugins: Plugins, quiet: None) -> None:
    backend = plugins.offer("sim", SimWithSegments())
    compiled = jit.compile(function)
    for _ in range(3):
        got = compiled(*operands("sim0"))
    np.testing.assert_allclose(got.numpy(), function(*operands("cpu0")).numpy(), rtol=1e-5)
    assert got.device == "sim0" and backend.compiled == 1


def test_a_compiler_that_fails_leaves_the_ops_to_others(plugins: Plugins, quiet: None) -> None:
    class Fails(SimWithSegments):
        def compile_segment(self, graph: Any, /) -> SimSegment:
            self.compiled += 1
            raise RuntimeError("internal compiler error 0x17")

    backend = plugins.offer("sim", Fails())
    got = jit.compile(function)(*operands("sim0"))
    np.testing.assert_allclose(got.numpy(), function(*operands("cpu0")).numpy(), rtol=1e-5)
    assert backend.compiled == 1 and backend.opened[0].launches > 0


def test_a_segment_that_fails_when_it_runs_is_run_op_by_op(plugins: Plugins, quiet: None) -> None:
    class Burns(SimSegment):
        def run(self, payloads: Any, /) -> Any:
            raise RuntimeError("on fire")

    class OnFire(SimWithSegments):
        segment = Burns

    plugins.offer("sim", OnFire())
    got = jit.compile(function)(*operands("sim0"))
    np.testing.assert_allclose(got.numpy(), function(*operands("cpu0")).numpy(), rtol=1e-5)
