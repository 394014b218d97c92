"""Calls that are repeated do what they did, whoever looks on."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import amp, jit
from treadle.autodiff import GradManager
from treadle.base.observer import observe
from treadle.base.process import RUNTIME
from treadle.engine.eager import repeated as rep


def made(shape: tuple[int, ...] = (2, 6), dtype: str = "float32") -> mge.Tensor:
    return mge.tensor((np.arange(np.prod(shape)).reshape(shape) + 1).astype(dtype))


CALLS: dict[str, tuple[Any, Any]] = {
    "reshape": (lambda x: x.reshape(3, 4), lambda x: x.reshape(3, 4)),
    "reshape to a tuple": (lambda x: x.reshape((4, -1)), lambda x: x.reshape(4, 3)),
    "F.reshape": (lambda x: F.reshape(x, (12,)), lambda x: x.reshape(12)),
    "sum": (lambda x: x.sum(), lambda x: x.sum()),
    "sum of an axis": (lambda x: x.sum(1, keepdims=True), lambda x: x.sum(1, keepdims=True)),
    "mean": (lambda x: x.mean(axis=0), lambda x: x.mean(0)),
    "max": (lambda x: F.max(x, 1), lambda x: x.max(1)),
    "transpose": (lambda x: x.transpose(1, 0), lambda x: x.T),
    "T": (lambda x: x.T, lambda x: x.T),
    "flatten": (lambda x: F.flatten(x), lambda x: x.reshape(-1)),
    "expand_dims": (lambda x: F.expand_dims(x, 1), lambda x: x[:, None]),
    "a slice": (lambda x: x[:1], lambda x: x[:1]),
    "every second": (lambda x: x[::-1], lambda x: x[::-1]),
    "an index": (lambda x: x[-1], lambda x: x[-1]),
    "softmax": (
        lambda x: F.softmax(x, 1),
        lambda x: np.exp(x - 6) / np.exp(x - 6).sum(1, keepdims=True),
    ),
    "concat": (lambda x: F.concat([x, x[:1]], 0), lambda x: np.concatenate([x, x[:1]])),
    "concat of a tuple": (lambda x: F.concat((x, x), axis=1), lambda x: np.concatenate([x, x], 1)),
    "matmul": (lambda x: F.matmul(x, x.T), lambda x: x @ x.T),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("recording", [False, True], ids=["plain", "recording"])
def test_the_third_call_gives_what_the_first_gave(name: str, recording: bool) -> None:
    ours, theirs = CALLS[name]
    gradients = []
    for turn in range(3):
        x = made()
        expected = theirs(x.numpy())
        if recording:
            with GradManager().attach(x) as gm:
                found = ours(x)
                gm.backward((found * found).sum())
            gradients.append(x.grad.numpy())
            np.testing.assert_array_equal(gradients[0], gradients[turn])
        else:
            found = ours(x)
        assert type(found) is mge.Tensor
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


def test_operands_of_other_types_and_shapes_have_calls_of_their_own() -> None:
    for dtype in ("float32", "int32", "float16", "bool", "float32"):
        for shape in ((2, 6), (3, 4), (2, 6)):
            x = made(shape, dtype)
            counted = x.sum(0)
            assert counted.shape == shape[1:]
            np.testing.assert_array_equal(
                counted.numpy(), x.numpy().sum(0, dtype="int32" if dtype == "bool" else None)
            )


def test_errors_stay_errors_when_they_are_repeated() -> None:
    x = made()
    x.reshape(3, 4)
    for _ in range(3):
        with pytest.raises(mge.base.errors.ShapeError):
            x.reshape(5, 5)
        with pytest.raises(mge.base.errors.IndexRangeError):
            x[7]
        with pytest.raises((AssertionError, mge.base.errors.ShapeError)):
            x.sum(4)


def test_values_that_are_no_plain_numbers_are_read_at_each_call() -> None:
    x, at = made((6,)), mge.tensor(1)
    assert x[at:].shape == (5,)
    at._reset(mge.tensor(4))
    assert x[at:].shape == (2,)
    sizes = [3, 4]
    y = made()
    assert y.reshape(sizes).shape == (3, 4)
    sizes[:] = [4, 3]
    assert y.reshape(sizes).shape == (4, 3)


def test_truth_is_no_number_in_an_index() -> None:
    x = made((2, 3))
    assert x[1].shape == (3,)
    assert x[True].shape == (1, 2, 3)
    assert x[1].shape == (3,)


def test_captures_see_repeated_calls() -> None:
    x = made()
    f = jit.compile(lambda x: F.softmax(x.reshape(3, 4), 1)[1:].sum(0))
    for _ in range(2):
        plain = F.softmax(x.reshape(3, 4), 1)[1:].sum(0)
        np.testing.assert_allclose(f(x).numpy(), plain.numpy(), rtol=1e-6)
    assert [n.op.name for n in f.graph(x).nodes] == ["reshape", "softmax", "slice", "sum"]


def test_autocast_sees_repeated_calls() -> None:
    x = made((4, 4))
    assert F.matmul(x, x).dtype == np.float32
    with amp.autocast(enabled=True):
        assert F.matmul(x, x).dtype == np.float16
        assert F.matmul(x, x).dtype == np.float16
    assert F.matmul(x, x).dtype == np.float32


def test_profilers_see_repeated_calls() -> None:
    x, seen = made(), []

    class Watcher:
        def launch(self, op: Any, launch: Any, /) -> Any:
            return lambda *given: seen.append(op.name) or launch(*given)

        def program(self, name: str, run: Any, /) -> Any:
            return run()

        def module(self, module: Any, inputs: Any, forward: Any, /) -> Any:
            return forward()

    x.sum(), x.sum()
    observe(Watcher())
    try:
        x.sum(), x.sum()
    finally:
        observe(None)
    x.sum()
    assert seen == ["sum", "sum"]


def test_gradients_of_gradients_go_through_repeated_calls() -> None:
    for _ in range(3):
        x = made((2, 2))
        outer, inner = GradManager().attach(x), GradManager().attach(x)
        with outer:
            with inner:
                y = (x.reshape(4) ** 3).sum()
                inner.backward(y)
            outer.backward(x.grad.sum())
        # 3 x^2 from the inner one, 6 x from the outer one, added up.
        np.testing.assert_allclose(x.grad.numpy(), 3 * x.numpy() ** 2 + 6 * x.numpy())


def test_tables_do_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rep, "_MOST", 8)
    RUNTIME.invalidate("launches")
    for size in range(1, 40):
        made((size,)).sum()
    assert 0 < max(map(len, rep._TABLES)) <= 8


def test_threads_may_repeat_while_others_record() -> None:
    wrong, end = [], threading.Event()

    def plain() -> None:
        while not end.is_set():
            x = made()
            if x.sum()._trace is not None or float(x.sum()) != 78:
                wrong.append(x)

    threads = [threading.Thread(target=plain) for _ in range(2)]
    for t in threads:
        t.start()
    for _ in range(200):
        x = made()
        with GradManager().attach(x) as gm:
            gm.backward(x.sum())
        assert x.grad.numpy().tolist() == np.ones((2, 6)).tolist()
    end.set()
    for t in threads:
        t.join()
    assert not wrong


def test_subclasses_of_tensors_give_plain_ones() -> None:
    class Boxes(mge.Tensor):
        pass

    boxes = Boxes(np.ones((2, 4), "float32"))
    kinds = {type(boxes.reshape(4, 2)) for _ in range(3)}
    assert kinds == {mge.Tensor}


def test_lists_of_tensors_are_told_apart_by_every_member() -> None:
    x, whole = made((2, 6)), made((1, 6), "int32")
    given: list[Any] = [x, x]
    for _ in range(3):
        assert F.concat(given).shape == (4, 6)
        mixed = F.concat([x, whole])
        assert mixed.shape == (3, 6) and mixed.dtype == np.float32
        beside_data = F.concat([x, np.ones((1, 6), np.float32)])
        assert beside_data.shape == (3, 6)
        given[1:] = [whole.astype("float32"), x] if len(given) == 2 else [x]
        assert F.concat(given).shape == (5 if len(given) == 3 else 4, 6)
        given[1:] = [x]
        assert F.concat(t for t in (x, x)).shape == (4, 6)
        with pytest.raises(mge.base.errors.ShapeError):
            F.concat([x, made((2, 5))])
        with pytest.raises(mge.base.errors.ShapeError):
            F.concat([])
