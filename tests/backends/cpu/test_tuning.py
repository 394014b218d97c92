"""Tuning: who wins, what is recorded, and that programs take it from there."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.backends.codegen import tuned
from treadle.backends.codegen.target import AVX512, TARGETS
from treadle.backends.cpu import backend, generators, host, tuning, tuning_record
from treadle.backends.cpu.compiler import NativeCompiler
from treadle.backends.program import Lowered, Watched
from treadle.base import dtype as dt
from treadle.base.process import RUNTIME
from treadle.base.types import TensorType
from treadle.ops.matmul import Matmul

TYPES = (TensorType(dt.float32, (120, 96)), TensorType(dt.float32, (96, 80)))
NAME = "contraction 1x120x80x96 float32 float32 float32 a01 b01"


@pytest.fixture(autouse=True)
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A record of its own, which is empty."""
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tuning_record, "microarchitecture", str)  # Nothing is shipped for it.
    before = tuned.installed()
    tuned.install({})
    yield tuning_record.path()
    tuned.install(before)


def watched_product(compiler: NativeCompiler) -> list[Watched]:
    with compiler.watch() as watched:
        assert isinstance(compiler.lower(Matmul(), TYPES), Lowered)
    return watched


def with_times(monkeypatch: pytest.MonkeyPatch, seconds: Any) -> None:
    """Every rival takes what `seconds(choice)` says, however long it really took."""

    def measure(self: Any) -> None:
        self.run()
        self.best = min(self.best, seconds(self.choice))

    monkeypatch.setattr(tuning._Rival, "measure", measure)


def test_watching_collects_questions_once_more_at_every_time() -> None:
    compiler = NativeCompiler()
    for _ in range(2):
        [work] = watched_product(compiler)
        assert work.op == Matmul() and work.types == TYPES
        [(name, offers)] = work.asked.items()
        assert name.endswith(NAME) and len(offers) > 3
    assert isinstance(compiler.lower(Matmul(), TYPES), Lowered)


def test_the_fastest_is_recorded_and_used(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = NativeCompiler()
    watched = watched_product(compiler)
    wanted = watched[0].asked[f"{_target(watched)} {NAME}"][2]
    with_times(monkeypatch, lambda choice: 1.0 if choice == wanted else 2.0)
    before = compiler.target
    [found] = compiler.tune(watched, 0.0)
    assert found.choice == wanted
    assert (found.before, found.after) == (2.0, 1.0)
    assert tuned.installed() == {found.name: wanted}
    assert json.loads(record.read_text())["choices"] == {found.name: wanted}
    assert compiler.target != before  # programs of before are not taken for programs of now
    tuned.install({})
    NativeCompiler()  # as a new process would
    assert tuned.installed() == {found.name: wanted}


def _target(watched: list[Watched]) -> str:
    return next(iter(watched[0].asked)).partition(" ")[0]


def test_what_is_no_better_is_not_recorded(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = NativeCompiler()
    watched = watched_product(compiler)
    with_times(monkeypatch, lambda choice: 1.0 if choice is None else 0.99)
    [found] = compiler.tune(watched, 0.0)
    assert found.choice is None and found.before == found.after == 1.0
    assert not record.exists()


def test_a_record_that_no_longer_wins_goes(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = NativeCompiler()
    watched = watched_product(compiler)
    [(name, offers)] = watched[0].asked.items()
    other = {"elsewhere": {"depth": 1}}
    tuned.install({name: dict(offers[0]), **other})
    with_times(monkeypatch, lambda choice: 1.0 if choice is None else 2.0)
    [found] = compiler.tune(watched, 0.0)
    assert found.choice is None
    assert tuned.installed() == other
    assert json.loads(record.read_text())["choices"] == other


def test_real_times_are_finite_and_results_stay_right() -> None:
    compiler = backend.compiler()
    x, w = (np.random.default_rng(0).standard_normal(s, "float32") for s in ((50, 70), (70, 90)))
    weight = mge.Parameter(w)

    def layer(x: mge.Tensor) -> mge.Tensor:
        return F.relu(F.matmul(x, weight))

    with compiler.watch() as watched:
        mge.jit.compile(layer)(mge.tensor(x))
    found = list(compiler.tune(watched, 0.01))
    assert found and all(math.isfinite(f.before) and f.after <= f.before for f in found)
    y = mge.jit.compile(layer)(mge.tensor(x)).numpy()
    np.testing.assert_allclose(y, np.maximum(x @ w, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b"", {}),
        (b"{", {}),
        (b"\xff\xfe", {}),
        (b"[]", {}),
        (b'{"format": 1}', {}),
        (b'{"format": 1, "choices": 3}', {}),
        (b'{"format": 1, "choices": {"a": {"x": 1}, "b": {"x": "y"}}}', {"a": {"x": 1}}),
        (b'{"format": 1, "choices": {"a": {"x": 1}, "b": {"x": true}, "c": []}}', {"a": {"x": 1}}),
    ],
)
def test_damage_is_left_out_with_a_notice(
    record: Path, capsys: pytest.CaptureFixture[str], content: bytes, kept: tuned.Choices
) -> None:
    record.write_bytes(content)
    assert tuning_record.read() == kept
    said = capsys.readouterr().err
    assert "tuning record" in said and "treadle bench --tune" in said


def test_records_of_other_formats_and_none_are_empty(record: Path) -> None:
    assert tuning_record.read() == {}
    record.write_text('{"format": 0, "choices": {"a": {"x": 1}}}')
    assert tuning_record.read() == {}


def test_a_record_of_another_processor_is_not_used(
    record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tuning_record.write({"a": {"x": 1}})
    assert tuning_record.read() == {"a": {"x": 1}}
    found = json.loads(record.read_text())
    record.write_text(json.dumps(found | {"machine": "some other processor"}))
    assert tuning_record.read() == {}
    assert "made on another processor (some other processor)" in capsys.readouterr().err


def test_a_record_that_cannot_be_written_costs_nothing_but_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "file"))
    assert not tuning_record.write({"a": {"x": 1}})
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("name", [design[0] for design in host._DESIGNS])
def test_shipped_records(name: str, record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold choices of targets that exist, and an own record takes their place."""
    found = tuning_record.shipped(name)
    assert found and all(key.split(" ")[0] in TARGETS for key in found)
    assert all(tuning_record._is_choice(choice) for choice in found.values())
    monkeypatch.setattr(tuning_record, "microarchitecture", lambda: name)
    assert tuning_record.read() == found
    assert tuning_record.write({})
    assert tuning_record.read() == {}


def test_a_shipped_record_decides() -> None:
    """Kernels of its shapes differ from those that the model chooses."""
    types = (TensorType(dt.float32, (128, 512)), TensorType(dt.float32, (10, 512)))
    made = []
    for choices in (tuning_record.shipped("znver4"), {}):
        with tuned.trying(choices):
            made.append(generators.lower(Matmul(transpose_y=True), types, (), AVX512))
    assert all(isinstance(lowered, Lowered) for lowered in made)
    assert made[0] != made[1]


def test_processors_without_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuning_record.shipped("") == tuning_record.shipped("znver9") == {}
    lines = "vendor_id : AuthenticAMD\ncpu family : {}\nmodel : {}\nmodel name : X\n\nmodel : 1\n"
    monkeypatch.setattr(host, "_CPUINFO", tmp_path / "cpuinfo")
    for family, model, name in ((25, 17, "znver4"), (25, 1, ""), (26, 17, "")):
        (tmp_path / "cpuinfo").write_text(lines.format(family, model))
        RUNTIME.invalidate("environment")
        assert host.microarchitecture() == name and host.processor() == "X"
    RUNTIME.invalidate("environment")
