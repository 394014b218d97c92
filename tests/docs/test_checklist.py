"""docs/checklist.md: no promised row is missing, and every place it names exists."""

from __future__ import annotations

import re

from tests.docs.pages import DOCS, ROOT, table

PAGE = DOCS / "checklist.md"


def numbered(letter: str, *ranges: tuple[int, int]) -> set[str]:
    return {f"{letter}{n:03}" for first, last in ranges for n in range(first, last + 1)}


PROMISED = (
    numbered("A", (1, 79))
    | numbered("B", (1, 65))
    | numbered("C", (1, 75))
    | numbered("D", (1, 80))
)
ROWS = table(PAGE.read_text(encoding="utf-8"))


def test_every_promised_row_is_there_once() -> None:
    listed = [row[0] for row in ROWS]
    assert len(set(listed)) == len(listed)
    assert set(listed) >= PROMISED


def test_every_row_names_a_place_that_exists() -> None:
    for row, capability, shown in ROWS:
        places = re.findall(r"`([^`]+)`", shown)
        assert capability
        assert places or "](" in shown, row
        for place in places:
            assert (ROOT / place).exists(), f"{row} names {place}"
