"""Flags of load_and_run, one by one: what each writes, waits for, or leaves as it is."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.base.env import NUM_THREADS
from treadle.engine.package import read_models
from treadle.tools import load_and_run

X = np.random.default_rng(1).random((2, 6), np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> Path:
    """Two ops and their test case."""
    traced = jit.trace(lambda data: F.exp(data) @ mge.tensor(X.T.copy()), capture_as_const=True)
    traced(mge.tensor(X))
    path = tmp_path_factory.mktemp("flags") / "model.mge"
    traced.dump(path, arg_names=["data"], output_names=["scores"], input_data=[X])
    return path


def run(model: Path, *arguments: Any) -> int:
    return load_and_run.main([str(a) for a in (model, "--iter", 1, *arguments)])


def test_values_are_written_to_a_file_and_to_standard_error(
    model: Path, tmp_path: Path, capsys: Any
) -> None:
    dump = tmp_path / "values.txt"
    assert run(model, "--io-dump", dump, "--io-dump-stderr") == 0
    lines = dump.read_text().splitlines()
    assert capsys.readouterr().err.splitlines() == lines
    assert len(lines) >= 2 and any("exp" in line for line in lines)


def test_the_program_waits_for_a_line(model: Path, monkeypatch: Any, capsys: Any) -> None:
    given = io.StringIO("go\nrest")
    monkeypatch.setattr("sys.stdin", given)
    assert run(model, "--wait-gdb") == 0
    assert "press Enter to go on" in capsys.readouterr().out and given.read() == "rest"


def test_warm_up_runs_are_asked_for_apart(model: Path, monkeypatch: Any) -> None:
    seen, original = [], load_and_run.timed

    def spy(runner: Any, arrays: Any, warmup: int, count: int, tell: Any) -> Any:
        seen.append((warmup, count))
        return original(runner, arrays, warmup, count, tell)

    monkeypatch.setattr(load_and_run, "timed", spy)
    assert run(model, "--warmup-iter", 3) == 0 and run(model) == 0
    assert seen == [(3, 1), (1, 1)]


@pytest.mark.parametrize("flag", ["--multithread", "--multithread-default"])
def test_the_number_of_threads_is_set(model: Path, flag: str, monkeypatch: Any) -> None:
    for name in NUM_THREADS.names:
        monkeypatch.setenv(name, "1")
    assert run(model, flag, 2) == 0
    assert NUM_THREADS.get() == "2"


@pytest.mark.parametrize(
    "flag",
    ["--cpu", "--cpu-default", "--disable-mem-opt", "--no-sanity-check"],
)
def test_results_stay_the_same(model: Path, flag: str, tmp_path: Path, capsys: Any) -> None:
    assert run(model, flag, "--bin-out-dump", tmp_path) == 0
    assert "passed" in capsys.readouterr().out
    (found,) = [np.load(path) for path in tmp_path.glob("*.npy")]
    np.testing.assert_allclose(found, np.exp(X) @ X.T, 1e-5)


def test_rows_of_a_batch_do_not_depend_on_one_another(model: Path, tmp_path: Path) -> None:
    results = []
    for number, rows in enumerate((X, np.stack([X[0], X[0]]))):
        np.save(tmp_path / "x.npy", rows)
        folder = tmp_path / f"out{number}"
        options = "--binary-equal-between-batch", "--input", f"data:{tmp_path / 'x.npy'}"
        assert run(model, *options, "--bin-out-dump", folder) == 0
        (path,) = folder.glob("*.npy")
        results.append(np.load(path))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[1][0], results[1][1])


def test_times_and_the_model_are_written(model: Path, tmp_path: Path, capsys: Any) -> None:
    times, copy = tmp_path / "times.json", tmp_path / "fitted.mge"
    assert run(model, "--profile-host", times, "--fitting", "--dump-fitting-model", copy) == 0
    assert json.loads(times.read_text())["kernels"]
    assert list(read_models(copy)[0].inputs) == ["data"]
