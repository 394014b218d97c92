"""Results of graphs that are views, which PyTorch makes itself.

AOTAutograd gives a program views of the tensors that it knows: of arguments always, and of other
results where several share memory, most often if gradients are asked for. It makes them anew from
the tensor and, where sizes are symbolic, from where the graph's result lies in its memory. Other
results that share memory it leaves to the graph: who writes to one sees it in the others. A
program's results lie in memory of their own, so these views are taken by PyTorch, from what the
program gives.
"""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any

import torch
from torch import fx

from treadle.interop.torch.symbols import ranges

_APART = "treadle_view_of_result"
_WHOLE = {
    "_reshape_alias",
    "alias",
    "detach",
    "permute",
    "squeeze",
    "t",
    "transpose",
    "unsqueeze",
    "view",
}
"""Views that begin where their tensor does, and leave nothing of it out."""


def is_apart(node: fx.Node) -> bool:
    """Return whether PyTorch takes this view."""
    return bool(node.meta.get(_APART))


def set_apart(graph: fx.Graph, results: int | None) -> None:
    """Leave views among the first `results` results of a graph (None: all) to PyTorch."""
    (output,) = graph.find_nodes(op="output")
    given = output.args[0]
    if not isinstance(given, (tuple, list)):
        return
    is_open = bool(ranges(graph))
    made: dict[fx.Node, fx.Node] = {}
    listed = list(given)
    own = Counter(map(_whose, listed[:results]))
    with graph.inserting_before(output):
        for place, node in enumerate(listed[:results]):
            chain = _chain(node)
            is_part = is_open and not _WHOLE.issuperset(map(_name, chain))
            whose = _whose(node)
            if chain and (is_part or own[whose] > 1 or whose.op == "placeholder"):
                listed[place] = _copied(graph, chain, made)
    output.args = (type(given)(listed),)
    graph.eliminate_dead_code()


def _chain(node: Any) -> list[fx.Node]:
    """A node and what it is a view of, as long as that is a view, too."""
    found = []
    while isinstance(node, fx.Node) and node.op == "call_function" and _is_view(node):
        found.append(node)
        node = _source(node)
    return found


def _whose(node: Any) -> Any:
    """Return what a result, or a number, is in the end a view of: itself if it is none."""
    chain = _chain(node)
    return _source(chain[-1]) if chain else node


def _source(node: fx.Node) -> fx.Node:
    found = node.args[0]
    assert isinstance(found, fx.Node)  # noqa: S101  (a view is of something)
    return found


def _is_view(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return isinstance(node.args[0], fx.Node) and _is_view(node.args[0])
    return isinstance(node.target, torch._ops.OpOverload) and bool(node.target.is_view)


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "_opname", ""))


def _copied(graph: fx.Graph, chain: list[fx.Node], made: dict[fx.Node, fx.Node]) -> fx.Node:
    """The last of some views, taken by PyTorch; `made`: those that are already."""
    for node in reversed(chain):
        if node not in made:
            made[node] = graph.node_copy(node, lambda n: made.get(n, n))
            made[node].meta[_APART] = True
    return made[chain[0]]
