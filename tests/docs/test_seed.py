"""docs/seed.md: its figures are drawn from graphs, and it runs with `import megengine` too."""

from __future__ import annotations

from pathlib import Path

from tests.docs.figures import flowchart, line
from tests.docs.launch import RUNNER, python
from tests.docs.pages import DOCS, blocks

from treadle.graph.gradient import value_and_gradient

PAGE = DOCS / "seed.md"
RENAMED = [
    ("import treadle as megengine", "import megengine"),
    ("import treadle as mge", "import megengine as mge"),
    ("from treadle.", "from megengine."),
    ("import treadle.", "import megengine."),
]


def test_figures_are_drawn_from_graphs() -> None:
    forward = line()
    drawn = [flowchart(forward), flowchart(value_and_gradient(forward))]
    assert [block.code for block in blocks(PAGE, "mermaid")] == drawn


def test_page_runs_with_the_name_megengine(tmp_path: Path) -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines(keepends=True)
    for i, text in enumerate(lines):
        # Fresh interpreters that the page starts do not have the alias: they would do once more
        # what they do for the page itself.
        if text.startswith((">>> python(", ">>> print(python(", '>>> "MGE_DEFAULT_DEVICE: ')):
            lines[i] = f"{text.rstrip()}  # doctest: +SKIP\n"
        elif text.startswith(">>> ") and "python(" not in text and '"import' not in text:
            for ours, theirs in RENAMED:
                lines[i] = lines[i].replace(ours, theirs)
    copy = tmp_path / "seed.md"
    copy.write_text("".join(lines), encoding="utf-8")
    assert ">>> import megengine\n" in lines
    done = python("-m", "treadle.interop.megengine", str(RUNNER), str(copy))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_nothing_answers_to_megengine_unless_asked() -> None:
    done = python("-c", "import treadle; import megengine")
    assert "No module named 'megengine'" in done.stderr
