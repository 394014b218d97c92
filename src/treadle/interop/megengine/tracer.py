"""Names of MegEngine's tracer, for programs that ask which calls it keeps whole, and in what graph.

The tracer itself is another one: calls are recorded by `traced_module.tracer`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from treadle.base.errors import UnsupportedOp
from treadle.traced_module import catalog
from treadle.traced_module.expr import Expr
from treadle.traced_module.filters import ExprFilter, NodeFilter
from treadle.traced_module.graph import InternalGraph
from treadle.traced_module.node import Node
from treadle.traced_module.pytree import TreeDef
from treadle.traced_module.recording import SLOT

VERSION = "1.13.4"
"""The version that programs see in `megengine.__version__`: some choose names by it."""

_READ = ("size", "shape", "device", "dtype", "grad", "item", "ndim", "numpy", "requires_grad")
BUILTIN_ARRAY_METHOD = [*catalog.methods(), "_broadcast"]
BUILTIN_TENSOR_WRAP_METHOD = [*_READ, "T", "to", "detach", "qparams", "set_value", "reset_zero"]


def get_tensor_wrapable_method() -> list[str]:
    """Return the names of the methods and properties of tensors that nodes have."""
    return [*BUILTIN_TENSOR_WRAP_METHOD, *BUILTIN_ARRAY_METHOD]


class module_tracer:  # MegEngine's name
    """The tracer that runs, and what it keeps whole.

    Args:
        recorder: what records the calls.
    """

    _opaque_types = catalog._OPAQUE
    is_builtin = staticmethod(catalog.is_builtin)
    register_as_builtin = staticmethod(catalog.register_as_builtin)

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder

    def current_scope(self) -> InternalGraph:
        """The graph that calls are recorded in now."""
        graph: InternalGraph = self._recorder.scope.graph
        return graph

    def top_scope(self) -> InternalGraph:
        """The graph of the outermost module."""
        graph: InternalGraph = self._recorder.scopes[0].graph
        return graph


def active_module_tracer() -> module_tracer | None:
    """The tracer that runs in this thread; None if none does."""
    return None if SLOT.recorder is None else module_tracer(SLOT.recorder)


def set_active_module_tracer(tracer: Any) -> None:
    """Accept None where no tracer runs.

    Raises:
        UnsupportedOp: anything else.
    """
    if tracer is not None or SLOT.recorder is not None:
        raise UnsupportedOp(
            "megengine", "tracers cannot be exchanged", hint="call traced_module.trace_module"
        )


class _Leaf(type):
    def __instancecheck__(cls, tree: Any) -> bool:
        return isinstance(tree, TreeDef) and tree.type is None


class LeafDef(TreeDef, metaclass=_Leaf):
    """Trees that are one leaf, for `isinstance`."""

    __slots__ = ()


# -- queries by their classes --------------------------------------------------------------------


class NodeFilterType(NodeFilter):
    """Nodes of a class of nodes, or modules of a class of modules."""

    def __init__(self, nodes: Iterable[Node], owner_type: Any) -> None:
        found = NodeFilter(lambda: nodes, "nodes").type(owner_type)
        super().__init__(lambda: found, found._what)


class NodeFilterNodeId(NodeFilter):
    """Nodes of these numbers."""

    def __init__(self, nodes: Iterable[Node], node_id: int | Iterable[int]) -> None:
        found = NodeFilter(lambda: nodes, "nodes").node_id(*_numbers(node_id))
        super().__init__(lambda: found, found._what)


class NodeFilterName(NodeFilter):
    """Nodes of a name, `*` and `?` standing for anything."""

    def __init__(self, nodes: Iterable[Node], pattern: str, ignorecase: bool = True) -> None:
        found = NodeFilter(lambda: nodes, "nodes").name(pattern, ignorecase)
        super().__init__(lambda: found, found._what)


class ExprFilterCallFunction(ExprFilter):
    """Calls of a function; of any function for None."""

    def __init__(self, exprs: Iterable[Expr], func: Any = None) -> None:
        found = ExprFilter(lambda: exprs, "expressions").call_function(func)
        super().__init__(lambda: found, found._what)


class ExprFilterCallMethod(ExprFilter):
    """Calls of a method of tensors or modules; of any method for None."""

    def __init__(self, exprs: Iterable[Expr], method: str | None = None) -> None:
        found = ExprFilter(lambda: exprs, "expressions").call_method(method)
        super().__init__(lambda: found, found._what)


class ExprFilterExprId(ExprFilter):
    """Expressions of these numbers."""

    def __init__(self, exprs: Iterable[Expr], expr_id: int | Iterable[int]) -> None:
        found = ExprFilter(lambda: exprs, "expressions").expr_id(*_numbers(expr_id))
        super().__init__(lambda: found, found._what)


def _numbers(given: int | Iterable[int]) -> tuple[int, ...]:
    return (given,) if isinstance(given, int) else tuple(given)
