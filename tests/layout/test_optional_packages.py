"""The default suite is collected where PyTorch is not installed."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
NEED_TORCH = "torch", "treadle.interop.torch", "treadle.torch"


def too_early(text: str) -> list[int]:
    """Lines of a test module that import what needs PyTorch before they skip without it."""
    before, skips, _ = text.partition('importorskip("torch')
    end = before.count("\n") + 1 if skips else len(text)
    found = []
    for statement in ast.parse(text).body:
        names = []
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            names = [statement.module or ""]
        needed = any(n == need or n.startswith(f"{need}.") for n in names for need in NEED_TORCH)
        if needed and statement.lineno < end:
            found.append(statement.lineno)
    return found


def test_what_needs_torch_is_imported_after_the_skip() -> None:
    wrong = {
        str(path.relative_to(TESTS)): lines
        for path in sorted(TESTS.rglob("test_*.py"))
        if (lines := too_early(path.read_text(encoding="utf-8")))
    }
    assert not wrong, f"these fail to be collected without PyTorch: {wrong}"


def test_an_early_import_is_seen() -> None:
    skip = 'torch = pytest.importorskip("torch")\n'
    line = "from treadle.interop.torch import backend\n"
    assert too_early(line + skip) == [1]
    assert too_early("import torch.nn\n") == [1]
    assert too_early(skip + line) == [] == too_early("import treadle\n")
