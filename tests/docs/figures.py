"""Draw graphs as Mermaid flowcharts, which pages show as figures.

python -m tests.docs.figures    # prints the figures of docs/seed.md
"""

from __future__ import annotations

from treadle.base.dtype import float32
from treadle.base.types import TensorType
from treadle.graph import Graph
from treadle.graph.builder import GraphBuilder
from treadle.graph.gradient import value_and_gradient
from treadle.graph.printer import value_names


def line() -> Graph:
    """y = w * x + b, traced."""
    builder = GraphBuilder("line")
    w, x, b = (builder.input(TensorType(float32, ()), name) for name in "wxb")
    builder.output(w * x + b)
    return builder.build()


def flowchart(graph: Graph) -> str:
    """Data nodes as circles, compute nodes as boxes, uses as arrows."""
    names = {value: name.lstrip("%") for value, name in value_names(graph).items()}
    rows = [f'  v_{n}(("%{n}"))' for n in names.values()]
    for i, node in enumerate(graph.nodes):
        rows.append(f"  n{i}[{node.op.name}]")
        rows += [f"  v_{names[value]} --> n{i}" for value in node.inputs]
        rows += [f"  n{i} --> v_{names[value]}" for value in node.outputs]
    return "\n".join(["flowchart LR", *rows, ""])


if __name__ == "__main__":
    print(flowchart(line()))
    print(flowchart(value_and_gradient(line())))
