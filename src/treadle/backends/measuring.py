"""Kernels that are measured before they are used: `config.benchmark_kernel`, and `--fast-run`.

Compilers trust a model of the machine unless something was measured. With `benchmark_kernel`,
everything with a choice is collected while a program, or the kernel of an eager op, is made; what
was not yet measured in this process is, and the best is recorded for whatever is compiled later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.backends.program import Compiler, Tuned, Watched

SECONDS = 0.1
"""For each choice that a program meets."""


class Measuring:
    """True if what is compiled is measured first, and in a process of its own.

    Attributes:
        on: measure.
        apart: in another process, so that a kernel that fails takes nothing along.
    """

    def __init__(self) -> None:
        self.on = False
        self.apart = False
        self._known: set[str] = set()

    def first(self, compiler: Compiler, compile: Callable[[], object]) -> None:
        """Measure what a compilation has to choose; it runs once more than without."""
        for _ in self.measured(compiler, compile, SECONDS, anew=False):
            pass

    def measured(
        self,
        compiler: Compiler,
        compile: Callable[[], object],
        seconds: float,
        *,
        anew: bool = True,
    ) -> Iterator[Tuned]:
        """Measure what a compilation has to choose, `seconds` for each; what came of it.

        Without `anew`, only what nobody has measured in this process.
        """
        from treadle.backends.program import MeasuringCompiler

        if not isinstance(compiler, MeasuringCompiler):
            return
        before, self.on = self.on, False
        try:
            with compiler.watch() as watched:
                compile()
            work = watched if anew else [w for w in map(self._unknown, watched) if w.asked]
            for found in compiler.tune(work, seconds, apart=self.apart):
                self._known.add(found.name)
                yield found
        finally:
            self.on = before

    def _unknown(self, work: Watched) -> Watched:
        asked = {name: ways for name, ways in work.asked.items() if name not in self._known}
        return replace(work, asked=asked)


MEASURING = Measuring()
