"""Nodes: the values between expressions. Tensors are `TensorNode`s, modules `ModuleNode`s."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from treadle.base.dialect import Dialect
from treadle.base.errors import EditError
from treadle.module.module import Module
from treadle.tensor import Tensor
from treadle.traced_module.recording import inserting


class Node:
    """A value of a graph: what an expression makes and others use.

    Attributes:
        expr: the expression that makes it.
        users: the expressions that use it, one entry for each use.
        qualname: where it comes from, as a dotted path from the traced module; the output of a
            sub-module's call ends in `.[out]`, other values in `.[name]`.
    """

    _next: ClassVar[list[int]] = [0]

    def __init__(self, expr: Any, name: str | None = None, qualname: str | None = None) -> None:
        self.expr = expr
        self.users: list[Any] = []
        self._id = self._next[0]
        self._next[0] += 1
        self._name = name
        self.qualname = qualname or name or ""
        self._graph: Any = None

    @classmethod
    def _get_next_id(cls) -> int:
        """The number the next node gets."""
        return cls._next[0]

    @classmethod
    def _set_next_id(cls, id: int = 0) -> None:
        """Set the number the next node gets."""
        cls._next[0] = id

    @property
    def top_graph(self) -> Any:
        """The graph this node is in; None for one that is in none yet."""
        return self._graph if self._graph is not None else getattr(self.expr, "top_graph", None)

    @property
    def name(self) -> str:
        """Name of the node, unique in its graph.

        Raises:
            EditError: on assignment, if another node of the graph has the name.
        """
        return self._name or f"node_{self._id}"

    @name.setter
    def name(self, name: str) -> None:
        graph = self.top_graph
        if graph is not None and any(n is not self and n.name == name for n in graph._all_nodes()):
            raise EditError(
                f"node {self.name}",
                f"the name {name!r} is taken in graph {graph.name}",
                hint="choose another name, or rename that node first",
            )
        self._name = name

    @property
    def _qualname(self) -> str:
        """`qualname` by the name that MegEngine's programs compare."""
        return self.qualname

    def __repr__(self) -> str:
        return self.name

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise EditError(
            f"node {self.name}", "a node cannot be copied alone", hint="copy the TracedModule"
        )


class ModuleNode(Node):
    """A module: what a traced module calls itself, or one of its sub-modules.

    Inside `graph.insert_exprs()` it can be called, and its attributes are nodes.
    """

    @property
    def owner(self) -> Any:
        """The module itself, as the traced module has it now; None if it is in no module."""
        return self.expr.value_of(self)

    @property
    def module_type(self) -> type[Module] | None:
        """The class of the module."""
        owner = self.owner
        return None if owner is None else type(owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Record a call of the module; only while expressions are inserted."""
        return _recorder(self, "call").call_node(self, "__call__", args, kwargs)

    def __getattr__(self, name: str) -> Any:
        found = None if name.startswith("__") else inserting()
        if found is None:
            raise AttributeError(
                f"node {self.__dict__.get('_name')!r} has no attribute {name!r} outside of "
                "`with graph.insert_exprs():`",
                name=name,
                obj=self,
            )
        return found.attribute(self, name)


class TensorNode(Node):
    """A tensor.

    Inside `graph.insert_exprs()` it has the operators and methods of tensors, and functions of
    `treadle.functional` take it; each such call becomes an expression.

    Attributes:
        shape: extents when the module was traced; a later call may have others.
        dtype: element type when the module was traced.
        device: where it was when the module was traced.
        qparams: quantization parameters, if it was quantized.
    """

    def __init__(
        self,
        expr: Any,
        name: str | None = None,
        qualname: str | None = None,
        shape: tuple[int, ...] | None = None,
        dtype: Any = None,
        qparams: Any = None,
        device: Any = None,
    ) -> None:
        super().__init__(expr, name, qualname)
        self.shape = shape
        self.dtype = dtype
        self.qparams = qparams
        self.device = device
        self._value: Any = None

    @property
    def value(self) -> Any:
        """The tensor behind it, if it is known: a parameter's, a constant's, a watched one's.

        In programs that import `megengine` that of a watched node only, as there.
        """
        if self._value is not None or Dialect.megengine:
            return self._value
        return self.expr.value_of(self)

    @value.setter
    def value(self, value: Any) -> None:
        self._value = value

    def describe(self, value: Any) -> None:
        """Take shape, dtype and device from a value of a trace."""
        if isinstance(value, Tensor):
            self.shape = tuple(value._data.shape)
            self.dtype = value.dtype
            self.device = str(value.device)
        else:
            self.shape, self.dtype = (), int if isinstance(value, int) else float

    def __getattr__(self, name: str) -> Any:
        found = None if name.startswith("__") else inserting()
        if found is None:
            raise AttributeError(
                f"node {self.__dict__.get('_name')!r} has no attribute {name!r} outside of "
                "`with graph.insert_exprs():`",
                name=name,
                obj=self,
            )
        return found.attribute(self, name)


def _recorder(node: Node, what: str) -> Any:
    found = inserting()
    if found is None:
        raise EditError(
            f"node {node.name}",
            f"{what!r} means something only while expressions are inserted",
            hint="do it inside `with graph.insert_exprs():`",
        )
    return found


def _method(name: str) -> Callable[..., Any]:
    """An operator of nodes, which records the operator of tensors."""

    def method(self: TensorNode, *args: Any) -> Any:
        return _recorder(self, name).call_node(self, name, args, {})

    return method


_BINARY = [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "lshift",
    "rshift",
    "and",
    "or",
    "xor",
]
_OTHER = ["neg", "pos", "abs", "invert", "getitem", "setitem", "lt", "le", "gt", "ge"]
for _name in [*_BINARY, *("r" + n for n in _BINARY), *("i" + n for n in _BINARY), *_OTHER]:
    setattr(TensorNode, f"__{_name}__", _method(f"__{_name}__"))
