"""Indices that are out of range: refused before the program runs, with what eager calls say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.base import dtype as dt
from treadle.base.errors import IndexRangeError
from treadle.base.types import TensorType
from treadle.graph.builder import trace_body
from treadle.jit import sink
from treadle.jit.index_checks import index_checks
from treadle.ops.elementwise import Cast
from treadle.ops.gather import Take
from treadle.ops.op import REGISTRY, Op
from treadle.ops.sample import Arg

INDEXED = [cls for cls in REGISTRY.values() if cls.index_ranges is not Op.index_ranges]


@pytest.fixture(autouse=True)
def compiler() -> None:
    """Programs of this module are native: the oracles would refuse such indices themselves."""


def operands(args: tuple[Arg, ...], dtype: dt.DType) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [a.make(dtype, rng) for a in args]


def ids(*values: int) -> mge.Tensor:
    return mge.tensor(np.array(values, np.int32))


def embedding() -> tuple[mge.Parameter, Any]:
    w = mge.Parameter(np.arange(12.0, dtype="float32").reshape(4, 3))
    gm, opt = mge.autodiff.GradManager().attach(w), mge.optimizer.SGD([w], lr=1.0)

    @mge.jit.compile
    def step(tokens: mge.Tensor, labels: mge.Tensor) -> mge.Tensor:
        with gm:
            loss = F.loss.cross_entropy(w[tokens.reshape(-1)], labels)
            gm.backward(loss)
        opt.step().clear_grad()
        return loss

    return w, step


def test_state_is_left_alone() -> None:
    w, step = embedding()
    step(ids(0, -4), ids(2, 0))
    before = w.numpy().copy()
    for tokens, labels, op in (
        (ids(0, 4), ids(0, 0), "take|index"),
        (ids(-5, 0), ids(0, 0), "take|index"),
        (ids(0, 1), ids(0, 3), "softmax_cross_entropy"),
        (ids(0, 1), ids(-1, 0), "softmax_cross_entropy"),
    ):
        with pytest.raises(IndexRangeError, match=op) as error:
            step(tokens, labels)
        assert "test_index_checks.py" in str(error.value.at)
    assert (w.numpy() == before).all()


def test_every_batch_of_a_sink_is_checked_first() -> None:
    w, step = embedding()
    before = w.numpy().copy()
    batches = [(ids(0, 1), ids(0, 1)), (ids(0, 7), ids(0, 1))]
    with pytest.raises(IndexRangeError, match="index 7 is out of range"):
        list(sink(step, batches, 2))
    assert (w.numpy() == before).all()


def test_a_recorded_call_is_checked() -> None:
    w = mge.Parameter(np.ones((4, 3), "float32"))
    pick = mge.jit.compile(lambda i: w[i].sum())
    manager = mge.autodiff.GradManager().attach(w)
    with manager:
        manager.backward(pick(ids(1)))
        with pytest.raises(IndexRangeError, match="index 9 is out of range"):
            pick(ids(9))


@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_few_indices_and_many(count: int) -> None:
    w = mge.tensor(np.ones((4, 3), "float32"))
    pick = mge.jit.compile(lambda i: w[i])
    good = np.full(count, 3, np.int32)
    assert pick(mge.tensor(good)).shape == (count, 3)
    for i in range(count)[:2]:
        for wrong in (4, -5):
            bad = good.copy()
            bad[i] = wrong
            with pytest.raises(IndexRangeError, match=f"index {wrong} is"):
                pick(mge.tensor(bad))


@pytest.mark.parametrize("dtype", ["int16", "int32", "int64"])
def test_labels_of_all_widths(dtype: str) -> None:
    loss = mge.jit.compile(lambda x, y: F.loss.cross_entropy(x, y.astype("int64")))
    logits = mge.tensor(np.zeros((40, 300), "float32"))
    good = np.full(40, 299)
    assert loss(logits, mge.tensor(good, dtype=dtype)).item() == pytest.approx(np.log(300))
    for wrong in (300, -1):
        bad = good.copy()
        bad[7] = wrong
        with pytest.raises(IndexRangeError, match=f"index {wrong} is"):
            loss(logits, mge.tensor(bad, dtype=dtype))


def checks(body: Callable[..., Any], dtype: Any = dt.int32) -> int:
    types = [TensorType(dtype, (2, 3)), TensorType(dt.float32, (4,))]
    return len(index_checks(trace_body(body, types), 1))


def test_what_is_looked_through() -> None:
    assert checks(lambda i, x: Take(0)(x, i)) == 1
    assert checks(lambda i, x: Take(0)(x, i.reshape((6,)).broadcast_to((2, 6)))) == 1
    assert checks(lambda i, x: Take(0)(x, Cast(dt.int64)(i))) == 1
    assert checks(lambda i, x: Take(0)(x, i) + Take(0)(x, i)) == 1
    # Numbers that the program makes, and narrowed ones, are not those of the argument.
    assert checks(lambda i, x: Take(0)(x, i + i)) == 0
    assert checks(lambda i, x: Take(0)(x, Cast(dt.int32)(i)), dt.int64) == 0


@pytest.mark.parametrize("cls", INDEXED, ids=lambda cls: cls.name)
def test_ranges_are_those_of_the_oracle(cls: type[Op]) -> None:
    """Samples are inside; what the oracle refuses for its range is outside."""

    def inside(op: Op, arrays: list[np.ndarray[Any, Any]]) -> bool:
        types = tuple(TensorType(dt.as_dtype(a.dtype), a.shape) for a in arrays)
        ranges = op.index_ranges(types)
        return all(((arrays[k] >= low) & (arrays[k] < high)).all() for k, low, high in ranges)

    for sample in cls.samples():
        assert inside(
            sample.op,
            operands(sample.args, sample.element_types()[0] if sample.dtypes else cls.dtypes[-1]),
        )
    refused = [s for s in cls.bad_samples() if s.error is IndexRangeError]
    assert refused
    for bad in refused:
        assert not inside(bad.make(), operands(bad.args, bad.dtype))
