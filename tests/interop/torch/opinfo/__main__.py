"""PyTorch's records of operators and modules through `torch.compile(backend="treadle")`.

`python -m tests.interop.torch.opinfo --help`. Results are PyTorch's own, operator by operator;
`known.toml` names every difference with its reason, and may only shrink.
"""

import argparse
import json
import random
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from treadle.conformance.answering_process import AnsweringProcess

KNOWN = Path(__file__).parent / "known.toml"
DTYPES = ("float32", "float64", "bfloat16", "int64", "bool")


def problems_of(found: dict[str, Any]) -> list[str]:
    """What must not be: crashes, wrong numbers, errors where PyTorch runs."""
    crashed = [f"crashed: {found['lost']}"] if "lost" in found else []
    return [
        *crashed,
        *(f"wrong: {x}" for x in found.get("wrong", ())),
        *(f"raised: {x}" for x in found.get("raised", ())),
    ]


def is_whole(found: dict[str, Any]) -> bool:
    """Whether every sample ran entirely in Treadle."""
    apart = found.get("left") or found.get("eager") or problems_of(found) or "broken" in found
    return not apart and bool(found.get("samples"))


def jobs_of(names: list[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    chosen = [n for n in names if not options.only or any(o in n for o in options.only)]
    if options.exact:
        chosen = [n for n in names if n in options.exact]
    asked = {"count": options.samples, "seed": options.seed, "seconds": options.each}
    jobs = [
        {"name": name, "dtype": dtype, **asked}
        for dtype in options.dtypes.split(",")
        for name in chosen
    ]
    if not options.some:
        return jobs
    return random.Random(options.seed).sample(jobs, min(options.some, len(jobs)))


def found_before(report: Path | None, jobs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What an earlier run wrote about these jobs, by the job."""
    if report is None or not report.exists():
        return {}
    wanted = {json.dumps(job) for job in jobs}
    pairs = (json.loads(line) for line in report.read_text().splitlines())
    return {json.dumps(job): found for job, found in pairs if json.dumps(job) in wanted}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="opinfo", description=__doc__)
    parser.add_argument("only", nargs="*", help="parts of names; none: all records")
    parser.add_argument("--exact", nargs="*", default=[], help="whole names")
    parser.add_argument("--dtypes", default="float32", help=",".join(DTYPES))
    parser.add_argument("--samples", type=int, default=5, help="per record; 0: all")
    parser.add_argument("--some", type=int, default=0, help="so many records of all, by the seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600, help="start nothing after it")
    parser.add_argument("--each", type=float, default=0, help="processor time for a record; 0: any")
    parser.add_argument("--patience", type=float, default=120, help="seconds for a record")
    parser.add_argument("--reference", action="store_true", help="by the oracles of the ops")
    parser.add_argument("--whole", type=int, default=0, help="fail below so many whole records")
    parser.add_argument(
        "--report", type=Path, help="all findings as JSON lines; what is in it is not run again"
    )
    parser.add_argument("-v", action="store_true", help="show what was left to PyTorch")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    known = tomllib.loads(KNOWN.read_text()) if KNOWN.exists() else {}
    command = [sys.executable, "-m", "tests.interop.torch.opinfo.worker"]
    worker = AnsweringProcess(*command, *(["--reference"] if options.reference else []))
    findings: list[tuple[dict[str, Any], dict[str, Any]]] = []
    jobs = jobs_of(list(worker.start()["names"]), options)
    done = found_before(options.report, jobs)
    report = options.report.open("a") if options.report else None
    start = time.monotonic()  # the worker has started: a short run, too, tries something
    for job in jobs:
        key = json.dumps(job)
        if key in done:
            findings.append((job, done[key]))
            continue
        if time.monotonic() - start > options.seconds:
            break
        found = worker.ask(key, options.patience)
        findings.append((job, found))
        for problem in problems_of(found)[:3]:
            print(f"{job['name']} {job['dtype']}: {problem}", flush=True)
        if options.v and (found.get("left") or found.get("eager")):
            print(f"{job['name']} {job['dtype']}: {found['left']} {found['eager'][:2]}", flush=True)
        if report:
            print(json.dumps([job, found]), file=report, flush=True)
    worker.stop()
    return told(findings, known, len(jobs), options)


def told(
    findings: list[tuple[dict[str, Any], dict[str, Any]]],
    known: dict[str, Any],
    asked: int,
    options: argparse.Namespace,
) -> int:
    """Print the sums; 1 where something is not as `known.toml` has it."""
    tried = [(j, f) for j, f in findings if f.get("samples") or "lost" in f]
    whole = sum(is_whole(f) for _, f in tried)
    left = Counter(x.partition(":")[0] for _, f in tried for x in {*f.get("left", ())})
    bad, stale = 0, 0
    for job, found in tried:
        listed = known.get(job["dtype"], {}).get(job["name"])
        problem = bool(problems_of(found))
        bad += problem and not listed
        if listed and not problem and not options.samples:
            print(f"{job['name']} {job['dtype']} is in {KNOWN.name} and is right: take it out")
            stale += 1
    print(
        f"opinfo: seed {options.seed}, {len(findings)} of {asked} records, "
        f"{sum(f.get('samples', 0) for _, f in tried)} samples, "
        f"{sum(f.get('cut', 0) for _, f in tried)} cut; "
        f"{whole} of {len(tried)} entirely in Treadle, {bad} not as they should be"
    )
    if options.v:
        print(", ".join(f"{name} {count}" for name, count in left.most_common(60)))
    return int(bool(bad or stale or not tried or whole < options.whole))


if __name__ == "__main__":
    sys.exit(main())
