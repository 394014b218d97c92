"""Pages in Chinese say what those in English do: the same sections, programs, links and numbers.

Comments of programs may be translated. Each page names the English text that it was made of by a
digest, so that one that changes is red here until somebody has looked at its translation.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from pathlib import Path

import pytest
from tests.docs.pages import CHINESE, ROOT, blocks, links, name_of, prose, translated

PAIRS = pytest.mark.parametrize(
    ("chinese", "english"),
    [pytest.param(*pair, id=name_of(pair[0])) for pair in translated().items()],
)
MADE_OF = re.compile(r" <!-- of (\w+) -->")
HAN = re.compile("[\u4e00-\u9fff]")


@PAIRS
def test_a_translation_is_of_the_text_as_it_is(chinese: Path, english: Path) -> None:
    digest = hashlib.sha256(english.read_bytes()).hexdigest()[:12]
    made_of = MADE_OF.findall(chinese.read_text(encoding="utf-8"))
    assert made_of == [digest], f"translate what changed in {name_of(english)}, then say {digest}"


@PAIRS
def test_programs_are_the_same(chinese: Path, english: Path) -> None:
    assert programs(chinese) == programs(english)


def programs(page: Path) -> list[tuple[str, tuple[str, ...], str]]:
    """Blocks without comments that are translated, those of shells and Python's."""
    return [
        (b.language, b.words, re.sub(r" *# .*", "", b.code) if b.language != "text" else b.code)
        for b in blocks(page, None)
    ]


@PAIRS
def test_sections_stand_in_the_same_order(chinese: Path, english: Path) -> None:
    levels = re.compile(r"^(#+) ", re.MULTILINE)
    assert levels.findall(prose(chinese)) == levels.findall(prose(english))
    rows = re.compile(r"^\| *`[^|]*`", re.MULTILINE)  # Tables of names: all of them.
    names = [
        [re.findall(r"`[^`]+`", row) for row in rows.findall(prose(p))] for p in (chinese, english)
    ]
    assert names[0] == names[1]


@PAIRS
def test_links_lead_to_the_same_places(chinese: Path, english: Path) -> None:
    assert targets(chinese) == targets(english)


def targets(page: Path) -> Counter[str]:
    """Where links lead, pages in Chinese taken for those that they translate.

    Anchors count where both pages have the same: headings in Chinese have their own.
    """
    found: Counter[str] = Counter()
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if {page, target} == {*pair(page)}:
            continue  # The line that leads to the other language.
        ascii_ = anchor if anchor.isascii() and target not in (translated() | inverse()) else ""
        found[f"{name_of(translated().get(target, target))}#{ascii_}"] += 1
    return found


def inverse() -> dict[Path, Path]:
    """Pages in English that are translated, and their translations."""
    return {english: chinese for chinese, english in translated().items()}


def pair(page: Path) -> tuple[Path, Path]:
    """A page and its translation, or the other way round."""
    return page, translated().get(page) or inverse()[page]


@PAIRS
def test_numbers_and_names_are_the_same(chinese: Path, english: Path) -> None:
    code = re.compile(r"`[^`\n]+`")
    # Chinese may name what English says in words.
    assert set(code.findall(prose(english))) <= set(code.findall(prose(chinese)))
    number = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?!\w|\.\d)")
    plain = [code.sub("", re.sub(r"\]\([^)]*\)", "]", prose(p))) for p in (chinese, english)]
    assert set(number.findall(plain[0])) == set(number.findall(plain[1]))


@PAIRS
def test_each_paragraph_is_translated(chinese: Path, english: Path) -> None:
    paragraphs = [
        [p for p in prose(page).split("\n\n") if p.strip()] for page in (chinese, english)
    ]
    assert len(paragraphs[0]) == len(paragraphs[1])
    for paragraph in paragraphs[0]:
        words = re.sub(r"`[^`]*`|\]\([^)]*\)|[^A-Za-z\u4e00-\u9fff]", "", paragraph)
        assert HAN.search(paragraph) or len(words) < 20, paragraph


def test_every_page_leads_to_its_translation() -> None:
    for chinese, english in translated().items():
        head = "\n".join(english.read_text(encoding="utf-8").splitlines()[:5])
        assert "[中文](" in head, name_of(english)
        assert "[English](" in chinese.read_text(encoding="utf-8")[:200], name_of(chinese)
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in CHINESE.rglob("*.md"):
        assert page.relative_to(CHINESE.parent).as_posix() in nav
