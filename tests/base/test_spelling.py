"""Guesses of names that Treadle does not have: what is suggested exists."""

import inspect
import re

import pytest

import treadle as mge
import treadle.functional as F
from treadle.base import spelling
from treadle.base.errors import DeviceError
from treadle.tensor import Tensor


@pytest.mark.parametrize(
    "table",
    [spelling._FUNCTIONS, spelling._METHODS, spelling._LAYERS],
    ids=["F", "Tensor", "layers"],
)
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
        (mge.tensor(1.0, device="cpux"), "reshpe", "x.reshape"),
        (mge.tensor(1.0, device="cpux"), "repeat", "F.tile(x, reps) for whole copies, F.rep"),
        (mge, "compile", "treadle.jit.compile(function)"),
        (mge, "inference_mode", "treadle.autodiff.no_grad()"),
        (mge.module, "ModuleList", "a list of modules as an attribute, which is registered as it"),
        (mge.module, "NLLLoss", "F.loss.cross_entropy(pred, label), which takes logits"),
        (mge.module, "Hardswish", "treadle.module.HSwish"),
        (mge.module.ReLU(), "cuda", 'net.to("gpux")'),
        (mge.module.ReLU(), "named_paramters", "net.named_parameters"),
    ],
)
def test_wrong_guesses_are_answered(owner: object, guess: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"; did you mean {advice}")):
        getattr(owner, guess)


@pytest.mark.parametrize(
    ("name", "ours"), [("cuda", "gpux"), ("cuda:1", "gpu1"), ("cpu", "cpux"), ("gpu", "gpux")]
)
def test_devices_as_pytorch_names_them_are_answered(name: str, ours: str) -> None:
    with pytest.raises(DeviceError, match=f"did you mean '{ours}'"):
        mge.tensor([1.0], device="cpux").to(name)


def test_a_property_of_a_module_that_fails_says_why() -> None:
    class Net(mge.module.Module):
        @property
        def width(self) -> int:
            return self.layers[0].out_features

        def forward(self) -> None:
            """Does nothing."""

    with pytest.raises(AttributeError, match="'Net' object has no attribute 'layers'"):
        Net().width
    assert not hasattr(Net(), "__deepcopy__")


def test_nonsense_gets_no_advice() -> None:
    for owner in (mge, mge.module, mge.optimizer):
        with pytest.raises(AttributeError, match=r"no attribute 'qqqq'$"):
            owner.qqqq


def test_advice_of_the_top_level_exists() -> None:
    tables = (spelling._TOP_LEVEL, spelling._OPTIMIZERS, spelling._LAYERS)
    for text in (text for table in tables for text in table.values()):
        for path in re.findall(r"\btreadle\.([\w.]+)", text):
            found: object = mge
            for part in path.split("."):
                found = getattr(found, part)
