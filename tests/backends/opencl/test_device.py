"""The OpenCL device itself: memory, pieces of it, order of work, failures, forks."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.backends.api import PartDevice
from treadle.base.errors import CompileError, DeviceError, DeviceLost, OutOfMemory


def view(array: np.ndarray) -> memoryview:
    return array.view(np.uint8).data


def read(device: Any, memory: Any, nbytes: int) -> np.ndarray:
    found = np.empty(nbytes, np.uint8)
    device.copy_out(view(found), memory, device.stream())
    return found


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 1000), (64, 8), (3, 5), (8, 8), (4, 128)])
def test_pieces_are_copied_and_the_rest_stays(device: Any, offset: int, nbytes: int) -> None:
    stream, memory = device.stream(), device.alloc(1100)
    assert isinstance(device, PartDevice)
    device.fill(memory, 7, 1100, stream)
    data = np.arange(nbytes).astype(np.uint8)
    device.copy_in(device.part(memory, offset, nbytes), view(data), stream)
    data_before, data[:] = data.copy(), 0  # nobody may still read it
    found = read(device, memory, 1100)
    expected = np.full(1100, 7, np.uint8)
    expected[offset : offset + nbytes] = data_before
    np.testing.assert_array_equal(found, expected)
    device.free(memory)


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 64), (5, 7), (4, 12), (64, 1)])
def test_fills(device: Any, offset: int, nbytes: int) -> None:
    stream, memory = device.stream(), device.alloc(128)
    device.fill(memory, 1, 128, stream)
    device.fill(device.part(memory, offset, nbytes), 200, nbytes, stream)
    found = read(device, memory, 128)
    assert (found == 200).sum() == nbytes and (found[offset : offset + nbytes] == 200).all()
    device.free(memory)


def test_freed_memory_is_used_again(device: Any) -> None:
    first = device.alloc(5000)
    free = device.memory()[1]
    device.free(first)
    assert device.memory()[1] > free
    assert device.alloc(5001) is first
    device.free(first)


def test_too_much_memory_is_refused(device: Any) -> None:
    total, _ = device.memory()
    kept = device.alloc(1 << 20)
    with pytest.raises(OutOfMemory):
        device.alloc(2 * total)
    device.fill(kept, 3, 1 << 20, device.stream())
    assert read(device, kept, 4).tolist() == [3] * 4
    device.free(kept)


def test_events_follow_the_work_before_them(device: Any) -> None:
    stream, memory = device.stream(), device.alloc(1 << 22)
    for value in range(20):
        device.fill(memory, value, 1 << 22, stream)
    event = stream.record()
    stream.wait(event)
    event.wait()
    assert event.done()
    stream.synchronize()
    assert read(device, memory, 1)[0] == 19
    device.free(memory)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_calls_return_while_the_device_waits(compiled: bool) -> None:
    import pyopencl as cl

    def products(x: mge.Tensor) -> mge.Tensor:
        return F.matmul(F.matmul(x, x), x) + x

    function = mge.jit.compile(products) if compiled else products
    x = mge.tensor(np.full((8, 8), 0.5, np.float32), device="opencl0")
    expected = function(x).numpy()  # Kernels are there.
    opened = x._data.device
    queue = opened.raw.queue_of(opened.stream)
    gate, results = cl.UserEvent(queue.context), []
    caller = threading.Thread(target=lambda: results.append(function(x)))
    try:
        cl.enqueue_barrier(queue, wait_for=[gate])  # Nothing gets past it.
        caller.start()
        caller.join(120)
        finished = opened.stream.record()
        # The call is back, and the device has not begun.
        assert not caller.is_alive() and not finished.done()
    finally:
        gate.set_status(cl.command_execution_status.COMPLETE)
    np.testing.assert_array_equal(results[0].numpy(), expected)
    assert finished.done()


def test_errors_of_opencl_are_the_frameworks() -> None:
    import pyopencl as cl

    module = importlib.import_module("treadle.backends.opencl.device")
    assert isinstance(
        module.own_error(cl.MemoryError("MEM_OBJECT_ALLOCATION_FAILURE")), OutOfMemory
    )
    assert isinstance(module.own_error(cl.RuntimeError("DEVICE_NOT_AVAILABLE")), DeviceLost)
    other = cl.LogicError("INVALID_KERNEL_ARGS")
    assert module.own_error(other) is other


def test_sources_that_do_not_compile_say_why(compiler: Any) -> None:
    with pytest.raises(CompileError, match="undeclared"):
        compiler.renderer.compile("kernel void broken(global float *x) { x[0] = nothing; }")


def test_binaries_that_the_driver_does_not_take_say_what_to_do(compiler: Any, device: Any) -> None:
    with pytest.raises(CompileError, match=r"remove .*opencl"):
        compiler.renderer.load(device, b"{}\nnothing that a driver made", ["some"])


def test_without_the_library_probing_says_so(backend: Any, monkeypatch: Any) -> None:
    real = importlib.util.find_spec
    hidden = lambda name, *rest: None if name == "pyopencl" else real(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    found = backend.probe()
    assert not found.ok and "treadle[opencl]" in found.reason


def test_without_a_platform_probing_says_so(backend: Any, monkeypatch: Any) -> None:
    import pyopencl as cl

    platforms = importlib.import_module("treadle.backends.opencl.platforms")

    def none() -> Any:
        raise cl.LogicError("PLATFORM_NOT_FOUND_KHR")

    monkeypatch.setattr(cl, "get_platforms", none)
    monkeypatch.setattr(platforms, "devices", platforms.devices.__wrapped__)
    found = backend.probe()
    assert not found.ok and "no OpenCL platform" in found.reason


def test_nobody_loads_it_who_does_not_ask() -> None:
    code = (
        "import sys, treadle as t\n"
        "x = t.tensor([1.0, 2.0]); (x + 1).numpy(); str(t.device.get_default_device())\n"
        "assert 'pyopencl' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_is_refused(device: Any) -> None:
    device.free(device.alloc(64))
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of just this
        child = os.fork()
    if not child:
        try:
            device.alloc(64)
            answer = b"memory"
        except DeviceError as error:
            answer = str(error).encode()
        os.write(writer, answer)
        os._exit(0)
    os.waitpid(child, 0)
    assert b"spawn" in os.read(reader, 4096)
    os.close(reader)
    os.close(writer)


def test_tensors_live_there() -> None:
    x = mge.tensor(np.float32([[1, 2], [3, 4]]), device="opencl0")
    y = x.to("cpu0")
    assert str(x.device) == "opencl0:0" and str(y.device) == "cpu0:0"
    np.testing.assert_array_equal(y.numpy(), [[1, 2], [3, 4]])
