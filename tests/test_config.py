"""Switches of `treadle.config`: checked when set, and changed for a while."""

import pytest

from treadle import config
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
