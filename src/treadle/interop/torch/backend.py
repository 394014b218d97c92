"""The backend: graphs of PyTorch, forward and backward, as programs of the engine.

AOTAutograd gives functional graphs of ATen operators. What has a counterpart is gathered into as
few parts as possible, each of which becomes one native program; the rest stays with PyTorch.
"""

from __future__ import annotations

import operator
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from treadle.base.errors import TreadleError
from treadle.base.log import get_logger
from treadle.base.types import TensorType
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.graph.ir import Graph
from treadle.interop.torch import elementwise, layers, shaping  # noqa: F401  (they register)
from treadle.interop.torch.arrays import DTYPES, to_array, to_tensor
from treadle.interop.torch.table import LOWERINGS, Call, name_of

_KEPT = (
    "_log_softmax",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_softmax",
    "gelu",
    "max_pool2d_with_indices",
    "native_layer_norm",
    "silu",
)
"""Operators that are not to be taken apart, since ours are the same."""
_SECOND = ("max_pool2d_with_indices", "_scaled_dot_product_flash_attention_for_cpu")
"""Operators whose second result is made for their gradient, and is another one for ours."""


@dataclass(frozen=True, slots=True)
class Left:
    """Operators that PyTorch ran itself: the name, how many nodes, and why."""

    operator: str
    nodes: int
    reason: str


_LEFT: Counter[tuple[str, str]] = Counter()
_LOCK = threading.Lock()


def left_to_torch() -> list[Left]:
    """What was left to PyTorch by all compilations so far, most nodes first."""
    with _LOCK:
        return [Left(name, n, why) for (name, why), n in _LEFT.most_common()]


def backend(module: fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
    """A backend for `torch.compile`: `torch.compile(model, backend="treadle")`.

    Training and inference; tensors of the CPU, shapes that are fixed. Operators that have no
    counterpart, or whose shapes are symbolic, are run by PyTorch (see `left_to_torch`).
    """
    compiler = partial(_boxed, _shown(module))
    compiled: Any = aot_autograd(
        fw_compiler=compiler, bw_compiler=compiler, decompositions=_decompositions()
    )
    made: Callable[..., Any] = compiled(module, inputs)
    return made


def _shown(module: fx.GraphModule) -> frozenset[str]:
    """Operators whose second result the program itself may read, rather than a gradient alone."""
    found = set()
    for node in module.graph.nodes:
        text = f"{node.target} {getattr(node.target, '__name__', '')}"
        asked = node.kwargs.get("return_indices") or (len(node.args) > 6 and node.args[6] is True)
        found |= {name for name in _SECOND if name in text or (asked and "max_pool" in name)}
    return frozenset(found)


def _boxed(
    shown: frozenset[str], module: fx.GraphModule, inputs: Sequence[Any]
) -> Callable[[list[Any]], Any]:
    """Compile one graph of ATen operators."""
    fused = _partitioned(module, shown)

    def run(arguments: list[Any]) -> Any:
        given = list(arguments)
        arguments.clear()
        return fused(*given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _decompositions() -> Mapping[Any, Any]:
    table: dict[Any, Any] = dict(core_aten_decompositions())
    return {k: v for k, v in table.items() if name_of(k).partition(".")[0] not in _KEPT}


# -- what is taken over ------------------------------------------------------------------------


class _Support(OperatorSupportBase):  # type: ignore[misc, unused-ignore]  # torch may be missing
    """Which nodes have a counterpart, tried by writing each one on its own."""

    def __init__(self, shown: frozenset[str]) -> None:
        self.reasons: dict[fx.Node, str] = {}
        self._shown = shown

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: fx.Node) -> bool:
        if node.op != "call_function":
            return False
        if node.target is operator.getitem:
            source = node.args[0]
            return isinstance(source, fx.Node) and self.is_node_supported(submodules, source)
        if node not in self.reasons:
            self.reasons[node] = self._hidden(node) or _refusal(node)
        return not self.reasons[node]

    def _hidden(self, node: fx.Node) -> str:
        """Ours has another second result, which nobody but our gradient may see."""
        name = name_of(node.target).partition(".")[0]
        own = any(name.startswith(s) for s in self._shown)
        return "the program reads its second result" if own else ""


def _refusal(node: fx.Node) -> str:
    """Why a node stays with PyTorch; "" if it does not."""
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
        _lowered(builder, node, operands)
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
        return tuple(builder.input(_type(v)) for v in value)
    return builder.input(_type(value)) if isinstance(value, torch.Tensor) else value


def _type(value: torch.Tensor) -> TensorType:
    return TensorType(DTYPES[value.dtype], tuple(int(d) for d in value.shape))


def _lowered(builder: GraphBuilder, node: fx.Node, operands: Mapping[fx.Node, Any]) -> Any:
    """The node's results as operands."""
    arguments: Any = fx.map_arg(node.args, operands.__getitem__)
    keywords: Any = fx.map_arg(node.kwargs, operands.__getitem__)
    if node.target is operator.getitem:
        return arguments[0][arguments[1]]
    inputs = tuple(a.meta.get("val") if isinstance(a, fx.Node) else None for a in node.args)
    call = Call(builder, node.meta["val"], inputs)
    made = LOWERINGS[name_of(node.target)](call, *arguments, **keywords)
    expected = node.meta["val"]
    single = isinstance(made, GraphOperand) and isinstance(expected, torch.Tensor)
    if single and made.type != _type(expected):
        raise NotImplementedError(f"the result would be {made.type}, not {_type(expected)}")
    return made


# -- parts -------------------------------------------------------------------------------------


def _partitioned(module: fx.GraphModule, shown: frozenset[str]) -> fx.GraphModule:
    """The graph with every part that is taken over as one call of a program."""
    support = _Support(shown)
    partitioner = CapabilityBasedPartitioner(module, support, allows_single_node_partition=True)
    fused = partitioner.partition_and_fuse()
    parts = [n for n in fused.graph.nodes if n.op == "call_module" and "fused" in str(n.target)]
    for node in parts:
        part = fused.get_submodule(str(node.target))
        if isinstance(part, fx.GraphModule):
            fused.set_submodule(str(node.target), Program(part))
    _tell(support)
    return fused


def _tell(support: _Support) -> None:
    left = Counter(
        (name_of(node.target) or str(node.target), why)
        for node, why in support.reasons.items()
        if why
    )
    with _LOCK:
        _LEFT.update(left)
    for (name, why), count in left.most_common():
        get_logger("torch").info("%s stays with PyTorch (%d nodes): %s", name, count, why)


class Program(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # torch may be missing
    """A part of a graph as a program of the engine, compiled at its first call."""

    def __init__(self, part: fx.GraphModule) -> None:
        super().__init__()
        self._graph, self._shape = _graph_of(part)
        self.stages = Stages(self._graph, options=Options())

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Run on tensors, whose memory is read where it lies."""
        results = self.stages.compile().run([to_array(t) for t in tensors])
        made = [to_tensor(array) for array in results]
        return made[0] if self._shape == "one" else tuple(made)


def _graph_of(part: fx.GraphModule) -> tuple[Graph, str]:
    """A part as a graph, and whether it returns one tensor or a tuple."""
    builder = GraphBuilder("torch")
    operands: dict[fx.Node, Any] = {}
    shape = "one"
    for node in part.graph.nodes:
        if node.op == "placeholder":
            operands[node] = builder.input(_type(node.meta["val"]), str(node.name))
        elif node.op == "call_function":
            operands[node] = _lowered(builder, node, operands)
        elif node.op == "output":
            results = node.args[0]
            shape = "one" if isinstance(results, fx.Node) else "many"
            listed = [results] if isinstance(results, fx.Node) else list(results)
            builder.output(*(operands[n] for n in listed))
    return builder.build(), shape
