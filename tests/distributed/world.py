"""Running many checks in one group of processes: starting one costs more than all that they do."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import ModuleType
from unittest.mock import patch

import treadle.distributed as dist

Check = Callable[[], None]
PATIENCE = "300"
"""Seconds after which a rank that does not come is a failure."""


def checks_of(modules: Sequence[ModuleType]) -> dict[str, Check]:
    """The functions of modules that are called `check_...`, in the order of their definition."""
    found = [item for module in modules for item in vars(module).items()]
    return {name: f for name, f in found if name.startswith("check_")}


def run_checks(modules: Sequence[ModuleType], size: int) -> list[str]:
    """Run each check of some modules on `size` ranks; the names of those that passed.

    The first that fails ends them all: its rank would be out of step with the others.
    """

    @dist.launcher(n_gpus=size)
    def every() -> list[str]:
        passed = []
        for name, check in checks_of(modules).items():
            check()
            dist.group_barrier()
            passed.append(name)
        return passed

    with patch.dict(os.environ, {"TREADLE_COMM_TIMEOUT": PATIENCE}):
        first, *others = every()
    assert all(other == first for other in others)
    return list(first)
