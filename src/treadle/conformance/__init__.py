"""The conformance kit: what a backend promises, as checks that its authors run.

`treadle-backend-test NAME` runs them on an installed backend and writes JUnit XML, JSON and a page
of what is covered; `run_checks` does it from Python. Checks stand in groups, one module each. They
see a backend through the protocol and the engine's public doors only, so a backend that passes
works with everything above.
"""

from treadle.conformance.known import KnownFailure, read_known
from treadle.conformance.result import CheckResult, Report
from treadle.conformance.runner import GROUPS, run_checks
from treadle.conformance.subject import Subject

__all__ = ["GROUPS", "CheckResult", "KnownFailure", "Report", "Subject", "read_known", "run_checks"]
