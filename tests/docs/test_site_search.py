"""The site's search, in a browser, on files opened from disk.

Browsers are large, so only machines that have Chromium and MkDocs run this; CI has neither.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.pages import DOCS, ROOT

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed"),
    pytest.mark.skipif(
        importlib.util.find_spec("material") is None, reason="needs mkdocs-material (make site)"
    ),
]
PAGES = ("index.md", "errors.md", "reference/amp.md")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few pages, built with the theme and plugins of the whole site."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS / "javascripts", folder / "docs" / "javascripts")
    for page in PAGES:
        (folder / "docs" / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(DOCS / page, folder / "docs" / page)
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[0]
    config = config.replace("tools/site_hooks.py", str(ROOT / "tools/site_hooks.py"))
    (folder / "mkdocs.yml").write_text(config, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-q", "-f", str(folder / "mkdocs.yml")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder / "site"


def found(site: Path, page: str, query: str) -> list[str]:
    """What a browser lists for a query, as paths inside the site, best first."""
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu"]
    command += [f"--user-data-dir={site.parent / 'profile'}", "--virtual-time-budget=20000"]
    address = f"{(site / page).as_uri()}?q={query}"
    done = subprocess.run([*command, "--dump-dom", address], capture_output=True, text=True)
    assert "md-search-result__meta" in done.stdout, done.stderr
    links = re.findall(r'href="([^"]+)" class="md-search-result__link"', done.stdout)
    return [link.removeprefix(site.as_uri() + "/") for link in links]


@pytest.mark.parametrize(
    ("page", "query", "where"),
    [
        ("index.html", "GradScaler", "reference/amp.html?h=gradscaler#gradscaler"),
        ("reference/amp.html", "T12", "errors.html?h=t12"),
        ("index.html", "xyzzyq", ""),
    ],
)
def test_pages_are_found_without_a_server(site: Path, page: str, query: str, where: str) -> None:
    links = found(site, page, query)
    assert any(link.startswith(where) for link in links) if where else links == []


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(https?:[^"]+)', text)
        assert loaded == [], page
