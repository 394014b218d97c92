"""Compiled programs over several devices: cut by device, copied once, run at the same time."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.compiling_toy import CompilingToy, PartedDevice
from tests.backends.plugins import Plugins
from tests.backends.toy_backend import Toy, ToyWithPeers, elementwise, kernel

import treadle as mge
import treadle.functional as F
import treadle.module as M
import treadle.optimizer as optim
from treadle import random as R
from treadle.autodiff import GradManager
from treadle.base.errors import DeviceError, UnsupportedOp
from treadle.engine.execute import Scheduler


@pytest.fixture(autouse=True)
def silently() -> Iterator[None]:
    with mge.fallback("silent"):
        yield


def on(device: str, *values: Any) -> mge.Tensor:
    return mge.tensor(np.array(values, np.float32), device=device)


class Pipeline(M.Module):
    """Two stages on two devices, the loss on the host."""

    def __init__(self, devices: tuple[str, str, str]) -> None:
        super().__init__()
        self.devices = devices
        self.first = M.Linear(6, 8).to(devices[0])
        self.second = M.Linear(8, 3).to(devices[1])

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        hidden = F.relu(self.first(x.to(self.devices[0])))
        return self.second(hidden.to(self.devices[1])).to(self.devices[2])


def train(devices: tuple[str, str, str], compiled: bool) -> tuple[list[float], Any, Any]:
    """Losses of a few steps of a pipeline, its parameters afterwards, the step."""
    R.seed(3)
    net = Pipeline(devices)
    manager = GradManager().attach(net.parameters())
    opt = optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    rng = np.random.default_rng(0)
    x = mge.tensor(rng.standard_normal((16, 6)).astype(np.float32), device="cpu0")
    y = mge.tensor(rng.integers(0, 3, 16).astype(np.int32), device="cpu0")

    def step(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        with manager:
            loss = F.loss.cross_entropy(net(x), y)
            manager.backward(loss)
        opt.step().clear_grad()
        return loss

    run: Any = mge.jit.compile(step) if compiled else step
    losses = [run(x, y).item() for _ in range(4)]
    return losses, {k: np.array(v) for k, v in net.state_dict().items()}, run


@pytest.mark.parametrize("compiler", [False, True], ids=["op by op", "compiled"])
def test_a_pipeline_over_two_devices_and_the_host_trains_as_one(
    compiler: bool, plugins: Plugins
) -> None:
    plugins.offer("toy", CompilingToy() if compiler else Toy(kernels=elementwise()))
    losses, state, _ = train(("cpu0", "cpu0", "cpu0"), compiled=False)
    assert losses[-1] < losses[0]
    for compiled in (False, True):
        found, made, run = train(("toy0", "toy1", "cpu0"), compiled)
        np.testing.assert_allclose(found, losses, rtol=1e-5)
        for name, value in state.items():
            np.testing.assert_allclose(made[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    (variant,) = run.variants
    assert isinstance(variant.inspected.executor, Scheduler)
    # Input, logits and their gradient are copied once, hidden and its gradient down and up.
    assert run.counters.copies == 7 * 4
    wanted = {("toy", 0), ("toy", 1), ("cpu", 0)}
    assert {p.home.memory for p in variant.inspected.parts} == wanted


def test_a_value_is_copied_once_per_device(plugins: Plugins) -> None:
    toy = plugins.offer("toy", CompilingToy())

    @mge.jit.compile
    def fan(x: mge.Tensor) -> Any:
        y = x * 2.0
        first, second = y.to("toy1"), y.to("toy1")
        return first + 1.0, second * 3.0, (y.to("cpu0") - 1.0), y

    x = on("toy0", 1, 2)
    results = fan(x)
    assert [r.numpy().tolist() for r in results] == [[3, 5], [6, 12], [1, 3], [2, 4]]
    assert [str(r.device) for r in results] == ["toy1:0", "toy1:0", "cpu0:0", "toy0:0"]
    before = fan.counters
    downs, ups = toy.opened[0].outs, toy.opened[1].ins
    fan(x)
    once = fan.counters - before
    # It comes down once, for the host and on its way to toy1.
    assert toy.opened[0].outs - downs == 1 and toy.opened[1].ins - ups == 1
    assert (once.copies, once.copied) == (2, 16)
    assert "2 copies of 16 bytes" in str(once)


def test_devices_that_reach_each_other_need_no_host(plugins: Plugins) -> None:
    class Peer(ToyWithPeers, PartedDevice):
        """A device with both."""

    toy = plugins.offer("toy", CompilingToy(device=Peer))
    double = mge.jit.compile(lambda x: (x * 2.0).to("toy1") + 1.0)
    x = on("toy0", 1, 2)
    double(x)
    downs, fetched = toy.opened[0].outs, toy.opened[1].fetched
    result = double(x)
    assert toy.opened[0].outs == downs and toy.opened[1].fetched == fetched + 1
    assert result.numpy().tolist() == [3, 5]


def test_independent_parts_overlap_in_time(plugins: Plugins, tmp_path: Path) -> None:
    """Both kernels wait until the other one runs, too."""
    meeting = threading.Barrier(2)

    def meet(x: Any) -> Any:
        meeting.wait(timeout=300)
        return np.exp(x)

    plugins.offer("toy", Toy(kernels=[kernel("exp", meet), *elementwise()]))
    both = mge.jit.compile(lambda x, y: F.exp(x).to("cpu0") + F.exp(y).to("cpu0"))
    x, y = on("toy0", 0, 1), on("toy1", 1, 0)
    np.testing.assert_allclose(both(x, y).numpy(), np.exp([0, 1]) + np.exp([1, 0]), rtol=1e-6)
    timeline = both.profile(x, y, repeats=1, path=tmp_path / "trace.json")
    parts = {s.device: s for s in timeline.spans if s.kind == "part"}
    assert set(parts) == {"toy0", "toy1", "cpu0"}
    assert max(parts["toy0"].start, parts["toy1"].start) < min(parts["toy0"].end, parts["toy1"].end)
    assert timeline.overlap > 0 and "on several devices at once" in str(timeline)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    rows = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert rows == {"toy0", "toy1", "cpu0"}
    assert {e["cat"] for e in events if e["ph"] == "X"} == {"part", "copy"}


def test_what_others_wait_for_runs_first(plugins: Plugins) -> None:
    plugins.offer("toy", CompilingToy())

    def work(x: mge.Tensor, y: mge.Tensor) -> Any:
        slow = F.exp(x) * 2.0  # nobody waits for it
        return slow, (x + 1.0).to("toy1") * y

    both = mge.jit.compile(work)
    x, y = on("toy0", 0), on("toy1", 5)
    assert [r.item() for r in both(x, y)] == [2, 5]
    parts = both.variants[0].inspected.parts
    ops = [[n.op.name for n in p.captured.nodes if n.op.name != "constant"] for p in parts]
    assert ops == [["add"], ["exp", "mul"], ["mul"]]
    text = both.explain()
    assert "takes 2 values" in text and "program work.2" in text


@pytest.mark.parametrize("compiled", [False, True])
def test_mixed_operands_name_both_devices_and_the_fix(compiled: bool, plugins: Plugins) -> None:
    plugins.offer("toy", CompilingToy())

    def add(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        return x * 2.0 + y

    run = mge.jit.compile(add) if compiled else add
    with pytest.raises(DeviceError, match=r"(?s)add: .*toy0:0 and toy1:0.*x\.to\('toy0:0'\)"):
        run(on("toy0", 1), on("toy1", 1))
    assert run(on("toy0", 1), on("toy0", 1)).item() == 3


def test_a_failure_on_one_device_changes_no_handle(plugins: Plugins) -> None:
    toy = plugins.offer("toy", CompilingToy())
    w = on("toy0", 1)

    @mge.jit.compile
    def step(x: mge.Tensor) -> mge.Tensor:
        w._reset(w + 1.0)
        return (w * 2.0).to("toy1") + x

    x = on("toy1", 1)
    assert step(x).item() == 5
    toy.code.fails_at = toy.code.launches + 2  # the second device's
    with pytest.raises(DeviceError, match="the wire came off"):
        step(x)
    assert w.item() == 2
    toy.code.fails_at = None
    assert step(x).item() == 7 and w.item() == 3


def test_policies_of_the_caller_hold_on_the_workers(plugins: Plugins) -> None:
    plugins.offer("toy", Toy())
    away = mge.jit.compile(lambda x: (x + 1.0).to("toy1") * 2.0)
    assert away(on("toy0", 1)).item() == 4
    with mge.fallback("error"), pytest.raises(UnsupportedOp, match="no kernel for add"):
        away(on("toy0", 1))


def test_a_manager_outside_and_threads(plugins: Plugins) -> None:
    plugins.offer("toy", CompilingToy())
    away = mge.jit.compile(lambda x: (x * x).to("toy1") * 3.0)
    x = on("toy0", 2)
    with GradManager().attach([x]) as manager:
        manager.backward(away(x))
    assert x.grad.device == "toy0" and x.grad.item() == 12
    found: dict[int, list[float]] = {}

    def work(k: int) -> None:
        found[k] = [away(on("toy0", k + i)).item() for i in range(10)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == {k: [3.0 * (k + i) ** 2 for i in range(10)] for k in range(3)}
