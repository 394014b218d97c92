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
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from treadle.base.log import get_logger
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph
from treadle.interop.torch.arrays import to_array, to_tensor
from treadle.interop.torch.nodes import (
    FOR_GRADIENTS,
    decompositions,
    lowered,
    refusal,
    type_of,
)
from treadle.interop.torch.table import name_of


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
        fw_compiler=compiler, bw_compiler=compiler, decompositions=decompositions()
    )
    made: Callable[..., Any] = compiled(module, inputs)
    return made


def _shown(module: fx.GraphModule) -> frozenset[str]:
    """Operators whose second result the program itself may read, rather than a gradient alone."""
    found = set()
    for node in module.graph.nodes:
        text = f"{node.target} {getattr(node.target, '__name__', '')}"
        asked = node.kwargs.get("return_indices") or (len(node.args) > 6 and node.args[6] is True)
        found |= {name for name in FOR_GRADIENTS if name in text or (asked and "max_pool" in name)}
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
            self.reasons[node] = self._hidden(node) or refusal(node)
        return not self.reasons[node]

    def _hidden(self, node: fx.Node) -> str:
        """Ours has another second result, which nobody but our gradient may see."""
        name = name_of(node.target).partition(".")[0]
        own = any(name.startswith(s) for s in self._shown)
        return "the program reads its second result" if own else ""


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
            operands[node] = builder.input(type_of(node.meta["val"]), str(node.name))
        elif node.op == "call_function":
            operands[node] = lowered(builder, node, operands)
        elif node.op == "output":
            results = node.args[0]
            shape = "one" if isinstance(results, fx.Node) else "many"
            listed = [results] if isinstance(results, fx.Node) else list(results)
            builder.output(*(operands[n] for n in listed))
    return builder.build(), shape
