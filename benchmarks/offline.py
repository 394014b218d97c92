"""Models on their way out: compiling a file, loading it, its first run, and a library beside it.

For each workload an ONNX model is compiled by `treadle compile` with an empty cache, in a process
of its own. Fresh processes then load the file and run it; others run the library that
`--emit library` writes, through its C functions. Both kinds take turns. Needs the extra `onnx`.

    python benchmarks/offline.py [I1 I2 I3] [--rounds 7] [--seconds 2]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from workloads import WORKLOADS, data_of

Figures = dict[str, float]
HERE = Path(__file__).parent


def exported(workload: str, path: Path) -> None:
    """Write a workload's model as ONNX, in another process, so that this one stays small."""
    code = (
        "import sys; from peer_own import load, tensor; from workloads import WORKLOADS, data_of\n"
        "from treadle.interop.onnx import export; work = WORKLOADS[sys.argv[1]]\n"
        "model = load(work.model)\nmodel.eval()\n"
        "export(model, tensor(data_of(work)[0]), path=sys.argv[2], arg_names=['x'])"
    )
    subprocess.run([sys.executable, "-c", code, workload, str(path)], check=True, cwd=HERE)


def compiled(source: Path, output: Path, *options: str) -> float:
    """Seconds that the command takes, its start included; nothing is in the cache."""
    command = [sys.executable, "-m", "treadle", "compile", str(source), "-o", str(output)]
    with tempfile.TemporaryDirectory() as cache:
        started = time.perf_counter()
        subprocess.run(
            [*command, *options],
            check=True,
            capture_output=True,
            env={**os.environ, "TREADLE_CACHE_DIR": cache},
        )
        return time.perf_counter() - started


def child(what: str, path: Path, data: Path, seconds: float) -> Figures:
    """What another process measures; see `loaded` and `library`."""
    command = [sys.executable, __file__, "--child", what, str(path), str(data), str(seconds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: Figures = json.loads(done.stdout)
    return found


def loaded(path: str, x: np.ndarray[Any, Any], seconds: float) -> Figures:
    """Loading and running a file in Python."""
    started = time.perf_counter()
    from treadle.deploy import load_offline

    imported = time.perf_counter()
    model = load_offline(path)
    name = model.inputs[0].name
    there = time.perf_counter()
    model.run({name: x})
    first = time.perf_counter()
    times = timed(lambda: model.run({name: x}), seconds)
    return {
        "import": imported - started,
        "load": there - imported,
        "first": first - there,
        "run": statistics.median(times),
    }


def library(path: str, x: np.ndarray[Any, Any], seconds: float) -> Figures:
    """The same model as a library, called through its C functions."""
    code = ctypes.CDLL(path)
    model, out = ctypes.c_void_p(), ctypes.c_int(0)
    code.net_create.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    code.net_set_input.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    code.net_run.argtypes = [ctypes.c_void_p]
    started = time.perf_counter()
    out.value = code.net_create(ctypes.addressof(model), 0, None)
    out.value |= code.net_set_input(model, 0, x.ctypes.data)
    there = time.perf_counter()
    out.value |= code.net_run(model)
    first = time.perf_counter()
    times = timed(lambda: code.net_run(model), seconds)
    if out.value:
        raise SystemExit("the library fails")
    return {"load": there - started, "first": first - there, "run": statistics.median(times)}


def timed(call: Any, seconds: float) -> list[float]:
    """Times of calls for so long."""
    times: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return times


def row(workload: str, rounds: int, seconds: float) -> str:
    """A line of the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, ready, data = folder / "net.onnx", folder / "net.tm", folder / "x.npy"
        np.save(data, data_of(WORKLOADS[workload])[0])
        exported(workload, source)
        cold = compiled(source, ready)
        compiled(source, folder, "--emit", "library", "--name", "net")
        pairs = [
            (
                child("loaded", ready, data, seconds),
                child("library", folder / "libnet.so", data, seconds),
            )
            for _ in range(rounds)
        ]
        size = ready.stat().st_size / 2**20

    def middle(values: Any) -> float:
        return float(statistics.median(list(values)))

    cells = [
        WORKLOADS[workload].title,
        f"{cold:.1f}",
        f"{size:.0f}",
        f"{1e3 * middle(p['import'] for p, _ in pairs):.0f}",
        f"{1e3 * middle(p['load'] for p, _ in pairs):.1f}",
        f"{1e3 * middle(p['first'] for p, _ in pairs):.1f}",
        f"{1e3 * middle(p['run'] for p, _ in pairs):.2f}",
        f"{middle(p['first'] / p['run'] for p, _ in pairs):.2f}",
        f"{1e3 * middle(q['run'] for _, q in pairs):.2f}",
        f"{middle(q['run'] / p['run'] for p, q in pairs):.2f}",
    ]
    return "| " + " | ".join((workload, *cells)) + " |"


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        what, path, data, seconds = sys.argv[2:]
        measure = {"loaded": loaded, "library": library}[what]
        print(json.dumps(measure(path, np.ascontiguousarray(np.load(data)), float(seconds))))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=["I1", "I2", "I3"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of runs in each process")
    options = parser.parse_args()
    print(
        "|  | model | compile, cold, s | file, MiB | import, ms | load, ms | first run, ms "
        "| run, ms | first / run | library, ms | library / Python |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for workload in options.workloads:
        print(row(workload, options.rounds, options.seconds), flush=True)


if __name__ == "__main__":
    main()
