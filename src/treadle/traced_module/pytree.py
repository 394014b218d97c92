"""Arguments and results as trees: what is a node of a graph, and what is fixed by the trace.

A `TreeDef` is the shape of a nested value. Its leaves are either *nodes*, values that change from
call to call, or constants, which are part of the tree: two calls of a module belong to one graph
if their trees are equal.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any, TypeAlias

import numpy as np

from treadle.base.dtype import DType
from treadle.base.errors import TraceError
from treadle.base.qparams import QParams
from treadle.engine.devices.names import CompNode
from treadle.quantization.rounding import LSQParams
from treadle.tensor import Tensor

Flatten: TypeAlias = "Callable[[Any], tuple[Sequence[Any], Any]]"
Unflatten: TypeAlias = "Callable[[Sequence[Any], Any], Any]"


@dataclass(frozen=True, slots=True)
class Container:
    """Rules to take a type apart and put it together again."""

    flatten: Flatten
    unflatten: Unflatten


class TreeDef:
    """The shape of a nested value.

    Attributes:
        type: the container's type; None for a leaf.
        aux: what the container needs besides its children.
        children: trees of what it contains.
        const: the value of a constant leaf; `NODE` for a leaf that is a node.
    """

    __slots__ = ("_key", "aux", "children", "const", "type")

    def __init__(
        self,
        type: type | None,
        aux: Any = None,
        children: tuple[TreeDef, ...] = (),
        const: Any = None,
    ) -> None:
        self.type = type
        self.aux = aux
        self.children = children
        self.const = const
        self._key: Any = None

    @property
    def is_node(self) -> bool:
        """True if this is a leaf that changes from call to call."""
        return self.type is None and self.const is NODE

    @property
    def aux_data(self) -> Any:
        """`aux` by the name that MegEngine's programs use."""
        return self.aux

    @property
    def children_defs(self) -> tuple[TreeDef, ...]:
        """`children` by the name that MegEngine's programs use."""
        return self.children

    @property
    def num_leaves(self) -> int:
        """Number of nodes among the leaves below."""
        return int(self.is_node) if self.type is None else sum(c.num_leaves for c in self.children)

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The nested value with other leaves, one for each node.

        Raises:
            ValueError: there are more or fewer leaves than nodes.
        """
        rest = iter(leaves)
        try:
            made = self._build(rest)
        except StopIteration:
            raise ValueError(f"{self.num_leaves} leaves expected, got {len(leaves)}") from None
        if next(rest, NODE) is not NODE:
            raise ValueError(f"{self.num_leaves} leaves expected, got {len(leaves)}")
        return made

    def _build(self, leaves: Iterator[Any]) -> Any:
        if self.type is None:
            return next(leaves) if self.const is NODE else self.const
        parts = [child._build(leaves) for child in self.children]
        return container_of(self.type).unflatten(parts, self.aux)

    def extract(self, value: Any, *, strict: bool = False) -> list[Any] | None:
        """The leaves of a like-shaped value at the places of nodes; None if shapes differ.

        Constants may differ unless `strict`.
        """
        found: list[Any] = []
        return found if self._extract(value, found, strict) else None

    def _extract(self, value: Any, found: list[Any], strict: bool) -> bool:
        if self.type is None:
            if self.const is NODE:
                found.append(value)
                return True
            return not strict or _const_key(value) == _const_key(self.const)
        if type(value) is not self.type:
            return False
        children, aux = container_of(self.type).flatten(value)
        if len(children) != len(self.children) or self._aux_key(aux) != self._aux_key(self.aux):
            return False
        pairs = zip(self.children, children, strict=True)
        return all(tree._extract(child, found, strict) for tree, child in pairs)

    def paths(self, prefix: str = "") -> Iterator[str]:
        """Yield for each node a name made of the keys and positions that lead to it."""
        if self.is_node:
            yield prefix
        keys: Iterable[Any] = range(len(self.children))
        if self.type in (dict, OrderedDict):
            keys = sorted(self.aux, key=str) if self.type is dict else self.aux
        for key, child in zip(keys, self.children, strict=False):
            yield from child.paths(f"{prefix}_{key}" if prefix else str(key))

    def _identity(self) -> Any:
        if self._key is None:
            if self.type is None:
                self._key = _const_key(self.const)
            else:
                below = tuple(child._identity() for child in self.children)
                self._key = (self.type, self._aux_key(self.aux), below)
        return self._key

    def _aux_key(self, aux: Any) -> Any:
        return _const_key_of(sorted(aux, key=str) if self.type is dict else aux)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreeDef) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __reduce__(self) -> Any:
        return TreeDef, (self.type, self.aux, self.children, self.const)

    def __repr__(self) -> str:
        if self.type is None:
            return "*" if self.const is NODE else f"{self.const!r:.80}"
        inside = ", ".join(map(repr, self.children))
        return f"{self.type.__name__}({inside})"


class _Node(enum.Enum):
    """The mark of a leaf that is a node; an enum, so that copies and pickles stay the same."""

    NODE = "node"


NODE = _Node.NODE
NODE_LEAF = TreeDef(None, const=NODE)


def _const_key(value: Any) -> Any:
    """Hashable, and equal only for constants that mean the same to a function."""
    if isinstance(value, np.ndarray):
        return np.ndarray, value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, (float, complex)):
        return type(value), repr(value)
    try:
        hash(value)
    except TypeError:
        return type(value), id(value)
    return type(value), value


def _const_key_of(aux: Any) -> Any:
    """Return a key of nested constants, of `_const_key` for each."""
    if isinstance(aux, (list, tuple)):
        return tuple(_const_key_of(item) for item in aux)
    return _const_key(aux)


# -- types that may appear ---------------------------------------------------------------------


def _dict_flatten(value: dict[Any, Any]) -> tuple[list[Any], tuple[Any, ...]]:
    """Children by sorted keys, so that the order of a dict plays no part; it is kept, though."""
    return [value[key] for key in sorted(value, key=str)], tuple(value)


def _dict_unflatten(parts: Sequence[Any], keys: tuple[Any, ...]) -> dict[Any, Any]:
    by_key = dict(zip(sorted(keys, key=str), parts, strict=True))
    return {key: by_key[key] for key in keys}


def _slice_flatten(value: slice) -> tuple[list[Any], None]:
    return [value.start, value.stop, value.step], None


def _items(value: Any) -> tuple[list[Any], None]:
    return list(value), None


def _qparams_flatten(value: QParams) -> tuple[list[Any], tuple[Any, ...]]:
    return [getattr(value, f) for f in value._fields[2:]], (value.mode, value.dtype_meta)


CONTAINERS: dict[type, Container] = {
    list: Container(_items, lambda parts, _: list(parts)),
    tuple: Container(_items, lambda parts, _: tuple(parts)),
    set: Container(lambda v: (sorted(v, key=repr), None), lambda parts, _: set(parts)),
    dict: Container(_dict_flatten, _dict_unflatten),
    OrderedDict: Container(
        lambda v: (list(v.values()), tuple(v)),
        lambda parts, keys: OrderedDict(zip(keys, parts, strict=True)),
    ),
    slice: Container(_slice_flatten, lambda parts, _: slice(*parts)),
    QParams: Container(_qparams_flatten, lambda parts, kinds: QParams(*kinds, *parts)),
    LSQParams: Container(_qparams_flatten, lambda parts, kinds: LSQParams(*kinds, *parts)),
}
CONSTANTS: tuple[type, ...] = (
    str,
    bytes,
    bool,
    int,
    float,
    complex,
    range,
    type(None),
    type(Ellipsis),
    type,
    enum.Enum,
    np.generic,
    np.ndarray,
    np.dtype,
    DType,
    CompNode,
    FunctionType,
    BuiltinFunctionType,
)
_REGISTERED: set[type] = set()


def register_supported_type(
    type: type,
    flatten_fn: Flatten | None = None,
    unflatten_fn: Unflatten | None = None,
) -> None:
    """Register a type of values that traced modules take and return.

    Args:
        type: the class.
        flatten_fn: takes a value apart into (children, aux). Children may hold tensors; `aux` is
            anything else that the value needs, and is compared to tell calls apart.
        unflatten_fn: makes a value of (children, aux). Left out together with `flatten_fn`, values
            of the type are constants of the trace; they are compared by `==` and should hash.

    Raises:
        TypeError: `type` is not a class, or only one of the functions is given.
    """
    if not _is_class(type) or (flatten_fn is None) != (unflatten_fn is None):
        raise TypeError(
            "register_supported_type takes a class and either both functions or neither"
        )
    if flatten_fn is None or unflatten_fn is None:
        _REGISTERED.add(type)
    else:
        CONTAINERS[type] = Container(flatten_fn, unflatten_fn)


def _is_class(value: object) -> bool:
    return isinstance(value, type)


def registered_types() -> list[type]:
    """Types made known by users, for loading files that name them."""
    return [*CONTAINERS, *_REGISTERED]


def container_of(kind: type) -> Container:
    """Return the rules for a type; named tuples need no registration.

    Raises:
        TraceError: the type is not a container.
    """
    found = CONTAINERS.get(kind)
    if found is not None:
        return found
    if is_namedtuple(kind):
        return Container(_items, lambda parts, _: kind(*parts))
    raise TraceError("traced_module", f"{kind.__qualname__} is not a container", hint=_HINT)


def is_container(kind: type) -> bool:
    """Return whether values of the type are taken apart."""
    return kind in CONTAINERS or is_namedtuple(kind)


def is_namedtuple(kind: type) -> bool:
    """Return whether a class was made by `collections.namedtuple` or `typing.NamedTuple`."""
    return issubclass(kind, tuple) and "_fields" in dir(kind)


_HINT = "make the type known with register_supported_type, or pass tensors and plain values"


def tree_flatten(
    value: Any,
    is_node: Callable[[Any], bool] | None = None,
    *,
    is_const_leaf: Callable[[Any], bool] | None = None,
) -> tuple[list[Any], TreeDef]:
    """The nodes of a nested value in order, and the tree they hang on.

    Args:
        value: lists, tuples, dicts, slices and registered types, nested, of nodes and constants.
        is_node: tells nodes from constants; tensors are nodes if it is left out.
        is_const_leaf: MegEngine's opposite of it, asked for what is not taken apart.

    Raises:
        TraceError: something inside is of a type that is not supported.
    """
    leaves: list[Any] = []
    if is_const_leaf is not None:
        constant = is_const_leaf
        is_node = lambda leaf: not (is_container(type(leaf)) or constant(leaf))  # noqa: E731
    return leaves, _flatten(value, is_node or _is_tensor, leaves)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _flatten(value: Any, is_node: Callable[[Any], bool], leaves: list[Any]) -> TreeDef:
    if is_node(value):
        leaves.append(value)
        return NODE_LEAF
    kind = type(value)
    if is_container(kind):
        children, aux = container_of(kind).flatten(value)
        return TreeDef(kind, aux, tuple([_flatten(c, is_node, leaves) for c in children]))
    if not isinstance(value, (*CONSTANTS, *_REGISTERED)):
        raise TraceError(
            "traced_module",
            f"values of type {kind.__qualname__} are not supported as arguments or results",
            saw=repr(value)[:200],
            hint=_HINT,
        )
    return TreeDef(None, const=value)


def tree_map(
    value: Any, change: Callable[[Any], Any], is_node: Callable[[Any], bool] | None = None
) -> Any:
    """The nested value with every node changed."""
    leaves, tree = tree_flatten(value, is_node)
    return tree.unflatten([change(leaf) for leaf in leaves])
