"""MegEngine's checkpoints: pickles of arrays, tensors and containers, as `megengine.save` wrote.

A tensor is written as constructor arguments (data, dtype, logical device, is_const, no_cache, name,
format), of which older versions have fewer, and a state with `qparams`; version 1.2 has `qdict` in
its place, and 1.1 keeps all in the state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from treadle.base import dtype as dtypes
from treadle.base import late
from treadle.base.array import Array
from treadle.base.files.source import SizedStream
from treadle.base.files.strict_json import shorten
from treadle.base.qparams import QParams, QuantMode
from treadle.base.quantized import BUILTIN, QuantDtypeMeta, quantized_type_of
from treadle.serialization.pickle_machine import (
    AllowedGlobals,
    Callee,
    Interrupted,
    Malformed,
    Meter,
    Record,
    kind,
    run,
)
from treadle.serialization.pickled_values import BFLOAT16, Values, check_tree
from treadle.tensor import Parameter, Tensor

_CLASSES: dict[tuple[str, str], type[Tensor]] = {
    ("megengine", "Tensor"): Tensor,
    ("megengine", "tensor"): Tensor,
    ("megengine", "Parameter"): Parameter,
    ("megengine.tensor", "Tensor"): Tensor,
    ("megengine.tensor", "tensor"): Tensor,
    ("megengine.tensor", "Parameter"): Parameter,
    ("megengine.tensor_nn", "Parameter"): Parameter,
    ("megengine.tensor_nn", "Buffer"): Tensor,
}
_TRACED = "megengine.traced_module."
_RUNTIME = "megengine.core._imperative_rt"
_DTYPES = frozenset(dtype.numpy for dtype in dtypes.ALL)
_FORMATS = ("default", "nchw", "nhwc")
_ADVICE = (
    ("megengine", "save state_dict() of modules and optimizers there, not the objects"),
    ("torch", "save state_dict() of modules there, not the objects"),
)
_HINT = (
    "arrays, tensors, numbers, texts and containers of them are loaded from pickles, all else could"
    " be code; if you trust the file, load it with the program that wrote it and save those"
)


def load_pickle(source: SizedStream, locate: Callable[[str], str]) -> object:
    """Read a pickle of arrays, tensors and containers.

    Args:
        source: the file.
        locate: maps the device name in the file to the one to load on.

    Raises:
        CheckpointError: the file is damaged, or names anything else.
        DeviceError: a device named in the file is missing.
    """
    tensors = Tensors(Meter(source.size), locate)
    names = _Names(source, tensors)
    try:
        found = run(source, AllowedGlobals(names.find, names.build), tensors.meter)
        tensors.check(found)
        return found if names.objects is None else names.objects.finish(found)
    except Interrupted as stop:
        raise stop.args[0] from None
    except Malformed as error:
        raise source.error(f"the pickle is malformed: {error}") from None


class _Names:
    """Stand-ins of the names in a file; those of traced modules from the first one on.

    Attributes:
        objects: makes them; None in files that have none.
    """

    def __init__(self, source: SizedStream, tensors: Tensors) -> None:
        self.objects: Any = None
        self._given = source, tensors
        self._own = tensors.table()
        self._find = finder(source, self._own)

    def find(self, module: str, name: str) -> object:
        """The stand-in of a name; raises `CheckpointError` for all that are not known."""
        if self.objects is None and module.startswith(_TRACED):
            self.objects = late.objects_of_pickles()(*self._given)
        known = (module, name) in self._own or self.objects is None
        found = None if known else self.objects.find(module, name)
        return self._find(module, name) if found is None else found

    def build(self, target: Any, state: Any) -> None:
        """Give an object its state."""
        if isinstance(target, Record):
            self.objects.build(target, state)
        else:
            self._given[1].build(target, state)


def finder(
    source: SizedStream, known: dict[tuple[str, str], object]
) -> Callable[[str, str], object]:
    """A function that gives what stands for a name, and refuses all that are not known."""

    def find(module: str, name: str) -> object:
        found = known.get((module, name))
        if found is None:
            package = module.partition(".")[0]
            hint = next((text for start, text in _ADVICE if package == start), _HINT)
            problem = f"the pickle names {shorten(f'{module}.{name}')}, which is not loaded"
            raise source.error(problem, hint=hint)
        return found

    return find


class Tensors:
    """Makes tensors for one file, beside what `Values` makes.

    Args:
        meter: of the file.
        locate: maps the device name in the file to the one to load on.
    """

    def __init__(self, meter: Meter, locate: Callable[[str], str]) -> None:
        self.meter = meter
        self._locate = locate
        self._values = Values(meter)

    def table(self) -> dict[tuple[str, str], object]:
        """Return the stand-ins by name."""
        found = self._values.table()
        for (module, name), cls in _CLASSES.items():
            found[module, name] = Callee(f"{module}.{name}", self._maker(cls))
        for module in (_RUNTIME, f"{_RUNTIME}.common"):
            found[module, "pybfloat16"] = found[module, "bfloat16"] = BFLOAT16
        for module in ("copyreg", "copy_reg"):
            found[module, "_reconstructor"] = Callee("copyreg._reconstructor", self._reconstruct)
        for module in ("megengine.quantization.utils", "megengine.quantization"):
            found[module, "QParams"] = Callee(f"{module}.QParams", _qparams)
            found[module, "QuantMode"] = Callee(f"{module}.QuantMode", _mode)
        path = "megengine.core.tensor.dtype"
        found[path, "QuantDtypeMeta"] = Callee(f"{path}.QuantDtypeMeta", _family)
        return found

    def place(self, device: str) -> str | None:
        """Return the device that the caller wants in place of one in the file."""
        try:
            return self._locate(device)
        except Exception as error:
            raise Interrupted(error) from None

    def build(self, target: Any, state: Any) -> None:
        """Give an object its state."""
        if isinstance(target, np.ndarray):
            self._values.fill_array(target, state)
        elif isinstance(target, np.dtype):
            self._values.fill_dtype(target, state)
        elif isinstance(target, Tensor):
            self._fill(target, state)
        elif isinstance(target, QParams):
            _fill_qparams(target, state)
        else:
            raise Malformed(f"a {kind(target)} is given a state")

    def check(self, found: object) -> None:
        """Refuse an object of which parts are missing, or that is a trap."""
        if self._values.unfilled:
            raise Malformed("an array, a dtype or a tensor has no state")
        check_tree(found)

    # -- tensors ---------------------------------------------------------------------------

    def _maker(self, cls: type[Tensor]) -> Callable[[tuple[Any, ...]], object]:
        def make(arguments: tuple[Any, ...]) -> object:
            if arguments:
                return self._tensor(cls, *_arguments(arguments))
            made = cls()
            self._values.unfilled[id(made)] = made
            return made

        return make

    def _reconstruct(self, arguments: tuple[Any, ...]) -> object:
        """Make an object of a Python class as protocols 0 and 1 do."""
        match arguments:
            case (Callee() as cls, Callee() as base, None) if base is self._values.object:
                return cls.make(())
        raise Malformed("copyreg._reconstructor makes objects of Python classes only")

    def _tensor(self, cls: type[Tensor], data: Any, dtype: Any, device: Any, *tags: Any) -> Tensor:
        array = self._quantized(data, dtype)
        name, format = tags
        if not (device is None or type(device) is str):
            raise Malformed(f"the device of a tensor is a {kind(device)}")
        if not isinstance(name, str | None) or type(format) is not str or format not in _FORMATS:
            raise Malformed("the name or the format of a tensor is malformed")
        self.meter.copy(array.nbytes)
        place = None if device is None else self.place(device)
        return cls(array, dtype=array.dtype, device=place, name=name, format=format)

    def _quantized(self, data: Any, dtype: Any) -> Array:
        """The data of a tensor under its dtype."""
        if not isinstance(data, np.ndarray) or id(data) in self._values.unfilled:
            raise Malformed(f"the data of a tensor is a {kind(data)}, or missing")
        if isinstance(dtype, type) and issubclass(dtype, np.generic):
            dtype = np.dtype(dtype)
        if dtype is None:
            dtype = data.dtype
        if not isinstance(dtype, np.dtype) or id(dtype) in self._values.unfilled:
            raise Malformed(f"the dtype of a tensor is a {kind(dtype)}, or incomplete")
        if data.dtype != dtype or dtype not in _DTYPES:
            raise Malformed(f"{data.dtype} data is that of a tensor of {dtype}")
        return data.view(dtype) if quantized_type_of(dtype) is not None else data

    def _fill(self, tensor: Tensor, state: Any) -> None:
        if type(state) is not dict or not state.keys() <= _STATE:
            raise Malformed("the state of a tensor is malformed")
        if "data" in state:
            if self._values.unfilled.pop(id(tensor), None) is None:
                raise Malformed("a tensor is given its data twice")
            given = state["data"], state.get("dtype"), state.get("device")
            tensor._reset(self._tensor(type(tensor), *given, None, "default"))
        found = state.get("qparams", state.get("qdict"))
        if type(found) is dict:
            found = _from_qdict(found)
        if not isinstance(found, QParams | None):
            raise Malformed(f"the qparams of a tensor are a {kind(found)}")
        if found is not None:
            tensor.qparams.update(found)


_STATE = {"data", "device", "dtype", "qdict", "qparams"}


def _arguments(given: tuple[Any, ...]) -> tuple[Any, Any, Any, Any, Any]:
    """Data, dtype, device, name and format from constructor arguments of any version."""
    if not 3 <= len(given) <= 7:
        raise Malformed(f"a tensor has {len(given)} constructor arguments")
    if len(given) == 4 and type(given[3]) is str:
        return (*given[:3], None, given[3])
    full = given + (False, False, None, "default")[len(given) - 3 :]
    if not (type(full[3]) is type(full[4]) is bool):
        raise Malformed("the constructor arguments of a tensor are malformed")
    return (*full[:3], *full[5:])


# -- parameters of quantization ----------------------------------------------------------------


def _qparams(arguments: tuple[Any, ...]) -> QParams:
    if arguments:
        raise Malformed("QParams have a state, and no constructor arguments")
    return QParams(None, None, None, None)


def _fill_qparams(target: QParams, state: Any) -> None:
    match state:
        case (None, dict(fields)) if fields.keys() <= set(QParams._fields):
            pass
        case _:
            raise Malformed("the state of QParams is malformed")
    mode, family = fields.get("mode"), fields.get("dtype_meta")
    if not isinstance(mode, QuantMode | None) or not isinstance(family, QuantDtypeMeta | None):
        raise Malformed("the state of QParams is malformed")
    scale, zero = (_number(fields.get(name)) for name in ("scale", "zero_point"))
    target.update(QParams(mode, family, scale, zero))


def _from_qdict(fields: dict[Any, Any]) -> QParams | None:
    """The parameters of a `qdict`, which is full of None where there are none."""
    mode = fields.get("mode")
    if not isinstance(mode, QuantMode | None):
        raise Malformed("the mode of a qdict is malformed")
    scale, zero = (_number(fields.get(name)) for name in ("scale", "zero_point"))
    return None if scale is None else QParams(mode, None, scale, zero)


def _number(value: Any) -> Any:
    if value is None or isinstance(value, int | float | np.generic | np.ndarray | Tensor):
        return value
    raise Malformed(f"a scale or zero point is a {kind(value)}")


def _mode(arguments: tuple[Any, ...]) -> QuantMode:
    match arguments:
        case (int(number),) if number in (mode.value for mode in QuantMode):
            return QuantMode(number)
    raise Malformed("QuantMode is malformed, or one that is not known")


def _family(arguments: tuple[Any, ...]) -> QuantDtypeMeta:
    match arguments:
        case (str(), str(), str(), int(), int(), int()):
            for family in BUILTIN.values():
                if arguments == tuple(family):
                    return family
    raise Malformed("QuantDtypeMeta of a family that is not known")
