"""Scripts that run again what failed: written whole, run anywhere, telling what is wrong."""

import runpy
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.backends.plugins import Plugins, logged, plugins
from tests.backends.toy_backend import kernel
from tests.engine.segment_engine import FakeSegments

import treadle as mge
import treadle.functional as F
from treadle.backends import registry
from treadle.engine.options import Options
from treadle.graph import replay
from treadle.jit.compiled import Compiled
from treadle.ops.elementwise import Add
from treadle.ops.matmul import Matmul
from treadle.utils.replay import load

__all__ = ["plugins"]


def run(script: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    return int(ended.value.code or 0)


def written(folder: Path, device: str = "cpux", engine: str = "") -> Path:
    """A script of a small segment with a large constant."""
    table = np.random.default_rng(0).random((40, 4), "float32")

    def segment(x: Any) -> Any:
        return F.softmax(F.matmul(x, F.relu(mge.tensor(table, device="cpux")), transpose_b=True))

    x = mge.tensor(np.ones((3, 4)), device="cpux")
    graph = Compiled(segment, Options()).graph(x)
    return replay.write(folder, graph, [x.numpy()], device, 'it said "no"\nand more', engine)


def test_a_segment_is_run_again_op_by_op_and_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, engine="cpu")
    assert path.name == "segment_0.py" and "it said 'no' and more" in path.read_text()
    assert run(path, monkeypatch) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0].partition("{")[0] for row in rows[1:]] == [
        "relu", "matmul", "softmax", "cpu",
    ]  # fmt: skip
    assert written(tmp_path).name == "segment_1.py", "nothing is written over"


def test_the_first_fault_is_told(
    plugins: Plugins,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TREADLE_FALLBACK", "silent")
    plugins.toy(kernels=[kernel("relu", lambda x: x + 1)])
    path = written(tmp_path, device="toy0")
    assert run(path, monkeypatch) == 1
    out = capsys.readouterr().out
    assert "first fault: relu: 160 of 160 differ, first at [0, 0]" in out
    assert "found" in out and "expected" in out
    assert run(path, monkeypatch, "cpux") == 0, "another device may be named"


def test_an_op_that_raises_is_a_fault(
    plugins: Plugins,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plugins.toy(kernels=[kernel("add", lambda x, y: 1 / 0)])
    x = np.ones(3, "float32")
    types = tuple(mge.tensor(x, device="cpux").type for _ in range(2))
    path = replay.write(tmp_path, replay.graph_of(Add(), types), [x, x], "toy0", "it failed")
    assert run(path, monkeypatch) == 1
    assert "ZeroDivisionError" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "bool", ml_dtypes.bfloat16])
def test_element_types_survive(dtype: Any, tmp_path: Path) -> None:
    x = np.array([[1, 0], [1, 1]]).astype(dtype)
    tensor = mge.tensor(x, dtype=x.dtype, device="cpux")
    op = Matmul() if x.dtype.name in ("float32", "float16", "bfloat16") else None
    if op is None:
        graph = Compiled(lambda t: F.concat([t, t]), Options()).graph(tensor)
        arrays = [x]
    else:
        graph, arrays = replay.graph_of(op, (tensor.type, tensor.type)), [x, x]
    path = replay.write(tmp_path, graph, arrays, "cpux", "")
    text = path.read_text().split('"""')[3]
    again, found = load(text, path.with_suffix(".npz"))
    assert again == graph
    for a, b in zip(found, arrays, strict=True):
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()


def test_a_directory_that_cannot_be_written_is_no_second_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    x = np.ones(1, "float32")
    graph = replay.graph_of(Add(), (mge.tensor(x, device="cpux").type,) * 2)
    with logged() as lines:
        told = replay.write_if_asked(graph, [x, x], "cpux", "", folder=str(tmp_path / "file"))
    assert told == "" and "no script is written" in lines[0]
    assert replay.write_if_asked(graph, [x, x], "cpux", "") == "", "nobody asked"


@pytest.mark.parametrize("fail", ["compile", "run"])
def test_a_segment_that_fails_leaves_a_script(
    fail: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = FakeSegments()
    engine.fail = fail
    monkeypatch.setattr(registry, "engines", _with(engine, registry.engines))
    monkeypatch.setenv("TREADLE_REPLAY", str(tmp_path))
    options = Options(engines=("fake", "cpu"))
    step = Compiled(lambda x: F.softmax(F.matmul(x, x) + 1.0), options)
    x = mge.tensor(np.random.default_rng(0).random((8, 8), "float32"), device="cpux")
    with logged():
        assert step(x).shape == (8, 8), "others run it"
    (script,) = tmp_path.glob("*.py")
    assert f"fake failed to {fail} it" in script.read_text()
    assert run(script, monkeypatch) == 1
    out = capsys.readouterr().out
    assert "first fault: fake: CompileError" in out
    engine.fail = ""
    assert run(script, monkeypatch) == 0


def _with(engine: Any, engines: Any) -> Any:
    """The host's engines and one more."""
    return lambda kind: (*engines(kind), engine)
