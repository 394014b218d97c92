"""`treadle info MODEL` and `treadle stats MODEL`."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.base.version import VERSION
from treadle.cli import main
from treadle.engine.package.models import read_models, write_models

KERNELS = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def model(tmp_path: Path, capsys: Capture) -> Path:
    """A compiled model: a convolution of 108 parameters and a product of 20."""
    mge.set_default_device("cpux")
    kernels = mge.tensor(KERNELS)
    matrix = mge.tensor(np.ones((4, 5), np.float32))

    @jit.trace(symbolic=True, capture_as_const=True)
    def score(data: Any) -> Any:
        return F.matmul(F.relu(F.conv2d(data, kernels)).mean(axis=(2, 3)), matrix)

    score(mge.tensor(np.ones((2, 3, 10, 10), np.float32)))
    score.dump(tmp_path / "score.mge", arg_names=["data"], output_names=["y"])
    made = tmp_path / "score.tm"
    arguments = ["--batch", "2,4", "--info", "author=me", "-o", str(made)]
    assert main(["compile", str(tmp_path / "score.mge"), *arguments]) == 0
    capsys.readouterr()
    return made


def told(capsys: Capture, *arguments: str) -> Any:
    """What a command prints as JSON."""
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_info_tells_what_a_file_holds(model: Path, capsys: Capture) -> None:
    assert main(["info", str(model)]) == 0
    out = capsys.readouterr().out
    lines = dict(line.split("  ", 1) for line in out.splitlines() if "  " in line.strip())
    assert lines["author"].strip() == "me"
    assert lines["made by"].strip().startswith(f"treadle {VERSION}, llvmlite")
    assert lines["parameters"].strip().startswith("128 in 512 B")
    assert "data [2,3,10,10]" in out and "data [4,3,10,10]" in out
    assert "fits this machine" in out and "yes" in out
    [header] = [line.split() for line in out.splitlines() if line.strip().startswith("gear ")]
    assert header[-4:] == ["partitions", "launches", "streams", "events"]
    [row] = [line for line in out.splitlines() if "data [4,3,10,10]" in line]
    assert re.search(r"1: cpu \d+ nodes +\d+ +1 +0$", row)


def test_info_is_data_for_programs(model: Path, capsys: Capture) -> None:
    found = told(capsys, "info", str(model))
    assert found["inputs"] == [{"name": "data", "dtype": "float32", "shape": [2, 3, 10, 10]}]
    assert [gear["shapes"]["data"][0] for gear in found["gears"]] == [2, 4]
    for gear in found["gears"]:
        (part,) = gear["partitions"]
        batch = gear["shapes"]["data"][0]
        assert part["engine"] == "cpu" and part["nodes"] >= 4
        assert (part["reads"], part["writes"]) == (batch * 1200, batch * 20)
        assert (gear["streams"], gear["events"]) == (1, 0)
    assert [part["fits"] for part in found["native"]] == [True]
    assert (found["parameters"], found["cases"]) == (128, 1)
    assert found["ops"]["conv"] == 1
    assert found["info"]["source"]["file"] == "score.mge"
    assert found["about"]["command"].startswith("treadle compile score.mge")


def test_digests_of_code_are_checked_on_demand(model: Path, capsys: Capture) -> None:
    assert told(capsys, "info", str(model), "--verify")["verified"]
    (part,) = read_models(model, allow_native=True)[0].native
    whole = model.read_bytes()
    # Native parts come first; weights that kernels take as they are stand in both.
    places = whole.index(part.weights.tobytes()), whole.rindex(KERNELS.tobytes())
    for at, plain in zip(places, (0, 1), strict=True):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        model.write_bytes(damaged)
        assert main(["info", str(model)]) == plain
        capsys.readouterr()
        assert main(["info", str(model), "--verify"]) == 1
        assert "checksum" in capsys.readouterr().err


def test_what_files_say_of_themselves_does_not_reach_the_terminal_raw(
    model: Path, capsys: Capture
) -> None:
    (plain,) = read_models(model)
    sly = {"author": "me\x1b[2J\nsource  trusted", "preprocessing": {"data": {"format": "rgb"}}}
    write_models(model, [dataclasses.replace(plain, info=sly)], "test")
    assert main(["info", str(model)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "me\\x1b[2J\\nsource" in out
    for wrong in ([], {"data": {"format": "none"}}, {"data": 3}):
        broken = dataclasses.replace(plain, info={"preprocessing": wrong or "none"})
        write_models(model, [broken], "test")
        assert main(["info", str(model)]) == 1
        capsys.readouterr()


def test_graphs_are_written_for_people_and_for_programs(model: Path, capsys: Capture) -> None:
    text, data = model.with_suffix(".txt"), model.with_suffix(".json")
    assert main(["info", str(model), "--graph", str(text)]) == 0
    assert main(["info", str(model), "--graph", str(data)]) == 0
    assert "= conv" in text.read_text()
    assert json.loads(data.read_text())["format"] == "treadle graph 1"


def test_the_installation_is_data_too(capsys: Capture) -> None:
    found = told(capsys, "info")
    assert found["treadle"] == VERSION
    assert "reference" in {row["name"] for row in found["backends"]}


def test_stats_count_parameters_and_arithmetic(model: Path, capsys: Capture) -> None:
    found = told(capsys, "stats", str(model), "--top", "1")
    assert (found["parameters"], found["parameter_bytes"]) == (128, 512)
    products = 2 * 4 * 8 * 8 * 27 + 2 * 4 * 5
    assert found["products"] == products
    assert found["ops"][0]["name"] == "conv" and found["ops"][0]["parameters"] == 108
    (heaviest,) = found["heaviest"]
    assert heaviest["flops"] == 2 * 2 * 4 * 8 * 8 * 27
    program = found["program"]
    assert (program["streams"], program["events"]) == (1, 0)
    assert [p["engine"] for p in program["partitions"]] == ["cpu"]
    assert program["launches"] >= 1 and 0 < program["least"] < 1 and program["scratch"] > 0
    wide = told(capsys, "stats", str(model), "--shape", "data=4,3,10,10", "--level", "0")
    assert wide["products"] == 2 * products


def test_stats_are_a_table_for_people(model: Path, capsys: Capture) -> None:
    assert main(["stats", str(model)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^partitions +1: cpu \d+ nodes$", out, re.MULTILINE)
    assert re.search(r"^streams +1, 0 events$", out, re.MULTILINE)
    assert "multiply-adds" in out and "heaviest nodes" in out and "least time" in out


@pytest.mark.parametrize("command", ["info", "stats", "run", "compile"])
def test_a_file_that_is_not_there_is_one_line(command: str, capsys: Capture) -> None:
    assert main([command, "missing.tm"]) == 1
    assert capsys.readouterr().err == f"treadle {command}: missing.tm: No such file or directory\n"
