"""`treadle convert`: checkpoints with their models' code become files that compute the same."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serialization.test_directories import safetensors

import treadle as mge
import treadle.module as M
from treadle.cli import main
from treadle.engine.package.models import Runner, read_models

NETS = '''
"""Networks of the tests of `treadle convert`."""
import treadle.functional as F
import treadle.module as M


class Net(M.Module):
    def __init__(self, classes=5, groups=2):
        super().__init__()
        self.conv = M.Conv2d(4, 8, 3, padding=1, groups=groups)
        self.bn = M.BatchNorm2d(8)
        self.fc = M.Linear(8, classes)

    def forward(self, x):
        x = F.relu(self.bn(self.conv(x)))
        return {"logits": self.fc(x.mean((2, 3)))}


class Embedded(M.Module):
    def __init__(self):
        super().__init__()
        self.table, self.scale = M.Embedding(10, 3), M.Linear(2, 3)

    def forward(self, tokens, x):
        return self.table(tokens).sum(1) + self.scale(x), x * 2


class Forgetful(M.Module):
    """Its results depend on how often it was called: a trace knows one of them."""

    def __init__(self):
        super().__init__()
        self.fc, self.calls = M.Linear(2, 2), 0

    def forward(self, x):
        self.calls += 1
        return self.fc(x) * self.calls


def number():
    return 3


def failing():
    raise ValueError("no such size")
'''


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / f"nets_{abs(hash(tmp_path))}.py"
    path.write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return path


def foreign(seed: int = 0) -> dict[str, Any]:
    """Weights of `Net` as PyTorch has them."""
    draw = np.random.default_rng(seed).standard_normal
    shapes = {
        "conv.weight": (8, 2, 3, 3),
        "conv.bias": (8,),
        "bn.weight": (8,),
        "bn.bias": (8,),
        "bn.running_mean": (8,),
        "fc.weight": (5, 8),
        "fc.bias": (5,),
    }
    made: dict[str, Any] = {k: draw(s).astype(np.float32) for k, s in shapes.items()}
    made["bn.running_var"] = np.abs(draw(8)).astype(np.float32) + 0.5
    made["bn.num_batches_tracked"] = np.array(7)
    return made


def plain(state: dict[str, Any], x: Any) -> Any:
    """`Net` by NumPy, on PyTorch's weights."""
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    views = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (2, 3))
    kernels = state["conv.weight"].reshape(2, 4, 2, 3, 3)
    halves = [
        np.einsum("nchwij,ocij->nohw", views[:, 2 * g : 2 * g + 2], kernels[g]) for g in range(2)
    ]
    per = (1, -1, 1, 1)
    y = np.concatenate(halves, 1) + state["conv.bias"].reshape(per)
    y = (y - state["bn.running_mean"].reshape(per)) / np.sqrt(
        state["bn.running_var"].reshape(per) + 1e-5
    )
    y = np.maximum(y * state["bn.weight"].reshape(per) + state["bn.bias"].reshape(per), 0)
    return y.mean((2, 3)) @ state["fc.weight"].T + state["fc.bias"]


def told(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def ending(arguments: list[str]) -> int:
    """The status with which a command ends."""
    try:
        return main(arguments)
    except SystemExit as end:
        return int(end.code or 0)


def test_weights_of_pytorch_compute_in_the_file_what_they_did(
    nets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = foreign()
    wrapped = {f"module.{k}": mge.Tensor(v, dtype=v.dtype) for k, v in state.items()}
    mge.save({"epoch": 3, "model": wrapped}, str(tmp_path / "run.ckpt"))
    given = ["--model", f"{nets.name}:Net", "--input", "x=2,4,6,6", "-o", "net.tm"]
    assert main(["convert", "run.ckpt", *given]) == 0
    shown = capsys.readouterr().out
    for line in (
        r"checkpoint +9 tensors under 'model'",
        r"loaded +8 parameters and buffers",
        r"prefix +'module\.' taken off all names",
        r"reshaped +2, such as conv\.bias \[8\] to \[1, 8, 1, 1\]",
        r"left out +1 counter of batches",
        r"logits +equal",
    ):
        assert re.search(line, shown), line
    (model,) = read_models("net.tm")
    x = np.random.default_rng(1).standard_normal((2, 4, 6, 6)).astype(np.float32)
    (found,) = Runner(model.graph)([x])
    np.testing.assert_allclose(found, plain(state, x), rtol=1e-4, atol=1e-5)
    assert model.inputs == ("x",) and model.outputs == ("logits",)
    assert model.info["source"]["file"] == "run.ckpt" and len(model.cases) == 1
    assert not list(tmp_path.glob("*unverified*"))


def test_directories_rules_and_arguments(
    nets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    state = {f"net.{k}": v for k, v in foreign().items()}
    state["net.head.w"], state["net.head.b"] = state.pop("net.fc.weight"), state.pop("net.fc.bias")
    (folder / "model.safetensors").write_bytes(safetensors(**state))
    (tmp_path / "names.json").write_text('{"head.w": "fc.weight", "head.b": "fc.bias"}')
    rules = ["--rename", r"^net\.=", "--rename", "names.json"]
    code = ["--model", f"{nets.stem}:Net", "--args", '{"groups": 2, "classes": 5}']
    assert main(["convert", "weights", *code, *rules, "-i", "x=1,4,4,4", "--json"]) == 0
    found = told(capsys)
    assert found["written"] == "weights.tm" and found["outputs"][0]["equal"]
    assert found["problems"] == []
    assert read_models("weights.tm")[0].info["source"]["file"] == "weights"


def test_several_inputs_of_other_element_types(
    nets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, scale = np.ones((10, 3), np.float32), np.ones((3, 2), np.float32)
    state = {"table.weight": table, "scale.weight": scale, "scale.bias": np.zeros(3, np.float32)}
    Path("w.safetensors").write_bytes(safetensors(**state))
    given = ["-i", "tokens=2,4:int32", "-i", "x=2,2"]
    command = ["convert", "w.safetensors", "--model", f"{nets.name}:Embedded", *given]
    assert main([*command, "-o", "w.tm"]) == 0
    shown = capsys.readouterr().out
    assert "tokens int32[2,4], x float32[2,2]" in shown
    both = read_models("w.tm")[0].outputs
    assert len(both) == 2
    assert main([*command, "-o", "one.tm", "--outputs", both[1], "--json"]) == 0
    assert [o["name"] for o in told(capsys)["outputs"]] == [both[1]]
    assert read_models("one.tm")[0].outputs == both[1:]
    assert ending([*command, "--outputs", "neither"]) == 1
    assert "no result called neither" in capsys.readouterr().err


def test_outputs_that_differ_end_with_status_3_and_the_name_is_not_taken(
    nets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = {"fc.weight": np.eye(2, dtype=np.float32), "fc.bias": np.ones(2, np.float32)}
    Path("w.safetensors").write_bytes(safetensors(**weights))
    command = ["convert", "w.safetensors", "--model", f"{nets.name}:Forgetful", "-i", "x=1,2"]
    assert ending([*command, "-o", "w.tm"]) == 3
    shown = capsys.readouterr().out
    assert "DIFFERENT" in shown and "w.unverified.tm" in shown
    assert not Path("w.tm").exists() and Path("w.unverified.tm").exists()
    assert ending([*command, "-o", "w.tm", "--tolerance", "100"]) == 0
    assert Path("w.tm").exists() and not Path("w.unverified.tm").exists()


def test_weights_that_do_not_fit_are_listed_and_nothing_is_written(
    nets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = foreign()
    state["fc.weight"] = state["fc.weight"][:3]
    state["other"] = state.pop("fc.bias")
    Path("w.safetensors").write_bytes(safetensors(**state))
    command = ["convert", "w.safetensors", "--model", f"{nets.name}:Net", "-i", "x=1,4,4,4"]
    assert ending(command) == 1
    shown = capsys.readouterr().out
    for line in (
        r"weights that do not fit: 3; nothing was written",
        r"missing +fc\.bias",
        r"unexpected +other",
        r"shape +fc\.weight +\[3, 8\] +\[5, 8\]",
    ):
        assert re.search(line, shown), line
    assert ending([*command, "--json"]) == 1
    names = {row["name"] for row in told(capsys)["problems"]}
    assert names == {"fc.bias", "other", "fc.weight"} and not Path("w.tm").exists()
    assert ending([*command, "--no-strict"]) == 0
    assert Path("w.tm").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--model": "nets_x"}, "names no function"),
        ({"--model": "nets_that_are_not_there:Net"}, "cannot be imported: ModuleNotFoundError"),
        ({"--model": "NETS:Ned"}, "did you mean Net"),
        ({"--model": "NETS:__name__"}, "cannot be called"),
        ({"--model": "NETS:number"}, "returns no module of Treadle or PyTorch"),
        ({"--model": "NETS:failing"}, "the function fails: ValueError: no such size"),
        ({"--model": None}, "a checkpoint holds weights and no model"),
        ({"--args": "{"}, "it is not JSON"),
        ({"--args": "3"}, "neither a list nor an object"),
        ({"--args": '{"sizes": 3}'}, "unexpected keyword argument 'sizes'"),
        ({"--input": "x"}, "is not an input"),
        ({"--input": "x=1,-4"}, "is not an input"),
        ({"--input": "x=1:float31"}, "is not an element type"),
        ({"--input": None}, "inputs are not known"),
        ({"--key": "ema"}, "no dict of tensors under 'ema'"),
        ({"--rename": "abc"}, "is not a rule"),
        ({"--rename": "(=x"}, "rename"),
        ({"--output": "net.pt"}, "ends in .tm"),
    ],
)
def test_what_makes_no_sense(
    nets: Path, capsys: pytest.CaptureFixture[str], change: dict[str, str], message: str
) -> None:
    Path("w.safetensors").write_bytes(safetensors(**foreign()))
    options = {"--model": f"{nets.name}:Net", "--input": "x=1,4,4,4"} | change
    given = [
        part.replace("NETS", nets.stem)
        for name, value in options.items()
        if value is not None
        for part in (name, value)
    ]
    assert ending(["convert", "w.safetensors", *given]) == 1
    shown = capsys.readouterr()
    assert message in shown.err and "Traceback" not in shown.err


def test_checkpoints_with_several_states_and_with_none(
    nets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {k: mge.Tensor(v, dtype=v.dtype) for k, v in foreign().items()}
    mge.save({"net": state, "average": state}, "two.ckpt")
    mge.save({"epoch": 3}, "none.ckpt")
    rest = ["--model", f"{nets.name}:Net", "-i", "x=1,4,4,4"]
    assert ending(["convert", "two.ckpt", *rest]) == 1
    assert "choose one: --key net" in capsys.readouterr().err
    assert ending(["convert", "two.ckpt", *rest, "--key", "average"]) == 0
    assert ending(["convert", "none.ckpt", *rest]) == 1
    assert "no dict of tensors by name" in capsys.readouterr().err


def model_file() -> None:
    net = M.Sequential(M.Linear(3, 4), M.ReLU())
    net.eval()
    traced = mge.jit.trace(lambda x: net(x), capture_as_const=True)
    traced(mge.Tensor(np.ones((2, 3), np.float32)))
    traced.dump("net.tm", arg_names=["x"], output_names=["y"])


def test_models_are_not_converted_into_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model_file()
    assert ending(["convert", "net.tm"]) == 1
    assert "it is such a file already" in capsys.readouterr().err
    assert ending(["convert", "net.tm", "--model", "nets:Net"]) == 1
    assert "net.tm is a model" in capsys.readouterr().err


@pytest.mark.onnx
def test_to_onnx_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model_file()
    assert ending(["convert", "net.tm", "--to", "onnx", "--json"]) == 0
    assert told(capsys)["written"] == "net.onnx"
    assert ending(["convert", "net.onnx", "-o", "again.tm", "--json"]) == 0
    assert told(capsys)["outputs"][0]["equal"]
    (first,), (second,) = read_models("net.tm"), read_models("again.tm")
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    np.testing.assert_allclose(Runner(first.graph)([x])[0], Runner(second.graph)([x])[0], atol=1e-6)


TORCH_NETS = """
from torch import nn


def build(width=8):
    return nn.Sequential(nn.Conv2d(4, width, 3, groups=2), nn.BatchNorm2d(width), nn.ReLU())
"""


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")  # PyTorch's own, of its exporter
def test_models_of_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torch_nets.py").write_text(TORCH_NETS)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(4, 8, 3, groups=2), torch.nn.BatchNorm2d(8), torch.nn.ReLU()
    ).eval()
    torch.save(net.state_dict(), "net.pt")
    x = torch.randn(2, 4, 6, 6)
    rows = torch.export.Dim("rows", min=2, max=8)
    program = torch.export.export(net, (x,), dynamic_shapes=({0: rows},))
    torch.export.save(program, "net.pt2")
    code = ["--model", "torch_nets.py:build", "-i", "x=2,4,6,6", "-o", "a.tm"]
    assert ending(["convert", "net.pt", *code]) == 0
    assert "PyTorch" in capsys.readouterr().out
    assert ending(["convert", "net.pt2", "-o", "b.tm"]) == 1
    assert "it is a program" in capsys.readouterr().err
    allowed = ["convert", "net.pt2", "-o", "b.tm", "--allow-native"]
    assert ending(allowed) == 1
    assert "give them: --input input=" in capsys.readouterr().err
    assert ending([*allowed, "-i", "input=2,4,6,6"]) == 0
    for name in ("a.tm", "b.tm"):
        (found,) = Runner(read_models(name)[0].graph)([x.numpy()])
        np.testing.assert_allclose(found, net(x).detach().numpy(), rtol=1e-4, atol=1e-5)
