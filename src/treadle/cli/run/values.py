"""Values inside a model as files: one array per result of an op, and a list of them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from treadle.graph.evaluate import evaluate
from treadle.graph.ir import Graph, Node

INDEX = "values.json"
"""Name of the list."""


def write_values(graph: Graph, arrays: Sequence[Any], folder: Path) -> int:
    """Write what every op gives, computed by its reference; how many files.

    The list has a row per file: op, node of the source, element type, shape, and the mean, least
    and largest element.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []

    def observe(node: Node, results: tuple[Any, ...]) -> None:
        if not node.inputs:
            return  # Constants are in the model.
        for value, array in zip(node.outputs, results, strict=True):
            name = value.name or node.group
            stem = re.sub(r"[^\w.-]+", "_", f"{len(rows):04d}_{node.op.name}_{name}".rstrip("_"))
            np.save(folder / f"{stem}.npy", array)
            row = {"file": f"{stem}.npy", "op": node.op.name, "name": name}
            rows.append({**row, **_facts(np.asarray(array))})

    evaluate(graph, arrays, observe)
    (folder / INDEX).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return len(rows)


def _facts(array: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if array.size and array.dtype.kind in "fiub":
        wide = array.astype(np.float64)
        for name in ("mean", "min", "max"):
            number = float(getattr(wide, name)())
            # JSON knows neither infinity nor what is no number.
            found[name] = number if np.isfinite(number) else str(number)
    return found
