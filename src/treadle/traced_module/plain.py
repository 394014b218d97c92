"""Values inside graphs and layers as plain containers: `[tag, ...]` for what JSON has no word for.

Atoms are written as they are. Everything else is a list whose first item says what it is.
"""

from __future__ import annotations

import enum
import functools
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from treadle.base.dtype import DType, as_dtype
from treadle.base.errors import CheckpointError
from treadle.base.qparams import QParams, QuantMode
from treadle.base.quantized import QuantDtypeMeta
from treadle.engine.devices.names import CompNode, resolve
from treadle.module.module import Module
from treadle.ops import REGISTRY
from treadle.ops.op import Op
from treadle.tensor import Tensor
from treadle.traced_module import catalog, pytree
from treadle.traced_module.argspec import ArgSpec, Parameter
from treadle.traced_module.pytree import NODE, NODE_LEAF, TreeDef

_ATOMS = (type(None), bool, int, float, str, bytes, complex, np.ndarray, np.generic)
_CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (bool, int, float, complex, str, bytes, list, tuple, dict, set, slice, OrderedDict)
}
_ENUMS: dict[str, type[enum.Enum]] = {"QuantMode": QuantMode}
_TUPLES: dict[str, Any] = {"QuantDtypeMeta": QuantDtypeMeta}
_HINT = (
    "use plain values and tensors; make functions known with wrap, layers with "
    "register_as_builtin, other types with register_supported_type"
)


class PlainWriter:
    """Turns values into plain ones.

    Args:
        module: gives a module's number in the table of modules.
    """

    def __init__(self, module: Callable[[Module], int]) -> None:
        self._module = module
        self._names = {id(func): name for name, func in catalog.named_functions().items()}

    def value(self, x: Any) -> Any:
        """The plain form of a value.

        Raises:
            TypeError: it cannot be named in a file.
        """
        if isinstance(x, Tensor) or (isinstance(x, _ATOMS) and not isinstance(x, enum.Enum)):
            return int(x) if isinstance(x, int) and type(x) not in (int, bool) else x
        for kind, write in self._kinds():
            if isinstance(x, kind):
                found = write(x)
                if found is not None:
                    return found
        raise TypeError(
            f"save: a traced module holds {x!r:.200}, which cannot be named in a file\n"
            f"  hint: {_HINT}"
        )

    def _kinds(self) -> list[tuple[Any, Callable[[Any], Any]]]:
        each = self.value
        return [
            (Module, lambda x: ["module", self._module(x)]),
            (TreeDef, self._tree),
            (slice, lambda x: ["slice", each(x.start), each(x.stop), each(x.step)]),
            (list, lambda x: ["list", [each(v) for v in x]]),
            (tuple, self._tuple),
            (OrderedDict, lambda x: ["ordered_dict", [[each(k), each(v)] for k, v in x.items()]]),
            (dict, lambda x: ["dict", [[each(k), each(v)] for k, v in x.items()]]),
            (set, lambda x: ["set", [each(v) for v in sorted(x, key=repr)]]),
            (range, lambda x: ["range", x.start, x.stop, x.step]),
            (type(Ellipsis), lambda x: ["ellipsis"]),
            (np.dtype, lambda x: ["dtype", x]),
            (DType, lambda x: ["element", x.name]),
            (CompNode, lambda x: ["device", x.logical_name]),
            (enum.Enum, lambda x: ["enum", type(x).__name__, x.name]),
            (Op, self._op),
            (tuple(catalog.definitions()), self._definition),
            (functools.partial, self._partial),
            (QParams, self._slots),
            (ArgSpec, lambda x: ["argspec", [each(p) for p in x.parameters]]),
            (Parameter, lambda x: ["arg", x.name, x.kind, x.has_default, self._default(x)]),
            ((FunctionType, BuiltinFunctionType), self._function),
            (type, self._class),
        ]

    def _default(self, parameter: Parameter) -> Any:
        try:
            return self.value(parameter.default)
        except TypeError:
            return None  # An object of the user's; calls that rely on it will not find a graph.

    def _tuple(self, x: tuple[Any, ...]) -> Any:
        kind = type(x)
        items = [self.value(v) for v in x]
        if kind is tuple:
            return ["tuple", items]
        if kind.__name__ in _TUPLES:
            return ["known_tuple", kind.__name__, items]
        return ["named_tuple", self._class(kind), items]

    def _tree(self, x: TreeDef) -> Any:
        if x.type is None:
            return ["node"] if x.const is NODE else ["const", self.value(x.const)]
        below = [self._tree(child) for child in x.children]
        return ["tree", self._class(x.type), self.value(x.aux), below]

    def _class(self, x: type) -> Any:
        if x.__name__ in _CLASSES and _CLASSES[x.__name__] is x:
            return ["class", x.__name__]
        if issubclass(x, np.generic):
            return ["scalar_type", x]
        if x is Tensor or (issubclass(x, Module) and catalog.class_named(catalog.class_name(x))):
            return ["own_class", "Tensor" if x is Tensor else catalog.class_name(x)]
        if catalog.class_named(catalog.class_name(x)) is x:
            return ["own_class", catalog.class_name(x)]
        if x in pytree.registered_types():
            return ["registered", catalog.class_name(x)]
        if pytree.is_namedtuple(x):
            return ["fields", x.__name__, list(x._fields)]  # type: ignore[attr-defined]
        return None

    def _function(self, x: Any) -> Any:
        name = self._names.get(id(x))
        return None if name is None else ["function", name]

    def _op(self, x: Op) -> Any:
        if REGISTRY.get(x.name) is not type(x):
            return None
        return ["op", x.name, {key: self.value(value) for key, value in x.attributes.items()}]

    def _definition(self, x: Any) -> Any:
        state = {key: self.value(value) for key, value in x.__getstate__().items()}
        return ["definition", type(x).__name__, state]

    def _partial(self, x: Any) -> Any:
        named = {key: self.value(value) for key, value in x.keywords.items()}
        return ["partial", self.value(x.func), [self.value(v) for v in x.args], named]

    def _slots(self, x: QParams) -> Any:
        kind = "QParams" if type(x) is QParams else catalog.class_name(type(x))
        return ["qparams", kind, {key: self.value(getattr(x, key)) for key in slots_of(type(x))}]


def slots_of(cls: type) -> list[str]:
    """The fields of a class that has slots."""
    return [name for base in reversed(cls.__mro__) for name in vars(base).get("__slots__", ())]


class PlainReader:
    """Turns plain values back.

    Args:
        modules: the table of modules read so far.
    """

    def __init__(self, modules: list[Module]) -> None:
        self._modules = modules
        self._functions = catalog.named_functions()
        each = self.value
        self._tags: dict[str, Callable[..., Any]] = {
            "module": self._module,
            "node": lambda: NODE_LEAF,
            "const": lambda v: TreeDef(None, const=each(v)),
            "tree": lambda c, aux, below: TreeDef(each(c), each(aux), tuple(map(each, below))),
            "slice": lambda *v: slice(*map(each, v)),
            "list": lambda v: [each(i) for i in v],
            "tuple": lambda v: tuple(each(i) for i in v),
            "known_tuple": lambda name, v: _TUPLES[name](*map(each, v)),
            "named_tuple": lambda c, v: each(c)(*map(each, v)),
            "ordered_dict": lambda v: OrderedDict((each(k), each(i)) for k, i in v),
            "dict": lambda v: {each(k): each(i) for k, i in v},
            "set": lambda v: {each(i) for i in v},
            "range": range,
            "ellipsis": lambda: ...,
            "dtype": np.dtype,
            "element": as_dtype,
            "device": resolve,
            "enum": lambda cls, name: _ENUMS[cls][name],
            "op": lambda name, v: REGISTRY[name](**{k: each(i) for k, i in v.items()}),
            "definition": self._definition,
            "partial": self._partial,
            "qparams": self._slots,
            "argspec": lambda v: ArgSpec(tuple(each(i) for i in v)),
            "arg": lambda name, kind, has, v: Parameter(str(name), int(kind), bool(has), each(v)),
            "function": self._function,
            "class": lambda name: _CLASSES[name],
            "scalar_type": _scalar_type,
            "own_class": _own_class,
            "registered": _registered,
            "fields": _named_tuple,
        }

    def value(self, x: Any) -> Any:
        """The value of a plain form.

        Raises:
            CheckpointError: it names something this program does not know.
            KeyError, TypeError, ValueError, IndexError: it is malformed.
        """
        if not isinstance(x, list):
            if isinstance(x, (Tensor, *_ATOMS)):
                return x
            raise TypeError(f"a {type(x).__name__} is not a plain value")
        return self._tags[x[0]](*x[1:])

    def _function(self, name: str) -> Any:
        if name not in self._functions:
            raise _unknown("the function", name, "import the code that wraps it, then load")
        return self._functions[name]

    def _module(self, index: int) -> Module:
        if index < 0:
            raise IndexError("a module has a negative number")
        return self._modules[index]

    def _definition(self, name: str, state: Mapping[str, Any]) -> Any:
        cls = catalog.definition_named(name)
        if cls is None:
            raise _unknown("the op", name, "import treadle.interop.megengine, then load")
        return cls(**{key: self.value(value) for key, value in state.items()})

    def _partial(self, func: Any, args: list[Any], named: Mapping[str, Any]) -> Any:
        plain = [self.value(v) for v in args]
        return functools.partial(
            self.value(func), *plain, **{key: self.value(v) for key, v in named.items()}
        )

    def _slots(self, kind: str, values: Mapping[str, Any]) -> Any:
        cls: Any = QParams if kind == "QParams" else _own_class(kind)
        if not issubclass(cls, QParams) or values.keys() != set(slots_of(cls)):
            raise ValueError(f"{kind} is not a set of quantization parameters")
        made = cls.__new__(cls)
        for key, value in values.items():
            setattr(made, key, self.value(value))
        return made


def _unknown(what: str, name: str, hint: str) -> CheckpointError:
    return CheckpointError(
        "load", f"the traced module uses {what} {name}, which this program does not know", hint=hint
    )


def _own_class(name: str) -> type:
    if name == "Tensor":
        return Tensor
    found = catalog.class_named(name)
    if found is None:
        raise _unknown("the class", name, "import the code that registers it, then load")
    return found


def _registered(name: str) -> type:
    for cls in pytree.registered_types():
        if catalog.class_name(cls) == name:
            return cls
    raise _unknown("the type", name, "call register_supported_type for it, then load")


def _scalar_type(cls: Any) -> Any:
    if not (isinstance(cls, type) and issubclass(cls, np.generic)):
        raise TypeError("no scalar type")
    return cls


@functools.lru_cache(256)
def _made(name: str, fields: tuple[str, ...]) -> type:
    make: Any = namedtuple
    made: type = make(name, fields)
    return made


def _named_tuple(name: str, fields: list[str]) -> type:
    return _made(name, tuple(fields))
