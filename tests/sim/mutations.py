"""The simulated backend broken in one way each, and the check that has to notice.

A mutation overrides one method, as a mistake of a backend's author would.
"""

from __future__ import annotations

from tests.sim import broken_devices, broken_kernels, broken_segments
from tests.sim.backend import Sim
from tests.sim.mutation import MUTATIONS, Mutation

__all__ = ["MUTATIONS", "Mutation", "broken_devices", "broken_kernels", "broken_segments"]


def side_effect(name: str, source: str) -> None:
    """A mutation of the plug-in's module."""
    MUTATIONS[name] = Mutation(name, "purity/import_changes_nothing", Sim, source)


side_effect(
    "patches_the_framework",
    "import treadle.functional\ntreadle.functional.relu6 = lambda x: x\n",
)
side_effect("changes_the_environment", "import os\nos.environ['OMP_NUM_THREADS'] = '1'\n")
