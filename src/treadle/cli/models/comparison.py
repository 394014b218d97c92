"""Results beside those that were expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.base.errors import LoadError
from treadle.base.files.numpy_files import load_array
from treadle.cli.models.inputs import read_arrays
from treadle.engine.package.models import Case


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output beside the expected one.

    Attributes:
        name: of the output.
        equal: whether every element is as near as the tolerance asks.
        worst: the largest absolute difference.
        relative: the same as a part of the largest expected element.
        problem: why it is not equal, "" where it is.
    """

    name: str
    equal: bool
    worst: float = 0.0
    relative: float = 0.0
    problem: str = ""

    def __str__(self) -> str:
        if self.problem:
            return f"{self.name} {self.problem}"
        return f"{self.name} agrees: differs by {self.worst:.3g} at most"

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON holds them."""
        return asdict(self)


def compared(name: str, got: Array, wanted: Array, tolerance: float) -> Comparison:
    """An output beside an array: elements may differ by `tolerance`, absolute plus relative."""
    if got.shape != wanted.shape:
        shapes = f"is {list(got.shape)}, not {list(wanted.shape)}"
        return Comparison(name, False, problem=shapes)
    if not got.size:
        return Comparison(name, True)
    wide, other = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    near = np.isclose(wide, other, rtol=tolerance, atol=tolerance, equal_nan=True)
    distance = np.where(wide == other, 0.0, np.abs(wide - other))
    worst = float(np.nanmax(distance, initial=0.0))
    scale = float(np.nanmax(np.abs(other), initial=0.0)) or 1.0
    problem = ""
    if not near.all():
        at = np.unravel_index(int(np.argmin(near)), near.shape)
        place = ", ".join(str(int(i)) for i in at)
        problem = (
            f"differs by {worst:.3g} at most, in {near.size - int(near.sum())} of {near.size} "
            f"elements, first at [{place}]: {wide[at]:.6g}, not {other[at]:.6g}"
        )
    return Comparison(name, not problem, worst, worst / scale, problem)


def with_file(outputs: Mapping[str, Array], path: Path, tolerance: float) -> list[Comparison]:
    """Outputs beside the arrays of an .npz, or the only one beside an .npy.

    Raises:
        LoadError: the file cannot be read.
    """
    wanted = read_arrays(path) if path.suffix == ".npz" else _only(outputs, path)
    found = [
        compared(name, value, wanted[name], tolerance)
        if name in wanted
        else Comparison(name, False, problem=f"is not in {path}")
        for name, value in outputs.items()
    ]
    extra = sorted(set(wanted) - set(outputs))
    return found + [Comparison(name, False, problem="is not an output") for name in extra]


def _only(outputs: Mapping[str, Array], path: Path) -> dict[str, Array]:
    if len(outputs) != 1:
        problem = f"it is one array, the model has {len(outputs)} outputs"
        raise LoadError(str(path), problem, hint="give an .npz with their names")
    try:
        return {next(iter(outputs)): load_array(path)}
    except OSError as error:
        raise LoadError(str(path), f"it cannot be read: {error}") from error


def with_case(case: Case, names: Sequence[str], results: Sequence[Array]) -> list[Comparison]:
    """Results beside those that a file keeps; the tolerance is the file's own."""
    outputs = dict(zip(names, results, strict=True))
    found = []
    for name, wanted in case.outputs.items():
        scale = max(1.0, float(np.abs(np.asarray(wanted, np.float64)).max(initial=0.0)))
        found.append(compared(name, outputs[name], wanted, case.maxerr * scale))
    return found
