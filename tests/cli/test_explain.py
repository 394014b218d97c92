"""`treadle explain`: text, data, and the page."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.cli import main


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file with a model of one input."""

    @jit.trace(symbolic=True, capture_as_const=True)
    def score(x: Any) -> Any:
        return F.relu(F.matmul(x, mge.tensor(np.ones((3, 4), np.float32))) + 1)

    score(mge.tensor(np.ones((2, 3), np.float32)))
    path = tmp_path / "score.mge"
    score.dump(path, arg_names=["pixels"], output_names=["scores"])
    return path


def test_text_by_default(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(model)]) == 0
    shown = capsys.readouterr().out
    assert "stages\n" in shown and "groups: 1, the longest first" in shown
    assert "not measured" in shown
    assert main(["explain", str(model), "--full", "--level", "0"]) == 0
    assert "groups, as they run" in capsys.readouterr().out


def test_data_with_measured_times(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(model), "--json", "--measure", "-n", "2"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert all(group["measured"] > 0 for group in told["groups"])


def test_a_page_with_the_names_of_the_ends(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "score.html"
    assert main(["explain", str(model), "--html", str(page), "--shape", "pixels=5,3"]) == 0
    assert capsys.readouterr().out.startswith(str(page))
    text = page.read_text(encoding="utf-8")
    assert "%pixels" in text and '"scores"' in text and "float32[5,4]" in text


def test_beside_data_the_page_is_told_on_standard_error(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "score.html"
    assert main(["explain", str(model), "--html", str(page), "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["name"] and str(page) in shown.err


def test_what_is_no_model_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.tm").write_bytes(b"no model")
    assert main(["explain", str(tmp_path / "x.tm")]) == 1
    assert "treadle explain:" in capsys.readouterr().err


def test_a_model_in_phases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What commands tell of it is as random inputs have it."""

    @jit.trace(capture_as_const=True)
    def positive(x: Any) -> Any:
        return F.softmax(F.exp(x)[x[:, 0] > 0] @ mge.tensor(np.ones((3, 4), np.float32)), 1)

    positive(mge.tensor(np.ones((6, 3), np.float32)))
    path, report = tmp_path / "positive.mge", tmp_path / "report"
    positive.dump(path, arg_names=["x"], output_names=["scores"])

    def told(*command: str) -> Any:
        assert main([command[0], str(path), *command[1:], "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    explained = told("explain")
    assert [phase["programs"] for phase in explained["phases"]] == [1, 1]
    assert explained["phases"][0]["decided"] == ["nonzero -> int32[nonzero_0,1]"]
    assert [part["name"] for part in explained["parts"]] == ["positive.1", "positive.2"]
    counts = told("stats")
    assert counts["program"]["phases"] == 2 and counts["program"]["launches"] >= 2
    assert 0 < counts["flops"] < 10_000
    made = told("compile", "-o", str(tmp_path / "made.tm"), "--report", str(report))
    assert len(made["native"]) == 1 and made["phases"] == 2
    assert json.loads((report / "explain.json").read_text())["phases"] == explained["phases"]
    made = told("compile", "--emit", "library", "-o", str(tmp_path / "library"))
    assert [end["name"] for end in made["outputs"]] == ["scores"]
    assert main(["compile", str(path), "--emit", "wasm", "-o", str(tmp_path / "wasm")]) != 0
    assert "phases" in capsys.readouterr().err
