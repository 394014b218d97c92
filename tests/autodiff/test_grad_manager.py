"""GradManager: attaching, recording, several losses, nesting, higher order, life of objects."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.autodiff import (
    GradManager,
    get_backwarding_grad_manager,
    no_grad,
    stop_gradient,
)
from treadle.autodiff import tape as tape_module
from treadle.autodiff.tape import Tape, TapeNode, current
from treadle.base.errors import AutodiffError, ShapeError
from treadle.tensor import Tensor


def tensor(*values: float) -> Tensor:
    return mge.tensor(list(values), device="cpux")


def grad_of(t: Tensor) -> list[float]:
    assert t.grad is not None
    return [float(v) for v in t.grad.numpy().reshape(-1)]


def test_chain_rule_of_the_basic_example() -> None:
    w, x, b = (mge.tensor([[v]]) for v in (1.0, 3.0, -1.0))
    gm = GradManager().attach([w, b])
    with gm:
        y = F.matmul(x, w) + b
        gm.backward(y)
    assert grad_of(w) == [3.0]
    assert grad_of(b) == [1.0]
    assert x.grad is None


def test_attach_takes_one_tensor_or_several_and_chains() -> None:
    x, y = tensor(1.0), tensor(2.0)
    gm = GradManager()
    assert gm.attach(x) is gm
    gm.attach(t for t in [y])
    assert gm.attached_tensors() == [x, y] or {id(t) for t in gm.attached_tensors()} == {
        id(x),
        id(y),
    }


@pytest.mark.parametrize("wrong", [3, "x", mge.tensor([1, 2])])
def test_attach_refuses_what_has_no_gradient(wrong: Any) -> None:
    with pytest.raises(AssertionError):
        GradManager().attach([wrong])


@pytest.mark.parametrize("wrong", [1, [1.0], None, "tensor", [mge.tensor([True])]])
def test_what_cannot_be_attached_is_told(wrong: Any) -> None:
    with pytest.raises(AssertionError, match="attach takes floating tensors"):
        GradManager().attach(wrong)


def test_only_weak_references_are_kept() -> None:
    x = tensor(1.0)
    gm = GradManager().attach(x)
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert alive() is None
    assert gm.attached_tensors() == []


def test_gradients_accumulate_until_cleared() -> None:
    x = tensor(1.0, 2.0)
    gm = GradManager().attach(x)
    for _ in range(2):
        with gm:
            gm.backward((x * x).sum())
    assert grad_of(x) == [4.0, 8.0]
    x.grad = None
    with gm:
        gm.backward((x * x).sum())
    assert grad_of(x) == [2.0, 4.0]


def test_several_losses_and_given_cotangents() -> None:
    x = tensor(1.0, 2.0)
    gm = GradManager().attach(x)
    with gm:
        gm.backward([x * 2, x * x], [tensor(1.0, 1.0), tensor(10.0, 1.0)])
    assert grad_of(x) == [22.0, 6.0]


def test_cotangent_defaults_to_ones_and_must_fit() -> None:
    x = tensor(1.0, 2.0)
    gm = GradManager().attach(x)
    with gm:
        gm.backward(x * 3)
    assert grad_of(x) == [3.0, 3.0]
    with gm:
        y = x * 3
        with pytest.raises(ShapeError, match="dy and y differ in shape"):
            gm.backward(y, tensor(1.0))
    with gm, pytest.raises(ShapeError, match="1 cotangents were given for 2 outputs"):
        gm.backward([x * 3, x * 2], tensor(1.0, 1.0))


def test_the_same_output_twice_counts_twice() -> None:
    x = tensor(2.0)
    gm = GradManager().attach(x)
    with gm:
        y = x * x
        gm.backward([y, y])
    assert grad_of(x) == [8.0]


def test_backward_without_arguments_is_legal() -> None:
    x = tensor(1.0)
    gm = GradManager().attach(x)
    with gm:
        gm.backward()
    assert x.grad is None


def test_misuse_is_refused() -> None:
    x = tensor(1.0)
    gm = GradManager().attach(x)
    with pytest.raises(RuntimeError, match="no computation history"):
        gm.backward(x)
    gm.record()
    with pytest.raises(RuntimeError, match="already recording"):
        gm.record()
    gm.backward(x * 2)
    with pytest.raises(AutodiffError, match="no computation history"):
        gm.backward(x * 2)
    assert grad_of(x) == [2.0]
    assert current().managers == 0


@pytest.mark.parametrize("wrong", [3.0, [3.0], "y"])
def test_backward_takes_tensors(wrong: Any) -> None:
    gm = GradManager().attach(Tensor([1.0]))
    with gm, pytest.raises(TypeError, match="backward takes a tensor or a list of tensors, got"):
        gm.backward(wrong)
    gm.record()
    gm.release()


def test_record_and_release_by_hand() -> None:
    x = tensor(3.0)
    gm = GradManager().attach(x)
    gm.record()
    y = x * x
    gm.backward(y)
    gm.release()
    gm.release()
    assert grad_of(x) == [6.0]


def test_nothing_is_recorded_outside() -> None:
    x = tensor(1.0)
    gm = GradManager().attach(x)
    before = x * 2
    with gm:
        gm.backward(before * 3)
    assert x.grad is None
    assert before._trace is None


def test_an_exception_ends_the_recording() -> None:
    x = tensor(1.0)
    gm = GradManager().attach(x)
    with pytest.raises(ZeroDivisionError), gm:
        _ = x * x
        1 / 0
    assert current().managers == 0
    with gm:
        gm.backward(x * x)
    assert grad_of(x) == [2.0]


def test_a_failing_backward_still_releases() -> None:
    x = tensor(1.0)

    def fails(_: Tensor, __: Tensor) -> None:
        raise KeyError("callback")

    gm = GradManager().attach(x, fails)
    with pytest.raises(KeyError), gm:
        gm.backward(x * x)
    assert current().managers == 0


def test_callbacks_feed_one_another() -> None:
    x = tensor(1.0, 2.0)
    seen: list[Any] = []
    gm = GradManager().attach(x, lambda t, g: (seen.append((t, g.tolist())), g * 10)[1])
    gm.attach(x, [lambda _, g: g + 1])
    with gm:
        gm.backward(x.sum())
    assert seen[0][0] is x
    assert seen[0][1] == [1.0, 1.0]
    assert grad_of(x) == [11.0, 11.0]


def test_a_callback_may_withhold_or_promise_the_gradient() -> None:
    x, y = tensor(1.0), tensor(1.0)

    class Promise:
        def __init__(self, value: Tensor) -> None:
            self.value = value

        def get(self) -> Tensor:
            return self.value * 5

    order: list[str] = []
    gm = GradManager().attach(x, lambda *_: None)
    gm.attach(y, lambda _, g: Promise(g))
    gm._register_after_backward_callback(lambda: order.append("after"))
    with gm:
        gm.backward(x * y)
    assert x.grad is None
    assert grad_of(y) == [5.0]
    assert order == ["after"]


def test_only_living_tensors_that_the_outputs_depend_on_are_reported() -> None:
    x, unused, gone = tensor(1.0), tensor(1.0), tensor(5.0)
    seen: list[Any] = []
    gm = GradManager().attach([x, unused, gone], lambda t, g: (seen.append(t), g)[1])
    with gm:
        y = x * gone
        del gone
        gm.backward(y)
    assert [id(t) for t in seen] == [id(x)]
    assert grad_of(x) == [5.0]
    assert unused.grad is None


def test_the_running_manager_is_known_to_callbacks() -> None:
    x = tensor(1.0)
    seen: list[Any] = []
    gm = GradManager().attach(x, lambda _, g: (seen.append(get_backwarding_grad_manager()), g)[1])
    with gm:
        gm.backward(x * 2)
    assert seen == [gm]
    assert get_backwarding_grad_manager() is None


def test_intermediate_tensors_can_be_attached() -> None:
    x = tensor(2.0)
    gm = GradManager().attach(x)
    with gm:
        h = x * x
        gm.attach(h)
        gm.backward(h * 3)
    assert grad_of(h) == [3.0]
    assert grad_of(x) == [12.0]


def test_attaching_late_ignores_what_came_before() -> None:
    x = tensor(2.0)
    gm = GradManager()
    with gm:
        before = x * 5
        gm.attach(x)
        gm.backward(before + x * x)
    assert grad_of(x) == [4.0]


def test_mutation_is_differentiated_through_from_the_snapshot() -> None:
    a = tensor(3.0)
    gm = GradManager().attach(a)
    with gm:
        a += 1
        gm.backward(a * a)
    assert grad_of(a) == [8.0]


def test_detach_and_no_grad_stop_gradients() -> None:
    x = tensor(2.0)
    gm = GradManager().attach(x)
    with gm:
        y = x * x.detach() + stop_gradient(x * 7)
        with no_grad():
            constant = x * 100
        gm.backward(y + constant)
    assert grad_of(x) == [2.0]


def test_gradients_keep_shape_dtype_and_device() -> None:
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        x = mge.tensor(1.5, dtype=dtype, device="cpu1")
        gm = GradManager().attach(x)
        with gm:
            gm.backward(x * x)
        assert x.grad.shape == ()
        assert x.grad.dtype == x.dtype
        assert x.grad.device == "cpu1"


# -- higher order and several managers ---------------------------------------------------------


def test_second_and_third_order() -> None:
    x = tensor(2.0)
    outer, middle, inner = (GradManager().attach(x) for _ in range(3))
    with outer:
        with middle:
            with inner:
                inner.backward(x * x * x * x)
            first, x.grad = x.grad, None
            middle.backward(first)
        second, x.grad = x.grad, None
        outer.backward(second)
    assert float(first) == 32.0
    assert float(second) == 48.0
    assert grad_of(x) == [48.0]


def test_group_members_do_not_see_each_other() -> None:
    values = np.random.default_rng(0).random(5).astype("float32")
    x = mge.tensor(values)
    first, second = GradManager().attach(x), GradManager().attach(x)
    with first | second:
        y = F.cos(x)
        first.backward(y)
        np.testing.assert_allclose(x.grad.numpy(), -np.sin(values), rtol=1e-5)
        second.backward(x.grad)
    np.testing.assert_allclose(x.grad.numpy(), -np.sin(values), rtol=1e-5)


def test_group_members_both_get_gradients() -> None:
    x = tensor(3.0)
    first, second = GradManager().attach(x), GradManager().attach(x)
    with first | second:
        y = x * x
        first.backward(y)
        second.backward(y)
    assert grad_of(x) == [12.0]


def test_a_group_that_is_left_stops_recording() -> None:
    x = tensor(3.0)
    first, second = GradManager().attach(x), GradManager().attach(x)
    with first | second:
        pass
    assert current().managers == 0
    with pytest.raises(AutodiffError, match="no computation history"):
        second.backward(x)


def test_outer_sees_inner_and_not_the_other_way_round() -> None:
    values = np.array([0.3, 1.1], "float32")
    x = mge.tensor(values)
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer, inner:
        inner.backward(F.cos(x))
        outer.backward(x.grad)
    np.testing.assert_allclose(x.grad.numpy(), -np.sin(values) - np.cos(values), rtol=1e-5)
    x.grad = None
    with outer, inner:
        outer.backward(F.cos(x))
        inner.backward(x.grad)
    np.testing.assert_allclose(x.grad.numpy(), -np.sin(values), rtol=1e-5)


def test_gradient_rules_that_make_constants_are_differentiated_again() -> None:
    x = mge.tensor([[0.5, -1.0, 2.0]])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        with inner:
            inner.backward(F.nn.cross_entropy(x, mge.tensor([1])))
        first, x.grad = x.grad, None
        outer.backward(first, mge.tensor([[1.0, 0.0, 0.0]]))
    p = np.exp(x.numpy()) / np.exp(x.numpy()).sum()
    np.testing.assert_allclose(first.numpy(), p - [[0, 1, 0]], rtol=1e-5)
    np.testing.assert_allclose(x.grad.numpy(), p[0, 0] * ([[1, 0, 0]] - p), rtol=1e-5)


def test_a_manager_sees_neither_older_ops_nor_its_siblings_gradients() -> None:
    x = tensor(3.0)
    outer, first, second = (GradManager().attach(x) for _ in range(3))
    with outer:
        before = x * x
        with first | second:
            first.backward(x * x * before)
            found, x.grad = x.grad, None
            second.backward(found * x)
    assert found.tolist() == [54.0], "the older square counts as 9"
    assert grad_of(x) == [54.0]


def test_the_outer_manager_goes_on_after_the_inner_one() -> None:
    x = tensor(3.0)
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        with inner:
            inner.backward(x * 2)
        x.grad = None
        outer.backward(x * x)
    assert grad_of(x) == [6.0]
    assert x._trace is None, "after the last one nothing is left on the tensor"


def test_managers_with_different_tensors_nest() -> None:
    x, w = tensor(2.0), tensor(5.0)
    outer, inner = GradManager().attach(w), GradManager().attach(x)
    with outer:
        with inner:
            inner.backward(w * x * x)
        outer.backward(x.grad)
    assert grad_of(w) == [4.0]


# -- size and life -----------------------------------------------------------------------------


def count(kind: type) -> int:
    gc.collect()
    return sum(type(o) is kind for o in gc.get_objects())


def test_nothing_leaks_over_many_steps() -> None:
    x = tensor(1.0, 2.0)
    gm = GradManager().attach(x)

    def step() -> None:
        with gm:
            y = (F.exp(x) * x).sum()
            gm.backward(y)
        x.grad = None

    step()
    tensors, nodes = count(Tensor), count(TapeNode)
    for _ in range(20):
        step()
    assert count(Tensor) == tensors
    assert count(TapeNode) == nodes


def test_release_frees_what_outputs_held() -> None:
    x = mge.tensor(np.ones(1000, "float32"), device="cpux")
    gm = GradManager().attach(x)
    mge.device.reset_max_memory_stats("cpux")
    before = mge.get_allocated_memory("cpux")
    with gm:
        y = F.exp(F.exp(x)).sum()
        assert mge.get_allocated_memory("cpux") >= before + 2 * x.numpy().nbytes
    after = mge.get_allocated_memory("cpux")
    assert after <= before + 64
    assert y.shape == ()
    assert mge.device.get_max_allocated_memory("cpux") >= before + 2 * x.numpy().nbytes


def test_unreachable_branches_are_freed_while_recording() -> None:
    x = tensor(1.0)
    gm = GradManager().attach(x)
    with gm:
        start = count(TapeNode)
        for _ in range(50):
            _ = F.exp(x) * 2
        assert count(TapeNode) <= start + 2
        gm.backward(x * x)


def test_the_log_of_a_long_recording_stays_short(monkeypatch: pytest.MonkeyPatch) -> None:
    tape = Tape()
    monkeypatch.setattr(tape_module._TAPES, "tape", tape)
    monkeypatch.setattr(tape_module, "_PRUNE_EVERY", 15)
    x = tensor(1.0)
    with GradManager().attach(x):
        for _ in range(200):
            _ = F.exp(x) * 2
        assert 0 < len(tape._log) < 64, "400 ops ran, and nobody holds their results"


def test_deep_chains_need_no_recursion() -> None:
    x = tensor(1.0)
    gm = GradManager().attach(x)
    with gm:
        y = x
        for _ in range(10_000):
            y = y + 0.001
        gm.backward(y)
    assert grad_of(x) == [1.0]
    with gm:
        y = x
        for _ in range(10_000):
            y = y * 1.0
        del y


def test_memory_is_flat_without_recording() -> None:
    x = tensor(1.0, 2.0)
    y = x
    for _ in range(100):
        y = F.tanh(y * x)
    before = count(Tensor)
    for _ in range(1000):
        y = F.tanh(y * x)
    assert count(Tensor) <= before + 1
    assert count(TapeNode) == 0 or y._trace is None


def test_recordings_of_threads_are_separate() -> None:
    import threading

    x = tensor(2.0)
    gm = GradManager().attach(x)
    other: list[Any] = []

    def work() -> None:
        y = x * 3
        other.append(y._trace)

    with gm:
        _ = x * 1
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        gm.backward(x * x)
    assert other == [None]
    assert grad_of(x) == [4.0]


def test_managers_leave_nothing_behind_on_parameters() -> None:
    w = mge.Parameter([2.0])
    seen: list[weakref.ref[Any]] = []

    class Held:
        """What a callback refers to."""

    def step() -> None:
        held = Held()
        seen.append(weakref.ref(held))
        with GradManager().attach(w, callbacks=lambda _, g, held=held: g):
            _ = w * w

    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            step()
        assert [r() for r in seen] == [None] * 3
    finally:
        gc.enable()


def test_attached_tensors_that_are_gone_are_forgotten() -> None:
    gm = GradManager()
    w = mge.Parameter([2.0])
    gm.attach(w)
    del w
    assert gm.attached_tensors() == []
    assert not gm._attached
