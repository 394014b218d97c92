"""Guesses of names that Treadle does not have: what is suggested exists."""

import re

import pytest

import treadle.functional as F
from treadle.base import spelling
from treadle.tensor import Tensor


@pytest.mark.parametrize("table", [spelling._FUNCTIONS, spelling._METHODS], ids=["F", "Tensor"])
def test_suggestions_exist(table: dict[str, str]) -> None:
    for text in table.values():
        for path in re.findall(r"\bF\.([\w.]+)", text):
            found: object = F
            for name in path.split("."):
                found = getattr(found, name)
            assert callable(found), text
        for name in re.findall(r"\bx\.([\w]+)", text):
            assert name in dir(Tensor) or name in vars(Tensor), text


def test_methods_that_exist_are_no_guesses() -> None:
    # This one exists to be refused.
    assert [name for name in spelling._METHODS if name in vars(Tensor)] == ["requires_grad"]
