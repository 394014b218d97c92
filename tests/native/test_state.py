"""State and arguments of programs: what changes between calls, what is shared, who holds on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import optimizer as optim
from treadle.autodiff import GradManager
from treadle.base.errors import IndexRangeError, NumericError
from treadle.jit import TraceError


def ramp(*shape: int) -> mge.Tensor:
    return mge.tensor(np.arange(np.prod(shape), dtype="float32").reshape(shape))


# -- state that changes outside ------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [np.ones(7, "float32"), np.ones((2, 2), "float32"), np.array([5, 6], "int32")]
)
def test_state_of_another_type_is_captured_anew(value: np.ndarray[Any, Any]) -> None:
    state = ramp(4)
    double = mge.jit.compile(lambda: state * 2)
    double()
    state._reset(mge.tensor(value))
    for _ in range(2):
        got = double()
        assert got.dtype == value.dtype and got.tolist() == (value * 2).tolist()
    state._reset(ramp(4))
    assert double().tolist() == [0, 2, 4, 6]
    assert len(double.variants) == 2


def test_state_that_grows() -> None:
    state = ramp(1)

    @mge.jit.compile
    def grow() -> mge.Tensor:
        state._reset(F.concat([state, state + 1]))
        return state.sum()

    assert [grow().item() for _ in range(3)] == [1, 4, 12]
    assert state.shape == (8,)


def test_gradients_that_change_shape_or_handle() -> None:
    w = mge.Parameter([2.0, 3.0])
    norm = mge.jit.compile(lambda: (w.grad * w.grad).sum())
    for data in ([1.0, 2.0], [3.0, 4.0], [1.0, 2.0, 2.0]):
        w.grad = mge.tensor(data)
        assert norm().item() == sum(x * x for x in data)


def test_clipping_in_a_program_of_its_own() -> None:
    w = mge.Parameter([3.0, 4.0])
    gm = GradManager().attach(w)
    clip = mge.jit.compile(lambda: optim.clip_grad_norm([w], 1.0))
    for scale in (1.0, 2.0):
        w.grad = None
        with gm:
            gm.backward((w * w).sum() * scale)
        np.testing.assert_allclose(float(clip()), 10 * scale, rtol=1e-5)
        np.testing.assert_allclose(w.grad.numpy(), [0.6, 0.8], rtol=1e-4)


def test_slots_that_are_emptied_by_assignment() -> None:
    w = mge.Parameter([2.0])
    gm = GradManager().attach(w)

    @mge.jit.compile
    def backward(x: mge.Tensor) -> mge.Tensor:
        w.grad = None
        with gm:
            gm.backward((w * x).sum())
        return w.grad * 1

    assert [backward(mge.tensor([x])).item() for x in (1.0, 2.0, 3.0)] == [1, 2, 3]
    assert len(backward.variants) <= 2


# -- arguments that alias ------------------------------------------------------------------


def test_one_tensor_passed_twice() -> None:
    f = mge.jit.compile(lambda a, b: a * 10 - b)
    x, y = mge.tensor([1.0]), mge.tensor([2.0])
    assert [f(a, b).item() for a, b in ((x, x), (x, y), (y, x), (y, y))] == [9, 8, 19, 18]


def test_one_tensor_passed_twice_and_rebound() -> None:
    @mge.jit.compile
    def f(a: mge.Tensor, b: mge.Tensor) -> mge.Tensor:
        a[0] = 5.0
        return b * 1

    x, y = mge.tensor([1.0, 2.0]), mge.tensor([3.0, 4.0])
    assert f(x, y).tolist() == [3, 4]
    assert f(x, x).tolist() == [5, 2]


@pytest.mark.parametrize("first", ["state", "other"])
def test_state_passed_as_an_argument(first: str) -> None:
    w, v = mge.tensor([10.0]), mge.tensor([1.0])
    f = mge.jit.compile(lambda a: a * 100 + w)
    calls = [(w, 1010.0), (v, 110.0)]
    for given, want in calls if first == "state" else reversed(calls):
        assert f(given).item() == want


def test_gradients_of_arguments_belong_to_who_is_passed() -> None:
    a, b = mge.tensor([1.0, 2.0]), mge.tensor([3.0, 4.0])
    gm = GradManager().attach([a, b])

    @mge.jit.compile
    def backward(x: mge.Tensor) -> None:
        with gm:
            gm.backward((x * x).sum())

    backward(a)
    a.grad = None
    backward(b)
    assert a.grad is None and b.grad.tolist() == [6, 8]
    double = mge.jit.compile(lambda x: x.grad * 2)
    a.grad = mge.tensor([7.0, 7.0])
    assert double(a).tolist() == [14, 14] and double(b).tolist() == [12, 16]


def test_arguments_that_are_updated_by_a_sink_have_arrays_of_their_own() -> None:
    @mge.jit.compile
    def scaled(x: mge.Tensor) -> mge.Tensor:
        x[0] = x[0] * 2
        return x.sum()

    given = [mge.tensor([1.0 + i, 2.0]) for i in range(4)]
    copies = [mge.tensor(x) for x in given]
    assert [t.item() for t in mge.jit.sink(scaled, given, 2)] == [6, 10]
    assert [x.tolist() for x in given] == [[2, 2], [4, 2], [6, 2], [8, 2]]
    assert [x.tolist() for x in copies] == [[1, 2], [2, 2], [3, 2], [4, 2]]
    one = mge.tensor([1.0, 2.0])
    list(mge.jit.sink(scaled, [one] * 4, 4))
    assert one.tolist() == [16, 2]


def test_a_sink_refuses_gradients_that_would_accumulate() -> None:
    w = mge.Parameter([2.0])
    gm = GradManager().attach(w)

    @mge.jit.compile
    def backward(x: mge.Tensor) -> None:
        with gm:
            gm.backward((w * x).sum())

    with pytest.raises(TraceError, match="accumulate"):
        list(mge.jit.sink(backward, [mge.tensor([1.0]), mge.tensor([2.0])], 2))


# -- who holds on to arrays ----------------------------------------------------------------

EXPORTS: dict[str, Callable[[mge.Tensor], Any]] = {
    "numpy": lambda s: s.numpy(),
    "part": lambda s: s.numpy()[1:],
    "asarray": np.asarray,
    "memoryview": lambda s: memoryview(s.numpy()),
    "dlpack": lambda s: np.from_dlpack(s),
    "detached": lambda s: s.detach(),
    "tensor": lambda s: mge.tensor(s),
    "copy": lambda s: F.copy(s),
    "reshaped": lambda s: s.reshape(2, 2),
}


@pytest.mark.parametrize("name", EXPORTS)
@pytest.mark.parametrize("calls", [0, 1, 3])
def test_what_was_exported_stays(name: str, calls: int) -> None:
    if name == "dlpack" and not callable(getattr(mge.Tensor, "__dlpack__", None)):
        name = "numpy"
    state = mge.tensor(np.zeros(4, "float32"))
    step = mge.jit.compile(lambda: state._reset(state + 1))
    for _ in range(calls):
        step()
    held = EXPORTS[name](state)
    for _ in range(3):
        step()
    seen = held.numpy() if isinstance(held, mge.Tensor) else np.asarray(held)
    assert (seen == calls).all() and (state.numpy() == calls + 3).all()


def test_host_data_that_changes_later_is_not_seen() -> None:
    data = np.arange(4, dtype="float32")
    state = mge.tensor(data)
    data.flags.writeable = False
    step = mge.jit.compile(lambda: state._reset(state + 1))
    step()
    step()
    assert data.tolist() == [0, 1, 2, 3] and state.tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize("view", [lambda a: a.T, lambda a: a[:, ::2], lambda a: a[::-1]])
def test_arrays_that_are_not_dense(view: Callable[[Any], Any]) -> None:
    data = np.arange(16, dtype="float32").reshape(4, 4)
    data.flags.writeable = False
    f = mge.jit.compile(lambda x: F.matmul(x, x.T).sum(0))
    np.testing.assert_array_equal(f(view(data)).numpy(), (view(data) @ view(data).T).sum(0))


def test_packed_weights_follow_the_program_that_updates_them() -> None:
    w, x = mge.tensor(np.zeros((64, 64), "float32")), mge.tensor(np.ones((64, 64), "float32"))
    update = mge.jit.compile(lambda: w._reset(w + 1))
    use = mge.jit.compile(lambda x: F.matmul(x, w).mean())
    for turn in range(1, 5):
        update()
        assert use(x).item() == 64 * turn


# -- threads -------------------------------------------------------------------------------


def together(*work: Callable[[], None]) -> None:
    """Run all at once; raises what one of them raised."""
    trouble: list[BaseException] = []

    def guarded(run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            trouble.append(error)

    threads = [threading.Thread(target=guarded, args=(w,)) for w in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if trouble:
        raise trouble[0]


def test_threads_capture_programs_over_one_model() -> None:
    net = M.Linear(16, 16)
    once = mge.jit.compile(lambda x: F.relu(net(x)).sum())
    twice = mge.jit.compile(lambda x: net(net(x)).sum())

    def work(f: Any, rows: int) -> Callable[[], None]:
        x = mge.tensor(np.full((rows, 16), 0.5, "float32"))

        def run() -> None:
            first = f(x).item()
            for _ in range(5):
                assert f(x).item() == first

        return run

    together(*[work(f, rows) for rows in (1, 2, 3) for f in (once, twice)])


def test_threads_update_one_state() -> None:
    state = mge.tensor(np.zeros(50, "float32"))
    step = mge.jit.compile(lambda: state._reset(state + 1))

    def run() -> None:
        for _ in range(100):
            step()

    together(*[run] * 4)
    assert (state.numpy() == 400).all()


def test_weights_that_are_rebound_while_others_compute() -> None:
    w, x = mge.tensor(np.zeros((96, 96), "float32")), mge.tensor(np.ones((4, 96), "float32"))
    f = mge.jit.compile(lambda x: F.matmul(x, w))
    f(x)
    stop = threading.Event()

    def infer() -> None:
        while not stop.is_set():
            found = f(x).numpy()
            assert (found == found[0, 0]).all() and found[0, 0] % 96 == 0

    def rebind() -> None:
        try:
            for turn in range(60):
                w._reset(mge.tensor(np.full((96, 96), turn, "float32")))
                assert f(x).numpy()[0, 0] == 96 * turn
        finally:
            stop.set()

    together(infer, infer, rebind)


# -- ops that only Python runs, data that is bad -------------------------------------------


def test_an_error_of_a_host_op_leaves_the_program_usable() -> None:
    f = mge.jit.compile(lambda x: F.matinv(x) * 2)
    eye = mge.tensor(np.eye(3, dtype="float32"))
    for _ in range(2):
        np.testing.assert_array_equal(f(eye).numpy(), np.eye(3) * 2)
        with pytest.raises(NumericError, match="singular"):
            f(eye * 0)


def test_infinities_do_not_vanish() -> None:
    x = mge.tensor(np.array([np.nan, np.inf, -np.inf, 2.0], "float32"))
    for level in range(4):
        f = mge.jit.compile(level=level)(
            lambda x: (x - x, x * 0, x - x.mean(keepdims=True, axis=0))
        )
        for got, want in zip(f(x), f.__wrapped__(x), strict=True):
            np.testing.assert_array_equal(got.numpy(), want.numpy())


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_wild_indices_are_errors_and_touch_no_foreign_memory(kind: str) -> None:
    edges = np.iinfo(kind)
    index = np.array([[edges.min, -1, 5], [edges.max, 2, -100]]).astype(kind)
    x = ramp(2, 3)
    i, one = mge.tensor(index, dtype=kind), mge.tensor(np.ones(1, kind), dtype=kind)
    for wild in (
        lambda x, i, one: F.gather(x, 1, i * one),
        lambda x, i, one: x[i * one],
        lambda x, i, one: F.scatter(x, 1, i * one, x * 0 + 9),
    ):
        with pytest.raises(IndexRangeError, match="is out of range for an extent of"):
            mge.jit.compile(wild)(x, i, one)
    np.testing.assert_array_equal(x.numpy(), ramp(2, 3).numpy())


def test_extents_of_zero() -> None:
    def f(x: mge.Tensor, y: mge.Tensor) -> tuple[mge.Tensor, ...]:
        products = F.matmul(x, y), F.matmul(y, x) + 1
        return (*products, F.softmax(x, -1), F.concat([x, x]), x.sum(axis=1), x[::-1], y.sum(1))

    x, y = mge.tensor(np.zeros((0, 3), "float32")), mge.tensor(np.zeros((3, 0), "float32"))
    for got, want in zip(mge.jit.compile(f)(x, y), f(x, y), strict=True):
        np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_a_tensor_that_another_thread_captures_says_so() -> None:
    w, inside, leave = ramp(4), threading.Event(), threading.Event()

    def slow() -> mge.Tensor:
        made = w * 2
        inside.set()
        leave.wait(300)
        return made

    def meanwhile() -> None:
        inside.wait(300)
        try:
            for use in (lambda: F.exp(w), lambda: w + 1, lambda: w.numpy(), lambda: F.sum(w)):
                with pytest.raises(TraceError, match="of a capture is used outside"):
                    use()
        finally:
            leave.set()

    together(mge.jit.compile(slow), meanwhile)
    assert (w + 1).tolist() == [1, 2, 3, 4]
