"""`flex_attention`, written out as operators of ATen: PyTorch's own dense words for it.

What a program changes scores with, and what it hides, are graphs of their own; PyTorch maps them
over all pairs of queries and keys. That is traced here, so the engine sees attention and whatever
is done to scores as one graph. Blocks that a mask leaves out are computed and hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._higher_order_ops.flex_attention import (
    flex_attention,
    flex_attention_backward,
    sdpa_dense,
    sdpa_dense_backward,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

_DENSE: dict[Any, Any] = {
    flex_attention: sdpa_dense,
    flex_attention_backward: sdpa_dense_backward,
}
_BUFFERS = -2
"""Position of the gradient's argument that lists the buffers which changes of scores read."""


def write_out(module: fx.GraphModule, decompositions: Mapping[Any, Any]) -> None:
    """Replace calls of `flex_attention`, and of its gradient, by what they compute."""
    calls = [n for n in module.graph.nodes if n.op == "call_function" and n.target in _DENSE]
    for node in calls:
        _replace(module, node, decompositions)
    if calls:
        module.graph.eliminate_dead_code()
        module.recompile()


def _replace(module: fx.GraphModule, node: fx.Node, decompositions: Mapping[Any, Any]) -> None:
    given, shape = pytree.tree_flatten((node.args, node.kwargs))
    tensors = [n for n in dict.fromkeys(given) if isinstance(n, fx.Node) and n.op != "get_attr"]
    tensors += [n for n in dict.fromkeys(given) if _is_constant(module, n)]
    wanted = _buffers_with_gradients(node)
    values = [n.meta["val"] for n in tensors]
    values = [
        v.detach().requires_grad_(n in wanted) if isinstance(v, torch.Tensor) else v
        for n, v in zip(tensors, values, strict=True)
    ]

    def dense(*arguments: Any) -> Any:
        known = dict(zip(tensors, arguments, strict=True))
        leaves = [
            known[x] if x in known else _graph(module, x) if isinstance(x, fx.Node) else x
            for x in given
        ]
        args, named = pytree.tree_unflatten(leaves, shape)
        return _DENSE[node.target](*args, **named)

    mode: Any = detect_fake_mode(values)
    with torch.no_grad(), mode:
        traced = make_fx(dense, decomposition_table=dict(decompositions))(*values)
    _copy_in_place_of_writing(traced.graph)
    _inline(module, node, traced, tensors)


def _buffers_with_gradients(node: fx.Node) -> set[Any]:
    """Return the buffers of a change of scores that PyTorch wants gradients of."""
    if node.target is not flex_attention_backward:
        return set()
    buffers: Any = node.args[_BUFFERS]
    made = node.meta["val"][-1]
    return {b for b, grad in zip(buffers, made, strict=True) if isinstance(grad, torch.Tensor)}


def _is_constant(module: fx.GraphModule, node: Any) -> bool:
    is_attribute = isinstance(node, fx.Node) and node.op == "get_attr"
    return is_attribute and not isinstance(_graph(module, node), fx.GraphModule)


def _graph(module: fx.GraphModule, node: fx.Node) -> Any:
    found: Any = module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found


def _copy_in_place_of_writing(graph: fx.Graph) -> None:
    """Replace writes into new tensors of PyTorch's strides by copies."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        node.target = torch.ops.aten.copy.default
        written = node.args[0]
        for user in [u for u in written.users if u > node]:
            user.replace_input_with(written, node)


def _inline(module: fx.GraphModule, node: fx.Node, traced: Any, tensors: list[fx.Node]) -> None:
    """Copy a traced graph in front of a node, and give its results to the node's users."""
    places: dict[fx.Node, Any] = {}
    placeholders = traced.graph.find_nodes(op="placeholder")
    places.update(zip(placeholders, tensors, strict=True))
    for attribute in traced.graph.find_nodes(op="get_attr"):
        name = f"{node.name}_{attribute.target}"
        setattr(module, name, getattr(traced, str(attribute.target)))
        attribute.target = name
    with module.graph.inserting_before(node):
        made = module.graph.graph_copy(traced.graph, places)
    _give(module.graph, node, made, node.meta["val"])


def _give(graph: fx.Graph, node: fx.Node, made: Any, declared: Any) -> None:
    """Results, which may be nested, in place of the nodes that took them out."""
    if isinstance(made, fx.Node):
        made.meta["val"] = declared  # its strides are those that PyTorch states
    if not isinstance(made, (tuple, list)):
        node.replace_all_uses_with(made)
        graph.erase_node(node)
        return
    for user in list(node.users):
        number: Any = user.args[1]
        _give(graph, user, made[number], declared[number])
    graph.erase_node(node)
