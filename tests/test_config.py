"""Switches of `treadle.config`: checked when set, and changed for a while."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tests.backends.plugins import logged

import treadle as mge
import treadle.functional as F
from treadle import config, jit
from treadle.backends import measuring
from treadle.backends.codegen import tuned
from treadle.backends.program import MeasuringCompiler
from treadle.base import log
from treadle.base.process import RUNTIME
from treadle.engine.devices.placement import find_compiler
from treadle.engine.options import Options
from treadle.runtime.synchronous import SYNCHRONOUS


def test_values_are_checked_when_they_are_set() -> None:
    with pytest.raises(AssertionError, match="async_level must be one of"):
        config.async_level = 7
    assert config.async_level == 2


def test_a_change_ends_with_its_block() -> None:
    with pytest.raises(KeyError), config._override(async_level=0, deterministic_kernel=True):
        assert (config.async_level, config.deterministic_kernel) == (0, True)
        raise KeyError
    assert (config.async_level, config.deterministic_kernel) == (2, False)


SWITCHES = {
    "benchmark_kernel": False,
    "benchmark_with_subprocess": False,
    "deterministic_kernel": False,
    "async_level": 2,
    "disable_memory_forwarding": False,
    "_compute_mode": "default",
    "_auto_format_convert": True,
}


@pytest.mark.parametrize("name", SWITCHES)
def test_switches_have_megengines_defaults_and_refuse_other_values(name: str) -> None:
    assert getattr(config, name) == SWITCHES[name]
    with pytest.raises(AssertionError, match=f"config.{name} must be one of"):
        setattr(config, name, "sometimes")
    setattr(config, name, SWITCHES[name])


def test_override_decorates() -> None:
    @config._override(compute_mode="float32", benchmark_kernel=True)
    def seen() -> tuple[str, bool]:
        return config._compute_mode, config.benchmark_kernel

    assert seen() == ("float32", True)
    assert (config._compute_mode, config.benchmark_kernel) == ("default", False)


def test_level_zero_waits_for_devices_after_every_op() -> None:
    assert not SYNCHRONOUS.on
    with config._override(async_level=0):
        assert SYNCHRONOUS.on
    assert not SYNCHRONOUS.on


def lines_of(change: Callable[[], object]) -> list[str]:
    """What setting something twice says, as if nobody had been told of anything."""
    with mock.patch.object(log, "_TOLD", {}), logged() as lines:
        change()
        change()
    return lines


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("set_prealloc_config", lambda: mge.set_prealloc_config(device_type="cpu")),
        ("DTRConfig.evictee_minimum_size", lambda: mge.jit.DTRConfig(1 << 20, 4096)),
    ],
)  # fmt: skip
def test_a_setting_without_effect_says_so_once(name: str, change: Callable[[], object]) -> None:
    before = {n: getattr(config, n) for n in config._ALLOWED}
    try:
        (line,) = lines_of(change)
    finally:
        for n in before:
            setattr(config, n, before[n])
    assert line.startswith(f"{name} has no effect here: ")


def test_settings_that_are_as_they_were_say_nothing() -> None:
    def usual() -> None:
        config.benchmark_kernel = False
        config.deterministic_kernel = True
        config.deterministic_kernel = False
        mge.jit.GraphOptimizationConfig()
        mge.jit.DTRConfig(1 << 20)

    assert lines_of(usual) == []


def in_turn(x: mge.Tensor) -> mge.Tensor:
    """Values of equal size, one after the other, none of which can be part of another's kernel."""
    for _ in range(4):
        x = F.matmul(x, x)
    return x


def test_values_keep_memory_of_their_own_where_forwarding_is_off() -> None:
    x = mge.tensor(np.eye(32, dtype="float32"))

    def room() -> int:
        traced = jit.trace(in_turn, symbolic=True)
        np.testing.assert_array_equal(traced(x), x.numpy())
        ((variant,),) = traced._variants.values()
        return variant.inspected.planned().memory.peak

    shared = room()
    config.disable_memory_forwarding = True
    try:
        assert room() > shared
    finally:
        config.disable_memory_forwarding = False
    assert room() == shared


@pytest.fixture
def empty_cache(tmp_path: Path) -> Iterator[None]:
    """Nothing is taken from disk: reports are of what is compiled anew."""
    with mock.patch.dict(os.environ, TREADLE_CACHE_DIR=str(tmp_path)), RUNTIME.anew():
        yield


@pytest.mark.usefixtures("empty_cache")
def test_maps_stay_in_their_order_of_axes_where_formats_are_not_converted() -> None:
    rng = np.random.default_rng(1)
    x = mge.tensor(rng.random((1, 32, 56, 56), np.float32))
    w = mge.tensor(rng.random((32, 32, 3, 3), np.float32) / 100)

    def layouts() -> tuple[str, mge.Tensor]:
        compiled = jit.compile(lambda x: F.conv2d(F.relu(F.conv2d(x, w)), w))
        decisions = compiled.compile(x).report.decisions
        return next(d.outcome for d in decisions if d.subject == "layout"), compiled(x)

    config._auto_format_convert = False
    try:
        said, kept = layouts()
    finally:
        config._auto_format_convert = True
    assert "row-major" in said
    if not find_compiler(Options()).layouts:
        pytest.skip("the compiler here has no other orders")
    said, changed = layouts()
    assert "channels-last" in said or "blocks" in said
    np.testing.assert_allclose(kept.numpy(), changed.numpy(), 1e-4)


@pytest.mark.parametrize("apart", [False, True])
def test_kernels_are_measured_before_programs_and_eager_ops_run(
    apart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = find_compiler(Options())
    if not isinstance(compiler, MeasuringCompiler):
        pytest.skip("nothing here measures kernels")
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measuring, "SECONDS", 0.001)
    monkeypatch.setattr(measuring.MEASURING, "_known", set())
    before = tuned.installed()
    seen: list[tuple[list[str], bool]] = []
    tune = type(compiler).tune

    def watched_tune(self: Any, work: Any, *args: Any, apart: bool) -> Any:
        seen.append(([name for w in work for name in w.asked], apart))
        return tune(self, work, *args, apart=apart)

    monkeypatch.setattr(type(compiler), "tune", watched_tune)
    x = np.random.default_rng(0).standard_normal((160, 128 + apart), "float32")
    a, b = mge.tensor(x), mge.tensor(x.T.copy())
    try:
        config.benchmark_kernel, config.benchmark_with_subprocess = True, apart
        done = jit.compile(F.matmul)(a, b), jit.compile(F.matmul)(a, b), F.matmul(b, a)
    finally:
        config.benchmark_kernel = config.benchmark_with_subprocess = False
        tuned.install(before)
    for got, wanted in zip(done, (x @ x.T, x @ x.T, x.T @ x), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    measured = [names for names, _ in seen if names]
    assert len(measured) == 2 and {where for _, where in seen} == {apart}
    assert {name for names in measured for name in names} <= measuring.MEASURING._known
    count = len(seen)
    jit.compile(lambda a, b: F.matmul(a, b) + 1)(a, b)
    assert len(seen) == count, "it was switched off"
