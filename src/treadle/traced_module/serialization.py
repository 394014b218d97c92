"""Loaders that adapt expressions of older files: hooks by function, method, op and module class.

A loader is called with each expression of its kind when a file is read, before the module can be
used. It changes the expression: arguments by `set_args_kwargs` or `set_arg`, and new expressions
before it by making them and using their nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from treadle.ops.op import Op
from treadle.traced_module import catalog
from treadle.traced_module.expr import Apply, CallFunction, CallMethod, Expr, Input
from treadle.traced_module.graph import InternalGraph, fresh_name
from treadle.traced_module.node import ModuleNode

Loader = Callable[[Any], Any]
F = TypeVar("F", bound=Loader)

OPDEF_LOADER: dict[type[Op], Loader] = {}
FUNCTIONAL_LOADER: dict[tuple[str, str], Loader] = {}
MODULE_LOADER: dict[tuple[str, str], Loader] = {}
TENSORMETHOD_LOADER: dict[str, Loader] = {}


def register_opdef_loader(*opdefs: type[Op]) -> Callable[[F], F]:
    """Register a loader for `Apply` expressions of some classes of ops; a decorator.

    The loader takes the expression and changes it. `expr.version` is the version of Treadle that
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
    """Let loaders see the expressions of a graph that was read; their new ones join it."""
    for expr in list(graph._exprs):
        loader = _loader_of(expr)
        if loader is not None:
            loader(expr)
            place = graph._exprs.index(expr)
            graph._exprs[place:place] = _new_before(graph, expr)


def _new_before(graph: InternalGraph, expr: Expr) -> list[Expr]:
    """Expressions that an expression needs and that are not in the graph yet, in order."""
    present = {id(e) for e in graph._exprs}
    found: dict[int, Expr] = {}

    def visit(user: Expr) -> None:
        for node in user.inputs:
            maker = node.expr
            if id(maker) in present or id(maker) in found or isinstance(maker, Input):
                continue
            visit(maker)
            found[id(maker)] = maker

    visit(expr)
    taken = {node.name for node in graph._all_nodes()}
    for new in found.values():
        graph._adopt(new)
        for node in new.outputs:
            node._name = fresh_name(node._name or "out", taken)
            taken.add(node._name)
    return list(found.values())
