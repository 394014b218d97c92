"""`jit.compile`: what is captured, what is read at each call, what is written back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.engine.python_compiler import PythonCompiler

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.jit import TraceError
from treadle.optimizer import SGD, Adam, Optimizer

X = np.arange(6, dtype="float32").reshape(2, 3)


def tensor(data: Any = X) -> mge.Tensor:
    return mge.tensor(data)


# -- arguments and results -----------------------------------------------------------------


def test_the_body_runs_once_per_signature() -> None:
    calls: list[int] = []

    @mge.jit.compile
    def f(x: mge.Tensor) -> mge.Tensor:
        calls.append(1)
        return x * 2

    for _ in range(3):
        np.testing.assert_array_equal(f(tensor()).numpy(), X * 2)
    assert len(calls) == 1
    np.testing.assert_array_equal(f(tensor([1.0, 2.0])).numpy(), [2.0, 4.0])
    assert len(calls) == 2
    f(tensor(X.astype("int32")))
    assert len(calls) == 3 and len(f.variants) == 3


def test_structures_go_in_and_come_out() -> None:
    @mge.jit.compile
    def f(pair: tuple[mge.Tensor, ...], *, scale: float, named: dict[str, Any]) -> dict[str, Any]:
        return {"sum": pair[0] + pair[1] * scale, "rest": [named["x"], "text", 3, pair[0]]}

    got = f((tensor(), tensor()), scale=3.0, named={"x": tensor([1.0])})
    np.testing.assert_array_equal(got["sum"].numpy(), X * 4)
    assert got["rest"][1:3] == ["text", 3]
    np.testing.assert_array_equal(got["rest"][3].numpy(), X)
    f((tensor(), tensor()), scale=4.0, named={"x": tensor([1.0])})
    assert len(f.variants) == 2, "plain values are part of the signature"


def test_arrays_count_as_tensors() -> None:
    f = mge.jit.compile(lambda x: x + 1)
    np.testing.assert_array_equal(f(X).numpy(), X + 1)
    np.testing.assert_array_equal(f(X * 2).numpy(), X * 2 + 1)
    assert len(f.variants) == 1


def test_arrays_share_the_programs_of_tensors() -> None:
    f = mge.jit.compile(lambda x: x * 2)
    assert f(tensor()).tolist() == f(X).tolist()
    assert len(f.variants) == 1


def test_zeros_of_both_signs_differ_and_nan_is_found_again() -> None:
    f = mge.jit.compile(lambda x, k: x / k)
    one = mge.tensor([1.0])
    assert [f(one, 0.0).item(), f(one, -0.0).item()] == [np.inf, -np.inf]
    assert np.isnan([f(one, np.nan).item(), f(one, float("nan")).item()]).all()
    assert len(f.variants) == 3


def test_one_tensor_passed_twice_is_a_program_of_its_own() -> None:
    f = mge.jit.compile(lambda x, y: x - y)
    one, two = mge.tensor([1.0]), mge.tensor([2.0])
    assert [f(one, one).item(), f(two, one).item(), f(two, two).item()] == [0.0, 1.0, 0.0]
    assert len(f.variants) == 2


def test_an_argument_that_cannot_be_compared_is_refused() -> None:
    with pytest.raises(TraceError, match="neither a tensor nor hashable"):
        mge.jit.compile(lambda x, y: x)(tensor(), bytearray(b"x"))


def test_results_do_not_alias_arguments_or_one_another() -> None:
    @mge.jit.compile
    def f(x: mge.Tensor) -> tuple[mge.Tensor, ...]:
        y = x + 1
        return x, y, y, y.reshape(-1)

    x = tensor()
    found = f(x)
    addresses = {t._data.__array_interface__["data"][0] for t in (x, *found)}
    assert len(addresses) == 5 or (found[1]._data is found[2]._data and len(addresses) == 4)
    np.testing.assert_array_equal(found[3].numpy(), (X + 1).reshape(-1))


def test_a_method_has_one_program_per_instance() -> None:
    class Scaled:
        def __init__(self, by: float) -> None:
            self.by = mge.tensor(by)

        @mge.jit.compile
        def apply(self, x: mge.Tensor) -> mge.Tensor:
            return x * self.by

    one, two = Scaled(2.0), Scaled(3.0)
    np.testing.assert_array_equal(one.apply(tensor()).numpy(), X * 2)
    np.testing.assert_array_equal(two.apply(tensor()).numpy(), X * 3)
    assert one.apply is one.apply


def test_empty_arrays_pass_through() -> None:
    f = mge.jit.compile(lambda x: (x * 2, x.sum()))
    doubled, total = f(tensor(np.zeros((0, 3), "float32")))
    assert doubled.shape == (0, 3)
    assert total.item() == 0


# -- state ---------------------------------------------------------------------------------


def test_outer_tensors_are_read_at_each_call() -> None:
    w = tensor([2.0])
    f = mge.jit.compile(lambda x: x * w)
    assert f(tensor([3.0])).item() == 6.0
    w[...] = mge.tensor([5.0])
    assert f(tensor([3.0])).item() == 15.0
    assert len(f.variants) == 1


def test_rebound_tensors_are_written_back() -> None:
    count = mge.tensor(0.0)

    @mge.jit.compile
    def f(x: mge.Tensor) -> mge.Tensor:
        nonlocal count
        count += 1
        return x + count

    assert [f(mge.tensor(10.0)).item() for _ in range(3)] == [11.0, 12.0, 13.0]
    assert count.item() == 3.0


def test_an_argument_can_be_rebound() -> None:
    @mge.jit.compile
    def f(x: mge.Tensor) -> None:
        x[0] = 7.0

    for _ in range(2):
        x = tensor([1.0, 2.0])
        f(x)
        assert x.tolist() == [7.0, 2.0]


def test_swapped_state_is_swapped() -> None:
    a, b = mge.tensor([1.0]), mge.tensor([2.0])

    @mge.jit.compile
    def swap() -> None:
        held = a + 0.0
        a._reset(b)
        b._reset(held)

    @mge.jit.compile
    def swap_bare() -> None:
        ya, yb = a.reshape(a.shape), b.reshape(b.shape)
        a._reset(yb)
        b._reset(ya)

    swap()
    assert (a.item(), b.item()) == (2.0, 1.0)
    swap_bare()
    swap_bare()
    swap_bare()
    assert (a.item(), b.item()) == (1.0, 2.0)


def test_old_contents_can_be_returned_beside_new_ones() -> None:
    s = mge.tensor([1.0])

    @mge.jit.compile
    def f() -> tuple[mge.Tensor, mge.Tensor]:
        old = s.reshape(s.shape)
        s._reset(s * 2)
        return old, s + 1

    assert [tuple(t.item() for t in f()) for _ in range(3)] == [(1, 3), (2, 5), (4, 9)]


def test_exported_state_keeps_its_value() -> None:
    s = mge.tensor([1.0, 2.0])

    @mge.jit.compile
    def f() -> None:
        s._reset(s * 2)

    f()
    seen = s.numpy()
    copy = mge.tensor(s)
    f()
    assert seen.tolist() == [2.0, 4.0] and copy.tolist() == [2.0, 4.0]
    assert s.tolist() == [4.0, 8.0]


def test_state_is_updated_in_place_when_nobody_looks() -> None:
    s = mge.tensor(np.zeros(1000, "float32"))

    @mge.jit.compile
    def f() -> None:
        s._reset(s + 1)

    f()
    first = s._data.__array_interface__["data"][0]
    f()
    f()
    assert s._data.__array_interface__["data"][0] == first
    assert s.numpy()[0] == 3


def test_tensors_stored_away_get_values() -> None:
    kept: list[mge.Tensor] = []

    @mge.jit.compile
    def f(x: mge.Tensor) -> mge.Tensor:
        kept.append(x * 10)
        return x

    f(tensor([1.0]))
    assert kept[0].item() == 10.0
    f(tensor([2.0]))
    assert kept[0].item() == 20.0


def test_host_data_made_inside_is_constant() -> None:
    f = mge.jit.compile(lambda x: x + mge.tensor([1.0, 2.0, 3.0]) + F.arange(3) + F.ones(3))
    np.testing.assert_array_equal(f(tensor()).numpy(), X + np.array([2.0, 4.0, 6.0]))


def test_two_handles_of_one_array_are_two_inputs() -> None:
    a = mge.tensor([1.0])
    b = mge.tensor(a)
    f = mge.jit.compile(lambda: a * 10 + b)
    assert f().item() == 11.0
    b[...] = mge.tensor([5.0])
    assert f().item() == 15.0


# -- errors --------------------------------------------------------------------------------


def test_reading_a_value_names_the_line_and_the_way_out() -> None:
    @mge.jit.compile
    def f(x: mge.Tensor) -> mge.Tensor:
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(TraceError, match="known only when the program runs") as error:
        f(tensor())
    assert "test_compile.py" in str(error.value) and "jit.cond" in str(error.value)
    w = tensor([1.0])
    assert (w + 1).item() == 2.0, "nothing is left of the capture"


def test_values_of_constants_can_be_read() -> None:
    @mge.jit.compile
    def f(x: mge.Tensor) -> mge.Tensor:
        return x * int(mge.tensor([2, 3]).sum().item())

    np.testing.assert_array_equal(f(tensor()).numpy(), X * 5)


def test_an_error_in_the_body_leaves_everything_as_it_was() -> None:
    w = mge.tensor([1.0])

    @mge.jit.compile
    def f(x: mge.Tensor, fail: bool) -> mge.Tensor:
        w._reset(w + x)
        if fail:
            raise KeyError("on purpose")
        return w * 1

    with pytest.raises(KeyError, match="on purpose"):
        f(mge.tensor([1.0]), True)
    assert w.item() == 1.0
    assert f(mge.tensor([1.0]), False).item() == 2.0


def test_shape_errors_are_those_of_eager_calls() -> None:
    with pytest.raises(mge.TreadleError, match="matmul"):
        mge.jit.compile(lambda x, y: x @ y)(tensor(), tensor())


# -- training ------------------------------------------------------------------------------


class Net(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = M.Linear(5, 8, bias=False), M.BatchNorm1d(8), M.Linear(8, 3)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        return self.b(F.relu(self.norm(self.a(x))))


Step = Callable[[mge.Tensor, mge.Tensor], mge.Tensor]


def training(make: Callable[[Any], Optimizer]) -> tuple[Net, Optimizer, Step]:
    mge.random.seed(7)
    net = Net()
    optimizer = make(net.parameters())
    gm = GradManager().attach(net.parameters())

    def step(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        with gm:
            loss = F.loss.cross_entropy(net(x), y)
            gm.backward(loss)
        optimizer.step().clear_grad()
        return loss

    return net, optimizer, step


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: Adam(p, 0.01),
}


def batch(i: int) -> tuple[mge.Tensor, mge.Tensor]:
    rng = np.random.default_rng(i)
    return (
        mge.tensor(rng.standard_normal((4, 5), "float32")),
        mge.tensor(rng.integers(0, 3, 4).astype("int32")),
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_step_is_one_program(name: str, compiler: PythonCompiler) -> None:
    net, plain, eager = training(OPTIMIZERS[name])
    other, fast, step = training(OPTIMIZERS[name])
    compiled = mge.jit.compile(step)
    for i in range(6):
        if i == 3:
            for optimizer in (plain, fast):
                optimizer.param_groups[0]["lr"] = 0.05
        want, got = eager(*batch(i)), compiled(*batch(i))
        np.testing.assert_allclose(got.item(), want.item(), rtol=1e-5)
    assert len(compiled.variants) == 1, "a new learning rate compiles nothing"
    for (key, mine), (_, theirs) in zip(other.named_tensors(), net.named_tensors(), strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-6, err_msg=key)
    assert all(p.grad is None for p in other.parameters())
    assert len(compiler.built) == 1


def test_train_and_eval_are_two_programs() -> None:
    net = Net()
    f = mge.jit.compile(net)
    x, _ = batch(0)
    trained = f(x).numpy()
    net.eval()
    np.testing.assert_allclose(f(x).numpy(), net(x).numpy(), rtol=1e-6)
    assert not np.allclose(f(x).numpy(), trained)
    net.train()
    f(x)
    assert len(f.variants) == 2


def test_gradients_stay_where_the_function_leaves_them() -> None:
    w = mge.Parameter([2.0])
    gm = GradManager().attach(w)

    @mge.jit.compile
    def backward(x: mge.Tensor) -> None:
        with gm:
            gm.backward((w * x).sum())

    backward(mge.tensor([3.0]))
    assert w.grad.item() == 3.0
    backward(mge.tensor([4.0]))
    assert w.grad.item() == 7.0, "gradients accumulate"
    w.grad = None
    backward(mge.tensor([5.0]))
    assert w.grad.item() == 5.0
    assert len(backward.variants) == 2


def test_an_optimizer_step_alone_reads_gradients_from_outside() -> None:
    w = mge.Parameter([2.0])
    optimizer = SGD([w], lr=1.0)
    step = mge.jit.compile(lambda: optimizer.step().clear_grad())
    for value in (1.0, 0.5):
        w.grad = mge.tensor([value])
        step()
        assert w.grad is None
    assert w.item() == 0.5
    assert len(step.variants) == 1


def test_random_numbers_go_on_from_call_to_call() -> None:
    @mge.jit.compile
    def noise() -> tuple[mge.Tensor, mge.Tensor]:
        return mge.random.uniform(size=(3,)), F.dropout(F.ones(8), 0.5)

    mge.random.seed(3)
    compiled = [[t.tolist() for t in noise()] for _ in range(3)]
    mge.random.seed(3)
    eager = [[t.tolist() for t in noise.__wrapped__()] for _ in range(3)]
    assert compiled == eager
    assert compiled[0] != compiled[1]


def test_a_recording_sees_through_a_compiled_function() -> None:
    w = mge.Parameter([2.0])
    gm = GradManager().attach(w)
    f = mge.jit.compile(lambda x: w * x * x)
    with gm:
        gm.backward(f(mge.tensor([3.0])).sum())
    assert w.grad.item() == 9.0


def test_compiled_functions_nest() -> None:
    inner = mge.jit.compile(lambda x: x * 2)
    outer = mge.jit.compile(lambda x: inner(x) + 1)
    np.testing.assert_array_equal(outer(tensor()).numpy(), X * 2 + 1)
    assert not inner.variants


# -- threads and looking inside ------------------------------------------------------------


def test_threads_share_a_program(compiler: PythonCompiler) -> None:
    f = mge.jit.compile(lambda x: (x @ x.T).sum() + x.sum())
    want = {i: f.__wrapped__(tensor(X + i)).item() for i in range(8)}
    got: dict[int, float] = {}

    def work(i: int) -> None:
        for _ in range(20):
            got[i] = f(tensor(X + i)).item()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == want
    assert len(compiler.built) == 1


def test_stages_can_be_looked_at() -> None:
    f = mge.jit.compile(lambda x: F.relu(x * 2 + 1).sum())
    stages = f.lower(tensor())
    assert stages.plan is None and stages.optimized is not None
    assert [n.op.name for n in stages.captured.nodes][-1] == "sum"
    report = f.explain(tensor())
    for word in ("prepare", "partition", "optimize", "compile", "load", "memory", "kernels"):
        assert word in report
    assert f(tensor()).item() == np.maximum(X * 2 + 1, 0).sum()


def test_the_program_is_what_eager_computes_at_every_level() -> None:
    def f(x: mge.Tensor) -> mge.Tensor:
        return F.softmax(x * 2 + 1, axis=-1) @ x.T

    want = f(tensor()).numpy()
    for level in range(4):
        got = mge.jit.compile(level=level)(f)(tensor())
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)


# -- inside recordings ---------------------------------------------------------------------


def test_a_compiled_model_is_differentiated() -> None:
    net, optimizer, _ = training(lambda p: SGD(p, 0.1, momentum=0.9))
    other, same, _ = training(lambda p: SGD(p, 0.1, momentum=0.9))
    compiled = mge.jit.compile(other)
    for model, call, update in ((net, net, optimizer), (other, compiled, same)):
        gm = GradManager().attach(model.parameters())
        for i in range(3):
            x, y = batch(i)
            with gm:
                gm.backward(F.loss.cross_entropy(call(x), y))
            update.step().clear_grad()
    assert len(compiled.variants) == 1
    for (key, mine), (_, theirs) in zip(other.named_tensors(), net.named_tensors(), strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6, err_msg=key)


def test_gradients_of_compiled_functions_differentiate_again() -> None:
    cube = mge.jit.compile(lambda x: (x * x * x, x.sum()))
    x = mge.tensor([1.0, 2.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        with inner:
            y, _ = cube(x)
            inner.backward(y.sum())
        first = x.grad
        x.grad = None
        outer.backward(first.sum())
    assert first.tolist() == [3.0, 12.0]
    assert x.grad.tolist() == [6.0, 12.0]


def test_a_step_with_its_own_manager_runs_inside_another_recording() -> None:
    w, v = mge.Parameter([2.0]), mge.Parameter([3.0])
    inner, outer = GradManager().attach(w), GradManager().attach(v)

    @mge.jit.compile
    def step(x: mge.Tensor) -> mge.Tensor:
        with inner:
            loss = (w * x).sum()
            inner.backward(loss)
        return loss

    with outer:
        step(mge.tensor([4.0]))
        outer.backward((v * v).sum())
    assert w.grad.item() == 4.0 and v.grad.item() == 6.0


# -- dynamic extents -----------------------------------------------------------------------


def test_dynamic_axes_capture_once(compiler: PythonCompiler) -> None:
    calls: list[Any] = []
    w = mge.tensor(np.arange(12, dtype="float32").reshape(3, 4))

    @mge.jit.compile(dynamic={0: {0: "batch"}, 1: {0: "batch"}})
    def f(x: mge.Tensor, y: mge.Tensor) -> tuple[mge.Tensor, ...]:
        calls.append(x.shape)
        hidden = F.relu(x @ w) + y.reshape(x.shape[0], 1)
        return hidden.mean(), F.softmax(hidden.reshape(-1, 2), axis=-1), x.sum(axis=0)

    for n in (2, 5, 1, 5):
        x = mge.tensor(np.random.default_rng(n).standard_normal((n, 3), "float32"))
        y = mge.tensor(np.arange(n, dtype="float32"))
        for got, want in zip(f(x, y), f.__wrapped__(x, y), strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)
    assert len(calls) == 2 + 4, "an extent of 1 broadcasts: it has a capture of its own"
    assert len(compiler.built) == 3


def test_dynamic_training_steps() -> None:
    _, _, eager = training(OPTIMIZERS["sgd"])
    _, _, step = training(OPTIMIZERS["sgd"])
    compiled = mge.jit.compile(dynamic={0: {0: "n"}, 1: {0: "n"}})(step)
    for n in (4, 3, 4, 2):
        x, y = batch(n)
        x, y = x[:n], y[:n]
        np.testing.assert_allclose(compiled(x, y).item(), eager(x, y).item(), rtol=1e-5)


def test_dynamic_axes_are_checked() -> None:
    f = mge.jit.compile(dynamic={0: {0: "n"}, 1: {1: "n"}})(lambda x, y: x.sum() + y.sum())
    with pytest.raises(mge.TreadleError, match="dynamic extent 'n' is 2 and 3"):
        f(tensor(), tensor())
    with pytest.raises(mge.TreadleError, match="argument 1 has no axes"):
        f(tensor(), mge.tensor([1.0]))
    with pytest.raises(mge.TreadleError, match="argument 1 has no axes"):
        f(tensor(), 3)


def test_places_of_a_dynamic_axis() -> None:
    """An integer index took the whole axis, so that programs fit one row only."""

    def turned(x: mge.Tensor) -> tuple[mge.Tensor, ...]:
        y = x * 1
        y[0] = x[-1] * 2
        return y, x[0] - x[-2]

    compiled = mge.jit.compile(dynamic={0: {0: "n"}})(turned)
    for n in (3, 2, 5):
        x = mge.tensor(np.arange(n * 2, dtype="float32").reshape(n, 2))
        for got, want in zip(compiled(x), turned(x), strict=True):
            np.testing.assert_array_equal(got.numpy(), want.numpy())
    with pytest.raises(mge.TreadleError, match="index -2 is out of range"):
        compiled(mge.tensor(np.ones((1, 2), "float32")))


def test_a_tensor_that_is_passed_and_reached_is_two_inputs() -> None:
    w, z = mge.tensor([2.0]), mge.tensor([5.0])
    f = mge.jit.compile(lambda x: x * w)
    assert f(w).item() == 4.0
    assert f(z).item() == 10.0
    w[...] = mge.tensor([3.0])
    assert f(z).item() == 15.0
    net = M.Linear(2, 2)
    g = mge.jit.compile(lambda m: (net(m) * net.weight).sum())
    assert np.isclose(g(net.weight).item(), g.__wrapped__(net.weight).item())
    other = mge.tensor(np.ones((2, 2), "float32"))
    assert np.isclose(g(other).item(), g.__wrapped__(other).item())


def test_gradients_of_what_the_body_makes_need_no_capture_per_call() -> None:
    """Attacks and penalties take gradients of tensors that no call but their own knows."""
    weight = mge.Parameter(np.ones((3, 1), "float32"))
    outer = mge.autodiff.GradManager().attach([weight])
    bodies: list[int] = []

    def attacked(x: mge.Tensor) -> mge.Tensor:
        bodies.append(1)
        near = x * 1
        inner = mge.autodiff.GradManager().attach([near])
        with inner:
            inner.backward(F.sin(near @ weight).sum())
        with outer:
            outer.backward(((x + F.sign(near.grad)) @ weight).sum())
        found, weight.grad = weight.grad, None
        return found

    compiled = mge.jit.compile(attacked)
    for n in (1.0, 2.0, 3.0):
        x = mge.tensor(np.full((2, 3), n, "float32"))
        np.testing.assert_allclose(compiled(x).numpy(), attacked(x).numpy(), rtol=1e-6)
    assert len(bodies) == 4, "one for the program, three for what is compared"
    found = list(mge.jit.sink(compiled, [x] * 4, 2))
    np.testing.assert_array_equal(found[-1].numpy(), attacked(x).numpy())
