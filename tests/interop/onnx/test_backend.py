"""ONNX's own backend tests: an exact list of those that fail."""

import tomllib
import unittest
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.onnx

onnx_test = pytest.importorskip("onnx.backend.test", reason="needs the onnx extra")

from treadle.interop.onnx.backend import TreadleBackend  # noqa: E402  (needs the extra)

KNOWN = tomllib.loads(Path(__file__).with_name("known_failures.toml").read_text(encoding="utf-8"))
FAILING = {case for group in KNOWN.values() for case in group["cases"]}
LEAST = 2015
"""Cases that pass, of 2,033."""


def cases() -> Iterator[tuple[str, unittest.TestCase]]:
    """All cases for the CPU."""
    suite = onnx_test.BackendTest(TreadleBackend, __name__)
    for cls in suite.test_cases.values():
        for name in dir(cls):
            if name.startswith("test_") and name.endswith("_cpu"):
                yield name, cls(name)


@pytest.mark.filterwarnings("ignore")  # the suite itself compares with casts that NumPy warns of
@pytest.mark.timeout(400)
def test_exactly_the_known_cases_fail() -> None:
    outcome = {}
    for name, case in cases():
        result = unittest.TestResult()
        case.run(result)
        problems = [*result.errors, *result.failures]
        outcome[name] = problems[0][1] if problems else ""
    failing = {name for name, problem in outcome.items() if problem}
    surprises = {name: outcome[name][-600:] for name in failing - FAILING}
    assert not surprises, surprises
    assert failing == FAILING, f"these pass now: {sorted(FAILING - failing)}"
    assert len(outcome) - len(failing) >= LEAST
