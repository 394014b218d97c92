"""Attention with movement around it, as one kernel: heads split from a packed projection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.backends.codegen.irregular import Runner, interpreted, run
from tests.backends.codegen.test_attention_kernels import close, normal

from treadle.backends.api import Support
from treadle.backends.codegen.attention.lower_attention import lower_body
from treadle.backends.codegen.target import AVX2
from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.types import TensorType
from treadle.graph.builder import trace_body
from treadle.ops.attention import Attention, AttentionGrad
from treadle.ops.fused import Fused
from treadle.ops.movement import Broadcast, Concat, Flip
from treadle.ops.slicing import Slice

Body = Callable[..., Any]


def heads(x: Any, count: int) -> Any:
    """[B, T, H * D] to [B, H, T, D]."""
    b, t, width = x.shape
    return x.reshape((b, t, count, width // count)).transpose((0, 2, 1, 3))


def merged(x: Any) -> Any:
    """[B, H, T, D] to [B, T, H * D]."""
    b, h, t, d = x.shape
    return x.transpose((0, 2, 1, 3)).reshape((b, t, h * d))


def columns(x: Any, part: int, parts: int) -> Any:
    """One of several equal ranges of the last axis."""
    *lead, width = x.shape
    starts = (*(0 for _ in lead), part * width // parts)
    stops = (*lead, (part + 1) * width // parts)
    return Slice(starts, stops, (1,) * len(stops))(x)


def fused(body: Body, arrays: Sequence[Array]) -> Fused:
    types = [TensorType(dt.float32, a.shape) for a in arrays]
    return Fused("attention", trace_body(body, types))


def agrees(body: Body, arrays: Sequence[Array], runner: Runner | None = None) -> None:
    op = fused(body, arrays)
    close(run(op, arrays, runner, target=AVX2), op.reference(*arrays))


def packed(qkv: Any) -> Any:
    q, k, v = (heads(columns(qkv, i, 3), 3) for i in range(3))
    return merged(Attention(True)(q, k, v))


def packed_gradient(qkv: Any, dy: Any) -> Any:
    q, k, v = (heads(columns(qkv, i, 3), 3) for i in range(3))
    found = AttentionGrad(True).outputs(q, k, v, heads(dy, 3))
    return tuple(merged(x) for x in found)


def joined_gradient(qkv: Any, dy: Any) -> Any:
    dq, dk, dv = packed_gradient(qkv, dy)
    return dq.apply(Concat(-1), (dq, dk, dv))[0]


@pytest.mark.parametrize("extent", [(2, 5, 4), (2, 70, 32), (1, 1, 16)], ids=str)
def test_heads_of_a_packed_projection(extent: tuple[int, int, int]) -> None:
    b, t, d = extent
    qkv, dy = normal(b, t, 9 * d), normal(b, t, 3 * d)
    runner = interpreted if t == 5 else None
    agrees(packed, [qkv], runner)
    agrees(packed_gradient, [qkv, dy], runner)
    agrees(joined_gradient, [qkv, dy], runner)


@pytest.mark.parametrize("flip", [False, True])
def test_operands_and_result_of_any_strides(flip: bool) -> None:
    """Transposed and flipped operands; the result's columns are not adjacent."""

    def body(q: Any, k: Any, v: Any) -> Any:
        keys = Flip((1,))(k) if flip else k
        y = Attention()(q.transpose((0, 2, 1)), keys, v.transpose((2, 0, 1)))
        return y.transpose((2, 0, 1))

    for queries in (7, 1):
        arrays = [normal(2, 8, queries), normal(2, 19, 8), normal(19, 5, 2)]
        agrees(body, arrays)
        if not flip:  # The interpreter is given memory from an operand's first element on.
            agrees(body, arrays, interpreted)


def test_a_gradient_of_any_strides() -> None:
    def body(q: Any, k: Any, v: Any, dy: Any) -> Any:
        turn = (0, 2, 1)
        found = AttentionGrad()
        dq, dk, dv = found.outputs(q.transpose(turn), k.transpose(turn), v, dy)
        return dv.transpose(turn), dk.transpose(turn), dq

    agrees(body, [normal(2, 8, 7), normal(2, 8, 19), normal(2, 19, 5), normal(2, 7, 5)])


def test_heads_that_share_keys() -> None:
    """Grouped queries: k and v are repeated by strides of 0, also for the gradient."""

    def repeated(x: Any) -> Any:
        b, h, s, d = x.shape
        return Broadcast((b, h, 2, s, d))(x.reshape((b, h, 1, s, d)))

    def body(q: Any, k: Any, v: Any, dy: Any) -> Any:
        b, h, t, d = q.shape
        split = (b, h // 2, 2, t, d)
        inputs = (q.reshape(split), repeated(k), repeated(v), dy.reshape(split))
        return AttentionGrad().outputs(*inputs)[0].reshape(q.shape)

    q, k, v, dy = normal(2, 4, 9, 8), normal(2, 2, 9, 8), normal(2, 2, 9, 8), normal(2, 4, 9, 8)
    agrees(body, [q, k, v, dy], interpreted)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1), (1, 2), (2, 0)], ids=str)
def test_some_of_the_gradients(wanted: tuple[int, ...]) -> None:
    def body(*inputs: Any) -> Any:
        found = AttentionGrad().outputs(*inputs)
        return tuple(found[i] for i in wanted)

    agrees(body, [normal(2, 9, 8) for _ in range(4)], interpreted)


def test_a_mask_that_moves() -> None:
    def body(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return Attention()(q, k, v, mask.transpose((1, 0)))

    agrees(body, [normal(2, 9, 8), normal(2, 20, 8), normal(2, 20, 3), normal(20, 9)])


def test_bodies_that_need_more_are_refused() -> None:
    def refusal(body: Body, shapes: Sequence[tuple[int, ...]]) -> str:
        types = tuple(TensorType(dt.float32, s) for s in shapes)
        found = lower_body(trace_body(body, types), types, (False,) * len(types), AVX2)
        assert isinstance(found, Support)
        return found.message

    x = (2, 9, 8)
    assert "not a strided view of an input" in refusal(lambda q: Attention()(q + q, q, q), [x])
    assert "not a strided view of a result" in refusal(lambda q: -Attention()(q, q, q), [x])
    assert "holds 0 attentions" in refusal(lambda q: q, [x])

    def twice(q: Any) -> Any:
        y = Attention()(q, q, q)
        return y, y

    assert "in two places" in refusal(twice, [x])

    def beside(q: Any) -> Any:
        return q.apply(Concat(0), (Attention()(q, q, q), q))[0]

    assert "not a strided view of a result" in refusal(beside, [x])


def test_nothing_is_copied() -> None:
    """One launch, no scratch outside the kernel."""
    qkv = normal(2, 70, 72)
    op = fused(packed, [qkv])
    found = lower_body(op.body, op.body.input_types, (False,), AVX2)  # type: ignore[arg-type]
    assert not isinstance(found, Support)
    assert len(found.launches) == 1 and not found.workspaces
    assert np.prod([2, 3]) <= found.launches[0].items
