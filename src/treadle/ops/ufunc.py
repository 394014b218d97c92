"""NumPy's universal functions as ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base.dtype import float_for
from treadle.ops import elementwise as ew
from treadle.ops.matmul import Matmul
from treadle.ops.op import REGISTRY, Op
from treadle.ops.operators import Operators, binary
from treadle.ops.unary import Abs, Sign

_UFUNCS: dict[Any, Op] = {}


def op_of_ufunc(ufunc: Any) -> Op | None:
    """The op for a NumPy function: the one that has it as its oracle, or that Python calls so."""
    if not _UFUNCS:
        _UFUNCS.update(
            {
                np.fabs: Abs(),
                np.matmul: Matmul(),
                np.maximum: ew.Maximum(),
                np.minimum: ew.Minimum(),
                np.power: ew.Pow(),
                np.remainder: ew.Mod(),
                np.sign: Sign(),
            }
        )
        for cls in REGISTRY.values():
            oracle = cls.__dict__.get("reference")
            if isinstance(oracle, staticmethod) and not cls._fields:
                _UFUNCS[oracle.__func__] = cls()
    return _UFUNCS.get(ufunc)


def run_ufunc(ufunc: Any, inputs: tuple[Any, ...]) -> Any:
    """The op that a NumPy function is, on operands of which one is a tensor."""
    op = op_of_ufunc(ufunc)
    if op is None:
        return NotImplemented
    first, *rest = inputs
    if rest:
        swap = not isinstance(first, Operators)
        mine, other = (rest[0], first) if swap else (first, rest[0])
        if isinstance(op, Matmul):
            return mine.__rmatmul__(other) if swap else mine @ other
        return binary(op, mine, other, swap=swap)
    wanted = first.type.dtype
    return op(first if wanted in op.dtypes else first.astype(float_for(wanted)))
