"""OpenCL for tests: the device, or a reason why there is none."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest

from treadle.backends import registry

# Kernels of tests run once on small arrays: compiling them well would take ten times as long.
os.environ.setdefault("TREADLE_OPENCL_OPTIONS", "-cl-opt-disable")


def missing() -> str:
    """Why there is no OpenCL device; "" if there is one."""
    entry = registry.for_kind("opencl")
    return "the backend is not there" if entry is None else "" if entry.count else entry.why_none


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "opencl":
            item.add_marker(pytest.mark.opencl)


@pytest.fixture(scope="session", autouse=True)
def _there_is_a_device() -> None:
    """Looked for when the first test runs: drivers start threads."""
    reason = missing()
    if reason:
        pytest.skip(f"no OpenCL device: {reason}")


@pytest.fixture(scope="session")
def backend() -> Any:
    return importlib.import_module("treadle.backends.opencl").backend


@pytest.fixture(scope="session")
def compiler(backend: Any) -> Any:
    return backend.compiler()


@pytest.fixture(scope="session")
def device(backend: Any) -> Any:
    return backend.open(0)
