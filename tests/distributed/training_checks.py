"""Training in a group of processes gives what one process gives at the same global batch."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import treadle as mge
import treadle.distributed as dist
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import Function
from treadle.base.errors import CheckpointError, ShapeError
from treadle.data import RandomSampler, SequentialSampler
from treadle.distributed import gradients, helper
from treadle.engine.options import Options
from treadle.jit import compile as compiled
from treadle.module import Module
from treadle.module.parallel import ColumnParallelLinear, RowParallelLinear
from treadle.module.pipeline import Pipeline
from treadle.optimizer import LAMB, SGD, Adam, ShardedOptimizer
from treadle.quantization import SyncMinMaxObserver
from treadle.runtime.comm import buckets
from treadle.serialization import Part, load_sharded, save_sharded
from treadle.tensor import Parameter, Tensor
from treadle.utils.profiler import Profiler, merge_trace_events

BATCH = 6
STEPS = 4


def data() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Global batches [STEPS, BATCH, 5] and targets [STEPS, BATCH, 3], the same on every rank."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(STEPS, BATCH, 5)).astype(np.float32)
    return x, rng.normal(size=(STEPS, BATCH, 3)).astype(np.float32)


def shard(x: np.ndarray[Any, Any]) -> Tensor:
    """This rank's part of a global batch."""
    return mge.tensor(np.split(x, dist.get_world_size())[dist.get_rank()])


def ways() -> tuple[bool, ...]:
    """Op by op and compiled; compiling takes a while, and two ranks are enough for it."""
    return (False, True) if dist.get_world_size() == 2 else (False,)


def network(seed: int) -> Module:
    rng = np.random.default_rng(seed)
    net = M.Sequential(M.Linear(5, 8), M.ReLU(), M.Linear(8, 3))
    for p in net.parameters():
        p._reset(mge.tensor(rng.normal(size=p.shape).astype(np.float32) * 0.3))
    return net


def losses(
    net: Module,
    *,
    alone: bool,
    compiling: bool = False,
    make: Callable[[Any], Any] = lambda params: SGD(params, lr=0.1, momentum=0.9),
    sums: bool = True,
) -> list[float]:
    """The loss of the global batch at every step; `sums` has a callback sum gradients."""
    parameters = list(net.parameters())
    callbacks = None if alone or not sums else [dist.make_allreduce_cb("mean")]
    gm = mge.autodiff.GradManager().attach(parameters, callbacks)
    optimizer = make(parameters)

    def step(x: Tensor, t: Tensor) -> Tensor:
        with gm:
            loss = F.nn.square_loss(net(x), t)
            gm.backward(loss)
        optimizer.step()
        optimizer.clear_grad()
        return loss if alone else F.distributed.all_reduce_sum(loss) / dist.get_world_size()

    run = compiled(step) if compiling else step
    x, t = data()
    cut = mge.tensor if alone else shard
    return [float(run(cut(a), cut(b))) for a, b in zip(x, t, strict=True)]


def check_the_loss_curve_is_that_of_one_process() -> None:
    wanted = losses(network(1), alone=True)
    for compiling in ways():
        net = network(1 if dist.get_rank() == 0 else 2)
        dist.bcast_list_(list(net.parameters()))
        np.testing.assert_allclose(losses(net, alone=False, compiling=compiling), wanted, rtol=1e-5)


def check_sharded_optimizers_are_those_of_one_process() -> None:
    wanted_net = network(1)
    wanted = losses(wanted_net, alone=True, make=lambda p: Adam(p, lr=0.05))
    made: list[ShardedOptimizer] = []

    def make(params: Any) -> Any:
        made.append(ShardedOptimizer(params, lambda groups: Adam(groups, lr=0.05)))
        return made[-1]

    for compiling in ways():
        net = network(1)
        got = losses(net, alone=False, compiling=compiling, make=make, sums=False)
        np.testing.assert_allclose(got, wanted, rtol=1e-4)
        for ours, theirs in zip(net.parameters(), wanted_net.parameters(), strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-6)
        state = made[-1].state_dict()
        size = sum(p.size for p in net.parameters())
        assert state["state"][0]["exp_avg"].shape == (size,)
        held = made[-1].inner.state_dict()["state"][0]["exp_avg"]
        assert held.size == -(-size // dist.get_world_size())
        for p in net.parameters():  # Others set parameters, too, when they read a checkpoint.
            p._reset(mge.tensor(np.full(p.shape, 2.0, np.float32)))
            p.grad = mge.tensor(np.zeros(p.shape, np.float32))
        made[-1].step().clear_grad()
        assert all(np.abs(p.numpy() - 2.0).max() < 0.2 for p in net.parameters())
        other = ShardedOptimizer(net.parameters(), lambda groups: Adam(groups, lr=1.0))
        other.load_state_dict(state)
        assert other.param_groups[0]["lr"] == 0.05
        np.testing.assert_array_equal(other.inner.state_dict()["state"][0]["exp_avg"], held)
    other.clear_grad()
    with pytest.raises(ShapeError, match="other parameters"):
        other.load_state_dict({**state, "state": {0: {"exp_avg": np.zeros(3, np.float32)}}})
    with pytest.raises(ValueError, match="LAMB"):
        ShardedOptimizer(net.parameters(), lambda groups: LAMB(groups, lr=0.1))
    with pytest.raises(ValueError, match="'mean' or 'sum'"):
        ShardedOptimizer(net.parameters(), lambda g: SGD(g, lr=0.1), reduce_method="max")


def check_gradients_meet_in_buckets() -> None:
    """One bucket and several, two dtypes, a sum."""
    n, r = dist.get_world_size(), dist.get_rank()
    half = Parameter(np.ones(3), dtype="float16")
    large = [Parameter(np.ones((50, 20), np.float32)) for _ in range(5)]
    for most in (gradients._MOST, 8_000):  # bytes: all of them, and two
        callback = dist.make_allreduce_cb("SUM", dist.WORLD, backend="mpi")
        gm = mge.autodiff.GradManager()
        gm.attach([*large, half], [callback])
        for p in (*large, half):
            p.grad = None
        with patch.object(gradients, "_MOST", most), gm:
            loss = sum((p * (r + 1)).sum() for p in large) + (half * (r + 1)).sum()
            gm.backward(loss)
        for p in (*large, half):
            assert p.grad.dtype == p.dtype and p.grad.shape == p.shape
            np.testing.assert_array_equal(p.grad.numpy(), n * (n + 1) / 2)
    with pytest.raises(AssertionError, match="'sum' or 'mean'"):
        dist.make_allreduce_cb("median")
    with pytest.raises(ValueError, match="backend must be"):
        dist.make_allreduce_cb("sum", backend="smoke")
    made = helper.pack_allreduce_split(
        [mge.tensor([1.0 + r]), mge.tensor([[2.0, 4.0]])], [(1,), (1, 2)], dist.WORLD, "mean"
    )
    assert [m.tolist() for m in made] == [[(n + 1) / 2], [[2.0, 4.0]]]


def check_reductions_begin_while_backward_goes_on() -> None:
    happened: list[str] = []

    class Noting(Function):
        def forward(self, x: Tensor) -> Tensor:
            return x + 0

        def backward(self, dy: Tensor) -> Tensor:
            happened.append("below")
            return dy

    start = gradients._Bucket.start

    def noted(bucket: Any) -> None:
        happened.append("start")
        start(bucket)

    first, second = Parameter(np.ones(4, np.float32)), Parameter(np.ones(4, np.float32))
    gm = mge.autodiff.GradManager().attach([first, second], dist.make_allreduce_cb("sum"))
    with (
        patch.object(gradients._Bucket, "start", noted),
        patch.object(buckets, "plan", lambda *_: (1, 1)),
    ):
        for _ in range(2):
            happened.append("step")
            first.grad = second.grad = None
            with gm:
                gm.backward((Noting()(first * 2) * second).sum())
            n = dist.get_world_size()
            assert first.grad.tolist() == second.grad.tolist() == [2.0 * n] * 4
    # The first time in one bucket; then the last layer's while the first one is differentiated.
    assert happened == ["step", "below", "start", "step", "start", "below", "start"]


def check_gradients_travel_as_they_are_named() -> None:
    """Eager and compiled: one message for each name and dtype, none with others in it."""
    n, r = dist.get_world_size(), dist.get_rank()
    params = [Parameter(np.ones((2, 3), np.float32), name=f"p{i}") for i in range(6)]
    half = Parameter(np.ones(4), dtype="float16", name="p6")
    names = {"p1": "head", "p4": "head", "p6": "head", "p2": "tail", "p3": "tail"}
    every = [*params, half]
    sent: list[str] = []
    start = gradients._Bucket.start

    def noted(bucket: Any) -> None:
        sent.append(" ".join([bucket._name, *sorted(str(g.size) for g in bucket._grads)]))
        start(bucket)

    def step_of(**given: Any) -> Callable[[Tensor], None]:
        callback = dist.make_allreduce_cb("sum", bucket_of=lambda p: names.get(p.name, ""), **given)
        gm = mge.autodiff.GradManager().attach(every, callback)

        def step(x: Tensor) -> None:
            with gm:
                loss = sum((p * x * k).sum() for k, p in enumerate(params, 1))
                gm.backward(loss + (half * x.astype("float16")).sum())

        return step

    def run(step: Callable[[Tensor], None]) -> list[str]:
        for p in every:
            p.grad = None
        sent.clear()
        step(mge.tensor(r + 1.0))
        for k, p in zip((*range(1, 7), 1), every, strict=True):
            np.testing.assert_array_equal(p.grad.numpy(), k * n * (n + 1) / 2)
        return sorted(sent)

    with patch.object(gradients._Bucket, "start", noted):
        for how, rest in (("auto", [" 6 6"]), ("off", [" 6", " 6"]), ((0.5, 0.5), [" 6", " 6"])):
            step = step_of(reductions=how)
            first, then = run(step), run(step)
            assert run(step) == then  # each begins now when its last gradient is there
            if how != "auto":
                assert then == sorted([*rest, "head 4", "head 6 6", "tail 6 6"])
            assert first[-3:] == ["head 4", "head 6 6", "tail 6 6"]
    if n == 2:
        captured = compiled(options=Options(reductions=1))(step_of())
        stages = captured.lower(mge.tensor(r + 1.0))
        found = [node.op.count for node in stages.prepared.nodes if "bucket" in node.op.name]
        assert sorted(found) == [1, 1, 1, 2, 2]
        run(captured)
        other = mge.autodiff.GradManager()
        other.attach(params, dist.make_allreduce_cb("sum", bucket_of=lambda p: f"of {r}"))
        with pytest.raises(dist.CommunicationError, match="run different operations"), other:
            other.backward(sum((p * 2).sum() for p in params))
            params[0].grad.numpy()
    with pytest.raises(ValueError, match="reductions='most'"):
        dist.make_allreduce_cb("sum", reductions="most")


def check_higher_gradients_go_through_the_callback() -> None:
    x = mge.tensor([2.0])
    inner = mge.autodiff.GradManager().attach(x, dist.make_allreduce_cb("mean"))
    outer = mge.autodiff.GradManager().attach(x)
    with outer:
        with inner:
            inner.backward(x**3)
        first, x.grad = x.grad, None
        outer.backward(first)
    np.testing.assert_allclose(first.numpy(), [12.0])
    np.testing.assert_allclose(x.grad.numpy(), [12.0])


def check_batch_norm_sees_all_ranks() -> None:
    rng = np.random.default_rng(2)
    for shape in ((BATCH, 3, 4, 4), (BATCH, 3, 5), (BATCH, 3)):
        x = (rng.normal(size=shape) * 3 + 100).astype(np.float32)
        dy = rng.normal(size=shape).astype(np.float32)
        whole = M.BatchNorm2d(3) if len(shape) == 4 else M.BatchNorm1d(3)
        y, dx, dw = _through(whole, mge.tensor(x), mge.tensor(dy))
        parts = M.SyncBatchNorm(3)
        got, dgot, dw_part = _through(parts, shard(x), shard(dy))
        np.testing.assert_allclose(got, shard(y).numpy(), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(dgot, shard(dx).numpy(), rtol=1e-3, atol=1e-4)
        summed = F.distributed.all_reduce_sum(mge.tensor(dw_part)).numpy()
        np.testing.assert_allclose(summed, dw, rtol=1e-3, atol=1e-3)
        for ours, theirs in (
            (parts.running_mean, whole.running_mean),
            (parts.running_var, whole.running_var),
        ):
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4)
        parts.eval()
        whole.eval()
        wanted = whole(mge.tensor(x)).numpy()
        np.testing.assert_allclose(parts(mge.tensor(x)).numpy(), wanted, rtol=1e-3, atol=1e-4)
    alone = M.SyncBatchNorm(3, group=dist.new_group([dist.get_rank()]), freeze=True)
    assert alone(shard(x)).shape == shard(x).shape


def check_the_function_joins_batches_of_ranks() -> None:
    """As `batch_norm` of the joined batch, gradients included, eager and compiled."""
    rng, n = np.random.default_rng(4), dist.get_world_size()
    for shape in ((2 * n + 1, 3, 4, 4), (2 * n + 1, 3)):
        x, dy = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
        w, b = (rng.normal(size=3).astype(np.float32) for _ in range(2))
        wanted = _normalized(F.batch_norm, x, dy, w, b)
        first, last = 2 * dist.get_rank(), 2 * dist.get_rank() + 2 + (dist.get_rank() == n - 1)
        own = slice(first, last)  # The last rank has a row more.
        for options in (None, mge.jit.Options(level=0), mge.jit.Options()):
            got = _normalized(F.sync_batch_norm, x[own], dy[own], w, b, options)
            for ours, theirs in zip(got[:2], wanted[:2], strict=True):
                np.testing.assert_allclose(ours, theirs[own], rtol=1e-3, atol=1e-4)
            for ours, theirs in zip(got[2:4], wanted[2:4], strict=True):
                summed = F.distributed.all_reduce_sum(mge.tensor(ours)).numpy()
                np.testing.assert_allclose(summed, theirs, rtol=1e-3, atol=1e-3)
            for ours, theirs in zip(got[4:], wanted[4:], strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def _normalized(function: Any, x: Any, dy: Any, w: Any, b: Any, options: Any = None) -> Any:
    """Result, gradients of x, weight and bias, and running statistics."""
    given = [mge.Parameter(a) for a in (x, w, b)]
    running = mge.tensor(np.zeros(3, np.float32)), mge.tensor(np.ones(3, np.float32))
    gm = mge.autodiff.GradManager().attach(given)

    def step(dy: Tensor) -> Tensor:
        with gm:
            y: Tensor = function(given[0], *running, *given[1:], training=True)
            gm.backward((y * dy).sum())
        return y

    y = (step if options is None else mge.jit.compile(step, options=options))(mge.tensor(dy))
    return [y.numpy(), *(p.grad.numpy() for p in given), *(r.numpy() for r in running)]


def _through(layer: Module, x: Tensor, dy: Tensor) -> Any:
    gm = mge.autodiff.GradManager().attach([x, layer.weight])
    with gm:
        y = layer(x)
        gm.backward((y * dy).sum())
    return y.numpy(), x.grad.numpy(), layer.weight.grad.numpy()


def check_layers_shared_out_among_ranks() -> None:
    """A column- and a row-parallel layer, whole and as a chain, against layers in one process."""
    rng = np.random.default_rng(9)
    x = mge.tensor(rng.normal(size=(5, 6)).astype(np.float32))
    first, second = M.Linear(6, 12), M.Linear(12, 6)
    dist.bcast_list_([*first.parameters(), *second.parameters()])
    columns, rows = ColumnParallelLinear(6, 12), RowParallelLinear(12, 6)
    columns.take(first)
    rows.take(second)
    assert columns.weight.size * dist.get_world_size() == first.weight.size

    def gradients_of(function: Any, weights: list[Tensor]) -> list[np.ndarray[Any, Any]]:
        gm = mge.autodiff.GradManager().attach([x, *weights])
        with gm:
            y = function(x)
            gm.backward((y * y).sum())
        found = [y.numpy(), *(t.grad.numpy() for t in (x, *weights))]
        for t in (x, *weights):
            t.grad = None
        return found

    def cut(whole: np.ndarray[Any, Any], axis: int) -> np.ndarray[Any, Any]:
        return np.split(whole, dist.get_world_size(), axis)[dist.get_rank()]

    ways = [lambda x: rows(F.relu(columns(x)))]
    if dist.get_world_size() == 2:
        ways.append(compiled(ways[0]))
    y, dx, dw, dv = gradients_of(lambda x: second(F.relu(first(x))), [first.weight, second.weight])
    for way in ways:
        got = gradients_of(way, [columns.weight, rows.weight])
        for ours, theirs in zip(got, (y, dx, cut(dw, 0), cut(dv, 1)), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    columns.gather_output = rows.split_input = True
    got = gradients_of(lambda x: rows(columns(x)), [columns.bias])
    wanted = gradients_of(lambda x: second(first(x)), [first.bias])
    for ours, theirs in zip(got, (*wanted[:2], cut(wanted[2], 0)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="do not divide"):
        ColumnParallelLinear(6, 7)
    with pytest.raises(ValueError, match="cannot take"):
        columns.take(second)


def check_pipelines_train_as_one_process_does() -> None:
    """Layers on different ranks, micro-batches of different sizes, three steps of SGD."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    rng = np.random.default_rng(4)
    x = mge.tensor(rng.normal(size=(7, 6)).astype(np.float32))
    wanted = mge.tensor(rng.normal(size=(7, 6)).astype(np.float32))
    parts = [M.Sequential(M.Linear(6, 6), M.ReLU(), M.Linear(6, 6)) for _ in range(ranks)]
    dist.bcast_list_([p for part in parts for p in part.parameters()])

    def loss(y: Tensor, number: int) -> Tensor:
        rows = slice(3 * number - (number == 2), 3 * number + 3 - (number > 0))
        return F.loss.square_loss(y, wanted[rows])

    stage = M.Sequential(M.Linear(6, 6), M.ReLU(), M.Linear(6, 6))
    stage.load_state_dict(parts[rank].state_dict())
    pipeline, own = Pipeline(stage, 3), SGD(stage.parameters(), lr=0.1)
    found = []
    for _ in range(3):
        value = pipeline.step(x if rank == 0 else None, loss if rank == ranks - 1 else None)
        assert (value is None) == (rank < ranks - 1)
        found.append(None if value is None else value.item())
        own.step().clear_grad()
    weights = [p for part in parts for p in part.parameters()]
    gm, optimizer = mge.autodiff.GradManager().attach(weights), SGD(weights, lr=0.1)
    for step in range(3):
        with gm:
            y = x
            for part in parts:
                y = part(y)
            alone = F.loss.square_loss(y, wanted)
            gm.backward(alone)
        optimizer.step().clear_grad()
        if found[step] is not None:
            np.testing.assert_allclose(found[step], alone.item(), rtol=1e-5)
    for ours, theirs in zip(stage.parameters(), parts[rank].parameters(), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)


def check_samplers_share_an_epoch() -> None:
    n, r = dist.get_world_size(), dist.get_rank()
    mine = [i for batch in SequentialSampler(range(12), batch_size=2) for i in batch]
    assert mine == list(range(r, 12, n))
    drawn = [i for batch in RandomSampler(range(12), batch_size=2) for i in batch]
    every = F.distributed.all_gather(mge.tensor(drawn, dtype="int32")).tolist()
    assert sorted(every) == list(range(12))


def check_observers_see_all_ranks() -> None:
    observer = SyncMinMaxObserver()
    observer(mge.tensor([float(dist.get_rank()), -1.0]))
    assert observer.max_val.item() == dist.get_world_size() - 1


def check_random_numbers_differ_between_ranks() -> None:
    drawn = F.distributed.all_gather(mge.random.uniform(size=(4,))).numpy()
    assert len(set(drawn.tolist())) == drawn.size


def check_the_first_rank_writes_checkpoints() -> None:
    told = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    path = Path(dist.get_client().bcast_val(told[0] or None, "folder", dist.get_world_size()))
    net = network(dist.get_rank())
    if dist.get_rank() == 0:
        mge.save(net.state_dict(), str(path / "net"))
    dist.group_barrier()
    net.load_state_dict(mge.load(str(path / "net")))
    dist.group_barrier()
    same = network(0).state_dict()
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, same[name])


def check_checkpoints_of_all_ranks() -> None:
    n, r = dist.get_world_size(), dist.get_rank()
    told = tempfile.mkdtemp() if r == 0 else None
    folder = Path(dist.get_client().bcast_val(told, "sharded", n)) / "step-1"
    net = network(0)
    optimizer = ShardedOptimizer(net.parameters(), lambda groups: Adam(groups, lr=0.05))
    for p in net.parameters():
        p.grad = mge.tensor(np.full(p.shape, r + 1, np.float32))
    optimizer.step()
    half = mge.tensor(np.arange(7), dtype="bfloat16")
    state = {"net": net.state_dict(), "more": [half, (1, "two", None)]}
    for _ in range(2):  # the second replaces the first
        save_sharded({**state, "optimizer": optimizer.parts(Part)}, folder)
    assert sorted(p.name for p in folder.iterdir()) == [
        "manifest",
        *(f"part-{k:05d}" for k in range(n)),
    ]
    found = load_sharded(folder)
    assert found["more"][1] == (1, "two", None)
    np.testing.assert_array_equal(found["more"][0], half.numpy())
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(found["net"][name], value)
    whole = optimizer.state_dict()
    for name in ("exp_avg", "step"):
        np.testing.assert_array_equal(found["optimizer"]["state"][0][name], whole["state"][0][name])
    # Any group of ranks can go on from it: here every rank by itself.
    alone = dist.new_group([r])
    other = ShardedOptimizer(net.parameters(), lambda groups: Adam(groups, lr=1.0), alone)
    other.load_state_dict(found["optimizer"])
    held = other.inner.state_dict()["state"][0]["exp_avg"]
    np.testing.assert_array_equal(held, whole["state"][0]["exp_avg"])
    dist.group_barrier()
    if r == 0:
        (folder / f"part-{n - 1:05d}").unlink()
        with pytest.raises(CheckpointError, match="is missing"):
            load_sharded(folder)
        (folder / "manifest").unlink()
        with pytest.raises(CheckpointError, match="holds no checkpoint"):
            load_sharded(folder)


def check_what_a_process_knows() -> None:
    n, r = dist.get_world_size(), dist.get_rank()
    assert dist.is_distributed() and dist.get_backend() in ("mpi", "sockets")
    assert dist.get_local_device_id() == r == dist.WORLD.rank
    assert dist.WORLD.size == n and dist.WORLD.is_single_machine
    assert dist.WORLD.comp_node == "cpux:0"
    assert dist.get_py_server_addr() == dist.get_mm_server_addr()
    assert dist.get_py_server_addr()[0] == "localhost"
    assert dist.synchronized(lambda x: x + 1)(r) == r + 1
    with pytest.raises(dist.CommunicationError, match="in a group already"):
        dist.init_process_group()


def check_timelines_of_ranks_become_one() -> None:
    n, r = dist.get_world_size(), dist.get_rank()
    told = tempfile.mkdtemp() if r == 0 else None
    folder = Path(dist.get_client().bcast_val(told, "timelines", n))
    with Profiler(folder):
        F.distributed.all_reduce_sum(mge.tensor([1.0]))
    dist.group_barrier()
    if r == 0:
        merge_trace_events(folder)
        merged = json.loads((folder / "merge.chrome_timeline.json").read_text())["traceEvents"]
        ops = [e for e in merged if e["name"] == "all_reduce"]
        assert sorted(e["pid"] for e in ops) == list(range(n))
        # It is over for nobody before it has begun for all.
        assert max(e["ts"] for e in ops) < min(e["ts"] + e["dur"] for e in ops)
        titles = [e["args"]["name"] for e in merged if e["name"] == "process_name"]
        assert [t.split(" on ")[0] for t in titles] == [f"rank {k}" for k in range(n)]


def check_values_by_key() -> None:
    n, r = dist.get_world_size(), dist.get_rank()
    client = dist.get_client()
    client.user_set(f"rank{r}", {"bytes": b"\0x", "list": [1, 2.5, None, "é"]})
    for other in range(n):
        found = client.user_get(f"rank{other}")
        assert found == {"bytes": b"\0x", "list": [1, 2.5, None, "é"]}
    client.group_barrier("all", n)
    assert client.user_pop(f"rank{r}")["list"][0] == 1
    assert client.bcast_val([r] if r == n - 1 else None, "who", n) == [n - 1]
    client.set_is_grad(f"{r}", True)
    client.set_remote_tracer(f"{r}", ["a"])
    assert client.check_is_grad(f"{r}") and client.check_remote_tracer(f"{r}") == ["a"]
    assert client.get_mm_server_port() == dist.get_mm_server_addr()[1]
    with pytest.raises(TypeError, match="numbers, texts"):
        client.user_set("x", object())


def check_a_launcher_inside_a_job_starts_nothing() -> None:
    @dist.launcher
    def inner(x: int) -> int:
        return x * dist.get_rank()

    assert inner(2) == [2 * r for r in range(dist.get_world_size())]
    with pytest.raises(dist.CommunicationError, match="9 processes are requested"):
        dist.launcher(inner.func, n_gpus=9)(1)
