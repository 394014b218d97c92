"""`treadle run`: inputs of all kinds, what is measured, what is compared, native code."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.cli import main
from treadle.cli.run import trial
from treadle.engine.package.models import read_models, write_models

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model that doubles the sum over each channel of small color images."""
    mge.set_default_device("cpux")

    @jit.trace(symbolic=True, capture_as_const=True)
    def double(data: Any) -> Any:
        return F.sum(data, axis=(2, 3)) * 2.0

    double(mge.tensor(np.ones((1, 3, 2, 2), np.float32)))
    path = tmp_path / "double.mge"
    double.dump(path, arg_names=["data"], output_names=["y"])
    return path


@pytest.fixture
def native(source: Path) -> Path:
    """The same model with machine code for two sizes of batches."""
    made = source.with_suffix(".tm")
    assert main(["compile", str(source), "--batch", "1,2"]) == 0
    return made


def told(capsys: Capture, *arguments: str, status: int = 0) -> Any:
    """What `run --json` prints."""
    capsys.readouterr()
    command = ["run", *arguments, "--json", "-n", "2", "--warmup", "0"]
    if status:
        with pytest.raises(SystemExit) as end:
            main(command)
        assert end.value.code == status
    else:
        assert main(command) == 0
    return json.loads(capsys.readouterr().out)


def result(path: Path, *arguments: str) -> Any:
    """The output of a run."""
    saved = path.parent / "saved.npz"
    assert main(["run", str(path), *arguments, "-n", "1", "--save", str(saved)]) == 0
    return np.load(saved)["y"]


def test_inputs_come_in_many_forms(source: Path, tmp_path: Path) -> None:
    data = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2)
    np.save(tmp_path / "a.npy", data)
    np.savez(tmp_path / "b.npz", data=data)
    np.savez(tmp_path / "c.npz", first=data, second=data + 1)
    (tmp_path / "d.json").write_text(json.dumps(data.tolist()))
    for given in ("a.npy", "data=a.npy", "b.npz", "data=b.npz", "data=c.npz:first", "d.json"):
        name, sign, file = given.rpartition("=")
        np.testing.assert_array_equal(
            result(source, "-i", f"{name}{sign}{tmp_path / file}"), [[12.0, 44.0, 76.0]]
        )
    np.testing.assert_array_equal(
        result(source, "-i", f"data={tmp_path / 'c.npz'}:second"), [[20.0, 52.0, 84.0]]
    )


def test_images_are_resized_and_normalized(source: Path, tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2", reason="needs the vision extra")
    path = tmp_path / "red.png"
    cv2.imwrite(str(path), np.full((8, 6, 3), [10, 20, 30], np.uint8))  # blue, green, red
    np.testing.assert_allclose(result(source, "-i", str(path)), [[240.0, 160.0, 80.0]], rtol=1e-5)
    options = ["--channels", "bgr", "--scale", "0.1", "--mean", "1,1,1", "--std", "0.5,1,1"]
    found = result(source, "-i", str(path), *options)
    np.testing.assert_allclose(found, [[0.0, 8.0, 16.0]], atol=1e-4)


def test_images_in_the_other_order_of_axes(tmp_path: Path, capsys: Capture) -> None:
    cv2 = pytest.importorskip("cv2", reason="needs the vision extra")
    mge.set_default_device("cpux")
    first = jit.trace(symbolic=True, capture_as_const=True)(lambda data: data[:, 0, 0])
    first(mge.tensor(np.ones((2, 4, 5, 3), np.float32)))
    path = tmp_path / "first.mge"
    first.dump(path, arg_names=["data"], output_names=["y"])
    cv2.imwrite(str(tmp_path / "red.png"), np.full((8, 6, 3), [10, 20, 30], np.uint8))
    given = ["-i", str(tmp_path / "red.png")]
    np.testing.assert_allclose(result(path, *given, "--layout", "nhwc"), [[30, 20, 10]] * 2)
    capsys.readouterr()
    assert main(["run", str(path), *given]) == 1
    assert "--layout" in capsys.readouterr().err


def test_a_models_own_preprocessing_takes_images(source: Path, tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2", reason="needs the vision extra")
    steps = tmp_path / "camera.toml"
    steps.write_text('[data]\nformat = "rgba"\nsize = [4, 4]\nresize = "nearest"\nscale = 0.1\n')
    made, path = tmp_path / "made.tm", tmp_path / "red.png"
    options = ["--preprocess", str(steps), "-o", str(made)]
    assert main(["compile", str(source), *options]) == 0
    cv2.imwrite(str(path), np.full((8, 6, 3), [10, 20, 30], np.uint8))
    np.testing.assert_allclose(result(made, "-i", str(path)), [[24.0, 16.0, 8.0]], rtol=1e-5)


def test_preprocessing_may_be_named_for_a_run(source: Path, tmp_path: Path) -> None:
    steps = tmp_path / "camera.toml"
    steps.write_text("[data]\nscale = 0.5\n")
    np.save(tmp_path / "x.npy", np.full((1, 2, 2, 3), 8, np.uint8))
    given = ["-i", str(tmp_path / "x.npy"), "--preprocess", str(steps)]
    np.testing.assert_array_equal(result(source, *given), [[32.0] * 3])


def test_code_in_the_file_is_used_for_its_gears(native: Path, capsys: Capture) -> None:
    for batch in (1, 2):
        found = told(capsys, str(native), "--shape", f"data={batch},3,2,2")
        assert found["code"].startswith("native code for ")
        assert found["outputs"]["y"]["shape"] == [batch, 3]
    assert main(["run", str(native), "--shape", "data=3,3,2,2"]) == 1
    assert "it has gears for data [1, 3, 2, 2]; data [2, 3, 2, 2]" in capsys.readouterr().err
    found = told(capsys, str(native), "--shape", "data=3,3,2,2", "--recompile")
    assert found["outputs"]["y"]["shape"] == [3, 3]


@pytest.mark.parametrize("options", [["--portable"], ["--level", "0"], ["--winograd", "0"]])
def test_what_is_asked_of_the_compiler_is_compiled_here(
    native: Path, options: list[str], capsys: Capture
) -> None:
    assert told(capsys, str(native), *options)["code"].startswith("compiled here")


def test_code_for_another_machine_has_a_status_of_its_own(native: Path, capsys: Capture) -> None:
    (model,) = read_models(native, allow_native=True)
    (part,) = model.native
    machine = dataclasses.replace(part.code.machine, requires=("none-has-this",))
    code = dataclasses.replace(part.code, machine=machine)
    foreign = dataclasses.replace(model, native=(dataclasses.replace(part, code=code),))
    write_models(native, [foreign], "test")
    assert main(["run", str(native), "-n", "1"]) == 4
    error = capsys.readouterr().err
    assert "none-has-this" in error and "--recompile" in error
    assert told(capsys, str(native), "--recompile")["code"] == "compiled here"
    assert main(["info", str(native)]) == 0
    assert "no: needs" in capsys.readouterr().out


def test_cases_of_the_file_are_checked(native: Path, capsys: Capture) -> None:
    (row,) = told(capsys, str(native), "--check")["compared"]
    assert row["name"] == "y" and row["equal"]
    (model,) = read_models(native)
    (case,) = model.cases
    wrong = dataclasses.replace(case, outputs={"y": case.outputs["y"] + 1})
    write_models(native, [dataclasses.replace(model, cases=(wrong,))], "test")
    found = told(capsys, str(native), "--check", status=3)
    assert "y differs by 1 at most, in 3 of 3 elements" in found["differences"][0]


def test_a_file_without_cases_cannot_be_checked(source: Path, capsys: Capture) -> None:
    assert main(["run", str(source), "--check", "-n", "1"]) == 1
    assert "the file keeps no cases" in capsys.readouterr().err


def test_results_are_compared_with_one_array(source: Path, tmp_path: Path, capsys: Capture) -> None:
    data = ["-i", "[[[[1, 1], [1, 1]], [[0, 0], [0, 0]], [[0, 0], [0, 0.5]]]]"]
    np.save(tmp_path / "good.npy", np.array([[8, 0, 1]], np.float32))
    np.save(tmp_path / "near.npy", np.array([[8, 0, 1.01]], np.float32))
    assert told(capsys, str(source), *data, "--expect", str(tmp_path / "good.npy"))
    near = [*data, "--expect", str(tmp_path / "near.npy")]
    found = told(capsys, str(source), *near, status=3)
    assert "first at [0, 2]: 1, not 1.01" in found["differences"][0]
    assert told(capsys, str(source), *near, "--tolerance", "0.02")


def test_values_inside_are_written(source: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "values"
    assert told(capsys, str(source), "--dump", str(folder))["dumped"] == 2
    rows = json.loads((folder / "values.json").read_text())
    assert [row["op"] for row in rows] == ["sum", "mul"]
    first, second = (np.load(folder / row["file"]) for row in rows)
    np.testing.assert_allclose(second, first * 2)


def test_several_callers_and_threads(native: Path, capsys: Capture) -> None:
    found = told(capsys, str(native), "--parallel", "3", "--threads", "2")["throughput"]
    assert (found["callers"], found["calls"]) == (3, 6)
    assert found["rate"] == pytest.approx(found["calls"] / found["seconds"])


def test_one_run_is_no_runs(source: Path, capsys: Capture) -> None:
    assert main(["run", str(source), "-n", "1"]) == 0
    assert "\n1 run: median" in capsys.readouterr().out


def test_kernels_are_timed_and_traced(native: Path, tmp_path: Path, capsys: Capture) -> None:
    trace = tmp_path / "trace.json"
    kernels = told(capsys, str(native), "--profile")["profile"]["kernels"]
    assert sum(k["calls"] for k in kernels) >= 1
    told(capsys, str(native), "--trace", str(trace))
    assert json.loads(trace.read_text())["traceEvents"]


def test_options_are_tried(source: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "MAPS", (("row-major",),))
    rows = told(capsys, str(source), "--try", "--threads", "2")["tried"]
    tried = {row["options"] for row in rows}
    assert {"as it is", "--threads 1"} <= tried
    assert any("--winograd 0" in name for name in tried)
    assert any("--maps row-major" in name for name in tried)
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)
    assert main(["run", str(source), "--try", "-n", "1", "--threads", "1"]) == 0
    shown = capsys.readouterr().out
    assert "options that were tried" in shown and "1.00 x" in shown


def test_a_setting_that_does_not_compile_is_left_out(
    source: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "MAPS", (("spirals",),))
    monkeypatch.setattr(trial, "LEVELS", ())
    rows = told(capsys, str(source), "--try", "--threads", "1")["tried"]
    assert "as it is" in {row["options"] for row in rows}
    assert not any("spirals" in row["options"] for row in rows)


def test_precision_may_be_chosen_for_a_run(source: Path, capsys: Capture) -> None:
    given = ["--precision", "bfloat16", "--keep", "sum", "--allow", "mul"]
    assert told(capsys, str(source), *given)["precision"]["mode"] == "bfloat16"
    assert main(["run", str(source), "-n", "1", "--precision", "float16"]) == 0
    assert "precision float16" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("missing.npz", "cannot be read"),
        ("data=missing.npz:x", "cannot be read"),
        ("data=missing.png", "No such file"),
        ("data=text.npy", "cannot be read"),
        ("a=1", "names no input"),
        ("strange.npz", "no input strange"),
    ],
)
def test_wrong_inputs_are_named(
    source: Path, tmp_path: Path, given: str, message: str, capsys: Capture, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.npy").write_text("nothing")
    np.savez("strange.npz", strange=np.ones(1))
    assert main(["run", str(source), "-i", given]) == 1
    assert message in capsys.readouterr().err
