"""Every Python block of the documentation runs and shows what it says it shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.launch import RUNNER, Runner, python
from tests.docs.pages import DOCS, anchors, blocks, links, name_of, pages, translated


def with_python(*, oracle: bool) -> list[Path]:
    """Pages with blocks that need another framework, or with blocks that do not."""
    return [p for p in pages() if any(("oracle" in b.words) == oracle for b in blocks(p))]


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    made = Runner()
    yield made
    made.close()


@pytest.mark.parametrize("page", with_python(oracle=False), ids=name_of)
def test_blocks_of_the_page_run(page: Path, runner: Runner, tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    assert runner.run(output, page) == 0, output.read_text(encoding="utf-8")


@pytest.mark.oracle
@pytest.mark.parametrize("page", with_python(oracle=True), ids=name_of)
def test_blocks_that_compare_with_another_framework_run(page: Path) -> None:
    done = python(str(RUNNER), str(page), "oracle")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", [*pages(), *translated()], ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name_of(page)} links to {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{name_of(page)} links to {link}"


def test_a_wrong_output_is_noticed(runner: Runner, tmp_path: Path) -> None:
    page = DOCS / "tensors.md"
    text = page.read_text(encoding="utf-8")
    sound = next(b for b in blocks(page) if b.is_session)
    broken, output = tmp_path / "broken.md", tmp_path / "output.txt"
    broken.write_text(text.replace(sound.code, sound.code + "nonsense\n"), encoding="utf-8")
    assert runner.run(output, broken) == 1
    assert "nonsense" in output.read_text(encoding="utf-8")
