"""Switches of `treadle.config`: checked when set, and changed for a while."""

from collections.abc import Callable
from unittest import mock

import pytest
from tests.backends.plugins import logged

import treadle as mge
from treadle import config
from treadle.base import log
from treadle.runtime.synchronous import SYNCHRONOUS
from treadle.utils.network import set_symbolic_shape


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
    with mock.patch.object(log, "_TOLD", set()), logged() as lines:
        change()
        change()
    return lines


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.benchmark_kernel", lambda: setattr(config, "benchmark_kernel", True)),
        ("config.benchmark_with_subprocess",
         lambda: setattr(config, "benchmark_with_subprocess", True)),
        ("config.disable_memory_forwarding",
         lambda: setattr(config, "disable_memory_forwarding", True)),
        ("config._auto_format_convert", lambda: setattr(config, "_auto_format_convert", False)),
        ("set_prealloc_config", lambda: mge.set_prealloc_config(alignment=256)),
        ("set_symbolic_shape", lambda: (set_symbolic_shape(False), set_symbolic_shape(True))),
        ("GraphOptimizationConfig.jit_fuse_reduce",
         lambda: mge.jit.GraphOptimizationConfig(jit_fuse_reduce=True)),
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
        mge.set_prealloc_config()
        mge.jit.GraphOptimizationConfig()
        mge.jit.DTRConfig(1 << 20)

    assert lines_of(usual) == []
