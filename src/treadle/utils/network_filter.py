"""Searching networks: operators or variables, narrowed down by one condition after the other.

    for opr in net.opr_filter.type("ConvolutionForward").name("backbone.*"):
        ...

Filters are iterables without state: each turn through one looks at its nodes anew.
"""

from __future__ import annotations

import fnmatch
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from treadle.utils.network_node import (
    ConstOpBase,
    Host2DeviceCopy,
    NetworkNode,
    OpNode,
    VarNode,
    str_to_mge_class,
)
from treadle.utils.network_order import order_of


def as_varnode(obj: Any) -> VarNode:
    """A variable: itself, the only output of an operator, or the only one of several things.

    Raises:
        TypeError: it is none of these.
        ValueError: there is not exactly one.
    """
    if isinstance(obj, VarNode):
        return obj
    if isinstance(obj, OpNode):
        if len(obj.outputs) != 1:
            raise ValueError(f"as_varnode: {obj.name or obj.type} has {len(obj.outputs)} outputs")
        return obj.outputs[0]
    if isinstance(obj, Iterable):
        return as_varnode(_only(list(obj), "as_varnode"))
    raise TypeError(f"as_varnode: {type(obj).__name__} is not a variable of a network")


def as_oprnode(obj: Any) -> OpNode:
    """An operator: itself, the owner of a variable, or the only one of several things.

    Raises:
        TypeError, ValueError: as `as_varnode`.
    """
    if isinstance(obj, OpNode):
        return obj
    if isinstance(obj, VarNode):
        return obj.owner
    if isinstance(obj, Iterable):
        return as_oprnode(_only(list(obj), "as_oprnode"))
    raise TypeError(f"as_oprnode: {type(obj).__name__} is not an operator of a network")


def _only(found: list[Any], where: str) -> Any:
    if len(found) != 1:
        raise ValueError(f"{where}: found {len(found)}, wanted one")
    return found[0]


class NodeFilter:
    """Operators or variables of a network.

    Args:
        node_iter: operators or variables, or another filter. Of one variable, the operators that
            its owner depends on; of one operator, those that it depends on.

    Raises:
        TypeError: it is none of these; later, where the filter is read, one that is not a node.
    """

    def __init__(self, node_iter: Any) -> None:
        if isinstance(node_iter, VarNode):
            node_iter = node_iter.owner
        if isinstance(node_iter, OpNode):
            node_iter = order_of(node_iter.inputs)
        if not isinstance(node_iter, Iterable):
            raise TypeError(f"NodeFilter: {type(node_iter).__name__} is not a node, and holds none")
        # An iterator is read once: the next turn would find nothing.
        self._nodes = node_iter if isinstance(node_iter, NodeFilter) else list(node_iter)

    @classmethod
    def make_all_deps(cls, *dest_vars: VarNode) -> NodeFilter:
        """All operators that variables depend on."""
        return cls(order_of(dest_vars))

    def type(self, node_type: Any) -> NodeFilter:
        """Return a filter of nodes of a class, or of a type by name."""
        return NodeFilterType(self, node_type)

    def check_type(self, node_type: Any) -> NodeFilter:
        """The same nodes; reading them raises `TypeError` for one that is not of a class."""
        return NodeFilterCheckType(self, node_type)

    def not_type(self, node_type: Any) -> NodeFilter:
        """Return a filter of nodes that are not of a class."""
        return NodeFilterNotType(self, node_type)

    def param_provider(self) -> NodeFilter:
        """Constants and parameters."""
        return _Owners(self, ConstOpBase)

    def data_provider(self) -> NodeFilter:
        """Return a filter of inputs."""
        return _Owners(self, Host2DeviceCopy)

    def name(self, pattern: str, ignorecase: bool = True) -> NodeFilter:
        """Return a filter of nodes whose name matches; see `NodeFilterName`."""
        return NodeFilterName(self, pattern, ignorecase)

    def has_input(self, var: VarNode) -> NodeFilter:
        """Operators that take a variable."""
        return NodeFilterHasInput(self, var)

    def as_list(self) -> list[Any]:
        """Return the nodes that are left, in order."""
        return list(self)

    def as_unique(self) -> Any:
        """The only node that is left.

        Raises:
            ValueError: there is none, or more than one.
        """
        return _only(list(self), "as_unique")

    def as_dict(self) -> OrderedDict[str, Any]:
        """Return the nodes that are left, by name."""
        return OrderedDict((n.name, n) for n in self)

    def as_count(self) -> int:
        """Return the number of nodes that are left."""
        return sum(1 for _ in self)

    def _left(self) -> list[Any]:
        for node in self._nodes:
            if not isinstance(node, NetworkNode):
                raise TypeError(f"NodeFilter: {node!r} is not a node of a network")
        return list(self._nodes)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._left())  # All at once: the network may change from turn to turn.

    def __len__(self) -> int:
        return self.as_count()


class NodeFilterType(NodeFilter):
    """Nodes of a class; see `NodeFilter.type`.

    Raises:
        TypeError: it is not a class of nodes.
    """

    def __init__(self, node_iter: Any, node_type: Any) -> None:
        super().__init__(node_iter)
        wanted = str_to_mge_class(node_type) if isinstance(node_type, str) else node_type
        if not (isinstance(wanted, type) and issubclass(wanted, NetworkNode)):
            raise TypeError(f"NodeFilter: {wanted!r} is not a class of nodes")
        self._node_type = wanted

    def _left(self) -> list[Any]:
        return [n for n in super()._left() if isinstance(n, self._node_type)]


class NodeFilterNotType(NodeFilterType):
    """Nodes of all classes but one; see `NodeFilter.not_type`."""

    def _left(self) -> list[Any]:
        return [n for n in NodeFilter._left(self) if not isinstance(n, self._node_type)]


class NodeFilterCheckType(NodeFilterType):
    """Nodes that must be of a class; see `NodeFilter.check_type`."""

    def _left(self) -> list[Any]:
        found = NodeFilter._left(self)
        for node in found:
            if not isinstance(node, self._node_type):
                raise TypeError(f"check_type: {node!r} is not of type {self._node_type.__name__}")
        return found


class _Owners(NodeFilterType):
    """Operators of a class, and variables that are theirs."""

    def _left(self) -> list[Any]:
        nodes = NodeFilter._left(self)
        return [n for n in nodes if isinstance(as_oprnode(n), self._node_type)]


class NodeFilterHasInput(NodeFilter):
    """Operators that take a variable; see `NodeFilter.has_input`.

    Reading it raises `TypeError` for a node that is not an operator.
    """

    def __init__(self, node_iter: Any, var: Any) -> None:
        super().__init__(node_iter)
        self.var = as_varnode(var)

    def _left(self) -> list[Any]:
        nodes = super()._left()
        for node in nodes:
            if not isinstance(node, OpNode):
                raise TypeError(f"has_input: {node!r} is not an operator")
        return [n for n in nodes if any(x.key == self.var.key for x in n.inputs)]


class NodeFilterName(NodeFilter):
    """Nodes whose name is a pattern, or matches it: `*` and `?` stand for anything.

    Where a pattern without either is not a node's name, it is the end of a dotted one: "weight"
    finds "conv.weight". Case counts unless `ignorecase`.

    Raises:
        TypeError: the pattern is not text.
    """

    def __init__(self, node_iter: Any, pattern: str, ignorecase: bool = True) -> None:
        super().__init__(node_iter)
        self.pattern = pattern
        self._whole = self.make_re(pattern, ignorecase)
        self._end = None if set(pattern) & set("*?") else self.make_re(f"*.{pattern}", ignorecase)

    @classmethod
    def make_re(cls, pattern: str, ignorecase: bool = True) -> re.Pattern[str]:
        """The regular expression of a pattern; brackets, which names have, stand for themselves."""
        if not isinstance(pattern, str):
            raise TypeError(f"name: a pattern is a text, got {type(pattern).__name__}")
        expression = fnmatch.translate(pattern.replace("[", "[[]"))
        return re.compile(expression, re.IGNORECASE if ignorecase else 0)

    def _left(self) -> list[Any]:
        nodes = super()._left()
        found = [n for n in nodes if self._whole.match(n.name)]
        if not found and self._end is not None:
            found = [n for n in nodes if self._end.match(n.name)]
        return found
