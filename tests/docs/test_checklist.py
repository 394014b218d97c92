"""docs/checklist.md: no promised row is missing, and every place it names exists."""

from __future__ import annotations

import re

from tests.docs.pages import DOCS, ROOT, table

PAGE = DOCS / "checklist.md"


def numbered(letter: str, *ranges: tuple[int, int]) -> set[str]:
    return {f"{letter}{n:03}" for first, last in ranges for n in range(first, last + 1)}


PROMISED = (
    numbered("A", (1, 21), (23, 27), (35, 36), (38, 58), (68, 69), (73, 75), (78, 79))
    | numbered("B", (1, 65))
    | numbered("C", (7, 7), (22, 22), (26, 27), (29, 30), (34, 34), (36, 38), (40, 41))
    | numbered("C", (43, 44), (57, 57), (59, 59), (62, 64), (72, 75))
    | numbered("D", (1, 1), (3, 18), (28, 29), (33, 49), (53, 62), (67, 67), (71, 76), (79, 80))
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
