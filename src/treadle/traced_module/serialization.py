"""Loaders that adapt expressions of older files: hooks by function, method, op and module class.

A loader is called with each expression of its kind when a file is read, before the module can be
used. It changes the expression: arguments by `set_args_kwargs` or `set_arg`, and new expressions
before it by making them and using their nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from treadle.ops.op import Op
from treadle.traced_module import catalog, order
from treadle.traced_module.expr import Apply, CallFunction, CallMethod, Expr
from treadle.traced_module.graph import InternalGraph, fresh_name
from treadle.traced_module.node import ModuleNode, Node

Loader = Callable[[Any], Any]
F = TypeVar("F", bound=Loader)

OPDEF_LOADER: dict[type, Loader] = {}
FUNCTIONAL_LOADER: dict[tuple[str, str], Loader] = {}
MODULE_LOADER: dict[tuple[str, str], Loader] = {}
TENSORMETHOD_LOADER: dict[str, Loader] = {}


def register_opdef_loader(*opdefs: type) -> Callable[[F], F]:
    """Register a loader for `Apply` expressions of some classes of ops; a decorator.

    The loader takes the expression and changes it, or parameters in its `opdef_state`, from which
    the op is made anew. `expr.version` is the version of Treadle that
    wrote the file.
    """

    def register(loader: F) -> F:
        OPDEF_LOADER.update(dict.fromkeys(opdefs, loader))
        return loader

    return register


def register_functional_loader(*func_names: tuple[str, str]) -> Callable[[F], F]:
    """Register a loader for calls of functions; a decorator.

    Args:
        func_names: (module, name) pairs, such as `("treadle.functional.nn", "conv2d")`. The
            package may be spelled `megengine`, and which module below `functional` shows the
            function does not matter.
    """

    def register(loader: F) -> F:
        FUNCTIONAL_LOADER.update({_function_key(*names): loader for names in func_names})
        return loader

    return register


def register_module_loader(*module_types: tuple[str, str]) -> Callable[[F], F]:
    """Register a loader for calls of built-in modules; a decorator.

    Args:
        module_types: (module, class) pairs, such as `("treadle.module.conv", "Conv2d")`.
    """

    def register(loader: F) -> F:
        MODULE_LOADER.update({_module_key(*names): loader for names in module_types})
        return loader

    return register


def register_tensor_method_loader(*methods: str) -> Callable[[F], F]:
    """Register a loader for calls of methods of tensors, such as `"__add__"`; a decorator."""

    def register(loader: F) -> F:
        TENSORMETHOD_LOADER.update(dict.fromkeys(methods, loader))
        return loader

    return register


def _function_key(home: str, name: str) -> tuple[str, str]:
    parts = home.split(".")
    return (parts[1] if len(parts) > 1 else "", name)


def _module_key(home: str, name: str) -> tuple[str, str]:
    parts = home.split(".")
    inner = [p for p in parts[1:] if p in ("module", "qat", "quantized", "quantization")]
    return ".".join(inner), name


def _functional_loader(func: Any) -> Loader | None:
    if not FUNCTIONAL_LOADER:
        return None
    for name, known in catalog.named_functions().items():
        if known is func:
            home, _, last = name.rpartition(".")
            return FUNCTIONAL_LOADER.get((home.split(".")[0], last))
    return None


def _loader_of(expr: Expr) -> Loader | None:
    if isinstance(expr, Apply):
        return OPDEF_LOADER.get(type(expr.opdef))
    if isinstance(expr, CallFunction):
        return _functional_loader(expr.func)
    if not isinstance(expr, CallMethod):
        return None
    first = expr.inputs[0]
    if isinstance(first, ModuleNode):
        cls = first.module_type
        return None if cls is None else MODULE_LOADER.get(_module_key(cls.__module__, cls.__name__))
    return TENSORMETHOD_LOADER.get(expr.method)


def upgrade(graph: InternalGraph) -> None:
    """Run loaders on the expressions of a graph that was read; their new ones join it."""
    changed = False
    for expr in list(graph._exprs):
        loader = _loader_of(expr)
        if loader is not None:
            changed = True
            _load(loader, expr)
    if changed:
        _join(graph)
        order.count_users(graph)


def _load(loader: Loader, expr: Expr) -> None:
    if not isinstance(expr, Apply):
        loader(expr)
        return
    op = expr.opdef
    state = dict(op.attributes) if isinstance(op, Op) else dict(op.__getstate__())
    expr.opdef_state = dict(state)
    loader(expr)
    if expr.opdef_state != state:
        expr.opdef = type(op)(**expr.opdef_state)
    del expr.opdef_state


def _join(graph: InternalGraph) -> None:
    """Add expressions that others need and that are not in the graph yet, before their users."""
    taken = {node.name for node in graph._all_nodes()}
    known = {id(e) for e in graph._all_exprs()}
    found: list[Expr] = []

    def need(node: Node) -> None:
        maker = node.expr
        if id(maker) in known:
            return
        known.add(id(maker))
        for before in maker.inputs:
            need(before)
        graph._adopt(maker)
        for made in maker.outputs:
            made._name = fresh_name(made._name or "out", taken)
            taken.add(made._name)
        found.append(maker)

    for expr in graph._exprs:
        for node in expr.inputs:
            need(node)
        found.append(expr)
    for node in graph._outputs:
        need(node)
    graph._exprs[:] = found
