"""The index of decisions lists every note, under its title, with a status that leads somewhere."""

from __future__ import annotations

import re

from tests.docs.pages import DOCS

NOTES = sorted((DOCS / "design").glob("[0-9]*.md"))
ROWS = re.findall(
    r"^\| \[(\d{3})\]\((.*?)\) \| (.*?) \| (.*?) \|$",
    (DOCS / "design" / "README.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


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
