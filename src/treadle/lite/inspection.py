"""Records of a network's runs: profiles, and the values of all ops."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from treadle.engine.package.models import Runner
from treadle.graph.evaluate import evaluate
from treadle.graph.ir import Graph, Node
from treadle.inspect import Inspected


def write_profile(path: str, runner: Runner, arrays: Sequence[Any], seconds: float) -> None:
    """Write the time of a run, and of each kernel in runs of their own, as JSON."""
    types = [v.type.dtype.numpy for v in runner.graph.inputs]
    ready = [np.ascontiguousarray(a, t) for a, t in zip(arrays, types, strict=True)]
    rows = [
        {"op": k.label, "kernel": k.kernel, "calls": k.calls, "seconds": k.seconds}
        for k in Inspected(runner.stages).profile(ready, repeats=3).kernels
    ]
    text = json.dumps({"seconds": seconds, "kernels": rows}, indent=1)
    Path(path).write_text(text, encoding="utf-8")


def write_values(kind: str, path: Path, graph: Graph, arrays: Sequence[Any]) -> None:
    """Write the value of every op, computed by its reference.

    Args:
        kind: "txt" for a line each in the file `path`, "bin" for `.npy` files in a directory.
        path: where.
        graph: of the run.
        arrays: its inputs.
    """
    lines: list[str] = []

    def observe(node: Node, results: tuple[Any, ...]) -> None:
        for value, array in zip(node.outputs, results, strict=True):
            number = len(lines)
            name = value.name or f"{node.op.name}_{number}"
            lines.append(_line(number, name, node.op.name, np.asarray(array)))
            if kind == "bin":
                path.mkdir(parents=True, exist_ok=True)
                np.save(path / f"{number:04d}_{node.op.name}.npy", array)

    evaluate(graph, arrays, observe)
    if kind == "txt":
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _line(number: int, name: str, op: str, array: Any) -> str:
    if array.size and array.dtype.kind in "fiub":
        wide = array.astype(np.float64)
        facts = f"mean {wide.mean():.6g} min {wide.min():.6g} max {wide.max():.6g}"
    else:
        facts = "no numbers"
    return f"{number} {op} {name} {array.dtype}{list(array.shape)} {facts}"
