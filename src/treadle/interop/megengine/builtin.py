"""Op definitions of MegEngine's core that programs apply by hand: `apply(Elemwise("ADD"), x, y)`.

Each is made with its parameters and called with tensors; results come as a list, as `apply` has
them. MegEngine has over a hundred, most of which only its own functions use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import treadle.functional as F
import treadle.module as M
from treadle.tensor import Tensor


class _Definition:
    """An op with parameters, given by position or name."""

    parameters: ClassVar[dict[str, Any]] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = dict(zip(self.parameters, args, strict=False))
        unknown = (set(kwargs) - set(self.parameters)) | set(given) & set(kwargs)
        if unknown or len(args) > len(self.parameters):
            known = ", ".join(self.parameters) or "none"
            raise TypeError(f"{type(self).__name__}: its parameters are: {known}")
        self.__dict__.update(self.parameters | given | kwargs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.__dict__})"


class Elemwise(_Definition):
    """An elementwise function by MegEngine's name of its mode."""

    parameters: ClassVar = {"mode": "RELU"}

    def __call__(self, *inps: Any) -> list[Tensor]:
        """The result, in a list."""
        return [M.Elemwise(str(self.__dict__["mode"]))(*inps)]


_REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "SUM": F.sum,
    "PRODUCT": F.prod,
    "MIN": F.min,
    "MAX": F.max,
    "MEAN": F.mean,
    "SUM_SQR": lambda x, axis, keepdims: F.sum(x * x, axis, keepdims),
}


class Reduce(_Definition):
    """A reduction along one axis."""

    parameters: ClassVar = {"mode": "SUM", "axis": 0, "data_type": "DEFAULT", "keepdim": True}

    def __call__(self, x: Tensor) -> list[Tensor]:
        """The result, in a list."""
        mode, axis = self.__dict__["mode"], self.__dict__["axis"]
        return [_REDUCTIONS[mode](x, axis, self.__dict__["keepdim"])]


class Dimshuffle(_Definition):
    """Axes in another order; -1 inserts one."""

    parameters: ClassVar = {"pattern": ()}

    def __call__(self, x: Tensor) -> list[Tensor]:
        """The result, in a list."""
        return [F.transpose(x, ["x" if a == -1 else a for a in self.__dict__["pattern"]])]


class TypeCvt(_Definition):
    """A cast."""

    parameters: ClassVar = {"dtype": "float32"}

    def __call__(self, x: Tensor) -> list[Tensor]:
        """The result, in a list."""
        return [x.astype(self.__dict__["dtype"])]


class Copy(_Definition):
    """A copy on a device."""

    parameters: ClassVar = {"comp_node": None}

    def __call__(self, x: Tensor) -> list[Tensor]:
        """The result, in a list."""
        place = self.__dict__["comp_node"]
        return [F.copy(x, None if place is None else str(place))]


class Identity(_Definition):
    """The tensor as it is."""

    def __call__(self, x: Tensor) -> list[Tensor]:
        """The result, in a list."""
        return [F.copy(x)]


class FastpathCopy(Identity):
    """The tensor as it is."""


class Reshape(_Definition):
    """Another shape, given as a tensor."""

    parameters: ClassVar = {"axis": -1, "shape": ()}

    def __call__(self, x: Tensor, shape: Tensor | None = None) -> list[Tensor]:
        """The result, in a list."""
        return [F.reshape(x, self.__dict__["shape"] if shape is None else shape)]


class Broadcast(_Definition):
    """Broadcast to a shape, given as a tensor."""

    parameters: ClassVar = {"shape": ()}

    def __call__(self, x: Tensor, shape: Tensor | None = None) -> list[Tensor]:
        """The result, in a list."""
        return [F.broadcast_to(x, self.__dict__["shape"] if shape is None else shape)]


class Concat(_Definition):
    """Tensors joined along an axis."""

    parameters: ClassVar = {"axis": 0, "comp_node": None}

    def __call__(self, *inps: Tensor) -> list[Tensor]:
        """The result, in a list."""
        return [F.concat(list(inps), self.__dict__["axis"])]


class GetVarShape(_Definition):
    """The shape as an int32 tensor, or one extent of it."""

    parameters: ClassVar = {"axis": -7}  # A number no axis has: MegEngine's for "all of them".

    def __call__(self, x: Tensor) -> list[Tensor]:
        """The result, in a list."""
        axis, shape = self.__dict__["axis"], Tensor(x.shape, dtype="int32")
        return [shape if axis == -7 else shape[axis : axis + 1 or None]]


class MatrixMul(_Definition):
    """A product of matrices."""

    parameters: ClassVar = {"transposeA": False, "transposeB": False, "compute_mode": "default"}

    def __call__(self, a: Tensor, b: Tensor) -> list[Tensor]:
        """The result, in a list."""
        return [F.matmul(a, b, self.__dict__["transposeA"], self.__dict__["transposeB"])]


class BatchedMatrixMul(MatrixMul):
    """Products of matrices, one for each index of the leading axes."""


MEMBERS = {
    made.__name__: made
    for made in (
        BatchedMatrixMul,
        Broadcast,
        Concat,
        Copy,
        Dimshuffle,
        Elemwise,
        FastpathCopy,
        GetVarShape,
        Identity,
        MatrixMul,
        Reduce,
        Reshape,
        TypeCvt,
    )
}
"""Definitions by name."""
