"""A device with memory and nothing else: every program runs there, with the host's results."""

import gc
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.plugins import Plugins, logged
from tests.backends.toy_backend import Toy, ToyDevice, ToyWithPeers, kernel

import treadle as mge
import treadle.functional as F
import treadle.module as M
import treadle.optimizer as optim
from treadle import random as R
from treadle.autodiff import GradManager
from treadle.backends.api import Availability
from treadle.base.errors import DeviceError, OutOfMemory
from treadle.engine.devices import names as devices

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((8, 1, 8, 8)).astype(np.float32)
LABELS = RNG.integers(0, 4, 8).astype(np.int32)


@pytest.fixture
def toy(plugins: Plugins) -> Iterator[Toy]:
    made = plugins.toy()
    with mge.fallback("silent"):
        yield made


class Flat(M.Module):
    def forward(self, x: mge.Tensor) -> mge.Tensor:
        return F.flatten(x, 1)


def mlp() -> M.Module:
    return M.Sequential(Flat(), M.Linear(64, 16), M.ReLU(), M.Linear(16, 4))


def cnn() -> M.Module:
    return M.Sequential(
        M.Conv2d(1, 4, 3, padding=1),
        M.BatchNorm2d(4),
        M.ReLU(),
        M.MaxPool2d(2),
        Flat(),
        M.Dropout(0.2),
        M.Linear(64, 4),
    )


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: optim.Adam(p, lr=0.01),
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.05),
    "adadelta": lambda p: optim.Adadelta(p, lr=1.0),
}


def train(
    device: str, build: Callable[[], M.Module], optimizer: str = "sgd", steps: int = 3
) -> tuple[list[float], dict[str, Any]]:
    """Losses, and the state afterwards, of a few steps with everything on one device."""
    before = mge.get_default_device()
    mge.set_default_device(device)
    try:
        R.seed(7)
        net = build()
        net.train()
        manager = GradManager().attach(net.parameters())
        opt = OPTIMIZERS[optimizer](net.parameters())
        images, labels = mge.tensor(IMAGES), mge.tensor(LABELS)
        losses = []
        for _ in range(steps):
            with manager:
                loss = F.loss.cross_entropy(net(images), labels)
                manager.backward(loss)
            opt.step().clear_grad()
            assert loss.device == device
            losses.append(loss.item())
        return losses, {k: np.array(v) for k, v in net.state_dict().items()}
    finally:
        mge.set_default_device(before)


def assert_same_training(build: Callable[[], M.Module], optimizer: str = "sgd") -> None:
    losses, state = train("cpux", build, optimizer)
    on_toy, toy_state = train("toy0", build, optimizer)
    assert on_toy == losses and losses[-1] != losses[0]
    assert state.keys() == toy_state.keys()
    for name, value in state.items():
        np.testing.assert_array_equal(toy_state[name], value, err_msg=name)


@pytest.mark.parametrize("build", [mlp, cnn], ids=["mlp", "cnn"])
def test_training_equals_the_hosts(build: Callable[[], M.Module], toy: Toy) -> None:
    assert_same_training(build)


@pytest.mark.parametrize("optimizer", sorted(set(OPTIMIZERS) - {"sgd"}))
def test_every_optimizer_equals_the_hosts(optimizer: str, toy: Toy) -> None:
    assert_same_training(mlp, optimizer)


def test_host_only_ops_never_bounce(toy: Toy) -> None:
    """Dual residency: with no kernels at all, no byte ever needs to be on the device."""
    train("toy0", cnn)
    device = toy.opened[0]
    assert device.copies == (0, 0) and device.allocs == 0


def test_one_download_serves_a_run_of_host_ops(toy: Toy) -> None:
    x = mge.tensor(np.arange(6.0).reshape(2, 3), device="toy0")
    device = toy.opened[0]
    alone = on_device_only(x)
    assert device.copies == (1, 0)
    y = F.exp(alone).sum(axis=0) + F.relu(alone)[0]
    assert device.copies == (1, 1)
    np.testing.assert_allclose(y.numpy(), np.exp(x.numpy()).sum(0) + x.numpy()[0], rtol=1e-6)
    assert device.copies == (1, 1)


def on_device_only(x: mge.Tensor) -> mge.Tensor:
    """The same value without its host copy."""
    x._data.block
    made = mge.tensor(x)
    held = x._data
    made._data = type(held)(held.device, held.dtype, held.shape, block=held.block)
    held._block = None  # one owner per block
    return made


# -- places ------------------------------------------------------------------------------------


def test_tensors_of_several_devices_in_one_program(toy: Toy) -> None:
    a, b = mge.tensor([1.0, 2.0], device="toy0"), mge.tensor([3.0, 4.0], device="cpu0")
    c = mge.tensor([5.0, 6.0], device="toy1")
    with pytest.raises(DeviceError, match="add: operands are on different") as caught:
        a + b
    text = str(caught.value)
    assert "toy0:0 and cpu0:0" in text and "x.to('toy0:0')" in text and "test_tier0.py" in text
    with pytest.raises(DeviceError, match="toy0:0 and toy1:0"):
        F.minimum(a, c)
    assert (a + b.to("toy0") + c.to("toy0")).tolist() == [9.0, 12.0]


def test_gradients_flow_between_devices(toy: Toy) -> None:
    w = mge.tensor([1.0, 2.0, 3.0], device="cpu0")
    v = mge.tensor([1.0, 1.0, 1.0], device="toy1")
    manager = GradManager().attach([w, v])
    with manager:
        y = (w.to("toy0") * 2.0 * v.to("toy0")).sum()
        manager.backward(y)
    assert y.device == "toy0"
    assert w.grad.device == "cpu0" and w.grad.tolist() == [2.0, 2.0, 2.0]
    assert v.grad.device == "toy1" and v.grad.tolist() == [2.0, 4.0, 6.0]


def test_moving_to_the_same_place_copies_nothing(toy: Toy) -> None:
    x = on_device_only(mge.tensor([1.0], device="toy0"))
    before = toy.opened[0].copies
    assert x.to("toy0")._data is x._data and toy.opened[0].copies == before


def test_devices_of_one_kind_go_by_the_host_unless_they_reach_each_other(plugins: Plugins) -> None:
    near, far = plugins.toy("near", device=ToyWithPeers), plugins.toy("far")
    for backend, fetched in ((near, 1), (far, 0)):
        x = on_device_only(mge.tensor([1.0, 2.0], device=f"{backend.name}0"))
        y = x.to(f"{backend.name}1")
        y._data.block
        assert y.tolist() == [1.0, 2.0]
        source, target = backend.opened[0], backend.opened[1]
        assert getattr(target, "fetched", 0) == fetched
        assert (source.outs, target.ins) == ((0, 0) if fetched else (1, 1))


def test_xpux_is_the_plug_in_that_asks_for_it(plugins: Plugins, capfd: Any) -> None:
    plugins.toy("slow", priority=1)
    plugins.toy("fast", priority=5)
    plugins.toy("gone", priority=9, count=0)
    mge.set_default_device("xpux")
    assert mge.device.what_is_xpu() == "fast"
    noticed, devices._NOTICED[0] = devices._NOTICED[0], False
    try:
        x = mge.tensor([1.0])
        said = devices._NOTICED[0]
    finally:
        devices._NOTICED[0] = noticed
    assert repr(x.device) == 'CompNode("fast0:0" from "xpux:0")' and not said
    assert "CUDA" not in capfd.readouterr().err
    with mge.fallback("silent"):
        assert (x + mge.tensor([1.0], device="fast0")).device == "xpux"
    assert mge.get_device_count("xpu") == 2


class Forgetful(ToyDevice):
    """A device whose memory keeps nothing."""

    def copy_in(self, dst: Any, src: memoryview, stream: Any, /) -> None:
        pass


class Shut(Toy):
    """A backend that finds devices and cannot open them."""

    def open(self, index: int, /) -> ToyDevice:
        raise OSError("the driver is too old")


def test_xpux_is_a_working_gpu_and_a_script_runs_on_it(plugins: Plugins) -> None:
    plugins.offer("broken", Shut("broken", priority=99))
    plugins.toy("forgetful", priority=98, device=Forgetful)
    gpu = Toy("vendor", priority=10, kernels=[kernel("add", np.add)])
    gpu.device_kinds = ("gpu",)
    plugins.offer("vendor", gpu)
    mge.set_default_device("xpux")
    with logged() as lines:
        x = mge.tensor([1.0, 2.0])
    assert repr(x.device) == 'CompNode("gpu0:0" from "xpux:0")'
    assert [line.split(":")[0] for line in lines] == [
        "broken0 is not used for xpux",
        "forgetful0 is not used for xpux",
    ]
    assert "the driver is too old" in lines[0] and "does not return the bytes" in lines[1]
    net = mge.module.Linear(2, 2)
    manager = GradManager().attach(net.parameters())
    optimizer = mge.optimizer.SGD(net.parameters(), lr=0.1)
    with mge.fallback("silent"), manager:
        manager.backward(net(x).sum())
        optimizer.step()
    assert {t.device.kind for p in net.parameters() for t in (p, p.grad)} == {"gpu"}
    assert gpu.opened[0].launches > 0


def test_a_gpu_that_lies_idle_is_told_of_once(plugins: Plugins) -> None:
    idle = Toy("idle")
    idle._found = Availability(False, "its libraries are not installed", 1, 10)
    plugins.offer("idle", idle)
    mge.set_default_device("xpux")
    noticed, devices._NOTICED[0] = devices._NOTICED[0], False
    try:
        with logged() as lines:
            mge.tensor([1.0])
            mge.tensor([2.0])
    finally:
        devices._NOTICED[0] = noticed
    (line,) = lines
    assert "a GPU is present and not used (its libraries are not installed)" in line


# -- what programs do with tensors -------------------------------------------------------------


def test_creation_and_random_numbers(toy: Toy) -> None:
    for make in (
        lambda: F.zeros((2, 3)),
        lambda: F.ones((2, 3)),
        lambda: F.arange(5),
        lambda: F.eye(3),
        lambda: F.full((2,), 7.0),
        lambda: R.uniform(size=(3, 5)),
        lambda: R.normal(1.0, 2.0, size=(4,)),
        lambda: R.permutation(6),
    ):
        made = []
        for device in ("cpux", "toy0"):
            mge.set_default_device(device)
            R.seed(3)
            made.append(make())
        assert made[1].device == "toy0"
        np.testing.assert_array_equal(made[0].numpy(), made[1].numpy())


def test_indexing(toy: Toy) -> None:
    host = mge.tensor(np.arange(24).reshape(2, 3, 4), device="cpu0")
    there = host.to("toy0")
    mask = host.numpy() % 5 == 0
    for index in (0, (slice(None), 1), (..., -1), ([0, 1], [2, 0]), mask, (None, slice(0, 1))):
        assert there[index].tolist() == host[index].tolist()
        a, b = mge.tensor(host), mge.tensor(there)
        a[index], b[index] = 9, 9
        assert b.device == "toy0" and b.tolist() == a.tolist()
    there[0] = mge.tensor([[1] * 4] * 3, device="toy0")
    there += 1
    assert there[0, 0].tolist() == [2, 2, 2, 2] and there.device == "toy0"


def test_results_whose_shape_depends_on_data(toy: Toy) -> None:
    x = mge.tensor([3.0, -1.0, 2.0], device="toy0")
    assert x[x > 0].tolist() == [3.0, 2.0]


def test_saving_and_loading(toy: Toy, tmp_path: Path) -> None:
    net = M.Linear(3, 2).to("toy0")
    mge.save({"net": net.state_dict(), "one": mge.tensor([1.5], device="toy1")}, tmp_path / "x.mge")
    back = mge.load(tmp_path / "x.mge")
    assert back["one"].device == "toy1" and back["one"].tolist() == [1.5]
    other = M.Linear(3, 2).to("toy0")
    other.load_state_dict(back["net"])
    np.testing.assert_array_equal(other.weight.numpy(), net.weight.numpy())
    assert other.weight.device == "toy0"
    moved = mge.load(tmp_path / "x.mge", map_location="cpu0")
    assert moved["one"].device == "cpu0"
    again = pickle.loads(pickle.dumps(mge.tensor([2.0], device="toy0")))
    assert again.device == "toy0" and again.tolist() == [2.0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "int64", "bool"])
def test_every_dtype_survives_the_journey(dtype: str, toy: Toy) -> None:
    x = mge.tensor([[0, 1], [1, 0]], dtype=dtype, device="toy0")
    back = on_device_only(x)
    assert back.dtype == x.dtype and back.tolist() == [[0, 1], [1, 0]]
    empty = on_device_only(mge.tensor(np.zeros((0, 3)), dtype=dtype, device="toy0"))
    assert empty.shape == (0, 3) and empty.tolist() == []


# -- memory ------------------------------------------------------------------------------------


def test_running_out_of_memory_is_an_error_one_recovers_from(plugins: Plugins) -> None:
    toy = plugins.toy(capacity=1000)
    big = mge.tensor(np.ones(1000), device="toy0")
    with pytest.raises(OutOfMemory, match="toy0: cannot allocate 4000 bytes") as caught:
        big._data.block
    assert "1000 of 1000 bytes free" in str(caught.value) and "hint:" in str(caught.value)
    assert isinstance(caught.value, MemoryError)
    small = mge.tensor([1.0, 2.0], device="toy0")
    assert on_device_only(small).tolist() == [1.0, 2.0]
    assert big.numpy().sum() == 1000 and toy.opened[0].allocs == 1


def test_garbage_in_cycles_is_collected_before_giving_up(plugins: Plugins) -> None:
    toy = plugins.toy(capacity=128)

    class Node:
        def __init__(self) -> None:
            self.me = self
            self.tensor = mge.tensor(np.ones(20), device="toy0")
            self.tensor._data.block

    gc.disable()
    try:
        Node()
        assert toy.opened[0].used == 128
        mge.tensor(np.ones(20), device="toy0")._data.block
    finally:
        gc.enable()
    assert toy.opened[0].allocs == 2 and toy.opened[0].frees >= 1


def test_the_peak_of_a_device_is_that_of_its_blocks(toy: Toy) -> None:
    x = mge.tensor(IMAGES, device="toy0")
    x._data.block
    mge.device.reset_max_memory_stats("toy0")
    before = mge.get_allocated_memory("toy0")
    assert before >= x.size * 4
    y = mge.tensor(np.ones(50_000, "float32"), device="toy0")
    y._data.block
    del y
    gc.collect()
    assert mge.get_allocated_memory("toy0") == before
    assert mge.get_max_allocated_memory("toy0") == before + 200_000  # nobody asked in between
    assert mge.device.get_max_reserved_memory("toy0") >= before + 200_000
    mge.device.reset_max_memory_stats("toy0")
    assert mge.get_max_allocated_memory("toy0") == before


def test_nothing_leaks(toy: Toy) -> None:
    mge.tensor(1.0, device="toy0") * 2 + 1  # literals are kept
    before = mge.get_allocated_memory("toy0")
    for _ in range(3):
        x = mge.tensor(IMAGES, device="toy0")
        y = x * 2 + 1
        for tensor in (x, y):
            tensor._data.block
        assert mge.get_allocated_memory("toy0") >= before + 2 * x.size * 4
    device = toy.opened[0]
    assert device.allocs == 6
    del x, y, tensor
    gc.collect()
    assert device.frees == device.allocs and mge.get_allocated_memory("toy0") == before
    left = mge.tensor([1.0], device="toy0")
    left._data.block
    devices.close_all()
    assert device.closed and device.frees == device.allocs
