"""Guesses of names that Treadle does not have: what is suggested exists."""

import inspect
import re

import pytest

import treadle as mge
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
    assert [name for name in spelling._METHODS if inspect.getattr_static(Tensor, name, None)] == [
        "requires_grad"
    ]


@pytest.mark.parametrize(
    ("owner", "guess", "advice"),
    [
        (mge, "nn", "treadle.module"),
        (mge, "manual_seed", "treadle.random.seed(n)"),
        (mge, "Tenser", "treadle.Tensor"),
        (mge, "relu", "treadle.functional.relu"),
        (mge, "cat", "F.concat([x, y], axis)"),
        (mge.module, "Lineer", "treadle.module.Linear"),
        (mge.optimizer, "AdanW", "treadle.optimizer.AdamW"),
        (mge.tensor(1.0, device="cpux"), "add_", "x += y"),
    ],
)
def test_wrong_guesses_are_answered(owner: object, guess: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"; did you mean {advice}?")):
        getattr(owner, guess)


def test_nonsense_gets_no_advice() -> None:
    for owner in (mge, mge.module, mge.optimizer):
        with pytest.raises(AttributeError, match=r"no attribute 'qqqq'$"):
            owner.qqqq


def test_advice_of_the_top_level_exists() -> None:
    for text in spelling._TOP_LEVEL.values():
        found: object = mge
        for part in text.split("(")[0].split(".")[1:]:
            found = getattr(found, part)
