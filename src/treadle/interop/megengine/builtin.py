"""Op definitions of MegEngine's core that programs apply by hand: `apply(Elemwise("ADD"), x, y)`.

Each is made with its parameters and called with tensors; results come as a list, as `apply` has
them. Those that are one call of a function stand in `definitions`; those that have no counterpart
say so when they are called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import treadle.functional as F
import treadle.module as M
from treadle.base.errors import UnsupportedOp
from treadle.interop.megengine.definitions import TABLE, OpDef
from treadle.interop.megengine.layers import TABLE as LAYERS
from treadle.interop.megengine.modes import add_choices
from treadle.tensor import Tensor
from treadle.traced_module import catalog


class Elemwise(OpDef):
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


class Reduce(OpDef):
    """A reduction along one axis."""

    parameters: ClassVar = {"mode": "SUM", "axis": 0, "data_type": "DEFAULT", "keepdim": True}

    def __call__(self, x: Tensor) -> list[Tensor]:
        """The result, in a list."""
        mode, axis = self.__dict__["mode"], self.__dict__["axis"]
        return [_REDUCTIONS[mode](x, axis, self.__dict__["keepdim"])]


class Dimshuffle(OpDef):
    """Axes in another order; -1 inserts one."""

    parameters: ClassVar = {"pattern": ()}

    def __call__(self, x: Tensor) -> list[Tensor]:
        """The result, in a list."""
        return [F.transpose(x, ["x" if a == -1 else a for a in self.__dict__["pattern"]])]


class TypeCvt(OpDef):
    """A cast."""

    parameters: ClassVar = {"dtype": "float32"}

    def __call__(self, x: Tensor) -> list[Tensor]:
        """The result, in a list."""
        return [x.astype(self.__dict__["dtype"])]


class Copy(OpDef):
    """A copy on a device."""

    parameters: ClassVar = {"comp_node": None}

    def __call__(self, x: Tensor) -> list[Tensor]:
        """The result, in a list."""
        place = self.__dict__["comp_node"]
        return [F.copy(x, None if place is None else str(place))]


class Identity(OpDef):
    """The tensor as it is."""

    def __call__(self, x: Tensor) -> list[Tensor]:
        """The result, in a list."""
        return [F.copy(x)]


class FastpathCopy(Identity):
    """The tensor as it is."""


class Reshape(OpDef):
    """Another shape, given as a tensor."""

    parameters: ClassVar = {"axis": -1, "shape": ()}

    def __call__(self, x: Tensor, shape: Tensor | None = None) -> list[Tensor]:
        """The result, in a list."""
        return [F.reshape(x, self.__dict__["shape"] if shape is None else shape)]


class Broadcast(OpDef):
    """Broadcast to a shape, given as a tensor."""

    parameters: ClassVar = {"shape": ()}

    def __call__(self, x: Tensor, shape: Tensor | None = None) -> list[Tensor]:
        """The result, in a list."""
        return [F.broadcast_to(x, self.__dict__["shape"] if shape is None else shape)]


class Concat(OpDef):
    """Tensors joined along an axis."""

    parameters: ClassVar = {"axis": 0, "comp_node": None}

    def __call__(self, *inps: Tensor) -> list[Tensor]:
        """The result, in a list."""
        return [F.concat(list(inps), self.__dict__["axis"])]


class GetVarShape(OpDef):
    """The shape as an int32 tensor, or one extent of it."""

    # Numbers that no axis has, 7 and -7: MegEngine's for "all of them".
    parameters: ClassVar = {"axis": -7}

    def __call__(self, x: Tensor) -> list[Tensor]:
        """The result, in a list."""
        axis, shape = self.__dict__["axis"], Tensor(x.shape, dtype="int32")
        return [shape if axis in (-7, 7) else shape[axis : axis + 1 or None]]


class MatrixMul(OpDef):
    """A product of matrices."""

    parameters: ClassVar = {"transposeA": False, "transposeB": False, "compute_mode": "default"}

    def __call__(self, a: Tensor, b: Tensor) -> list[Tensor]:
        """The result, in a list."""
        return [F.matmul(a, b, self.__dict__["transposeA"], self.__dict__["transposeB"])]


class BatchedMatrixMul(MatrixMul):
    """Products of matrices, one for each index of the leading axes."""


class Const(OpDef):
    """A value as a tensor."""

    parameters: ClassVar = {"value": 0, "dtype": None, "device": None}

    def __call__(self, *reference: Tensor) -> list[Tensor]:
        """The tensor, in a list; on the device of a reference, if no other is named."""
        p = self.__dict__
        like = reference[0].device if reference and p["device"] is None else p["device"]
        return [Tensor(p["value"], dtype=p["dtype"], device=like)]


class ElemwiseMultiType(OpDef):
    """An elementwise function of the numbers that quantized tensors stand for, rounded again."""

    parameters: ClassVar = {"mode": "QADD", "dtype": None}

    def __call__(self, *inps: Any) -> list[Tensor]:
        """The result, in a list; the name of a quantized function begins with a Q."""
        mode, dtype = self.__dict__["mode"], self.__dict__["dtype"]
        given = [x.astype("float32") if isinstance(x, Tensor) else x for x in inps]
        made = M.Elemwise(mode.removeprefix("Q"))(*given)
        return [made if dtype is None else made.astype(dtype)]


class _Refused(OpDef):
    """A definition that stands for nothing here: it can be made and compared, not called."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.__dict__.update(kwargs, args=args)

    def __call__(self, *inps: Any) -> list[Tensor]:
        """Say what to use instead."""
        name = type(self).__name__
        raise UnsupportedOp(
            "megengine", f"core.ops.builtin.{name} has no counterpart", hint=_WHY.get(name, _USE)
        )


_USE = "call the function of treadle.functional or the module that you want instead"
_VENDOR = "it runs models of a vendor's compiler; see functional.external"
_WHY = {
    **dict.fromkeys(
        ("AtlasRuntime", "CambriconRuntime", "MagicMindRuntime", "TensorRTRuntime"), _VENDOR
    ),
    "NvOf": "it needs the optical flow unit of a GPU",
    "ExternOpr": "use functional.external.extern_opr_subgraph",
    "RemoteRecv": "use distributed.functional.remote_recv",
    "RemoteSend": "use distributed.functional.remote_send",
}
_ABSENT = [
    "AdvancedIndexing",
    "AtlasRuntime",
    "Barrier",
    "BatchConvBias",
    "BatchNormBackward",
    "Borrow",
    "CambriconRuntime",
    "ConvBias",
    "ExternOpr",
    "LSTM",
    "MagicMindRuntime",
    "MultiHeadAttn",
    "NvOf",
    "RNN",
    "RegionRestrictedConvolutionBackwardData",
    "RemoteRecv",
    "RemoteSend",
    "TensorRTRuntime",
]
MEMBERS: dict[str, Any] = {
    **{name: type(name, (_Refused,), {"__doc__": _Refused.__doc__}) for name in _ABSENT},
    **TABLE,
    **LAYERS,
    "Const": Const,
    "OpDef": OpDef,
}
"""Definitions by name."""
MEMBERS |= {
    made.__name__: made
    for made in (
        BatchedMatrixMul,
        Broadcast,
        Concat,
        Copy,
        Dimshuffle,
        Elemwise,
        ElemwiseMultiType,
        FastpathCopy,
        GetVarShape,
        Identity,
        MatrixMul,
        Reduce,
        Reshape,
        TypeCvt,
    )
}
for _made in MEMBERS.values():
    add_choices(_made)
catalog.register_definitions(MEMBERS)
