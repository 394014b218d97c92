"""`treadle llm convert` and `quantize`: files that hold what they say, mistakes in words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.llm.saved import saved

from treadle.base.blocks import BlockTensor
from treadle.llm.files import open_checkpoint


def treadle(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "treadle", "llm", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_there_and_in_fewer_bits(tmp_path: Path) -> None:
    source = saved(tmp_path / "model", hidden_size=32, intermediate_size=64)
    plain, small = tmp_path / "plain.gguf", tmp_path / "small.gguf"
    done = treadle("convert", source, plain, "--format", "f32")
    assert done.returncode == 0 and "F32" in done.stdout, done.stderr
    done = treadle("quantize", plain, small, "q4_0")
    assert done.returncode == 0 and "Q4_0" in done.stdout, done.stderr
    found = open_checkpoint(small).tensor("model.layers.0.mlp.up_proj.weight")
    assert isinstance(found, BlockTensor) and found.format.name == "Q4_0"


def test_mistakes(tmp_path: Path) -> None:
    source = saved(tmp_path / "model")
    for arguments, words in (
        (("convert", source, tmp_path / "a.gguf", "--format", "Q9"), "none that is written"),
        (("quantize", source, tmp_path / "a.gguf", "F32"), "cannot be written so"),
        (("quantize", source, tmp_path / "a"), "cannot be written so"),
        (("convert", tmp_path / "none.gguf", tmp_path / "a.gguf"), "none.gguf"),
    ):
        done = treadle(*arguments)
        assert done.returncode != 0 and words in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
