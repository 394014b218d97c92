"""Models of timm and transformers compiled by Treadle and by Inductor, side by side.

`python -m tests.zoo.beside_inductor FOLDER` (`make torch-models-speed`) runs each model in a
process of its own, with empty caches: forward, and gradients for every fourth. A line says how far
results are from PyTorch's, what stays with PyTorch, how long both took to compile (processor time,
compilers that they start included), the least time of a call of either, in turn on one thread, and
the minutes that all of it took. The order is random and always the same, so that the lines of a
part of the run are a sample of all. With `--record FILE` lines are kept, and a run goes on where
the last one ended, whatever ended it; ctrl-c prints the table of what there is.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from math import exp, log
from pathlib import Path
from typing import Any

import torch
from tests.zoo.families import (
    MORE_TIMM,
    MORE_TRANSFORMERS,
    TIMM,
    TRANSFORMERS,
    import_torchvision,
    model_of,
)

LIMIT = 1e-3
"""Largest difference of results, relative to the largest number."""
EVERY = 4
"""One of so many models has gradients, too."""
SECONDS = 900
"""Of processor time that a model's process may take."""
ROUNDS = 12
Run = Callable[[], Any]


def _spent() -> float:
    """Seconds of this process and of those that it has started and waited for."""
    times = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(t.ru_utime + t.ru_stime for t in times)


def _gap(ours: Any, theirs: Any) -> float:
    pairs = zip(ours, theirs, strict=True)
    whole = max(float(t.abs().max()) for t in theirs if t.numel())
    return max(float((o - t).abs().max()) / max(whole, 1e-6) for o, t in pairs if t.numel())


def _least(runs: list[Run]) -> list[float]:
    """The least seconds of a call of each, in turn."""
    counts = []
    for run in runs:
        run()  # the tracer was reset after the first one had been compiled
        began = time.thread_time()
        run()
        counts.append(max(1, min(400, int(0.05 / max(time.thread_time() - began, 1e-6)))))
    best = [float("inf")] * len(runs)
    for _ in range(ROUNDS):
        for i, (run, count) in enumerate(zip(runs, counts, strict=True)):
            began = time.thread_time()
            for _ in range(count):
                run()
            best[i] = min(best[i], (time.thread_time() - began) / count)
    return best


def _calls(name: str, gradients: bool) -> tuple[Any, Callable[[Any], list[torch.Tensor]]]:
    """A model, and what is done with it or with what it was compiled to."""
    model, inputs = model_of(name, 0)

    def forward(run: Any) -> list[torch.Tensor]:
        with torch.no_grad():
            return [run(*inputs)]

    def both(run: Any) -> list[torch.Tensor]:
        model.zero_grad()
        y = run(*inputs)
        y.square().mean().backward()
        return [y.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    return model, both if gradients else forward


def measured(name: str, gradients: bool) -> dict[str, Any]:
    """Return the line of a model."""
    from treadle.interop.torch import left_to_torch

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    torch.set_num_threads(1)
    model, call = _calls(name, gradients)
    expected = [t.clone() for t in call(model)]
    line: dict[str, Any] = {"name": name, "gradients": gradients}
    runs = {}
    for backend in ("treadle", "inductor"):
        torch._dynamo.reset()
        run = torch.compile(model, backend=backend)
        began = _spent()
        found = call(run)
        line[f"{backend} compiles"] = _spent() - began
        line[f"{backend} gap"] = _gap(found, expected)
        runs[backend] = run
    line["left"] = sorted({e.operator for e in left_to_torch()})
    times = _least([lambda r=r: call(r) for r in (*runs.values(), model)])
    line |= dict(zip(("treadle", "inductor", "eager"), times, strict=True))
    return line


def _in_process(folder: Path, name: str, gradients: bool) -> dict[str, Any]:
    """The line of a model from a process with caches of its own."""
    with tempfile.TemporaryDirectory() as caches:
        names = {
            "TREADLE_CACHE_DIR": f"{caches}/treadle",
            "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TREADLE_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "tests.zoo.beside_inductor", str(folder), "--one", name]
        command += ["--gradients"] if gradients else []
        line: dict[str, Any] = {"name": name, "gradients": gradients}
        began = time.monotonic()
        done = subprocess.run(command, env=os.environ | names, capture_output=True, text=True)
        line["minutes"] = round((time.monotonic() - began) / 60, 2)
        last = done.stdout.strip().splitlines()[-1:] or [""]
        if done.returncode or not last[0].startswith("{"):
            said = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
            return line | {"error": said[0][:200]}
        return line | json.loads(last[0])


def recorded(record: Path | None) -> list[dict[str, Any]]:
    """Return the lines of runs before; one that was cut off while it was written is left out."""
    if record is None or not record.exists():
        return []
    whole = [x for x in record.read_text().splitlines(keepends=True) if x.endswith("\n")]
    record.write_text("".join(whole))
    return [json.loads(x) for x in whole]


def table(lines: list[dict[str, Any]]) -> str:
    """Return the lines in Markdown, and what they come to."""
    head = ("model", "", "difference", "stays with PyTorch", "ms", "Inductor", "speed")
    head += ("compiles, s", "Inductor")
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for line in lines:
        kind = "gradients" if line["gradients"] else "forward"
        if "error" in line:
            rows.append(f"| {line['name']} | {kind} | {line['error']} | | | | | | |")
            continue
        ours, theirs = line["treadle"], line["inductor"]
        rows.append(
            f"| {line['name']} | {kind} | {line['treadle gap']:.0e} | {', '.join(line['left'])} "
            f"| {1e3 * ours:.3g} | {1e3 * theirs:.3g} | {theirs / ours:.2f} "
            f"| {line['treadle compiles']:.2g} | {line['inductor compiles']:.2g} |"
        )
    for gradients in (False, True):
        some = [e for e in lines if e["gradients"] is gradients]
        done = [e for e in some if "error" not in e]
        if not done:
            continue
        equal = sum(e["treadle gap"] <= LIMIT for e in done)
        whole = sum(not e["left"] for e in done)
        faster = exp(sum(log(e["inductor"] / e["treadle"]) for e in done) / len(done))
        ratios = [e["treadle compiles"] / e["inductor compiles"] for e in done]
        compiles = exp(sum(map(log, ratios)) / len(done))
        rows.append(
            f"\n{'With gradients' if gradients else 'Forward'}: {equal} of {len(some)} equal, "
            f"{whole} entirely in Treadle; {faster:.2f} times Inductor's speed, "
            f"{compiles:.2f} of its time to compile (geometric means)"
        )
    minutes = [e["minutes"] for e in lines if "minutes" in e]
    if minutes:
        rows.append(f"\n{sum(minutes):.0f} minutes for {len(minutes)} lines")
    return "\n".join(rows)


def main(arguments: list[str]) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="tests.zoo.beside_inductor", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("only", nargs="*", help="parts of names; none: all models")
    parser.add_argument("--record", type=Path, help="file of lines so far")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--gradients", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    sys.path.append(str(options.folder))
    if options.one:
        import_torchvision()
        print(json.dumps(measured(options.one, options.gradients)))
        return 0
    record: Path | None = options.record
    lines = recorded(record)
    known = {(e["name"], e["gradients"]) for e in lines}
    names = [f"timm/{n}" for n in (*TIMM, *MORE_TIMM)]
    names += [f"transformers/{n}" for n in (*TRANSFORMERS, *MORE_TRANSFORMERS)]
    names = [n for n in names if not options.only or any(o in n for o in options.only)]
    wanted = [(n, False) for n in names] + [(n, True) for n in names[::EVERY]]
    random.Random(0).shuffle(wanted)
    try:
        for name, gradients in wanted:
            if (name, gradients) in known:
                continue
            lines.append(_in_process(options.folder, name, gradients))
            print(json.dumps(lines[-1]), flush=True)
            if record:
                with record.open("a") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
    except KeyboardInterrupt:
        print(f"interrupted: {len(lines)} of {len(wanted)} lines")
    print(table(lines))
    return int(any("error" in e or e["treadle gap"] > LIMIT for e in lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
