"""Modules and other objects saved whole: by the name of their class, with their attributes."""

import gc
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.base import saved_objects
from treadle.base.errors import CheckpointError
from treadle.quantization import quantize_qat
from treadle.serialization import allow


class Block(M.Module):
    """Shares a weight, holds modules in containers, and a function."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = M.Conv2d(1, 2, 3), M.Conv2d(1, 2, 3)
        self.second.weight = self.first.weight
        self.rest = [M.BatchNorm2d(2), {"gate": M.Linear(6, 6)}]
        self.act: Callable[[mge.Tensor], mge.Tensor] = F.relu

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        norm, others = self.rest
        made: mge.Tensor = norm(self.first(x) + self.second(x))  # type: ignore[operator]
        return self.act(others["gate"](made))  # type: ignore[index]


class Mode(Enum):
    FAST = 1


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Settings:
    mode: Mode
    pair: Pair


class Counted:
    """Chooses what is kept."""

    def __init__(self, n: int) -> None:
        self.n, self.cache = n, object()

    def __getstate__(self) -> dict[str, Any]:
        return {"n": self.n}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.n, self.cache = state["n"] + 1, object()


def through_a_file(obj: object) -> Any:
    file = io.BytesIO()
    mge.save(obj, file)
    file.seek(0)
    return mge.load(file)


def test_modules() -> None:
    net = Block()
    x = mge.tensor(np.random.default_rng(0).normal(size=(2, 1, 8, 8)).astype("float32"))
    net(x)  # running statistics
    net.eval()
    found = through_a_file({"net": net, "first": net.first})
    loaded = found["net"]
    assert type(loaded) is Block and loaded.act is F.relu and not loaded.training
    assert loaded.first.weight is loaded.second.weight and loaded.first is found["first"]
    assert isinstance(loaded.first.weight, mge.Parameter)
    assert [n for n, _ in loaded.named_parameters()] == [n for n, _ in net.named_parameters()]
    np.testing.assert_array_equal(loaded(x).numpy(), net(x).numpy())


def test_other_classes_once_they_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_objects, "_ALLOWED", list(saved_objects._ALLOWED))
    settings = Settings(Mode.FAST, Pair(mge.tensor([1.0]), (2, "b")))
    with pytest.raises(TypeError, match=r"obj\['s'\] is a Settings, which is not saved\n.*allow"):
        mge.save({"s": settings}, io.BytesIO())
    allow(Settings, Mode, Pair, Counted)
    found = through_a_file([settings, Counted(3)])
    assert type(found[0]) is Settings and found[0].mode is Mode.FAST
    assert type(found[0].pair) is Pair and found[0].pair.right == (2, "b")
    assert found[0].pair.left.tolist() == [1.0]
    assert found[1].n == 4
    with pytest.raises(TypeError, match="allow takes classes"):
        allow(settings)  # type: ignore[arg-type]


def test_qparams() -> None:
    x = mge.tensor([0, 1], dtype="int32")
    x.qparams.scale = mge.tensor(0.5)
    one, again = through_a_file([x, x])
    assert one is again and one.tolist() == [0, 1] and one.qparams == x.qparams


def test_quantized_training_goes_on() -> None:
    net = quantize_qat(M.Sequential(M.QuantStub(), M.ConvBn2d(1, 2, 3), M.DequantStub()))
    x = mge.tensor(np.random.default_rng(0).normal(size=(1, 1, 6, 6)).astype("float32"))
    net(x)
    net.eval()
    again = through_a_file(net)
    assert again[1].act_observer.mode is net[1].act_observer.mode
    np.testing.assert_array_equal(again(x).numpy(), net(x).numpy())


def test_classes_inside_functions_are_found_while_they_live() -> None:
    class Inner(M.Module):
        def forward(self, x: mge.Tensor) -> mge.Tensor:
            return x

    assert type(through_a_file(Inner())) is Inner


def test_functions_of_others_are_not_saved() -> None:
    net = M.ReLU()
    net.act = abs
    with pytest.raises(TypeError, match=r"obj.*act.* is a builtin_function_or_method"):
        mge.save(net, io.BytesIO())


def test_classes_that_are_gone_are_not_looked_for() -> None:
    home = type("Net", (Block,), {"__module__": "somebodys_models"})
    file = io.BytesIO()
    mge.save(home(), file)
    file.seek(0)
    assert type(mge.load(file)) is home
    del home
    gc.collect()
    file.seek(0)
    with pytest.raises(CheckpointError, match=r"names 'somebodys_models:Net', which this program"):
        mge.load(file)


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "subprocess:Popen",
        "builtins:object",
        "treadle.hub:load",
        "treadle.module.external:OpenVINORuntimeSubgraph",
        "treadle.traced_module.traced_module:TracedModule",
        "treadle.functional.external:openvino_runtime_opr",
        "treadle.functional.math:np.fromfile",
        "treadle.functional.math:as_tensor.__globals__",
        "treadle.functional:no such name",
        "",
        ":",
    ],
)
def test_names_of_anything_else_are_refused(name: str) -> None:
    __import__("treadle.functional.external")
    __import__("treadle.traced_module")
    __import__("treadle.hub")
    for node in (["object", name, [0]], ["function", name]):
        with pytest.raises(CheckpointError, match="lacks or does not allow"):
            _decoded([["dict", []], node], [1])


@pytest.mark.parametrize(
    ("name", "state", "problem"),
    [
        ("treadle.module.linear:Linear", ["list", []], "attributes have names"),
        ("treadle.module.linear:Linear", ["dict", [[1, 2]]], "attributes have names"),
        ("treadle.module.module:Module", ["dict", []], "abstract"),
        ("treadle.base.qparams:QuantMode", ["list", []], "malformed"),
        ("treadle.base.qparams:QParams", ["dict", []], "has the fields"),
        ("treadle.functional.math:sum", ["dict", []], "is not a class"),
    ],
)
def test_states_that_do_not_fit(name: str, state: list[Any], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        _decoded([state, ["object", name, [0]]], [1])


def _decoded(nodes: list[Any], root: Any) -> Any:
    """What a file with these nodes holds."""
    from treadle.serialization.checkpoint import KIND, chunks_of, write

    file = io.BytesIO()
    write(file, chunks_of(KIND, json.loads(json.dumps({"root": root, "nodes": nodes})), {}), "t")
    file.seek(0)
    return mge.load(file)
