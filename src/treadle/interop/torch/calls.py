"""Calls of compiled graphs: straight to the program, where one is all that there is."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from treadle.interop.torch.parts import CompiledPart

Boxed = Callable[[list[Any]], Any]


def boxed(module: fx.GraphModule) -> Boxed:
    """The graph as AOTAutograd calls it: with a list of arguments, which is emptied."""
    run = _straight(module) or _by_module(module)
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


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
            return _whole(program.run if whole else _taking(program.run, takes))
    return _mixed(program, takes, gives)


_RESULT, _ARGUMENT, _PLAIN = range(3)


def _given(value: Any, call: fx.Node, placeholders: dict[fx.Node, int]) -> tuple[int, Any]:
    """Return the origin of a result of the graph."""
    if not isinstance(value, fx.Node):
        return _PLAIN, value
    if value in placeholders:
        return _ARGUMENT, placeholders[value]
    return _RESULT, 0 if value is call else value.args[1]


def _whole(call: Callable[[Sequence[Any]], Any]) -> Boxed:
    def run(arguments: list[Any]) -> Any:
        made = call(arguments)
        arguments.clear()
        return made

    return run


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
