"""Single ops on generated kernels: when, and that they compute what NumPy does."""

import threading
from typing import Any

import numpy as np
import pytest

import treadle
import treadle as mge
import treadle.functional as F
from treadle.backends import registry
from treadle.backends.api import Engine, Support, no
from treadle.backends.cpu import backend, eager, pool
from treadle.backends.cpu.policy import least_elements
from treadle.backends.program import CompilingEngine
from treadle.base import dtype as dt
from treadle.base.process import RUNTIME
from treadle.base.types import TensorType
from treadle.ops.activation import Gelu
from treadle.ops.elementwise import Add, Maximum
from treadle.ops.reduce import Sum
from treadle.ops.transfer import Identity
from treadle.ops.unary import Exp

LARGE = 1 << 18


def f32(*shape: int) -> TensorType:
    return TensorType(dt.float32, shape)


def data(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_it_is_an_engine_that_compiles() -> None:
    assert isinstance(backend, Engine)
    assert isinstance(backend, CompilingEngine)
    assert backend.compiler() is backend.compiler()
    assert registry.engines("cpu")[0] is backend


@pytest.mark.parametrize("shape", [(LARGE,), (3, LARGE), (5, 7, 9001)])
def test_large_operands_run_generated_code(shape: tuple[int, ...]) -> None:
    x, y = data(*shape), data(*shape, seed=1)
    bound = eager.bind(Add(), (f32(*shape), f32(*shape)))
    assert isinstance(bound, eager.BoundLaunch)
    np.testing.assert_array_equal(bound(x, y), x + y)


def test_operands_that_are_not_row_major_are_made_so() -> None:
    x = data(600, 700).T
    y = np.broadcast_to(data(1, 600), (700, 600))
    bound = eager.bind(Add(), (f32(700, 600), f32(700, 600)))
    assert isinstance(bound, eager.BoundLaunch)
    np.testing.assert_array_equal(bound(x, y), x + y)


def test_two_kernels_serve_every_shape() -> None:
    """One for extents that vectors fill, one for all others, whatever the cache on disk holds."""
    launch = eager.AnyShape(Exp(), (f32(4),))
    chain = backend.compiler()._toolchain  # type: ignore[attr-defined]
    for extra in (0, 1):
        launch(data(LARGE + extra))
    before = chain.compiled
    for extra in (2, 64, 1000, 1024):
        x = data(LARGE + extra)
        np.testing.assert_allclose(launch(x), np.exp(x), rtol=1e-6)
    assert chain.compiled == before


def test_shapes_are_bound_when_they_come_again() -> None:
    launch = eager.AnyShape(Add(), (f32(4), f32(4)))
    x = data(2000)
    seen = [launch(x, x)]
    assert not launch._bound
    seen += [launch(x, x) for _ in range(2)]
    assert list(launch._bound) == [((2000,), (2000,))]
    for result in seen:
        np.testing.assert_array_equal(result, x + x)


def test_the_first_call_has_the_bits_of_all_others() -> None:
    launch = eager.AnyShape(Gelu(), (f32(4),))
    x = data(2000)
    first, *others = [launch(x) for _ in range(3)]
    np.testing.assert_allclose(first, Gelu().reference(x), rtol=1e-5, atol=1e-6)
    for result in others:
        np.testing.assert_array_equal(result, first)


def test_equal_seeds_give_equal_numbers() -> None:
    def drawn() -> np.ndarray[Any, Any]:
        treadle.random.seed(5)
        return treadle.random.normal(size=(70, 71)).numpy()

    first = drawn()
    np.testing.assert_array_equal(drawn(), first)
    np.testing.assert_array_equal(drawn(), first)


def test_the_switch_goes_by_size() -> None:
    called: list[str] = []

    def small(*arrays: Any) -> str:
        called.append("small")
        return "small"

    def large(*arrays: Any) -> str:
        called.append("large")
        return "large"

    switch = eager.by_size(10, small, large)
    nine, ten = np.zeros((3, 3)), np.zeros((2, 5))
    assert switch(nine) == "small"
    assert switch(ten) == "large"
    assert switch(nine, ten) == switch(ten, nine) == "large"
    assert switch(np.float32(1), ten) == "small"
    assert switch(np.zeros(()), np.zeros((0, 100))) == "small"
    assert switch(np.zeros((2, 3, 4))[::2]) == "large"
    assert switch() == "small"
    with pytest.raises(TypeError):
        switch(nine, key=1)

    def fail(*arrays: Any) -> None:
        raise ValueError("from inside")

    for function in (eager.by_size(0, small, fail), eager.by_size(99, fail, large)):
        with pytest.raises(ValueError, match="from inside"):
            function(nine)


def test_tensors_compute_the_same_either_way() -> None:
    rng = np.random.default_rng(0)
    for size in (10, LARGE + 3):
        x, y = (rng.uniform(0.5, 2, size).astype("float32") for _ in range(2))
        a, b = mge.tensor(x), mge.tensor(y)
        for _ in range(2):
            np.testing.assert_array_equal((a + b).numpy(), x + y)
            np.testing.assert_array_equal((a * 2.0 - b).numpy(), x * 2 - y)
            np.testing.assert_allclose(F.exp(a).numpy(), np.exp(x), rtol=1e-6)
            np.testing.assert_array_equal((a > b).numpy(), x > y)
        with pytest.raises(mge.ShapeError if hasattr(mge, "ShapeError") else ValueError):
            a + mge.tensor(np.zeros(size + 1, np.float32))


def test_threads_share_a_launch() -> None:
    bound = eager.bind(Maximum(), (f32(LARGE), f32(LARGE)))
    assert isinstance(bound, eager.BoundLaunch)
    failures: list[int] = []

    def work(seed: int) -> None:
        x, y = data(LARGE, seed=seed), data(LARGE, seed=seed + 1)
        wanted = np.maximum(x, y)
        failures.extend(1 for _ in range(20) if not (bound(x, y) == wanted).all())

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_results_do_not_depend_on_threads() -> None:
    x = data(700, 900)
    before = pool.get_threads()
    try:
        seen = set()
        for threads in (1, 2, 5):
            pool.set_threads(threads)
            bound = eager.bind(Sum((0, 1)), (f32(700, 900),))
            assert isinstance(bound, eager.BoundLaunch)
            seen.add(bound(x).tobytes())
    finally:
        pool.set_threads(before)
    assert len(seen) == 1


def test_what_is_left_to_numpy() -> None:
    assert least_elements(Identity()) is None
    assert backend.prepare(Identity(), (f32(LARGE),)) == no(
        "policy", "identity of single tensors is left to NumPy"
    )
    small = backend.prepare(Sum((0,)), (f32(3),))
    assert isinstance(small, Support)
    assert "NumPy is faster" in small.message


def test_a_defect_of_a_generator_costs_only_speed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> Any:
        raise AttributeError("oops")

    monkeypatch.setattr(eager.compiler(), "lower", broken, raising=False)
    RUNTIME.invalidate("messages")
    launch = eager.AnyShape(Exp(), (f32(4),))
    x = data(LARGE)
    for wanted in (x, x, x[1:]):
        np.testing.assert_array_equal(launch(wanted), np.exp(wanted))
    assert capsys.readouterr().err.count("oops") == 1
