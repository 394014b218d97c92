"""Groups of two and three processes; the checks are in modules of their own."""

from __future__ import annotations

import importlib.util

import pytest
from tests.distributed import collective_checks, pipeline_checks, program_checks, training_checks
from tests.distributed.world import checks_of, run_checks

pytestmark = [
    pytest.mark.multi,
    pytest.mark.skipif(not importlib.util.find_spec("mpi4py"), reason="needs the mpi extra"),
]
MODULES = {
    2: (collective_checks, program_checks, training_checks, pipeline_checks),
    3: (collective_checks, training_checks),
}


@pytest.fixture(scope="module")
def two() -> list[str]:
    """The checks that passed on two ranks; one group of processes runs them all."""
    return run_checks(MODULES[2], 2)


@pytest.fixture(scope="module")
def three() -> list[str]:
    """The same of three ranks."""
    return run_checks(MODULES[3], 3)


@pytest.mark.parametrize("check", checks_of(MODULES[2]))
def test_on_two_ranks(check: str, two: list[str]) -> None:
    assert check in two


@pytest.mark.parametrize("check", checks_of(MODULES[3]))
def test_on_three_ranks(check: str, three: list[str]) -> None:
    assert check in three
