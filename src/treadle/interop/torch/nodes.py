"""Nodes of FX graphs as ops: one node at a time, through the table of ATen operators."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch._decomp import core_aten_decompositions

from treadle.base.errors import TreadleError
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.interop.torch import (  # noqa: F401  (they register)
    attention,
    elementwise,
    layers,
    shaping,
)
from treadle.interop.torch.arrays import DTYPES
from treadle.interop.torch.table import LOWERINGS, Call, name_of

_KEPT = (
    "_log_softmax",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_softmax",
    "gelu",
    "adaptive_max_pool2d",
    "max_pool2d_with_indices",
    "native_group_norm",
    "native_layer_norm",
    "silu",
)
"""Operators that are not to be taken apart, since ours are the same."""
FOR_GRADIENTS = (
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "max_pool2d_with_indices",
    "_scaled_dot_product_flash_attention_for_cpu",
)
"""Operators whose second result is made for their gradient, and is another one for ours."""


def decompositions() -> dict[Any, Any]:
    """What PyTorch is to take apart, and how."""
    table: dict[Any, Any] = dict(core_aten_decompositions())
    return {k: v for k, v in table.items() if name_of(k).partition(".")[0] not in _KEPT}


def type_of(value: torch.Tensor) -> TensorType:
    """The type of a tensor of fixed shape."""
    return TensorType(DTYPES[value.dtype], tuple(int(d) for d in value.shape))


def refusal(node: fx.Node) -> str:
    """Why a node has no counterpart, tried by writing it on its own; "" if it has one."""
    if name_of(node.target) not in LOWERINGS:
        return "it has no counterpart"
    values = [node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes)]
    for value in values:
        for tensor in value if isinstance(value, (tuple, list)) else [value]:
            problem = _unfit(tensor)
            if problem:
                return problem
    builder = GraphBuilder("trial")
    try:
        operands = {n: _placeholder(builder, n) for n in node.all_input_nodes}
        lowered(builder, node, operands)
    except (TreadleError, NotImplementedError, TypeError, ValueError, KeyError) as error:
        return str(error).partition("\n")[0] or type(error).__name__
    return ""


def _unfit(tensor: Any) -> str:
    if tensor is None or isinstance(tensor, (int, float, bool)):
        return ""
    if not isinstance(tensor, torch.Tensor):
        return "a value is no tensor of fixed shape"
    if tensor.device.type != "cpu":
        return f"a tensor is on {tensor.device}"
    if tensor.dtype not in DTYPES:
        return f"{tensor.dtype} is no element type of ours"
    if not all(isinstance(d, int) for d in tensor.shape):
        return "a shape is symbolic"
    return ""


def _placeholder(builder: GraphBuilder, node: fx.Node) -> Any:
    value = node.meta["val"]
    if isinstance(value, (tuple, list)):
        return tuple(builder.input(type_of(v)) for v in value)
    return builder.input(type_of(value)) if isinstance(value, torch.Tensor) else value


def lowered(builder: GraphBuilder, node: fx.Node, operands: Mapping[fx.Node, Any]) -> Any:
    """The node's results as operands.

    Raises:
        NotImplementedError: ours would be of another type, or the table refuses the arguments.
    """
    arguments: Any = fx.map_arg(node.args, operands.__getitem__)
    keywords: Any = fx.map_arg(node.kwargs, operands.__getitem__)
    if node.target is operator.getitem:
        return arguments[0][arguments[1]]
    inputs = tuple(a.meta.get("val") if isinstance(a, fx.Node) else None for a in node.args)
    call = Call(builder, node.meta["val"], inputs)
    made = LOWERINGS[name_of(node.target)](call, *arguments, **keywords)
    _check(made, node.meta["val"])
    return made


def _check(made: Any, expected: Any) -> None:
    """Refuse results of other types than PyTorch's."""
    several = isinstance(made, (tuple, list)) and isinstance(expected, (tuple, list))
    for ours, theirs in zip(made, expected, strict=False) if several else [(made, expected)]:
        if not (isinstance(ours, GraphOperand) and isinstance(theirs, torch.Tensor)):
            continue
        if ours.type != type_of(theirs):
            raise NotImplementedError(f"a result would be {ours.type}, not {type_of(theirs)}")
