"""Kernels, one at a time: each takes its op off the fallback report and changes no result."""

import gc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.backends.plugins import Plugins, fresh_report
from tests.backends.test_tier0 import mlp, on_device_only, train
from tests.backends.toy_backend import elementwise, float32_only, kernel

import treadle as mge
import treadle.functional as F
from treadle.backends.api import Kernel, Support, no, yes
from treadle.base.errors import DeviceError, OutOfMemory, UnsupportedOp
from treadle.engine.devices.names import resolve
from treadle.engine.eager import dispatch
from treadle.ops.elementwise import Add
from treadle.ops.matmul import Matmul


def fallen() -> set[str]:
    return {row.op for row in mge.fallback_report()}


def test_kernels_shrink_the_report_and_keep_the_results(plugins: Plugins) -> None:
    plugins.toy("bare")
    plugins.toy("toy", kernels=elementwise())
    expected, state = train("cpux", mlp)
    reports, launches = [], []
    for device in ("bare0", "toy0"):
        fresh_report()
        with mge.fallback("silent"):
            losses, got = train(device, mlp)
        assert losses == expected
        for name, value in state.items():
            np.testing.assert_array_equal(got[name], value, err_msg=name)
        reports.append({row.op: row.calls for row in mge.fallback_report()})
        launches.append(resolve(device).open().raw.launches)  # type: ignore[attr-defined]
    bare, toy = reports
    assert {"add", "mul", "relu"} <= set(bare) - set(toy)
    assert toy["matmul"] < bare["matmul"]  # those with transposed operands still fall back
    assert launches == [0, launches[1]] and launches[1] > 20


def test_a_kernel_sees_dense_operands_of_one_shape(plugins: Plugins) -> None:
    toy = plugins.toy(kernels=elementwise())  # asserts equal shapes itself
    x = mge.tensor([[1.0], [2.0]], device="toy0")
    with mge.fallback("silent"):
        assert (x + mge.tensor([10.0, 20.0, 30.0], device="toy0")).tolist() == [
            [11.0, 21.0, 31.0],
            [12.0, 22.0, 32.0],
        ]
        assert (2.0 - x).tolist() == [[1.0], [0.0]]
        assert (x.T * x).tolist() == [[1.0, 2.0], [2.0, 4.0]]
    assert toy.opened[0].launches == 3


def test_broadcasting_is_an_op_with_kernels_of_its_own(plugins: Plugins) -> None:
    spread = kernel("broadcast", lambda x, shape: np.broadcast_to(x, shape), dense=False)
    plugins.toy("toy", kernels=[kernel("add", np.add)])
    plugins.toy("wide", kernels=[kernel("add", np.add), spread])
    for device, reported in (("toy0", {"broadcast"}), ("wide0", set())):
        fresh_report()
        a = on_device_only(mge.tensor([[1.0], [2.0]], device=device))
        b = on_device_only(mge.tensor([[1.0, 2.0, 3.0]], device=device))
        with mge.fallback("silent"):
            y = a + b
        assert fallen() == reported
        assert y.tolist() == [[2.0, 3.0, 4.0], [3.0, 4.0, 5.0]]
    with mge.fallback("error"):
        z = on_device_only(mge.tensor([[1.0]], device="wide0")) + b
        assert (on_device_only(z) + 1.0).tolist() == [[3.0, 4.0, 5.0]]
        # A number is spread by the framework, with or without kernels.
        assert (mge.tensor([1.0, 2.0], device="toy0") + 1.0).tolist() == [2.0, 3.0]


def test_no_comes_with_a_reason_that_the_report_shows(plugins: Plugins) -> None:
    plugins.toy(kernels=elementwise())
    ints = mge.tensor([[1, 2], [3, 4]], device="toy0")
    with mge.fallback("silent"):
        (ints + ints).numpy()
        F.matmul(ints.astype("float32"), ints.astype("float32"), transpose_a=True)
        F.exp(ints.astype("float32"))
    reasons = {row.op: row.reason for row in mge.fallback_report()}
    assert reasons["add"] == "dtype: only float32, not int32"
    assert reasons["matmul"] == "attribute: no transposed operands"
    assert reasons["exp"] == "op: toy has no kernel for exp"
    types = (ints.type, ints.type)
    decided = dispatch.decision(Add(), types, resolve("toy0"))
    assert decided.runner == "host"
    assert decided.refusals == (("toy", no("dtype", "only float32, not int32")),)
    floats = mge.tensor([[1.0]], device="toy0").type
    assert dispatch.decision(Matmul(), (floats, floats), resolve("toy0")).runner == "kernel"


def test_refusing_by_shape_holds_for_each_shape(plugins: Plugins) -> None:
    def small(op: Any, types: Sequence[Any]) -> Support:
        return yes() if types[0].nbytes <= 8 else no("size-limit", "at most 8 bytes")

    toy = plugins.toy(kernels=[kernel("add", np.add, supports=small)])
    with mge.fallback("silent"):
        for n in (2, 3, 2, 3, 1):
            x = mge.tensor(np.ones(n), device="toy0")
            assert (x + x).tolist() == [2.0] * n
    assert toy.opened[0].launches == 3
    (row,) = mge.fallback_report()
    assert row.calls == 2 and row.reason == "size-limit: at most 8 bytes"


def test_several_kernels_of_an_op_are_asked_by_priority(plugins: Plugins) -> None:
    ran: list[str] = []

    def named(name: str, **options: Any) -> Kernel:
        def compute(x: Any, y: Any) -> Any:
            ran.append(name)
            return x + y

        return kernel("add", compute, **options)

    def never(op: Any, types: Sequence[Any]) -> Support:
        return no("policy", "never")

    kernels = [named("plain"), named("later"), named("picky", priority=5, supports=never)]
    plugins.toy(kernels=[*kernels, named("better", priority=2)])
    x = mge.tensor([1.0], device="toy0")
    assert (x + x).item() == 2.0 and ran == ["better"]


def test_uploads_happen_when_a_kernel_needs_them_and_are_charged(plugins: Plugins) -> None:
    toy = plugins.toy(kernels=elementwise())
    x = on_device_only(mge.tensor(np.full((4, 8), 2.0), device="toy0"))
    device = toy.opened[0]
    assert device.copies == (1, 0)
    with mge.fallback("silent"):
        y = F.exp(F.log(x))  # down once, up never
        assert device.copies == (1, 1)
        z = y + y  # up once, though used twice
        assert device.copies == (2, 1)
        z = F.relu(z) * z  # all on the device
        assert device.copies == (2, 1)
    rows = {row.op: row for row in mge.fallback_report()}
    assert rows["log"].nbytes == 128 and rows["exp"].nbytes == 128
    assert all(row.calls == 1 and row.seconds > 0 for row in rows.values())
    np.testing.assert_allclose(z.numpy(), np.full((4, 8), 16.0), rtol=1e-6)
    traffic = resolve("toy0").open().traffic
    assert (traffic.bytes_up, traffic.bytes_down) == (256, 256)


def test_zeros_are_filled_on_the_device(plugins: Plugins) -> None:
    toy = plugins.toy(kernels=elementwise())
    mge.set_default_device("toy0")
    z = F.zeros((100,)) + F.zeros((100,))
    assert z.tolist() == [0.0] * 100
    device = toy.opened[0]
    assert (device.fills, device.copies) == (2, (0, 1))
    assert (F.ones((3,)) + F.zeros((3,))).tolist() == [1.0] * 3
    assert (mge.tensor([1.0, 2.0]) + 0.0).tolist() == [1.0, 2.0]
    # Only what is uniform byte by byte is filled: this begins with a zero and goes on.
    assert (F.arange(3) + F.zeros((3,))).tolist() == [0.0, 1.0, 2.0]
    assert mge.fallback_report() == [], "making data is no fallback"


def test_creation_ops_may_have_kernels(plugins: Plugins) -> None:
    def sevens(**attributes: Any) -> Any:
        return np.full(attributes["shape"], 7.0)

    toy = plugins.toy(kernels=[kernel("full", sevens)])
    mge.set_default_device("toy0")
    assert F.full((2,), 1.0).tolist() == [7.0, 7.0] and toy.opened[0].launches == 1


def test_empty_operands(plugins: Plugins) -> None:
    total = kernel("sum", lambda x, axes, keepdims: x.sum(axes, keepdims=keepdims), dense=False)
    toy = plugins.toy(kernels=[*elementwise(), total])
    x = mge.tensor(np.zeros((0, 3)), device="toy0")
    assert (x + x).shape == (0, 3) and toy.opened[0].launches == 0
    assert x.sum(axis=0).tolist() == [0.0] * 3 and toy.opened[0].launches == 1


def test_data_dependent_shapes_never_reach_a_kernel(plugins: Plugins) -> None:
    plugins.toy(kernels=[kernel("nonzero", lambda x: x, supports=lambda op, types: yes())])
    with mge.fallback("silent"):
        x = mge.tensor([0.0, 5.0], device="toy0")
        assert x[x > 0].tolist() == [5.0]
    reasons = {row.op: row.reason for row in mge.fallback_report()}
    assert reasons["nonzero"].startswith("dynamic-shape")


# -- defects of plug-ins -----------------------------------------------------------------------


def broken(kind: type[Exception], message: str) -> Callable[..., Any]:
    def compute(*arrays: Any) -> Any:
        raise kind(message)

    return compute


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, KeyError])
def test_a_kernel_that_fails_is_never_hidden(kind: type[Exception], plugins: Plugins) -> None:
    toy = plugins.toy(kernels=[kernel("add", broken(kind, "odd"))])
    x = mge.tensor([1.0], device="toy0")
    with pytest.raises(DeviceError, match=r"add: the kernel of toy0 failed: \w+: '?odd") as caught:
        x + x
    assert type(caught.value.__cause__) is kind
    text = str(caught.value)
    assert "x float32[1]@toy0:0" in text and "test_kernels.py" in text
    del caught
    gc.collect()
    device = toy.opened[0]
    assert device.frees >= 1 and device.used == 64, "only x is left"
    assert x.tolist() == [1.0], "the program goes on"


def test_supports_that_fails_means_no(plugins: Plugins) -> None:
    def fails(op: Any, types: Sequence[Any]) -> Support:
        raise LookupError("lost")

    plugins.toy(
        kernels=[
            kernel("add", np.add, supports=fails),
            kernel("mul", np.multiply, supports=lambda op, types: True),
        ]
    )
    x = mge.tensor([3.0], device="toy0")
    with mge.fallback("silent"):
        assert (x + x).item() == 6.0 and (x * x).item() == 9.0
    reasons = {row.op: row.reason for row in mge.fallback_report()}
    assert reasons["add"] == "failure: supports() failed: LookupError: lost"
    assert reasons["mul"] == "policy: supports() returned True, neither yes() nor no(...)"


def test_out_of_memory_names_the_op_and_leaves_the_device_usable(plugins: Plugins) -> None:
    toy = plugins.toy(kernels=elementwise(), capacity=3 * 4096)
    x = mge.tensor(np.ones(1024), device="toy0")
    y = x + x
    with pytest.raises(OutOfMemory, match="mul: toy0 cannot allocate 4096 bytes") as caught:
        kept = [y * y for _ in range(3)]
    text = str(caught.value)
    assert "float32[1024]@toy0:0" in text and "0 of 12288 bytes free" in text
    assert "delete tensors" in text and "test_kernels.py" in text
    del caught, y
    z = x + x
    assert z.tolist() == [2.0] * 1024 and "kept" not in locals()
    assert toy.opened[0].used == 2 * 4096


def test_a_kernel_may_run_out_of_workspace(plugins: Plugins) -> None:
    plugins.toy(kernels=[kernel("add", broken(MemoryError, "no workspace"))])
    x = mge.tensor([1.0], device="toy0")
    with pytest.raises(OutOfMemory, match="add: toy0 no workspace"):
        x + x


def test_a_copy_that_fails_names_the_device(plugins: Plugins) -> None:
    toy = plugins.toy(kernels=elementwise())
    x = mge.tensor([1.0], device="toy0")

    def fail(*arguments: Any) -> None:
        raise OSError("bus error")

    device = toy.opened[0]
    device.copy_in = fail  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match="toy0: fail failed: OSError: bus error"):
        x + x
    assert device.allocs == device.frees
    del device.copy_in  # type: ignore[method-assign]
    assert (x + x).item() == 2.0


def test_strict_programs_refuse_to_fall_back(plugins: Plugins) -> None:
    plugins.toy(kernels=elementwise())
    x = mge.tensor([[1.0, 2.0]], device="toy0")
    with mge.fallback("error"):
        assert F.relu(x - x * x).tolist() == [[0.0, 0.0]]
        with pytest.raises(UnsupportedOp, match="exp: toy0:0 cannot run it") as caught:
            F.exp(x)
    assert "op: toy has no kernel for exp" in str(caught.value)
    assert float32_only(None, [x.type]) == yes()
