"""Damaged files of every kind that is read: the right result, or an error of Treadle's own.

`python -m tests.damage --help`. Each file has limited memory and time, in processes that may
crash; what must not be is printed, and the file kept.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from tests.damage.kinds import KINDS, Kind, flat, there

import treadle as mge
from treadle.base.errors import TreadleError
from treadle.conformance.answering_process import AnsweringProcess

Values = dict[str, Any]

MEMORY = 1 << 30
"""Bytes beyond what a warm process has; sound files take some megabytes."""
PATIENCE = 60.0
"""Seconds for a file; sound ones take less than one."""


# -- workers -----------------------------------------------------------------------------------


def work(folder: Path) -> None:
    """Answer jobs, one line of JSON each."""
    mge.set_default_device("cpux")
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr
    reader = Reader(folder)
    print(json.dumps({}), file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        answer = {"made": made_in(folder, job["make"])} if "make" in job else reader.read(**job)
        print(json.dumps(answer), file=answers, flush=True)


def made_in(folder: Path, kinds: list[str]) -> list[str]:
    """Write sound files; the kinds that there are."""
    chosen = kinds or there()
    for name in chosen:
        place = folder / "sound" / name
        place.mkdir(parents=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            for file, content in KINDS[name].make(Path(scratch)).items():
                (place / file).write_bytes(content)
    return chosen


def damaged(folder: Path, kind: str, seed: int) -> tuple[str, bytes]:
    """The name of a sound file, and what becomes of it."""
    rng = random.Random(f"{kind} {seed}")
    path = rng.choice(sorted((folder / "sound" / kind).iterdir()))
    return path.name, KINDS[kind].change(path.read_bytes(), rng)


class Reader:
    """Reads damaged files in limited memory, beside what the sound ones gave."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.expected: dict[Path, Values] = {}

    def read(self, kind: str, seed: int) -> dict[str, str]:
        """How it ended: "as before", "other", "refused", or what must not be, behind a "!"."""
        name, content = damaged(self.folder, kind, seed)
        path = self.folder / f"{os.getpid()}-{name}"
        path.unlink(missing_ok=True)  # What is mapped stays as it was.
        path.write_bytes(content)
        return {"end": outcome(KINDS[kind], path, self.sound(kind, name))}

    def sound(self, kind: str, name: str) -> Values:
        """What the sound file gives; what this kind needs has been imported then."""
        path = self.folder / "sound" / kind / name
        if path not in self.expected:
            limit(None)
            self.expected[path] = dict(flat(KINDS[kind].use(path)))
            limit(MEMORY)
        return self.expected[path]


def limit(more: int | None) -> None:
    """Let the process have so many bytes beside what it has; None: any number."""
    size = resource.RLIM_INFINITY
    if more is not None:
        with open("/proc/self/statm") as file:
            size = int(file.read().split()[0]) * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))


def outcome(kind: Kind, path: Path, wanted: Values) -> str:
    """As `Reader.read`; the first line of what must not be tells one fault from another."""
    try:
        found = dict(flat(kind.use(path)))
    except TreadleError:
        return "refused"
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        said = "".join(traceback.format_exception(error)[-6:])
        return f"! {type(error).__name__} at {where}\n{said}"
    same = found.keys() == wanted.keys() and all(map(equal, found.values(), wanted.values()))
    if kind.sealed and not same:
        return "! it gives other numbers than the sound file"
    return "as before" if same else "other"


def equal(one: Any, other: Any) -> bool:
    """Whether two values are the same to the bit."""
    if not isinstance(one, np.ndarray | np.generic):
        return type(one) is type(other) and repr(one) == repr(other)
    a, b = np.asarray(one), np.asarray(other)
    return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()


# -- the run -----------------------------------------------------------------------------------


class Run:
    """Workers in threads, what they found, and the files it was found in."""

    def __init__(
        self,
        kinds: list[str],
        seed: int,
        folder: Path,
        kept: Path,
        say: Callable[[str], None] = print,
    ) -> None:
        self.kinds, self.next, self.folder, self.kept = kinds, seed, folder, kept
        self.say = say
        self.ends: Counter[tuple[str, str]] = Counter()
        self.found: dict[str, str] = {}
        self.lock = threading.Lock()

    def go(self, seconds: float, most: int, workers: int) -> None:
        """Read files until the time is over."""
        end = time.monotonic() + seconds
        last = self.next + most

        def turn(_: int) -> None:
            process = process_in(self.folder)
            try:
                while time.monotonic() < end:
                    with self.lock:
                        if self.next >= last:
                            break
                        seed, self.next = self.next, self.next + 1
                    self.take(self.kinds[seed % len(self.kinds)], seed, process)
            finally:
                process.stop()

        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(turn, range(workers)))

    def take(self, kind: str, seed: int, process: AnsweringProcess) -> None:
        """Have one file read."""
        answer = process.ask(json.dumps({"kind": kind, "seed": seed}), PATIENCE)
        end = answer.get("end", f"! {answer.get('lost')}")
        with self.lock:
            self.ends[kind, "found" if end[0] == "!" else end] += 1
            if end[0] != "!":
                return
            first = f"{kind}: {end.partition(chr(10))[0]}"
            if first in self.found:
                return
            self.found[first] = end
            self.kept.mkdir(parents=True, exist_ok=True)
            place = self.kept / f"{kind}-{seed}".replace(" ", "-")
            place.write_bytes(damaged(self.folder, kind, seed)[1])
            self.say(
                f"=== {kind}, seed {seed}: {end}\nthe file: {place}\n"
                f"again: python -m tests.damage {kind!r} --seed {seed} --most 1"
            )


def process_in(folder: Path) -> AnsweringProcess:
    """A worker; its caches are its own, the keys that vouch for files are not."""
    environment = {
        **os.environ,
        "TREADLE_CACHE_DIR": tempfile.mkdtemp(dir=folder, prefix="cache-"),
        "TREADLE_CONFIG_DIR": str(folder / "config"),
        "TREADLE_LOG_LEVEL": "CRITICAL",
        "TREADLE_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = sys.executable, "-m", "tests.damage", "--worker", str(folder)
    return AnsweringProcess(*command, environment=environment, quiet=True)


def make(folder: Path, kinds: list[str]) -> list[str]:
    """Write sound files, of all kinds that there are here unless some are named; the kinds."""
    process = process_in(folder)
    try:
        answer = process.ask(json.dumps({"make": kinds}), 600)
    finally:
        process.stop()
    if "made" not in answer:
        raise SystemExit(f"sound files cannot be made: {answer}")
    return list(answer["made"])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="damage", description=__doc__)
    parser.add_argument("kinds", nargs="*", help="kinds of file; none: all that can be read here")
    parser.add_argument("--seed", type=int, default=None, help="of the first file")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--most", type=int, default=1 << 62, help="files")
    parser.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1))
    parser.add_argument("--kept", type=Path, default=Path("build/damage"), help="what fails")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Run for some time; the exit status says whether anything was found."""
    given = arguments()
    if given.worker:
        work(given.worker)
        return 0
    seed = random.SystemRandom().randrange(1 << 30) if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix="damage-"))
    try:
        run = Run(make(folder, given.kinds), seed, folder, given.kept)
        run.go(given.seconds, given.most, given.workers)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for kind in run.kinds:
        ends = [f"{end} {n}" for (of, end), n in sorted(run.ends.items()) if of == kind]
        print(f"{kind:22} {', '.join(ends)}")
    print(f"seed {seed}: {sum(run.ends.values())} files, {len(run.found)} findings")
    return bool(run.found)


if __name__ == "__main__":
    sys.exit(main())
