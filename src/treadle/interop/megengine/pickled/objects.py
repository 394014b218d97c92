"""Records of a file: what its names stand for, and what stands in their place in the end."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import treadle.interop.megengine.builtin  # noqa: F401  # registers definitions of ops
from treadle.base.errors import EditError, TraceError, TreadleError
from treadle.base.files.source import SizedStream
from treadle.interop.megengine.pickled.layers import is_registered
from treadle.interop.megengine.pickled.modules import Modules
from treadle.serialization.pickle_machine import Callee, Malformed, Record
from treadle.serialization.pickled_tensors import Tensors
from treadle.traced_module import pytree

_CLASSES = frozenset(
    {
        *("bool", "dict", "float", "int", "list", "object", "str", "tuple", "NoneType"),
        "ellipsis",
    }
)

_EXPRESSION = 24 << 10
"""Bytes of objects that an expression has, with its nodes and the trees of its arguments: models
have ten thousand, each in 360 bytes of the file."""


@dataclass(frozen=True, eq=False, slots=True)
class _Named(Callee):
    """A class that a file names; calling it makes a record."""


class Objects:
    """Makes traced modules for one file.

    Args:
        source: the file.
        tensors: makes its tensors and arrays.
    """

    def __init__(self, source: SizedStream, tensors: Tensors) -> None:
        self._source = source
        self._tensors = tensors
        self._known: dict[tuple[str, str], object] = {
            ("builtins", "Ellipsis"): ...,
            ("builtins", "slice"): Callee("builtins.slice", _slice),
            ("builtins", "type"): Callee("builtins.type", self._type_of),
            ("collections", "defaultdict"): Callee("collections.defaultdict", lambda _: {}),
        }

    def find(self, module: str, name: str) -> object | None:
        """The stand-in of a name; None for one that no traced module has."""
        if module == "__builtin__":  # as protocols before 3 say it
            module, name = "builtins", {"long": "int", "unicode": "str"}.get(name, name)
        found = self._known.get((module, name))
        if found is None and _is_data(module, name):
            found = self._known[module, name] = self._named(module, name)
        return found

    def _named(self, module: str, name: str) -> Callee:
        is_expression = module == "megengine.traced_module.expr"

        def make(given: tuple[Any, ...]) -> object:
            if is_expression:
                self._tensors.meter.grant(_EXPRESSION)
            return Record(module, name, given)

        return _Named(f"{module}.{name}", make)

    def _type_of(self, arguments: tuple[Any, ...]) -> object:
        """The class of None or of an ellipsis, which have no names."""
        match arguments:
            case (None,):
                return self.find("builtins", "NoneType")
            case (value,) if value is ...:
                return self.find("builtins", "ellipsis")
        raise Malformed("type is called with other than None and an ellipsis")

    def build(self, target: Record, state: Any) -> None:
        """Give a record its state."""
        if target.state is not None:
            raise Malformed(f"a {target.label} is given a state twice")
        target.state = state

    def finish(self, found: Any) -> Any:
        """The object with modules in place of records.

        Raises:
            CheckpointError: a graph is not one, or holds what this program does not know.
        """
        modules = Modules(self._source, self._tensors)
        try:
            return self._finished(found, modules)
        except (EditError, TraceError) as error:
            raise self._source.error(f"a graph of the traced module cannot run: {error}") from None
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, (Malformed, TreadleError)):
                raise
            raise Malformed(f"a traced module is malformed: {error!r:.200}") from None

    def _finished(self, found: Any, modules: Modules) -> Any:
        # Containers are no deeper than `check_tree` allows, and do not contain themselves.
        if isinstance(found, Record):
            return modules.root(found)
        if type(found) in (list, tuple):
            return type(found)(self._finished(item, modules) for item in found)
        if type(found) in (dict, OrderedDict):
            for key in found:
                if isinstance(key, Record):
                    raise Malformed(f"a {key.label} is a key")
                found[key] = self._finished(found[key], modules)
        if type(found) in (set, frozenset) and any(isinstance(x, Record) for x in found):
            raise Malformed("a module is an element of a set")
        return found


def _is_data(module: str, name: str) -> bool:
    """Return whether a file may name a class: to say of which kind a record or a value is."""
    if module == "builtins":
        return name in _CLASSES
    if (module, name) in (("inspect", "FullArgSpec"), ("abc", "ABCMeta")):
        return True
    if module == "numpy.dtypes" or (module == "numpy" and name.startswith("dtype[")):
        return True
    if module.partition(".")[0] == "megengine":
        return True
    kinds = pytree.registered_types()
    return is_registered(module, name) or any(
        (kind.__module__, kind.__qualname__) == (module, name) for kind in kinds
    )


def _slice(arguments: tuple[Any, ...]) -> object:
    if len(arguments) != 3:
        raise Malformed("a slice is malformed")
    return slice(*arguments)
