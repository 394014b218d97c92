"""Calls of compiled graphs: straight to the program, where one is all that there is."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo import graph_bytecode_inputs as handed

from treadle.interop.torch.parts import CompiledPart

Boxed = Callable[[list[Any]], Any]


def boxed(module: fx.GraphModule) -> Boxed:
    """The graph as AOTAutograd calls it: with a list of arguments, which is emptied."""
    return _straight(module) or _boxed(_by_module(module))


def _boxed(run: Any) -> Boxed:
    run._boxed_call = True
    found: Boxed = run
    return found


def _by_module(module: fx.GraphModule) -> Boxed:
    forward = module.forward

    def run(arguments: list[Any]) -> Any:
        given = list(arguments)
        arguments.clear()
        return forward(*given)

    return run


def _straight(module: fx.GraphModule) -> Boxed | None:
    """The call of a graph that is one program between arguments and results; None for others."""
    placeholders = {n: i for i, n in enumerate(module.graph.find_nodes(op="placeholder"))}
    inner = [n for n in module.graph.nodes if n.op not in ("placeholder", "output")]
    calls = [n for n in inner if n.target is not operator.getitem]
    if len(calls) != 1 or calls[0].op != "call_module":
        return None
    (call,), (output,) = calls, module.graph.find_nodes(op="output")
    program = module.get_submodule(str(call.target))
    if not isinstance(program, CompiledPart) or any(a not in placeholders for a in call.args):
        return None
    takes = [placeholders[a] for a in call.args]
    if not isinstance(output.args[0], (tuple, list)):
        return None
    gives = [_given(value, call, placeholders) for value in output.args[0]]
    whole = len(takes) == len(placeholders) and takes == sorted(takes)
    if all(kind == _RESULT for kind, _ in gives):
        numbers = [number for _, number in gives]
        if numbers == list(range(len(numbers))) and program.count == len(numbers):
            return WholeCall(program.run if whole else _taking(program.run, takes))
    return _boxed(_mixed(program, takes, gives))


_RESULT, _ARGUMENT, _PLAIN = range(3)


def _given(value: Any, call: fx.Node, placeholders: dict[fx.Node, int]) -> tuple[int, Any]:
    """Return the origin of a result of the graph."""
    if not isinstance(value, fx.Node):
        return _PLAIN, value
    if value in placeholders:
        return _ARGUMENT, placeholders[value]
    return _RESULT, 0 if value is call else value.args[1]


class WholeCall:
    """The call of a graph whose results are those of a program, in order.

    Wrappers of PyTorch copy attributes of what they wrap: of the object, not of its class. So they
    are told that it takes a list by an attribute of its own, and it is known by its class.

    Attributes:
        call: of the program.
        is_all: whether AOTAutograd has nothing to do around it; see `note_what_is_around`.
    """

    def __init__(self, call: Callable[[Sequence[Any]], Any]) -> None:
        self._boxed_call = True
        self.call = call
        self.is_all = False

    def __call__(self, arguments: list[Any]) -> Any:
        """Run the program, and empty the list."""
        made = self.call(arguments)
        arguments.clear()
        return made


def _taking(call: Callable[[Sequence[Any]], Any], takes: Sequence[int]) -> Any:
    return lambda given: call([given[i] for i in takes])


def _mixed(program: CompiledPart, takes: Sequence[int], gives: Sequence[tuple[int, Any]]) -> Boxed:
    def run(arguments: list[Any]) -> Any:
        given = tuple(arguments)
        arguments.clear()
        made = program.run([given[i] for i in takes])
        sources = made, given
        return [value if kind == _PLAIN else sources[kind][value] for kind, value in gives]

    return run


# -- what PyTorch does around a call -----------------------------------------------------------


def note_what_is_around(run: Boxed) -> Boxed:
    """Note at the call of a graph that is being compiled whether AOTAutograd leaves its arguments
    and results as they are.
    """
    context = torch._guards.TracingContext.try_get()
    known = None if context is None else context.fw_metadata
    if known is not None and isinstance(run, WholeCall):
        touched = known.mutated_inp_runtime_indices or known.num_outputs_aliased
        run.is_all = not (touched or known.dynamic_outputs)
    return run


def direct(made: Any, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """The call of a graph, past AOTAutograd's wrapper where that would do nothing.

    The wrapper writes mutated arguments back, makes results views again and switches gradients
    off, which takes as long as a small program.

    Args:
        made: what AOTAutograd made of the graph.
        module: the graph as the tracer gave it.
        inputs: its example inputs.
    """
    whole: Callable[..., Any] = made
    # Wrappers for subclasses, arguments given twice and random states would stand in between.
    run = getattr(getattr(made, "__wrapped__", None), "__wrapped__", None)
    if not isinstance(run, WholeCall) or not run.is_all:
        return whole
    call = run.call
    if any(True for _ in module.parameters()) or any(True for _ in module.buffers()):
        return whole
    if torch.is_grad_enabled() and any(_wants_gradient(x) for x in inputs):
        return whole
    return lambda *arguments: call(list(arguments))


def _wants_gradient(given: Any) -> bool:
    return isinstance(given, torch.Tensor) and given.requires_grad


def drop_stream(module: fx.GraphModule) -> None:
    """Take away the accelerator's stream that the tracer hands to every graph, if none reads it.

    Each call would ask the device for it, which takes longer than a small program.
    """
    graphs = [m.graph for m in module.modules() if isinstance(m, fx.GraphModule)]
    if any(_may_read_streams(node) for graph in graphs for node in graph.nodes):
        return
    objects = list(handed.index_to_external_object_weakref.values())
    if len(objects) == 1 and isinstance(objects[0](), torch.Stream):
        handed.index_to_bytecode_constructor.clear()


def _may_read_streams(node: fx.Node) -> bool:
    of_streams = getattr(node.target, "namespace", "") == "streams"
    is_asking = getattr(node.target, "__module__", "") == handed.__name__
    return of_streams or is_asking or "custom" in node.meta
