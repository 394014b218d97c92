"""Definitions of ops that are the inside of layers and optimizers: windows, cells, updates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import treadle.functional as F
from treadle.distributed.helper import param_pack_concat, param_pack_split
from treadle.functional import fake_quant as rounding
from treadle.interop.megengine.definitions import CONVOLUTION, Function, define, grouping, pair
from treadle.tensor import Tensor

_GEOMETRY = {
    **dict.fromkeys(("pad_h", "pad_w"), 0),
    **dict.fromkeys(("stride_h", "stride_w", "dilate_h", "dilate_w"), 1),
    **dict.fromkeys(("window_h", "window_w"), 3),
}
_RANGE = {"qmin": -(2**31), "qmax": 2**31 - 1}
_SPACE = "dhw"


def _window(p: SimpleNamespace) -> dict[str, Any]:
    return {"padding": pair(p, "pad"), "stride": pair(p, "stride"), "dilation": pair(p, "dilate")}


def _deformable(
    p: SimpleNamespace, x: Tensor, weight: Tensor, offset: Tensor, mask: Tensor
) -> Tensor:
    return F.deformable_conv2d(x, weight, offset, mask, groups=grouping(p, weight), **_window(p))


def _restricted(p: SimpleNamespace, x: Tensor, weight: Tensor, rin: Tensor, rout: Tensor) -> Tensor:
    return F.region_restricted_conv(x, weight, rin, rout, groups=weight.shape[0], **_window(p))


def _parts(p: SimpleNamespace, x: Tensor, rois: Tensor, trans: Tensor) -> Tensor:
    return F.deformable_psroi_pooling(
        x,
        rois,
        trans,
        p.no_trans,
        p.part_size,
        p.pooled_h,
        p.pooled_w,
        p.sample_per_part,
        p.spatial_scale,
        p.trans_std,
    )


def _regions(p: SimpleNamespace, x: Tensor, rois: Tensor, shape: Any) -> Tensor:
    size = tuple(int(n) for n in Tensor(shape).tolist())
    return F.vision.roi_pooling(x, rois, size, str(p.mode).lower(), p.scale)


def _padded(p: SimpleNamespace, x: Tensor) -> Tensor:
    width = [
        (getattr(p, f"front_offset_dim{axis}"), getattr(p, f"back_offset_dim{axis}"))
        for axis in range(x.ndim)
    ]
    return F.pad(x, width, str(p.padding_mode).lower(), p.padding_val)


def _general(p: SimpleNamespace, x: Tensor, *affine: Tensor) -> Tensor:
    weight, bias = affine or (None, None)
    return F.general_norm(x, list(range(p.axis_start, p.axis_end)), p.affine, weight, bias, p.eps)


def _masked(p: SimpleNamespace, x: Tensor, mask: Tensor) -> Tensor:
    found: Tensor = F.where(mask, F.full_like(x, p.value), x)
    return found


def _one_hot(p: SimpleNamespace, x: Tensor, index: Tensor, value: Tensor) -> Tensor:
    """`x` with `value` where the index points along an axis."""
    places = F.arange(x.shape[p.axis]).astype("int32")
    chosen = F.expand_dims(index, p.axis)
    shape = [1] * x.ndim
    shape[p.axis] = -1
    found: Tensor = F.where(F.equal(places.reshape(shape), chosen), value, x)
    return found


def _sums(x: Tensor, w_x: Tensor, b_x: Tensor, h: Tensor, w_h: Tensor, b_h: Tensor) -> Tensor:
    return F.linear(x, w_x, b_x) + F.linear(h, w_h, b_h)


def _cell(p: SimpleNamespace, *inps: Tensor) -> Tensor:
    turn: dict[str, Function] = {"IDENTITY": F.copy, "RELU": F.relu, "TANH": F.tanh}
    found: Tensor = turn[str(p.nonlineMode).upper()](_sums(*inps))
    return found


def _long_cell(p: SimpleNamespace, *inps: Tensor) -> list[Tensor]:
    """The next h and c, and the sums that they come from."""
    gates = _sums(*inps[:6])
    i, f, g, o = F.split(gates, 4, axis=1)
    c = F.sigmoid(f) * inps[6] + F.sigmoid(i) * F.tanh(g)
    return [F.sigmoid(o) * F.tanh(c), c, gates]


def _lamb(p: SimpleNamespace, *inps: Tensor) -> list[Tensor]:
    """Moments and parameter after a step."""
    first, second, param, grad = (x.astype("float32") for x in inps)
    first = p.beta_1 * first + (1 - p.beta_1) * grad
    second = p.beta_2 * second + (1 - p.beta_2) * grad * grad
    shares = (1 - p.beta_1**p.step, 1 - p.beta_2**p.step) if p.bias_correction else (1.0, 1.0)
    change = first / shares[0] / (F.sqrt(second / shares[1]) + p.eps) + p.weight_decay * param
    ratio: Any = 1.0
    if p.always_adapt or p.weight_decay > 0:
        norms = F.norm(param.flatten()), F.norm(change.flatten())
        sound = F.logical_and(norms[0] > 0, norms[1] > 0)
        one = F.ones_like(norms[0])
        ratio = F.where(sound, norms[0] / F.where(sound, norms[1], one), one)
    return [first, second, param - p.lr * ratio * change]


def _unshuffled(p: SimpleNamespace, x: Tensor) -> Tensor:
    """Undo `PixelShuffle`."""
    r = int(p.factor)
    *lead, c, h, w = x.shape
    cut = x.reshape(*lead, c, h // r, r, w // r, r)
    at = len(lead)
    moved = cut.transpose(*range(at), at, at + 2, at + 4, at + 1, at + 3)
    return moved.reshape(*lead, c * r * r, h // r, w // r)


def _volumes(p: SimpleNamespace, weight: Tensor, x: Tensor, *_: Any) -> Tensor:
    stride, padding, dilation = (
        tuple(getattr(p, f"{what}_{axis}") for axis in _SPACE)
        for what in ("stride", "pad", "dilate")
    )
    groups = grouping(p, weight)
    return F.conv_transpose3d(
        x, weight, stride=stride, padding=padding, dilation=dilation, groups=groups
    )


def _resized(p: SimpleNamespace, x: Tensor, size: Any) -> Tensor:
    shape = [int(n) for n in Tensor(size).tolist()]
    return F.vision.interpolate(x, shape, mode="trilinear", align_corners=p.align_corners)


def _rounded(p: SimpleNamespace, x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """Rounded to the range at a scale, and back; gradients of what is inside pass through."""
    return rounding.lsq_forward(p.qmin, p.qmax, x, scale.detach(), zero)


_TABLE: tuple[tuple[str, dict[str, Any], Function], ...] = (
    (
        "Convolution3DBackwardData",
        {
            **{f"pad_{axis}": 0 for axis in _SPACE},
            **{f"{what}_{axis}": 1 for what in ("stride", "dilate") for axis in _SPACE},
            "sparse": "DENSE",
        },
        _volumes,
    ),
    ("DeformableConv", CONVOLUTION, _deformable),
    (
        "DeformablePSROIPooling",
        {
            "no_trans": True,
            **dict.fromkeys(("spatial_scale", "trans_std"), 1.0),
            **dict.fromkeys(("pooled_h", "pooled_w", "part_size", "sample_per_part"), 1),
        },
        _parts,
    ),
    ("FakeQuant", _RANGE, _rounded),
    (
        "GeneralNorm",
        {"affine": True, "eps": 1e-5, "axis_start": 0, "axis_end": 0},
        _general,
    ),
    ("GroupLocal", CONVOLUTION, lambda p, x, w: F.local_conv2d(x, w, **_window(p))),
    (
        "Images2Neibs",
        _GEOMETRY,
        lambda p, x: F.sliding_window(x, pair(p, "window"), **_window(p)),
    ),
    ("IndexingSetOneHot", {"axis": 0, "ndim": 0}, _one_hot),
    (
        "LAMBUpdate",
        {
            **dict.fromkeys(("beta_1", "beta_2", "step", "lr", "weight_decay", "eps"), 1.0),
            "bias_correction": True,
            "always_adapt": False,
        },
        _lamb,
    ),
    (
        "LSQ",
        _RANGE,
        lambda p, x, step, zero, grad: rounding.lsq_forward(p.qmin, p.qmax, x, step, zero, grad),
    ),
    ("LSTMCell", {}, _long_cell),
    ("MaskedFill", {"value": 0.0}, _masked),
    (
        "Padding",
        {
            **{f"{side}_offset_dim{axis}": 0 for side in ("front", "back") for axis in range(7)},
            "padding_val": 0.0,
            "padding_mode": "CONSTANT",
        },
        _padded,
    ),
    ("ParamPackConcat", {"offsets": ()}, lambda p, *inps: param_pack_concat(list(inps[:-1]))),
    (
        "ParamPackSplit",
        {"offsets": (), "shapes": ()},
        lambda p, x: param_pack_split(x, list(p.offsets), p.shapes),
    ),
    ("PixelShuffleBackward", {"factor": 1}, _unshuffled),
    ("RNNCell", {"nonlineMode": "IDENTITY"}, _cell),
    ("ROIPooling", {"mode": "MAX", "scale": 1.0}, _regions),
    ("RegionRestrictedConvolution", CONVOLUTION, _restricted),
    (
        "Resize3D",
        {"imode": "LINEAR", "format": "NDHWC", "align_corners": False},
        _resized,
    ),
    (
        "SlidingWindowTranspose",
        {"out_h": 0, "out_w": 0, **_GEOMETRY},
        lambda p, x: F.sliding_window_transpose(x, pair(p, "out"), pair(p, "window"), **_window(p)),
    ),
    ("TQT", _RANGE, lambda p, x, scale: rounding.tqt_forward(p.qmin, p.qmax, x, scale)),
    ("Where", {}, lambda p, mask, x, y: F.where(mask, x, y)),
)
TABLE = {name: define(name, parameters, function) for name, parameters, function in _TABLE}
"""Definitions by name."""
