"""Programs and ops of a renderer: caching, loops, stops, buffers that change from run to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.codegen.spelled import Builder, kernel
from tests.backends.compiling_toy import PartedDevice
from tests.backends.rendered.fake_renderer import FakeRenderer

from treadle.backends.api import Support, SynchronousStream
from treadle.backends.codegen.kernel.ir import Value, pointer, size
from treadle.backends.object_cache import ObjectCache
from treadle.backends.program import Address, Host, Jump, Launch, Program, Run, Together
from treadle.backends.rendered import eager
from treadle.backends.rendered.compiler import RenderedCompiler
from treadle.base import dtype as dt
from treadle.base.errors import CompileError
from treadle.base.types import TensorType
from treadle.ops.elementwise import Add
from treadle.ops.movement import Reshape
from treadle.ops.sort import Sort
from treadle.runtime.array import DeviceArray
from treadle.runtime.opened import OpenDevice

STREAM = SynchronousStream()


def adding(name: str, number: int, limit: int = 0) -> Any:
    """A kernel: x += number, item by item; `less[0] = x[0] < limit` if there is a limit."""
    x, less, count = pointer(dt.int64, "x"), pointer(dt.bool_, "less"), size("count")

    def write(b: Builder, lo: Value, hi: Value) -> None:
        b.loop(lo, hi, 1, lambda i: b.store(x, i, b.add(b.load(x, i), number)))
        if limit:
            b.store(less, 0, b.compare("lt", b.load(x, 0), limit))

    return kernel(name, (x, less, count) if limit else (x, count), write)


ONE, TEN = adding("one", 1), adding("ten", 10)
UNTIL = adding("until", 1, 5)


def compiler(folder: Path, fingerprint: str = "1") -> RenderedCompiler:
    made = RenderedCompiler(FakeRenderer(fingerprint))
    made.library.cache = ObjectCache(folder)
    return made


def device() -> PartedDevice:
    return PartedDevice(0, 1 << 20)


def numbers(on: PartedDevice, *values: int) -> Any:
    buffer = on.alloc(64)
    buffer.bytes.view(np.int64)[: len(values)] = values
    return buffer


def renderer(of: RenderedCompiler) -> FakeRenderer:
    assert isinstance(of.renderer, FakeRenderer)
    return of.renderer


def test_runs_in_order_and_stops_at_the_host(tmp_path: Path) -> None:
    made, on = compiler(tmp_path), device()
    steps = (
        Run(ONE, (Address(0), 7), 3),
        Host(0),
        Together((Run(TEN, (Address(0, 8), 7), 1), Run(ONE, (Address(1), 7), 2))),
    )
    program = made.build(Program(steps, 2))
    x, y = numbers(on, 1, 2, 3), numbers(on, 100, 200)
    assert program.run(on, STREAM, [x, y]) == 1
    assert x.bytes.view(np.int64)[:3].tolist() == [2, 3, 4]
    assert program.run(on, STREAM, [x, y], 2) == -1
    assert x.bytes.view(np.int64)[:3].tolist() == [2, 13, 4]
    assert y.bytes.view(np.int64)[:2].tolist() == [101, 201]
    assert renderer(made).launched == [("one", 3), ("ten", 1), ("one", 2)]


def test_loops_read_their_condition(tmp_path: Path) -> None:
    made, on = compiler(tmp_path), device()
    steps = (Run(UNTIL, (Address(0), Address(1, 3), 0), 1), Jump(3, Address(1, 3)), Jump(0))
    x, flags = numbers(on, 0), numbers(on)
    assert made.build(Program(steps, 2)).run(on, STREAM, [x, flags]) == -1
    assert x.bytes.view(np.int64)[0] == 5


def test_arguments_are_made_anew_only_where_buffers_changed(tmp_path: Path) -> None:
    made, on = compiler(tmp_path), device()
    program = made.build(Program((Run(ONE, (Address(0), 7), 1), Run(TEN, (Address(1), 7), 1)), 2))
    x, y, z = numbers(on, 0), numbers(on, 0), numbers(on, 0)
    for second in (y, y, z):
        program.run(on, STREAM, [x, second])
    given = renderer(made).given
    assert given[0] is given[2] is given[4]
    assert given[1] is given[3] and given[5][0] == (z, 0)
    assert [b.bytes.view(np.int64)[0] for b in (x, y, z)] == [3, 20, 10]


def test_kernels_are_compiled_once_and_found_on_disk(tmp_path: Path) -> None:
    first, on = compiler(tmp_path), device()
    program = first.build(Program((Run(ONE, (Address(0), 7), 1),), 1, (TEN,)))
    first.build(Program((Run(TEN, (Address(0), 7), 1),), 1, (ONE,)))
    assert len(renderer(first).sources) == 1
    again = compiler(tmp_path)
    restored = again.restore(program.stored())
    assert restored is not None and not renderer(again).sources
    x = numbers(on, 4)
    restored.run(on, STREAM, [x])
    assert x.bytes.view(np.int64)[0] == 5


def test_other_code_and_lost_binaries_are_not_restored(tmp_path: Path) -> None:
    stored = compiler(tmp_path).build(Program((Run(ONE, (Address(0), 7), 1),), 1)).stored()
    assert compiler(tmp_path, "2").restore(stored) is None
    for file in tmp_path.glob("*.binary"):
        file.write_bytes(b"cut off")
    broken = compiler(tmp_path)
    assert broken.restore(stored) is None
    broken.build(Program((Run(ONE, (Address(0), 7), 1),), 1))
    assert len(renderer(broken).sources) == 1


def test_what_the_compiler_refuses_is_not_kept(tmp_path: Path) -> None:
    made, bad = compiler(tmp_path), adding("broken", 3)
    for _ in range(2):
        with pytest.raises(CompileError, match="broken"):
            made.build(Program((Run(bad, (Address(0), 7), 1),), 1))
    made.build(Program((Run(ONE, (Address(0), 7), 1),), 1))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Run(ONE, (Address(1), 7), 1), "base 1"),
        (Jump(3), "jumps to 3"),
        (Jump(0, Address(2)), "base 2"),
    ],
)
def test_programs_that_do_not_fit_are_refused(step: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=message):
        compiler(tmp_path).build(Program((step,), 1))


def test_runs_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    program = compiler(tmp_path).build(Program((Run(ONE, (Address(0), 7), 1),), 1))
    for bases, start in (([], 0), ([None], 2), ([None], -1)):
        with pytest.raises(CompileError, match="do not fit"):
            program.run(device(), STREAM, bases, start)


def test_a_kernel_can_be_looked_at(tmp_path: Path) -> None:
    made = compiler(tmp_path)
    assert made.inspect(Launch(ONE, ()), "kernel").startswith("one_")
    assert "no assembly" in made.inspect(Launch(ONE, ()), "assembly")


# -- single ops --------------------------------------------------------------------------------


def put(on: OpenDevice, *arrays: Any) -> list[DeviceArray]:
    return [DeviceArray(on, a.dtype, a.shape, host=a) for a in arrays]


def test_ops_run_on_generated_kernels(tmp_path: Path) -> None:
    made, on = compiler(tmp_path), OpenDevice("fake0", device())
    x, y = np.arange(12, dtype=np.float32).reshape(3, 4), np.float32([1, 2, 3, 4])
    types = [TensorType(dt.float32, a.shape) for a in (x, y)]
    launch = eager.prepare(made, Add(), types)
    assert not isinstance(launch, Support)
    np.testing.assert_array_equal(launch(*put(on, x, y)).host(), x + y)
    with pytest.raises(ValueError, match="prepared for"):
        launch(*put(on, y, y))


def test_views_are_copies_and_several_results_a_tuple(tmp_path: Path) -> None:
    made, on = compiler(tmp_path), OpenDevice("fake0", device())
    x = np.float32([[3, 1, 2], [9, 8, 7]])
    (given,) = put(on, x)
    flat = eager.prepare(made, Reshape((6,)), [TensorType(dt.float32, x.shape)])
    assert not isinstance(flat, Support)
    np.testing.assert_array_equal(flat(given).host(), x.reshape(6))
    sort = eager.prepare(made, Sort(1, False), [TensorType(dt.float32, x.shape)])
    assert not isinstance(sort, Support)
    values, places = sort(given)
    np.testing.assert_array_equal(values.host(), np.sort(x, 1))
    np.testing.assert_array_equal(places.host(), [[1, 2, 0], [2, 1, 0]])


def test_memory_is_given_back(tmp_path: Path) -> None:
    raw = device()
    made, on = compiler(tmp_path), OpenDevice("fake0", raw)
    launch = eager.prepare(made, Add(), [TensorType(dt.float32, (4,))] * 2)
    assert not isinstance(launch, Support)
    x = np.float32([1, 2, 3, 4])
    for _ in range(3):
        assert launch(*put(on, x, x)).host()[3] == 8
    assert raw.used == 0
