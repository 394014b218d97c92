"""Which rows of MegEngine's inventory tests call: a plugin of pytest that counts them.

`pytest -p tools.called --called DIR ...` leaves a file per process in DIR: for each symbol that has
Python code, how many tests that passed ran it, and how many that failed.
`python -m tools.called COLUMN DIR` adds a column to `megengine_calls.json`, which the coverage page
reads: `megengine` for MegEngine's own tests through the import alias, `own` for those of this
repository.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from tools.evidence import MISSING, resolve
from tools.megengine_coverage import CALLS, inventory


def codes(found: Any, deep: bool = True) -> Iterator[CodeType]:
    """The code that a call of a symbol runs; of a class, that of its own methods."""
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, (staticmethod, classmethod)):
        found = found.__func__
    if isinstance(found, type):
        if deep:
            for member in vars(found).values():
                yield from codes(member, deep=False)
        return
    code = getattr(inspect.unwrap(found) if callable(found) else found, "__code__", None)
    code = code or getattr(getattr(found, "__func__", None), "__code__", None)
    if isinstance(code, CodeType):
        yield code


def symbols() -> dict[str, list[CodeType]]:
    """The code of each symbol of the inventory that has some."""
    table = {}
    for area in inventory()[0]:
        for row in area.rows:
            for address, _ in row.symbols:
                found = MISSING if "--" in address else resolve(f"treadle.{address}")
                if found is not MISSING and (listed := list(codes(found))):
                    table[address] = listed
    return table


class _Recorder:
    """Counts, for each symbol, the tests that ran it, by how they ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counts: dict[str, Counter[str]] = {}
        self.owners: dict[CodeType, list[str]] = {}
        self.ran: set[CodeType] = set()
        self.failed = False

    def pytest_sessionstart(self) -> None:
        for address, listed in symbols().items():
            for code in listed:
                self.owners.setdefault(code, []).append(address)

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """What the interpreter tells at each call and return."""
        if event == "call" and frame.f_code in self.owners:
            self.ran.add(frame.f_code)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        sys.setprofile(self.note)
        threading.setprofile(self.note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def pytest_runtest_logstart(self) -> None:
        self.ran.clear()
        self.failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed
        if report.when != "teardown":
            return
        end = "failed" if self.failed else "passed"
        for address in {a for code in self.ran for a in self.owners[code]}:
            self.counts.setdefault(address, Counter())[end] += 1

    def pytest_sessionfinish(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{os.getpid()}.json"
        file.write_text(json.dumps(self.counts, indent=1), encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that says where counts go."""
    parser.addoption("--called", type=Path, help="folder for counts of called symbols")


def pytest_configure(config: pytest.Config) -> None:
    """Count in this process if the option is given."""
    if config.getoption("--called"):
        config.pluginmanager.register(_Recorder(config.getoption("--called")), "called-recorder")


def merge(column: str, folder: Path) -> None:
    """Add up the files of a folder as a column of the table, in the place of the one before."""
    total: dict[str, Counter[str]] = {}
    for file in folder.glob("*.json"):
        for address, counts in json.loads(file.read_text(encoding="utf-8")).items():
            total.setdefault(address, Counter()).update(counts)
    table = json.loads(CALLS.read_text(encoding="utf-8")) if CALLS.exists() else {}
    for entry in table.values():
        entry.pop(column, None)
    for address, counts in total.items():
        if counts["passed"]:
            table.setdefault(address, {})[column] = counts["passed"]
    kept = {a: dict(sorted(table[a].items())) for a in sorted(table) if table[a]}
    lines = [f"  {json.dumps(a)}: {json.dumps(kept[a])}" for a in kept]
    CALLS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main() -> None:
    """Merge what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tools.called", description=__doc__)
    parser.add_argument("column", choices=("megengine", "own"))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    merge(given.column, given.folder)


if __name__ == "__main__":
    main()
