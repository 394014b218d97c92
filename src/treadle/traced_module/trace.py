"""`trace_module`: from a module to a traced module."""

from __future__ import annotations

from typing import Any

from treadle.base.errors import TraceError
from treadle.module.module import Module
from treadle.tensor import Tensor, wrap
from treadle.traced_module import order
from treadle.traced_module.argspec import argspec_of
from treadle.traced_module.build import Builder
from treadle.traced_module.checker import SWITCHES
from treadle.traced_module.expr import Expr
from treadle.traced_module.flattening import renumber
from treadle.traced_module.node import Node
from treadle.traced_module.patch import detours
from treadle.traced_module.pytree import tree_map
from treadle.traced_module.recording import SLOT
from treadle.traced_module.traced_module import TracedModule
from treadle.traced_module.tracer import Tracer


def trace_module(mod: Module, *args: Any, **kwargs: Any) -> TracedModule:
    """Run a module once on example arguments and return what it did, as a module.

    Calls of layers, of functions and of methods and operators of tensors become expressions of
    the returned module's `graph`; modules that are not built in become traced modules of their
    own. Parameters, buffers and built-in layers are shared with `mod`.

    Python runs now and not later: branches, loops and numbers are fixed as they were taken, but
    for extents (`x.shape[0]`), which are computed anew at each run. Where the value of a tensor
    decides, a warning is logged. The module runs in its present mode, and once: statistics of
    batch normalization move if it is in training mode.

    Args:
        mod: the module.
        args, kwargs: example arguments: tensors, plain values, and lists, tuples and dicts of
            them. Tensors stand for any other of their kind; other values are fixed.

    Raises:
        TypeError: `mod` is not a module.
        TraceError: a trace or insertion is going on; an argument or result is of an unsupported
            type; or a tensor goes from one module to another without being passed.
    """
    if not isinstance(mod, Module):
        raise TypeError(f"trace_module takes a Module, got {type(mod).__name__}")
    if SLOT.recorder is not None:
        raise TraceError("trace_module", "something is being traced or inserted already")
    plain, named = argspec_of(mod).bind(type(mod).__name__, args, kwargs)
    # Handles of the trace's own: what the module does to its arguments stays here.
    copies = tree_map((plain, named), _own, lambda leaf: isinstance(leaf, Tensor))
    Node._set_next_id(0)
    Expr._set_next_id(0)
    tracer = Tracer()
    with detours(tracer), tracer.hooked():
        tracer.look_into(mod, type(mod).__call__, *copies)
    made = Builder(tracer.traced).build(mod)
    for graph in made.argdef_graph_map.values():
        renumber(graph)
        if SWITCHES.graphs:
            for each in graph._graphs():
                order.check(each)
    return made


def _own(tensor: Tensor) -> Tensor:
    return wrap(tensor._data, tensor._kind, tensor._trace)
