"""What programs pay before they do anything: imports, a first run by Lite, and bytes on disk.

Every program is a process of its own, and all take turns. Times are processor time, which other
work on the machine disturbs less; the least and the median are printed.

    python benchmarks/startup.py [--rounds 10] [--lite PYTHON]

`--lite` names the interpreter of an environment that has `treadle-lite` and NumPy alone, which
takes part then.
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.deploy import compile_offline
from treadle.engine.package.models import read_models, write_models

RUN = """
from treadle.lite import LiteNetwork
network = LiteNetwork()
network.load({file!r})
network.forward()
network.get_io_tensor("y").to_numpy()
"""
SIZES = """
import pathlib, sys, treadle
loaded = [m.__file__ for n, m in sys.modules.items() if n.startswith("treadle") and m.__file__]
there = list(pathlib.Path(treadle.__file__).parent.rglob("*.py"))
for what, files in (("read", loaded), ("installed", there)):
    print(f"modules of Treadle {what}: {len(files)}, "
          f"{sum(pathlib.Path(f).stat().st_size for f in files) / 1e6:.1f} MB")
# That of `getrusage` would be the parent's, whose peak a new process inherits.
status = pathlib.Path("/proc/self/status")
if status.exists():
    peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    print(f"memory of the process: {int(peak.split()[1]) / 1024:.0f} MB")
"""


def models(folder: Path) -> tuple[Path, Path]:
    """A small model as a graph, and with native code."""
    conv, head = M.Conv2d(3, 8, 3), M.Linear(8, 4)

    @mge.jit.trace(symbolic=True, capture_as_const=True)
    def classify(x: mge.Tensor) -> mge.Tensor:
        return F.softmax(head(F.mean(F.relu(conv(x)), (2, 3))), axis=1)

    classify(mge.tensor(np.zeros((1, 3, 32, 32), np.float32)))
    portable, native = folder / "portable.mge", folder / "native.mge"
    classify.dump(portable, arg_names=["x"], output_names=["y"])
    write_models(native, [compile_offline(read_models(portable)[0])], "startup")
    return portable, native


def command(python: str, program: str) -> list[str]:
    """What runs a program; another interpreter than ours does not see our PYTHONPATH."""
    return [python, *([] if python == sys.executable else ["-E"]), "-c", program]


def seconds(program: str, python: str) -> float:
    """Processor time of a process that runs a program."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command(python, program), check=True, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a table and sizes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--lite", help="an interpreter that has treadle-lite")
    given = parser.parse_args()
    rounds = given.rounds
    with tempfile.TemporaryDirectory() as scratch:
        portable, native = models(Path(scratch))
        native_run, graph_run = RUN.format(file=str(native)), RUN.format(file=str(portable))
        programs = {
            "nothing": "pass",
            "import numpy": "import numpy",
            "import treadle": "import treadle",
            "import treadle.lite": "import treadle.lite",
            "Lite runs native code": native_run,
            "Lite runs a graph, program in the cache": graph_run,
            "packages for training": "import treadle.functional, treadle.module, "
            "treadle.optimizer, treadle.jit, treadle.data",
        }
        if importlib.util.find_spec("onnxruntime"):
            programs["import onnxruntime"] = "import onnxruntime"
        runs = {name: (program, sys.executable) for name, program in programs.items()}
        if given.lite:
            small = {
                "nothing": "pass",
                "import numpy": "import numpy",
                "import treadle.lite": "import treadle.lite",
                "native code": native_run,
                "a graph, by NumPy": graph_run,
            }
            runs |= {f"treadle-lite: {n}": (text, given.lite) for n, text in small.items()}
        found: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(rounds + 1):
            for name, (program, python) in runs.items():
                taken = seconds(program, python)
                if turn:  # The first writes bytecode and fills caches.
                    found[name].append(taken)
        print(f"{'program':42}{'least ms':>10}{'median ms':>11}")
        for name, taken in found.items():
            print(f"{name:42}{1e3 * min(taken):10.0f}{1e3 * statistics.median(taken):11.0f}")
        sys.stdout.flush()
        for python in (sys.executable, *([given.lite] if given.lite else [])):
            print(python)
            subprocess.run(command(python, native_run + SIZES), check=True)
            if python == given.lite:
                subprocess.run(command(python, graph_run + SIZES), check=True)


if __name__ == "__main__":
    main()
