"""A job that loses a rank goes on from its last checkpoint with those that are left."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.distributed.test_faults import needs_mpi

import treadle.distributed as dist
from treadle.distributed import group

CLUSTER = Path(__file__).resolve().parents[2] / "examples/cluster"


@needs_mpi
def test_two_ranks_then_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with patch.object(sys, "path", [str(CLUSTER), *sys.path]):
        from train import last_checkpoint, train

        wanted = train(tmp_path / "whole", 10, 100, 24)
        group.leave()
        folder = tmp_path / "broken"
        folder.mkdir()
        with pytest.raises(dist.RankFailed):
            dist.launcher(train, n_gpus=2)(folder, 10, 3, 24, kill=7)
        assert last_checkpoint(folder) == folder / "step-6"
        (folder / "step-9.writing").mkdir()  # as one leaves it that dies while it writes
        found = train(folder, 10, 3, 24)
        group.leave()
    assert list(found) == [6, 7, 8, 9]
    for step, loss in found.items():
        assert loss == pytest.approx(wanted[step], rel=1e-5)
    assert "continues from step-6 on 1 ranks" in capfd.readouterr().out
    assert sorted(p.name for p in folder.iterdir()) == ["step-6", "step-9"]
