"""Which parts each op lacks, against a committed list that may only shrink."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ops import harness

from tools import op_table
from treadle.ops import REGISTRY
from treadle.ops.op import Op

LIST = Path(__file__).with_name("missing_parts.txt")
OPTIONAL = ("onnx", "torch")
"""Parts that other systems may simply not have; all others every op has to have, or a reason."""


def missing_parts(cls: type[Op]) -> Iterator[str]:
    """Names of the parts that `cls` lacks.

    Besides the parts of the declaration: `symbolic` where symbolic extents are refused, `checked`
    where a gradient rule exists but no sample lets central differences check it.
    """
    for part, present in op_table.parts(cls).items():
        if present is False:
            yield part
    if any(harness.symbolic_refusal(s, s.element_types()[-1]) for s in cls.samples()):
        yield "symbolic"
    if not cls.no_gradient and not any(map(harness.is_differentiable, cls.samples())):
        yield "checked"


def listed() -> set[str]:
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def test_missing_parts_are_those_on_the_list() -> None:
    found = {f"{name} {part}" for name in harness.OPS for part in missing_parts(REGISTRY[name])}
    gaps, done = sorted(found - listed()), sorted(listed() - found)
    assert not gaps, f"parts are missing that {LIST.name} does not list: {gaps}"
    assert not done, f"{LIST.name} lists what is no longer missing; remove: {done}"


def test_required_parts_are_on_the_list_with_a_reason() -> None:
    """Only what PyTorch or ONNX lack may be listed without a comment line above it."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if line and not line.startswith("#") and line.split()[1] not in OPTIONAL:
            assert before.startswith("# "), f"{line}: say why in a comment line above"


def test_the_committed_page_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert op_table.main(["--check"]) == 0, capsys.readouterr().err


def test_a_stale_page_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(op_table, "PAGE", tmp_path / "docs" / "ops.md")
    assert op_table.main(["--check"]) == 1 and "stale" in capsys.readouterr().err
    assert op_table.main([]) == 0 and op_table.main(["--check"]) == 0
    page = (tmp_path / "docs" / "ops.md").read_text()
    assert "## add\n\nx + y;" in page and "| [add](#add) | yes |" in page
