"""A part of what `treadle doctor` prints: a table, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from treadle.base.table import lines


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, or that could be better.

    Attributes:
        what: what was found.
        fix: one thing to do about it.
        wrong: whether something does not work; otherwise it is advice.
    """

    what: str
    fix: str
    wrong: bool = True


@dataclass(frozen=True, slots=True)
class Section:
    """A titled table with findings; rows have a cell for every column, `notes` stand below."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    findings: Sequence[Finding] = ()
    notes: Sequence[str] = ()

    def text(self) -> str:
        """Return the section as it is printed."""
        if not self.rows:
            return f"{self.title}: none"
        notes = [f"  {note}" for note in self.notes]
        return "\n".join((self.title, *lines(self.header, self.rows), *notes))

    def data(self) -> dict[str, Any]:
        """Plain data: a list of rows by column, and the findings."""
        return {
            "title": self.title,
            "notes": list(self.notes),
            "rows": [dict(zip(self.header, row, strict=True)) for row in self.rows],
            "findings": [{"what": f.what, "fix": f.fix, "wrong": f.wrong} for f in self.findings],
        }
