"""`jit.trace`: MegEngine's semantics on the same capture."""

from __future__ import annotations

import gc
import io
import random

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.base.log import get_logger
from treadle.jit import TraceError, exclude_from_trace, is_tracing, trace
from treadle.ops.check import ValuesDiffer
from treadle.tensor import Tensor
from treadle.utils.comp_graph_tools import GraphInference


def test_the_body_runs_at_every_call() -> None:
    seen: list[bool] = []

    @trace
    def f(x: mge.Tensor) -> mge.Tensor:
        seen.append(is_tracing())
        return x * 2

    for i in range(3):
        assert f(mge.tensor([float(i)])).item() == 2.0 * i
    assert seen == [True] * 3
    assert not is_tracing()


def test_numbers_that_python_draws_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    drawn: list[float] = []

    @trace
    def f(x: mge.Tensor) -> mge.Tensor:
        drawn.append(random.random() + np.random.rand())
        return x * 2

    get_logger().addHandler(caplog.handler)
    try:
        for i in range(4):
            assert f(mge.tensor([float(i)])).item() == 2.0 * i
    finally:
        get_logger().removeHandler(caplog.handler)
    assert len(set(drawn)) == 4
    assert caplog.text.count("drawn from random") == caplog.text.count("drawn from numpy") == 1


def test_without_host_it_runs_once() -> None:
    seen: list[int] = []

    @trace(symbolic=True, without_host=True)
    def f(x: mge.Tensor) -> mge.Tensor:
        seen.append(1)
        return x * 2

    for i in range(3):
        assert f(mge.tensor([float(i)])).item() == 2.0 * i
    assert len(seen) == 1


@pytest.mark.parametrize("imperative", [False, True])
def test_another_course_is_an_error(imperative: bool) -> None:
    mode = {"by": 2.0, "op": "mul"}

    @trace(imperative=imperative)
    def f(x: mge.Tensor) -> mge.Tensor:
        return x * mode["by"] if mode["op"] == "mul" else F.exp(x)

    assert f(mge.tensor([1.0])).item() == 2.0
    assert f(mge.tensor([2.0])).item() == 4.0
    mode["by"] = 3.0
    with pytest.raises(TraceError, match="tensors not equals"):
        f(mge.tensor([1.0]))
    mode.update(by=2.0, op="exp")
    with pytest.raises(TraceError, match="operator mismatch"):
        f(mge.tensor([1.0]))
    mode["op"] = "mul"
    assert f(mge.tensor([5.0])).item() == 10.0, "the trace stays usable"


def test_shapes_may_change_and_element_types_may_not() -> None:
    f = trace(lambda x: x + 1)
    assert f(mge.tensor([1.0])).tolist() == [2.0]
    assert f(mge.tensor([1.0, 2.0])).tolist() == [2.0, 3.0]
    with pytest.raises(TraceError, match="element types"):
        f(mge.tensor([1], dtype="int32"))


@pytest.mark.parametrize("symbolic", [False, True])
def test_values_can_be_read(symbolic: bool) -> None:
    @trace(symbolic=symbolic)
    def f(x: mge.Tensor) -> mge.Tensor:
        y = x * 2
        with exclude_from_trace():
            print(y.numpy())
        return y + 1 if y.sum().item() > 0 else y - 1

    assert f(mge.tensor([1.0])).item() == 3.0
    assert f(mge.tensor([2.0])).item() == 5.0
    with pytest.raises(TraceError, match="operator mismatch"):
        f(mge.tensor([-1.0]))


def test_errors_of_the_body_pass_through() -> None:
    @trace
    def f(x: mge.Tensor, fail: bool) -> mge.Tensor:
        if fail:
            raise KeyError("mine")
        return x

    with pytest.raises(KeyError, match="mine"):
        f(mge.tensor([1.0]), True)
    assert f(mge.tensor([1.0]), False).item() == 1.0


@pytest.mark.parametrize("without_host", [False, True])
def test_training_and_outer_tensors(without_host: bool) -> None:
    w = mge.Parameter([1.0])
    gm = GradManager().attach(w)

    @trace(without_host=without_host)
    def step(x: mge.Tensor) -> mge.Tensor:
        with gm:
            loss = (w * x).sum()
            gm.backward(loss)
        w._reset(w - w.grad * 0.1)
        w.grad = None
        return loss

    assert [round(step(mge.tensor([1.0])).item(), 4) for _ in range(3)] == [1.0, 0.9, 0.8]
    w[...] = mge.tensor([5.0])
    assert step(mge.tensor([2.0])).item() == 10.0


def test_the_program_can_be_looked_at() -> None:
    f = trace(lambda x: F.relu(x).sum())
    with pytest.raises(TraceError, match="no program yet"):
        f.explain()
    f(mge.tensor(np.ones(3)))
    assert "kernels" in f.explain()
    assert [n.op.name for n in f.graph.nodes] == ["relu", "sum"]


def test_several_arguments() -> None:
    @mge.jit.trace
    def add(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        return x + y

    one, two = mge.tensor([1.0]), mge.tensor([2.0])
    assert [add(one, two).item(), add(two, two).item()] == [3.0, 4.0]
    with pytest.raises(mge.TreadleError, match="element types"):
        add(mge.tensor([1]), mge.tensor([2]))


@pytest.mark.parametrize("symbolic", [False, True])
def test_results_may_have_extents_that_only_data_knows(symbolic: bool) -> None:
    @trace(symbolic=symbolic)
    def f(x: mge.Tensor, mask: mge.Tensor) -> tuple[mge.Tensor, mge.Tensor]:
        values, places = F.cond_take(mask, x)
        return x[mask] * 2 + values, places

    x = mge.tensor([1.0, 2.0, 3.0])
    for kept in ([True, False, True], [False, True, False], [False, False, False]):
        values, places = f(x, mge.tensor(kept))
        assert values.tolist() == [3 * v for v, k in zip([1.0, 2.0, 3.0], kept, strict=True) if k]
        assert places.tolist() == [i for i, k in enumerate(kept) if k]


def _after(x: mge.Tensor) -> mge.Tensor:
    return F.exp(F.exp(x))


def _beside(x: mge.Tensor, y: mge.Tensor) -> tuple[mge.Tensor, mge.Tensor]:
    return F.exp(x), F.exp(y)


_A, _B, _C = (mge.tensor([float(i), 2.0]) for i in range(3))
_WAYS = {
    "operator mismatch": (lambda: (_A * _B) + _C, lambda: (_A * _B) - _C),
    "tensors not equals": (lambda: F.exp(_A) * 3, lambda: F.exp(_A) * 4),
    "mismature end": (lambda: (F.relu(_A), F.exp(_B))[0], lambda: F.relu(_A)),
    "too many instructions": (lambda: _A - _B, lambda: (_A - _B) * _C),
    "expect internal node, got external": (
        lambda: F.exp(F.exp(_A)),
        lambda: (F.exp(_A), F.exp(_B)),
    ),
    "expect external node, got internal": (
        lambda: (F.exp(_A), F.exp(_B)),
        lambda: F.exp(F.exp(_A)),
    ),
    "data unreadable": (lambda: (F.exp(_A), F.relu(_B))[0], lambda: (F.exp(_A), F.relu(_B))[1]),
    "input id mismatch": (lambda: _twice(0), lambda: _twice(1)),
}


def _twice(which: int) -> mge.Tensor:
    return F.exp((F.relu(_A), F.relu(_B))[which])


@pytest.mark.parametrize("imperative", [False, True])
@pytest.mark.parametrize("reason", _WAYS)
def test_what_differs_is_said_in_megengines_words(reason: str, imperative: bool) -> None:
    recorded, other = _WAYS[reason]
    now = [recorded]
    f = trace(lambda: now[0](), imperative=imperative)
    f()
    now[0] = other
    with pytest.raises(TraceError) as error:
        f()
    assert str(error.value) == f"trace error because {reason}"
    assert any("leave the function untraced" in note for note in error.value.__notes__)
    now[0] = recorded
    f()


_OPTIMIZERS = {
    "sgd": lambda p: mge.optimizer.SGD(p, lr=0.1),
    "momentum": lambda p: mge.optimizer.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: mge.optimizer.Adam(p, lr=0.1),
    "adamw": lambda p: mge.optimizer.AdamW(p, lr=0.1),
    "adagrad": lambda p: mge.optimizer.Adagrad(p, lr=0.1),
    "adadelta": lambda p: mge.optimizer.Adadelta(p, lr=0.1),
    "lamb": lambda p: mge.optimizer.LAMB(p, lr=0.1),
}


@pytest.mark.parametrize("imperative", [False, True])
@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_a_step_may_begin_by_clearing_gradients(name: str, imperative: bool) -> None:
    def losses(traced: bool) -> list[float]:
        w = mge.Parameter([1.0, -2.0])
        gm, opt = GradManager().attach(w), _OPTIMIZERS[name]([w])

        def step(x: mge.Tensor) -> mge.Tensor:
            opt.clear_grad()
            with gm:
                loss = ((w * x - 3) ** 2).sum()
                gm.backward(loss)
            opt.step()
            return loss

        run = trace(step, imperative=imperative) if traced else step
        found = []
        for rate in (0.1, 0.1, 0.05, 0.05):
            opt.param_groups[0]["lr"] = rate
            found.append(run(mge.tensor([1.0, 2.0])).item())
        return found

    assert losses(True) == pytest.approx(losses(False), rel=1e-5)


def test_gradients_that_add_up_are_another_world() -> None:
    w = mge.Parameter([2.0])
    gm = GradManager().attach(w)

    @trace
    def step(x: mge.Tensor) -> None:
        with gm:
            gm.backward((w * x).sum())

    for expected in (1.0, 2.0, 3.0, 4.0):
        step(mge.tensor([1.0]))
        assert w.grad.item() == expected


def test_what_a_call_made_and_kept_is_another_world() -> None:
    kept: list[mge.Tensor] = []

    @trace
    def f(x: mge.Tensor) -> mge.Tensor:
        if not kept:
            kept.append(x * 0)
        kept[0]._reset(kept[0] + x)
        return kept[0] * 1

    assert [f(mge.tensor([1.0])).item() for _ in range(4)] == [1.0, 2.0, 3.0, 4.0]


def test_a_level_that_is_given_allows_rewrites_of_real_arithmetic() -> None:
    def f(x: mge.Tensor) -> mge.Tensor:
        y = x * 2
        return F.log(F.exp(y) + F.exp(x)) + y / y

    x = mge.tensor([1e4])
    with np.errstate(over="ignore"):
        plain = [trace(f)(x).item(), trace(f, opt_level=0)(x).item()]
    assert not np.isfinite(plain).any()
    assert trace(f, opt_level=1)(x).item() == 2e4 + 1


def test_shapes_read_as_tensors_do_inside() -> None:
    @trace
    def f(x: mge.Tensor) -> mge.Tensor:
        assert x.shape.numpy().tolist() == [2, 3] and x.shape == (2, 3)  # type: ignore[attr-defined]
        return x.reshape(x.shape[1], x.shape[0])

    assert f(mge.tensor(np.ones((2, 3)))).shape == (3, 2)


def test_what_is_read_is_fixed_in_a_dump_and_checked(caplog: pytest.LogCaptureFixture) -> None:
    def body(x: Tensor, n: Tensor, flag: Tensor) -> Tensor:
        y = F.broadcast_to(x * 2, n)
        return y[: int(n[0]) - 1] + 1 if flag else -y

    traced = trace(body, symbolic=True, capture_as_const=True)
    for extent in (3, 4):  # Calls go on with what they read.
        given = mge.tensor([5.0]), mge.tensor([extent]), mge.tensor(True)
        assert traced(*given).tolist() == [11.0] * (extent - 1)
    file = io.BytesIO()
    get_logger().addHandler(caplog.handler)
    try:
        traced.dump(file, arg_names=["x", "n", "flag"])
    finally:
        get_logger().removeHandler(caplog.handler)
    assert "holds those of the first call" in caplog.text
    file.seek(0)
    model = GraphInference(file)
    x, n, flag = np.array([7.0], "float32"), np.array([3], "int32"), np.array(True)
    (found,) = model.run(x, n, flag).values()
    np.testing.assert_array_equal(found, [15.0, 15.0])
    for other in ((x, n + 1, flag), (x, n, ~flag)):
        with pytest.raises(ValuesDiffer):
            model.run(*other)


def test_a_cycle_over_an_inner_tensor_costs_no_whole_collection() -> None:
    """Each call searched the heap for who else holds the tensor: 0.6 s where there are millions."""

    @trace
    def step(x: Tensor) -> Tensor:
        y = x * 2
        kept: list[object] = [y]
        kept.append(kept)
        return y.sum()

    x = mge.tensor([1.0, 2.0])
    assert step(x).item() == 6
    whole = [0]

    def note(phase: str, info: dict[str, int]) -> None:
        whole[0] += phase == "start" and info["generation"] == 2

    gc.collect()
    gc.disable()  # What is left are collections that are asked for.
    gc.callbacks.append(note)
    try:
        for _ in range(5):
            assert step(x).item() == 6
    finally:
        gc.callbacks.remove(note)
        gc.enable()
    assert not whole[0]


def test_calls_that_follow_one_another_and_part() -> None:
    """Gradients are added up over two calls: every second call goes another way from the middle."""
    weights = [mge.Parameter(np.ones(3, "float32")) for _ in range(2)]
    managers = [GradManager().attach(w) for w in weights]
    clear = [True]

    def step(gm: GradManager, w: Tensor, x: Tensor) -> Tensor:
        with gm:
            loss = (w * x * w).sum()
            gm.backward(loss)
        w._reset(w - w.grad * 0.1)
        if clear[0]:
            w.grad = None
        return loss

    traced = mge.jit.trace(lambda x: step(managers[0], weights[0], x))
    for turn in range(8):
        clear[0] = turn % 4 > 1
        x = mge.tensor(np.arange(3, dtype="float32") + turn % 3)
        got, want = traced(x), step(managers[1], weights[1], x)
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)
        np.testing.assert_allclose(weights[0].numpy(), weights[1].numpy(), rtol=1e-6)
