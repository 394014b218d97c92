"""Pickles as MegEngine's versions write them, made with stand-ins for its classes.

What a pickle holds of a class is its module, its name, and what its `__getnewargs__` and
`__getstate__` give; the stand-ins repeat those of each version, so Python's pickler writes the
same bytes. They exist while something is pickled and not while it is loaded.
"""

from __future__ import annotations

import enum
import pickle
import sys
import types
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

VERSIONS = ("1.1", "1.2", "1.13", "snapshot")


class _Base:
    """What all versions have: an array, and where it is."""

    def __new__(cls, data: Any = None, device: str = "xpux:0", **more: Any) -> Any:
        self = object.__new__(cls)
        self.array, self.device, self.more = data, device, more
        return self


class _Tensor11(_Base):
    def __getstate__(self) -> Any:
        return {
            "data": self.array,
            "device": self.device,
            "dtype": self.array.dtype.type,
            "qdict": {"mode": None, "scale": None, "zero_point": None} | self.more,
        }


class _Tensor12(_Base):
    def __getnewargs__(self) -> Any:
        return self.array, self.array.dtype.type, self.device

    def __getstate__(self) -> Any:
        return {"qdict": {"mode": None, "scale": None, "zero_point": None} | self.more}


class _Tensor113(_Base):
    def __getnewargs__(self) -> Any:
        return self.array, self.array.dtype, self.device, False

    def __getstate__(self) -> Any:
        return {k: v for k, v in self.more.items() if k == "qparams"}


class _TensorSnapshot(_Tensor113):
    def __getnewargs__(self) -> Any:
        format = self.more.get("format", "default")
        return self.array, self.array.dtype, self.device, False, False, None, format


_TENSORS = dict(zip(VERSIONS, (_Tensor11, _Tensor12, _Tensor113, _TensorSnapshot), strict=True))


class _QuantMode(enum.Enum):
    SYMMERTIC = 1
    ASYMMERTIC = 2

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self), (self.value,)  # Python 3.11.0 to 3.11.3 would write getattr.


_Meta = namedtuple("_Meta", "name cname np_dtype_str qmin qmax is_unsigned")


class _QParams:
    __slots__ = ("dtype_meta", "mode", "scale", "zero_point")


class _bfloat16:
    """NumPy cannot pickle MegEngine's type without MegEngine; its name is all that is needed."""


_PLACES: dict[str, tuple[str, ...]] = {
    "megengine": (),
    "megengine.core": (),
    "megengine.core.tensor": (),
    "megengine.quantization": (),
    "megengine.tensor": ("Tensor", "Parameter"),
    "megengine.quantization.utils": ("QuantMode", "QParams"),
    "megengine.core.tensor.dtype": ("QuantDtypeMeta",),
    "megengine.core._imperative_rt": ("pybfloat16",),
}


@contextmanager
def _stand_ins(version: str) -> Iterator[types.SimpleNamespace]:
    base = _TENSORS[version]
    classes = {
        "Tensor": type("Tensor", (base,), {}),
        "Parameter": type("Parameter", (base,), {}),
        "QuantMode": _QuantMode,
        "QParams": _QParams,
        "QuantDtypeMeta": _Meta,
        "pybfloat16": _bfloat16,
    }
    kept = {name: sys.modules.get(name) for name in _PLACES}
    for module, names in _PLACES.items():
        sys.modules[module] = types.ModuleType(module)
        for name in names:
            cls: Any = classes[name]
            cls.__module__, cls.__qualname__ = module, name
            setattr(sys.modules[module], name, cls)
    try:
        yield types.SimpleNamespace(**classes)
    finally:
        for name, module in kept.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def pickled(version: str, make: Callable[[types.SimpleNamespace], Any], protocol: int = 4) -> bytes:
    """The pickle of what `make` makes of a version's classes."""
    with _stand_ins(version) as mge:
        return pickle.dumps(make(mge), protocol)


def checkpoint(mge: types.SimpleNamespace) -> dict[str, Any]:
    """What a training program saves: tensors, arrays, state of an optimizer, counters."""
    weight = mge.Parameter(np.arange(6, dtype=np.float32).reshape(2, 3))
    return {
        "model": {"fc.weight": weight, "tied": weight, "mean": mge.Tensor(np.ones(2, np.float32))},
        "optimizer": {
            "param_groups": [{"lr": 0.1, "momentum": np.float64(0.9), "params": [0, 1]}],
            "state": {0: {"momentum_buffer": np.full((2, 3), 0.5, np.float32)}, 1: {}},
        },
        "epoch": 12,
        "ints": mge.Tensor(np.array([1, 2, 3], np.int8), device="cpu0:0"),
    }
