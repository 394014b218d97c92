"""Values and trees inside of records: constants of calls, attributes of layers, structures."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from treadle.base.qparams import QParams, QuantMode
from treadle.base.quantized import QuantDtypeMeta
from treadle.engine.devices.names import CompNode, resolve
from treadle.quantization.rounding import LSQParams
from treadle.serialization.encode import MAX_DEPTH
from treadle.serialization.pickle_machine import OPCODE, Callee, Malformed, Record, kind
from treadle.serialization.pickled_tensors import Tensors
from treadle.tensor import Parameter, Tensor
from treadle.traced_module import pytree

_ATOMS = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, type(...), np.generic),
    *(np.ndarray, np.dtype, QParams, QuantMode, QuantDtypeMeta, Tensor),
)
_TYPES: dict[str, type] = {
    **{f"builtins.{cls.__name__}": cls for cls in (bool, int, float, str, bytes, complex, set)},
    **{f"builtins.{cls.__name__}": cls for cls in (list, tuple, dict, slice, type(None))},
    "collections.OrderedDict": OrderedDict,
    "collections.defaultdict": defaultdict,
    "megengine.tensor.Tensor": Tensor,
    "megengine.tensor.Parameter": Parameter,
    "megengine.quantization.utils.QParams": QParams,
    "megengine.quantization.utils.LSQParams": LSQParams,
}
_NODES = (
    *("megengine.tensor.Tensor", "megengine.tensor.Parameter", "megengine.module.module.Module"),
    "megengine.core._imperative_rt.core2.Tensor",
)
_DEVICES = ("CompNode", "Device")


class Values:
    """Makes values of records for one file; what it makes of one costs as reading it did.

    Args:
        tensors: makes its tensors and arrays.
        module: makes a module of a record.
    """

    def __init__(self, tensors: Tensors, module: Callable[[Record, str], Any]) -> None:
        self._tensors = tensors
        self._module = module

    def plain(self, x: Any, where: str, depth: int = 0) -> Any:
        """The value of an argument or attribute.

        Raises:
            Malformed: it is of a kind that they do not have.
        """
        self._tensors.meter.objects(OPCODE)
        if depth > MAX_DEPTH:
            raise Malformed(f"{where} nests deeper than {MAX_DEPTH}")
        if isinstance(x, _ATOMS):
            return x
        if isinstance(x, Callee):
            return self.type_of(x, where)
        if isinstance(x, Record):
            return self._record(x, where)
        each: Callable[[Any], Any] = lambda v: self.plain(v, where, depth + 1)  # noqa: E731
        if type(x) is slice:
            return slice(each(x.start), each(x.stop), each(x.step))
        if type(x) in (list, tuple, set, frozenset):
            return type(x)(map(each, x))
        if type(x) in (dict, OrderedDict):
            return type(x)((key, each(value)) for key, value in x.items())
        if isinstance(x, type) and issubclass(x, np.generic):
            return x
        raise Malformed(f"{where} holds a {kind(x)}")

    def _record(self, x: Record, where: str) -> Any:
        if x.label in _DEVICES:
            return self.device(x)
        if x.label == "Group":
            return None  # All processes: what a group of a process that is gone cannot be.
        if x.label == "LSQParams":
            return LSQParams(**{name: self.plain(v, where) for name, v in x.state[1].items()})
        return self._module(x, where)

    def device(self, x: Any) -> CompNode | None:
        """The device of a record, moved as the caller wants."""
        name = x.state if isinstance(x, Record) else x
        if not isinstance(name, str | None):
            raise Malformed(f"a device is a {kind(name)}")
        if name is None or name.startswith("invalid"):
            return None
        place = self._tensors.place(name)
        return None if place is None else resolve(place)

    def type_of(self, x: Callee, where: str) -> type:
        """The class that a name stands for, where it is that of a value."""
        for found in pytree.registered_types():
            if f"{found.__module__}.{found.__qualname__}" == x.name:
                return found
        if x.name not in _TYPES:
            raise Malformed(f"{where} holds the class {x.name}")
        return _TYPES[x.name]

    # -- trees -----------------------------------------------------------------------------

    def leaves(self, tree: Record) -> list[Record]:
        """The leaves of a tree, in order."""
        return list(self._leaves(tree, 0))

    def _leaves(self, tree: Any, depth: int) -> Iterator[Record]:
        self._tensors.meter.objects(OPCODE)
        if not isinstance(tree, Record) or depth > MAX_DEPTH:
            raise Malformed(f"a tree of arguments is a {kind(tree)}, or too deep")
        if tree.label == "LeafDef":
            yield tree
        elif tree.label == "TreeDef":
            for child in tree.state["children_defs"]:
                yield from self._leaves(child, depth + 1)
        else:
            raise Malformed(f"a tree of arguments is a {tree.label}")

    def nested(self, tree: Record, leaves: Iterable[Any], where: str) -> Any:
        """The nested value of a tree with other leaves.

        Raises:
            Malformed: there are more or fewer than it has, or it is of a kind that is not known.
        """
        given, wanted = list(leaves), len(self.leaves(tree))
        if len(given) != wanted:
            raise Malformed(f"{where} takes {wanted} values, and has {len(given)}")
        return self._built(tree, iter(given), where)

    def _built(self, tree: Record, leaves: Iterator[Any], where: str) -> Any:
        if tree.label == "LeafDef":
            return next(leaves)
        children = [self._built(child, leaves, where) for child in tree.state["children_defs"]]
        aux = tree.state["aux_data"]
        made = self.type_of(tree.state["type"], where)
        if issubclass(made, (dict, QParams)):
            named = dict(zip(self.plain(aux, where), children, strict=True))
            if made is defaultdict:
                return defaultdict(None, named)
            return made(**named) if issubclass(made, QParams) else made(named)
        return pytree.container_of(made).unflatten(children, self.plain(aux, where))

    def constant(self, leaf: Record, where: str) -> tuple[bool, Any]:
        """Return whether a leaf is a constant, and which."""
        first = leaf.state["type"][0]
        if isinstance(first, Callee) and first.name in _NODES:
            return False, None
        return True, self.plain(leaf.state.get("const_val"), where)
