"""`treadle compile`: what is in the file, for whom, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import jit
from treadle.cli import main
from treadle.cli.models.opening import with_outputs
from treadle.deploy import load_offline
from treadle.engine.package.models import Model, Runner, read_models
from treadle.engine.package.native_part import NativePart


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model of images: a product per pixel, and a sum."""
    mge.set_default_device("cpux")
    weight = mge.tensor(np.arange(12, dtype=np.float32).reshape(4, 3, 1, 1) / 10)

    @jit.trace(symbolic=True, capture_as_const=True)
    def score(data: Any) -> Any:
        return F.relu(F.conv2d(data, weight)).mean(axis=(2, 3))

    score(mge.tensor(np.ones((1, 3, 4, 4), np.float32)))
    path = tmp_path / "score.mge"
    score.dump(path, arg_names=["data"], output_names=["y"])
    return path


def compiled(source: Path, *options: str) -> Model:
    """The file that a command writes."""
    made = source.with_name("made.tm")
    assert main(["compile", str(source), "-o", str(made), *options]) == 0
    return read_models(made, allow_native=True)[0]


def shapes(part: NativePart) -> list[tuple[int, ...]]:
    return [gear.shapes[0] for gear in part.gears]


def test_a_file_for_ranges_of_extents(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = compiled(source, "--shape", "data=1..3,3,4..9,4")
    assert "ranges    data_0 1 to 3, data_2 4 to 9" in capsys.readouterr().out
    (part,) = model.native
    assert part.ranges is not None and part.ranges.inputs == (("data_0", 3, "data_2", 4),)
    made = source.with_name("made.tm")
    for shape in ("1,3,4,4", "3,3,9,4", "2,3,7,4"):
        assert main(["run", str(made), "-n", "1", "--shape", f"data={shape}"]) == 0
    assert "native code" in capsys.readouterr().out
    assert main(["info", str(made)]) == 0
    assert "data [data_0,3,data_2,4]: data_0 1 to 3, data_2 4 to 9" in capsys.readouterr().out
    assert main(["run", str(made), "-n", "1", "--shape", "data=4,3,4,4"]) == 1
    assert "the extent data_0 is 4, and its file is for 1 to 3" in capsys.readouterr().err
    both = ["--shape", "data=1..3,3,4,4", "--batch", "1,2"]
    assert main(["compile", str(source), "-o", str(made), *both]) == 2


NARROW = {"mixed-bfloat16": 0.02, "float16": 0.002, "int8": 0.03}
"""Modes, and how far results may be from those of float32, as a part of the largest."""


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A model of images of any size: a convolution, what its maps hold on average, a product."""
    mge.set_default_device("cpux")
    mge.random.seed(0)
    conv, head = M.Conv2d(3, 16, 3, padding=1), M.Linear(16, 10)

    @jit.trace(symbolic=True, capture_as_const=True)
    def score(data: Any) -> Any:
        return head(F.relu(conv(data)).mean(axis=(2, 3)))

    score(mge.tensor(pictures(4, 8, 8)))
    path = tmp_path / "wide.mge"
    score.dump(path, arg_names=["data"], output_names=["y"])
    return path


def pictures(count: int, height: int, width: int) -> Any:
    random = np.random.default_rng(count + height + width)
    return random.standard_normal((count, 3, height, width)).astype(np.float32)


@pytest.mark.parametrize("mode", NARROW)
def test_ranges_of_extents_in_another_precision(
    wide: Path, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(wide.with_name("samples.npz"), data=pictures(20, 12, 10))
    samples = ["--calibration", str(wide.with_name("samples.npz"))] if mode == "int8" else []
    asked = ["--shape", "data=1..8,3,4..30,4..30", "--precision", mode, *samples]
    model = compiled(wide, *asked, "--native")
    told = capsys.readouterr().out
    assert f"precision    {mode}" in told and "data_0 1 to 8, data_2 4 to 30" in told
    assert {n.op.name for n in model.graph.nodes} & {"cast", "quantize"}
    offline, plain = load_offline(wide.with_name("made.tm")), read_models(wide)[0]
    for shape in ((1, 4, 4), (2, 7, 30), (5, 12, 10), (8, 30, 29)):
        data = pictures(*shape)
        (got,) = offline.run({"data": data}).values()
        (same,) = Runner(model.at([data.shape]))([data])
        (wanted,) = Runner(plain.at([data.shape]))([data])
        most = abs(wanted).max()
        assert 0 < abs(got - wanted).max() < NARROW[mode] * most
        # Next to a tie sums of another order are rounded to the neighbor.
        assert abs(got - same).max() < NARROW[mode] * most / 2


def test_ranges_for_other_outputs(wide: Path) -> None:
    made = wide.with_name("made.tm")
    (relu,) = (n for n in read_models(wide)[0].graph.nodes if n.op.name == "relu")
    name = relu.names[0] if relu.names else relu.group
    model = compiled(wide, "--shape", "data=1..8,3,4..30,8", "--outputs", name)
    assert model.outputs == (name,) and "matmul" not in {n.op.name for n in model.graph.nodes}
    plain = with_outputs(read_models(wide)[0], [name])
    for shape in ((1, 4, 8), (8, 30, 8)):
        data = pictures(*shape)
        (got,) = load_offline(made).run({"data": data}).values()
        (wanted,) = Runner(plain.at([data.shape]))([data])
        assert got.shape == (shape[0], 16, *shape[1:])
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_calibration_lies_within_the_ranges(wide: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["compile", str(wide), "--shape", "data=1..8,3,4..30,8", "--precision", "int8"]
    assert main(asked) == 2
    assert "int8 needs --calibration" in capsys.readouterr().err
    np.savez(wide.with_name("samples.npz"), data=pictures(20, 12, 10))
    assert main([*asked, "--calibration", str(wide.with_name("samples.npz"))]) == 1
    assert "[20, 3, 12, 10] for float32[1..8,3,4..30,8]" in capsys.readouterr().err


def test_a_file_has_code_for_this_machine_its_provenance_and_a_case(source: Path) -> None:
    model = compiled(source, "--info", "author=me", "--info", "task=scores")
    (part,) = model.native
    assert shapes(part) == [(1, 3, 4, 4)]
    assert model.info["author"] == "me" and model.info["task"] == "scores"
    assert model.info["source"]["file"] == "score.mge"
    assert len(model.info["source"]["sha256"]) == 64
    (case,) = model.cases
    assert main(["run", str(source.with_name("made.tm")), "--check", "-n", "1"]) == 0
    assert set(case.outputs) == {"y"}
    command = model.info["command"]
    assert command.startswith("treadle compile score.mge -o made.tm") and "/" not in command
    assert part.about["command"] == command


def test_equal_work_leaves_equal_files(source: Path) -> None:
    compiled(source)
    made = source.with_name("made.tm")
    first = made.read_bytes()
    compiled(source)
    assert made.read_bytes() == first


def test_portable_files_have_no_code_and_no_case_if_not_wanted(source: Path) -> None:
    model = compiled(source, "--portable", "--no-case")
    assert not model.native and not model.cases


@pytest.mark.parametrize(
    "options",
    [
        ["--batch", "1,4"],
        ["--gear", "data=1,3,4,4", "--gear", "data=4,3,4,4"],
        ["--gear", "data=1,3,4,4", "--batch", "4"],
    ],
    ids=" ".join,
)
def test_gears_share_a_file(
    source: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (part,) = compiled(source, *options).native
    assert "gears    data [1,3,4,4]; data [4,3,4,4]" in capsys.readouterr().out
    assert shapes(part) == [(1, 3, 4, 4), (4, 3, 4, 4)]


def test_one_gear_is_the_shape_of_the_model(source: Path) -> None:
    model = compiled(source, "--batch", "5")
    assert model.graph.inputs[0].type.shape == (5, 3, 4, 4)
    assert shapes(model.native[0]) == [(5, 3, 4, 4)]


def test_code_for_several_targets(source: Path) -> None:
    parts = compiled(source, "--target", "native", "--target", "generic", "--level", "1").native
    assert parts[-1].code.machine.target == "generic"
    assert parts[0].about["options"]["level"] == 1


def test_other_values_become_outputs(source: Path, tmp_path: Path) -> None:
    listed = tmp_path / "graph.txt"
    assert main(["info", str(source), "--graph", str(listed)]) == 0
    (line,) = [text for text in listed.read_text().splitlines() if "= conv" in text]
    value = line.split()[0]
    model = compiled(source, "--outputs", value, "--outputs", "y", "--portable")
    assert model.outputs == (value, "y")
    assert [v.type.shape for v in model.graph.outputs] == [(1, 4, 4, 4), (1, 4)]
    only = compiled(source, "--outputs", value, "--portable")
    assert len(only.graph.nodes) < len(model.graph.nodes)


def test_preprocessing_becomes_a_part_of_the_model(source: Path, tmp_path: Path) -> None:
    steps = tmp_path / "camera.toml"
    steps.write_text('[data]\nformat = "bgr"\nchannels = "rgb"\nscale = 0.5\n')
    model = compiled(source, "--preprocess", str(steps), "--batch", "1,2")
    assert str(model.graph.inputs[0].type).startswith("uint8[1,4,4,3]")
    assert shapes(model.native[0]) == [(1, 4, 4, 3), (2, 4, 4, 3)]
    assert model.info["preprocessing"] == {
        "data": {"format": "bgr", "channels": "rgb", "scale": 0.5}
    }
    pixels = np.full((1, 4, 4, 3), [30, 20, 10], np.uint8)
    np.save(tmp_path / "bgr.npy", pixels)
    np.save(tmp_path / "rgb.npy", pixels[..., ::-1].transpose(0, 3, 1, 2) / 2)
    results = []
    for path, name in ((source, "rgb"), (source.with_name("made.tm"), "bgr")):
        given, saved = str(tmp_path / f"{name}.npy"), tmp_path / f"{name}.npz"
        assert main(["run", str(path), "-i", given, "-n", "1", "--save", str(saved)]) == 0
        results.append(np.load(saved)["y"])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5)


def test_precision_is_chosen_with_exceptions(source: Path, tmp_path: Path) -> None:
    options = ["--precision", "mixed-bfloat16", "--portable", "--report", str(tmp_path / "r")]
    model = compiled(source, *options)
    assert model.info["precision"] == "mixed-bfloat16"
    kinds = {v.type.dtype.name for n in model.graph.nodes for v in n.outputs}
    assert "bfloat16" in kinds
    assert "mixed-bfloat16" in (tmp_path / "r" / "precision.txt").read_text()
    kept = compiled(source, *options[:3], "--keep", "conv")
    assert "bfloat16" not in {v.type.dtype.name for n in kept.graph.nodes for v in n.outputs}


def test_what_few_bits_cost_is_told(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--precision", "mixed-bfloat16", "--batch", "1,2"]
    compiled(source, *given, "--json")
    (difference,) = json.loads(capsys.readouterr().out)["differences"].values()
    assert 0 < difference < 0.02
    compiled(source, *given)
    assert "differences  y 0." in capsys.readouterr().out


def test_calibrated_integers(source: Path, tmp_path: Path) -> None:
    samples = np.random.default_rng(0).standard_normal((8, 3, 4, 4)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", data=samples)
    given = ["--precision", "int8", "--calibration", str(tmp_path / "samples.npz"), "--portable"]
    model = compiled(source, *given)
    assert model.info["precision"] == "int8"


def test_options_come_from_files_and_the_command_line_wins(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "options.json"
    path.write_text('{"level": 1, "winograd": 0, "streams": 1}')
    switch = tmp_path / "switch.json"
    switch.write_text('{"Switch": {"Fusion": {"loop": "off"}}}')
    given = ["--options", str(path), "--level", "2", "--fusion-switch", str(switch)]
    given += ["--disable", "layout", "--maps", "channels-last"]
    recorded = compiled(source, *given).native[0].about["options"]
    assert (recorded["level"], recorded["winograd"]) == (2, 0)
    assert recorded["disabled"] == ["layout"] and recorded["layouts"] == ["channels-last"]
    assert recorded["switched_off"] == ["loop"]


def test_a_report_has_text_data_and_a_page(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "report"
    compiled(source, "--report", str(folder), "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["report"] == str(folder) and told["seconds"] > 0
    assert told["size"] == source.with_name("made.tm").stat().st_size
    assert told["inputs"] == [{"name": "data", "dtype": "float32", "shape": [1, 3, 4, 4]}]
    assert len(told["native"]) == 1
    assert sorted(p.name for p in folder.iterdir()) == [
        "explain.json",
        "explain.txt",
        "program.html",
    ]
    assert json.loads((folder / "explain.json").read_text())


@pytest.mark.parametrize(
    ("options", "message", "status"),
    [
        (["--batch", "x"], "is not a list of sizes", 2),
        (["--gear", "data"], "is not a shape", 2),
        (["--gear", "image=1;data=2,3,4,4", "--batch", "2"], "no input image", 1),
        (["--batch", "4,4"], "two of them are equal", 1),
        (["--outputs", "z"], "the model has nothing called z", 1),
        (["--info", "author"], "has no value", 2),
        (["--disable", "layot"], "did you mean layout", 2),
        (["--maps", "nhwc"], "there are channels-last, blocked, row-major", 2),
        (["--options", "missing.json"], "cannot be read", 1),
        (["--preprocess", "missing.toml"], "cannot be read", 1),
        (["--keep", "conv"], "it goes with --precision", 2),
        (["--precision", "int8"], "int8 needs --calibration", 2),
        (["--shape", "data=2,3"], "input data has 4 axes, not 2", 1),
        (["--shape", "data="], "input data has 4 axes, not 0", 1),
        (["--portable", "--target", "avx2"], "leaves out the code", 2),
        (["--emit", "library", "--batch", "1,2"], "use --emit model", 2),
        (["--system", "windows"], "add --emit library", 2),
        (["--emit", "library", "--target", "generic", "--target", "avx2"], "use --emit model", 2),
        (["--emit", "wasm", "--batch", "1,2"], "use --emit model", 2),
        (["--emit", "wasm", "--target", "avx2"], "no other instructions", 2),
        (["-o", "/nonexistent/made.tm"], "No such file", 1),
    ],
    ids=str,
)
def test_mistakes_are_named(
    source: Path,
    options: list[str],
    message: str,
    status: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compile", str(source), *options]) == status
    assert message in capsys.readouterr().err


def test_code_is_added_in_place_but_no_other_model_takes_the_place_of_its_source(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = source.with_name("made.tm")
    case = compiled(source, "--portable").cases[0]
    assert main(["compile", str(made), "--batch", "1,2"]) == 2
    assert "name a file: -o" in capsys.readouterr().err
    assert main(["compile", str(made)]) == 0
    (model,) = read_models(made, allow_native=True)
    assert len(model.native) == 1
    assert model.info["source"]["file"] == "score.mge"
    np.testing.assert_array_equal(model.cases[0].inputs["data"], case.inputs["data"])


def test_what_needs_python_is_portable_and_said_to_be(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "options.json"
    path.write_text('{"force_fallback": ["relu"]}')
    assert not compiled(source, "--options", str(path)).native
    assert "native   none\nnote     " in capsys.readouterr().out
    assert main(["compile", str(source), "--options", str(path), "--native"]) == 1
    assert "relu" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "it is not an object"),
        ("{", "cannot be read"),
        ('{"levels": 1}', "did you mean level"),
        ('{"level": "2"}', "it is of type int"),
    ],
)
def test_files_of_options_are_checked(
    source: Path, tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "options.json"
    path.write_text(text)
    assert main(["compile", str(source), "--options", str(path)]) == 1
    assert message in capsys.readouterr().err
