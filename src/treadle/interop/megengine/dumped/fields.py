"""Parameters of operators that are definitions by another name: their fields, in order.

A field is a number of a format of `struct`, or one of several names by its number; "" passes over
one that means nothing here. Defaults are those of MegEngine's public schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from treadle.interop.megengine.dumped.flatbuffer import FlatTable

Form = str | Sequence[str]

_WHERE = ("NEAREST", "LINEAR", "AREA", "CUBIC", "LANCZOS4")
_EDGES = ("REPLICATE", "REFLECT", "REFLECT_101", "WRAP", "CONSTANT", "TRANSPARENT", "ISOLATED")
_PLACES = ("NCHW", "NHWC")
_VOLUMES = ("NCDHW", "NDHWC")
_SPARSE = ("DENSE", "GROUP")
_WINDOWS = ("MAX", "AVERAGE")
_COLORS = (
    *("RGB2GRAY", "RGB2YUV", "YUV2RGB", "GRAY2RGB", "RGBA2RGB", "RGBA2BGR", "RGBA2GRAY"),
    *("RGB2BGR", "BGR2GRAY", "BGR2RGB", "YUV2GRAY_NV21", "YUV2RGB_NV21", "YUV2BGR_NV21"),
    *("YUV2GRAY_NV12", "YUV2RGB_NV12", "YUV2BGR_NV12", "YUV2GRAY_YV12", "YUV2RGB_YV12"),
    *("YUV2BGR_YV12", "YUV2GRAY_YU12", "YUV2RGB_YU12", "YUV2BGR_YU12", "YCrCb2RGB"),
    *("YCrCb2BGR", "BT601_YUV2RGB_NV21", "BT601_YUV2BGR_NV21", "BT601_YUV2RGB_NV12"),
    *("BT601_YUV2BGR_NV12", "BT601_YUV2RGB_YV12", "BT601_YUV2BGR_YV12", "BT601_YUV2RGB_YU12"),
    "BT601_YUV2BGR_YU12",
)
_MIXED = (
    *("FUSE_MUL_ADD3_INT16x32x32x32", "FUSE_MUL_ADD3_IXxF32xF32xI8", "ROUND_SHR_SATURATE_IXxI8xI8"),
    "FUSE_ADD_RMULH_ROUND_SHR_SATURATE_INT16x16x16x8",
    "FUSE_ADD_RMULH_ROUND_SHR_SATURATE_INT32x32x32x8",
    *("ROUND_SHR_SATURATE_IXxI8xI16", "QADD", "QFUSE_ADD_RELU", "QMUL", "QMIN", "QMAX", "QSUB"),
    *("QTRUE_DIV", "QFUSE_ADD_SIGMOID", "QFUSE_ADD_TANH", "QRELU", "QABS", "QSIGMOID", "QEXP"),
    *("QTANH", "QFUSE_MUL_ADD3", "QFAST_TANH", "QNEGATE", "QACOS", "QASIN", "QCEIL", "QCOS"),
    *("QEXPM1", "QFLOOR", "QLOG", "QLOG1P", "QSIN", "QROUND", "QERF", "QERFINV", "QERFC"),
    *("QERFCINV", "QABS_GRAD", "QFLOOR_DIV", "QMOD", "QSIGMOID_GRAD", "QSWITCH_GT0", "QTANH_GRAD"),
    *("QLT", "QLEQ", "QEQ", "QPOW", "QLOG_SUM_EXP", "QFAST_TANH_GRAD", "QATAN2", "QCOND_LEQ_MOV"),
    *("QH_SWISH", "QFUSE_ADD_H_SWISH", "QH_SWISH_GRAD", "FUSE_MUL_ADD3_INT16xF32xF32xF32"),
    *("MUL_INT16xF32xF32", "FUSE_MUL_ADD3_UINT8xF32xF32xF32"),
)
_DIMS = tuple(f"dim{i}" for i in range(7))
_RANGE = (("qmin", "i", -(2**31)), ("qmax", "i", 2**31 - 1))
_SEED = (("seed", "Q", 0),)


def _sizes(what: str, axes: Iterable[str], default: int) -> tuple[tuple[str, str, int], ...]:
    return tuple((f"{what}_{axis}", "I", default) for axis in axes)


_WINDOW = (*_sizes("pad", "hw", 0), *_sizes("stride", "hw", 1), *_sizes("dilate", "hw", 1))
_CONVOLUTION = (("mode", ("CROSS_CORRELATION", "CONVOLUTION"), 0), *_WINDOW, ("sparse", _SPARSE, 0))
_VOLUME = (
    ("", "I", 0),
    *_sizes("pad", "dhw", 0),
    *_sizes("stride", "dhw", 1),
    *_sizes("dilate", "dhw", 1),
    ("sparse", _SPARSE, 0),
)

FIELDS: dict[str, Sequence[tuple[str, Form, Any]]] = {
    "Argsort": (("order", ("ASCENDING", "DESCENDING"), 0),),
    "BetaRNG": _SEED,
    "CondTake": (),
    "Convolution3D": _VOLUME,
    "Convolution3DBackwardData": _VOLUME,
    "Correlation": (
        ("", "I", 0),
        *(("kernel_size", "I", 1), ("max_displacement", "I", 1), ("stride1", "I", 1)),
        *(("stride2", "I", 1), ("pad_size", "I", 0), ("is_multiply", "?", True)),
    ),
    "Cumsum": (("axis", "i", 2**31 - 1), ("exclusive", "?", True), ("reverse", "?", False)),
    "CvtColor": (("mode", _COLORS, 0),),
    "DeformableConv": _CONVOLUTION,
    "DeformablePSROIPooling": (
        *(("no_trans", "?", True), ("spatial_scale", "f", 1.0), ("trans_std", "f", 1.0)),
        *(("pooled_h", "I", 1), ("pooled_w", "I", 1), ("part_size", "I", 1)),
        ("sample_per_part", "I", 1),
    ),
    "Diag": (("k", "i", 0),),
    "Dot": (),
    "FakeQuant": _RANGE,
    "Fill": (("value", "f", 0.0),),
    "GammaRNG": _SEED,
    "GaussianRNG": (*_SEED, ("mean", "f", 0.0), ("std", "f", 1.0)),
    "GeneralNorm": (
        *(("affine", "?", True), ("eps", "f", 1e-5), ("axis_start", "Q", 0), ("axis_end", "Q", 0)),
    ),
    "GroupLocal": _CONVOLUTION,
    "GroupNorm": (("affine", "?", True), ("eps", "f", 1e-5), ("group", "I", 1)),
    "Images2Neibs": (*_WINDOW, *_sizes("window", "hw", 3)),
    "IndexingOneHot": (("axis", "i", 0),),
    "IndexingSetOneHot": (("axis", "i", 0),),
    "InstanceNorm": (("affine", "?", True), ("eps", "f", 1e-5)),
    "LRN": (("n", "I", 5), ("k", "f", 2.0), ("alpha", "f", 1e-4), ("beta", "f", 0.75)),
    "LSQ": _RANGE,
    "LSTMCell": (),
    "LayerNorm": (
        *(("affine", "?", True), ("eps", "f", 1e-5)),
        *(("normalized_dim", "Q", 1), ("normalized_size", "Q", 1)),
    ),
    "Linspace": (("endpoint", "?", True),),
    "MaskedFill": (("value", "f", 0.0),),
    "NMSKeep": (("iou_thresh", "f", 0.0), ("max_output", "I", 0)),
    "Padding": (
        *_sizes("front_offset", _DIMS, 0),
        *_sizes("back_offset", _DIMS, 0),
        ("padding_val", "f", 0.0),
        ("padding_mode", ("REPLICATE", "REFLECT", "CONSTANT"), 2),
    ),
    "PermutationRNG": _SEED,
    "PoissonRNG": _SEED,
    "RNNCell": (("nonlineMode", ("IDENTITY", "RELU", "TANH"), 0),),
    "ROIAlign": (
        *(("mode", _WINDOWS, 0), ("format", _PLACES, 0), ("spatial_scale", "f", 1.0)),
        *(("offset", "f", 0.0), ("pooled_height", "I", 1), ("pooled_width", "I", 1)),
        *(("sample_height", "I", 2), ("sample_width", "I", 2)),
    ),
    "ROIPooling": (("mode", _WINDOWS, 0), ("scale", "f", 1.0)),
    "RegionRestrictedConvolution": _CONVOLUTION,
    "Remap": (
        *(("imode", _WHERE, 1), ("border_type", _EDGES, 0), ("format", _PLACES, 1)),
        ("scalar", "f", 0.0),
    ),
    "Resize": (("imode", _WHERE, 1), ("format", _PLACES, 1)),
    "Resize3D": (("imode", _WHERE, 1), ("format", _VOLUMES, 1), ("align_corners", "?", False)),
    "SVD": (("full_matrices", "?", False), ("compute_uv", "?", True)),
    "ShuffleRNG": _SEED,
    "SlidingWindowTranspose": (*_sizes("out", "hw", 0), *_WINDOW, *_sizes("window", "hw", 3)),
    "TQT": _RANGE,
    "TopK": (("mode", ("KTH_ONLY", "VALUE_IDX_NOSORT", "VALUE_IDX_SORTED"), 0),),
    "UniformRNG": _SEED,
    "WarpAffine": (
        *(("imode", _WHERE, 1), ("border_mode", _EDGES, 0), ("border_val", "f", 0.0)),
        ("format", _PLACES, 1),
    ),
    "WarpPerspective": (
        *(("imode", _WHERE, 1), ("bmode", _EDGES, 0), ("format", _PLACES, 0)),
        ("border_val", "f", 0.0),
    ),
}

MODES = _MIXED
"""Modes of `ElemwiseMultiType` by number."""


def parameters(kind: str, table: FlatTable | None) -> dict[str, Any]:
    """The parameters of an operator by the names that its definition has for them.

    Raises:
        IndexError: a name is chosen that there is none of.
    """
    found: dict[str, Any] = {}
    for number, (name, form, default) in enumerate(FIELDS[kind]):
        if not name:
            continue
        if not isinstance(form, str):
            chosen = default if table is None else table.whole(number, "I", default)
            found[name] = form[chosen]
        elif table is None:
            found[name] = default
        else:
            value = table.number(number, form, default)
            found[name] = bool(value) if form == "?" else value
    return found


__all__ = ["FIELDS", "MODES", "parameters"]
