"""`partial_trace` and `xla_trace`: a part of a step, differentiated as a part; settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.autodiff import GradManager

X = np.array([[0.5, -1.0]], np.float32)


@pytest.mark.parametrize("door", [jit.partial_trace, jit.xla_trace])
def test_a_traced_part_is_differentiated_like_any_op(door: Any) -> None:
    w = mge.Parameter([[1.0], [2.0]])
    calls = []

    def part(x: mge.Tensor) -> mge.Tensor:
        calls.append(x)
        return F.tanh(x) @ w

    traced = door(part)
    x = mge.tensor(X)
    for _ in range(3):
        w.grad = x.grad = None
        with GradManager().attach([w, x]) as gm:
            y = traced(x * 2).sum()
            gm.backward(y * 3)
    assert y.item() == pytest.approx(float((np.tanh(2 * X) @ w.numpy()).item()), rel=1e-5)
    np.testing.assert_allclose(w.grad.numpy(), 3 * np.tanh(2 * X).T, 1e-5)
    slope = 6 * (1 - np.tanh(2 * X) ** 2) * w.numpy().T
    np.testing.assert_allclose(x.grad.numpy(), slope, 1e-4)
    assert len(calls) < 3, "the body does not run at every call"


def test_options_are_checked_and_decorators_made() -> None:
    @jit.partial_trace(without_host=True, opt_level=1)
    def twice(x: mge.Tensor) -> mge.Tensor:
        return x * 2

    assert twice(mge.tensor([1.0])).tolist() == [2.0]
    with pytest.raises(ValueError, match="neither 'default' nor 'xla'"):
        jit.partial_trace(lambda x: x, backend="other")
    with pytest.raises(TypeError, match="unknown option 'fast'"):
        jit.partial_trace(lambda x: x, fast=True)
    config = jit.GraphOptimizationConfig()
    config.jit_fuse_reduce = None
    traced = jit.trace(lambda x: x + 1, graph_opt_config=config)
    assert traced(mge.tensor([1.0])).tolist() == [2.0] and config.jit_fuse_dimshuffle is False


def test_fusions_are_left_out_where_the_setting_says_so() -> None:
    x = mge.tensor(np.arange(12, dtype="float32").reshape(3, 4))

    def body(x: mge.Tensor) -> tuple[mge.Tensor, mge.Tensor]:
        return F.sum(F.exp(x) * 2, axis=1) + 1, F.relu(x).transpose(1, 0) * 3

    def alone(**given: bool | None) -> set[str]:
        config = jit.GraphOptimizationConfig(**given) if given else None
        traced = jit.trace(body, symbolic=True, graph_opt_config=config)
        for got, wanted in zip(traced(x), body(x), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-6)
        ((variant,),) = traced._variants.values()
        return {n.op.name for n in variant.stages.lowered.graph.nodes} - {"fused"}

    assert alone() == set() == alone(jit_fuse_dimshuffle=True, jit_fuse_reduce=None)
    assert alone(jit_fuse_dimshuffle=False) == {"transpose", "sum"}
    assert alone(jit_fuse_dimshuffle=None, jit_fuse_reduce=False) == {"sum"}
    assert alone(jit_fuse_dimshuffle=False, jit_fuse_reduce=True) == {"transpose"}
