"""Cases of tests that repeat one another over families and formats."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any], here: Collection[Any]) -> list[Any]:
    """All cases as parameters: `make test` runs those named, `make test-llm` the others."""
    found = list(cases)
    assert all(case in found for case in here)
    return [c if c in here else pytest.param(*_values(c), marks=pytest.mark.llm) for c in found]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
