"""Runs the checks of a backend, one after another, and compares what fails with what is known."""

from __future__ import annotations

import contextvars
import datetime
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np

from treadle.base.version import VERSION
from treadle.conformance import (
    device,
    distributed,
    graph,
    honesty,
    isolation,
    movement,
    operators,
    performance,
    profiling,
    purity,
    pytorch,
    training,
)
from treadle.conformance.check import Check, CheckFailed, NotOffered
from treadle.conformance.known import KnownFailure, find_known
from treadle.conformance.result import CheckResult, Report, Status
from treadle.conformance.subject import Subject
from treadle.engine.eager.fallback import fallback

GROUPS: Mapping[str, Callable[[Subject], Iterable[Check]]] = {
    "Purity": purity.checks,
    "Device": device.checks,
    "Movement": movement.checks,
    "Isolation": isolation.checks,
    "Operators": operators.checks,
    "Honesty": honesty.checks,
    "Graph": graph.checks,
    "Training": training.checks,
    "Distributed": distributed.checks,
    "PyTorch": pytorch.checks,
    "Profiling": profiling.checks,
    "Performance sanity": performance.checks,
}
"""Groups of checks, in order: later groups rely on what earlier ones found sound."""

Seen = Callable[[CheckResult], None]


def run_checks(
    name: str,
    *,
    groups: Sequence[str] = (),
    only: str = "*",
    tier: int = 3,
    quick: bool = False,
    known: Sequence[KnownFailure] = (),
    timeout: float = 300.0,
    seen: Seen | None = None,
) -> Report:
    """Check an installed backend.

    Args:
        name: of its entry point.
        groups: those of `GROUPS` to run, all if left out.
        only: a pattern of checks' ids, such as "operators/add/*".
        tier: checks for higher tiers are left out.
        quick: fewer samples and steps.
        known: failures that are expected.
        timeout: seconds that one check may take; one that takes longer ends the run.
        seen: called with every result as soon as it is there.

    Returns:
        The report.

    Raises:
        DeviceError, LoadError: there is no such backend, or it cannot be loaded.
        NotOffered: it has no device that can be used here.
    """
    subject = Subject(name, quick=quick)
    report = Report(name, _about(subject, tier))
    for check in _chosen(subject, groups, only, tier):
        result, finished = _run(check, known, timeout)
        report.results.append(result)
        if seen is not None:
            seen(result)
        if not finished:
            report.about["stopped"] = f"{check.id} did not come to an end"
            break
    report.coverage = {op: dict(row) for op, row in sorted(subject.coverage.items())}
    return report


def _about(subject: Subject, tier: int) -> dict[str, str]:
    return {
        "backend": subject.name,
        "distribution": f"{subject.entry.distribution} {subject.entry.version}".strip(),
        "devices": str(subject.count),
        "treadle": VERSION,
        "tier": str(tier),
        "samples": "quick" if subject.quick else "all",
        "date": datetime.date.today().isoformat(),
    }


def _chosen(subject: Subject, groups: Sequence[str], only: str, tier: int) -> Iterator[Check]:
    for group, checks in GROUPS.items():
        if groups and group not in groups:
            continue
        for check in checks(subject) if _fits(subject, group) else _none(group):
            if check.tier <= tier and fnmatchcase(check.id, only):
                yield check


_OF_ENGINES = ("Purity", "Honesty", "Graph")


def _fits(subject: Subject, group: str) -> bool:
    """Return whether a group says anything about the backend: those without devices have engines
    only.
    """
    return not subject.engine_only or group in _OF_ENGINES


def _none(group: str) -> Iterator[Check]:
    def refuse() -> None:
        raise NotOffered("the backend has no devices; it is an engine for those of others")

    yield Check(group, "devices", refuse)


def _run(check: Check, known: Sequence[KnownFailure], timeout: float) -> tuple[CheckResult, bool]:
    """The result of one check, and whether it came to an end."""
    outcome: list[tuple[Status, str, Mapping[str, float | str]]] = []
    started = time.perf_counter()
    context = contextvars.copy_context()
    worker = threading.Thread(
        target=lambda: context.run(_attempt, check, outcome), name=check.id, daemon=True
    )
    worker.start()
    worker.join(timeout)
    seconds = time.perf_counter() - started
    if outcome:
        status, message, measured = outcome[0]
    else:
        status, message, measured = "failed", f"still running after {timeout:g} s", {}
    entry = find_known(known, check.id)
    if entry is not None:
        status, message = _expected(status, message, entry)
    result = CheckResult(check.id, check.group, check.name, status, message, seconds, measured)
    return result, bool(outcome)


def _attempt(check: Check, outcome: list[tuple[Status, str, Mapping[str, float | str]]]) -> None:
    try:
        with fallback("silent"), np.errstate(all="ignore"):
            measured = check.run()
        outcome.append(("passed", "", measured or {}))
    except NotOffered as why:
        outcome.append(("not-offered", str(why), {}))
    except CheckFailed as failure:
        outcome.append(("failed", str(failure), {}))
    except BaseException as error:  # A backend may raise anything, and that is a finding.
        outcome.append(("failed", f"{type(error).__name__}: {error}", {}))


def _expected(status: Status, message: str, entry: KnownFailure) -> tuple[Status, str]:
    if status == "passed":
        return "unexpected-pass", f"listed as known to fail ({entry.reason}), and passes"
    if status != "failed":
        return status, message
    if entry.expires < datetime.date.today():
        return "expired", f"known ({entry.reason}), but only until {entry.expires}: {message}"
    return "known", f"{entry.reason} (until {entry.expires})"
