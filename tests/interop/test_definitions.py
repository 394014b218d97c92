"""Definitions of `core.ops.builtin`, each against NumPy, a function of Treadle, or an error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.base.errors import UnsupportedOp
from treadle.interop.megengine.builtin import MEMBERS
from treadle.interop.megengine.definitions import TABLE
from treadle.interop.megengine.internals import ROOMS, apply
from treadle.interop.megengine.layers import TABLE as LAYERS

B = ROOMS["core.ops.builtin"]
RNG = np.random.default_rng(3)
IMAGE = RNG.random((2, 4, 6, 6), np.float32)
ROWS = RNG.random((3, 4), np.float32)
KERNEL = RNG.random((5, 4, 3, 3), np.float32)
SQUARE = ROWS[:, :3] + np.eye(3, dtype=np.float32)


def t(*values: Any) -> list[mge.Tensor]:
    return [v if isinstance(v, mge.Tensor) else mge.tensor(v) for v in values]


def x(array: Any) -> mge.Tensor:
    return mge.tensor(array)


def normal(array: np.ndarray, axes: Any, eps: float) -> np.ndarray:
    mean, var = array.mean(axes, keepdims=True), array.var(axes, keepdims=True)
    return (array - mean) / np.sqrt(var + eps)


def written(array: np.ndarray, where: Any, value: Any, add: bool = False) -> np.ndarray:
    made = array.copy()
    made[where] = made[where] + value if add else value
    return made


ITEM = [(1, False, False, False, True)]
EACH = [(1, False, False, False, True), (2, False, False, False, True)]
OF_EACH = np.s_[np.arange(2).reshape(2, 1, 1), [[[0], [2]], [[1], [2]]], [[[3]], [[0]]]]
PART = [(0, True, True, False, False)]
EQUAL: list[tuple[str, dict[str, Any], tuple[Any, ...], Callable[[], Any]]] = [
    (
        "AdaptivePooling",
        {"mode": "AVERAGE"},
        (IMAGE, [3, 3]),
        lambda: F.adaptive_avg_pool2d(x(IMAGE), 3),
    ),
    ("AddAxis", {"axis": [0]}, (ROWS,), lambda: ROWS[None]),
    ("RemoveAxis", {"axis": [0]}, (ROWS[None],), lambda: ROWS),
    ("Argmax", {"axis": 1}, (ROWS,), lambda: ROWS.argmax(1)[:, None]),
    ("Argmin", {"axis": 1}, (ROWS,), lambda: ROWS.argmin(1)[:, None]),
    ("Argsort", {"order": "DESCENDING"}, (ROWS,), lambda: -np.sort(-ROWS, 1)),
    ("AssertEqual", {}, (ROWS, ROWS), lambda: ROWS),
    (
        "BatchNorm",
        {"epsilon": 1e-5},
        (IMAGE, np.ones((1, 4, 1, 1), np.float32), np.zeros((1, 4, 1, 1), np.float32)),
        lambda: normal(IMAGE, (0, 2, 3), 1e-5),
    ),
    (
        "BatchedIncrMeshIndexing",
        {"items": EACH},
        (IMAGE, 2.0, [[0, 2], [1, 2]], [[3], [0]]),
        lambda: written(IMAGE, OF_EACH, 2, True),
    ),
    ("BatchedMeshIndexing", {"items": PART}, (ROWS, 1, 3), lambda: ROWS[1:3]),
    (
        "BatchedMeshIndexing",
        {"items": EACH},
        (IMAGE, [[0, 2], [1, 2]], [[3], [0]]),
        lambda: IMAGE[OF_EACH],
    ),
    (
        "BatchedSetMeshIndexing",
        {"items": EACH},
        (IMAGE, 2.0, [[0, 2], [1, 2]], [[3], [0]]),
        lambda: written(IMAGE, OF_EACH, 2),
    ),
    ("CondTake", {}, (ROWS, ROWS > 0.5), lambda: ROWS[ROWS > 0.5]),
    ("Const", {"value": [1.0, 2.0]}, (), lambda: np.array([1.0, 2.0], np.float32)),
    (
        "Convolution",
        {"pad_h": 1, "pad_w": 1, "stride_h": 2, "stride_w": 2},
        (IMAGE, KERNEL),
        lambda: F.conv2d(x(IMAGE), x(KERNEL), None, 2, 1),
    ),
    (
        "ConvolutionBackwardData",
        {},
        (KERNEL[:4], IMAGE),
        lambda: F.conv_transpose2d(x(IMAGE), x(KERNEL[:4])),
    ),
    (
        "Convolution3D",
        {"pad_d": 1},
        (IMAGE[:, :, None], KERNEL[:, :, None]),
        lambda: F.conv3d(x(IMAGE[:, :, None]), x(KERNEL[:, :, None]), None, 1, (1, 0, 0)),
    ),
    (
        "Correlation",
        {"max_displacement": 2, "pad_size": 2},
        (IMAGE, IMAGE),
        lambda: F.vision.correlation(x(IMAGE), x(IMAGE), 1, 2, 1, 1, 2),
    ),
    ("Cross", {}, (ROWS[:, :3], ROWS[:, 1:]), lambda: np.cross(ROWS[:, :3], ROWS[:, 1:])),
    ("Cumsum", {"axis": 1}, (ROWS,), lambda: ROWS.cumsum(1)),
    (
        "Cumsum",
        {"axis": 1, "reverse": True, "exclusive": True},
        (ROWS,),
        lambda: ROWS[:, ::-1].cumsum(1)[:, ::-1] - ROWS,
    ),
    (
        "CvtColor",
        {"mode": "RGB2BGR"},
        (IMAGE.transpose(0, 2, 3, 1)[..., :3].copy(),),
        lambda: IMAGE.transpose(0, 2, 3, 1)[..., 2::-1],
    ),
    ("Diag", {"k": 1}, (ROWS,), lambda: np.diag(ROWS, 1)),
    ("Dot", {}, (ROWS[0], ROWS[1]), lambda: ROWS[0] @ ROWS[1]),
    ("Dropout", {"drop_prob": 0.0}, (ROWS,), lambda: ROWS),
    ("Eye", {}, ([2, 3],), lambda: np.eye(2, 3, dtype=np.float32)),
    ("Eye", {"k": -1}, ([3, 4],), lambda: np.eye(3, 4, -1, dtype=np.float32)),
    ("Fill", {"value": 2.5}, ([2, 3],), lambda: np.full((2, 3), 2.5, np.float32)),
    ("FillLike", {"value": 2.5}, (ROWS,), lambda: np.full_like(ROWS, 2.5)),
    (
        "GroupNorm",
        {"affine": False, "group": 2},
        (IMAGE,),
        lambda: normal(IMAGE.reshape(2, 2, 2, 6, 6), (2, 3, 4), 1e-5).reshape(IMAGE.shape),
    ),
    ("InstanceNorm", {"affine": False}, (IMAGE,), lambda: normal(IMAGE, (2, 3), 1e-5)),
    (
        "LayerNorm",
        {"affine": False, "normalized_dim": 2},
        (IMAGE,),
        lambda: normal(IMAGE, (2, 3), 1e-5),
    ),
    (
        "IncrMeshIndexing",
        {"items": ITEM},
        (ROWS, 1.0, 2),
        lambda: written(ROWS, np.s_[:, 2], 1, True),
    ),
    (
        "IncrSubtensor",
        {"items": PART},
        (ROWS, 1.0, 0, 2),
        lambda: written(ROWS, np.s_[:2], 1, True),
    ),
    (
        "IndexingIncrMultiAxisVec",
        {"items": ITEM},
        (ROWS, 1.0, [0, 2]),
        lambda: written(ROWS, np.s_[:, [0, 2]], 1, True),
    ),
    ("IndexingMultiAxisVec", {"items": ITEM}, (ROWS, [3, 0]), lambda: ROWS[:, [3, 0]]),
    ("IndexingOneHot", {"axis": 1}, (ROWS, [3, 0, 1]), lambda: ROWS[[0, 1, 2], [3, 0, 1]][:, None]),
    (
        "IndexingSetMultiAxisVec",
        {"items": ITEM},
        (ROWS, 9.0, [0, 2]),
        lambda: written(ROWS, np.s_[:, [0, 2]], 9),
    ),
    ("LRN", {}, (IMAGE,), lambda: F.local_response_norm(x(IMAGE))),
    ("Linspace", {}, (0, 1, 5), lambda: np.linspace(0, 1, 5, dtype=np.float32)),
    (
        "Linspace",
        {"endpoint": False},
        (0, 1, 5),
        lambda: np.linspace(0, 1, 5, endpoint=False, dtype=np.float32),
    ),
    ("MatrixInverse", {}, (SQUARE,), lambda: np.linalg.inv(SQUARE)),
    ("MeshGrid", {}, (ROWS[0], ROWS[1]), lambda: np.meshgrid(ROWS[0], ROWS[1])[0]),
    (
        "MeshIndexing",
        {"items": EACH},
        (IMAGE, [0, 2, 3], [3, 1]),
        lambda: IMAGE[:, [0, 2, 3]][:, :, [3, 1]],
    ),
    ("MeshIndexing", {"items": ITEM}, (ROWS, [1, 1]), lambda: ROWS[:, [1, 1]]),
    (
        "NMSKeep",
        {"iou_thresh": 0.5},
        (np.array([[0, 0, 4, 4], [0, 0, 4, 3.9], [5, 5, 9, 9]], np.float32), ROWS[:, 0]),
        lambda: F.vision.nms(x([[0.0, 0, 4, 4], [0, 0, 4, 3.9], [5, 5, 9, 9]]), x(ROWS[:, 0]), 0.5),
    ),
    ("PixelShuffle", {"factor": 2}, (IMAGE,), lambda: F.pixel_shuffle(x(IMAGE), 2)),
    ("Pooling", {}, (IMAGE,), lambda: F.max_pool2d(x(IMAGE), 2)),
    (
        "Pooling",
        {"mode": "AVERAGE_COUNT_EXCLUDE_PADDING", "pad_h": 1},
        (IMAGE,),
        lambda: F.avg_pool2d(x(IMAGE), 2, 2, (1, 0)),
    ),
    (
        "ROIAlign",
        {"mode": "AVERAGE", "pooled_height": 2, "pooled_width": 3, "offset": 0.5},
        (IMAGE, np.array([[1, 0, 0, 5, 5]], np.float32)),
        lambda: F.vision.roi_align(x(IMAGE), x([[1.0, 0, 0, 5, 5]]), (2, 3)),
    ),
    (
        "Remap",
        {"imode": "NEAREST", "format": "NCHW"},
        (IMAGE, np.zeros((2, 1, 1, 2), np.float32)),
        lambda: IMAGE[:, :, :1, :1],
    ),
    (
        "Resize",
        {"format": "NCHW", "imode": "CUBIC"},
        (IMAGE, [9, 3]),
        lambda: F.vision.resize(x(IMAGE), (9, 3), imode="cubic"),
    ),
    ("SVD", {"compute_uv": False}, (SQUARE,), lambda: np.linalg.svd(SQUARE, compute_uv=False)),
    ("SetMeshIndexing", {"items": ITEM}, (ROWS, 9.0, 2), lambda: written(ROWS, np.s_[:, 2], 9)),
    ("SetSubtensor", {"items": PART}, (ROWS, 9.0, 1, 3), lambda: written(ROWS, np.s_[1:3], 9)),
    ("Softmax", {"axis": 1}, (ROWS,), lambda: np.exp(ROWS) / np.exp(ROWS).sum(1, keepdims=True)),
    ("Split", {"axis": 1, "nsections": 2}, (ROWS,), lambda: ROWS[:, :2]),
    ("Stack", {"axis": 1}, (ROWS, ROWS), lambda: np.stack([ROWS, ROWS], 1)),
    ("Subtensor", {"items": ITEM}, (ROWS, 2), lambda: ROWS[:, 2]),
    ("TopK", {"mode": "VALUE_IDX_SORTED"}, (ROWS, -2), lambda: -np.sort(-ROWS, 1)[:, :2]),
    ("TopK", {"mode": "KTH_ONLY"}, (ROWS, 2), lambda: np.sort(ROWS, 1)[:, 1]),
    (
        "WarpAffine",
        {"format": "NCHW"},
        (IMAGE, np.array([[[1, 0, 1], [0, 1, 2]]] * 2, np.float32), [2, 2]),
        lambda: IMAGE[:, :, 2:4, 1:3],
    ),
    (
        "WarpPerspective",
        {"imode": "CUBIC", "mat_idx": [1]},
        (IMAGE, np.array([[[1, 0, 1], [0, 1, 2], [0, 0, 1]]], np.float32), [2, 2]),
        lambda: IMAGE[1:, :, 2:4, 1:3],
    ),
    ("CheckNonFinite", {"scale": 0.5}, (ROWS,), lambda: ROWS / 2),
    ("InplaceAdd", {}, (ROWS, ROWS, 2.0, -1.0), lambda: ROWS),
]


@pytest.mark.parametrize(
    ("name", "parameters", "inputs", "want"), EQUAL, ids=[f"{e[0]}{i}" for i, e in enumerate(EQUAL)]
)
def test_values(
    name: str, parameters: dict[str, Any], inputs: tuple[Any, ...], want: Callable[[], Any]
) -> None:
    results = apply(getattr(B, name)(**parameters), *t(*inputs))
    found = results[-1 if name == "BatchNorm" else 0]
    expected = want()
    expected = expected.numpy() if isinstance(expected, mge.Tensor) else np.asarray(expected)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)


DRAWN: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {
    "UniformRNG": (([2, 3],), (2, 3)),
    "GaussianRNG": (([2, 3],), (2, 3)),
    "GammaRNG": ((ROWS, ROWS), (3, 4)),
    "BetaRNG": ((ROWS, ROWS), (3, 4)),
    "PoissonRNG": ((ROWS,), (3, 4)),
    "ExponentialRNG": ((ROWS,), (3, 4)),
    "PermutationRNG": ((5,), (5,)),
    "ShuffleRNG": ((ROWS,), (3, 4)),
    "MultinomialRNG": ((ROWS,), (3, 1)),
}


@pytest.mark.parametrize("name", DRAWN)
def test_draws(name: str) -> None:
    inputs, shape = DRAWN[name]
    first, second = (apply(getattr(B, name)(), *t(*inputs))[0].numpy() for _ in range(2))
    assert first.shape == shape and np.isfinite(first).all()
    if name not in ("PoissonRNG", "MultinomialRNG", "PermutationRNG", "ShuffleRNG"):
        assert (first != second).any(), "draws go on"
    if name == "ShuffleRNG":
        assert sorted(map(tuple, first)) == sorted(map(tuple, ROWS))


def test_every_definition_is_tried_here_and_says_what_it_takes() -> None:
    tried = {name for name, *_ in EQUAL} | set(DRAWN) | {"CollectiveComm"}
    assert set(TABLE) | {"Const"} == tried
    with pytest.raises(AssertionError, match="init_process_group"):
        B.CollectiveComm(mode="ALL_REDUCE_SUM")(x(ROWS))
    with pytest.raises(TypeError, match="its parameters are: axis"):
        B.Softmax(axes=1)
    assert "axis" in repr(B.Softmax(axis=1)) and issubclass(B.Softmax, B.OpDef)


def test_definitions_without_a_counterpart_say_so() -> None:
    refused = [name for name, made in MEMBERS.items() if made.__mro__[1].__name__ == "_Refused"]
    assert len(refused) <= 18
    assert len(refused) + len(TABLE) + len(LAYERS) + 15 >= 115
    for name in refused:
        made = getattr(B, name)(axis=1)
        assert made == getattr(B, name)(axis=1) and made != getattr(B, name)()
        with pytest.raises(UnsupportedOp, match=f"{name} has no counterpart"):
            made(x(ROWS))


NAMES = """
from megengine.module.conv import _ConvNd, ConvTranspose2d, LocalConv2d
from megengine.module.pooling import _PoolNd
from megengine.hub.const import DEFAULT_BRANCH_NAME
from megengine.hub.fetcher import GitHTTPSFetcher
from megengine.serialization import dmap
from megengine.traced_module.module_tracer import active_module_tracer
from megengine.traced_module.traced_module import InternalGraph, trace_module
from megengine.jit.xla_backend import xla_trace
from megengine.experimental import get_scaled_model
from megengine.xla import build_xla
from megengine._multistream import record_event
from megengine.core import Graph
from megengine.core._wrap import as_device
from megengine.core._imperative_rt.core2 import dtype_promotion, get_device
from megengine.core.tensor.utils import astype, convert_inputs, setscalar, subgraph
from megengine.core._imperative_rt import VarNode
from megengine.core._imperative_rt.utils import _set_defrag
from megengine.distributed import get_free_ports
from megengine.module.module import _expand_structure, _is_buffer, _is_module, _is_parameter
from megengine.traced_module.tm_config import enable_expr_checker
from megengine.core.tensor.indexing import getitem, setitem
from megengine.core.tensor.array_method import _matmul
from megengine.core.ops.special import Const
from megengine.distributed.util import get_free_ports
from megengine.device import CompNode
from megengine.tensor import tensor
import megengine, megengine.module as M, numpy as np

a, b = convert_inputs(np.ones((2, 3), "float32"), [1, 2])
assert dtype_promotion([a, b]) == np.float32 and get_device([a]) == a.device
assert astype(b, "float32").dtype == np.float32 and setscalar(a) is None
assert getitem(a, 0).shape == (3,) and setitem(a, 0, 5.0)[0, 0].item() == 5 and a[0, 0].item() == 1
assert _matmul(a, a, transpose_b=True).shape == (2, 2) and as_device("cpu1") == "cpu1"
assert len(set(get_free_ports(2))) == 2 and Const(3)()[0].item() == 3
assert isinstance(M.Conv1d(1, 1, 1), _ConvNd) and isinstance(M.AvgPool2d(2), _PoolNd)
net = M.Sequential(M.Conv2d(1, 2, 1), M.ReLU(), M.Conv2d(2, 1, 1))
is_conv = lambda m: isinstance(m, M.Conv2d)
assert [k for k, _ in net._flatten(with_key=True, predicate=is_conv)] == ["0", "2"]
assert next(net._flatten(with_parent=True))[1] is net
assert len(list(net._flatten(recursive=False))) == 3
for refused in (GitHTTPSFetcher, get_scaled_model, build_xla, record_event):
    try: refused(1)
    except NotImplementedError as error: assert "has no counterpart" in str(error)
    else: raise SystemExit(refused)
assert [k for k, _ in _expand_structure("x", {"b": [net], "a": a})] == ["x.a", "x.b.0"]
assert _is_module(net) and _is_buffer(a) and _is_parameter(net[0].weight) and not _is_buffer(net)
import io, pickle
data = pickle.dumps(tensor([1.0], device="cpu1"))
with dmap("cpu0"):
    assert pickle.loads(data).device == "cpu0"
assert pickle.loads(data).device == "cpu1"
print("fine")
"""


def test_names_that_programs_import(tmp_path: Any) -> None:
    command = [sys.executable, "-m", "treadle.interop.megengine", "-c", NAMES]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "fine\n", done.stderr


@pytest.mark.parametrize(
    ("name", "fields", "given"),
    [
        ("UniformRNG", {"dtype": "float16"}, [[4, 5]]),
        ("GaussianRNG", {"dtype": "float16", "mean": 1.0}, [[4, 5]]),
        ("GammaRNG", {}, [ROWS, ROWS]),
        ("BetaRNG", {}, [ROWS, ROWS]),
        ("PoissonRNG", {}, [ROWS]),
        ("ExponentialRNG", {}, [ROWS]),
        ("PermutationRNG", {"dtype": "float32"}, [[20]]),
        ("ShuffleRNG", {}, [ROWS]),
        ("MultinomialRNG", {"num_samples": 3}, [ROWS]),
    ],
)
def test_random_ops_draw_from_the_stream_of_their_handle(
    name: str, fields: dict[str, Any], given: list[Any]
) -> None:
    utils = mge.core._imperative_rt.ops
    inputs = [mge.tensor(x) for x in given]

    def drawn() -> mge.Tensor:
        handle = utils.new_rng_handle("cpu2", 7)
        made = MEMBERS[name](seed=7, handle=handle, **fields)(*inputs)[0]
        utils.delete_rng_handle(handle)
        with pytest.raises(ValueError, match="no random stream"):
            MEMBERS[name](handle=handle, **fields)(*inputs)
        return made

    first, again = drawn(), drawn()
    np.testing.assert_array_equal(first.numpy(), again.numpy())
    assert first.dtype == np.dtype(fields.get("dtype", first.dtype))
    if name in ("UniformRNG", "GaussianRNG", "PermutationRNG"):
        assert first.device == "cpu2:0"
