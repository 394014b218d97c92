"""`treadle run --try`: which options make a model the fastest here.

Options are tried one after the other, each from the best combination so far; what is clearly
faster is kept. The best combination and the first one are measured again in turns at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from treadle.base.array import Array
from treadle.base.errors import TreadleError
from treadle.base.table import duration
from treadle.cli.models.measure import timed
from treadle.engine.options import Options
from treadle.engine.package.models import Runner
from treadle.graph.ir import Graph

GAIN = 0.97
"""Least gain, as a part of the best time so far: clocks vary by a few percent."""
LEVELS = (1, 3)
WINOGRAD = (0, 2)
MAPS = (("row-major",), ("channels-last",), ("blocked",), ("channels-last", "blocked"))


@dataclass(frozen=True, slots=True)
class Setting:
    """A combination: options of the compilation, and threads."""

    options: Options
    threads: int

    def differences(self, plain: Setting) -> str:
        """Return the settings that differ from another trial's, as options of commands."""
        parts = []
        if self.threads != plain.threads:
            parts.append(f"--threads {self.threads}")
        for flag, name in (("--level", "level"), ("--winograd", "winograd")):
            if getattr(self.options, name) != getattr(plain.options, name):
                parts.append(f"{flag} {getattr(self.options, name)}")
        if self.options.layouts != plain.options.layouts:
            parts += [f"--maps {name}" for name in self.options.layouts]
        return " ".join(parts) or "as it is"


@dataclass(slots=True)
class Trial:
    """Tries settings of one graph on the same inputs.

    Attributes:
        graph, arrays: what runs.
        plain: the setting to begin with; more threads than it has are not tried.
        count: runs per setting.
        rows: seconds of the best run, by setting, in the order of trial.
    """

    graph: Graph
    arrays: Sequence[Array]
    plain: Setting
    count: int = 10
    rows: dict[Setting, float] = field(default_factory=dict)

    def run(self, tell: Callable[[str], None]) -> list[tuple[str, float]]:
        """Settings and seconds, the fastest first.

        Args:
            tell: is given what is tried, and "" while it is measured.

        Raises:
            TreadleError: the model does not compile with the plain setting.
        """
        self._measured(self.plain, tell)
        for change in self._changes():
            for made in change(self._fastest()):
                if made not in self.rows:
                    self._measured(made, tell)
        fastest = self._fastest()
        if fastest != self.plain:
            for setting in (self.plain, fastest):
                self._measured(setting, tell)
        rows = sorted(self.rows.items(), key=lambda row: row[1])
        return [(setting.differences(self.plain), seconds) for setting, seconds in rows]

    def _fastest(self) -> Setting:
        """The best setting, the plain one unless another is clearly faster."""
        found = min(self.rows, key=lambda s: self.rows[s])
        gain = self.rows[found] < GAIN * self.rows[self.plain]
        return found if gain else self.plain

    def _changes(self) -> tuple[Callable[[Setting], list[Setting]], ...]:
        def threads(s: Setting) -> list[Setting]:
            return [replace(s, threads=n) for n in _counts(self.plain.threads)]

        def layouts(s: Setting) -> list[Setting]:
            return [replace(s, options=replace(s.options, layouts=names)) for names in MAPS]

        def winograd(s: Setting) -> list[Setting]:
            return [replace(s, options=replace(s.options, winograd=n)) for n in WINOGRAD]

        def level(s: Setting) -> list[Setting]:
            return [replace(s, options=replace(s.options, level=n)) for n in LEVELS]

        return (threads, layouts, winograd, level)

    def _measured(self, setting: Setting, tell: Callable[[str], None]) -> None:
        tell(f"compiling: {setting.differences(self.plain)}")
        try:
            with using_threads(setting.threads):
                program = Runner(self.graph, setting.options)
                program.stages.compile()
                tell("")
                seconds = timed(program, self.arrays, 2, self.count)[0]
        except TreadleError:
            if setting == self.plain:
                raise
            return  # A setting that this model does not go with.
        self.rows[setting] = min(seconds, self.rows.get(setting, seconds))


def _counts(most: int) -> list[int]:
    """Numbers of threads: powers of two and all."""
    powers = [1 << k for k in range(most.bit_length()) if 1 << k < most]
    return [*powers, most]


def threads_now() -> int:
    """Return how many threads kernels share now."""
    from treadle.engine.package.native_run import loader_of

    return loader_of("cpu").get_threads()


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Share the work of kernels among `count` threads in the block; 0 changes nothing."""
    from treadle.engine.package.native_run import loader_of

    before = loader_of("cpu").set_threads(count) if count else 0
    try:
        yield
    finally:
        if before:
            loader_of("cpu").set_threads(before)


def rows_of(rows: Sequence[tuple[str, float]]) -> list[tuple[str, str, str]]:
    """Cells: options, seconds of the best run, and how much faster than without them."""
    plain = next((seconds for name, seconds in rows if name == "as it is"), 0.0)
    return [(name, duration(s), f"{plain / s:.2f} x" if plain else "-") for name, s in rows]
