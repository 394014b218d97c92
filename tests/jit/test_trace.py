"""`jit.trace`: MegEngine's semantics on the same capture."""

from __future__ import annotations

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.jit import TraceError, exclude_from_trace, is_tracing, trace


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
    with pytest.raises(TraceError, match="another course"):
        f(mge.tensor([1.0]))
    mode.update(by=2.0, op="exp")
    with pytest.raises(TraceError, match="another course"):
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
    with pytest.raises(TraceError, match="another course"):
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
