"""Every operator that ATen calls core, compiled: PyTorch's values, none left to PyTorch.

The list is PyTorch's own, so an operator that a new version adds has no sample here and fails.
"""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its compiler
]

torch = pytest.importorskip("torch", reason="needs PyTorch")

from torch.utils import _pytree as pytree  # noqa: E402

from treadle.interop.torch import backend, left_to_torch  # noqa: E402

aten = torch.ops.aten


def core() -> dict[str, Any]:
    """PyTorch's core operators by name, such as "add.Tensor"."""
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        overload = schema.overload_name or "default"
        op = getattr(getattr(aten, name, None), overload, None) if space == "aten" else None
        if op is not None and torch.Tag.core in op.tags:
            found[f"{name}.{overload}"] = op
    return found


CORE = core()


def reals(*shape: int) -> Any:
    """Numbers between a tenth and nine tenths, where every function of one number is defined."""
    return torch.rand(shape) * 0.8 + 0.1


def normal(*shape: int) -> Any:
    return torch.randn(shape)


def whole(*shape: int, most: int = 5) -> Any:
    return torch.randint(0, most, shape)


def truths(*shape: int) -> Any:
    return torch.rand(shape) > 0.5


def norm_of(x: Any, axes: list[int]) -> tuple[Any, Any]:
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    return mean, (variance + 1e-5).rsqrt()


def layer_norm_gradient() -> tuple[Any, ...]:
    x = normal(2, 3, 4)
    return normal(2, 3, 4), x, [4], *norm_of(x, [2]), normal(4), normal(4), [True, True, True]


def group_norm_gradient() -> tuple[Any, ...]:
    x = normal(2, 6, 5)
    mean, scale = norm_of(x.reshape(2, 3, 10), [2])
    found = mean[..., 0], scale[..., 0]
    return normal(2, 6, 5), x, *found, normal(6), 2, 6, 5, 3, [True, True, True]


def pool_gradient() -> tuple[Any, ...]:
    x = normal(2, 3, 6, 6)
    y, places = aten.max_pool2d_with_indices(x, [2, 2])
    return torch.randn_like(y), x, [2, 2], [2, 2], [0, 0], [1, 1], False, places


def statistics() -> tuple[Any, ...]:
    return normal(4, 3, 5), normal(3), normal(3), normal(3), reals(3)


Sample = Callable[[], Any]
"""Arguments by place; a dict last has those by name."""

SAMPLES: dict[str, Sample] = {
    "_adaptive_avg_pool2d.default": lambda: (normal(2, 3, 5, 7), [2, 3]),
    "_adaptive_avg_pool2d_backward.default": lambda: (normal(2, 3, 2, 3), normal(2, 3, 5, 7)),
    "_adaptive_avg_pool3d.default": lambda: (normal(2, 3, 5, 7, 4), [2, 3, 2]),
    "_cdist_forward.default": lambda: (normal(4, 3), normal(5, 3), 2.0, None),
    "_embedding_bag.default": lambda: (
        *(normal(6, 3), whole(8), torch.tensor([0, 3, 5, 8])),
        *(False, 2, False, None, False, 5),
    ),
    "_fft_c2r.default": lambda: (torch.randn(3, 5, dtype=torch.complex64), [1], 2, 8),
    "_fft_r2c.default": lambda: (normal(3, 8), [1], 0, True),
    "_local_scalar_dense.default": lambda: (torch.tensor(3.5),),
    "_log_softmax.default": lambda: (normal(3, 4), 1, False),
    "_native_batch_norm_legit.default": lambda: (*statistics(), True, 0.1, 1e-5),
    "_native_batch_norm_legit.no_stats": lambda: (*statistics()[:3], True, 0.1, 1e-5),
    "_native_batch_norm_legit_no_training.default": lambda: (*statistics(), 0.1, 1e-5),
    "_pdist_forward.default": lambda: (normal(5, 3), 2.0),
    "_softmax.default": lambda: (normal(3, 4), 1, False),
    "_to_copy.default": lambda: (normal(3, 4), {"dtype": torch.float64}),
    "acosh.default": lambda: (reals(3, 4) + 1,),
    "adaptive_avg_pool1d.default": lambda: (normal(2, 3, 7), [3]),
    "add.Scalar": lambda: (normal(3, 4), 2, 3),
    "add.Tensor": lambda: (normal(3, 4), normal(4), {"alpha": 2}),
    "addmm.default": lambda: (normal(5), normal(3, 4), normal(4, 5), {"beta": 2, "alpha": 0.5}),
    "amax.default": lambda: (normal(3, 4), [1]),
    "amin.default": lambda: (normal(3, 4), [0], True),
    "any.dim": lambda: (truths(3, 4), 1),
    "any.dims": lambda: (truths(3, 4), [0, 1]),
    "arange.start_step": lambda: (1, 10, 2),
    "argmax.default": lambda: (normal(3, 4), 1),
    "argmin.default": lambda: (normal(3, 4), None),
    "as_strided.default": lambda: (normal(3, 4), [2, 3], [4, 1], 1),
    "atan2.default": lambda: (normal(3, 4), normal(3, 4)),
    "atan2.out": lambda: (normal(3, 4), normal(3, 4), {"out": torch.zeros(3, 4)}),
    "avg_pool1d.default": lambda: (normal(2, 3, 7), [2]),
    "avg_pool2d.default": lambda: (normal(2, 3, 6, 7), [2, 3], [2, 1], [1, 1], True),
    "avg_pool2d_backward.default": lambda: (
        *(normal(2, 3, 3, 3), normal(2, 3, 6, 6)),
        *([2, 2], [2, 2], [0, 0], False, True, None),
    ),
    "avg_pool3d.default": lambda: (normal(2, 3, 4, 4, 5), [2, 2, 2]),
    "bitwise_not.default": lambda: (whole(3, 4),),
    "bmm.default": lambda: (normal(2, 3, 4), normal(2, 4, 5)),
    "cat.default": lambda: ([normal(3, 4), normal(2, 4)], 0),
    "clamp.Tensor": lambda: (normal(3, 4), -reals(4), reals(4)),
    "clamp.default": lambda: (normal(3, 4), -0.5, 0.5),
    "col2im.default": lambda: (normal(1, 12, 12), [4, 5], [2, 2], [1, 1], [0, 0], [1, 1]),
    "constant_pad_nd.default": lambda: (normal(3, 4), [1, 2, 0, 1], 3.0),
    "convolution.default": lambda: (
        *(normal(2, 4, 6, 6), normal(6, 2, 3, 3), normal(6)),
        *([2, 1], [1, 1], [1, 1], False, [0, 0], 2),
    ),
    "convolution_backward.default": lambda: (
        *(normal(2, 6, 6, 6), normal(2, 4, 6, 6), normal(6, 4, 3, 3)),
        *([6], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True]),
    ),
    "copy.default": lambda: (normal(3, 4), normal(4)),
    "cumsum.default": lambda: (normal(3, 4), 1),
    "diagonal.default": lambda: (normal(3, 4), 1),
    "div.Scalar_mode": lambda: (normal(3, 4) * 5, 2, {"rounding_mode": "floor"}),
    "div.Tensor_mode": lambda: (normal(3, 4) * 5, reals(4), {"rounding_mode": "trunc"}),
    "embedding.default": lambda: (normal(5, 3), whole(2, 4)),
    "embedding_dense_backward.default": lambda: (normal(2, 4, 3), whole(2, 4), 5, 1, False),
    "empty.memory_format": lambda: ([3, 4],),
    "empty_strided.default": lambda: ([3, 4], [1, 3]),
    "expand.default": lambda: (normal(3, 1), [2, 3, 4]),
    "fill.Scalar": lambda: (normal(3, 4), 2.5),
    "flip.default": lambda: (normal(3, 4), [0, 1]),
    "full.default": lambda: ([3, 4], 2.5),
    "full_like.default": lambda: (normal(3, 4), 2.5),
    "gather.default": lambda: (normal(3, 4), 1, whole(3, 2, most=4)),
    "grid_sampler_2d.default": lambda: (
        normal(2, 3, 4, 5),
        reals(2, 3, 3, 2) * 2 - 1,
        *(0, 0, False),
    ),
    "index.Tensor": lambda: (normal(5, 4), [whole(3), None]),
    "index_put.default": lambda: (normal(5, 4), [whole(3)], normal(3, 4), True),
    "index_select.default": lambda: (normal(5, 4), 0, whole(3)),
    "isinf.default": lambda: (torch.tensor([1.0, float("inf"), float("nan")]),),
    "isnan.default": lambda: (torch.tensor([1.0, float("inf"), float("nan")]),),
    "masked_scatter.default": lambda: (normal(3, 4), truths(3, 4), normal(12)),
    "max.dim": lambda: (normal(3, 4), 1),
    "max_pool2d_with_indices.default": lambda: (normal(2, 3, 6, 7), [3, 2], [2, 2], [1, 1]),
    "max_pool2d_with_indices_backward.default": pool_gradient,
    "max_pool3d_with_indices.default": lambda: (normal(2, 3, 4, 4, 5), [2, 2, 2]),
    "mean.dim": lambda: (normal(3, 4), [1], True),
    "min.dim": lambda: (normal(3, 4), 0),
    "mm.default": lambda: (normal(3, 4), normal(4, 5)),
    "native_dropout.default": lambda: (normal(30, 40), 0.5, True),
    "native_group_norm.default": lambda: (normal(2, 6, 5), normal(6), normal(6), 2, 6, 5, 3, 1e-5),
    "native_group_norm_backward.default": group_norm_gradient,
    "native_layer_norm.default": lambda: (normal(2, 3, 4), [4], normal(4), normal(4), 1e-5),
    "native_layer_norm_backward.default": layer_norm_gradient,
    "nonzero.default": lambda: (truths(3, 4),),
    "permute.default": lambda: (normal(2, 3, 4), [2, 0, 1]),
    "pow.Scalar": lambda: (2, normal(3, 4)),
    "pow.Tensor_Scalar": lambda: (reals(3, 4), 1.5),
    "prod.dim_int": lambda: (normal(3, 4), 1),
    "rand.default": lambda: ([30, 40],),
    "randn.default": lambda: ([30, 40],),
    "randperm.default": lambda: (50,),
    "reflection_pad1d.default": lambda: (normal(2, 3, 5), [1, 2]),
    "reflection_pad2d.default": lambda: (normal(2, 3, 5, 4), [1, 2, 0, 3]),
    "reflection_pad3d.default": lambda: (normal(2, 3, 5, 4, 4), [1, 2, 0, 3, 2, 1]),
    "repeat.default": lambda: (normal(3, 4), [2, 1, 3]),
    "replication_pad2d.default": lambda: (normal(2, 3, 5, 4), [1, 2, 0, 3]),
    "replication_pad3d.default": lambda: (normal(2, 3, 5, 4, 4), [1, 2, 0, 3, 2, 1]),
    "resize_.default": lambda: (normal(3, 4), [2, 3]),
    "scalar_tensor.default": lambda: (2.5,),
    "scatter.src": lambda: (normal(3, 4), 0, whole(2, 4, most=1), normal(3, 4)),
    "scatter.value": lambda: (normal(3, 4), 1, whole(3, 2, most=4), 2.5),
    "scatter_add.default": lambda: (normal(3, 4), 1, whole(3, 2, most=4), normal(3, 4)),
    "scatter_reduce.two": lambda: (normal(3, 4), 1, whole(3, 4, most=4), normal(3, 4), "amax"),
    "select.int": lambda: (normal(3, 4), 1, -1),
    "select_scatter.default": lambda: (normal(3, 4), normal(3), 1, 2),
    "slice.Tensor": lambda: (normal(3, 8), 1, 1, 7, 2),
    "slice_scatter.default": lambda: (normal(3, 8), normal(3, 3), 1, 1, 7, 2),
    "sort.default": lambda: (normal(3, 4), 1, True),
    "split_with_sizes.default": lambda: (normal(3, 8), [2, 5, 1], 1),
    "squeeze.dim": lambda: (normal(3, 1, 4), 1),
    "squeeze.dims": lambda: (normal(3, 1, 4, 1), [1, 3]),
    "sub.Scalar": lambda: (normal(3, 4), 2, 3),
    "sub.Tensor": lambda: (normal(3, 4), normal(4), {"alpha": 2}),
    "sum.dim_IntList": lambda: (normal(3, 4), [0], True),
    "sym_is_contiguous.default": lambda: (normal(3, 4),),
    "sym_numel.default": lambda: (normal(3, 4),),
    "sym_size.int": lambda: (normal(3, 4), 0),
    "sym_storage_offset.default": lambda: (normal(3, 4),),
    "sym_stride.int": lambda: (normal(3, 4), 0),
    "topk.default": lambda: (normal(3, 8), 2),
    "unsqueeze.default": lambda: (normal(3, 4), 1),
    "upsample_bilinear2d.vec": lambda: (normal(2, 3, 4, 5), [7, 9], False, None),
    "upsample_nearest2d.vec": lambda: (normal(2, 3, 4, 5), None, [2.0, 1.5]),
    "var.correction": lambda: (normal(3, 4), [1], {"correction": 0}),
    "var.dim": lambda: (normal(3, 4), [1], False, True),
    "view.default": lambda: (normal(3, 4), [2, 6]),
    "where.self": lambda: (truths(3, 4), normal(3, 4), normal(4)),
}

LEFT = {"nonzero.default"}
"""What PyTorch runs: data decide the extents of the result."""
METHODS: dict[str, Callable[[Any], Any]] = {
    "sym_is_contiguous.default": lambda x: x.is_contiguous(),
    "sym_storage_offset.default": lambda x: x[x.shape[0] - 2 :].storage_offset(),
}
"""Operators that PyTorch's tracer takes under another name."""

RANDOM = {"native_dropout.default", "rand.default", "randn.default", "randperm.default"}
WITHOUT_VALUES = {"empty.memory_format", "empty_strided.default"}


def sample(name: str) -> Any:
    """Arguments for an operator; those of one or two tensors alone have the same ones."""
    made = SAMPLES.get(name)
    if made is not None:
        return made()
    arguments = [a for a in CORE[name]._schema.arguments if not a.has_default_value()]
    kinds = [str(a.type) for a in arguments]
    of = whole if name.startswith("bitwise") else truths if name.startswith("logical") else reals
    given = {"Tensor": lambda: of(3, 4), "number": lambda: 3}
    if not set(kinds) <= set(given):
        pytest.fail(f"{name} has no sample here: {CORE[name]._schema}")
    return tuple(given[kind]() for kind in kinds)


def parted(given: tuple[Any, ...]) -> tuple[list[Any], dict[str, Any]]:
    named = given[-1] if given and isinstance(given[-1], dict) else {}
    return list(given[: len(given) - bool(named)]), named


def alike(ours: Any, theirs: Any, name: str) -> None:
    """Values, or, where those are drawn or undefined, types and places in memory."""
    for x, y in zip(pytree.tree_leaves(ours), pytree.tree_leaves(theirs), strict=True):
        if not isinstance(y, torch.Tensor):
            assert x == y
            continue
        assert (x.shape, x.dtype, x.stride()) == (y.shape, y.dtype, y.stride())
        if name not in RANDOM | WITHOUT_VALUES:
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", sorted(CORE))
@torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
def test_core_operator(name: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    operator, (args, named) = CORE[name], parted(sample(name))
    leaves, shape = pytree.tree_flatten((args, named))
    writes = operator._schema.is_mutable

    def run(*leaves: Any) -> Any:
        given, options = pytree.tree_unflatten(list(leaves), shape)
        made = METHODS.get(name, operator)(*given, **options)
        if isinstance(made, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)):
            return given[0] * made  # a number is of use in a program
        written = leaves if writes else ()
        return made, [x for x in written if isinstance(x, torch.Tensor)]

    def copies() -> list[Any]:
        return [x.clone() if isinstance(x, torch.Tensor) else x for x in leaves]

    before = {(x.operator, x.reason): x.nodes for x in left_to_torch()}
    is_size = name.startswith("sym_")
    compiled = torch.compile(run, backend=backend, fullgraph=True, dynamic=is_size)
    torch.manual_seed(1)
    ours = compiled(*copies())
    alike(ours, run(*copies()), name)
    left = {(x.operator, x.reason): x.nodes for x in left_to_torch()}
    new = {k: v for k, v in left.items() if before.get(k) != v}
    assert bool(new) is (name in LEFT), new
    if name in RANDOM:
        torch.manual_seed(1)
        torch.testing.assert_close(compiled(*copies()), ours)


def test_samples_are_of_core_operators() -> None:
    assert set(SAMPLES) <= set(CORE)
    assert LEFT | RANDOM | WITHOUT_VALUES | set(METHODS) <= set(CORE)
