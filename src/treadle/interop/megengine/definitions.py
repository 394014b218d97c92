"""Definitions of ops by a table: name, parameters with their defaults, the function they stand for.

Names of parameters are MegEngine's; those that choose algorithms or formats are taken and have no
effect here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

import treadle.functional as F
from treadle.distributed import WORLD
from treadle.distributed import functional as D
from treadle.functional.windows import even_windows
from treadle.interop.megengine.streams import stream_of
from treadle.tensor import Tensor

Function = Callable[..., Any]


class OpDef:
    """An op with parameters, given by position or name, called with tensors for a list of them."""

    parameters: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = dict(zip(self.parameters, args, strict=False))
        unknown = (set(kwargs) - set(self.parameters)) | set(given) & set(kwargs)
        if unknown or len(args) > len(self.parameters):
            known = ", ".join(self.parameters) or "none"
            raise TypeError(f"{type(self).__name__}: its parameters are: {known}")
        self.__dict__.update({**self.parameters, **given, **kwargs})
        if isinstance(mode := self.__dict__.get("mode"), str):
            self.mode = mode.upper()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self).__name__, repr(self.__dict__)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self).__name__, dict(self.__dict__))

    def __getstate__(self) -> dict[str, Any]:
        """The parameters by name."""
        return dict(self.__dict__)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.__dict__})"

    def __str__(self) -> str:
        """The name of the op, by which programs look converters up; of its function, if it has."""
        return (
            str(self.__dict__["mode"]) if type(self).__name__ == "Elemwise" else type(self).__name__
        )


def _restored(name: str, state: dict[str, Any]) -> OpDef:
    """A definition out of a file."""
    kind = next(k for k in _kinds(OpDef) if k.__name__ == name)
    made = kind.__new__(kind)
    made.__dict__.update(state)
    return made


def _kinds(kind: type[OpDef]) -> Iterator[type[OpDef]]:
    """A class and all below it."""
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)


def define(name: str, parameters: Mapping[str, Any], function: Function) -> type[OpDef]:
    """A class of definitions; `function` takes the parameters and the tensors."""

    def call(self: OpDef, *inps: Any) -> list[Tensor]:
        found = function(SimpleNamespace(**self.__dict__), *inps)
        return list(found) if isinstance(found, list | tuple) else [found]

    body = {"__doc__": f"MegEngine's {name}.", "__call__": call, "parameters": dict(parameters)}
    return type(name, (OpDef,), body)


def pair(p: SimpleNamespace, what: str) -> tuple[int, int]:
    """A parameter along rows and columns."""
    return getattr(p, f"{what}_h"), getattr(p, f"{what}_w")


def grouping(p: SimpleNamespace, weight: Tensor) -> int:
    """The number of groups that a weight has."""
    return weight.shape[0] if str(p.sparse).upper() == "GROUP" else 1


def _convolution(p: SimpleNamespace, x: Tensor, weight: Tensor) -> Tensor:
    window = pair(p, "stride"), pair(p, "pad"), pair(p, "dilate")
    return F.conv2d(x, weight, None, *window, groups=grouping(p, weight))


def _transposed(p: SimpleNamespace, weight: Tensor, x: Tensor, *_: Any) -> Tensor:
    return F.conv_transpose2d(
        x,
        weight,
        stride=pair(p, "stride"),
        padding=pair(p, "pad"),
        dilation=pair(p, "dilate"),
        groups=grouping(p, weight),
    )


def _three(p: SimpleNamespace, what: str) -> tuple[int, int, int]:
    return getattr(p, f"{what}_d"), getattr(p, f"{what}_h"), getattr(p, f"{what}_w")


def _pooling(p: SimpleNamespace, x: Tensor) -> Tensor:
    window = pair(p, "window"), pair(p, "stride"), pair(p, "pad")
    mode = str(p.mode).upper()
    return F.max_pool2d(x, *window) if mode == "MAX" else F.avg_pool2d(x, *window, mode.lower())


def _adaptive(p: SimpleNamespace, x: Tensor, shape: Any = None) -> Tensor:
    size = tuple(p.shape) if shape is None else tuple(int(n) for n in Tensor(shape).tolist())
    maximum = str(p.mode).upper() == "MAX"
    windows = even_windows(x.shape[-2:], size)
    if windows is not None:
        return F.max_pool2d(x, *windows) if maximum else F.avg_pool2d(x, *windows)
    return F.adaptive_max_pool2d(x, size) if maximum else F.adaptive_avg_pool2d(x, size)


def _batch_norm(p: SimpleNamespace, x: Tensor, scale: Any, bias: Any, *stats: Any) -> list[Any]:
    """Return updated statistics if there are any, those of the batch, what backward keeps, and y.

    In inference the batch's are the given ones, a variance where training has 1 / deviation.
    """
    mean, var = stats if stats else (None, None)
    kept = F.zeros((0,), dtype="uint8")
    if str(p.fwd_mode).upper() != "TRAINING":
        return [mean, var, kept, F.batch_norm(x, mean, var, scale, bias, eps=p.epsilon)]
    options: dict[str, Any] = {"momentum": 1 - p.avg_factor, "eps": p.epsilon}
    found = F.batch_norm(x, mean, var, scale, bias, training=True, inplace=mean is None, **options)
    y, *new = [found] if mean is None else found
    mean = F.mean(x, (0, 2, 3), keepdims=True)
    deviation = F.mean((x - mean) ** 2, (0, 2, 3), keepdims=True) + p.epsilon
    return [*new, mean, deviation**-0.5, kept, y]


def _items(p: SimpleNamespace, numbers: Sequence[Any]) -> tuple[Any, ...]:
    """The index that MegEngine's list (axis, has begin, end, step, index) means.

    Numbers come in the order of the list, which files have from the last axis on.
    """
    given = iter(numbers)
    found: dict[int, Any] = {}
    for axis, *flags in p.items:
        begin, end, step, index = (next(given) if flag else None for flag in flags)
        found[axis] = slice(*map(_whole, (begin, end, step))) if index is None else index
    last = max(found, default=-1)
    return tuple(found.get(axis, slice(None)) for axis in range(last + 1))


def _whole(value: Any) -> int | None:
    return None if value is None else int(Tensor(value).item())


Places = Callable[[SimpleNamespace, Tensor, Sequence[Any]], tuple[Any, ...]]


def _vectors(p: SimpleNamespace, x: Tensor, numbers: Sequence[Any]) -> tuple[Any, ...]:
    """Ranges, and vectors of indices that go together, as in NumPy."""
    return _items(p, numbers)


def _ranges(p: SimpleNamespace, x: Tensor, numbers: Sequence[Any]) -> tuple[Any, ...]:
    """Ranges and single numbers."""
    return tuple(i if isinstance(i, slice) else _whole(i) for i in _items(p, numbers))


def _mesh(p: SimpleNamespace, x: Tensor, numbers: Sequence[Any]) -> tuple[Any, ...]:
    """Ranges, and vectors of which each chooses along its own axis."""
    return _spread(_items(p, numbers), x, batched=False)


def _batched_mesh(p: SimpleNamespace, x: Tensor, numbers: Sequence[Any]) -> tuple[Any, ...]:
    """The same with one vector per entry of the first axis: matrices of indices."""
    return _spread(_items(p, numbers), x, batched=True)


def _spread(places: tuple[Any, ...], x: Tensor, batched: bool) -> tuple[Any, ...]:
    """One index array per axis, each along the axis of the result that is its own.

    A single number drops its axis.
    """
    found: list[Any] = []
    for axis, place in enumerate(places):
        if isinstance(place, slice):
            place = np.arange(x.shape[axis], dtype=np.int32)[place]
            found.append(place[None] if batched and axis else place)
        else:
            found.append(Tensor(place))
    kept = [axis for axis, place in enumerate(found) if place.ndim]
    for at, axis in enumerate(kept):
        shape = [1] * len(kept)
        if batched and axis:
            shape[0] = found[axis].shape[0]
        shape[at] = found[axis].shape[-1]
        found[axis] = found[axis].reshape(shape)
    return tuple(place if place.ndim else _whole(place) for place in found)


def _getting(places: Places) -> Function:
    return lambda p, x, *numbers: x[places(p, x, numbers)]


def _setting(places: Places) -> Function:
    def run(p: SimpleNamespace, x: Tensor, value: Any, *numbers: Any) -> Tensor:
        made = F.copy(x)
        made[places(p, x, numbers)] = value
        return made

    return run


def _adding(places: Places) -> Function:
    def run(p: SimpleNamespace, x: Tensor, value: Any, *numbers: Any) -> Tensor:
        made, where = F.copy(x), places(p, x, numbers)
        made[where] = made[where] + value
        return made

    return run


def _volumes(p: SimpleNamespace, x: Tensor, weight: Tensor) -> Tensor:
    window = _three(p, "stride"), _three(p, "pad"), _three(p, "dilate")
    return F.conv3d(x, weight, None, *window, groups=grouping(p, weight))


def _affine(given: tuple[Any, ...]) -> tuple[Any, Any]:
    """Scale and bias, or None for both."""
    return given if len(given) == 2 else (None, None)


def _split(p: SimpleNamespace, x: Tensor, *_: Any) -> list[Tensor]:
    parts = p.nsections or list(p.splits)
    return list(F.split(x, parts, p.axis))


def _top(p: SimpleNamespace, x: Tensor, k: Any) -> Any:
    """Return the top k of x; MegEngine's k is negative for the largest values."""
    count = int(Tensor(k).item())
    kth_only, no_sort = (str(p.mode).upper() == m for m in ("KTH_ONLY", "VALUE_IDX_NOSORT"))
    return F.topk(x, abs(count), count < 0, kth_only=kth_only, no_sort=no_sort)


def _fill(p: SimpleNamespace, shape: Any) -> Tensor:
    made: Tensor = F.full(_shape(shape), p.value, dtype=p.dtype, device=p.comp_node)
    return made


def _axes(p: SimpleNamespace) -> list[int]:
    return list(p.axis)


def _shape(shape: Any) -> list[int]:
    return [int(n) for n in Tensor(shape).tolist()]


CONVOLUTION = {
    "mode": "CROSS_CORRELATION",
    "pad_h": 0,
    "pad_w": 0,
    "stride_h": 1,
    "stride_w": 1,
    "dilate_h": 1,
    "dilate_w": 1,
    "sparse": "DENSE",
    "format": "NCHW",
    "compute_mode": "DEFAULT",
    "strategy": 1,
    "workspace_limit": 0,
}
_WINDOW = {"window_h": 2, "window_w": 2, "stride_h": 2, "stride_w": 2, "pad_h": 0, "pad_w": 0}
_ITEMS: dict[str, Any] = {"items": ()}
_SEED = {"seed": 0, "handle": 0}
_RNG = {**_SEED, "dtype": "float32"}
_TABLE: tuple[tuple[str, dict[str, Any], Function], ...] = (
    ("AdaptivePooling", {"mode": "MAX", "format": "NCHW", "shape": ()}, _adaptive),
    ("AddAxis", {"axis": ()}, lambda p, x: F.expand_dims(x, _axes(p))),
    ("RemoveAxis", {"axis": ()}, lambda p, x: F.squeeze(x, _axes(p))),
    ("Argmax", {"axis": 0}, lambda p, x: F.argmax(x, p.axis, keepdims=True)),
    ("Argmin", {"axis": 0}, lambda p, x: F.argmin(x, p.axis, keepdims=True)),
    (
        "Argsort",
        {"order": "ASCENDING"},
        lambda p, x: list(F.sort(x, descending=str(p.order).upper() == "DESCENDING")),
    ),
    (
        "AssertEqual",
        {"maxerr": 1e-4, "verbose": False},
        lambda p, x, y: F.utils._assert_equal(x, y, maxerr=p.maxerr, verbose=p.verbose),
    ),
    (
        "BatchNorm",
        {"param_dim": "DIM_1C11", "fwd_mode": "TRAINING", "epsilon": 1e-4, "avg_factor": 1.0},
        _batch_norm,
    ),
    ("BatchedIncrMeshIndexing", _ITEMS, _adding(_batched_mesh)),
    ("BatchedMeshIndexing", _ITEMS, _getting(_batched_mesh)),
    ("BatchedSetMeshIndexing", _ITEMS, _setting(_batched_mesh)),
    ("CondTake", {}, lambda p, x, mask: list(F.cond_take(mask, x))),
    ("Convolution", CONVOLUTION, _convolution),
    ("ConvolutionBackwardData", {**CONVOLUTION, "dtype": None}, _transposed),
    (
        "Convolution3D",
        {
            **{f"pad_{a}": 0 for a in "dhw"},
            **{f"{what}_{a}": 1 for what in ("stride", "dilate") for a in "dhw"},
            "sparse": "DENSE",
        },
        _volumes,
    ),
    (
        "Correlation",
        {
            "format": "NCHW",
            "kernel_size": 1,
            "max_displacement": 1,
            "stride1": 1,
            "stride2": 1,
            "pad_size": 0,
            "is_multiply": True,
        },
        lambda p, x, y: F.vision.correlation(
            x, y, p.kernel_size, p.max_displacement, p.stride1, p.stride2, p.pad_size, p.is_multiply
        ),
    ),
    (
        "Cross",
        {"axisa": -1, "axisb": -1, "axisc": -1},
        lambda p, x, y: F.cross(x, y, p.axisa, p.axisb, p.axisc),
    ),
    (
        "Cumsum",
        {"axis": 0, "exclusive": False, "reverse": False},
        lambda p, x: _running(p, x),
    ),
    ("CvtColor", {"mode": "RGB2GRAY"}, lambda p, x: F.vision.cvt_color(x, str(p.mode))),
    ("Diag", {"k": 0}, lambda p, x: F.diag(x, p.k)),
    ("Dot", {}, lambda p, x, y: F.dot(x, y)),
    ("Dropout", {"drop_prob": 0.0, **_SEED}, lambda p, x: F.dropout(x, p.drop_prob)),
    (
        "Eye",
        {"k": 0, "dtype": "float32", "comp_node": None},
        lambda p, shape: _diagonal(p, *_shape(shape)),
    ),
    ("Fill", {"value": 0.0, "dtype": "float32", "comp_node": None}, _fill),
    ("FillLike", {"value": 0.0}, lambda p, x: F.full_like(x, p.value)),
    ("IncrMeshIndexing", _ITEMS, _adding(_mesh)),
    ("IncrSubtensor", _ITEMS, _adding(_ranges)),
    ("IndexingIncrMultiAxisVec", _ITEMS, _adding(_vectors)),
    ("IndexingMultiAxisVec", _ITEMS, _getting(_vectors)),
    (
        "IndexingOneHot",
        {"axis": 0, "ndim": 0},
        lambda p, x, index: F.indexing_one_hot(x, index, p.axis, keepdims=True),
    ),
    ("IndexingSetMultiAxisVec", _ITEMS, _setting(_vectors)),
    ("LRN", {"n": 5, "k": 2.0, "alpha": 1e-4, "beta": 0.75}, lambda p, x: _lrn(p, x)),
    (
        "LayerNorm",
        {"affine": True, "eps": 1e-5, "normalized_dim": 1, "normalized_size": 1},
        lambda p, x, *wb: F.layer_norm(
            x, x.shape[-p.normalized_dim :], p.affine, *_affine(wb), p.eps
        ),
    ),
    (
        "GroupNorm",
        {"affine": True, "eps": 1e-5, "group": 1, "format": "NCHW"},
        lambda p, x, *wb: F.group_norm(x, p.group, p.affine, *_affine(wb), p.eps),
    ),
    (
        "InstanceNorm",
        {"affine": True, "eps": 1e-5, "format": "NCHW"},
        lambda p, x, *wb: F.instance_norm(x, p.affine, *_affine(wb), p.eps),
    ),
    (
        "Linspace",
        {"endpoint": True, "comp_node": None},
        lambda p, start, stop, num: _spaced(p, start, stop, _whole(num) or 0),
    ),
    ("MatrixInverse", {}, lambda p, x: F.matinv(x)),
    ("MeshGrid", {"indexing": "xy"}, lambda p, *inps: F.meshgrid(*inps, indexing=p.indexing)),
    ("MeshIndexing", _ITEMS, _getting(_mesh)),
    (
        "NMSKeep",
        {"iou_thresh": 0.5, "max_output": 0},
        lambda p, boxes, scores: F.vision.nms(boxes, scores, p.iou_thresh, p.max_output or None),
    ),
    ("PixelShuffle", {"factor": 1}, lambda p, x: F.pixel_shuffle(x, p.factor)),
    ("Pooling", {"mode": "MAX", **_WINDOW, "format": "NCHW", "strategy": 1}, _pooling),
    (
        "ROIAlign",
        {
            "mode": "MAX",
            "format": "NCHW",
            "spatial_scale": 1.0,
            "offset": 0.0,
            "pooled_height": 1,
            "pooled_width": 1,
            "sample_height": 2,
            "sample_width": 2,
        },
        lambda p, x, rois: F.vision.roi_align(
            x,
            rois,
            _pair2(p, "pooled"),
            str(p.mode).lower(),
            p.spatial_scale,
            _pair2(p, "sample"),
            aligned=p.offset != 0,
        ),
    ),
    (
        "Remap",
        {"imode": "LINEAR", "border_type": "REPLICATE", "format": "NHWC", "scalar": 0.0},
        lambda p, x, places: F.vision.remap(
            x, places, str(p.border_type).lower(), p.scalar, str(p.imode).lower()
        ),
    ),
    (
        "Resize",
        {"imode": "LINEAR", "format": "NHWC"},
        lambda p, x, size: F.vision.resize(x, _shape(size), str(p.format), str(p.imode).lower()),
    ),
    ("SVD", {"full_matrices": False, "compute_uv": True}, lambda p, x: _svd(p, x)),
    ("SetMeshIndexing", _ITEMS, _setting(_mesh)),
    ("SetSubtensor", _ITEMS, _setting(_ranges)),
    ("Softmax", {"axis": -1}, lambda p, x: F.softmax(x, p.axis)),
    ("Split", {"axis": 0, "nsections": 0, "splits": ()}, _split),
    ("Stack", {"axis": 0, "comp_node": None}, lambda p, *inps: F.stack(list(inps), p.axis)),
    ("Subtensor", _ITEMS, _getting(_ranges)),
    ("TopK", {"mode": "KTH_ONLY"}, _top),
    (
        "WarpAffine",
        {"imode": "LINEAR", "border_mode": "REPLICATE", "border_val": 0.0, "format": "NHWC"},
        lambda p, x, m, size: F.vision.warp_affine(
            x,
            m,
            _shape(size),
            str(p.border_mode).lower(),
            p.border_val,
            str(p.format),
            str(p.imode).lower(),
        ),
    ),
    (
        "WarpPerspective",
        {
            "imode": "LINEAR",
            "bmode": "REPLICATE",
            "format": "NCHW",
            "border_val": 0.0,
            "mat_idx": (),
        },
        lambda p, x, m, size: F.vision.warp_perspective(
            x,
            m,
            _shape(size),
            p.mat_idx or None,
            str(p.bmode).lower(),
            p.border_val,
            str(p.format),
            str(p.imode).lower(),
        ),
    ),
    ("UniformRNG", _RNG, lambda p, size: _typed(p, stream_of(p).uniform(size=tuple(_shape(size))))),
    (
        "GaussianRNG",
        {"seed": 0, "mean": 0.0, "std": 1.0, "handle": 0, "dtype": "float32"},
        lambda p, size: _typed(p, stream_of(p).normal(p.mean, p.std, size=tuple(_shape(size)))),
    ),
    ("GammaRNG", _SEED, lambda p, shape, scale: stream_of(p).gamma(shape, scale)),
    ("BetaRNG", _SEED, lambda p, alpha, beta: stream_of(p).beta(alpha, beta)),
    ("PoissonRNG", _SEED, lambda p, lam: stream_of(p).poisson(lam)),
    ("ExponentialRNG", _SEED, lambda p, rate: stream_of(p).exponential(rate)),
    (
        "PermutationRNG",
        {**_SEED, "dtype": "int32"},
        lambda p, n: stream_of(p).permutation(_whole(n) or 0, dtype=p.dtype),
    ),
    ("ShuffleRNG", _SEED, lambda p, x: _shuffled(p, x)),
    ("MultinomialRNG", {**_SEED, "num_samples": 1, "replacement": True}, lambda p, x: _drawn(p, x)),
    ("CheckNonFinite", {"scale": 1.0}, lambda p, *inps: _checked(p, *inps)),
    ("InplaceAdd", {}, lambda p, x, y, a, b: F.inplace._inplace_add_(x, y, a, b)),
    ("CollectiveComm", {"key": "", "mode": "ALL_REDUCE_SUM"}, lambda p, x: _collective(p, x)),
)


def _pair2(p: SimpleNamespace, what: str) -> tuple[int, int]:
    return getattr(p, f"{what}_height"), getattr(p, f"{what}_width")


def _diagonal(p: SimpleNamespace, rows: int, columns: int) -> Tensor:
    """Ones on the diagonal that is `k` above the main one."""
    place = p.comp_node
    across = F.arange(columns, device=place) - p.k
    found: Tensor = F.equal(F.arange(rows, device=place).reshape(-1, 1), across).astype(p.dtype)
    return found


def _spaced(p: SimpleNamespace, start: Any, stop: Any, num: int) -> Tensor:
    """Evenly spaced values, with the last one if `endpoint`."""
    made: Tensor = F.linspace(start, stop, num + (not p.endpoint), device=p.comp_node)
    return made[:num]


def _running(p: SimpleNamespace, x: Tensor) -> Tensor:
    turned = F.concat([x], p.axis)
    backwards = (slice(None),) * (p.axis % x.ndim) + (slice(None, None, -1),)
    if p.reverse:
        turned = turned[backwards]
    summed = F.cumsum(turned, p.axis)
    summed = summed - turned if p.exclusive else summed
    return summed[backwards] if p.reverse else summed


def _lrn(p: SimpleNamespace, x: Tensor) -> Tensor:
    return F.local_response_norm(x, p.n, p.k, p.alpha, p.beta)


def _svd(p: SimpleNamespace, x: Tensor) -> Any:
    return F.svd(x, p.full_matrices, p.compute_uv)


def _typed(p: SimpleNamespace, x: Tensor) -> Tensor:
    return x.astype(p.dtype)


def _shuffled(p: SimpleNamespace, x: Tensor) -> list[Tensor]:
    order = stream_of(p).permutation(x.shape[0])
    return [x[order.to(x.device)], order]


def _drawn(p: SimpleNamespace, x: Tensor) -> Tensor:
    found: Tensor = stream_of(p).multinomial(x, p.num_samples, p.replacement)
    return found


def _checked(p: SimpleNamespace, *inps: Tensor) -> list[Tensor]:
    copies = [F.copy(x) for x in inps]
    flag = F.math._check_non_finite(copies, p.scale)
    return [*copies, flag]


def _collective(p: SimpleNamespace, x: Tensor) -> Tensor | None:
    found: Tensor | None = D.collective_comm(x, str(p.mode), WORLD)
    return found


TABLE = {name: define(name, parameters, function) for name, parameters, function in _TABLE}
"""Definitions by name."""
