"""Which launches are recorded and replayed, and that programs do not notice."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.compiling_toy import PartedDevice
from tests.backends.plugins import logged
from tests.backends.rendered.fake_renderer import FakeRenderer
from tests.backends.rendered.test_rendered import ONE, STREAM, TEN, device, numbers
from tests.backends.rendered.test_rendered import adding as numbered

from treadle.backends.api import SynchronousStream
from treadle.backends.object_cache import ObjectCache
from treadle.backends.program import Address, Host, Jump, Program, Run, Step
from treadle.backends.rendered import recording
from treadle.backends.rendered.compiler import RenderedCompiler
from treadle.backends.rendered.executable import RenderedExecutable
from treadle.backends.rendering import RecordingRenderer
from treadle.base.errors import DeviceError, DeviceLost
from treadle.runtime.api import Buffer, Device, Stream
from treadle.runtime.synchronous import synchronous


class Tape(SynchronousStream):
    """A stream whose launches are remembered."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []


class FakeRecording:
    def __init__(self, renderer: RecordingFake, calls: Sequence[tuple[Any, ...]]) -> None:
        self.renderer = renderer
        self.calls = calls
        self.closed = False

    def replay(self, stream: Stream, /) -> bool:
        assert not self.closed
        if self.renderer.moved:
            self.renderer.moved -= 1
            return False
        if self.renderer.fails_replays is not None:
            raise self.renderer.fails_replays
        self.renderer.submissions += 1
        for call in self.calls:
            FakeRenderer.launch(self.renderer, *call, stream)
        return True

    def close(self) -> None:
        self.closed = True


class RecordingFake(FakeRenderer):
    """A renderer that records."""

    def __init__(self) -> None:
        super().__init__()
        self.submissions = 0
        self.made: list[FakeRecording] = []
        self.setting: Hashable = "usual"
        self.alone: tuple[str, ...] = ()
        self.moved = 0
        self.fails: Exception | None = None
        self.fails_replays: Exception | None = None
        self.asked = 0

    def launch(self, *given: Any) -> None:
        *call, stream = given
        if isinstance(stream, Tape):
            stream.calls.append(tuple(call))
            return
        self.submissions += 1
        super().launch(*given)

    def record(
        self, device: Device, stream: Stream, submit: Callable[[Stream], None], /
    ) -> FakeRecording:
        tape = Tape()
        submit(tape)
        if self.fails is not None:
            raise self.fails
        self.made.append(FakeRecording(self, tape.calls))
        return self.made[-1]

    def records(self, launchable: Any, /) -> bool:
        return launchable.name not in self.alone

    def places(self, buffers: Sequence[Buffer], /) -> tuple[Hashable, ...]:
        self.asked += 1
        return tuple(b.bytes.ctypes.data for b in buffers)

    def settings(self) -> Hashable:
        return self.setting

    def spent(self, work: Callable[[], object]) -> int:
        """How much is submitted meanwhile."""
        before = self.submissions
        work()
        return self.submissions - before


@pytest.fixture
def renderer() -> RecordingFake:
    made = RecordingFake()
    assert isinstance(made, RecordingRenderer)
    assert not isinstance(FakeRenderer(), RecordingRenderer)
    return made


class Made:
    """A program over buffers of eight numbers, each of which starts with zeros."""

    def __init__(
        self, renderer: RecordingFake, folder: Path, steps: Sequence[Step], bases: int
    ) -> None:
        compiler = RenderedCompiler(renderer)
        compiler.library.cache = ObjectCache(folder)
        self.counts = compiler.library.recordings
        self.device = device()
        self.program = compiler.build(Program(tuple(steps), bases))
        self.bases = bases

    def fresh(self) -> list[Any]:
        return [numbers(self.device, *[0] * 8) for _ in range(self.bases)]

    def run(self, bases: Sequence[Any], start: int = 0) -> int:
        return self.program.run(self.device, STREAM, bases, start)


def values(buffer: Any) -> list[int]:
    return buffer.bytes.view(np.int64)[:2].tolist()


def adding(base: int, kernel: Any = ONE) -> Run:
    return Run(kernel, (Address(base), 2), 2)


def launches(number: int, base: int = 0) -> list[Step]:
    return [adding(base) for _ in range(number)]


def test_noted_recorded_replayed(renderer: RecordingFake, tmp_path: Path) -> None:
    made = Made(renderer, tmp_path, [*launches(5), adding(1, TEN)], 2)
    bases = made.fresh()
    # New places are unsettled at first; then they are seen, recorded, replayed.
    assert [renderer.spent(lambda: made.run(bases)) for _ in range(5)] == [6, 6, 1, 1, 1]
    assert values(bases[0]) == [25, 25] and values(bases[1]) == [50, 50]
    assert len(renderer.made) == 1
    counts = made.counts
    assert (counts.recorded, counts.replayed, counts.spared, counts.refused) == (1, 3, 15, 0)


def test_few_launches_are_left_alone(renderer: RecordingFake, tmp_path: Path) -> None:
    made = Made(renderer, tmp_path, [*launches(3), Host(0), *launches(3)], 1)
    bases = made.fresh()
    for _ in range(5):
        assert made.run(bases) == 3 and made.run(bases, 4) == -1
    assert values(bases[0]) == [30, 30] and not renderer.asked


def test_memory_that_takes_turns(renderer: RecordingFake, tmp_path: Path) -> None:
    made = Made(renderer, tmp_path, launches(4), 1)
    sets = [made.fresh() for _ in range(3)]
    for _ in range(6):
        for bases in sets:
            made.run(bases)
    assert [values(b[0]) for b in sets] == [[24, 24]] * 3
    assert (made.counts.recorded, made.counts.replayed) == (3, 12)


def test_the_least_recently_used_recording_goes(
    renderer: RecordingFake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MOST", 2)
    made = Made(renderer, tmp_path, launches(4), 1)
    sets = [made.fresh() for _ in range(3)]
    for bases in sets:
        for _ in range(4):
            made.run(bases)
    assert [m.closed for m in renderer.made] == [True, False, False]
    made.run(sets[1])
    for _ in range(2):
        made.run(sets[0])  # noted again, then recorded again
    assert [m.closed for m in renderer.made] == [True, False, True, False]
    assert [values(b[0]) for b in sets] == [[24, 24], [20, 20], [16, 16]]


def test_memory_that_never_comes_back_is_no_obstacle(
    renderer: RecordingFake, tmp_path: Path
) -> None:
    steps = [*launches(6), adding(1, TEN), *launches(5), adding(0, TEN), adding(1)]
    made = Made(renderer, tmp_path, steps, 2)
    kept, results = made.fresh()[0], []
    spent = []
    for _ in range(6):
        results.append(made.fresh()[1])  # such as losses in a list
        spent.append(renderer.spent(lambda: made.run([kept, results[-1]])))
    assert spent == [14, 14, 4, 4, 4, 4] and len(renderer.made) == 2
    assert values(kept) == [126, 126] and [values(r) for r in results] == [[11, 11]] * 6


def test_what_is_not_work_of_the_device_alone(renderer: RecordingFake, tmp_path: Path) -> None:
    renderer.alone = ("ten",)
    made = Made(renderer, tmp_path, [*launches(4), adding(0, TEN), *launches(4)], 1)
    bases = made.fresh()
    assert [renderer.spent(lambda: made.run(bases)) for _ in range(4)] == [9, 9, 3, 3]
    assert values(bases[0]) == [72, 72]


def test_settings_are_part_of_what_is_recorded(renderer: RecordingFake, tmp_path: Path) -> None:
    made = Made(renderer, tmp_path, launches(4), 1)
    bases = made.fresh()
    for setting, expected in (("usual", [4, 4, 1]), ("other", [4, 1, 1]), (None, [4, 4, 4])):
        renderer.setting = setting
        assert [renderer.spent(lambda: made.run(bases)) for _ in range(3)] == expected
    assert values(bases[0]) == [36, 36]


def test_moved_memory_is_recorded_anew(renderer: RecordingFake, tmp_path: Path) -> None:
    made = Made(renderer, tmp_path, launches(4), 1)
    bases = made.fresh()
    for _ in range(3):
        made.run(bases)
    renderer.moved = 1
    assert renderer.spent(lambda: made.run(bases)) == 1 and made.counts.recorded == 2
    renderer.moved = 2  # again while it is recorded
    assert renderer.spent(lambda: made.run(bases)) == 4
    assert values(bases[0]) == [20, 20]
    assert [m.closed for m in renderer.made] == [True, True, True]


@pytest.mark.parametrize("late", [False, True])
def test_a_refusal_is_said_once(renderer: RecordingFake, tmp_path: Path, late: bool) -> None:
    error = DeviceError("fake", "it does not record")
    renderer.fails, renderer.fails_replays = (None, error) if late else (error, None)
    made = Made(renderer, tmp_path, launches(4), 1)
    bases = made.fresh()
    with logged() as lines:
        for _ in range(5):
            assert renderer.spent(lambda: made.run(bases)) == 4
    assert values(bases[0]) == [20, 20]
    assert len(lines) == 1 and "one by one" in lines[0] and "it does not record" in lines[0]
    assert made.counts.refused == 1 and made.counts.recorded == int(late)
    assert all(m.closed for m in renderer.made)


def test_a_lost_device_is_an_error(renderer: RecordingFake, tmp_path: Path) -> None:
    made = Made(renderer, tmp_path, launches(4), 1)
    bases = made.fresh()
    for _ in range(3):
        made.run(bases)
    renderer.fails_replays = DeviceLost("fake", "it is gone")
    with pytest.raises(DeviceLost):
        made.run(bases)
    assert not made.counts.refused


def test_turns_of_a_loop_are_replayed(renderer: RecordingFake, tmp_path: Path) -> None:
    """A turn adds five; there is another one as long as the sum is less than 20."""
    until = numbered("until_20", 1, 20)
    steps = [*launches(4), Run(until, (Address(0), Address(1), 1), 1)]
    made = Made(renderer, tmp_path, [*steps, Jump(7, Address(1)), Jump(0)], 2)
    bases, spent = made.fresh(), []
    for _ in range(3):
        bases[0].bytes[:] = 0
        spent.append(renderer.spent(lambda: made.run(bases)))
        assert values(bases[0])[0] == 20
    assert spent == [20, 5 + 3, 4] and len(renderer.made) == 1


def test_stretches_around_the_host(renderer: RecordingFake, tmp_path: Path) -> None:
    made = Made(renderer, tmp_path, [*launches(4), Host(0), *launches(5, 1)], 2)
    kept, spent = made.fresh()[0], []
    for _ in range(4):
        other = made.fresh()[1]  # unsettled, also after the host was there
        before = renderer.submissions
        assert made.run([kept, other]) == 4 and made.run([kept, other], 5) == -1
        spent.append(renderer.submissions - before)
        assert values(other) == [5, 5]
    assert spent == [9, 9, 6, 6] and values(kept) == [16, 16]


def test_the_host_may_put_other_memory_in_place(renderer: RecordingFake, tmp_path: Path) -> None:
    steps = [*launches(4), Host(0), *launches(5), adding(1), adding(2)]
    made = Made(renderer, tmp_path, steps, 3)
    kept, _, first = made.fresh()
    second, spent = made.fresh()[2], []
    for _ in range(5):
        other = made.fresh()[1]
        before = renderer.submissions
        assert made.run([kept, other, first]) == 4
        assert made.run([kept, other, second], 5) == -1
        spent.append(renderer.submissions - before)
    assert spent == [11, 11, 4, 4, 4] and values(second) == [5, 5] and values(first) == [0, 0]


def test_synchronous_and_watched_runs_are_plain(renderer: RecordingFake, tmp_path: Path) -> None:
    made = Made(renderer, tmp_path, launches(4), 1)
    bases, seen = made.fresh(), []

    def watch(step: int, submit: Callable[[], None]) -> None:
        seen.append(step)
        submit()

    for _ in range(3):
        made.run(bases)
    with synchronous():
        assert renderer.spent(lambda: made.run(bases)) == 4
    program: RenderedExecutable = made.program
    assert renderer.spent(lambda: program.run_watched(made.device, STREAM, bases, 0, watch)) == 4
    assert seen == [0, 1, 2, 3] and values(bases[0]) == [20, 20]
    assert renderer.spent(lambda: made.run(bases)) == 1


def test_programs_without_repetition_are_left_alone_for_a_while(
    renderer: RecordingFake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "PATIENCE", 3)
    monkeypatch.setattr(recording, "REST", 4)
    made = Made(renderer, tmp_path, launches(4), 1)
    asked = []
    for _ in range(9):
        made.run(made.fresh())
        asked.append(renderer.asked)
    assert asked == [1, 2, 3, 4, 4, 4, 4, 4, 5]
    bases = made.fresh()
    assert [renderer.spent(lambda: made.run(bases)) for _ in range(3)] == [4, 4, 1]


def test_every_device_has_its_own(renderer: RecordingFake, tmp_path: Path) -> None:
    made = Made(renderer, tmp_path, launches(4), 1)
    other = PartedDevice(1, 1 << 20)
    here, there = made.fresh(), [numbers(other, 0, 0)]
    for _ in range(4):
        made.run(here)
        made.program.run(other, STREAM, there)
    assert values(here[0]) == values(there[0]) == [16, 16] and len(renderer.made) == 2
