"""Where the time of each workload goes: a table of kernels beside the machine's roofline.

    python benchmarks/kernels.py T3 I1 > benchmarks/KERNELS.md

Every launch runs by itself here, so that each has a row; programs otherwise run small ones
together, which is the first of the two times in a heading. A workload gets a process of its own.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from typing import Any

from workloads import WORKLOADS, Task

CONVOLUTIONS = ("T2", "T3", "T5", "I1", "I1b", "I2", "I4")
LEAST = 0.01
"""Share of the time from which on a kernel has a row of its own."""
LONGEST = 60
HEADER = (
    "| ops | kernel | launches | ms | share | GFLOP/s | GB/s | roofline |\n"
    "|---|---|--:|--:|--:|--:|--:|--:|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=CONVOLUTIONS, metavar="KEY")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    unknown = [key for key in given.workloads if key not in WORKLOADS]
    if unknown:
        parser.error(
            f"no workload is called {', '.join(unknown)}; there are {', '.join(WORKLOADS)}"
        )
    if given.here:
        for key in given.workloads:
            print("\n".join(section(key, given.threads, given.repeats)), flush=True)
        return
    print("\n".join(head(given.threads, given.repeats)), flush=True)
    for key in given.workloads:
        options = ["--here", f"--threads={given.threads}", f"--repeats={given.repeats}"]
        environment = {**os.environ, "TREADLE_NUM_THREADS": str(given.threads)}
        subprocess.run([sys.executable, __file__, key, *options], env=environment, check=True)


def head(threads: int, repeats: int) -> Iterator[str]:
    yield "# Kernels"
    yield ""
    yield (
        f"By `python benchmarks/kernels.py`, {date.today()}, {platform.machine()}, "
        f"{threads} threads, medians of {repeats} runs."
    )
    yield ""
    yield (
        "GFLOP/s count the operations that an algorithm does (Winograd's does fewer than the "
        "direct one), GB/s what a kernel reads and writes at least. The roofline is what the "
        "machine was measured to reach at best for as much work, in float32 from registers and "
        "from memory: 100 % leaves nothing to win, and more is what caches give. Integers and "
        "words of 16 bits are held against the same lines."
    )


def section(key: str, threads: int, repeats: int) -> Iterator[str]:
    """The table of one workload."""
    together, _ = profiled(key, threads, repeats)
    profile, limits = profiled(key, threads, repeats, disabled=("together",))
    yield ""
    yield f"## {key}: {WORKLOADS[key].title}"
    yield ""
    yield (
        f"{together.seconds * 1e3:.2f} ms; {profile.seconds * 1e3:.2f} ms launch by launch. "
        f"The machine at best: {limits.flops / 1e9:.0f} GFLOP/s, {limits.bandwidth / 1e9:.1f} GB/s."
    )
    yield ""
    yield HEADER
    few = [k for k in profile.kernels if k.seconds < LEAST * profile.busy]
    for kernel in profile.kernels:
        if kernel not in few:
            name = f"{kernel.label[:LONGEST]} | `{kernel.kernel}` | {kernel.calls}"
            yield row(name, (kernel,), profile.busy)
    if few:
        yield row(f"{len(few)} others | | {sum(k.calls for k in few)}", few, profile.busy)
    yield row(f"all | | {sum(k.calls for k in profile.kernels)}", profile.kernels, profile.busy)


def row(name: str, kernels: Iterable[Any], busy: float) -> str:
    kernels = list(kernels)
    seconds, flops, nbytes, attainable = (
        sum(getattr(k, what) for k in kernels)
        for what in ("seconds", "flops", "nbytes", "attainable")
    )
    return (
        f"| {name} | {seconds * 1e3:.3f} | {seconds / busy:.1%} | {flops / seconds / 1e9:.1f} "
        f"| {nbytes / seconds / 1e9:.1f} | {attainable / seconds:.0%} |"
    )


def profiled(
    key: str, threads: int, repeats: int, disabled: tuple[str, ...] = ()
) -> tuple[Any, Any]:
    """The profile of a workload's program, and the machine's limits."""
    import peer_own

    import treadle as mge
    from treadle.engine import Options

    options = Options(disabled=disabled)
    programs: list[_Watched] = []

    def watched(function: Callable[..., Any], task: Task) -> Callable[..., Any]:
        programs.append(_Watched(mge.jit.compile(options=options)(function)))
        return programs[-1]

    usual, peer_own.compiled = peer_own.compiled, watched
    try:
        call = peer_own.make(Task(key, "compile", threads))
    finally:
        peer_own.compiled = usual
    call()
    program = programs[-1]
    found = program.compiled.profile(*program.arguments, repeats=repeats)
    return found, found.limits


class _Watched:
    """A compiled function that remembers what it was called with."""

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled
        self.arguments: tuple[Any, ...] = ()

    def __call__(self, *arguments: Any) -> Any:
        self.arguments = arguments
        return self.compiled(*arguments)


if __name__ == "__main__":
    main()
