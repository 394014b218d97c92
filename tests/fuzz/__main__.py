"""Random programs in worker processes that may crash or hang: `python -m tests.fuzz`.

FUZZ_SECONDS says how long, FUZZ_SEED where to begin, FUZZ_MOST how many programs at most,
FUZZ_WORKERS how many processes there are.
Programs that fail are made small and printed as scripts that show the difference by themselves.
"""

from __future__ import annotations

import json
import os
import platform
import random
import re
import selectors
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.backends.interpreted import interpreting
from tests.fuzz.generate import MOST, Foreign, generate, out_of_range, work_of
from tests.fuzz.minimize import minimized
from tests.fuzz.modes import MODES, differences
from tests.fuzz.program import Leaf, Program

from treadle.backends.cpu.host import flags, target_for

KNOWN = Path(__file__).with_name("known.toml")
PATIENCE = 180.0
"""Seconds without an answer after which a worker has hung."""
TURN = 5.0
"""Seconds that asking every worker once takes at most."""
PER_PROCESS = 40
"""Programs after which a worker is replaced by one for another target."""
INTERPRETED = " interpreted"
"""What follows a target that this machine does not run."""
LITTLE = 1e4
"""The most work of programs that are interpreted, which is slow."""
MODES_EACH = 4
"""Ways in which each program is run, besides op by op."""


def chosen(seed: int) -> tuple[Program, list[str]]:
    """The program of a seed, and how it is to be run.

    Raises:
        Foreign: see `generate`.
    """
    rng = random.Random(seed)
    program = generate(seed)
    if rng.random() < 0.2:
        program = out_of_range(program, seed)
    modes = rng.sample(list(MODES), MODES_EACH)
    if work_of(program) > min(MOST):  # Little work is done by one thread.
        modes[0] = "2 threads"
    return program, list(dict.fromkeys(modes))


# -- workers -----------------------------------------------------------------------------------


def work() -> None:
    """Answer jobs, one line of JSON each."""
    target = os.environ.get("FUZZ_INTERPRETED", "")
    with interpreting(target) if target else nullcontext():
        for line in sys.stdin:
            print(
                "\n" + json.dumps(_done(json.loads(line), LITTLE if target else 1e99)), flush=True
            )


def _done(job: Mapping[str, Any], most: float) -> dict[str, Any]:
    if "program" in job:
        return {"wrong": differences(program_of(job["program"]), job["modes"])}
    try:
        program, modes = chosen(job["seed"])
    except Foreign as error:
        return {"wrong": {"generate": str(error)}}
    if work_of(program) > most:
        return {"wrong": {}}
    if most == LITTLE:  # Interpreted by one thread, so 50 calls would only take time.
        modes = [mode for mode in modes if mode != "2 threads"]
    wrong = differences(program, modes)
    if not wrong:
        return {"wrong": {}}
    mode = next(iter(wrong))
    kind = wrong[mode].split(":")[0]

    def fails(smaller: Program) -> bool:
        found = differences(smaller, [mode]).get(mode, "")
        return bool(found) and (found.split(":")[0] == kind or kind.startswith("call"))

    small = minimized(program, fails)
    found = differences(small, [mode]).get(mode, "")
    return {"wrong": wrong, "mode": mode, "message": found, "script": small.script(mode, found)}


def packed(program: Program) -> dict[str, Any]:
    """A program as plain data."""
    leaves = {name: list(asdict(leaf).values()) for name, leaf in program.leaves.items()}
    return {**asdict(program), "leaves": leaves}


def program_of(data: Mapping[str, Any]) -> Program:
    """The program that `packed` made plain data of."""
    leaves = {n: Leaf(k, d, tuple(s), *rest) for n, (k, d, s, *rest) in data["leaves"].items()}
    lines, outputs = tuple(data["lines"]), tuple(data["outputs"])
    rest = data["grads"], data["coarse"], data["optimizer"], data["casting"]
    return Program(leaves, lines, outputs, *rest)


class Worker:
    """A process that answers jobs, until it crashes or hangs."""

    def __init__(self, target: str) -> None:
        self.target = target
        environment = {**os.environ, "TREADLE_CPU_TARGET": target, "TREADLE_LOG_LEVEL": "ERROR"}
        if target.endswith(INTERPRETED):
            name = target.removesuffix(INTERPRETED)
            environment |= {"TREADLE_CPU_TARGET": "", "FUZZ_INTERPRETED": name}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz", "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
            bufsize=1,
        )
        self.job: dict[str, Any] = {}
        self.waited = 0.0  # seconds in which somebody listened
        self.count = 0

    def ask(self, job: dict[str, Any]) -> None:
        """Hand it a job."""
        self.job, self.waited, self.count = job, 0.0, self.count + 1
        if self.process.stdin is not None:
            try:
                self.process.stdin.write(json.dumps(job) + "\n")
                self.process.stdin.flush()
            except BrokenPipeError:
                pass  # Its end is seen when it is read.

    def answer(self) -> dict[str, Any]:
        """What it says; that it has crashed, if it has."""
        if self.process.stdout is not None:
            for line in self.process.stdout:
                if line.startswith("{"):
                    found: dict[str, Any] = json.loads(line)
                    return found
        return {"died": f"ended with status {self.process.wait()}"}

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


# -- the run -----------------------------------------------------------------------------------


def targets() -> list[str]:
    """CPU targets that this machine runs, and the next one, which is interpreted."""
    best = target_for(flags(), platform.machine()).name
    ladder = ["generic", "avx2", "avx512"]
    here = ladder.index(best) if best in ladder else 0
    beyond = [name + INTERPRETED for name in ladder[here + 1 :][:1]] if best in ladder else []
    return ["", *ladder[:here], *beyond]


def shrunk(program: Program, mode: str, target: str) -> str:
    """A program that ends its process, made small in processes of its own."""

    def fails(smaller: Program) -> bool:
        worker = Worker(target)
        try:
            worker.ask({"program": packed(smaller), "modes": [mode]})
            with selectors.DefaultSelector() as ready:
                if worker.process.stdout is None:
                    return False
                ready.register(worker.process.stdout, selectors.EVENT_READ)
                return not ready.select(60) or "died" in worker.answer()
        finally:
            worker.end()

    return minimized(program, fails).script(mode, "The process ends, or hangs.")


class Run:
    """All workers, what they found, and what of it is known."""

    def __init__(self, seed: int, workers: int, say: Callable[[str], None] = print) -> None:
        self.next = seed
        self.targets = targets()
        self.started = 0
        self.workers = [self._worker() for _ in range(workers)]
        self.done = 0
        self.failed: list[str] = []
        self.known = tomllib.loads(KNOWN.read_text())
        self.say = say

    def _worker(self) -> Worker:
        self.started += 1
        return Worker(self.targets[self.started % len(self.targets)])

    def go(self, seconds: float, beyond: int) -> None:
        """Ask until the time is over or seed `beyond` is next, then wait for those that work."""
        end = time.monotonic() + seconds
        for worker in self.workers:
            self._ask(worker)
        looked = time.monotonic()
        while any(w.job for w in self.workers):
            # A process that is stopped, as for a measurement beside it, does not wait.
            passed, looked = time.monotonic() - looked, time.monotonic()
            for worker in self.workers:
                worker.waited += min(passed, TURN)
            for i, worker in enumerate(self.workers):
                answer = self._heard(worker)
                if answer is None:
                    continue
                self._take(worker, answer)
                worker.job = {}
                if "died" in answer or worker.count >= PER_PROCESS:
                    worker.end()
                    self.workers[i] = worker = self._worker()
                if time.monotonic() < end and self.next < beyond:
                    self._ask(worker)
        for worker in self.workers:
            worker.end()

    def _ask(self, worker: Worker) -> None:
        worker.ask({"seed": self.next})
        self.next += 1

    def _heard(self, worker: Worker) -> dict[str, Any] | None:
        if not worker.job or worker.process.stdout is None:
            return None
        with selectors.DefaultSelector() as ready:
            ready.register(worker.process.stdout, selectors.EVENT_READ)
            if ready.select(0.2):
                return worker.answer()
        patience = PATIENCE * (5 if worker.target.endswith(INTERPRETED) else 1)
        if worker.waited > patience:
            return {"died": f"no answer in {patience:.0f} s"}
        return None

    def _take(self, worker: Worker, answer: dict[str, Any]) -> None:
        seed = worker.job["seed"]
        self.done += 1
        if "died" in answer:
            answer["message"], answer["script"] = answer["died"], self._died(seed, worker)
        if not answer.get("wrong") and "died" not in answer:
            return
        message = str(answer.get("message") or answer["wrong"])
        script = str(answer.get("script", ""))
        for entry in self.known.get("difference", ()):
            if re.search(entry["text"], script) and re.search(entry["message"], message):
                return
        self.failed.append(f"seed {seed} on {worker.target or 'this processor'}: {message}")
        self.say(f"=== {self.failed[-1]}\n{answer.get('wrong', '')}\n{script}")

    def _died(self, seed: int, worker: Worker) -> str:
        """The script of a program that has ended its process, with the mode that does so."""
        try:
            program, modes = chosen(seed)
        except Foreign as error:
            return str(error)
        for mode in modes:
            other = Worker(worker.target)
            try:
                other.ask({"program": packed(program), "modes": [mode]})
                if "died" in other.answer():
                    return shrunk(program, mode, worker.target)
            finally:
                other.end()
        return program.script(modes[0], "It ended its process once.")


def main() -> int:
    """Run for some time; the exit status says whether anything failed."""
    if len(sys.argv) > 1:
        print(__doc__)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    seed = int(os.environ.get("FUZZ_SEED") or random.SystemRandom().randrange(1 << 30))
    seconds = float(os.environ.get("FUZZ_SECONDS") or 600)
    workers = int(os.environ.get("FUZZ_WORKERS") or min(4, os.cpu_count() or 1))
    run = Run(seed, workers)
    run.go(seconds, seed + int(os.environ.get("FUZZ_MOST") or 1 << 62))
    print(f"seed {seed}: {run.done} programs, {len(run.failed)} failed")
    for line in run.failed:
        print(" ", line[:300])
    return bool(run.failed)


if __name__ == "__main__":
    if "--worker" in sys.argv:
        work()
    else:
        sys.exit(main())
