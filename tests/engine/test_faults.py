"""What users see where a device, its backend or a kernel goes wrong: one message, state intact."""

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.faulty_backend import LateDevice, late, late_backend
from tests.backends.plugins import Plugins, logged
from tests.backends.test_tier0 import on_device_only
from tests.backends.toy_backend import ToyDevice, elementwise, kernel

import treadle as mge
import treadle.functional as F
from treadle.backends import registry
from treadle.backends.api import Availability, Backend, Kernel, Support, no
from treadle.base.errors import (
    CompileError,
    DeviceError,
    DeviceLost,
    EngineError,
    LoadError,
    OutOfMemory,
    UnsupportedOp,
)
from treadle.engine.devices.names import resolve


def device_of(backend: Any) -> LateDevice:
    found: LateDevice = backend.opened[0]
    return found


# -- late failures, and synchronous mode -------------------------------------------------------


def test_a_failure_that_comes_late_names_the_ops_in_question(plugins: Plugins) -> None:
    plugins.offer("late", late_backend(late("mul", np.multiply, RuntimeError("a bad launch"))))
    x = mge.tensor([1.0, 2.0], device="late0")
    y = x * x + x  # nothing has failed yet
    with pytest.raises(DeviceError, match="late0: copy_out failed: RuntimeError: a bad") as caught:
        y.numpy()
    assert "launched before, not waited for: mul, add" in str(caught.value)
    assert "TREADLE_SYNC=1 has the op at fault raise it" in str(caught.value)


def test_synchronous_mode_has_the_op_at_fault_raise_it(plugins: Plugins) -> None:
    plugins.offer("late", late_backend(late("mul", np.multiply, RuntimeError("a bad launch"))))
    x = mge.tensor([1.0, 2.0], device="late0")
    with mge.device.synchronous():
        z = x + x
        assert device_of(registry.load("late")).queue.waiting == []
        with pytest.raises(DeviceError, match=r"mul: late0: synchronize failed: Runtime") as caught:
            z * z
    text = str(caught.value)
    assert "x float32[2]@late0:0" in text and "test_faults.py" in text
    assert z.tolist() == [2.0, 4.0], "what was computed before is intact"
    x + x
    assert device_of(registry.load("late")).queue.waiting, "outside of the block nobody waits"


def test_waiting_is_a_function_of_the_device(plugins: Plugins) -> None:
    backend = plugins.offer("late", late_backend())
    x = mge.tensor([1.0, 2.0], device="late0")
    y = x + x
    assert device_of(backend).queue.waiting
    mge.device.synchronize("late0")
    assert not device_of(backend).queue.waiting and y.tolist() == [2.0, 4.0]
    mge.device.synchronize("cpux")
    assert resolve("late0").open().traffic.waited > 0


# -- a device that is lost ---------------------------------------------------------------------


def test_a_lost_device_is_asked_nothing_more_and_can_be_opened_anew(plugins: Plugins) -> None:
    gone = DeviceLost("late", "the driver was reset")
    backend = plugins.offer("late", late_backend())
    x = mge.tensor([1.0, 2.0], device="late0")  # has a copy on the host
    y = on_device_only(x + x)
    device = device_of(backend)
    device.fail["alloc"] = gone
    with pytest.raises(DeviceLost, match=r"add: .*late0 was lost: the driver was reset") as caught:
        F.add(y, y)
    assert "test_faults.py" in str(caught.value) and "device.reset('late0')" in str(caught.value)
    device.fail.clear()
    launches, frees = device.launches, device.frees
    for use in (lambda: y.numpy(), lambda: F.add(x, x), lambda: y + 1):
        with pytest.raises(DeviceLost, match="the device was lost: the driver was reset"):
            use()
    del use
    assert x.tolist() == [1.0, 2.0], "copies on the host stay"
    assert str(mge.report("late0")).startswith("late0:0 (late0:0), toy 0: lost: the driver")
    y = x  # nothing is freed on a device that is gone
    assert (device.launches, device.frees) == (launches, frees)
    mge.device.reset("late0")
    z = mge.tensor([1.0, 2.0], device="late0")
    assert (z + z).tolist() == [2.0, 4.0] and backend.opened[0] is not device
    assert "open" in str(mge.report("late0"))


def test_a_device_lost_in_a_kernel_is_noted_as_well(plugins: Plugins) -> None:
    def run(*arguments: Any) -> None:
        raise DeviceLost("card", "it fell off the bus")

    plugins.offer("late", late_backend(Kernel("mul", run)))
    x = mge.tensor([1.0, 2.0], device="late0")
    with pytest.raises(DeviceLost, match="mul: late0 was lost: it fell off the bus"):
        F.mul(x, x)
    assert resolve("late0").open().lost == "it fell off the bus"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_devices_do_not_follow_into_a_forked_process(plugins: Plugins) -> None:
    toy = plugins.toy(kernels=elementwise())
    x = on_device_only(mge.tensor([1.0, 2.0], device="toy0"))
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the pool's threads sleep
        child = os.fork()
    if child == 0:
        told = "nothing was raised"
        try:
            (x + x).numpy()
        except DeviceLost as error:
            mge.device.reset("toy0")
            y = mge.tensor([1.0], device="toy0")
            told = f"{error.problem}; then {(y + y).tolist()}"
        finally:
            os.write(write, told.encode())
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    assert "it was opened before this process was forked; start processes with 'spawn'" in told
    assert told.endswith("then [2.0]")
    assert (x + x).tolist() == [2.0, 4.0] and not toy.opened[0].closed


# -- memory ------------------------------------------------------------------------------------


def test_running_out_of_memory_in_a_step_leaves_parameters_as_they_were(plugins: Plugins) -> None:
    plugins.toy(kernels=elementwise(), capacity=1 << 16)
    w = mge.Parameter(np.ones((32, 32), "float32"), device="toy0")
    gm = mge.autodiff.GradManager().attach([w])
    opt = mge.optimizer.SGD([w], lr=0.1)
    with mge.fallback("silent"), pytest.raises(OutOfMemory, match="toy0 cannot allocate"), gm:
        many = [w * float(i + 1) for i in range(20)]
        gm.backward(sum(many[1:], many[0]).sum())
        opt.step()
    many = []
    assert w.tolist() == [[1.0] * 32] * 32
    with mge.fallback("silent"), gm:
        gm.backward((w * 2.0).sum())
        opt.step()
    np.testing.assert_allclose(w.numpy(), 0.8, rtol=1e-6)


@pytest.mark.parametrize("method", ["alloc", "copy_in", "copy_out", "free"])
def test_a_call_that_fails_names_the_device_and_spoils_nothing(
    method: str, plugins: Plugins
) -> None:
    backend = plugins.offer("late", late_backend())
    x = mge.tensor([1.0, 2.0], device="late0")
    y = x + x
    device = device_of(backend)
    device.fail[method] = OSError("bus error")
    if method == "free":
        with logged() as lines:
            del y
        assert lines == ["late0 failed to free 8 bytes"]
    else:
        with pytest.raises(DeviceError, match=f"late0: {method} failed: OSError: bus error"):
            (y if method == "copy_out" else mge.tensor([3.0, 4.0], device="late0") + y).numpy()
    device.fail.clear()
    assert (x + x).tolist() == [2.0, 4.0]


def test_a_stream_that_cannot_be_made_names_the_device(plugins: Plugins) -> None:
    class Streamless(ToyDevice):
        def stream(self) -> Any:
            raise OSError("no queue left")

    plugins.toy(device=Streamless)
    with pytest.raises(DeviceError, match="toy0: stream failed: OSError: no queue left"):
        mge.tensor([1.0], device="toy0")


def test_a_device_that_does_not_know_its_memory_runs_out_of_it_all_the_same(
    plugins: Plugins,
) -> None:
    class Silent(ToyDevice):
        def memory(self) -> tuple[int, int]:
            raise OSError("not implemented")

    plugins.toy(kernels=elementwise(), device=Silent, capacity=64)
    x = mge.tensor([1.0, 2.0], device="toy0")
    with pytest.raises(OutOfMemory, match="add: toy0 cannot allocate 8 bytes"):
        x + x


def test_a_lost_device_does_not_keep_others_from_being_waited_for(plugins: Plugins) -> None:
    plugins.offer("late", late_backend())
    other = plugins.offer("other", late_backend(name="other"))
    x = mge.tensor([1.0], device="late0")
    resolve("late0").open().lost = "it fell off the bus"
    y = mge.tensor([1.0], device="other0")
    with mge.fallback("silent", max_share=1.0):
        z = y + y
    assert device_of(other).queue.waiting == []
    z + z
    mge._full_sync()
    assert device_of(other).queue.waiting == [] and x.tolist() == [1.0]


# -- run again on the host ---------------------------------------------------------------------


def broken(*arrays: Any) -> Any:
    raise RuntimeError("no such instruction")


def test_a_device_that_failed_is_not_asked_twice(plugins: Plugins) -> None:
    toy = plugins.toy(kernels=elementwise())
    x = mge.tensor([1.0, 2.0], device="toy0")
    x + x  # known to the operators' own tables from now on
    toy.opened[0].capacity = 0
    launches = toy.opened[0].launches
    with pytest.raises(OutOfMemory, match="add: toy0 cannot allocate"):
        x + x
    toy.opened[0].capacity = 1 << 20
    assert toy.opened[0].launches == launches and (x + x).tolist() == [2.0, 4.0]


def test_failures_are_run_again_on_the_host_only_if_asked(
    plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins.toy(kernels=[kernel("add", broken)])
    x = on_device_only(mge.tensor([1.0, 2.0], device="toy0"))
    with pytest.raises(DeviceError, match="no such instruction"):
        x + x
    with logged() as lines, mge.fallback("warn", retry=True):
        assert (x + x).tolist() == [2.0, 4.0]
        with mge.fallback("silent"):
            assert (x + x).tolist() == [2.0, 4.0], "blocks inside keep it"
    (row,) = mge.fallback_report()
    assert row.failed and row.calls == 2 and "no such instruction" in row.reason
    assert "failure: the kernel of toy0 failed" in lines[0]
    monkeypatch.setenv("TREADLE_RETRY", "1")
    with mge.fallback("silent"):
        assert (x + x).tolist() == [2.0, 4.0]
    with mge.fallback("silent", retry=False), pytest.raises(DeviceError):
        x + x


# -- kernels and engines that lie --------------------------------------------------------------


def test_a_kernel_that_returns_its_result_is_told_where_to_write_it(plugins: Plugins) -> None:
    def run(device: Any, outs: Any, ins: Any, attributes: Any, stream: Any, /) -> Any:
        return np.zeros(2)

    plugins.toy(kernels=[Kernel("add", run)])
    x = mge.tensor([1.0, 2.0], device="toy0")
    with pytest.raises(DeviceError, match=r"add: .*results are written into `outs`"):
        x + x


class Liar(Backend):
    """An engine whose results are not what the op gives."""

    protocol = (1, 0)
    priority = 9

    def __init__(self, make: Callable[..., Any], serves: str = "cpu") -> None:
        self.name = "liar"
        self.serves = (serves,)
        self._make = make

    def probe(self) -> Availability:
        return Availability(True)

    def prepare(self, op: Any, types: Sequence[Any], /) -> Callable[..., Any] | Support:
        return self._make if op.name == "exp" else no("op", "only exp")


@pytest.mark.parametrize(
    ("make", "seen"),
    [
        (lambda x: np.exp(x).astype("float64"), "float64[2] instead of float32[2]"),
        (lambda x: np.exp(x)[:1], "float32[1] instead of float32[2]"),
        (lambda x: (np.exp(x), x), "float32[2], float32[2] instead of float32[2]"),
    ],
)
def test_an_engine_that_returns_something_else_is_caught(
    make: Callable[..., Any], seen: str, plugins: Plugins
) -> None:
    plugins.offer("liar", Liar(make))
    x = mge.tensor([1.0, 2.0], device="cpu0")
    with pytest.raises(EngineError, match="exp: the engine liar returned other types") as caught:
        F.exp(x)
    assert seen in str(caught.value) and "TREADLE_KERNEL=exp=host" in str(caught.value)
    with mge.force(exp="host"):
        assert F.exp(x - x).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            CompileError("exp", "line 3: no such type"),
            "device-feature: it cannot be compiled: line",
        ),
        (KeyError("exp"), "failure: prepare() failed: KeyError: 'exp'"),
        (NotImplementedError("later"), "op: prepare() refuses: later"),
    ],
)
def test_code_that_cannot_be_compiled_leaves_the_op_to_the_host_by_policy(
    error: Exception, reason: str, plugins: Plugins
) -> None:
    def prepare(op: Any, types: Sequence[Any], /) -> Any:
        raise error

    plugins.toy()
    engine = plugins.offer("liar", Liar(lambda x: x, "toy"))
    engine.prepare = prepare
    x = mge.tensor([0.0], device="toy0")
    with mge.fallback("silent"):
        assert F.exp(x).item() == 1.0
    (row,) = mge.fallback_report()
    assert row.reason.startswith(reason)
    with mge.fallback("error"), pytest.raises(UnsupportedOp, match="cannot run it"):
        F.exp(x)


# -- loading -----------------------------------------------------------------------------------


def test_a_missing_library_says_what_to_install(plugins: Plugins) -> None:
    plugins.write("needy", "import no_such_library\n")
    row = plugins.row("needy")
    assert row["state"] == "failed" and "No module named 'no_such_library'" in row["detail"]
    assert "pip install --force-reinstall treadle-needy" in row["detail"]
    with pytest.raises(DeviceError, match="the backend needy failed: No module named"):
        mge.tensor([1.0], device="needy0")
    entry = registry.BackendEntry("ours", "treadle", lambda: __import__("no_such_library"))
    registry.entries()["ours"] = entry
    row = plugins.row("ours")
    assert row["state"] == "not installed" and "pip install 'treadle[ours]'" in row["detail"]
    with pytest.raises(DeviceError, match="the backend ours is missing") as caught:
        mge.tensor([1.0], device="ours0")
    assert "treadle[ours]" in str(caught.value)
    with pytest.raises(LoadError, match="could not be loaded: No module named"):
        registry.load("ours")


def test_protocols_of_other_versions(plugins: Plugins) -> None:
    old, new = late_backend(name="old"), late_backend(name="new")
    old.protocol, new.protocol = (0, 9), (1, 99)
    plugins.offer("old", old)
    plugins.offer("new", new)
    assert "speaks protocol 0, this Treadle speaks 1" in plugins.row("old")["detail"]
    row = plugins.row("new")
    assert row["state"] == "loaded" and row["protocol"] == "1.99"
    assert "was written for protocol 1.99" in row["detail"] and "upgrade" in row["detail"]
    x = mge.tensor([1.0], device="new0")
    assert (x + x).item() == 2.0


def test_a_failing_op_leaves_a_script_where_one_is_asked_for(
    plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins.toy(kernels=[kernel("add", broken)])
    monkeypatch.setenv("TREADLE_REPLAY", str(tmp_path))
    x = mge.tensor([1.0, 2.0], device="toy0")
    with pytest.raises(DeviceError) as caught:
        F.add(x, x)
    assert any("add_0.py runs it again" in note for note in caught.value.__notes__)
    assert {p.name for p in tmp_path.iterdir()} >= {"add_0.py", "add_0.npz"}
