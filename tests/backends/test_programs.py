"""Compiled programs on devices: op by op where there are kernels only, else by the compiler."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.compiling_toy import CompilingToy
from tests.backends.plugins import Plugins
from tests.backends.toy_backend import Toy, ToyDevice, elementwise, kernel
from tests.engine.segment_engine import Executable, FakeSegments

import treadle as mge
import treadle.functional as F
import treadle.module as M
import treadle.optimizer as optim
from treadle import random as R
from treadle.autodiff import GradManager
from treadle.backends.api import Availability
from treadle.base.errors import DeviceError, DeviceLost, EngineError, OutOfMemory, UnsupportedOp
from treadle.engine.execute import DeviceExecutor, Stepwise
from treadle.engine.options import Options
from treadle.runtime.array import DeviceArray

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((8, 1, 8, 8)).astype(np.float32)
LABELS = RNG.integers(0, 4, 8).astype(np.int32)


@pytest.fixture(autouse=True)
def silently() -> Iterator[None]:
    with mge.fallback("silent"):
        yield


class Flat(M.Module):
    def forward(self, x: mge.Tensor) -> mge.Tensor:
        return F.flatten(x, 1)


class Block(M.Module):
    """One layer of a transformer on rows of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (M.Linear(8, 8) for _ in range(3))
        self.norm, self.out = M.LayerNorm(8), M.Linear(64, 4)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        rows = x.reshape(8, 8, 8)
        scores = F.matmul(self.query(rows), self.key(rows), transpose_b=True)
        mixed = F.matmul(F.softmax(scores / 8.0**0.5, axis=-1), self.value(rows))
        return self.out(F.flatten(self.norm(rows + F.gelu(mixed)), 1))


def mlp() -> M.Module:
    return M.Sequential(Flat(), M.Linear(64, 16), M.ReLU(), M.Linear(16, 4))


def cnn() -> M.Module:
    return M.Sequential(
        M.Conv2d(1, 4, 3, padding=1),
        M.BatchNorm2d(4),
        M.ReLU(),
        M.MaxPool2d(2),
        Flat(),
        M.Dropout(0.2),
        M.Linear(64, 4),
    )


NETS: dict[str, Callable[[], M.Module]] = {"mlp": mlp, "cnn": cnn, "transformer": Block}


def train(device: str, build: Callable[[], M.Module], compiled: bool, steps: int = 3) -> Any:
    """Losses of a few steps, parameters afterwards, and the step."""
    before = mge.get_default_device()
    mge.set_default_device(device)
    try:
        R.seed(7)
        net = build()
        net.train()
        manager = GradManager().attach(net.parameters())
        opt = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def step(images: mge.Tensor, labels: mge.Tensor) -> mge.Tensor:
            with manager:
                loss = F.loss.cross_entropy(net(images), labels)
                manager.backward(loss)
            opt.step().clear_grad()
            return loss

        run = mge.jit.compile(step) if compiled else step
        losses = []
        for _ in range(steps):
            loss = run(mge.tensor(IMAGES), mge.tensor(LABELS))
            assert loss.device == device
            losses.append(loss.item())
        assert all(p.device == device for p in net.parameters())
        return losses, {k: np.array(v) for k, v in net.state_dict().items()}, run
    finally:
        mge.set_default_device(before)


def assert_close(found: Any, expected: Any) -> None:
    (losses, state, _), (wanted, reference, _) = found, expected
    np.testing.assert_allclose(losses, wanted, rtol=2e-5)
    assert wanted[-1] < wanted[0]
    for name, value in reference.items():
        np.testing.assert_allclose(state[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("kernels", [False, True], ids=["tier0", "tier1"])
def test_training_op_by_op_equals_the_hosts(name: str, kernels: bool, plugins: Plugins) -> None:
    plugins.toy(kernels=elementwise() if kernels else ())
    expected = train("cpux", NETS[name], compiled=False)
    eager = train("toy0", NETS[name], compiled=False)
    assert_close(eager, expected)
    fallen = {(row.op, row.reason) for row in mge.fallback_report(clear=True)}
    compiled = train("toy0", NETS[name], compiled=True)
    assert_close(compiled, expected)
    again = {(row.op, row.reason) for row in mge.fallback_report()}
    # What is computed from constants alone, or only marks a place, is not run again and again.
    assert again <= fallen
    assert {op for op, _ in fallen - again} <= {"broadcast", "div", "stop_gradient"}
    (variant,) = compiled[2].variants
    assert isinstance(variant.inspected.executor, Stepwise)


@pytest.mark.parametrize("name", NETS)
def test_training_on_a_device_with_a_compiler_equals_the_hosts(name: str, plugins: Plugins) -> None:
    toy = plugins.offer("toy", CompilingToy())
    expected = train("cpux", NETS[name], compiled=False)
    compiled = train("toy0", NETS[name], compiled=True)
    assert_close(compiled, expected)
    (variant,) = compiled[2].variants
    assert isinstance(variant.inspected.executor, DeviceExecutor)
    # Control flow, random state and rates are all that Python gives; the rest stays on the device.
    assert {row.op for row in mge.fallback_report()} == set()
    assert toy.opened[0].launches == 0


# -- state and failures ------------------------------------------------------------------------


def on(device: str, *values: Any) -> mge.Tensor:
    return mge.tensor(np.array(values, np.float32), device=device)


def counter(w: mge.Tensor) -> Any:
    """A step that reads state, rebinds it, and computes something with an op of its own."""

    @mge.jit.compile
    def step(x: mge.Tensor) -> mge.Tensor:
        w._reset(w + x)
        return F.relu(w * 2.0)

    return step


def test_state_stays_on_the_device_and_others_keep_what_they_hold(plugins: Plugins) -> None:
    toy = plugins.offer("toy", CompilingToy())
    w, x = on("toy0", 1, 2), on("toy0", 1, 1)
    other = w.detach()
    step = counter(w)
    step(x)
    before = toy.opened[0].copies
    for _ in range(3):
        result = step(x)
    assert toy.opened[0].copies == before  # Nothing came down or went up in between.
    assert result.numpy().tolist() == [10, 12] and w.numpy().tolist() == [5, 6]
    assert other.numpy().tolist() == [1, 2]
    assert step.counters.iterations == 4 and step.counters.launches > 0


@pytest.mark.parametrize(
    ("failure", "error", "says"),
    [
        (RuntimeError("the wire came off"), DeviceError, "RuntimeError: the wire came off"),
        (MemoryError("scratch"), OutOfMemory, "scratch"),
    ],
    ids=["failure", "memory"],
)
def test_a_failure_in_the_middle_changes_no_handle(
    failure: Exception, error: type[Exception], says: str, plugins: Plugins
) -> None:
    toy = plugins.offer("toy", CompilingToy())
    w, x = on("toy0", 1, 2), on("toy0", 1, 1)
    step = counter(w)
    step(x)
    for after in (1, 2):
        toy.code.fails_at, toy.code.failure = toy.code.launches + after, failure
        with pytest.raises(error, match=f"(?s)step: toy0.*{says}.*before the call"):
            for _ in range(3):
                step(x)
        toy.code.fails_at = None
        held = w.numpy().tolist()
        step(x)
        assert w.numpy().tolist() == [n + 1 for n in held]


def test_a_device_lost_in_the_middle_is_out_of_use_until_it_is_reset(plugins: Plugins) -> None:
    toy = plugins.offer("toy", CompilingToy())
    w, x = on("toy0", 1, 2), on("toy0", 1, 1)
    step = counter(w)
    step(x)
    kept = w.numpy()  # A copy on the host.
    toy.code.fails_at, toy.code.failure = toy.code.launches + 1, DeviceLost("toy0", "it fell down")
    with pytest.raises(DeviceLost, match="it fell down"):
        step(x)
    toy.code.fails_at = None
    with pytest.raises(DeviceLost, match="was lost"):
        step(x)
    assert w.numpy().tolist() == kept.tolist() == [2, 3]
    mge.device.reset("toy0")
    w._reset(mge.tensor(kept, device="toy0"))
    assert step(on("toy0", 1, 1)).numpy().tolist() == [6, 8]


def test_threads_update_one_state_one_after_the_other(plugins: Plugins) -> None:
    plugins.offer("toy", CompilingToy())
    w, x = on("toy0", 0, 0), on("toy0", 1, 2)
    step = counter(w)
    step(x)
    threads = [threading.Thread(target=lambda: [step(x) for _ in range(20)]) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert w.numpy().tolist() == [61, 122]


def test_a_device_without_room_says_what_the_program_needs(plugins: Plugins) -> None:
    plugins.offer("toy", CompilingToy(capacity=1 << 16))
    w = mge.tensor(np.ones(8000, np.float32), device="toy0")
    step = counter(w)
    with pytest.raises(OutOfMemory, match=r"(?s)step: toy0 cannot allocate .*the program needs"):
        step(mge.tensor(np.ones(8000, np.float32), device="toy0"))
    assert w.numpy().sum() == 8000
    w2 = on("toy0", 1)
    assert counter(w2)(w2).numpy().tolist() == [4]


def test_ops_that_the_compiler_refuses_run_on_the_host_and_are_counted(plugins: Plugins) -> None:
    plugins.offer("toy", CompilingToy(refused=("sort",)))

    @mge.jit.compile
    def ranked(x: mge.Tensor) -> mge.Tensor:
        return F.sort(-F.sort(x * 2.0)[0])[0] + 1.0

    x = on("toy0", 3, 1, 2)
    for _ in range(2):
        assert ranked(x).numpy().tolist() == [-5, -3, -1]
    (row,) = mge.fallback_report()
    # Three floats come down; as many and their places go up.
    assert (row.op, row.calls, row.nbytes) == ("sort", 4, 4 * (12 + 12 + 12))
    assert "refused by the test" in row.reason and row.seconds > 0
    assert ranked.counters.entries == 2 * 3
    with mge.fallback("error"), pytest.raises(UnsupportedOp, match="refused by the test"):
        ranked(x)


def test_devices_that_cannot_move_pieces_say_so(plugins: Plugins) -> None:
    plugins.offer("toy", CompilingToy(refused=("sort",), device=ToyDevice))
    ranked = mge.jit.compile(lambda x: F.sort(x * 2.0 + F.sort(x)[0])[0] * 1.5)
    with pytest.raises(DeviceError, match=r"lacks part\(\)"):
        ranked(on("toy0", 3, 1, 2))


@pytest.mark.parametrize("compiler", [False, True], ids=["op by op", "compiled"])
def test_control_flow_of_programs_on_devices(compiler: bool, plugins: Plugins) -> None:
    plugins.offer("toy", CompilingToy() if compiler else Toy(kernels=elementwise()))

    one = on("toy0", 1)  # from outside

    @mge.jit.compile
    def course(x: mge.Tensor, n: mge.Tensor) -> Any:
        grown = mge.jit.cond(x.sum() > 0, lambda v: v * 2.0, lambda v: v - 1.0, x)
        _, doubled = mge.jit.while_loop(
            lambda i, v: i < 3, lambda i, v: (i + 1, v + v * one), (n, grown)
        )
        (last,), sums = mge.jit.scan(
            lambda s, e: (s + e, s * e * one), (grown,), (doubled.reshape(2, 1),)
        )
        return grown, doubled, last, sums[0]

    n = mge.tensor(0, device="toy0")
    for values in ([1, 2], [-1, -2]):
        x = np.array(values, np.float32)
        grown = x * 2 if x.sum() > 0 else x - 1
        first = grown + 8 * grown[0]
        expected = [grown, 8 * grown, first + 8 * grown[1]]
        expected.append(np.stack([grown * 8 * grown[0], first * 8 * grown[1]]))
        for found, wanted in zip(course(on("toy0", *values), n), expected, strict=True):
            assert found.device == "toy0"
            np.testing.assert_allclose(found.numpy(), wanted)


@pytest.mark.parametrize("compiler", [False, True], ids=["op by op", "compiled"])
def test_a_manager_outside_differentiates_programs_on_devices(
    compiler: bool, plugins: Plugins
) -> None:
    plugins.offer("toy", CompilingToy() if compiler else Toy())
    square = mge.jit.compile(lambda x: (x * x * w).sum())
    w, x = on("toy0", 1, 2, 3), on("toy0", 3, 4, 5)
    with GradManager().attach([x, w]) as manager:
        manager.backward(square(x))
    assert x.grad.device == "toy0" and x.grad.numpy().tolist() == [6, 16, 30]
    assert w.grad.numpy().tolist() == [9, 16, 25]


@pytest.mark.parametrize("compiler", [False, True], ids=["op by op", "compiled"])
def test_threads_share_programs_on_devices(compiler: bool, plugins: Plugins) -> None:
    plugins.offer("toy", CompilingToy() if compiler else Toy(kernels=elementwise()))
    double = mge.jit.compile(lambda x: F.relu(x * 2.0) + 1.0)
    double(on("toy0", 0, 0))
    found: dict[int, list[Any]] = {}

    def work(k: int) -> None:
        found[k] = [double(on("toy0", k, i)).numpy().tolist() for i in range(20)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == {k: [[2 * k + 1, 2 * i + 1] for i in range(20)] for k in range(3)}


def test_sink_and_dynamic_axes_on_devices(plugins: Plugins) -> None:
    plugins.offer("toy", CompilingToy())
    w = on("toy0", 0, 0)
    step = counter(w)
    batches = [on("toy0", i, 1) for i in range(4)]
    results = [t.numpy().tolist() for t in mge.jit.sink(step, batches, 2)]
    assert results == [[2, 4], [12, 8]] and w.numpy().tolist() == [6, 4]
    total = mge.jit.compile(dynamic={0: {0: "n"}})(lambda x: (x * 2.0).sum())
    assert [total(on("toy0", *range(n))).item() for n in (2, 5)] == [2, 20]


def test_programs_are_made_anew_where_a_tensor_moves(plugins: Plugins) -> None:
    plugins.offer("toy", CompilingToy())
    w = on("toy0", 1, 2)
    scaled = mge.jit.compile(lambda x: x * w)
    assert scaled(on("toy0", 3, 4)).device == "toy0"
    w._reset(w.to("cpu0"))
    assert scaled(on("cpu0", 3, 4)).device == "cpu0"
    with pytest.raises(DeviceError, match=r"(?s)mul: .*toy0:0 and cpu0:0.*move one of them"):
        scaled(on("toy0", 3, 4))


def test_what_never_changes_is_computed_once_and_again_for_other_arrays(plugins: Plugins) -> None:
    toy = plugins.offer("toy", CompilingToy())
    w = on("toy0", 1, 2)
    scaled = mge.jit.compile(lambda x: x + F.exp(w))
    x = on("toy0", 1, 1)
    wanted = 1 + np.exp(np.array([1, 2], np.float32))
    counts = []
    for _ in range(3):
        before = toy.code.launches
        np.testing.assert_allclose(scaled(x).numpy(), wanted, rtol=1e-6)
        counts.append(toy.code.launches - before)
    assert counts == [2, 1, 1]
    w._reset(w * 0.0)
    np.testing.assert_allclose(scaled(x).numpy(), [2, 2])
    # What the first attempt packed is not trusted where it failed half-way.
    w._reset(w + 1.0)
    toy.code.fails_at = toy.code.launches + 1
    with pytest.raises(DeviceError, match="the wire came off"):
        scaled(x)
    toy.code.fails_at = None
    np.testing.assert_allclose(scaled(x).numpy(), 1 + np.exp([1, 1]), rtol=1e-6)


# -- who runs what -----------------------------------------------------------------------------


@pytest.mark.parametrize("compiler", [False, True], ids=["op by op", "compiled"])
def test_ops_that_the_user_leaves_to_the_host(compiler: bool, plugins: Plugins) -> None:
    plugins.offer("toy", CompilingToy() if compiler else Toy(kernels=elementwise()))
    options = Options(force_fallback=("relu",))
    run = mge.jit.compile(options=options)(lambda x: F.relu(x * 2.0) + 1.0)
    assert run(on("toy0", 1, -1)).numpy().tolist() == [3, 1]
    (row,) = [r for r in mge.fallback_report() if r.op == "relu"]
    assert row.calls == 1 and row.reason.startswith("policy")


def test_explanations_say_who_runs_each_op(plugins: Plugins) -> None:
    plugins.toy(kernels=elementwise())
    run = mge.jit.compile(lambda x: F.exp(F.relu(x * 2.0)) + 1.0)
    text = run.explain(on("toy0", 1, -1))
    rows = {line.split()[0]: line for line in text.splitlines() if "  " in line}
    assert "kernel toy" in rows["relu"] and "toy has no kernel for exp" in rows["exp"]
    with pytest.raises(EngineError, match="on toy0:0 it runs op by op"):
        run.lower(on("toy0", 1, -1)).explain()


class DeviceSegment(Executable):
    """Runs a segment on arrays of a toy device, which it reads where they lie."""

    def run(self, payloads: Sequence[Any], /) -> Sequence[Any]:
        device = payloads[0].device
        arrays = [p.buffer.view(p.dtype, p.shape).copy() for p in payloads]
        made = super().run(arrays)
        return [DeviceArray(device, a.dtype, a.shape, device.upload(a)) for a in made]


@pytest.mark.parametrize("fail", ["", "compile", "run"])
def test_segments_of_engines_run_on_the_devices_arrays(fail: str, plugins: Plugins) -> None:
    toy = plugins.toy(kernels=elementwise())
    engine = plugins.offer("fake", SegmentBackend(never=("relu",), serves=("toy",)))
    engine._kind, engine.fail = DeviceSegment, fail
    run = mge.jit.compile(lambda x: F.relu(F.exp(x * 2.0) - 3.0) + x)
    for values in ([0, 1], [1, 2]):
        x = np.array(values, np.float32)
        found = run(on("toy0", *values))
        np.testing.assert_allclose(found.numpy(), np.maximum(np.exp(x * 2) - 3, 0) + x, rtol=1e-6)
    text = run.explain()
    assert ("demoted" in text) == bool(fail)
    if not fail:
        assert [len(e.calls) for e in engine.made] == [2, 2]
        assert [r.op for r in mge.fallback_report()] == []
    assert toy.opened[0].launches >= 2  # relu's


class SegmentBackend(FakeSegments):
    """The engine as a plug-in."""

    protocol = (1, 1)
    device_kinds = ()

    def probe(self) -> Availability:
        return Availability(True, "made of NumPy")


def test_random_numbers_are_drawn_where_they_are_used(plugins: Plugins) -> None:
    plugins.offer("toy", CompilingToy())
    x = mge.tensor(np.ones((4, 4), np.float32), device="toy0")

    def noisy(x: mge.Tensor) -> mge.Tensor:
        return F.dropout(x, 0.5) + R.normal(0, 1, (4, 4)).to("toy0")  # drawn on the default device

    compiled = mge.jit.compile(noisy)
    for _ in range(2):
        R.seed(5)
        expected = [noisy(x).numpy(), noisy(x).numpy()]
        R.seed(5)
        found = [compiled(x).numpy(), compiled(x).numpy()]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert isinstance(compiled.variants[0].inspected.executor, DeviceExecutor)


def test_axes_that_change_in_programs_over_several_devices(plugins: Plugins) -> None:
    plugins.offer("toy", CompilingToy())
    total = mge.jit.compile(dynamic={0: {0: "n"}})(lambda x: ((x * 2.0).to("toy1") + 1.0).sum())
    assert [total(on("toy0", *range(n))).item() for n in (2, 5, 2)] == [4, 25, 4]


def test_errors_of_ops_name_the_line_where_they_were_captured(plugins: Plugins) -> None:
    def fail(x: Any) -> Any:
        raise RuntimeError("short circuit")

    plugins.toy(kernels=[kernel("exp", fail)])
    run = mge.jit.compile(lambda x: F.exp(x) + 1.0)  # this line
    with pytest.raises(DeviceError, match=r"(?s)exp: .*short circuit") as caught:
        run(on("toy0", 1))
    assert caught.value.at.line == next(
        i
        for i, line in enumerate(Path(__file__).read_text().splitlines(), 1)
        if "# this line" in line
    )


# -- single ops on generated code --------------------------------------------------------------


def test_eager_ops_run_on_kernels_then_generated_code_then_the_host(plugins: Plugins) -> None:
    toy = plugins.offer("toy", CompilingToy(refused=("sort",), kernels=elementwise()))
    x = on("toy0", 3, 1, 2)
    results = [x + x, F.exp(x), F.sort(x)[0]]
    assert [r.device == "toy0" for r in results] == [True] * 3
    np.testing.assert_allclose(results[1].numpy(), np.exp([3, 1, 2]), rtol=1e-6)
    assert (toy.opened[0].launches, toy.code.launches) == (1, 1)
    (row,) = mge.fallback_report()
    assert (row.op, "refused by the test" in row.reason) == ("sort", True)


@pytest.mark.parametrize(
    ("failure", "error", "says"),
    [
        (RuntimeError("no carrier"), DeviceError, "generated code of toy0 failed: RuntimeError"),
        (MemoryError("registers"), OutOfMemory, "registers"),
    ],
    ids=["failure", "memory"],
)
def test_generated_code_that_fails_names_the_op(
    failure: Exception, error: type[Exception], says: str, plugins: Plugins
) -> None:
    toy = plugins.offer("toy", CompilingToy())
    toy.code.fails_at, toy.code.failure = 1, failure
    with pytest.raises(error, match=rf"(?s)^exp: .*{says}.*float32\[1\]"):
        F.exp(on("toy0", 1))
    assert F.exp(on("toy0", 0)).item() == 1


def test_engines_that_leave_results_elsewhere_are_told_so(
    plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = plugins.offer("toy", CompilingToy())
    monkeypatch.setattr(toy, "prepare", lambda op, types: lambda *arrays: arrays[0].host())
    with pytest.raises(DeviceError, match="a result of toy is not on toy0"):
        F.exp(on("toy0", 1))


def test_programs_run_on_the_default_device_under_any_of_its_names(plugins: Plugins) -> None:
    plugins.offer("toy", CompilingToy(priority=5))
    mge.set_default_device("xpux")
    run = mge.jit.compile(lambda x: x * 2.0 + mge.tensor([1.0, 2.0]) + F.ones(2))
    for device, name in (("xpux", "xpux:0"), ("toy0", "toy0:0"), ("toy0:1", "toy0:1")):
        found = run(on(device, 1, 2))
        assert (found.numpy().tolist(), str(found.device)) == ([4, 7], name)
        assert isinstance(run.variants[-1].inspected.executor, DeviceExecutor)
    assert F.ones(2).device.kind == "toy" and len(run.variants) == 3
