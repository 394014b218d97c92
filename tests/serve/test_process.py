"""`treadle serve` as a process, and what it says to wrong arguments."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests.serve.running import ask

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.cli import main
from treadle.cli import serve as cli
from treadle.deploy import compile_offline
from treadle.engine.package.models import read_models, write_models
from treadle.serve.server import bind


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    @jit.trace(symbolic=True, capture_as_const=True)
    def positive(x: mge.Tensor) -> mge.Tensor:
        return F.relu(x)

    positive(mge.tensor(np.ones((1, 3), np.float32)))
    path = tmp_path_factory.mktemp("models") / "positive.tm"
    positive.dump(str(path), arg_names=["x"], output_names=["y"])
    return path


class Process:
    """A server that joins two requests, and waits for the second one for two seconds."""

    def __init__(self, model: Path) -> None:
        command = [sys.executable, "-m", "treadle", "serve", f"a={model}", f"b:3={model}"]
        command += ["--port", "0", "--max-batch", "2", "--max-delay", "2000"]
        self.running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.running.stdout is not None
        self.lines = [self.running.stdout.readline().strip() for _ in range(3)]
        self.port = int(self.lines[2].rpartition(":")[2])

    def infer(self, *rows: list[float]) -> list[list[float]]:
        entry = {"name": "x", "shape": [len(rows), 3], "datatype": "FP32", "data": list(rows)}
        answer = ask(self.port, "/v2/models/a/infer", {"inputs": [entry]})
        assert answer.status == 200
        found = answer.json["outputs"][0]
        return np.array(found["data"]).reshape(found["shape"]).tolist()


@pytest.fixture(scope="module")
def process(model: Path) -> Iterator[Process]:
    made = Process(model)
    yield made
    made.running.kill()
    made.running.communicate()


def test_models_and_address_are_printed(process: Process, model: Path) -> None:
    first, second, third = process.lines
    assert first.startswith(f"a 1 of {model}: x float32[?,3] -> y float32[?,3], up to 2 rows")
    assert second.startswith("b 3 of ")
    assert third.startswith("listening at http://127.0.0.1:")


def test_requests_do_not_leave_memory_threads_or_files_behind(process: Process) -> None:
    def burden() -> None:
        for number in range(30):
            assert process.infer([1, -1, 2], [number, 0, -2]) == [[1, 0, 2], [number, 0, 0]]
            padded = json.dumps({"id": "x" * 400_000}).encode()
            assert ask(process.port, "/v2/models/a/infer", padded).status == 400

    burden()
    observed = psutil.Process(process.running.pid)
    before = observed.memory_info().rss, observed.num_threads(), observed.num_fds()
    for _ in range(3):
        burden()
    after = observed.memory_info().rss, observed.num_threads(), observed.num_fds()
    assert after[1] == before[1] and after[2] <= before[2] + 1
    assert after[0] < before[0] + 8 * 2**20, "90 requests leave more than a few pages"


def test_a_signal_lets_the_request_under_way_finish(process: Process) -> None:
    results: list[list[list[float]]] = []
    client = threading.Thread(target=lambda: results.append(process.infer([1, -2, 3])))
    client.start()
    while b"treadle_in_flight 2.0" not in ask(process.port, "/metrics").body:
        time.sleep(0.01)  # Itself and the one that waits for a second one.
    process.running.send_signal(signal.SIGTERM)
    while (ready := ask(process.port, "/v2/health/ready").status) == 200:
        time.sleep(0.01)
    assert ready == 503 and not results
    client.join(300)
    assert results == [[[1, 0, 3]]]
    assert process.running.wait(300) == 0


def told(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 1) -> str:
    assert main(["serve", *map(str, arguments)]) == status
    return capsys.readouterr().err


def test_what_cannot_be_served_is_said(
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "there is no file" in told(capsys, tmp_path / "none.tm")
    assert "two models have the name a" in told(capsys, f"a={model}", f"a={model}", status=2)
    (tmp_path / "other.tm").write_bytes(b"nothing")
    assert "holds no model" in told(capsys, tmp_path / "other.tm", "--port", 0)
    assert "not a shape" in told(capsys, model, "--port", 0, "--shape", "x=a", status=2)
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        assert "cannot listen" in told(capsys, model, "--port", taken.getsockname()[1])
    monkeypatch.setitem(sys.modules, "grpc_health.v1", None)
    monkeypatch.delitem(sys.modules, "treadle.serve.rpc.calls", raising=False)
    assert "pip install 'treadle[grpc]'" in told(capsys, model, "--port", 0, "--grpc-port", 0)


def test_models_are_named_by_their_files_or_as_the_user_says(model: Path, tmp_path: Path) -> None:
    odd = tmp_path / "a=b c.tm"
    odd.write_bytes(model.read_bytes())
    named = cli._named([str(model), f"x={model}", f"x:2={model}", f"odd={odd}", str(odd)])
    assert named == [
        ("positive", "1", model),
        ("x", "1", model),
        ("x", "2", model),
        ("odd", "1", odd),
        ("a_b_c", "1", odd),
    ]


def test_shapes_are_of_all_models_or_of_one() -> None:
    given = ["x=1,3", "b:x=2,3", "input:0=4"]
    assert cli._shapes(["a", "b"], given) == {
        "a": ["x=1,3", "input:0=4"],
        "b": ["x=1,3", "x=2,3", "input:0=4"],
    }


def test_native_code_is_used_where_it_fits(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "ready.tm"
    write_models(str(path), [compile_offline(read_models(model)[0])], "test")
    assert cli._native(model, None) is None
    found = cli._native(path, None)
    assert found is not None and found.target
    assert not capsys.readouterr().err

    class Elsewhere:
        target, manifest = "", {"target": {"name": "avx1024"}}

    monkeypatch.setattr(cli, "load_offline", lambda path, **given: Elsewhere())
    assert cli._native(path, None) is None
    assert "its code is for avx1024, so it is compiled here" in capsys.readouterr().err
