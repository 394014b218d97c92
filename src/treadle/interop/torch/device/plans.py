"""Calls of ATen operators as small graphs of ops, written once for types, shapes and numbers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from treadle.backends import registry
from treadle.base.errors import TreadleError
from treadle.engine.devices.names import CompNode
from treadle.engine.eager.choice import choose_on_device
from treadle.engine.eager.dispatch import EagerType, eager_type, run, run_nullary
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph
from treadle.interop.torch.arrays import DTYPES, PARTS, to_array
from treadle.interop.torch.device.scalars import Number
from treadle.interop.torch.drawing import DRAWING
from treadle.interop.torch.nodes import decompositions, input_of, lowered, output_of
from treadle.interop.torch.strides import Placed, placed
from treadle.interop.torch.table import LOWERINGS, name_of

_LOCK = threading.RLock()


class OperatorRefused(Exception):
    """The operator has no counterpart for these arguments; the message says why."""


class DeviceLacksAll(OperatorRefused):
    """The device has no kernel for anything that the operator would be written in."""


class ReturnedTensor(NamedTuple):
    """A tensor that a call returns.

    Attributes:
        dtype: of PyTorch.
        shape: of the tensor.
        place: how it lies in memory; None: row-major.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    place: Placed | None


class LoweredCall(NamedTuple):
    """A call in ops.

    Attributes:
        graph: of ops; its inputs are the call's tensors.
        results: of the call, in order, those of lists one by one; None for what is none.
        is_single: whether the call returns one tensor rather than several.
        lengths: for each result of the call how many it is if it is a list, else None.
    """

    graph: Graph
    results: tuple[ReturnedTensor | None, ...]
    is_single: bool
    lengths: tuple[int | None, ...]


def write(op: Any, args: Any, kwargs: Any, *, opens: bool = False) -> LoweredCall:
    """A call in ops.

    Args:
        op: an operator that writes to nothing, or a function of them.
        args, kwargs: its arguments; tensors may be anywhere, only their types and shapes count.
        opens: whether real numbers are tensors for it.

    Raises:
        Refused: it cannot be written, or PyTorch refuses the arguments.
    """
    with _LOCK:
        try:
            part, lengths = _captured(op, args, kwargs, opens)
            return _lowered(part, lengths)
        except OperatorRefused:
            raise
        except (TreadleError, NotImplementedError) as error:
            raise OperatorRefused(str(error).partition("\n")[0] or type(error).__name__) from error
        except Exception as error:  # PyTorch's kernel runs it, or says what is wrong with it
            why = str(error).partition("\n")[0]
            raise OperatorRefused(f"{type(error).__name__}: {why}") from error


def fakes(args: Any, kwargs: Any, opens: bool = False) -> tuple[FakeTensorMode, Any, Any]:
    """Arguments with tensors of the CPU that have no memory, and the mode that they live in.

    Args:
        args, kwargs: of a call.
        opens: whether real numbers are tensors, too.
    """
    mode = FakeTensorMode()

    def fake(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.dtype not in DTYPES and value.dtype not in PARTS:
                raise OperatorRefused(f"{value.dtype} is not an element type of ours")
            with mode:
                return torch.empty_strided(
                    value.size(), value.stride(), dtype=value.dtype, device="cpu"
                )
        if opens and isinstance(value, float):
            with mode:
                return torch.empty((), dtype=torch.float64, device="cpu")
        return torch.device("cpu") if isinstance(value, torch.device) else value

    return mode, pytree.tree_map(fake, args), pytree.tree_map(fake, kwargs)


def _captured(
    op: Any, args: Any, kwargs: Any, opens: bool
) -> tuple[fx.Graph, tuple[int | None, ...]]:
    """The call as a graph of operators that the table has, and the lengths of its results."""
    mode, given, named = fakes(args, kwargs, opens)
    original = pytree.tree_leaves((args, kwargs))
    numbers = {i for i, x in enumerate(original) if opens and isinstance(x, float)}
    table = decompositions()
    if name_of(op).split(".")[0] in {n.split(".")[0] for n in DRAWING}:
        raise OperatorRefused("random numbers are PyTorch's")
    leaves, spec = pytree.tree_flatten((given, named))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if op not in table and name_of(op) in LOWERINGS:
        graph = fx.Graph()
        nodes = list(leaves)
        for number, i in enumerate(places):
            nodes[i] = graph.placeholder(f"x{number}")
            nodes[i].meta["val"] = leaves[i]
        call_args, call_kwargs = pytree.tree_unflatten(nodes, spec)
        node = graph.call_function(op, tuple(call_args), dict(call_kwargs))
        with mode:
            node.meta["val"] = made = op(*given, **named)
        graph.output(node)
        return graph, _lengths(made)

    lengths: list[tuple[int | None, ...]] = []

    def call(*tensors: torch.Tensor) -> Any:
        filled = list(leaves)
        for i, tensor in zip(places, tensors, strict=True):
            filled[i] = Number(tensor) if i in numbers else tensor
        call_args, call_kwargs = pytree.tree_unflatten(filled, spec)
        made = op(*call_args, **call_kwargs)
        lengths[:] = [_lengths(made)]
        if not isinstance(made, (tuple, list)):
            return made
        return [x for m in made for x in (m if isinstance(m, (tuple, list)) else [m])]

    with mode:
        module = make_fx(call, decomposition_table=table)(*[leaves[i] for i in places])
    module.graph.eliminate_dead_code()
    for node in module.graph.find_nodes(op="get_attr"):
        node.meta["constant"] = getattr(module, str(node.target))
    return module.graph, lengths[0]


def _lengths(made: Any) -> tuple[int | None, ...]:
    """Return for each result its length if it is a list, else None."""
    if isinstance(made, list):
        return (len(made),)
    if not isinstance(made, tuple):
        return (None,)
    return tuple([len(m) if isinstance(m, (tuple, list)) else None for m in made])


def _lowered(part: fx.Graph, lengths: tuple[int | None, ...]) -> LoweredCall:
    builder = GraphBuilder("call")
    operands: dict[fx.Node, Any] = {}
    count = 0
    returned: Any = None
    for node in part.nodes:
        if node.op == "placeholder":
            operands[node] = input_of(builder, node.meta["val"])
            count += 1
        elif node.op == "get_attr":
            operands[node] = builder.constant(to_array(node.meta["constant"]))
        elif node.op == "call_function":
            operands[node] = lowered(builder, node, operands)
        elif node.op == "output":
            returned = node.args[0]
    # A call of one operator gives what that gives, a list of captured ones nodes of their own.
    is_single = isinstance(returned, fx.Node) and isinstance(returned.meta["val"], torch.Tensor)
    if isinstance(returned, fx.Node):
        values, made = returned.meta["val"], operands[returned]
        pairs = [(made, values)] if is_single else list(zip(made, values, strict=True))
    else:
        listed = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        pairs = [
            (operands[n], n.meta["val"]) if isinstance(n, fx.Node) else (None, n) for n in listed
        ]
    results = [_result(builder, made, value) for made, value in pairs]
    graph = builder.build()
    if len(graph.inputs) != count:
        raise OperatorRefused("random numbers are PyTorch's")
    return LoweredCall(graph, tuple(results), is_single, lengths)


def _result(builder: GraphBuilder, made: Any, value: Any) -> ReturnedTensor | None:
    if value is None:
        return None
    if not isinstance(value, torch.Tensor):
        raise OperatorRefused("a result is not a tensor")
    place = placed(value)
    operand = output_of(made)
    builder.output(place.in_order_of_memory(operand) if place else operand)
    return ReturnedTensor(value.dtype, tuple(value.shape), place)


def left_to_host(graph: Graph, where: CompNode) -> str:
    """Return why a device without engines runs no op of a graph; empty where it runs one."""
    why = ""
    for node in graph.nodes if not registry.engines(where.kind) else ():
        if node.inputs:
            types = tuple([v.type for v in node.inputs])
            found = choose_on_device(node.op, types, node.op.infer(*types), where.kind)
            if found.kernel is not None or found.launch is not None:
                return ""
            why = why or found.why.message or found.why.reason
    return why


# -- running -----------------------------------------------------------------------------------


class GraphSteps:
    """A graph on a device, op by op.

    Args:
        graph: of ops.
        where: the device.
    """

    def __init__(self, graph: Graph, where: CompNode) -> None:
        self._where = where
        numbers = {value: i for i, value in enumerate(graph.inputs)}
        self._kinds: list[EagerType] = [eager_type(v.type.dtype, where) for v in graph.inputs]
        self._known: list[Any] = []
        steps = []
        count = len(graph.inputs)
        # What depends on no tensor is computed once.
        for node in graph.nodes:
            if not node.inputs:
                results, made = run_nullary(node.op, where)
                for value, kind, array in zip(
                    node.outputs, results, made if len(node.outputs) > 1 else (made,), strict=True
                ):
                    numbers[value] = count
                    self._known.append(array)
                    self._kinds.append(kind)
                    count += 1
        for node in graph.nodes:
            if node.inputs:
                for value in node.outputs:
                    numbers[value] = count
                    count += 1
                steps.append((node.op, tuple(numbers[v] for v in node.inputs), len(node.outputs)))
        self._steps = steps
        self._outputs = [numbers[v] for v in graph.outputs]

    def __call__(self, payloads: Sequence[Any]) -> list[Any]:
        """The outputs for payloads of the inputs."""
        values = [*payloads, *self._known]
        kinds = list(self._kinds)
        for op, given, count in self._steps:
            results, made = run(
                op, tuple([kinds[i] for i in given]), tuple([values[i] for i in given])
            )
            kinds += results
            if count == 1:
                values.append(made)
            else:
                values += made
        return [values[i] for i in self._outputs]

    @property
    def known(self) -> list[Any]:
        """Arrays that every call shares."""
        return self._known


def element_type(dtype: torch.dtype) -> np.dtype[Any]:
    """NumPy's type for the elements of a tensor, or for their parts."""
    known = PARTS.get(dtype) or DTYPES[dtype]
    found: np.dtype[Any] = known.numpy
    return found
