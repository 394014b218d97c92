"""Physical layouts: in which order the elements of every value lie in memory.

The assignment is a choice per value among what its maker and its readers offer, at the least
total cost. Today there is one offer, row-major; what is here is the place where blocked layouts of
convolutions will be weighed against their conversions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from treadle.base.errors import CompileError
from treadle.graph.ir import Graph, Node, Value


@dataclass(frozen=True, slots=True)
class Layout:
    """An order of elements in memory; `name` is all that tells two apart."""

    name: str


ROW_MAJOR = Layout("row-major")
Domain = Callable[[Value], Sequence[Layout]]
NodeCost = Callable[[Node, Mapping[Value, Layout]], float]


def only_row_major(value: Value) -> Sequence[Layout]:
    """The layouts of a value that there are kernels for."""
    return (ROW_MAJOR,)


def free(node: Node, layouts: Mapping[Value, Layout]) -> float:
    """The cost of a node in the layouts of its values, as far as they make a difference."""
    return 0.0


def assign(
    graph: Graph, domain: Domain = only_row_major, cost: NodeCost = free
) -> dict[Value, Layout]:
    """A layout for every value; inputs and outputs of the program stay row-major.

    Values are decided in program order, each at the least cost of its maker: exact where every
    value has one offer or every maker's cost depends on its own results alone.

    Raises:
        CompileError: a value has no layout at all.
    """
    border = {*graph.inputs, *graph.outputs}
    chosen: dict[Value, Layout] = dict.fromkeys(graph.inputs, ROW_MAJOR)
    for node in graph.nodes:
        for value in node.outputs:
            offers = [ROW_MAJOR] if value in border else list(domain(value))
            if not offers:
                raise CompileError("layout", f"nothing offers a layout for {value!r}", at=node.loc)
            chosen[value] = min(offers, key=lambda o: cost(node, {**chosen, value: o}))
    return chosen
