"""`treadle doctor --mpi`: what it says where two ranks can talk, and where nothing is installed."""

from __future__ import annotations

import importlib.util

import pytest

from treadle.cli import doctor
from treadle.cli.doctor import mpi


@pytest.mark.multi
@pytest.mark.skipif(not importlib.util.find_spec("mpi4py"), reason="needs the mpi extra")
def test_two_ranks_report() -> None:
    section = mpi.section()
    rows = {row[0]: row for row in section.rows}
    assert rows["two ranks"][1] == "work" and not section.findings
    assert {"mpi4py", "mpiexec", "library", "all-reduce 4 KiB"} <= set(rows)


def test_a_missing_launcher_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_MPIEXEC", "no-such-command")
    assert doctor.ON_REQUEST["mpi"] == mpi.__name__
    section = mpi.section()
    (finding,) = section.findings
    assert section.title == "MPI" and finding.wrong
    assert "no-such-command" in finding.what and "pip install" in finding.fix
