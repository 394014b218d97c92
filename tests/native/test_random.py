"""Random functions, compiled in every way, against the same functions run op by op."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from tests.native.random_functions import Function, Generator, assert_close
from tests.native.random_steps import generate

import treadle as mge
from treadle.backends.cpu import pool
from treadle.jit import Options

# Every way of compiling gets its share of the seeds.
WAYS = (
    {},
    {"level": 0},
    {"level": 1},
    {"level": 3},
    {"reuse_memory": False},
    {"fusion": False},
)
_ORDER = ("float32", "float16", "bfloat16")
Bits = list[bytes]


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = pool.get_threads()
    yield
    pool.set_threads(before)


def options(seed: int) -> Options:
    return Options(**WAYS[seed % len(WAYS)])  # type: ignore[arg-type]


def arguments(function: Function) -> list[mge.Tensor]:
    return [mge.tensor(a, dtype=a.dtype) for a in function.arguments]


def coarsest(function: Function) -> str:
    """The precision of what several calls, or gradients, have gone through."""
    seen = {*function.precision, *(a.dtype.name for a in function.states)}
    return max(seen & set(_ORDER), key=_ORDER.index, default="float32")


def bits(tensors: Sequence[mge.Tensor]) -> Bits:
    return [t.numpy().tobytes() for t in tensors]


def compare(generator: Generator, way: Options, calls: int = 2) -> None:
    """Hold results and states of some calls against those of eager calls."""
    function = generator.function
    eager, states = function.bound()
    plain, others = function.bound()
    compiled = mge.jit.compile(options=way)(plain)
    given = arguments(function)
    for call in range(calls):
        with np.errstate(all="ignore"):
            want = eager(*given)
        got = compiled(*given)
        for i, w, g in zip(function.results, want, got, strict=True):
            precision = coarsest(function) if call else function.precision[i]
            assert_close(g.numpy(), w.numpy(), precision, f"call {call}, v{i} of\n{function}\n")
        for w, g in zip(states, others, strict=True):
            assert_close(g.numpy(), w.numpy(), coarsest(function), f"state of\n{function}\n")


@pytest.mark.parametrize("seed", range(18))
def test_programs(seed: int) -> None:
    compare(generate(seed, steps=14), options(seed))


@pytest.mark.parametrize("seed", range(100, 106))
def test_special_values(seed: int) -> None:
    compare(generate(seed, special=True), options(seed), calls=1)


@pytest.mark.parametrize("seed", range(200, 208))
def test_gradients(seed: int) -> None:
    order = 1 + seed % 2
    function = generate(seed, steps=8, order=order).function
    given = arguments(function)
    run = function.gradients(twice=order == 2)
    with np.errstate(all="ignore"):
        want = run(*given)
    got = mge.jit.compile(options=options(seed))(run)(*given)
    assert len(got) == len(want)
    for w, g in zip(want, got, strict=True):
        if np.abs(w.numpy().astype(np.float64)).max(initial=0.0) < 1e4:
            assert_close(g.numpy(), w.numpy(), coarsest(function), f"of\n{function}\n")


@pytest.mark.parametrize("seed", range(300, 304))
def test_threads_and_repetitions_change_no_bit(seed: int) -> None:
    function = generate(seed, steps=10, shapes=LARGE).function
    plain, states = function.bound()
    compiled = mge.jit.compile(plain)
    given, before = arguments(function), [s.numpy() for s in states]
    found: list[Bits] = []
    for threads in (2, 1, 4, 2):
        pool.set_threads(threads)
        for state, data in zip(states, before, strict=True):
            state._reset(mge.tensor(data, dtype=data.dtype))
        found.append(bits([*compiled(*given), *states]))
    assert found[1:] == found[:1] * 3, function


LARGE = ((130, 70), (3, 257), (4, 50, 17), (2, 8, 12, 12), (70,), (257, 1), (20_000,), (64, 64), ())


@pytest.mark.parametrize("seed", range(400, 404))
def test_sinks_change_no_bit(seed: int) -> None:
    function = generate(seed, steps=8).function
    runs: list[tuple[Any, list[mge.Tensor]]] = []
    for _ in range(2):
        plain, states = function.bound()
        runs.append((mge.jit.compile(plain), states))
    (single, mine), (sunk, theirs) = runs
    batches = [
        [mge.tensor((a * k).astype(a.dtype), dtype=a.dtype) for a in function.arguments]
        for k in (1, 0, 1, 1, 0, 1)
    ]
    last = [bits(single(*batch)) for batch in batches][2::3]
    found = [bits(made) for made in mge.jit.sink(sunk, [tuple(b) for b in batches], 3)]
    assert found == last, function
    assert bits(theirs) == bits(mine), function


def test_a_new_function_object_with_the_same_program_gives_the_same_bits() -> None:
    for seed in range(500, 503):
        found = []
        for _ in range(2):
            plain, states = generate(seed).function.bound()
            compiled = mge.jit.compile(plain)
            found.append(bits([*compiled(*arguments(generate(seed).function)), *states]))
        assert found[0] == found[1]
