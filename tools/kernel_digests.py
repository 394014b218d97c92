"""Digests of the kernels and programs that are generated: what a change of the compiler changes.

Run as `python -m tools.kernel_digests`; compares every kernel of all op samples, and every program
of the benchmarks, for every target with `kernel_digests.txt`, and exits with status 1 where one
differs. `--write` renews the file; `--texts DIR` writes the kernels as text, one file each, so that
`diff -r` shows what became of them. Nothing is translated to machine code.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import itertools
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import treadle as mge
from treadle.backends.codegen.kernel.ir import KernelModule
from treadle.backends.codegen.kernel.text import digest, kernel_text
from treadle.backends.codegen.lower import lower
from treadle.backends.codegen.target import TARGETS
from treadle.backends.cpu import tuning_record
from treadle.backends.cpu.compiler import NativeCompiler
from treadle.backends.cpu.encoding import encode
from treadle.backends.program import Lowered, Program, runs_of
from treadle.base.dtype import as_dtype
from treadle.base.errors import TreadleError
from treadle.base.types import TensorType
from treadle.engine.pipeline import Stages
from treadle.inspect import Inspected
from treadle.ops import REGISTRY
from treadle.ops.op import Sample

FILE = Path(__file__).with_suffix(".txt")
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SHOWN = 12
SETTINGS = {"TREADLE_NUM_THREADS": "2", "TREADLE_CPU_TARGET": "generic", "TREADLE_CHECK": ""}
"""What would change choices, of eager calls before a program included."""


class Item(NamedTuple):
    """What was generated for one op or program on one target.

    Attributes:
        place: "TARGET op NAME" or "TARGET program KEY".
        kernels: number and digest of the kernels, in order.
        plan: digest of the program's instructions, addresses of memory included; "-" for ops.
    """

    place: str
    kernels: str
    plan: str

    def line(self) -> str:
        """The item's row of the file."""
        return f"{self.place} {self.kernels} {self.plan}"


class _Rendered(Exception):
    """A workload has been planned; nobody runs it."""


def main(arguments: list[str]) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="tools.kernel_digests", description=__doc__)
    parser.add_argument("--write", action="store_true", help="renew the file")
    parser.add_argument("--texts", type=Path, help="write kernels as text into this directory")
    parser.add_argument("--only", nargs="*", help="programs and ops, by name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args(arguments)
    found = dict(_everything(chosen.jobs, chosen.only, chosen.texts))
    if chosen.write:
        known = _known() if chosen.only is not None else {}
        every = known | found
        FILE.write_text("".join(f"{every[place].line()}\n" for place in sorted(every)))
        return 0
    return _compare(found, _known(), complete=chosen.only is None)


def _known() -> dict[str, Item]:
    """What the file says."""
    text = FILE.read_text() if FILE.exists() else ""
    rows = (line.rsplit(" ", 2) for line in text.splitlines())
    return {place: Item(place, kernels, plan) for place, kernels, plan in rows}


def _compare(found: dict[str, Item], known: dict[str, Item], *, complete: bool) -> int:
    """Print what differs; the exit status."""
    told = [f"{p}: {_difference(known.get(p), item)}" for p, item in found.items()]
    told = [line for line in told if not line.endswith(": ")]
    told += [f"{place}: is gone" for place in known if complete and place not in found]
    for line in sorted(told)[:SHOWN]:
        print(line)
    if len(told) > SHOWN:
        print(f"... and {len(told) - SHOWN} more")
    print(f"{len(found)} ops and programs, {len(told)} differ from {FILE.name}")
    return 1 if told else 0


def _difference(known: Item | None, item: Item) -> str:
    if known is None:
        return "is new"
    if known.kernels != item.kernels:
        return f"kernels {item.kernels} in place of {known.kernels}"
    return "" if known.plan == item.plan else "the same kernels, another plan"


# -- making them ---------------------------------------------------------------------------------


def _everything(
    jobs: int, only: list[str] | None, texts: Path | None
) -> Iterator[tuple[str, Item]]:
    """All items by place; each workload and each target's ops in a process of its own."""
    work = [("op", name) for name in TARGETS]
    work += [("program", key) for key in _workloads() if only is None or key in only]
    with tempfile.TemporaryDirectory() as empty:
        # Processes read them when they import Treadle; the cache may hold records of tuning.
        os.environ.update(SETTINGS, TREADLE_CACHE_DIR=empty)
        tuning_record.write({})  # in place of a record that is shipped for this processor
        fresh = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, max_tasks_per_child=1, mp_context=fresh) as pool:
            made = [pool.submit(_worker, kind, name, only, texts) for kind, name in work]
            for future in made:
                yield from ((item.place, item) for item in future.result())


def _worker(kind: str, name: str, only: list[str] | None, texts: Path | None) -> list[Item]:
    """One target's ops or one workload's programs, in a process of its own."""
    made = _ops_for(name, only) if kind == "op" else _programs_of(name)
    return [_item(place, kernels, plan, texts) for place, kernels, plan in made]


def _item(place: str, kernels: Iterable[KernelModule], plan: str, texts: Path | None) -> Item:
    known = {digest(kernel): kernel for kernel in kernels}
    if texts is not None:
        directory = texts.joinpath(*place.split())
        directory.mkdir(parents=True, exist_ok=True)
        for number, kernel in enumerate(known.values()):
            (directory / f"{number:03d}-{kernel.name}.txt").write_text(kernel_text(kernel))
    return Item(place, f"{len(known)}:{_short(''.join(known))}", plan)


def _short(text: str | bytes) -> str:
    data = text.encode() if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:12]


def _ops_for(target: str, only: list[str] | None) -> Iterator[tuple[str, list[KernelModule], str]]:
    """Every op's kernels for a target: all samples, all element types."""
    for name, cls in sorted(REGISTRY.items()):
        if not cls.__module__.startswith("treadle.") or (only is not None and name not in only):
            continue
        pairs = itertools.chain.from_iterable(
            ((sample, dtype) for dtype in sample.element_types()) for sample in cls.samples()
        )
        kernels = [k for sample, dtype in pairs for k in _kernels_of(sample, dtype, target)]
        yield f"{target} op {name}", kernels, "-"


def _kernels_of(sample: Sample, dtype: Any, target: str) -> list[KernelModule]:
    """The kernels that compute a sample; none where nothing is generated for it."""
    types = [TensorType(as_dtype(a.dtype), a.shape) for a in sample.arrays(dtype)]
    try:
        found = lower(sample.op, types, (), TARGETS[target])
    except TreadleError:  # an element type that this sample does not take
        return []
    return [launch.kernel for launch in found.launches] if isinstance(found, Lowered) else []


# -- programs of the benchmarks ------------------------------------------------------------------


def _workloads() -> list[str]:
    """Keys of the benchmarks' workloads that are compiled."""
    table = _of_benchmarks("workloads").WORKLOADS
    return [key for key, work in table.items() if not work.eager]


def _of_benchmarks(name: str) -> Any:
    """A module of the benchmarks, which are scripts in one directory."""
    if str(BENCHMARKS) not in sys.path:
        sys.path.insert(0, str(BENCHMARKS))
    return importlib.import_module(name)


def _programs_of(key: str) -> Iterator[tuple[str, list[KernelModule], str]]:
    """A workload's program for every target, planned and not built."""
    peer, tasks = _of_benchmarks("peer_own"), _of_benchmarks("workloads")
    captured: list[Inspected] = []

    def compiled(function: Callable[..., Any], _task: Any) -> Callable[..., Any]:
        def capture(*args: Any) -> Any:
            captured.append(mge.jit.compile(function).lower(*args))
            raise _Rendered

        return capture

    with mock.patch.object(peer, "compiled", compiled):
        call = peer.make(tasks.Task(key, "compile", 2))
        with contextlib.suppress(_Rendered):
            call()
    (stages,) = captured
    for name in TARGETS:
        plan = Stages(
            stages.captured,
            stages.interface,
            stages.options,
            crossing=NativeCompiler().toward(name),
        ).planned.plan
        parts = [Program(steps, plan.bases) for steps in (plan.prelude, plan.steps)]
        kernels = [run.kernel for part in parts for run in runs_of(part.steps)]
        words = b"".join(encode(part, digest).words.tobytes() for part in parts)
        yield f"{name} program {key}", kernels, _short(words)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
