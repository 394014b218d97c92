"""MegEngine's strategies for choosing kernels: names for two switches of `treadle.config`.

"HEURISTIC" or "PROFILE" (measure candidates: `config.benchmark_kernel`), with "_REPRODUCIBLE"
behind it for results that do not change between runs (`config.deterministic_kernel`).
"""

from __future__ import annotations

import warnings

from treadle import config

__all__ = [
    "get_conv_execution_strategy",
    "get_execution_strategy",
    "set_conv_execution_strategy",
    "set_execution_strategy",
]

_WORDS = ("HEURISTIC", "PROFILE", "REPRODUCIBLE")


def get_execution_strategy() -> str:
    """The strategy that the switches of `treadle.config` amount to."""
    first = "PROFILE" if config.benchmark_kernel else "HEURISTIC"
    return first + "_REPRODUCIBLE" * config.deterministic_kernel


def set_execution_strategy(option: str) -> None:
    """Set both switches by words with `_` between, "PROFILE_REPRODUCIBLE" for example.

    Raises:
        ValueError: another word, or both "HEURISTIC" and "PROFILE".
    """
    words = str(option).split("_")
    if not set(words) <= set(_WORDS) or {"HEURISTIC", "PROFILE"} <= set(words):
        raise ValueError(
            f"{option!r} is not a strategy: use HEURISTIC or PROFILE, and perhaps _REPRODUCIBLE"
        )
    config.benchmark_kernel = "PROFILE" in words
    config.deterministic_kernel = "REPRODUCIBLE" in words


def get_conv_execution_strategy() -> str:
    """The old name of `get_execution_strategy`."""
    _warn("get")
    return get_execution_strategy()


def set_conv_execution_strategy(option: str) -> None:
    """The old name of `set_execution_strategy`."""
    _warn("set")
    set_execution_strategy(option)


def _warn(verb: str) -> None:
    warnings.warn(f"use {verb}_execution_strategy", DeprecationWarning, stacklevel=3)
