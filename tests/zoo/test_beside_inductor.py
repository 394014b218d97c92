"""The comparison with Inductor: calls are timed warm, and a run that was cut off goes on."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from tests.zoo import beside_inductor  # noqa: E402

pytestmark = pytest.mark.oracle


def test_first_calls_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def compiles_first() -> None:
        calls.append(1)
        if len(calls) == 1:
            until = time.thread_time() + 0.1
            while time.thread_time() < until:
                pass

    monkeypatch.setattr(beside_inductor, "ROUNDS", 1)
    beside_inductor._least([compiles_first])
    assert len(calls) > 100  # as many as fit, not one


def test_a_run_goes_on_where_the_last_one_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record, measured = tmp_path / "lines.jsonl", []

    def measure(folder: Path, name: str, gradients: bool) -> dict[str, Any]:
        if len(measured) == 1:
            raise KeyboardInterrupt
        measured.append((name, gradients))
        line = {"name": name, "gradients": gradients, "left": [], "minutes": 0.5, "eager": 1.0}
        line |= {"treadle": 1.0, "treadle gap": 0.0, "treadle compiles": 1.0}
        return line | {"inductor": 2.0, "inductor gap": 0.0, "inductor compiles": 10.0}

    monkeypatch.setattr(beside_inductor, "_in_process", measure)
    arguments = [str(tmp_path), "timm/resnet10t", "--record", str(record)]
    assert beside_inductor.main(arguments) == 0
    assert "interrupted: 1 of 2 lines" in capsys.readouterr().out
    record.write_text(record.read_text() + '{"name": "timm/resn')
    first = measured.pop()
    assert beside_inductor.main(arguments) == 0
    assert [first, *measured] == [("timm/resnet10t", False), ("timm/resnet10t", True)]
    assert len([json.loads(x) for x in record.read_text().splitlines()]) == 2
    said = capsys.readouterr().out
    assert "2.00 times Inductor's speed, 0.10 of its time" in said and "1 minutes for 2" in said
