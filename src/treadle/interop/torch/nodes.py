"""Nodes of FX graphs as ops: one node at a time, through the table of ATen operators."""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._decomp import core_aten_decompositions, decomposition_table

from treadle.base.errors import TreadleError
from treadle.base.symbol import Dim, is_identical
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.interop.torch import (  # noqa: F401  (they register)
    attention,
    bessel,
    counting,
    distances,
    drawing,
    elementwise,
    fourier,
    indexing,
    layers,
    linear,
    losses,
    polynomials,
    pooling,
    quantizing,
    ranges,
    recurrent,
    reductions,
    resampling,
    sampling,
    segments,
    shaping,
    special,
)
from treadle.interop.torch.arrays import DTYPES, PARTS
from treadle.interop.torch.lists import one_by_one
from treadle.interop.torch.pairs import COMPLEX, Pair, is_complex, joined, lower_complex, parted
from treadle.interop.torch.placements import is_apart, is_away
from treadle.interop.torch.symbols import (
    Described,
    decided,
    described,
    dim_of,
    is_number,
    number_of,
    real_of,
)
from treadle.interop.torch.table import LOWERINGS, OperatorCall, name_of

_KEPT = (
    "_log_softmax",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_softmax",
    "adaptive_max_pool2d",
    "gelu",
    "index_add",
    "index_copy",
    "index_fill",
    "max_pool2d_with_indices",
    "max_unpool2d",
    "max_unpool3d",
    "multilabel_margin_loss_forward",
    "native_group_norm",
    "geometric",
    "native_layer_norm",
    "silu",
)
"""Operators that are not to be taken apart: ours are the same, or check what the parts do not."""
_TAKEN_APART = (
    "_batch_norm_with_update_functional",
    "batch_norm_backward",
    "dist",
    "ldexp",
    "narrow_copy",
    "round.decimals",
    "rrelu_with_noise_backward",
    "upsample_bicubic2d",
    "upsample_trilinear3d",
)
"""Operators beyond PyTorch's own choice that are: only their parts have counterparts."""
_MORE_FOR_GRADIENTS = (
    "_embedding_bag.",
    "_scaled_dot_product_flash_attention_for_cpu.",
    "adaptive_max_pool2d.",
    "adaptive_max_pool3d.",
    "max_pool2d_with_indices.",
    "max_pool3d_with_indices.",
)
"""Operators whose further results are made for their gradient, and are other ones for ours."""
_WHOLE = "treadle_whole"


def decompositions(*whole: str, draws: bool = True) -> dict[Any, Any]:
    """Return the operators that PyTorch is to take apart, and how.

    Args:
        whole: what it is to leave alone, too.
        draws: whether distributions are taken apart, which changes PyTorch's random numbers.
    """
    kept = (*_KEPT, *whole, *(() if draws else drawing.APART))
    return {k: v for k, v in _known_parts().items() if name_of(k).partition(".")[0] not in kept}


@functools.cache
def _known_parts() -> dict[Any, Any]:
    """PyTorch's choice and ours; collecting it takes PyTorch a third of a second."""
    apart = (*_TAKEN_APART, *drawing.APART)
    table: dict[Any, Any] = dict(core_aten_decompositions())
    table |= {k: v for k, v in decomposition_table.items() if _is_among(k, apart)}
    return table | one_by_one() | ranges.apart(table)


def _is_among(target: Any, names: Sequence[str]) -> bool:
    name = name_of(target)
    return name in names or name.partition(".")[0] in names


def note_what_is_read(graph: fx.Graph, results: int | None = None) -> None:
    """Note at operators with results for their gradients whether the program reads those, too.

    Args:
        graph: before it is taken apart.
        results: how many of the graph's results are the program's; None: all. What follows them
            is kept for the gradient.
    """
    (output,) = graph.find_nodes(op="output")
    listed = output.args[0] if isinstance(output.args[0], (tuple, list)) else [output.args[0]]
    given = set(listed if results is None else listed[:results])
    for node in graph.nodes:
        if name_of(node.target).startswith(_MORE_FOR_GRADIENTS):
            node.meta[_WHOLE] = any(_is_read(user, given) for user in node.users)


def _is_read(user: fx.Node, given: Collection[Any]) -> bool:
    if user.target is not operator.getitem or user.args[1] == 0:
        return user.target is not operator.getitem
    backward = (u for u in user.users if "backward" not in name_of(u.target))
    return user in given or any(u.op != "output" for u in backward)


def type_of(value: torch.Tensor | Described) -> TensorType:
    """The type of a tensor; a complex one is real with a last axis of two."""
    shape = tuple(map(dim_of, value.shape))
    if value.dtype in PARTS:
        return TensorType(PARTS[value.dtype], (*shape, 2))
    return TensorType(DTYPES[value.dtype], shape)


def input_of(builder: GraphBuilder, value: torch.Tensor, name: str = "") -> Any:
    """A new input of the graph, as operators take it."""
    made = builder.input(type_of(value), name)
    return parted(made) if value.dtype in PARTS else made


def output_of(value: Any) -> GraphOperand:
    """Return the output of an operator, as the graph gives it out."""
    made: GraphOperand = joined(value) if isinstance(value, Pair) else value
    return made


def refusal(node: fx.Node, device: torch.device | None) -> str:
    """Return why a node has no counterpart on a device, tried by writing it on its own; "" if it
    has. None: wherever its tensors are.
    """
    name = name_of(node.target)
    if is_number(node.meta.get("val")):
        return _unknown_number(node)
    if name not in LOWERINGS and name not in COMPLEX:
        return "it has no counterpart"
    if device is not None and is_away(node, device):
        return f"a tensor is not on {device}"
    if why := decided(node):
        return why
    values = [node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes)]
    for value in values:
        for tensor in value if isinstance(value, (tuple, list)) else [value]:
            problem = _unfit(tensor, device)
            if problem:
                return problem
    builder = GraphBuilder("trial")
    try:
        operands = {n: _placeholder(builder, n) for n in node.all_input_nodes}
        lowered(builder, node, operands)
        _look_at_attributes(builder)
    except (TreadleError, NotImplementedError) as error:
        return str(error).partition("\n")[0] or type(error).__name__
    except Exception as error:  # PyTorch runs it, and the reason tells of the fault
        return f"a fault of Treadle: {type(error).__name__}: {error}".partition("\n")[0]
    return ""


def _look_at_attributes(builder: GraphBuilder) -> None:
    """Refuse operands where ops have plain numbers: real numbers that are made of sizes."""
    for node in builder.build().nodes:
        for name, value in node.op.attributes.items():
            if isinstance(value, GraphOperand):
                raise NotImplementedError(f"{name} of {node.op.name} is made of sizes")


def _unknown_number(node: fx.Node) -> str:
    """Return why a number is not one that sizes of a program's arguments give."""
    if name_of(node.target).startswith("_local_scalar_dense"):
        return "data decide it"
    try:
        plain_of(GraphBuilder("trial"), node.meta["val"])
    except NotImplementedError as error:
        return str(error)
    return ""


def _unfit(tensor: Any, device: torch.device | None) -> str:
    if tensor is None or is_number(tensor):
        return ""
    if not isinstance(tensor, torch.Tensor):
        return "a value is not a tensor of fixed shape"
    if tensor.layout is not torch.strided:
        return f"a tensor is {str(tensor.layout).rpartition('.')[2]}"
    if device is not None and is_apart(tensor, device):
        return f"a tensor is on {tensor.device}, not on {device}"
    if tensor.dtype not in DTYPES and tensor.dtype not in PARTS:
        return f"{tensor.dtype} is not an element type of ours"
    return ""


def _placeholder(builder: GraphBuilder, node: fx.Node) -> Any:
    value = node.meta["val"]
    if isinstance(value, (tuple, list)):
        return tuple(input_of(builder, v) for v in value)
    return input_of(builder, value) if isinstance(value, torch.Tensor) else plain_of(builder, value)


def plain_of(builder: GraphBuilder, value: Any) -> Any:
    """Return an argument that is not a tensor as lowerings take it: sizes are extents, real numbers
    operands.
    """
    if isinstance(value, torch.SymFloat):
        return real_of(builder, value)
    return number_of(value)


def lowered(builder: GraphBuilder, node: fx.Node, operands: Mapping[fx.Node, Any]) -> Any:
    """The node's results as operands.

    Raises:
        NotImplementedError: ours would be of another type, or the table refuses the arguments.
    """
    if is_number(node.meta.get("val")):
        return plain_of(builder, node.meta["val"])
    arguments: Any
    keywords: Any
    arguments, keywords = fx.map_arg(arguments_of(node), operands.__getitem__)
    if node.target is operator.getitem:
        return arguments[0][arguments[1]]
    control = getattr(node.target, "lowered", None)
    if control is not None:  # a branch or a loop, with bodies of its own
        made = control(builder, arguments)
        _check(made, described(node.meta["val"]))
        return made
    given = (a.meta.get("val") if isinstance(a, fx.Node) else None for a in node.args)
    inputs, values = described(tuple(given)), described(node.meta["val"])
    call = OperatorCall(name_of(node.target), builder, values, inputs, node.meta.get(_WHOLE, True))
    if is_complex((node.meta["val"], *(n.meta.get("val") for n in node.all_input_nodes))):
        made = lower_complex(call, arguments, keywords)
    elif call.name in LOWERINGS:
        made = LOWERINGS[call.name](call, *arguments, **keywords)
    else:
        made = COMPLEX[call.name](call, *arguments, **keywords)
    _check(made, values)
    return made


def arguments_of(node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments by place and by name. PyTorch leaves out those that are as the operator's
    schema has them; here they are written out, so that no lowering has defaults of its own.
    """
    placed, named = list(node.args), dict(node.kwargs)
    schema = getattr(node.target, "_schema", None)
    for argument in schema.arguments[len(placed) :] if schema else ():
        default = argument.default_value
        if argument.name in named and not argument.kwarg_only:
            placed.append(named.pop(argument.name))
        elif not argument.kwarg_only:
            placed.append(default)
        elif default is not None:
            named.setdefault(argument.name, default)
    while len(placed) > len(node.args) and (placed[-1] is None or placed[-1] == []):
        placed.pop()  # nothing
    return tuple(placed), named


def _check(made: Any, expected: Any) -> None:
    """Refuse results of other types than PyTorch's."""
    tensors = (torch.Tensor, Described)
    several = isinstance(made, (tuple, list)) and isinstance(expected, (tuple, list))
    for ours, theirs in zip(made, expected, strict=False) if several else [(made, expected)]:
        if not isinstance(theirs, tensors) or not isinstance(ours, (GraphOperand, Pair)):
            continue
        wanted, found = type_of(theirs), ours.type
        if isinstance(ours, Pair):
            if ours.imag.type != found:
                raise NotImplementedError(f"parts would be {found} and {ours.imag.type}")
            found = found.with_shape((*found.shape, 2))
        if found.dtype is not wanted.dtype or not _same(found.shape, wanted.shape):
            raise NotImplementedError(f"a result would be {found}, not {wanted}")


def _same(found: Sequence[Dim], wanted: Sequence[Dim]) -> bool:
    """Return whether shapes are equal; expressions that are not identical are so at the call."""
    return len(found) == len(wanted) and all(
        is_identical(x, y) or bool(x == y) for x, y in zip(found, wanted, strict=True)
    )
