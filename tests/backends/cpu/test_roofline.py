"""The probes of what the machine can do: what they compute, and what is kept of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.backends.codegen.execution import parse

from treadle.backends.codegen.kernel import interpret
from treadle.backends.codegen.target import AVX2, AVX512, GENERIC, NEON, Target
from treadle.backends.cpu import compiler as compiler_module
from treadle.backends.cpu import roofline
from treadle.backends.cpu.compiler import NativeCompiler
from treadle.backends.cpu.native import toolchain
from treadle.backends.cpu.pool import get_threads
from treadle.backends.cpu.toolchain import Toolchain
from treadle.backends.object_cache import ObjectCache
from treadle.backends.program import Limits, MeasuringCompiler, Run
from treadle.base import dtype as dt

BYTES = replace(AVX512, name="bytes", dot_int8=True)
PAIRS = replace(AVX512, name="pairs", dot_bfloat16=True)
MATRICES = replace(PAIRS, name="matrices", dot_int8=True, matrices=True)


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NativeCompiler:
    """A compiler with an empty cache."""
    own = Toolchain(toolchain().target, ObjectCache(tmp_path / "objects"))
    monkeypatch.setattr(compiler_module, "toolchain", lambda: own)
    monkeypatch.setattr(roofline, "_SECONDS", 0.0)
    monkeypatch.setattr(roofline, "_LARGE", 1 << 20)
    monkeypatch.setattr(roofline, "last_cache", lambda: 0)
    return NativeCompiler()


@pytest.mark.parametrize("target", [GENERIC, AVX2, AVX512, NEON], ids=lambda t: t.name)
def test_the_kernels_are_valid_on_every_target(target: Target) -> None:
    kernels = [roofline.multiply_kernel(target)]
    kernels += [roofline.triad_kernel(target, streaming) for streaming in (False, True)]
    for kernel in kernels:
        parse([kernel], target)


def test_the_multiply_kernel_does_the_operations_it_counts(compiler: NativeCompiler) -> None:
    target, turns = toolchain().target, 3
    program, flops = roofline.arithmetic(target, 5, turns)
    lanes = target.lanes(dt.float32)
    room = roofline.memory(4 * 5 * lanes).view(np.float32)
    compiler.bound(program, [room])()
    sums = np.arange(12, dtype=np.float32)
    for _ in range(turns):
        sums = sums * np.float32(0.5) + np.float32(0.25)
    np.testing.assert_allclose(room, np.full(5 * lanes, sums.sum()), rtol=1e-6)
    assert flops == 5 * lanes * turns * len(sums) * 2


@pytest.mark.parametrize("streaming", [False, True])
def test_the_triad_moves_the_bytes_it_counts(compiler: NativeCompiler, streaming: bool) -> None:
    elements = 3 << 13
    program, nbytes = roofline.copies(toolchain().target, elements, streaming)
    x, y, z = (roofline.memory(4 * elements).view(np.float32) for _ in range(3))
    y[...], z[...] = np.arange(elements), np.arange(elements)[::-1]
    compiler.bound(program, [x, y, z])()
    np.testing.assert_array_equal(x, y + np.float32(0.5) * z)
    assert nbytes == x.nbytes + y.nbytes + z.nbytes


def test_arrays_are_larger_than_the_caches_of_all_cores(
    compiler: NativeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum over as many bytes as one cache holds was taken for what memory gives."""
    monkeypatch.setattr(roofline, "last_cache", lambda: 3 << 20)
    made: list[int] = []
    memory = roofline.memory
    monkeypatch.setattr(roofline, "memory", lambda n: (made.append(n), memory(n))[1])
    roofline.probe(toolchain().target, get_threads(), compiler.bound)
    assert sorted(made)[-3:] == [12 << 20] * 3


def test_updates_and_sums_move_the_bytes_they_count(compiler: NativeCompiler) -> None:
    """Lines that are written without having been read cost a read more: neither has any."""
    elements = 3 << 13
    x, y = (roofline.memory(4 * elements).view(np.float32) for _ in range(2))
    x[...], y[...] = np.arange(elements), 1.0
    program, nbytes = roofline.updates(toolchain().target, elements)
    compiler.bound(program, [x, y])()
    np.testing.assert_array_equal(x, 1.0 + np.float32(0.5) * np.arange(elements, dtype=np.float32))
    assert nbytes == 2 * x.nbytes + y.nbytes
    x[...], y[...] = 0.25, 0.0
    program, nbytes = roofline.reads(toolchain().target, elements)
    compiler.bound(program, [x, y])()
    assert y.reshape(3, -1).sum(1).tolist() == [0.25 * (1 << 13)] * 3
    assert nbytes == x.nbytes


def test_limits_are_measured_once_and_kept(
    compiler: NativeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(compiler, MeasuringCompiler)
    first = compiler.limits()
    assert first.flops > 0 and first.bandwidth > 0

    def fails(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(roofline, "probe", fails)
    assert compiler.limits() == first
    assert NativeCompiler().limits() == first  # as a new process would
    with pytest.raises(AssertionError, match="measured again"):
        compiler.limits(anew=True)


def test_measuring_anew_never_lowers_a_limit(
    compiler: NativeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([Limits(10.0, 4.0), Limits(8.0, 5.0)])
    monkeypatch.setattr(roofline, "probe", lambda *_: next(found))
    compiler.limits()
    assert compiler.limits(anew=True) == Limits(10.0, 5.0)
    assert NativeCompiler().limits() == Limits(10.0, 5.0)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"flops": 1}', b'{"flops": 0, "bandwidth": 1}',
                b'{"flops": NaN, "bandwidth": 1}', b'{"flops": "x", "bandwidth": 1}']
)  # fmt: skip
def test_what_makes_no_sense_is_measured_again(compiler: NativeCompiler, content: bytes) -> None:
    assert roofline.decode(content) is None
    compiler.save(roofline.key_of(toolchain().fingerprint, get_threads()), content)
    limits = compiler.limits()
    assert limits.flops > 0
    assert roofline.decode(roofline.encode(limits)) == limits


def test_entries_of_other_thread_counts_are_apart() -> None:
    assert roofline.key_of("x", 1) != roofline.key_of("x", 2) != roofline.key_of("y", 2)


@pytest.mark.parametrize("target", [AVX512, BYTES, PAIRS, MATRICES], ids=lambda t: t.name)
def test_units_add_several_products(target: Target) -> None:
    """Kernels of what this processor lacks are interpreted."""
    wanted = {"bytes": ["int8"], "pairs": ["bfloat16"], "matrices": ["bfloat16", "int8"]}
    assert [*roofline.units_of(target)] == wanted.get(target.name, [])
    for unit, (sums, a, _) in roofline.units_of(target).items():
        program, operations = roofline.products(target, unit, items=2, turns=3)
        (run,) = program.steps
        assert isinstance(run, Run)
        out = np.zeros(2 * 16, sums.numpy)
        interpret.run(run.kernel, [out, 3], 0, 2)
        per_turn = 4 * 16 * 16 * 16 if target.matrices else 12 * 16
        assert operations == 2 * 2 * 3 * per_turn * (4 // a.itemsize)
        if not target.matrices:
            assert (out == sum(range(12)) + 12 * 3 * (4 // a.itemsize)).all()


def test_limits_know_their_units(compiler: NativeCompiler) -> None:
    found = compiler.limits()
    assert [unit for unit, _ in found.units] == [*roofline.units_of(toolchain().target)]
    limits = Limits(100.0, 10.0, (("bfloat16", 400.0),))
    assert limits.seconds(400, 1, "bfloat16") == 1.0
    assert limits.seconds(400, 1, "int8") == limits.seconds(400, 1) == 4.0
    both = limits.joined(Limits(50.0, 20.0, (("bfloat16", 300.0), ("int8", 800.0))))
    assert both == Limits(100.0, 20.0, (("bfloat16", 400.0), ("int8", 800.0)))
    assert roofline.decode(roofline.encode(both)) == both
    assert roofline.decode(b'{"flops": 1, "bandwidth": 1, "units": {"int8": 0}}') is None
    assert roofline.decode(b'{"flops": 1, "bandwidth": 1, "units": [1]}') is None


def test_the_least_time_is_that_of_the_scarcer_resource() -> None:
    limits = Limits(100.0, 10.0)
    assert limits.seconds(200, 1) == 2.0
    assert limits.seconds(1, 50) == 5.0
