"""Whole workloads beside other frameworks: times, ratios of medians, memory, and a plot.

Every framework runs in a process of its own; the processes take turns in short blocks, so that
all meet the same state of the machine. Weights and data are the same, and results are compared.
Frameworks that are not installed are left out.

    python benchmarks/compare.py [T1 I3 ...] [--seconds 6] [--plot FILE] [--markdown]

Frameworks may live in environments of their own, named by options or in BENCH_PYTHON:

    python benchmarks/compare.py --python jax=/venvs/jax/bin/python
    BENCH_PYTHON="jax=/venvs/jax/bin/python torch=/venvs/torch/bin/python" make bench

PyTorch (`torch onnx onnxscript`) exports the models of ONNX Runtime and OpenVINO.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from processes import Bench
from report import plot, print_markdown, table_of, versions
from rich.console import Console
from workloads import PEERS, WORKLOADS


def main() -> None:
    """Measure, print, plot."""
    given = _arguments()
    peers = tuple(p for p in PEERS if p in (given.only or PEERS))
    folder = Path(tempfile.gettempdir(), f"treadle-benchmarks-{os.getuid()}")
    with ExitStack() as stack:
        caches = stack.enter_context(tempfile.TemporaryDirectory()) if given.cold else ""
        bench = Bench(_interpreters(given.python), given.threads, folder, caches)
        results = {key: bench.measure(key, given.seconds, peers) for key in given.workloads}
    table = table_of(results)
    if given.markdown:
        print_markdown(table)
    else:
        Console(width=150).print(table)
    print(versions(results), file=sys.stderr)
    if given.plot:
        plot(results, given.plot)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS), metavar="WORKLOAD")
    parser.add_argument("--seconds", type=float, default=6.0, help="per framework and workload")
    parser.add_argument("--threads", type=int, default=_cores(), help="of every framework")
    parser.add_argument("--only", action="append", choices=PEERS, help="a framework; may repeat")
    parser.add_argument(
        "--python", action="append", default=[], metavar="NAME=PATH", help="its interpreter"
    )
    parser.add_argument("--cold", action="store_true", help="begin without compiled code")
    parser.add_argument("--plot", metavar="FILE", help="write a picture (needs matplotlib)")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    given = parser.parse_args()
    for key in given.workloads:
        if key not in WORKLOADS:
            parser.error(f"{key!r} is no workload; one of {', '.join(WORKLOADS)}")
    return given


def _interpreters(options: list[str]) -> dict[str, str]:
    """Interpreters by framework, from the environment and, before that, the command line."""
    named = [*os.environ.get("BENCH_PYTHON", "").split(), *options]
    found = dict(text.partition("=")[::2] for text in named)
    wrong = [name for name in found if name not in PEERS]
    if wrong:
        raise SystemExit(f"{wrong[0]!r} is no framework; one of {', '.join(PEERS)}")
    return found


def _cores() -> int:
    named = os.environ.get("TREADLE_NUM_THREADS", "")
    return int(named) if named else len(os.sched_getaffinity(0))


if __name__ == "__main__":
    main()
