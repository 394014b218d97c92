"""The checker of the size budget finds each kind of excess; `make check` holds the tree to it."""

from pathlib import Path

import pytest

from tools import budget

ROOT = Path(__file__).resolve().parents[2]


def _repository(root: Path, path: str, text: str) -> Path:
    """A repository with the committed limits, a budget of 700 lines for `ops`, and one file."""
    limits = (ROOT / "budget.toml").read_text(encoding="utf-8").partition("[layers]")[0]
    (root / "budget.toml").write_text(f'{limits}[layers]\nops = 700\nbackends = 9\n"a + b" = 5\n')
    file = root / "src" / "treadle" / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return root


def _lines(count: int, line: str = "x = 1") -> str:
    return f"{line}\n" * count


_DOC = '"""Doc."""\n'
_MARKER = "TO" + "DO"
_NESTED = "def f():\n def g():\n  class A:\n   def h(self):\n    pass\n"


@pytest.mark.parametrize(
    ("path", "text", "what"),
    [
        ("ops/add.py", _DOC + _lines(600), "file is too long"),
        ("ops/add.py", "x = 1\n", "module has no docstring"),
        ("ops/add.py", _DOC + "def f():\n" + _lines(60, "    x = 1"), "function is too long"),
        ("ops/add.py", _DOC + "class A:\n" + _lines(250, "    x = 1"), "class is too long"),
        ("ops/add.py", _DOC + f"# {_MARKER} later\n", f"{_MARKER} in the source"),
        ("backends/codegen/add.py", _DOC + _NESTED, "function is nested too deep"),
        ("ops/utils.py", _DOC, "name 'utils'"),
        ("ops/core/add.py", _DOC, "name 'core'"),
        ("ops/add_table.py", _DOC + _lines(700), "layer is too large"),
        ("a/one.py", _DOC + _lines(5), "layer is too large"),
        ("other.py", _DOC, "layer has no line"),
    ],
)
def test_excess_is_found(tmp_path: Path, path: str, text: str, what: str) -> None:
    findings = budget.check(_repository(tmp_path, path, text))
    assert len(findings) == 1
    assert findings[0].what.startswith(what)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("ops/add.py", _DOC + _lines(599)),
        ("ops/add_table.py", _DOC + _lines(650)),
        ("ops/add.py", _DOC + _NESTED),
        ("ops/add.py", _DOC + "def f():\n" + _lines(59, "    x = 1")),
        ("ops/add.py", _DOC + f'def f():\n    """{_lines(99)}"""\n' + _lines(59, "    x = 1")),
    ],
)
def test_what_is_within_limits_passes(tmp_path: Path, path: str, text: str) -> None:
    assert not budget.check(_repository(tmp_path, path, text))


def test_table_shows_place_and_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = _repository(tmp_path, "ops/add.py", _DOC + _lines(600))
    assert budget.main(root) == 1
    assert capsys.readouterr().out.splitlines() == [
        "place                   what              found  allowed",
        "src/treadle/ops/add.py  file is too long  601    600",
        "",
        "budget: 1 finding(s); the limits are in budget.toml",
    ]
