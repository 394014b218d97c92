"""The plan of `make first-hour` holds what the pages say, and a step that fails is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs import first_hour as hour


def test_every_user_has_an_hour() -> None:
    planned = hour.hours()
    titles = {name: [step.title for step in steps] for name, steps in planned.items()}
    assert "README.md: pip install ." in titles["pytorch"]
    assert any("treadle serve" in title for title in titles["deployment"])
    assert any("treadle.interop.megengine train.py" in title for title in titles["megengine"])


def test_what_a_page_no_longer_says_is_no_step() -> None:
    with pytest.raises(LookupError, match="no heading 'Uninstall'"):
        hour.shell("README.md", "Uninstall")
    with pytest.raises(LookupError, match="does not say"):
        hour.said("README.md", "pip uninstall treadle")
    with pytest.raises(LookupError, match="no command there begins with 'rm'"):
        hour.shell("README.md", "Install", only="rm")


def test_commands_go_on_over_lines() -> None:
    code = "a \\\n  b\nc -d '{\n  1}'\n\n# e\n"
    assert hour.commands(code) == ["a \\\n  b", "c -d '{\n  1}'", "# e"]


def test_blocks_stand_under_their_heading() -> None:
    install = [b.code for b in hour.under("README.md", "Install")]
    assert install[0].startswith("pip install .\n") and not any("mobilenet" in c for c in install)


def test_a_failure_stops_its_step_and_says_why(tmp_path: Path) -> None:
    user = hour.User(tmp_path)
    user.folder.mkdir()
    user.run("touch here")
    assert (tmp_path / "work/here").exists()
    with pytest.raises(hour.Stopped, match=r"(?s)status 3.*told"):
        user.run("echo told >&2; exit 3")
