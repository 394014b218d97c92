"""The kit notices every way in which the simulated backend is broken, and nothing where it is not.

Each mutation runs only the check that has to notice it.
"""

import os

import pytest
from tests.backends.plugins import Plugins
from tests.sim.mutations import MUTATIONS, Mutation

import treadle.functional
from treadle.conformance import run_checks

pytestmark = pytest.mark.long

SOURCE = """{before}
from tests.sim.mutations import MUTATIONS

backend = MUTATIONS[{name!r}].make()
"""
UNBROKEN = "from tests.sim.backend import SimWithSegments\nbackend = SimWithSegments()\n"


@pytest.mark.parametrize("broken", MUTATIONS.values(), ids=list(MUTATIONS))
def test_a_mistake_is_noticed(
    broken: Mutation, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(treadle.functional, "relu6", treadle.functional.relu6)
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", ""))
    plugins.write("sim", SOURCE.format(before=broken.before, name=broken.name))
    report = run_checks("sim", only=broken.check, quick="int32" not in broken.check, timeout=60)
    assert report.failures(), f"{broken.check} passes: {report.results}"


def test_the_unbroken_backend_passes_the_same_checks(plugins: Plugins) -> None:
    plugins.write("sim", UNBROKEN)
    checks = {m.check for m in MUTATIONS.values()} - {"honesty/kernel/sqrt"}
    for check in sorted(c for c in checks if not c.startswith("purity")):  # the plug-in's test
        report = run_checks("sim", only=check, quick="int32" not in check, timeout=60)
        assert report.results and not report.failures(), report.failures()


def test_there_are_many_mutations_in_every_group() -> None:
    assert len(MUTATIONS) >= 40
    groups = {m.check.partition("/")[0] for m in MUTATIONS.values()}
    assert groups >= {"purity", "device", "movement", "isolation", "operators", "honesty", "graph"}
