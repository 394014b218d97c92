"""`make array-api`: the array API standard's own suite on `treadle.array_api`.

The suite is a repository (github.com/data-apis/array-api-tests, with its submodule), not a package:
`ARRAY_API_TESTS` names a checkout. Failures must be those of tests/array_api/known_failures.txt,
one a line with its reason. A line for a test that passes is an error, so that the list shrinks.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
KNOWN = ROOT / "tests" / "array_api" / "known_failures.txt"
VERSION = "2024.12"
QUICK = ("has_names", "signatures", "constants", "inspection_functions", "searching_functions")
"""Parts of a short run, of some 20 s: names, signatures, and one part with generated data."""


def main() -> int:
    """Run the suite and compare; 0 if it fails where the list says and nowhere else."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a part of it, in some 20 s")
    parser.add_argument("--examples", type=int, default=20, help="generated inputs per test")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    where = os.environ.get("ARRAY_API_TESTS", "")
    if not (Path(where) / "array_api_tests").is_dir() or not where:
        print(
            "array-api: no checkout of the suite; tests/array_api compares with NumPy instead.\n"
            "  git clone --recurse-submodules https://github.com/data-apis/array-api-tests DIR\n"
            "  make array-api ARRAY_API_TESTS=DIR"
        )
        return subprocess.call([sys.executable, "-m", "pytest", "-q", "-n", "0", "tests/array_api"])
    outcomes = run(Path(where).resolve(), options.quick, options.examples, options.jobs)
    return report(outcomes, known())


def run(suite: Path, quick: bool, examples: int, jobs: int) -> dict[str, str]:
    """How each test ended: "passed", "skipped" or "failed"."""
    parts = [f"array_api_tests/test_{name}.py" for name in QUICK] if quick else ["array_api_tests"]
    environment = os.environ | {
        "ARRAY_API_TESTS_MODULE": "treadle.array_api",
        "ARRAY_API_TESTS_VERSION": VERSION,
        "ARRAY_API_TESTS_MAX_ARRAY_SIZE": "128",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(suite)]),
    }
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        command = [sys.executable, "-m", "pytest", *parts, "-q", "-n", str(jobs)]
        command += ["--max-examples", str(3 if quick else examples), "--derandomize"]
        command += ["--disable-deadline", "-W", "ignore", "-p", "no:cacheprovider"]
        command += ["--timeout", "600", "--tb=line", f"--junitxml={results}"]
        subprocess.call(command, cwd=suite, env=environment)
        return dict(_outcomes(results))


def _outcomes(results: Path) -> Iterator[tuple[str, str]]:
    for case in ElementTree.parse(results).iter("testcase"):
        module = str(case.get("classname", "")).rpartition(".")[2]
        kinds = {child.tag for child in case}
        failed = kinds & {"failure", "error"}
        outcome = "failed" if failed else "skipped" if "skipped" in kinds else "passed"
        yield f"{module}::{case.get('name')}", outcome


def known() -> dict[str, str]:
    """Reasons by test."""
    found = {}
    for line in KNOWN.read_text(encoding="utf-8").splitlines():
        test, _, reason = line.partition("  # ")
        if test and not test.startswith("#"):
            found[test] = reason
    return found


def report(outcomes: dict[str, str], reasons: dict[str, str]) -> int:
    """Print what differs from the list; 1 if something does."""
    failed = {test for test, outcome in outcomes.items() if outcome == "failed"}
    new = sorted(failed - set(reasons))
    done = sorted(t for t in reasons if t in outcomes and t not in failed)
    unexplained = sorted(t for t, reason in reasons.items() if not reason)
    for title, tests in (
        ("fails and is not known to", new),
        ("passes: take it off the list", done),
        ("has no reason", unexplained),
    ):
        for test in tests:
            print(f"{title}: {test}")
    counts = {o: list(outcomes.values()).count(o) for o in ("passed", "failed", "skipped")}
    print(", ".join(f"{n} {outcome}" for outcome, n in counts.items()))
    return int(bool(new or done or unexplained or not counts["passed"]))


if __name__ == "__main__":
    sys.exit(main())
