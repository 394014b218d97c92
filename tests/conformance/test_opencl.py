"""The kit on a device with a driver of its own; `treadle-backend-test opencl` runs all of it."""

import pytest

from treadle.backends import registry
from treadle.conformance import run_checks

GROUPS = ("Purity", "Device", "Movement", "Isolation")


@pytest.mark.opencl
def test_opencl_passes_what_takes_seconds() -> None:
    entry = registry.for_kind("opencl")
    if entry is None or not entry.count:
        pytest.skip("no OpenCL device: " + ("" if entry is None else entry.why_none))
    report = run_checks("opencl", groups=GROUPS, quick=True)
    assert not report.failures() and len(report.results) > 30
    report = run_checks("opencl", only="operators/add/*", quick=True)
    assert not report.failures() and report.coverage["add"]["float32"] != "host"
