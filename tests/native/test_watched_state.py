"""Calls that look at state natively: what Python would see, native code sees, too."""

import threading

import numpy as np
import pytest

import treadle as mge
from treadle import jit
from treadle.backends import watch
from treadle.engine.execute.executor import Executor
from treadle.tensor import Tensor


@pytest.fixture(params=["native", "python"], ids=str)
def looks(request, monkeypatch):
    """How many runs went the short way; none where the interpreter lays objects out otherwise."""
    if request.param == "python":
        monkeypatch.setattr(watch, "slot_offset", lambda cls, slot: None)
    short = []
    plain = Executor.run_if_unchanged

    def counted(self, inputs, watched, at):
        found = plain(self, inputs, watched, at)
        short.append(found is not None)
        return found

    monkeypatch.setattr(Executor, "run_if_unchanged", counted)
    short.append(request.param == "native")
    return short


def _took_the_short_way(looks):
    native, *rest = looks
    return rest[-1] == native and (native or not any(rest))


def _array(*values):
    return np.array(values, np.float32)


def test_state_that_was_rebound_is_read(looks):
    p = mge.Parameter(_array(1, 2))
    f = jit.compile(lambda x: x + p)
    x = mge.tensor(_array(0, 0))
    for _ in range(3):
        assert f(x).numpy().tolist() == [1, 2]
    assert _took_the_short_way(looks)
    p[0] = 5.0
    assert f(x).numpy().tolist() == [5, 2]
    p._reset(mge.tensor(_array(7, 8)))
    assert f(x).numpy().tolist() == [7, 8]
    assert f(x).numpy().tolist() == [7, 8]
    assert _took_the_short_way(looks)


def test_arrays_that_others_hold_are_left_to_them(looks):
    p = mge.Parameter(_array(1, 2))

    @jit.compile
    def step(x):
        p._reset(p + x)
        return p * 1

    x, kept = mge.tensor(_array(1, 1)), []
    for turn in range(6):
        assert step(x).numpy().tolist() == [2 + turn, 3 + turn]
        if turn % 2:
            kept.append((p.numpy(), p.detach(), [2 + turn, 3 + turn]))
    for array, tensor, values in kept:
        assert array.tolist() == tensor.numpy().tolist() == values


def test_steps_that_nobody_looks_at_update_in_place(looks):
    p = mge.Parameter(_array(1, 2))

    @jit.compile
    def step(x):
        p._reset(p + x)
        return x * 2

    x = mge.tensor(_array(1, 1))
    step(x), step(x)
    before = p._data
    address = before.ctypes.data
    del before
    step(x), step(x)
    assert _took_the_short_way(looks)
    assert p._data.ctypes.data == address
    assert p.numpy().tolist() == [5, 6]


class _Own(np.ndarray):
    pass


@pytest.mark.parametrize(
    "made",
    [
        lambda: np.arange(12, dtype="float32").reshape(3, 4).T,
        lambda: np.arange(24, dtype="float32").reshape(4, 6)[:, ::2],
        lambda: np.arange(12, dtype="float32").reshape(4, 3).view(_Own),
        lambda: np.broadcast_to(np.float32(3), (4, 3)),
    ],
    ids=["transposed", "sliced", "subclass", "broadcast"],
)
def test_arguments_that_are_no_plain_arrays_are_read_right(looks, made):
    f = jit.compile(lambda x: x * 2)
    plain = mge.tensor(np.ones((4, 3), np.float32))
    f(plain), f(plain)
    given = Tensor(np.ones((4, 3), np.float32))
    given._data = made()
    np.testing.assert_array_equal(f(given).numpy(), np.asarray(made()) * 2)
    np.testing.assert_array_equal(f(plain).numpy(), np.full((4, 3), 2, np.float32))


def test_learning_rates_and_random_numbers_are_read_at_each_call(looks):
    f = jit.compile(lambda x: x + mge.random.uniform(size=(2,)))
    mge.random.seed(3)
    x = mge.tensor(_array(0, 0))
    found = [f(x).numpy().tolist() for _ in range(4)]
    mge.random.seed(3)
    assert found == [mge.random.uniform(size=(2,)).numpy().tolist() for _ in range(4)]
    assert looks[-1]  # in both cases, since there is no state to look at


def test_packed_weights_are_packed_anew_when_they_change(looks):
    rng = np.random.default_rng(0)
    w = mge.Parameter(rng.standard_normal((64, 64)).astype("float32"))
    f = jit.compile(lambda x: mge.functional.matmul(x, w))
    x = rng.standard_normal((32, 64)).astype("float32")
    given = mge.tensor(x)
    for _ in range(4):
        np.testing.assert_allclose(f(given).numpy(), x @ w.numpy(), rtol=1e-4, atol=1e-4)
        w._reset(mge.tensor(rng.standard_normal((64, 64)).astype("float32")))
        np.testing.assert_allclose(f(given).numpy(), x @ w.numpy(), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(f(given).numpy(), x @ w.numpy(), rtol=1e-4, atol=1e-4)


def test_an_index_out_of_range_is_an_error_the_short_way_too(looks):
    table = mge.Parameter(np.ones((3, 2), np.float32))
    f = jit.compile(lambda i: table[i])
    good = mge.tensor(np.array([0, 2], np.int32))
    f(good), f(good)
    with pytest.raises(mge.base.errors.IndexRangeError, match="3"):
        f(mge.tensor(np.array([0, 3], np.int32)))
    assert f(good).numpy().tolist() == [[1, 1], [1, 1]]


def test_threads_share_a_function_while_one_rebinds(looks):
    p = mge.Parameter(_array(1, 1))
    f = jit.compile(lambda x: x + p)
    x = mge.tensor(_array(0, 0))
    f(x)
    wrong, end = [], threading.Event()

    def run():
        while not end.is_set():
            a, b = f(x).numpy()
            if a != b:
                wrong.append((a, b))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for t in threads:
        t.start()
    for value in range(300):
        p._reset(mge.tensor(_array(value, value)))
    end.set()
    for t in threads:
        t.join()
    assert not wrong


def test_offsets_are_found_for_subclasses():
    assert watch.slot_offset(Tensor, "_data") == watch.slot_offset(mge.Parameter, "_data")


def test_state_of_another_shape_at_a_new_extent_is_captured_anew(looks):
    p = mge.Parameter(_array(1, 2, 3))

    def rows(n):
        return mge.tensor(np.arange(3 * n, dtype=np.float32).reshape(n, 3))

    def noisy(x):
        return x * p + mge.random.uniform(0, 1, x.shape)

    for function in (lambda x: x * p, noisy):
        f = jit.compile(function, dynamic={0: {0: "n"}})
        p._reset(mge.tensor(_array(1, 2, 3)))
        begun, shapes = f.captures, (((1, 2, 3), (4, 5)), ((9,), (6, 7, 4)), ((3, 2, 1), (8, 5)))
        for values, extents in shapes:
            p._reset(mge.tensor(_array(*values)))
            for n in extents:
                mge.random.seed(n)
                wanted = [function(rows(n)).numpy() for _ in range(2)]
                mge.random.seed(n)
                for want in wanted:
                    np.testing.assert_allclose(f(rows(n)).numpy(), want, rtol=1e-6)
        assert f.captures - begun == 2, "one for each shape of the parameter"
