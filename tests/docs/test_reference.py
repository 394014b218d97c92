"""Reference tables on pages list what the code has, no more and no less."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest
from tests.docs.pages import DOCS, anchors, section, table

import treadle as mge
from treadle.base import env, errors
from treadle.data import DataLoaderError

TENSORS, DEVICES = DOCS / "tensors.md", DOCS / "devices.md"
PROMOTION = table(section(TENSORS, "Promotion"))
DTYPES = [row[0].strip("*") for row in PROMOTION]


def quoted(cells: list[str]) -> set[str]:
    """Names between backticks, without their arguments."""
    return {n for cell in cells for n in re.findall(r"`([A-Za-z_0-9]+)", cell)}


def test_every_error_class_has_a_heading_of_its_name() -> None:
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass)]
    names = {c.__name__ for c in classes if issubclass(c, errors.TreadleError)}
    names.add(DataLoaderError.__name__)
    assert {n.lower() for n in names} <= anchors(DOCS / "errors.md")


@pytest.mark.parametrize("page", [DOCS / "functional.md", *(DOCS / "reference").glob("*.md")])
def test_every_entry_links_its_source(page: Path) -> None:
    entries = re.split(r"^### ", page.read_text(), flags=re.MULTILINE)[1:]
    assert entries
    for entry in entries:
        name, linked = (
            entry.split("\n", 1)[0],
            re.search(r"^\[.*\]\((\S+\.py)\)$", entry, re.MULTILINE),
        )
        assert linked, f"{page.name}: {name} has no link"
        assert (page.parent / linked[1]).is_file(), f"{page.name}: {linked[1]} is not there"
        assert not re.search(r"^ +>>>|^- `Source`", entry, re.MULTILINE), f"{page.name}: {name}"


def test_every_attribute_of_tensor_is_documented() -> None:
    listed = quoted([row[0] for row in table(section(TENSORS, "Every attribute"))])
    assert listed == {n for n in dir(mge.Tensor) if not n.startswith("_")}


def test_every_dtype_is_documented() -> None:
    listed = quoted([row[0] for row in table(section(TENSORS, "dtypes"))])
    assert listed == {d.name for d in mge.base.dtype.ALL}


@pytest.mark.parametrize("row", PROMOTION, ids=lambda row: row[0].strip("*"))
def test_promotion_is_as_documented(row: list[str]) -> None:
    x = mge.tensor([1], dtype=row[0].strip("*"))
    results = [str((x + mge.tensor([1], dtype=name)).dtype) for name in DTYPES]
    assert results == row[1:]


def test_any_dtype_converts_to_any_other() -> None:
    for source in DTYPES:
        for target in DTYPES:
            assert mge.tensor([0, 1], dtype=source).astype(target).dtype == target


def test_every_device_function_is_documented() -> None:
    listed = quoted([row[0] for row in table(section(DEVICES, "All functions"))])
    functions = {n for n in mge.device.__all__ if inspect.isfunction(getattr(mge.device, n))}
    assert listed == functions
    here_only = {"ops", "reset", "synchronize", "synchronous", "what_is_xpu"}
    assert functions - here_only <= set(dir(mge))


def test_every_environment_variable_is_documented() -> None:
    listed = quoted([row[0] for row in table(section(DEVICES, "Environment variables"))])
    assert listed == {name for variable in env.ALL for name in variable.names}


def test_the_page_on_compiling_lists_every_option() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", (DOCS / "jit.md").read_text(), re.MULTILINE))
    named = {field.name for field in fields(mge.jit.Options) if field.init}
    assert named <= rows, f"docs/jit.md lacks {sorted(named - rows)}"
