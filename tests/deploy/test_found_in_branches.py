"""Branches and loops in which data decide extents, in files and in C libraries; lists that grow."""

import ctypes
import json
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.damage.mutate import places
from tests.deploy.test_data_decide import PROGRAM, eager, holds, library_gives, lied, rows, with_c
from tests.deploy.test_ranged import dumped
from tests.native import test_growing_loops as growing

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.autodiff import GradManager
from treadle.base import dtype as dt
from treadle.base.errors import CheckpointError, CompileError, ShapeError, TreadleError
from treadle.base.types import TensorType
from treadle.deploy import (
    compile_offline,
    load_offline,
    phases,
    write_library,
)
from treadle.engine.package import phases as package_phases
from treadle.engine.package.models import Model, Runner, write_models
from treadle.graph.builder import trace_body
from treadle.jit.control import collecting_loop
from treadle.ops.elementwise import Neg
from treadle.ops.gather import Counted

Function = Callable[[Any], tuple[Any, ...]]
# Every output may have sizes that only a run tells.
ANY = PROGRAM.replace(
    PROGRAM[PROGRAM.index("  MUST(net_output(0)->shape") : PROGRAM.index("  for (int turn")], ""
).replace("    MUST(!net_extents() || !net_get_output(one, 0));\n", "")


def several(function: Callable[[Any], Any]) -> Function:
    def all_of(x: Any) -> tuple[Any, ...]:
        made = function(x)
        return tuple(made) if isinstance(made, list | tuple) else (made,)

    return all_of


def branched(x: Any) -> tuple[Any, ...]:
    """What a branch finds leaves it, is computed with, and is a result as it is."""
    y, z = jit.cond(
        x.sum() > 0, lambda: (x[x[:, 0] > 0], (x[x[:, 0] > 0] * 2).sum(0)), lambda: (x, x.sum(0))
    )
    return y * 2, z, y.sum(0), y


def within(x: Any) -> tuple[Any, ...]:
    """No extent leaves the branch, and nothing is computed ahead of it."""
    return (jit.cond(x.sum() > 0, lambda: (x[x[:, 0] > 0] * 3).sum(0), lambda: x.sum(0)),)


def through(x: Any) -> tuple[Any, ...]:
    """One branch gives back what goes in, twice."""
    few = x[x[:, 1] > 0]
    y, z = jit.cond(x.sum() > 0, lambda: (few, few), lambda: (few[few[:, 0] > 0], few * 2))
    return y, z, few, y.sum(0) + z.sum(0)


def appended(x: Any) -> tuple[Any, ...]:
    """A branch in which nothing is decided, but which of two extents its result has."""
    few = x[x[:, 0] > 0]

    def turn(i: Any, s: Any) -> Any:
        return i + 1, jit.cond(s.sum() > 0, lambda: F.concat([s, few]), lambda: s)

    _, grown = jit.while_loop(lambda i, s: i < 4, turn, (mge.tensor(0), few))
    return grown, jit.cond(x.sum() > 0, lambda: F.concat([few, few]), lambda: few)


def in_turn(x: Any) -> tuple[Any, ...]:
    """A loop of a known number of turns, in each of which a mask selects; what it stacks."""

    def turn(s: Any, row: Any) -> Any:
        chosen = row[row > 0]
        return s + chosen.sum(), (chosen * chosen).sum()

    (last,), (sums,) = jit.scan(turn, (F.zeros(()),), (x,))
    return last, sums, x[x[:, 0] > 0]


def backwards(x: Any) -> tuple[Any, ...]:
    """The gradient goes through the turns from the last to the first."""

    def turn(s: Any, row: Any) -> Any:
        chosen = row[row > 0.2]
        return s * 0.5 + (chosen * chosen).sum(), chosen.sum() * row

    with GradManager().attach([x]) as gm:
        (last,), (made,) = jit.scan(turn, (F.zeros(()),), (x,))
        gm.backward(last * last + (made * made).sum())
    return last, made, x.grad


def swapped(x: Any) -> tuple[Any, ...]:
    """States change places, one stays as it is, and one is another's value before the turn."""

    def turn(i: Any, a: Any, b: Any, fixed: Any, before: Any) -> Any:
        return i + 1, b, F.concat([a, fixed[:1]]), fixed, i * 2

    start = (mge.tensor(0), x, x * 2, x + 1, mge.tensor(0))
    return tuple(jit.while_loop(lambda i, *_: i < 5, turn, start))


def products(x: Any) -> tuple[Any, ...]:
    """Sums over rows that a branch finds, and over those of a list that begins with none."""
    y = jit.cond(x.sum() > 0, lambda: x[x[:, 0] > 0], lambda: x[:0] * 2)
    _, z = jit.while_loop(
        lambda i, s: i < 3,
        lambda i, s: (i + 1, F.concat([s, s.T @ s, y[:1]])),
        (mge.tensor(0), F.zeros((0, 4))),
    )
    return y.T @ y, F.clip(z, -9, 9), x[x[:, 0] > 9].T @ x[x[:, 0] > 9]


def picked(x: Any) -> tuple[Any, ...]:
    """Each turn takes one of the rows that a mask has selected, of which there may be none."""

    def turn(s: Any, row: Any) -> Any:
        return F.concat([s, row[row > 0]]), row.sum()

    (last,), (sums,) = jit.scan(turn, (F.zeros((0,)),), (x[x[:, 0] > 0],))
    return last, sums


KINDS: dict[str, Function] = {
    "products": products,
    "picked": picked,
    "branched": branched,
    "within": within,
    "through": through,
    "appends": appended,
    "in turn": in_turn,
    "backwards": backwards,
    "swapped": swapped,
    **{
        f.__name__: several(f)
        for f in (
            growing.appended,
            growing.decoded,
            growing.filtered,
            growing.until_it_is_much,
            growing.last_ones,
            growing.lagging,
            growing.apart,
            growing.limited,
            growing.scanned,
            growing.nested,
            growing.followed,
            growing.never,
        )
    },
}


def ranges_of(is_wide: bool) -> Any:
    return {"x": [(1, 40), 4]} if is_wide else None


def given(is_wide: bool) -> list[Any]:
    sizes = (1, 2, 3, 17, 40) if is_wide else (24,)
    return [rows(n, 4, seed) for n in sizes for seed in range(5)]


def compiled_file(function: Function, folder: Path, is_wide: bool = False) -> Path:
    model = dumped(function, folder / "m", x=rows(24, 4, 1))
    made = compile_offline(model, ranges=ranges_of(is_wide))
    write_models(folder / "net.tm", [made], "test")
    return folder / "net.tm"


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_takes_branches_and_loops(kind: str, is_wide: bool, tmp_path: Path) -> None:
    function = KINDS[kind]
    offline = load_offline(compiled_file(function, tmp_path, is_wide))
    for x in given(is_wide):
        holds(offline.run([x]).values(), eager(function, x))
    assert not offline._compiled and "treadle.engine.package.models" not in vars(offline)


def test_a_session_runs_by_the_code_of_a_file(tmp_path: Path) -> None:
    function = KINDS["nested"]
    model = dumped(function, tmp_path / "m", x=rows(24, 4, 1))
    session = Runner(model.graph, native=compile_offline(model).native)
    for x in given(False):
        holds(session([x]), eager(function, x))


def test_extents_of_0_and_1(tmp_path: Path) -> None:
    def grown(x: Any) -> tuple[Any, ...]:
        few = jit.cond(x.sum() > 0, lambda: x[x[:, 0] > 0], lambda: x[:0])
        _, more = jit.while_loop(
            lambda i, s: i < 3, lambda i, s: (i + 1, F.concat([s, few])), (mge.tensor(0), few)
        )
        return few, more, F.softmax(more, 1)

    model = dumped(grown, tmp_path / "m", x=rows(24, 4, 1))
    made = compile_offline(model, ranges={"x": [(0, 40), 4]})
    write_models(tmp_path / "net.tm", [made], "test")
    offline = load_offline(tmp_path / "net.tm")
    for n in (0, 1, 2, 3, 40):
        for seed in range(5):
            holds(offline.run([rows(n, 4, seed)]).values(), eager(grown, rows(n, 4, seed)))


@with_c
@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_library_takes_branches_and_loops(kind: str, is_wide: bool, tmp_path: Path) -> None:
    function = KINDS[kind]
    model = dumped(function, tmp_path / "m", x=rows(24, 4, 1))
    write_library(model, tmp_path, "net", ranges=ranges_of(is_wide))
    library_gives(tmp_path, ANY, given(is_wide), lambda x: eager(function, x))


def counted(folder: Path) -> Path:
    """A file of a model that counts to a number."""
    graph = trace_body(lambda n: Neg()(Counted()(n)), [TensorType(dt.int64, ())])
    write_models(folder / "n.tm", [compile_offline(Model(graph, ("n",), ("y",)))], "test")
    return folder / "n.tm"


def test_a_number_is_an_extent(tmp_path: Path) -> None:
    offline = load_offline(counted(tmp_path))
    for n in (5, 0, 1, -3, 65536):
        (found,) = offline.run([np.int64(n)]).values()
        np.testing.assert_array_equal(found, -np.arange(max(n, 0)))
    with pytest.raises(ShapeError, match="counted_0 becomes 65537"):
        offline.run([np.int64(65537)])


@with_c
def test_a_number_is_an_extent_of_a_library(tmp_path: Path) -> None:
    graph = trace_body(lambda n: Neg()(Counted()(n)), [TensorType(dt.int32, ())])
    made = write_library(Model(graph, ("n",), ("y",)), tmp_path, "net")
    net = ctypes.CDLL(str(made.library))
    net.net_error.restype, net.net_get_output.restype = ctypes.c_char_p, ctypes.c_void_p
    one = ctypes.c_void_p()
    assert net.net_create(ctypes.byref(one), 1, None) == 0
    for n in (5, 0, 70_000, 1, -3, 1000):
        x = np.array(n, np.int32)
        net.net_set_input(one, 0, ctypes.c_void_p(x.ctypes.data))
        status = net.net_run(one)
        assert (status == 0) == (n <= 65536), net.net_error()
        if not status and n > 0:
            told = ctypes.cast(net.net_get_output(one, 0), ctypes.POINTER(ctypes.c_int32))
            np.testing.assert_array_equal(np.ctypeslib.as_array(told, (n,)), -np.arange(n))
    net.net_destroy(one)


def test_rows_of_which_only_the_number_is_read(tmp_path: Path) -> None:
    """What finds an extent stays, though nothing reads its rows."""

    def numbers(x: Any) -> tuple[Any, ...]:
        return F.ones((1,)) * x[x[:, 0] > 0].shape[0], x.sum()

    offline = load_offline(compiled_file(numbers, tmp_path))
    for x in given(False):
        holds(offline.run([x]).values(), eager(numbers, x))


def test_an_index_into_nothing_is_refused_when_there_is_nothing(tmp_path: Path) -> None:
    def first(x: Any) -> tuple[Any, ...]:
        return (x[x[:, 0] > 0][0],)

    offline = load_offline(compiled_file(first, tmp_path))
    x = rows(24, 4, 2)
    holds(offline.run([x]).values(), eager(first, x))
    with pytest.raises(TreadleError, match=r"data decide|out of range"):
        offline.run([-abs(x)])


def doubled(x: Any) -> tuple[Any, ...]:
    return jit.while_loop(lambda y: y.sum() < 999, lambda y: (F.concat([y, y]),), (x,))


def test_a_list_that_grows_beyond_what_the_file_is_for(tmp_path: Path) -> None:
    model = dumped(doubled, tmp_path / "m", x=np.ones((24, 4), np.float32))
    write_models(tmp_path / "net.tm", [compile_offline(model)], "test")
    offline = load_offline(tmp_path / "net.tm")
    with pytest.raises(ShapeError, match=r"finding_while_\d becomes 98304.*for 0 to 65536"):
        offline.run([np.zeros((24, 4), np.float32)])
    x = np.full((24, 4), 0.02, np.float32)
    holds(offline.run([x]).values(), eager(doubled, x))


@with_c
def test_a_list_that_grows_beyond_what_the_library_is_for(tmp_path: Path) -> None:
    model = dumped(doubled, tmp_path / "m", x=np.ones((24, 4), np.float32))
    net = ctypes.CDLL(str(write_library(model, tmp_path, "net").library))
    net.net_error.restype, net.net_get_output.restype = ctypes.c_char_p, ctypes.c_void_p
    one = ctypes.c_void_p()
    assert net.net_create(ctypes.byref(one), 1, None) == 0
    for value, fits in ((0.0, False), (0.02, True), (0.0, False), (1.0, True)):
        x = np.full((24, 4), value, np.float32)
        assert net.net_set_input(one, 0, ctypes.c_void_p(x.ctypes.data)) == 0
        status = net.net_run(one)
        if not fits:
            assert status != 0 and net.net_get_output(one, 0) is None
            assert re.search(rb"becomes 98304, .* for 0 to 65536", net.net_error())
            continue
        assert status == 0
        (want,) = eager(doubled, x)
        kind = ctypes.POINTER(ctypes.c_float)
        told = ctypes.cast(net.net_get_output(one, 0), kind)
        np.testing.assert_array_equal(np.ctypeslib.as_array(told, want.shape), want)
    net.net_destroy(one)


def test_threads_take_their_own_turns(tmp_path: Path) -> None:
    function = KINDS["nested"]
    offline = load_offline(compiled_file(function, tmp_path, is_wide=True))
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(20):
                x = rows(1 + (number * 5 + i) % 40, 4, i)
                holds(offline.run([x]).values(), wanted[number, i])
        except BaseException as error:
            failures.append(error)

    wanted = {
        (number, i): eager(function, rows(1 + (number * 5 + i) % 40, 4, i))
        for number in range(8)
        for i in range(20)
    }
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_equal_models_give_equal_files(tmp_path: Path) -> None:
    model = dumped(KINDS["nested"], tmp_path / "m", x=rows(24, 4, 1))
    for name in ("a.tm", "b.tm"):
        write_models(tmp_path / name, [compile_offline(model)], "test")
    assert (tmp_path / "a.tm").read_bytes() == (tmp_path / "b.tm").read_bytes()


def test_gradients_of_loops_whose_turns_are_not_known_are_refused(tmp_path: Path) -> None:
    def slope(x: Any) -> Any:
        with GradManager().attach([x]) as gm:
            (y,) = jit.while_loop(lambda y: y.sum() < 9, lambda y: (F.concat([y, x]),), (x,))
            gm.backward((y * y).sum())
        return x.grad

    model = dumped(slope, tmp_path / "m", x=rows(2, 3, 1))
    with pytest.raises(CompileError, match="data decide extents in finding_while_gradient") as told:
        compile_offline(model)
    assert Path(__file__).name in str(told.value)


def test_too_many_phases_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "MOST_PHASES", 5)
    with pytest.raises(CompileError, match="more than 5 phases"):
        compiled_file(KINDS["nested"], tmp_path)


def test_branches_in_more_branches_than_files_have_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def within(depth: int, x: Any) -> Any:
        mine = x[x[:, depth % 4] > 0]
        return jit.cond(mine.sum() > 9, lambda: within(depth - 1, mine), lambda: x) if depth else x

    for module in (phases, package_phases):
        monkeypatch.setattr(module, "MOST_DEEP", 2)
    x = rows(24, 4, 3)
    offline = load_offline(compiled_file(lambda x: (within(2, x),), tmp_path))
    holds(offline.run([x]).values(), eager(lambda x: (within(2, x),), x))
    with pytest.raises(CompileError, match="cond, which is in more than 2 others") as told:
        compiled_file(lambda x: (within(3, x),), tmp_path)
    assert Path(__file__).name in str(told.value)


def stacking(x: Any) -> tuple[Any, ...]:
    """A loop as ONNX has them: data decide how many turns there are, and each gives a row."""

    def turn(i: Any) -> Any:
        return i + 1, x[0] * i

    (last,), (made,) = collecting_loop(lambda i: i < x.sum(), turn, (F.zeros(()),))
    return last, made


def test_rows_of_a_loop_that_does_not_end_take_no_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first turn that the file is not for is refused, not the number of all of them."""
    monkeypatch.setattr(phases, "MOST_GROWN", 100)
    offline = load_offline(compiled_file(stacking, tmp_path))
    x = np.zeros((24, 4), np.float32)
    x[0, 0] = 7
    last, made = offline.run([x]).values()
    assert last == 7 and made[:, 0].tolist() == [7 * i for i in range(7)]
    x[0, 0] = np.inf
    with limited(60), pytest.raises(ShapeError, match=r"becomes 101, .*for 0 to 100"):
        offline.run([x])


@with_c
def test_rows_of_a_library_loop_that_does_not_end_take_no_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases, "MOST_GROWN", 100)
    model = dumped(stacking, tmp_path / "m", x=rows(24, 4, 1))
    net = ctypes.CDLL(str(write_library(model, tmp_path, "net").library))
    net.net_error.restype, net.net_get_output.restype = ctypes.c_char_p, ctypes.c_void_p
    one = ctypes.c_void_p()
    assert net.net_create(ctypes.byref(one), 1, None) == 0
    for value, fits in ((7, True), (np.inf, False), (3, True)):
        x = np.zeros((24, 4), np.float32)
        x[0, 0] = value
        assert net.net_set_input(one, 0, ctypes.c_void_p(x.ctypes.data)) == 0
        assert (net.net_run(one) == 0) == fits
        if not fits:
            assert re.search(rb"becomes 101, .* for 0 to 100", net.net_error())
            continue
        told = ctypes.cast(net.net_get_output(one, 1), ctypes.POINTER(ctypes.c_float))
        made = np.ctypeslib.as_array(told, (value, 4))
        assert made[:, 0].tolist() == [value * i for i in range(value)]
    net.net_destroy(one)


# -- damaged files -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a branch, and a loop that grows and stacks."""

    def both(x: Any) -> tuple[Any, ...]:
        few = jit.cond(x.sum() > 0, lambda: x[x[:, 0] > 0], lambda: x)
        (grown,) = jit.while_loop(lambda s: abs(s).sum() < 60, turn, (few,))
        (last,), (sums,) = jit.scan(selected, (x[0, 0],), (x[:3],))
        return few, grown, last, sums

    def turn(s: Any) -> Any:
        return (F.concat([s, F.ones((2, 4))]),)

    def selected(s: Any, row: Any) -> Any:
        return s + row[row > 0].sum(), row * 2

    return compiled_file(both, tmp_path_factory.mktemp("branches"))


class EndlessError(Exception):
    """A lie has made a loop endless, which a truthful file may have as well."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise EndlessError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("other", [-1, 0, 1, 7, "nonzero_0", None, [], [[0, 1]], {}])
def test_every_number_of_branches_and_loops_may_lie(
    sound: Path, tmp_path: Path, other: Any
) -> None:
    """A file whose steps are described wrongly is refused, or its run is, or it runs."""
    count = number = refused = 0

    def change(entry: Any) -> None:
        nonlocal count
        steps = entry["phases"]["each"]
        own = [s for s in steps if "branch" in s or "loop" in s]
        assert len(own) == 3
        found = [p for s in own for p in places(s)]
        count = len(found)
        holder, key = found[number]
        holder[key] = other

    while not count or number < count:
        bad = lied(sound, tmp_path / "bad.tm", change)
        try:
            with limited(0.5):
                load_offline(bad, allow_native=True).run([rows(24, 4, 3)])
        except (TreadleError, EndlessError):
            refused += 1
        number += 1
    assert refused > count // 2


@pytest.mark.parametrize("other", [-1, 0, 1, 2, 10**6, "x", "counted_0", None, [], [[0, 1]], {}])
def test_every_number_of_a_count_may_lie(tmp_path: Path, other: Any) -> None:
    made, count, number, refused = counted(tmp_path), 0, 0, 0

    def change(entry: Any) -> None:
        nonlocal count
        (step,) = (s for s in entry["phases"]["each"] if "count" in s)
        found = list(places(step))
        count = len(found)
        holder, key = found[number]
        holder[key] = other

    while not count or number < count:
        try:
            bad = lied(made, tmp_path / "bad.tm", change)
            load_offline(bad, allow_native=True).run([np.int64(7)])
        except TreadleError:
            refused += 1
        number += 1
    assert refused > count // 2


def test_steps_are_not_left_out(sound: Path, tmp_path: Path) -> None:
    length = len(json.loads(json.dumps(load_offline(sound).manifest["phases"]["each"])))

    for number in range(length):

        def change(entry: Any, number: int = number) -> None:
            del entry["phases"]["each"][number]

        with pytest.raises(CheckpointError, match="damaged"):
            load_offline(lied(sound, tmp_path / "bad.tm", change), allow_native=True)


def test_every_byte_of_the_description_may_be_another(sound: Path, tmp_path: Path) -> None:
    """The digest of the manifest tells, as does a file that is cut."""
    raw = sound.read_bytes()
    start = raw.index(b'"branch') if b'"branch' in raw else raw.index(b"branch")
    for at in range(start, start + 900, 7):
        bad = tmp_path / "bad.tm"
        bad.write_bytes(raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :])
        with pytest.raises(CheckpointError):
            load_offline(bad, allow_native=True)
        bad.write_bytes(raw[:at])
        with pytest.raises(CheckpointError):
            load_offline(bad, allow_native=True)
