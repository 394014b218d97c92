"""Programs on the native executor: arguments, jumps, host steps, repetition, profile."""

import re
import signal
import threading
import time

import numpy as np
import pytest
from tests.backends.cpu.hand_written import addresses, executable

from treadle.backends.cpu import backend
from treadle.backends.cpu.executable import NativeExecutable, restored
from treadle.backends.program import Address, Host, Jump, Lowered, Program, Ref, Run
from treadle.base import dtype as dt
from treadle.base.errors import CompileError
from treadle.base.types import TensorType
from treadle.ops.elementwise import Add
from treadle.ops.unary import Exp

N = 37


def affine(factor: int, offset: int = 0, base: int = 0, serial: bool = False) -> Run:
    return Run("hand_affine", (Address(base, offset), factor), N, serial)


def test_a_program_without_steps_ends_at_once() -> None:
    assert executable([], 0).run(np.zeros(0, np.int64)) == -1


@pytest.mark.parametrize("serial", [False, True])
def test_launches_get_addresses_and_numbers(serial: bool) -> None:
    x = np.ones(N + 2, np.int64)
    program = executable([affine(3, 16, serial=serial), affine(-5, 16, serial=serial)], 1)
    assert program.run(addresses(x)) == -1
    steps = np.arange(N)
    np.testing.assert_array_equal(x[2:], (3 + steps) * -5 + steps)
    np.testing.assert_array_equal(x[:2], 1)


def test_equal_programs_run_on_other_bases() -> None:
    x, y = np.ones(N, np.int64), np.full(N, 2, np.int64)
    program = executable([affine(10)], 1)
    program.run(addresses(x))
    program.run(addresses(y))
    np.testing.assert_array_equal(y - x, 10)


def test_host_steps_hand_over_and_the_program_resumes_after_them() -> None:
    x = np.zeros(N, np.int64)
    program = executable([affine(1), Host(7), affine(1), Host(8)], 1)
    bases = addresses(x)
    assert program.run(bases) == 1
    np.testing.assert_array_equal(x, np.arange(N))
    assert program.run(bases, 2) == 3
    assert program.run(bases, 4) == -1
    np.testing.assert_array_equal(x, 2 * np.arange(N))


def test_jumps_skip_and_loop() -> None:
    counter, flag = np.zeros(1, np.int64), np.zeros(1, np.bool_)
    count = Run("hand_set", (Address(0), Address(1), 5), 1, True)
    loop = [Jump(3), count, count, count, Jump(3, Address(1))]
    assert executable(loop, 2).run(addresses(counter, flag)) == -1
    assert counter[0] == 5
    assert flag[0]


def test_repeat_replaces_the_first_bases_of_every_turn() -> None:
    rows = np.zeros((6, N), np.int64)
    total = np.zeros(N, np.int64)
    program = executable([affine(1), affine(2, base=1)], 2)
    varying = np.array([[row.ctypes.data] for row in rows], np.int64)
    bases = addresses(rows[0], total)
    before = bases.copy()
    assert program.repeat(bases, varying) == (6, -1)
    np.testing.assert_array_equal(rows, np.broadcast_to(np.arange(N), (6, N)))
    np.testing.assert_array_equal(total, np.arange(N) * (2**6 - 1))
    np.testing.assert_array_equal(bases, before)


def test_repeat_equals_single_runs_bit_for_bit() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20, 8 * N)).astype(np.float32)
    steps = [Run("hand_sum", (Address(0), Address(1)), N)]
    once, often = np.zeros((2, 20, N), np.float32)
    program = executable(steps, 2)
    for row, out in zip(x, once, strict=True):
        program.run(addresses(row, out))
    varying = np.stack([addresses(*pair) for pair in zip(x, often, strict=True)])
    program.repeat(np.zeros(2, np.int64), varying)
    assert once.tobytes() == often.tobytes()


def test_an_interrupt_ends_a_repetition_between_turns() -> None:
    counter, flag = np.zeros(1, np.int64), np.zeros(1, np.bool_)
    steps = [
        Run("hand_spin", (200_000,), 1, True),
        Run("hand_set", (Address(0), Address(1), 5), 1, True),
    ]
    program = executable(steps, 2)
    turns = 1_000_000
    progress = np.zeros(1, np.int64)
    timer = threading.Timer(0.05, signal.raise_signal, (signal.SIGINT,))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            program.repeat(addresses(counter, flag), np.zeros((turns, 0), np.int64), progress)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    assert 0 < progress[0] < turns
    assert counter[0] == progress[0]


def test_other_threads_run_meanwhile() -> None:
    program = executable([Run("hand_spin", (100_000,), 200, True)], 0)
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(program.run(np.zeros(0, np.int64))))
    thread.start()
    turns = 0
    while thread.is_alive():
        turns += 1
    assert seen == [-1]
    assert turns > 10


def test_a_profile_has_the_time_of_every_launch() -> None:
    x = np.zeros(N, np.int64)
    spin = Run("hand_spin", (50_000,), 1)
    program = executable([affine(1), spin, Jump(4), affine(1), affine(1, serial=True)], 1)
    times = np.zeros((5, 4), np.int64)
    before = time.monotonic_ns()
    assert program.profile(addresses(x), times) == -1
    np.testing.assert_array_equal(times[[2, 3]], 0)
    starts, ends, busy, turns = times[[0, 1, 4]].T
    assert before <= starts[0] and ends[-1] <= time.monotonic_ns()
    np.testing.assert_array_equal(busy, ends - starts)
    np.testing.assert_array_equal(turns, 1)
    assert (ends >= starts).all()
    assert (starts[1:] >= ends[:-1]).all()
    assert ends[1] - starts[1] > 10_000
    np.testing.assert_array_equal(x, 2 * np.arange(N))


def test_a_profile_adds_turns_up_and_stops_at_host_steps() -> None:
    x = np.zeros(N, np.int64)
    program = executable([affine(1), Host(0), affine(1)], 1)
    times = np.zeros((3, 4), np.int64)
    assert program.profile(addresses(x), times) == 1
    assert program.profile(addresses(x), times) == 1
    assert program.profile(addresses(x), times, 2) == -1
    np.testing.assert_array_equal(times[:, 3], [2, 0, 1])
    assert times[0, 2] > times[0, 1] - times[0, 0]


def test_a_program_is_stored_and_made_again_without_its_kernels() -> None:
    types = (TensorType(dt.float32, (40, 50)),) * 2
    compiler = backend.compiler()
    launches = [compiler.lower(op, types[: len(op.operands)]) for op in (Add(), Exp(), Add())]
    x, y, z = np.ones((3, 40, 50), np.float32)
    steps = [
        Run(launch.kernel, tuple(map(_place, launch.arguments)), launch.items, launch.serial)
        for lowered in launches
        if isinstance(lowered, Lowered)
        for launch in lowered.launches
    ]
    made = compiler.build(Program((*steps, Host(3)), 3))
    assert isinstance(made, NativeExecutable)
    data = made.stored()
    made.run(addresses(x, y, z))
    wanted = z.copy()
    del made, launches, steps
    z[:] = 0
    again = restored(data)
    assert again is not None
    assert again.run(addresses(x, y, z)) == 3
    np.testing.assert_array_equal(z, wanted)
    assert restored(data.replace(b"llvmlite", b"elvmlite")) is None
    assert restored(re.sub(rb"_[0-9a-f]{12}", b"_0123456789ab", data)) is None


def _place(argument: Ref | int) -> Address | int:
    if isinstance(argument, int):
        return argument
    return Address(2 if argument.kind == "output" else argument.index, argument.offset)


def test_what_does_not_fit_is_refused() -> None:
    program = executable([affine(1)], 1)
    with pytest.raises(CompileError, match="do not fit"):
        program.run(np.zeros(0, np.int64))
    with pytest.raises(CompileError, match="do not fit"):
        program.run(addresses(np.zeros(N, np.int64)), 2)
    with pytest.raises(CompileError, match="rows of 4"):
        program.profile(addresses(np.zeros(N, np.int64)), np.zeros((1, 2), np.int64))
    with pytest.raises(CompileError, match="uses base 1"):
        executable([affine(1, base=1)], 1)
    with pytest.raises(CompileError, match="jumps to 9"):
        executable([Jump(9)], 1)


def test_repeat_stops_at_a_host_step() -> None:
    counter, flags = np.zeros(1, np.int64), np.array([0, 0, 1, 0], np.int64)
    program = executable([Jump(2, Address(0)), Host(0)], 2)
    varying = np.array([[flags[i:].ctypes.data] for i in range(4)], np.int64)
    assert program.repeat(addresses(flags, counter), varying) == (2, 1)
    assert program.repeat(addresses(flags, counter), varying[:2]) == (2, -1)
