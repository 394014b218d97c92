"""Queries over expressions and nodes: chains of conditions, read as list, dict, count or one."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from treadle.base.errors import EditError
from treadle.traced_module.expr import CallFunction, CallMethod, Expr
from treadle.traced_module.node import ModuleNode, Node

T = TypeVar("T", Expr, Node)


class Filter(Generic[T]):
    """Filtered expressions or nodes; iterating does the work, each time anew."""

    def __init__(self, found: Callable[[], Iterable[T]], what: str) -> None:
        self._found: Callable[[], Iterable[T]] = found
        self._what = what

    def __iter__(self) -> Iterator[T]:
        return iter(self._found())

    def as_list(self) -> list[T]:
        """All that is left, in order."""
        return list(self)

    def as_dict(self) -> dict[int, T]:
        """All that is left by number."""
        return {item._id: item for item in self}

    def as_unique(self) -> T:
        """The one that is left.

        Raises:
            EditError: none is left, or several are.
        """
        found = self.as_list()
        if len(found) != 1:
            names = ", ".join(map(repr, found[:5]))
            raise EditError(
                "as_unique",
                f"{len(found)} found of {self._what}, expected one",
                saw=names,
                hint="narrow the query, or use as_list()",
            )
        return found[0]

    def as_count(self) -> int:
        """Return how many are left."""
        return sum(1 for _ in self)


class ExprFilter(Filter[Expr]):
    """Expressions of a graph."""

    def _where(self, test: Callable[[Expr], bool], what: str) -> ExprFilter:
        return ExprFilter(lambda: (e for e in self if test(e)), what)

    def call_function(self, func: Any) -> ExprFilter:
        """Calls of a function; of any function for None."""
        return self._where(
            lambda e: isinstance(e, CallFunction) and (func is None or e.func is func),
            f"calls of {getattr(func, '__name__', 'functions')}",
        )

    def call_method(self, method: str | None) -> ExprFilter:
        """Calls of a method of tensors or modules; of any method for None."""
        return self._where(
            lambda e: isinstance(e, CallMethod) and (method is None or e.method == method),
            f"calls of {method or 'methods'}",
        )

    def expr_id(self, *ids: int) -> ExprFilter:
        """Expressions of these numbers."""
        return self._where(lambda e: e._id in ids, f"expressions {ids}")


class NodeFilter(Filter[Node]):
    """Nodes of a graph."""

    def _where(self, test: Callable[[Node], bool], what: str) -> NodeFilter:
        return NodeFilter(lambda: (n for n in self if test(n)), what)

    def type(self, owner_type: Any) -> NodeFilter:
        """Nodes of a class of nodes, or modules of a class of modules."""

        def test(node: Node) -> bool:
            if issubclass(owner_type, Node):
                return isinstance(node, owner_type)
            return isinstance(node, ModuleNode) and isinstance(node.owner, owner_type)

        return self._where(test, owner_type.__name__)

    def node_id(self, *ids: int) -> NodeFilter:
        """Nodes of these numbers."""
        return self._where(lambda n: n._id in ids, f"nodes {ids}")

    def name(self, name: str, ignorecase: bool = True) -> NodeFilter:
        """Nodes of a name, `*` and `?` standing for anything.

        A node is known under its own name, and under that of its graph, `_`, and its own.
        """
        flags = re.IGNORECASE if ignorecase else 0
        match = re.compile(fnmatch.translate(name), flags).fullmatch

        def test(node: Node) -> bool:
            graph = node.top_graph
            full = node.name if graph is None else f"{graph.name}_{node.name}"
            return match(full) is not None or match(node.name) is not None

        return self._where(test, f"nodes called {name!r}")
