"""Collectives in groups of several processes: types, duals, and the refusal to run alone."""

import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.base.errors import NoGradient, UnsupportedOp
from treadle.base.types import TensorType
from treadle.ops import collective as co
from treadle.ops.abstract import TypeOperand
from treadle.ops.op import Pullback

X = TensorType(dt.float32, (8, 3))

SHAPES = [
    (co.AllReduce(world=4), (8, 3)),
    (co.AllGather(world=4, axis=1), (8, 12)),
    (co.ReduceScatter(world=4), (2, 3)),
    (co.BroadcastRank(world=4, root=3), (8, 3)),
    (co.ReduceTo(world=4, root=2), (8, 3)),
    (co.GatherTo(world=4, root=1), (32, 3)),
    (co.ScatterFrom(world=4, root=1), (2, 3)),
    (co.AllToAll(world=4, split_axis=0, concat_axis=1), (2, 12)),
    (co.Send(world=4, dest=2), (0,)),
]
each = pytest.mark.parametrize(("op", "shape"), SHAPES, ids=[o.name for o, _ in SHAPES])


@each
def test_result_shapes(op: co.Collective, shape: tuple[int, ...]) -> None:
    assert op.infer(X) == (TensorType(dt.float32, shape),)


@each
def test_the_dual_leads_back_to_the_operand(op: co.Collective, shape: tuple[int, ...]) -> None:
    x, y = TypeOperand(X), TypeOperand(TensorType(dt.float32, shape))
    (dx,) = op.vjp(Pullback((y,), (x,), (y,), (True,)))
    assert dx is not None and dx.type == X


@each
def test_a_larger_group_needs_its_processes(op: co.Collective, shape: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedOp, match="needs the 4 processes of the group 'world'") as caught:
        op.reference(np.zeros((8, 3), np.float32))
    assert "distributed.launcher" in caught.value.hint


@pytest.mark.parametrize(
    ("op", "dual"),
    [
        (co.AllReduce("g", 4), co.AllReduce("g", 4)),
        (co.AllReduce("g", 4, "mean"), co.AllReduce("g", 4, "mean")),
        (co.AllGather("g", 4, 1), co.ReduceScatter("g", 4, 1)),
        (co.GatherTo("g", 4, 2, 1), co.ScatterFrom("g", 4, 2, 1)),
        (co.BroadcastRank("g", 4, 2), co.ReduceTo("g", 4, 2)),
        (co.AllToAll("g", 4, 0, 1), co.AllToAll("g", 4, 1, 0)),
        (co.Send("g", 4, 2), co.Recv("g", 4, 2, (8, 4), dt.float32)),
        (co.Recv("g", 4, 1, (8, 4)), co.Send("g", 4, 1)),
    ],
    ids=lambda op: op.name,
)
def test_duals_keep_group_rank_and_axes(op: co.Collective, dual: co.Collective) -> None:
    applied: list[object] = []

    class Noting(TypeOperand):
        def apply(self, op, inputs):  # type: ignore[no-untyped-def]
            applied.append(op)
            return super().apply(op, inputs)

    token = TensorType(dt.float32, (0,))
    x = Noting(token if isinstance(op, co.Recv) else TensorType(dt.float32, (8, 4)))
    y = Noting(op.infer(x.type)[0])
    op.vjp(Pullback((y,), (x,), (y,), (True,)))
    assert applied == [dual]


def test_extremes_have_no_gradient() -> None:
    x = TypeOperand(X)
    with pytest.raises(NoGradient, match="the max over processes"):
        co.AllReduce(kind="max").vjp(Pullback((x,), (x,), (x,), (True,)))
