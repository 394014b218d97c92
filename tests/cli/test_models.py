"""`treadle compile` and `treadle run` on model files."""

import json
import shutil
import zipfile
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
    """A file with a model of two inputs."""

    @jit.trace(symbolic=True, capture_as_const=True)
    def score(x: Any, scale: Any) -> Any:
        return F.relu(x * scale)

    score(mge.tensor(np.ones((2, 3), np.float32)), mge.tensor([2.0]))
    path = tmp_path / "score.mge"
    score.dump(path, arg_names=["x", "scale"], output_names=["y"])
    return path


def test_run_takes_inputs_from_files_and_compares(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.array([[1, -1, 2], [0, 3, -4]], np.float32))
    np.savez(tmp_path / "good.npz", y=np.array([[3, 0, 6], [0, 9, 0]], np.float32))
    np.savez(tmp_path / "bad.npz", y=np.zeros((2, 3), np.float32))
    given = ["-i", f"x={tmp_path / 'x.npy'}", "-i", "scale=[3]", "-n", "2"]
    assert main(["run", str(model), *given, "--expect", str(tmp_path / "good.npz")]) == 0
    shown = capsys.readouterr().out
    assert "y float32[2, 3]: 3, 0, 6, 0, 9, ..." in shown
    assert "first call" in shown and "y agrees: differs by 0 at most" in shown
    with pytest.raises(SystemExit) as end:
        main(["run", str(model), *given, "--expect", str(tmp_path / "bad.npz")])
    assert end.value.code == 3
    assert "y differs by 9 at most" in capsys.readouterr().out


def test_run_writes_results_and_speaks_json(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "out.npz"
    assert main(["run", str(model), "-n", "1", "--save", str(saved), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["outputs"] == {"y": {"shape": [2, 3], "dtype": "float32"}}
    assert set(told["times"]) >= {"first", "median", "p99"}
    assert np.load(saved)["y"].shape == (2, 3)


def test_compile_writes_a_file_for_other_shapes_with_a_case_inside(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, report = tmp_path / "wide.tm", tmp_path / "report"
    command = ["compile", str(model), "--shape", "x=5,3", "-o", str(made), "--report", str(report)]
    assert main(command) == 0
    assert "x float32[5,3]" in capsys.readouterr().out
    assert (report / "program.html").exists() and "relu" in (report / "explain.txt").read_text()
    assert main(["run", str(made), "-n", "1"]) == 0
    assert "y float32[5, 3]" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_compile_writes_a_library(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "native"
    assert main(["compile", str(model), "--emit", "library", "-o", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert Path(told["library"]).name == "libscore.so"
    assert "score_run(score_model *model)" in (folder / "score.h").read_text()
    named = ["--emit", "library", "-o", str(folder), "--name", "points", "--target", "generic"]
    assert main(["compile", str(model), *named]) == 0
    assert "library  " in capsys.readouterr().out
    assert "points_run(points_model *model)" in (folder / "points.h").read_text()


@pytest.mark.parametrize(
    ("arguments", "message", "status"),
    [
        (["--shape", "x=a"], "is not a shape", 2),
        (["--mean", "much"], "mean takes numbers", 2),
        (["--channels", "bgra"], "channels cannot be", 2),
        (["--shape", "z=1"], "no input z", 1),
        (["-i", "z=[1]"], "names no input", 1),
        (["-i", "x=missing.npy"], "cannot be read", 1),
        (["-i", "scale=[1, 2, 3, 4]"], "does not fit", 1),
    ],
)
def test_mistakes_are_named(
    model: Path,
    arguments: list[str],
    message: str,
    status: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", str(model), *arguments]) == status
    assert message in capsys.readouterr().err


def test_a_file_that_is_no_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("nothing", encoding="utf-8")
    assert main(["run", str(path)]) == 1
    assert "holds no model" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "info", "compile"])
def test_a_file_of_pytorch_is_told_from_others(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", b"")
    assert main([command, str(path)]) == 1
    assert "`treadle convert`" in " ".join(capsys.readouterr().err.split())
