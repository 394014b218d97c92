"""How tensors were rounded, as plain values: `QParams`, their modes and families of dtypes."""

from __future__ import annotations

from typing import Any

from treadle.base.qparams import QParams, QuantMode
from treadle.base.quantized import QuantDtypeMeta
from treadle.serialization.forms import register_form
from treadle.tensor import Tensor

KIND = "qparams"
_TYPES = (str, str | None, str, int, int, bool)


def from_plain(plain: Any) -> Any:
    """What one of the functions below wrote, or a tensor that was given its `QParams`.

    Raises:
        ValueError: it was not written by them. TypeError and KeyError likewise.
    """
    what, *rest = plain
    match what, rest:
        case "mode", [str(name)]:
            return QuantMode[name]
        case "family", [*fields] if len(fields) == len(_TYPES):
            if all(isinstance(f, t) for f, t in zip(fields, _TYPES, strict=True)):
                return QuantDtypeMeta(*fields)
        case "qparams", [mode, family, scale, zero_point]:
            kinds = isinstance(mode, QuantMode | None), isinstance(family, QuantDtypeMeta | None)
            if all(kinds):
                return QParams(mode, family, scale, zero_point)
        case "tensor", [Tensor() as tensor, QParams() as qparams]:
            vars(tensor)["_qparams"] = qparams
            return tensor
    raise ValueError(f"{what!r} of a quantization is malformed")


register_form(QuantMode, KIND, lambda x: ["mode", x.name])
register_form(QuantDtypeMeta, KIND, lambda x: ["family", *x])
register_form(QParams, KIND, lambda x: ["qparams", x.mode, x.dtype_meta, x.scale, x.zero_point])
