"""Switches of `treadle.config`: checked when set, and changed for a while."""

import pytest

from treadle import config


def test_values_are_checked_when_they_are_set() -> None:
    with pytest.raises(AssertionError, match="async_level must be one of"):
        config.async_level = 7
    assert config.async_level == 2


def test_a_change_ends_with_its_block() -> None:
    with pytest.raises(KeyError), config._override(async_level=0, deterministic_kernel=True):
        assert (config.async_level, config.deterministic_kernel) == (0, True)
        raise KeyError
    assert (config.async_level, config.deterministic_kernel) == (2, False)
