"""`treadle doctor`: what it shows of a healthy machine, and what it says of a broken one."""

from __future__ import annotations

import json
import os
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.backends.plugins import Plugins, plugins
from tests.backends.toy_backend import elementwise

from treadle.backends import cuda
from treadle.backends.api import Availability
from treadle.cli import doctor, main
from treadle.cli.doctor import installation, machine
from treadle.cli.section import Finding, Section

__all__ = ["plugins"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and none of the variables that the tests are run with."""
    for name in list(os.environ):
        if name.startswith(("TREADLE_", "MGE_")):
            monkeypatch.delenv(name)
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(folder))
    return folder


def only(monkeypatch: pytest.MonkeyPatch, *sections: Callable[[], Section]) -> None:
    """Have the doctor look at some things alone."""
    monkeypatch.setattr(doctor, "SECTIONS", sections)


def test_a_healthy_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, *(s for s in doctor.SECTIONS if s is not machine.trial))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    titles = ["backends", "devices", "machine", "caches", "compilers", "extras", "environment"]
    at = [out.index(f"\n{title}\n") for title in titles]
    assert at == sorted(at)
    assert "cpu: generated code on the host" in out and "all " in out
    assert out.endswith("wrong: nothing\nadvice: nothing\n")
    assert "TREADLE_CACHE_DIR" in out


def test_json_is_the_same_for_tools(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, installation.backends, machine.devices, installation.extras)
    assert main(["doctor", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["ok"] is True
    backends, devices, extras = data["sections"]
    assert {"name": "cpu", "state": "loaded"}.items() <= backends["rows"][1].items()
    assert devices["rows"][0]["name"] == "cpu0"
    assert {"onnx", "opencl"} <= {row["extra"] for row in extras["rows"]}
    for row in extras["rows"]:
        assert (row["missing"] == "-") == (row["to install"] == "")


def test_broken_plug_ins_fail_the_examination(
    plugins: Plugins, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, installation.backends, machine.devices, machine.trial)
    monkeypatch.setenv("TREADLE_FALLBACK", "silent")
    monkeypatch.setenv("TREADLE_OPENCL_VISIBLE_DEVICES", "-1")  # compiling takes its time
    plugins.write("broken", "import no_such_library\n")
    toy = plugins.toy("toy", count=1, kernels=elementwise())
    plugins.toy("odd", count=1).open = _fails  # type: ignore[method-assign]
    with pytest.raises(SystemExit, match="1"):
        main(["doctor"])
    out = capsys.readouterr().out
    assert "the backend broken failed: No module named 'no_such_library'" in out
    assert "pip install --force-reinstall treadle-broken" in out
    assert "TREADLE_BACKENDS without broken leaves it out" in out
    assert "odd0: its backend failed to open it: OSError: no power" in out
    assert "one op on odd0: DeviceError" in out
    assert toy.opened[0].launches > 0 and re.search(r"one op +toy0 +works", out)
    assert re.search(r"a program +cpux +works", out)


def _fails(index: int, /) -> Any:
    raise OSError("no power")


def test_caches_that_others_may_write_to_are_named(
    own_cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, machine.caches)
    (own_cache / "kept").write_bytes(b"x" * 2048)
    assert main(["doctor"]) == 0
    row = next(r for r in capsys.readouterr().out.splitlines() if "compiled code" in r)
    assert row.split()[-4:] == ["1", "2.0", "KiB", "writable"]
    own_cache.chmod(0o777)
    with pytest.raises(SystemExit):
        main(["doctor"])
    assert f"chmod 700 {own_cache}" in capsys.readouterr().out


def test_directories_that_cannot_be_written_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    found = machine.caches().findings
    assert found and all(f.wrong and "is not writable" in f.what for f in found)


def test_settings_that_nobody_reads_are_advice_and_wrong_names_of_ops_are_faults(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, machine.environment)
    monkeypatch.setenv("TREADLE_NUM_THREAD", "2")
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "nobody reads TREADLE_NUM_THREAD\n    did you mean TREADLE_NUM_THREADS?" in out
    monkeypatch.setenv("TREADLE_KERNEL", "adds=toy")
    with pytest.raises(SystemExit):
        main(["doctor"])
    assert "TREADLE_KERNEL names 'adds', which is not an op; did you mean add?" in (
        capsys.readouterr().out
    )


def test_a_compiler_that_is_named_and_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, installation.compilers)
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(SystemExit):
        main(["doctor"])
    assert "CC='no-such-compiler' is not a program" in capsys.readouterr().out


def test_a_section_that_fails_is_a_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt() -> Section:
        raise KeyError("nothing works")

    only(monkeypatch, spoilt)
    with pytest.raises(SystemExit):
        main(["doctor"])
    assert "spoilt cannot be examined: KeyError: 'nothing works'" in capsys.readouterr().out


def test_a_backend_without_its_library_is_not_installed(
    plugins: Plugins, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, installation.backends)
    monkeypatch.setattr(cuda, "_is_installed", lambda name: False)
    toy = plugins.toy("toy", count=0)
    toy._found = Availability(False, "its driver is not there", lacks_library=True)
    plugins.toy("bare", count=0)._found = Availability(False, "no device is plugged in")
    assert main(["doctor", "--json"]) == 0
    (section,) = json.loads(capsys.readouterr().out)["sections"]
    states = {row["name"]: row["state"] for row in section["rows"]}
    assert states["toy"] == states["cuda"] == "not installed" and states["bare"] == "loaded"


def test_sections_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = types.ModuleType("made_up_section")
    findings = (Finding("slow", "use another network", wrong=False),)
    made.section = lambda: Section("MPI", ("what",), (("ranks",),), findings)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "made_up_section", made)
    monkeypatch.setitem(doctor.ON_REQUEST, "mpi", "made_up_section")
    only(monkeypatch)
    assert main(["doctor"]) == 0
    assert "MPI" not in capsys.readouterr().out
    assert main(["doctor", "--mpi"]) == 0
    out = capsys.readouterr().out
    assert "MPI\n  what\n  ranks" in out and "- slow\n    use another network" in out
