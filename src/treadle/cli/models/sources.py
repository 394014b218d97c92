"""Files that models come from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from treadle.base.errors import LoadError

Shape: TypeAlias = tuple[Any, ...]
Shapes = dict[str, tuple[int, ...]]
"""Of inputs, by name."""


def provenance(path: Path) -> dict[str, Any]:
    """Name and digest of a file, as manifests keep them."""
    with path.open("rb") as file:
        return {"file": path.name, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def checked_axes(name: str, given: Shape, declared: Shape) -> Shape:
    """The shape that is given for an input.

    Raises:
        LoadError: the input has another number of axes.
    """
    if len(given) == len(declared):
        return given
    spelled = [",".join(map(str, shape)) for shape in (given, declared)]
    raise LoadError(
        "--shape",
        f"input {name} has {len(declared)} axes, not {len(given)}",
        saw=f"{name}={spelled[0]}",
        hint=f"the model says {name}={spelled[1]}",
    )


def no_input(path: Path, unknown: set[str], inputs: Sequence[str]) -> LoadError:
    """An error that says which inputs there are."""
    problem = f"it has no input {', '.join(sorted(unknown))}"
    return LoadError(str(path), problem, saw=f"inputs {', '.join(inputs)}")
