"""Branches and loops of PyTorch as those of our programs, where all in them has a counterpart.

`torch.cond`, `torch.while_loop` and `scan` come as operators over graphs. Such a call becomes a
node whose target holds the graphs, so that it is a part of a program as any operator is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator

from treadle.base import dtype as dt
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.interop.torch.drawing import DRAWING
from treadle.interop.torch.nodes import lowered, refusal, type_of
from treadle.interop.torch.placements import CPU
from treadle.interop.torch.symbols import is_number
from treadle.interop.torch.table import name_of

Tensors = tuple[GraphOperand, ...]


class ControlFlowCall:
    """A call of `cond`, `while_loop` or `scan` as the target of a node.

    Args:
        name: of PyTorch's operator.
        bodies: both branches; the condition and the turn of a loop; the turn of a scan.
        carried: how many of a loop's first operands are its state.
        stacked: how many of a scan's next operands give an entry to each turn; further ones are
            the same in every turn.
        device: of its tensors, but for single numbers.

    Attributes:
        device: as given.
    """

    def __init__(
        self,
        name: str,
        bodies: Sequence[fx.Graph],
        carried: int,
        stacked: int,
        device: torch.device,
    ) -> None:
        self.__name__ = name
        self.device = device
        self._bodies = tuple(bodies)
        self._carried = carried
        self._stacked = stacked

    def __call__(self, *given: Any) -> Any:
        """Raise: programs run it.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(f"{self.__name__} is a part of a program")

    def __str__(self) -> str:
        return self.__name__

    def refusal(self) -> str:
        """Return why a program cannot have it; empty if it can."""
        for body in self._bodies:
            for node in body.nodes:
                inner = node.target is operator.getitem or isinstance(node.target, ControlFlowCall)
                if node.op == "call_function" and not inner:
                    why = refusal(node, self.device)
                    if why:
                        return f"{name_of(node.target) or node.target}: {why}"
        return ""

    def lowered(self, builder: GraphBuilder, operands: Sequence[GraphOperand]) -> Tensors:
        """Apply it."""
        n, functions = self._carried, [_function(body) for body in self._bodies]
        if self.__name__ == "cond":
            predicate, *given = operands
            then, otherwise = functions
            return builder.cond(predicate.astype(dt.bool_), then, otherwise, given)
        if self.__name__ == "scan":
            return self._scanned(builder, functions[0], operands)
        goes_on, turn = functions
        return builder.while_loop(
            lambda *state: goes_on(*state)[0],
            lambda *state: (*turn(*state), *state[n:]),
            operands,
        )[:n]

    def _scanned(
        self, builder: GraphBuilder, turn: Callable[..., Tensors], operands: Sequence[GraphOperand]
    ) -> Tensors:
        n, far = self._carried, self._carried + self._stacked
        state, rows, shared = operands[:n], operands[n:far], operands[far:]
        count = len(state) + len(shared)

        def whole(*given: GraphOperand) -> Tensors:
            made = turn(*given[:n], *given[count:], *given[n:count])
            return (*made[:n], *given[n:count], *made[n:])

        made = builder.scan(whole, (*state, *shared), rows, rows[0].type.shape[0])
        return (*made[:n], *made[count:])


def _function(body: fx.Graph) -> Callable[..., Tensors]:
    """A graph as a function of operands."""

    def run(*given: GraphOperand) -> Tensors:
        operands: dict[fx.Node, Any] = {}
        arguments = iter(given)
        for node in body.nodes:
            if node.op == "placeholder":
                operands[node] = next(arguments)
            elif node.op == "call_function":
                operands[node] = lowered(given[0].builder, node, operands)
        (end,) = body.find_nodes(op="output")
        listed = end.args[0] if isinstance(end.args[0], (tuple, list)) else [end.args[0]]
        return tuple([operands[n] for n in listed])

    return run


def take_over(module: fx.GraphModule) -> None:
    """Replace calls of branches and loops by nodes that programs can have.

    Args:
        module: whose bodies are functional graphs of ATen operators.
    """
    for node in list(module.graph.nodes):
        made = _control(module, node)
        if made is None:
            continue
        target, operands = made
        with module.graph.inserting_before(node):
            call = module.graph.call_function(target, tuple(operands))
        call.meta = dict(node.meta)
        node.replace_all_uses_with(call)
        module.graph.erase_node(node)
    module.graph.eliminate_dead_code()


def _control(module: fx.GraphModule, node: fx.Node) -> tuple[ControlFlowCall, list[fx.Node]] | None:
    """A call as the target of a node, and its operands; None where it stays with PyTorch."""
    name = str(node.target) if isinstance(node.target, HigherOrderOperator) else ""
    carried = stacked = 0
    arguments: Any = node.args
    if name == "cond":
        predicate, *names, given = arguments
        operands = [predicate, *given]
    elif name == "while_loop":
        *names, state, more = arguments
        operands, carried = [*state, *more], len(state)
    elif name == "scan":
        turn, state, rows, more = arguments
        names, operands = [turn], [*state, *rows, *more]
        carried, stacked = len(state), len(rows)
    else:
        return None
    bodies: list[Any] = [module.get_submodule(str(n.target)) for n in names]
    for body in bodies:
        take_over(body)
    graphs = [body.graph for body in bodies]
    first = operands[: carried or 1]
    if not all(map(_is_tensor, operands)) or len(operands) == (name == "cond"):
        return None
    if (name == "cond" and tuple(predicate.meta["val"].shape)) or not all(map(_is_taken, graphs)):
        return None
    if (carried and not _keeps_types(graphs[-1], first)) or (name == "scan" and not stacked):
        return None
    devices = {d for n in operands if (d := n.meta["val"].device).type != "cpu"}
    if len(devices) > 1 or any(d.index for d in devices):  # Those of others have no loops.
        return None
    control = ControlFlowCall(name, graphs, carried, stacked, next(iter(devices), CPU))
    return None if control.refusal() else (control, operands)


def _is_tensor(value: Any) -> bool:
    made = value.meta.get("val") if isinstance(value, fx.Node) else None
    return isinstance(made, torch.Tensor) and not made.is_complex()


def _is_taken(graph: fx.Graph) -> bool:
    """Return whether a body computes tensors of its operands, and draws nothing."""
    for node in graph.nodes:
        if node.op not in ("placeholder", "call_function", "output"):
            return False
        if node.op == "call_function" and name_of(node.target) in DRAWING:
            return False
        value = node.meta.get("val")
        made = [] if node.op == "output" else value if isinstance(value, (tuple, list)) else [value]
        if not all(
            (isinstance(x, torch.Tensor) and not x.is_complex()) or is_number(x) for x in made
        ):
            return False
    (end,) = graph.find_nodes(op="output")
    listed = end.args[0] if isinstance(end.args[0], (tuple, list)) else [end.args[0]]
    return all(map(_is_tensor, listed))


def _keeps_types(turn: fx.Graph, state: Sequence[fx.Node]) -> bool:
    (end,) = turn.find_nodes(op="output")
    made = [type_of(n.meta["val"]) for n in end.args[0][: len(state)]]
    return made == [type_of(n.meta["val"]) for n in state]
