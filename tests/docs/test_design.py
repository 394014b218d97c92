"""Decisions are half a page each, and their index has each one's title and status.

Longer tables and measurements lie in docs/notes, under the name of their decision.
"""

from __future__ import annotations

import re

from tests.docs.pages import DOCS, ROOT

NOTES = sorted((DOCS / "design").glob("[0-9]*.md"))
ROWS = re.findall(
    r"^\| \[(\d{3})\]\((.*?)\) \| (.*?) \| (.*?) \|$",
    (DOCS / "design" / "README.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)

MOST_WORDS = 450
"""Words of half a page; what exceeds it moves to a page of the same name in docs/notes."""
TABLES = {
    "061-integers.md": "tests/engine/test_integer_table.py runs its table row by row",
    "133-faults-and-their-tests.md": "the last test here reads its table",
}
"""Notes that are longer, because a test reads their table."""


def test_the_index_lists_every_note_once() -> None:
    titles = [note.read_text(encoding="utf-8").partition("\n")[0] for note in NOTES]
    assert [(file, f"# {number} {title}") for number, file, title, _ in ROWS] == list(
        zip([note.name for note in NOTES], titles, strict=True)
    )


def test_numbers_are_given_once_and_statuses_lead_to_later_notes() -> None:
    numbers = [number for number, *_ in ROWS]
    assert len(set(numbers)) == len(numbers)
    for number, _, _, status in ROWS:
        match = re.fullmatch(
            r"valid|plan|(?:valid; continued|replaced) by (\d{3}(?:, \d{3})*)", status
        )
        assert match, f"{number}: {status}"
        named = (match[1] or "").split(", ") if match[1] else []
        assert all(n in numbers and n > number for n in named), f"{number}: {status}"


def test_a_note_is_half_a_page() -> None:
    words = {note.name: len(note.read_text(encoding="utf-8").split()) for note in NOTES}
    assert {name: n for name, n in words.items() if n > MOST_WORDS}.keys() == TABLES.keys()


def test_pages_of_notes_and_their_decisions_lead_to_one_another() -> None:
    decisions = {n.name for n in NOTES if f"(../notes/{n.name})" in n.read_text(encoding="utf-8")}
    assert decisions == {page.name for page in (DOCS / "notes").glob("[0-9]*.md")}
    for name in decisions:
        assert f"(../design/{name})" in (DOCS / "notes" / name).read_text(encoding="utf-8")


def test_tests_that_hold_mended_faults_are_there() -> None:
    text = (DOCS / "design" / "133-faults-and-their-tests.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    for row in rows:
        named = re.findall(r"`((?:tests|benchmarks)/[\w/]+\.py)?(?:::(\w+))?`", row)
        file = ""
        for path, test in named:
            file = path or file
            wanted = f"def {test}(" if test else ""
            assert wanted in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"
        assert file, row
