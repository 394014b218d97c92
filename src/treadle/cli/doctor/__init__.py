"""`treadle doctor`: what is installed, what works, what is wrong, and what to do about it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Annotated

import typer

from treadle.base.version import VERSION
from treadle.cli.doctor import installation, machine
from treadle.cli.section import Finding, Section

SECTIONS: tuple[Callable[[], Section], ...] = (
    installation.backends,
    machine.devices,
    machine.processor,
    machine.caches,
    installation.compilers,
    installation.extras,
    machine.environment,
    machine.trial,
)
ON_REQUEST = {"mpi": "treadle.cli.doctor.mpi"}
"""Modules with a function `section`, which takes too long to be asked every time."""


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Plain data for other tools.")] = False,
    mpi: Annotated[bool, typer.Option("--mpi", help="Look at MPI, too: starts processes.")] = False,
) -> None:
    """Show what is installed, and what is wrong with it.

    Backends, devices, the machine, caches, compilers and settings are looked at.

    The status is 0 where nothing is wrong, else 1; advice is not counted.
    """
    found = examine(("mpi",) if mpi else ())
    wrong = [f for s in found for f in s.findings if f.wrong]
    advice = [f for s in found for f in s.findings if not f.wrong]
    if as_json:
        data = {"treadle": VERSION, "ok": not wrong, "sections": [s.data() for s in found]}
        print(json.dumps(data, indent=1))
    else:
        print(f"Treadle {VERSION}\n")
        print("\n\n".join(section.text() for section in found))
        print(f"\n{_describe('wrong', wrong)}{_describe('advice', advice)}", end="")
    if wrong:
        raise typer.Exit(1)


def examine(on_request: tuple[str, ...] = ()) -> list[Section]:
    """All sections; one that fails is a finding of its own."""
    makers = [*SECTIONS, *(_requested(name) for name in on_request)]
    found = []
    for make in makers:
        name = getattr(make, "__name__", "section")
        try:
            found.append(make())
        except Exception as error:  # the doctor is called because something is broken
            what = f"{name} cannot be examined: {type(error).__name__}: {error}"
            found.append(Section(name, (), (), (Finding(what, "report it, with this output"),)))
    return found


def _requested(name: str) -> Callable[[], Section]:
    """A section that is asked for by name."""

    def section() -> Section:
        made: Section = importlib.import_module(ON_REQUEST[name]).section()
        return made

    section.__name__ = name
    return section


def _describe(title: str, findings: list[Finding]) -> str:
    if not findings:
        return f"{title}: nothing\n"
    lines = [f"{title}:"]
    for finding in findings:
        lines += [f"  - {finding.what}"] + ([f"    {finding.fix}"] if finding.fix else [])
    return "\n".join(lines) + "\n"
