"""What longer vectors compute slower than shorter ones, workload by workload and group by group.

    python benchmarks/targets.py T2 I5 [--targets avx2,avx512] [--least 0.02]

Every launch of a workload's program is timed by itself for both targets, which this processor must
have. Printed are groups of ops that take longer for the second one, by a share of the whole
program: most of them are faults of a schedule.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict

from kernels import profiled
from workloads import WORKLOADS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="+", choices=list(WORKLOADS), metavar="WORKLOAD")
    parser.add_argument("--targets", default="avx2,avx512", help="two names, as TREADLE_CPU_TARGET")
    parser.add_argument("--least", type=float, default=0.02, help="share of the program's time")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        print(json.dumps(_groups(given.workloads[0], given.threads, given.repeats)))
        return
    first, second = given.targets.split(",")
    for key in given.workloads:
        before, after = (_measured(key, target, given) for target in (first, second))
        whole = sum(after.values())
        print(f"{key}: {first} {sum(before.values()):.2f} ms, {second} {whole:.2f} ms")
        lost = {label: after[label] - before.get(label, 0.0) for label in after}
        for label, more in sorted(lost.items(), key=lambda pair: -pair[1]):
            if more > given.least * whole:
                print(f"  {before.get(label, 0.0):9.3f} {after[label]:9.3f}  {label[:70]}")


def _groups(key: str, threads: int, repeats: int) -> dict[str, float]:
    """Milliseconds by label of a group."""
    found: dict[str, float] = defaultdict(float)
    profile, _ = profiled(key, threads, repeats, disabled=("together",))
    for step in profile.steps:
        found[step.label] += 1e3 * step.seconds
    return found


def _measured(key: str, target: str, given: argparse.Namespace) -> dict[str, float]:
    """The same, in a process for another target."""
    options = ["--here", f"--threads={given.threads}", f"--repeats={given.repeats}"]
    environment = os.environ | {
        "TREADLE_CPU_TARGET": target,
        "TREADLE_NUM_THREADS": str(given.threads),
    }
    done = subprocess.run(
        [sys.executable, __file__, key, *options],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return times


if __name__ == "__main__":
    main()
