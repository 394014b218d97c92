"""The site: one reading path over all pages, callouts of three kinds, the version, links to all."""

from __future__ import annotations

import importlib.util
import re
from types import SimpleNamespace
from typing import Any

from tests.docs.pages import DOCS, ROOT, anchors, prose, table

from treadle.base.errors import TreadleError
from treadle.base.version import VERSION

NAV = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
OUTSIDE = ("design", "notes")
"""Folders of pages that are linked to and no part of the reading path."""


def test_every_page_is_in_the_reading_path_once() -> None:
    listed = re.findall(r": (\S+\.md)$", NAV, re.MULTILINE)
    there = [p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted(p for p in there if p.split("/")[0] not in OUTSIDE)
    assert listed[0] == "index.md"
    assert "navigation.footer" in (ROOT / "mkdocs.yml").read_text()


def test_callouts_have_one_of_three_names() -> None:
    seen = set()
    for page in DOCS.glob("*.md"):
        for line in re.findall(r"(?<!\n>)\n(> .*)", prose(page)):
            match = re.match(r"> \*\*(Note|Warning|See also)\.\*\* ", line)
            assert match, f"{page.name}: {line}"
            seen.add(match[1])
    assert seen == {"Note", "Warning", "See also"}


def test_every_code_has_a_row_among_the_questions() -> None:
    def classes(base: type[TreadleError]) -> set[type[TreadleError]]:
        return {base}.union(*map(classes, base.__subclasses__()))

    rows = {row[0]: row for row in table((DOCS / "faq.md").read_text(encoding="utf-8"))}
    mine = {c.code for c in classes(TreadleError) if c.__module__.startswith("treadle.base")}
    assert mine <= set(rows)
    for code, row in rows.items():
        name = re.fullmatch(r"\[(\w+)\]\(errors\.md#(\w+)\)", row[1])
        assert name and name[2] in anchors(DOCS / "errors.md"), code
        assert row[2]


def test_the_header_shows_the_version() -> None:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "tools/site_hooks.py")
    assert spec is not None and spec.loader is not None
    hooks: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    assert hooks.on_config(SimpleNamespace(site_name="Treadle")).site_name == f"Treadle {VERSION}"


def test_issue_templates_have_a_name_and_a_purpose() -> None:
    for name in ("bug", "feature"):
        text = (ROOT / f".github/ISSUE_TEMPLATE/{name}.md").read_text(encoding="utf-8")
        assert re.match(r"---\nname: .+\nabout: .+\nlabels: .+\n---\n", text)
