"""Results of checks: one each, and a report of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["passed", "failed", "known", "expired", "unexpected-pass", "not-offered"]
BAD: frozenset[Status] = frozenset(("failed", "expired"))


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check's outcome.

    Attributes:
        id, group, name: which check.
        status: "known" is a failure that the author listed, "expired" one whose date has passed,
            "unexpected-pass" a listed one that no longer fails.
        message: what is wrong, or why it is known or not offered.
        seconds: how long it took.
        measured: figures it found.
    """

    id: str
    group: str
    name: str
    status: Status
    message: str = ""
    seconds: float = 0.0
    measured: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def bad(self) -> bool:
        """True if the run fails for it."""
        return self.status in BAD


@dataclass(slots=True)
class Report:
    """All results of one run, and what was checked."""

    backend: str
    about: dict[str, str] = field(default_factory=dict)
    results: list[CheckResult] = field(default_factory=list)
    coverage: dict[str, dict[str, str]] = field(default_factory=dict)
    """Per op who runs it: element type to "kernel", an engine's name, or "host (reason)"."""

    @property
    def ok(self) -> bool:
        """True if nothing failed that was not known to."""
        return not any(result.bad for result in self.results)

    def failures(self) -> list[CheckResult]:
        """The results for which the run fails."""
        return [result for result in self.results if result.bad]

    def counts(self) -> dict[str, Counter[str]]:
        """Count the results of each status in every group, in the groups' order."""
        found: dict[str, Counter[str]] = {}
        for result in self.results:
            found.setdefault(result.group, Counter())[result.status] += 1
        return found
