"""Checkpoints of many ranks, written here by one; several write in tests/distributed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import treadle as mge
from treadle.base.errors import CheckpointError
from treadle.serialization import Part, load, load_sharded, save, save_sharded

STATE = {
    "weights": [np.arange(6, dtype=np.float32).reshape(2, 3), mge.tensor([True, False])],
    "scalar": np.float64(2.5) * np.ones(()),
    "empty": np.zeros((0, 3), np.int8),
    "plain": ("text", None, 3, 1.5),
}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    save_sharded(STATE, tmp_path / "step")
    found = load_sharded(tmp_path / "step")
    np.testing.assert_array_equal(found["weights"][0], STATE["weights"][0])
    assert found["weights"][1].tolist() == [True, False]
    assert found["scalar"].shape == () and found["scalar"].dtype == np.float64
    assert found["empty"].shape == (0, 3) and found["empty"].dtype == np.int8
    assert found["plain"] == ("text", None, 3, 1.5)


def test_parts_lose_what_pads_them(tmp_path: Path) -> None:
    save_sharded({"m": Part(np.arange(4.0), 0, 3)}, tmp_path / "step")
    assert load_sharded(tmp_path / "step")["m"].tolist() == [0.0, 1.0, 2.0]


def test_a_checkpoint_is_there_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "step"
    save_sharded({"version": 1}, folder)

    def fail(obj: object, f: str) -> None:
        if f.endswith("manifest"):
            raise OSError("disk full")
        save(obj, f)

    monkeypatch.setattr("treadle.serialization.sharded.save", fail)
    with pytest.raises(OSError, match="disk full"):
        save_sharded({"version": 2}, folder)
    assert load_sharded(folder) == {"version": 1}
    monkeypatch.undo()
    save_sharded({"version": 3}, folder)  # over what the failed one left
    assert load_sharded(folder) == {"version": 3}
    assert [p.name for p in tmp_path.iterdir()] == ["step"]


def test_damage_is_found(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        load_sharded(tmp_path / "nothing")
    save_sharded(STATE, tmp_path / "step")
    part = str(tmp_path / "step" / "part-00000")
    pieces = load(part)
    save({**pieces, "0": (0, np.zeros(3, np.float32))}, part)
    with pytest.raises(CheckpointError, match="do not cover"):
        load_sharded(tmp_path / "step")
    for wrong in (np.zeros(6, np.float32), np.zeros(2, np.int32)):
        save({**pieces, "0": (4, wrong)}, part)
        with pytest.raises(CheckpointError, match="does not fit"):
            load_sharded(tmp_path / "step")
    save({"many": 1}, part)
    with pytest.raises(CheckpointError, match="none that save_sharded wrote"):
        load_sharded(tmp_path / "step")
    manifest = str(tmp_path / "step" / "manifest")
    save({**load(manifest), "version": 99}, manifest)
    with pytest.raises(CheckpointError, match="another version"):
        load_sharded(tmp_path / "step")
