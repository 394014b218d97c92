"""Imports, those inside of functions too: no circle at any depth, and none that points upward."""

from pathlib import Path

from tools.style_report import circles, edges, modules, upward

ROOT = Path(__file__).resolve().parents[2]


def test_imports_run_one_way() -> None:
    """The contract on circles compares neighbours; a package and a module in it are none."""
    late = edges(modules(ROOT), late=True)
    assert len(late) > 1000
    assert circles(late) == []
    assert upward(late) == []
