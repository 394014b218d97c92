"""NumPy's universal functions as ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.ops.elementwise import Mod
from treadle.ops.matmul import Matmul
from treadle.ops.op import REGISTRY, Op

_UFUNCS: dict[Any, Op] = {}


def op_of_ufunc(ufunc: Any) -> Op | None:
    """The op for a NumPy function: the one that has it as its oracle, or that Python calls so."""
    if not _UFUNCS:
        _UFUNCS.update({np.matmul: Matmul(), np.remainder: Mod()})
        for cls in REGISTRY.values():
            oracle = cls.__dict__.get("reference")
            if isinstance(oracle, staticmethod) and not cls._fields:
                _UFUNCS[oracle.__func__] = cls()
    return _UFUNCS.get(ufunc)
