"""Several runs as one launch on the native executor: every item once, whoever does it."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from tests.backends.cpu.hand_written import addresses, executable

from treadle.backends.cpu import backend, pool
from treadle.backends.cpu.executable import restored
from treadle.backends.program import Address, Host, Jump, Lowered, Program, Ref, Run, Together
from treadle.base import dtype as dt
from treadle.base.errors import CompileError
from treadle.base.types import TensorType
from treadle.ops.elementwise import Add
from treadle.ops.unary import Exp

SIZES = (1, 37, 5, 0, 64, 2, 200)


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = pool.get_threads()
    yield
    pool.set_threads(before)


def affine(base: int, items: int, serial: bool = False) -> Run:
    return Run("hand_affine", (Address(base), 3 + base), items, serial)


def arrays() -> list[np.ndarray]:
    return [np.ones(n + 1, np.int64) for n in SIZES]


def wanted(turns: int) -> list[np.ndarray]:
    found = arrays()
    for _ in range(turns):
        for base, x in enumerate(found):
            x[:-1] = x[:-1] * (3 + base) + np.arange(len(x) - 1)
    return found


SERIAL = {"none": (), "some": (1, 3, 6), "all": tuple(range(len(SIZES)))}


GRAINS = {"ones": (), "some": (1, 5, 2, 1, 64, 3, 7)}


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("serial", SERIAL)
@pytest.mark.parametrize("grain", GRAINS)
@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_every_item_is_done_once(threads: int, grain: str, serial: str, alone: bool) -> None:
    pool.set_threads(threads)
    runs = tuple(affine(b, n, b in SERIAL[serial]) for b, n in enumerate(SIZES))
    program = executable([Together(runs, GRAINS[grain], alone)] * 3, len(SIZES))
    for _ in range(50):
        found = arrays()
        assert program.run(addresses(*found)) == -1
        for got, want in zip(found, wanted(3), strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_serial_run_is_one_item_of_one_thread() -> None:
    pool.set_threads(2)
    who = np.zeros((2, 8), np.int64)
    runs = tuple(Run("hand_who", (Address(b), 20_000), 8, True) for b in range(2))
    program = executable([Together(runs)], 2)
    seen = set()
    for _ in range(100):
        program.run(addresses(*who))
        assert [len(set(row)) for row in who] == [1, 1]
        seen.add(len(set(who.ravel())))
        if 2 in seen:
            break
    assert 2 in seen  # Two threads did one each.


def test_units_have_grain_items_of_one_thread() -> None:
    pool.set_threads(2)
    who = np.zeros((2, 10), np.int64)
    runs = tuple(Run("hand_who", (Address(b), 20_000), 10) for b in range(2))
    program = executable([Together(runs, (4, 5))], 2)
    for _ in range(20):
        program.run(addresses(*who))
        for row, grain in zip(who, (4, 5), strict=True):
            assert row.all()
            for first in range(0, 10, grain):
                assert len(set(row[first : first + grain])) == 1


def test_a_serial_run_has_one_unit_whatever_is_said() -> None:
    runs = (Run("k", (), 7, True), Run("k", (), 7), Run("k", (), 0, True))
    assert Together(runs, (2, 3, 4)).grains == (7, 3, 1)
    assert Together(runs).grains == (7, 1, 1)


def test_kernels_and_numbers_of_arguments_may_differ() -> None:
    x = np.ones((16, 8), np.float32)
    partial, flag = np.zeros(16, np.float32), np.zeros(1, np.bool_)
    total, counter = np.zeros(9, np.int64), np.zeros(1, np.int64)
    runs = (
        Run("hand_sum", (Address(0), Address(1)), 16),
        Run("hand_set", (Address(2), Address(3), 1), 1, True),
        affine(4, 9),
    )
    program = executable([Together(runs)], 5)
    program.run(addresses(x, partial, counter, flag, total))
    np.testing.assert_array_equal(partial, 8)
    np.testing.assert_array_equal(total, np.arange(9))
    assert counter[0] == 1 and flag[0]


def test_jumps_and_returns_find_merged_launches() -> None:
    x, y = np.zeros((2, 4), np.int64)
    counter, flag = np.zeros(1, np.int64), np.zeros(1, np.bool_)
    count = Run("hand_set", (Address(2), Address(3), 3), 1, True)
    both = Together(
        (Run("hand_affine", (Address(0), 1), 4), Run("hand_affine", (Address(1), 1), 4))
    )
    program = executable([Jump(1), both, count, Jump(1, Address(3)), Host(5), both], 4)
    bases = addresses(x, y, counter, flag)
    assert program.run(bases) == 4
    np.testing.assert_array_equal(x, 3 * np.arange(4))
    assert program.run(bases, 5) == -1
    np.testing.assert_array_equal([x, y], [4 * np.arange(4)] * 2)


def test_repetition_gives_what_single_runs_give() -> None:
    rows = np.random.default_rng(0).integers(0, 9, (40, 2, 16))
    runs = tuple(Run("hand_affine", (Address(b), 3), 16) for b in range(2))
    program = executable([Together(runs), Together(runs, serial=True)], 2)
    once, often = rows.copy(), rows.copy()
    for pair in once:
        program.run(addresses(*pair))
    varying = np.stack([addresses(*pair) for pair in often])
    assert program.repeat(np.zeros(2, np.int64), varying) == (40, -1)
    np.testing.assert_array_equal(once, often)


@pytest.mark.parametrize("serial", [False, True])
def test_a_profile_has_one_row_for_a_merged_launch(serial: bool) -> None:
    x, y = np.zeros((2, 8), np.int64)
    spin = Run("hand_spin", (20_000,), 2)
    plain = Run("hand_affine", (Address(0), 1), 8)
    runs = (spin, Run("hand_affine", (Address(1), 1), 8), spin)
    program = executable([plain, Together(runs, serial=serial), plain], 2)
    times = np.zeros((3, 4), np.int64)
    assert program.profile(addresses(x, y), times) == -1
    np.testing.assert_array_equal(times[:, 3], 1)
    spans = times[:, 1] - times[:, 0]
    np.testing.assert_array_equal(times[::2, 2], spans[::2])
    assert times[1, 2] <= spans[1] and (times[1, 2] == spans[1] or serial)
    assert (times[1:, 0] >= times[:-1, 1]).all()
    assert times[1, 2] > 20_000
    np.testing.assert_array_equal(y, np.arange(8))


def test_callers_that_find_the_pool_busy_do_it_alone() -> None:
    pool.set_threads(3)
    runs = tuple(affine(b, n) for b, n in enumerate(SIZES))
    program = executable([Together(runs)] * 3, len(SIZES))
    wrong: list[int] = []

    def call() -> None:
        for _ in range(200):
            found = arrays()
            program.run(addresses(*found))
            wrong.extend((g != w).any() for g, w in zip(found, wanted(3), strict=True))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not any(wrong)


def test_it_is_stored_and_made_again() -> None:
    types = (TensorType(dt.float32, (40, 50)),) * 2
    compiler = backend.compiler()
    runs = []
    for base, op in ((2, Add()), (3, Exp())):
        lowered = compiler.lower(op, types[: len(op.operands)])
        assert isinstance(lowered, Lowered)
        for launch in lowered.launches:
            arguments = tuple(_place(a, base) for a in launch.arguments)
            runs.append(Run(launch.kernel, arguments, launch.items, launch.serial))
    made = compiler.build(Program((Together(tuple(runs)), Host(3)), 4))
    memory = [np.full((40, 50), v, np.float32) for v in (1, 2, 0, 0)]
    assert made.run(addresses(*memory)) == 1
    kept = [x.copy() for x in memory]
    memory[2][:], memory[3][:] = 0, 0
    again = restored(made.stored())
    assert again is not None
    assert again.run(addresses(*memory)) == 1
    np.testing.assert_array_equal(memory, kept)
    np.testing.assert_array_equal(memory[2], 3)


def _place(argument: Ref | int, base: int) -> Address | int:
    if isinstance(argument, int):
        return argument
    return Address(base if argument.kind == "output" else argument.index, argument.offset)


def test_addresses_are_checked() -> None:
    with pytest.raises(CompileError, match="uses base 1"):
        executable([Together((affine(0, 3), affine(1, 3)))], 1)
