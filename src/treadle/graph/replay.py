"""Scripts that run again what failed: a graph as text, its inputs beside it, one command.

The files stand for themselves: whoever has Treadle and the device's backend can run them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from treadle.base.array import Array
from treadle.base.dtype import as_dtype
from treadle.base.env import REPLAY
from treadle.base.log import get_logger
from treadle.base.types import TensorType
from treadle.graph.ir import Graph, Node, Value
from treadle.graph.printer import to_text
from treadle.ops.constant import ArrayData
from treadle.ops.op import Op

_LOCK = threading.Lock()
_MOST = 64
"""Scripts that one process writes because the environment asks for them."""
_WRITTEN: list[Path] = []

_SCRIPT = '''"""{title}

Run it: python {name}.py [DEVICE]. Every op runs on DEVICE, {device} if left out, and its results
are compared with those of its NumPy reference; the status is 1 where they differ.{engine_text}
"""

import pathlib
import sys

from treadle.utils.replay import main

GRAPH = """
{text}"""

if __name__ == "__main__":
    data = pathlib.Path(__file__).with_suffix(".npz")
    sys.exit(main(GRAPH, data, sys.argv[1] if sys.argv[1:] else {device!r}, engine={engine!r}))
'''


def graph_of(op: Op, types: Sequence[TensorType]) -> Graph:
    """A graph of one op; types lose their device."""
    inputs = tuple(Value(TensorType(t.dtype, t.shape), None, i) for i, t in enumerate(types))
    node = Node(op, inputs)
    return Graph(op.name, inputs, (node,), node.outputs)


def write(
    folder: str | Path,
    graph: Graph,
    arrays: Sequence[Array],
    device: str,
    why: str,
    engine: str = "",
) -> Path:
    """Write a script and its data; returns the script's path.

    Args:
        folder: a directory, made where it is missing.
        graph: what to run again: an op alone, a segment.
        arrays: its inputs, in order.
        device: where it failed.
        why: what went wrong.
        engine: name of the engine that is to compile the graph as a whole; "" for none.

    Raises:
        OSError: the files cannot be written.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    constants: dict[str, ArrayData] = {}
    text = to_text(graph, constants=constants)
    stored = {f"input_{i}": _plain(a) for i, a in enumerate(arrays)}
    for digest, data in constants.items():
        stored[f"constant_{data.dtype.name}_{digest}"] = _plain(data.array)
    with _LOCK:
        path = _free_name(target, graph.name)
        path.touch()
    np.savez(path.with_suffix(".npz"), **stored)  # type: ignore[arg-type]
    lines = " ".join(f"{graph.name} on {device}: {why}".split()).replace("\\", "/")
    title = lines.replace('"', "'")[:90]
    whole = f"\nThen {engine} compiles the graph as a whole, and its outputs are compared as well."
    made = _SCRIPT.format(
        title=title,
        name=path.stem,
        device=device,
        text=_quoted(text),
        engine=engine,
        engine_text=whole if engine else "",
    )
    path.write_text(made, encoding="utf-8")
    return path


def _plain(array: Array) -> Array:
    """The array, as bits where NumPy's file format does not know its element type."""
    dense = np.asarray(array, order="C")
    if dense.dtype.kind != "V" and dense.dtype.isbuiltin == 1:
        return dense
    return dense.view(f"u{dense.dtype.itemsize}")


def typed(array: Array, dtype: str) -> Array:
    """The inverse of storing: bits become elements again."""
    wanted = as_dtype(dtype).numpy
    return array if array.dtype == wanted else array.view(wanted)


def _quoted(text: str) -> str:
    """Text for a literal in triple quotes."""
    return text.replace("\\", "\\\\").replace('"""', r"\"\"\"")


def _free_name(folder: Path, name: str) -> Path:
    stem = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or "program"
    taken = {path.name for path in folder.glob(f"{stem}_*.py")}
    number = next(i for i in range(len(taken) + 1) if f"{stem}_{i}.py" not in taken)
    return folder / f"{stem}_{number}.py"


def write_if_asked(
    graph: Graph,
    arrays: Sequence[Array],
    device: str,
    why: str,
    *,
    folder: str = "",
    engine: str = "",
) -> str:
    """Write a script into the directory that TREADLE_REPLAY names; a hint that leads there.

    "" where there is no such directory, it cannot be written, or many have been written already.
    """
    chosen = folder or REPLAY.get()
    if not chosen or len(_WRITTEN) >= _MOST:
        return ""
    try:
        path = write(chosen, graph, arrays, device, why, engine)
    except OSError as error:
        get_logger().warning("no script is written to %s: %s", chosen, error)
        return ""
    _WRITTEN.append(path)
    return f"python {path} runs it again"
