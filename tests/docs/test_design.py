"""The index of decisions lists every note, under its title, with a status that leads somewhere."""

from __future__ import annotations

import re

from tests.docs.pages import DOCS, ROOT

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
