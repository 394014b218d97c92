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


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
def test_every_check_passes(ranks: int) -> None:
    """One group of processes runs them all; the first that fails ends it, and is named."""
    assert run_checks(MODULES[ranks], ranks) == list(checks_of(MODULES[ranks]))
