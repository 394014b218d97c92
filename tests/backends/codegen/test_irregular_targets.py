"""Irregular ops on other targets than the host's best: narrow vectors run, the others compile."""

from __future__ import annotations

import pytest
from tests.backends.codegen.execution import object_code
from tests.backends.codegen.irregular import against_reference, lowered, samples

from treadle.backends.codegen.target import AVX512, GENERIC, NEON, Target
from treadle.base import dtype as dt
from treadle.ops import REGISTRY

OPS = [
    "take",
    "index",
    "index_add",
    "index_update",
    "take_along_axis",
    "add_along_axis",
    "scatter_along_axis",
    "concat",
    "slice_update",
    "argmax",
    "cum_sum",
    "linear_recurrence",
    "sort",
    "top_k",
    "random_bits",
    "random_uniform",
    "random_normal",
    "random_permutation",
    "max_pool",
    "max_pool_grad",
    "max_pool_gather",
    "avg_pool",
    "avg_pool_grad",
    "adaptive_avg_pool",
    "adaptive_max_pool",
    "sliding_window",
    "sliding_window_transpose",
    "resize",
    "resize_grad",
    "remap",
    "remap_grad",
    "region_mean",
]
KINDS = (dt.float32, dt.uint32)


@pytest.mark.parametrize("name", OPS)
def test_narrow_vectors(name: str) -> None:
    op, arrays = samples(REGISTRY[name], KINDS)[0]
    against_reference(op, arrays, exact=False, target=GENERIC)


@pytest.mark.parametrize("target", [AVX512, NEON], ids=lambda t: t.name)
def test_other_targets_compile(target: Target) -> None:
    kernels = []
    for name in OPS:
        for op, arrays in samples(REGISTRY[name], KINDS):
            kernels += [launch.kernel for launch in lowered(op, arrays, target).launches]
    assert object_code(list(dict.fromkeys(kernels)), target)
