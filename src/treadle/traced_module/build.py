"""Traced modules from the graphs that a tracer has written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.module.module import Module
from treadle.module.path import get_at, set_at, split
from treadle.module.qat.module import QATModule
from treadle.tensor import Tensor
from treadle.traced_module.argspec import argspec_of, source_of
from treadle.traced_module.catalog import is_builtin
from treadle.traced_module.expr import GetAttr, SetAttr
from treadle.traced_module.graph import InternalGraph
from treadle.traced_module.traced_module import TracedModule


class Builder:
    """Makes a traced module of each module that was looked into.

    Args:
        traced: for the id of each such module, the module and its graphs.
    """

    def __init__(self, traced: Mapping[int, tuple[Module, list[InternalGraph]]]) -> None:
        self._traced = traced
        self._made: dict[int, TracedModule] = {}
        self._taken: dict[int, Any] = {}

    def build(self, module: Module) -> TracedModule:
        """The traced module of a module; parameters and built-in modules are shared with it."""
        made = self._shell(module)
        _, graphs = self._traced.get(id(module), (module, []))
        for graph in graphs:
            for expr in graph._exprs:
                if isinstance(expr, (GetAttr, SetAttr)) and expr.inputs[0] is graph._inputs[0]:
                    self._take(module, made, expr.name)
            if made.find_graph(graph.arg_def, graph.variant) is None:
                made.add_graph(graph)
        self._alias(module, made)
        if isinstance(module, QATModule):
            _quantizers(module, made)
        made.attach()
        return made

    def hold(self, module: Any, path: str) -> None:
        """Put what others read of a module onto its traced module, if there is one."""
        made = self._made.get(id(module))
        if made is not None:
            self._take(module, made, path)

    def _alias(self, module: Module, made: TracedModule) -> None:
        """Further names of what was taken stay names of it."""
        for name, value in vars(module).items():
            known = self._taken.get(id(value))
            if known is not None and name not in vars(made):
                _put(made, name, known)

    def _shell(self, module: Module) -> TracedModule:
        """The traced module without attributes, one for each module."""
        made = self._made.get(id(module))
        if made is None:
            made = self._made[id(module)] = TracedModule(module.name)
            vars(made)["_source"] = source_of(module)
            made.argspec = argspec_of(module)
            made.training = module.training
            made.quantize_disabled = module.quantize_disabled
        return made

    def _take(self, source: Any, made: Any, path: str) -> None:
        """Give the traced module what the original has at a path, and all on the way to it."""
        here: Any = source
        there: Any = made
        parts = list(split(path))
        for i, part in enumerate(parts):
            here_next = get_at(here, part)
            there_next = self._converted(here_next, there, part, last=i == len(parts) - 1)
            if there_next is here_next and isinstance(here_next, Module):
                return  # built in: what is below comes with it
            here, there = here_next, there_next

    def _converted(self, value: Any, holder: Any, part: str, last: bool) -> Any:
        """The counterpart of a value, put into its holder."""
        present = vars(holder).get(part) if isinstance(holder, Module) else _item(holder, part)
        new = present
        if isinstance(value, Module):
            if is_builtin(value):
                new = value
            elif present is None:
                new = self.build(value) if id(value) in self._traced else self._shell(value)
        elif isinstance(value, (list, tuple)) and present is None:
            new = [None] * len(value)
        elif isinstance(value, dict) and present is None:
            new = {}
        elif last:
            new = value
        if new is not present:
            _put(holder, part, new)
        if isinstance(value, (Module, Tensor)):
            self._taken[id(value)] = new
        return new


def _item(holder: Any, part: str) -> Any:
    if isinstance(holder, dict):
        return holder.get(part)
    return holder[int(part)]


def _put(holder: Any, part: str, value: Any) -> None:
    if isinstance(holder, TracedModule) and part in _PROPERTIES:
        vars(holder)[part] = value
        holder._note(part, value)
    else:
        set_at(holder, part, value)


def _quantizers(module: QATModule, made: TracedModule) -> None:
    """Programs ask a traced QAT module for its quantizers; those it did not call are named, too."""
    for kind in ("weight", "act"):
        for name in (f"{kind}_observer", f"{kind}_fake_quant"):
            value = getattr(module, name)
            if name not in vars(made) and (value is None or is_builtin(value)):
                _put(made, name, value)


_PROPERTIES = frozenset({"graph", "argdef_graph_map", "argdef_outdef_map"})
