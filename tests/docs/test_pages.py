"""Every Python block of the documentation runs and shows what it says it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.launch import RUNNER, python, run_page
from tests.docs.pages import DOCS, anchors, blocks, links, name_of, pages


def with_python(*, oracle: bool) -> list[Path]:
    """Pages with blocks that need another framework, or with blocks that do not."""
    return [p for p in pages() if any(("oracle" in b.words) == oracle for b in blocks(p))]


@pytest.mark.parametrize("page", with_python(oracle=False), ids=name_of)
def test_blocks_of_the_page_run(page: Path) -> None:
    run_page(page)


@pytest.mark.oracle
@pytest.mark.parametrize("page", with_python(oracle=True), ids=name_of)
def test_blocks_that_compare_with_another_framework_run(page: Path) -> None:
    run_page(page, "oracle")


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name_of(page)} links to {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{name_of(page)} links to {link}"


def test_a_wrong_output_is_noticed(tmp_path: Path) -> None:
    page = DOCS / "tensors.md"
    text = page.read_text(encoding="utf-8")
    sound = next(b for b in blocks(page) if b.is_session)
    broken = tmp_path / "broken.md"
    broken.write_text(text.replace(sound.code, sound.code + "nonsense\n"), encoding="utf-8")
    done = python(str(RUNNER), str(broken))
    assert done.returncode == 1
    assert "nonsense" in done.stdout
