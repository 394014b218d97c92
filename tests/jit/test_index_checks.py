"""Indices that are out of range stop a program, wherever they come from; state is left alone."""

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
from treadle.graph.index_ranges import CheckRanges
from treadle.jit import sink
from treadle.ops.arg import Arg
from treadle.ops.check import CheckIndices
from treadle.ops.composite import Composite, expand
from treadle.ops.elementwise import Cast
from treadle.ops.gather import Take
from treadle.ops.op import REGISTRY, Op
from treadle.ops.reduce import Argmax
from treadle.ops.select import Clip
from treadle.ops.sort import Sort

INDEXED = [cls for cls in REGISTRY.values() if cls.index_ranges is not Op.index_ranges]
LEVELS = [mge.jit.Options(level=n) for n in range(4)]


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


def test_a_sink_stops_at_the_batch() -> None:
    w, step = embedding()
    other, again = embedding()
    batches = [(ids(0, 1), ids(0, 1)), (ids(0, 7), ids(0, 1)), (ids(2, 1), ids(0, 1))]
    with pytest.raises(IndexRangeError, match="index 7 is out of range"):
        list(sink(step, batches, 3))
    again(*batches[0])
    assert (w.numpy() == other.numpy()).all()


def test_state_that_an_index_is_computed_of_has_been_written() -> None:
    """What is written before the index is known stays written; all else is left alone."""
    place, table = mge.tensor(np.int32(0)), mge.tensor(np.zeros(3, "float32"))

    @mge.jit.compile
    def step() -> None:
        place[...] = place + 2
        table[...] = table + 1
        table[place] = 5.0

    step()
    with pytest.raises(IndexRangeError, match="index 4 is out of range for an extent of 3"):
        step()
    assert table.numpy().tolist() == [1.0, 1.0, 5.0]


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


Body = Callable[..., Any]
_X = np.arange(15, dtype=np.float32).reshape(5, 3)


def _set(x: mge.Tensor, i: mge.Tensor) -> mge.Tensor:
    y = x * 1
    y[i + 0] = 1.0
    return y


def _added(x: mge.Tensor, i: mge.Tensor) -> mge.Tensor:
    y = x * 1
    y[i + 1] += 1.0
    return y


def _labels(x: mge.Tensor, i: mge.Tensor) -> mge.Tensor:
    return F.loss.cross_entropy(x[: i.size], i.astype("uint8"))


def _rois(x: mge.Tensor, i: mge.Tensor) -> mge.Tensor:
    boxes = F.concat([i.reshape(-1, 1).astype("float32"), F.zeros((i.size, 4))], axis=1)
    return F.vision.roi_align(x.reshape(5, 1, 3, 1), boxes, (2, 2))


def _along(i: mge.Tensor) -> mge.Tensor:
    return F.broadcast_to((i + 1).reshape(-1, 1), (i.size, 3))


BODIES: dict[str, tuple[Body, int]] = {
    "embedding": (lambda x, i: F.nn.embedding(i + 5, x), 0),
    "one": (lambda x, i: x[i[0]], 5),
    "pair": (lambda x, i: x[i, (i + 1) % 3], 5),
    "gather": (lambda x, i: F.gather(x, 0, _along(i)), 4),
    "scatter": (lambda x, i: F.scatter(x, 0, _along(i), x[: i.size]), 4),
    "set": (_set, 5),
    "add": (_added, 4),
    "labels": (_labels, 3),
    "one_hot": (lambda x, i: F.one_hot(i + 1, 5), 4),
    "indexing_one_hot": (lambda x, i: F.indexing_one_hot(x[: i.size], i), 3),
    "roi_align": (_rois, 5),
    "taken": (lambda x, i: F.nn.embedding(F.nn.embedding(i, i), x), 5),
    "in a branch": (lambda x, i: mge.jit.cond(x.sum() > 0, lambda: x[i + 1], lambda: x[i]), 4),
}
"""Programs over x [5,3] and i [n], and the first index that is out of range."""


@pytest.mark.parametrize("name", BODIES)
def test_computed_indices(name: str) -> None:
    """Eager and compiled at every level, the same indices are refused."""
    body, first = BODIES[name]
    x = mge.tensor(_X)
    for run in (body, *(mge.jit.compile(body, options=o) for o in LEVELS)):
        for bad in (first, first + 1000, 2**31 - 9):
            with pytest.raises(IndexRangeError, match=r"out of|none of"):
                run(x, ids(bad, 0)).numpy()
        if name != "embedding":
            run(x, ids(0, 1)).numpy()


@pytest.mark.parametrize("options", LEVELS, ids=lambda o: str(o.level))
def test_an_axis_without_elements_is_not_read(options: Any) -> None:
    """With 65,536 columns this read the process, with more it crashed."""
    empty, along = mge.tensor(np.zeros((0, 1 << 20), "float32")), np.zeros((1, 1 << 20), np.int32)
    for body in (
        lambda x, i: F.nn.embedding(i + 5, x),
        lambda x, i: F.gather(x, 0, mge.tensor(along) + i[:1]),
        lambda x, i: x[i + 5].sum(),
    ):
        pick = mge.jit.compile(body, options=options)
        with pytest.raises(IndexRangeError, match=r"extent (of )?0"):
            pick(empty, ids(1, 2))


def test_many_indices_are_looked_at_by_threads() -> None:
    table = mge.tensor(np.arange(7.0, dtype=np.float32))
    pick = mge.jit.compile(lambda x, i: x[i - 1])
    numbers = np.ones(1 << 17, np.int64)
    assert pick(table, mge.tensor(numbers)).sum().item() == 0
    for at in (0, 4095, 70_001, numbers.size - 1):
        bad = numbers.copy()
        bad[at] = -7
        with pytest.raises(IndexRangeError, match="index -8 is out of range for an extent of 7"):
            pick(table, mge.tensor(bad))


def test_a_constant_index_is_refused_when_it_is_compiled() -> None:
    wrong = mge.jit.compile(lambda x: x[mge.tensor(np.array([0, 9], "int32"))])
    with pytest.raises(IndexRangeError, match="index 9 is out of range for an extent of 5"):
        wrong(mge.tensor(_X))


def checks(body: Callable[..., Any], dtype: Any = dt.int32) -> int:
    types = [TensorType(dtype, (2, 3)), TensorType(dt.float32, (4,))]
    nodes = CheckRanges()(trace_body(body, types)).nodes
    return sum(isinstance(n.op, CheckIndices) for n in nodes)


def test_what_is_looked_through() -> None:
    assert checks(lambda i, x: Take(0)(x, i)) == 1
    assert checks(lambda i, x: Take(0)(x, i.reshape((6,)).broadcast_to((2, 6)))) == 1
    assert checks(lambda i, x: Take(0)(x, i) + Take(0)(x, Cast(dt.int64)(i))) == 1
    assert checks(lambda i, x: Take(0)(x, i + i)) == 1
    assert checks(lambda i, x: Take(0)(x, i) + Take(0)(x, Cast(dt.int32)(i)), dt.int64) == 2


def test_what_is_known_to_be_inside_is_not_checked() -> None:
    assert checks(lambda i, x: Take(0)(x, Clip(0, 3)(i))) == 0
    assert checks(lambda i, x: Take(0)(x, Clip(0, 3)(i) + 1)) == 1
    assert checks(lambda i, x: Take(0)(x, i % 4)) == 0
    assert checks(lambda i, x: Take(0)(x, Argmax(1)(i))) == 0
    assert checks(lambda i, x: Take(0)(x, Sort(1).outputs(i)[1] * 2 - 1)) == 0
    assert checks(lambda i, x: Take(0)(x, x.constant(np.array([3, -4], np.int32)))) == 0


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


COMPOSITES = [cls for cls in REGISTRY.values() if issubclass(cls, Composite)]


@pytest.mark.parametrize("cls", COMPOSITES, ids=lambda cls: cls.name)
def test_composites_declare_the_indices_inside(cls: type[Op]) -> None:
    """Checks are made before composites are taken apart: what is inside was checked outside."""
    if cls.index_ranges is not Op.index_ranges:
        return
    for sample in cls.samples():
        arrays = operands(sample.args, sample.element_types()[0])
        types = [TensorType(dt.as_dtype(a.dtype), a.shape) for a in arrays]
        body = trace_body(lambda *xs, op=sample.op: expand(op, xs), types)
        found = [n.op for n in CheckRanges()(body).nodes if isinstance(n.op, CheckIndices)]
        assert not found, sample.op


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_kernels_of_single_ops_are_guarded(dtype: str) -> None:
    """Eager calls that are large enough for generated code refuse what the oracle refuses."""
    scores, labels = mge.tensor(np.zeros((4096, 4), "float32")), np.zeros(4096, dtype)
    labels[17] = 9
    with pytest.raises(IndexRangeError, match="index 9 is out of range for an extent of 4"):
        F.loss.cross_entropy(scores, mge.tensor(labels, dtype=dtype))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x[i],
        lambda x, i: F.nn.embedding(i, x),
        lambda x, i: F.gather(x, 0, F.broadcast_to(i.reshape(-1, 1), (2, 3))),
        lambda x, i: F.loss.cross_entropy(x[:2], i),
    ],
)
def test_large_unsigned_indices_do_not_count_from_the_end(
    function: Callable[..., Any], dtype: str, compiled: bool
) -> None:
    run = mge.jit.compile(function) if compiled else function
    x = mge.tensor(np.arange(12.0, dtype="float32").reshape(4, 3))
    run(x, mge.tensor(np.array([0, 1], dtype), dtype=dtype))
    index = np.array([0, np.iinfo(dtype).max - 1], dtype)  # -2 of the same width
    found = 2**32 - 2 if dtype == "uint32" else 2**63 - 1
    with pytest.raises(IndexRangeError, match=f" {found} is "):
        run(x, mge.tensor(index, dtype=dtype))


def test_constant_indices_of_uint64_do_not_count_from_the_end() -> None:
    with pytest.raises(IndexRangeError, match="out of range"):
        F.ones(3)[np.array([2**64 - 2], "uint64")]
