"""Runs what scripts of TREADLE_REPLAY hold: each op beside its reference, the first fault named."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from treadle.base.array import Array
from treadle.base.difference import difference, magnitude
from treadle.base.errors import TreadleError
from treadle.base.files.numpy_files import load_arrays
from treadle.base.table import lines
from treadle.engine.devices.names import resolve
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.graph.evaluate import evaluate
from treadle.graph.ir import Graph, Node, Value
from treadle.graph.parser import parse
from treadle.graph.replay import typed, write
from treadle.ops.constant import ArrayData, Constant
from treadle.ops.op import as_tuple
from treadle.tensor import Tensor, create, execute

Row = tuple[str, str, str, str]


def load(text: str, data: str | os.PathLike[str]) -> tuple[Graph, list[Array]]:
    """The graph and the inputs of a script.

    Raises:
        GraphError: the text is not a graph.
        LoadError, OSError: the data cannot be read.
    """
    inputs: dict[int, Array] = {}
    constants: dict[str, ArrayData] = {}
    for name, array in load_arrays(data).items():
        kind, _, rest = name.partition("_")
        if kind == "input":
            inputs[int(rest)] = array
        else:
            dtype, _, digest = rest.partition("_")
            constants[digest] = ArrayData(typed(array, dtype))
    graph = parse(text, constants)
    types = graph.input_types
    return graph, [typed(inputs[i], t.dtype.name) for i, t in enumerate(types)]


def main(text: str, data: str | os.PathLike[str], device: str, *, engine: str = "") -> int:
    """Run a script's graph on a device, op by op, and print what differs.

    Args:
        text: the graph.
        data: path of the file with inputs and constants.
        device: where ops run.
        engine: compiles the graph as a whole besides; "" for none.

    Returns:
        The script's status: 1 where a result differs or an op fails, else 0.
    """
    graph, arrays = load(text, data)
    known: dict[Value, Array] = dict(zip(graph.inputs, arrays, strict=True))
    evaluate(graph, arrays, lambda n, made: known.update(zip(n.outputs, made, strict=True)))
    rows: list[Row] = []
    failed = 0
    for node in graph.nodes:
        if not isinstance(node.op, Constant):
            failed += _tried(node, known, device, rows)
    if engine:
        failed += _whole(graph, arrays, known, engine, rows)
    print("\n".join(lines(("op", "result", "difference", ""), rows)))
    for row in rows:
        if row[3]:
            print(f"first fault: {row[0]}: {row[2]}\n  {row[3]}")
            break
    return min(failed, 1)


def _tried(node: Node, known: dict[Value, Array], device: str, rows: list[Row]) -> int:
    """One op on the operands that the reference gives; how many of its results are wrong."""
    given = [known[v] for v in node.inputs]
    try:
        operands = tuple(Tensor(a, dtype=a.dtype, device=device) for a in given)
        made = execute(node.op, operands) if operands else create(node.op, resolve(device))
        found = [r.numpy() for r in made]
    except TreadleError as error:
        rows.append((str(node.op), "", f"{type(error).__name__}", str(error)))
        return 1
    return _held_against([known[v] for v in node.outputs], found, given, str(node.op), rows)


def _whole(
    graph: Graph,
    arrays: Sequence[Array],
    known: dict[Value, Array],
    engine: str,
    rows: list[Row],
) -> int:
    """The whole graph, compiled by one engine."""
    try:
        program = Stages(graph, options=Options(engines=(engine,), strict_segments=True)).compile()
        found = [np.array(a) for a in program.run([np.array(a) for a in arrays])]
    except TreadleError as error:
        rows.append((engine, "", f"{type(error).__name__}", str(error)))
        return 1
    return _held_against([known[v] for v in graph.outputs], found, arrays, engine, rows)


def _held_against(
    wanted: Sequence[Array],
    found: Sequence[Array],
    given: Sequence[Array],
    name: str,
    rows: list[Row],
) -> int:
    wrong = 0
    for seen, expected in zip(as_tuple(tuple(found)), wanted, strict=True):
        scale = max([magnitude(a) for a in (expected, *given)])
        apart = difference(seen, expected, scale=scale)
        wrong += apart.differs
        shape = f"{expected.dtype.name}{list(expected.shape)}"
        rows.append((name, shape, str(apart), apart.around if apart.differs else ""))
    return wrong


__all__ = ["load", "main", "write"]
