"""README.md: its first screen holds what a visitor needs, and what it names exists."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT, blocks, name_of, pages

README = ROOT / "README.md"
STAGES = ("prepare", "partition", "optimize", "compile", "load", "execute")


def test_training_example_has_at_most_15_lines_and_no_configuration() -> None:
    example = blocks(README)[0].code
    assert len(example.splitlines()) <= 15
    assert "backward" in example
    assert "config" not in example


def test_first_screen_shows_the_stages_in_order_and_two_commands() -> None:
    screen = README.read_text(encoding="utf-8").splitlines()[:40]
    assert f"`{' → '.join(STAGES)}`" in screen
    commands = [line.split("#")[0].strip() for line in screen if line.startswith("make ")]
    assert commands == ["make demo", "make test"]


def test_architecture_fits_two_screens_and_names_what_exists() -> None:
    page = ROOT / "ARCHITECTURE.md"
    text = page.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 90
    assert " → ".join(STAGES) in text
    for name in re.findall(r"`([a-z_]+(?:/[a-z_.]+)+)`", text):
        assert (ROOT / name).exists() or (ROOT / "src/treadle" / name).exists(), name


def test_make_targets_that_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in pages():
        named = re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE)
        assert set(named) <= targets, name_of(page)
