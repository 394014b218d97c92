"""The plug-ins of the tutorial, built and installed as any package, pass the kit and train."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.backends.c_devices import needs_compiler
from tests.backends.plugins import fresh_report
from tests.backends.test_tier0 import mlp, train
from tests.docs.pages import blocks

import treadle
from treadle.backends import registry
from treadle.conformance import cli

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "plugins" / "treadle-toy"
IN_C = ROOT / "plugins" / "treadle-ctoy"
TUTORIAL = ROOT / "docs" / "writing-a-backend.md"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plug-ins, built and installed into a folder by pip, without a network."""
    folder = tmp_path_factory.mktemp("site")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "-q",
        "--no-index",
    ]
    options = ["--no-deps", "--no-build-isolation", "--target", str(folder)]
    sources = [str(PLUGIN), *([str(IN_C)] if shutil.which("cc") else [])]
    done = subprocess.run([*pip, *options, *sources], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def installed(site: Path) -> Iterator[Path]:
    sys.path.insert(0, str(site))
    registry.rescan()
    fresh_report()
    yield site
    sys.path.remove(str(site))
    for module in ("treadle_toy", "treadle_ctoy"):
        sys.modules.pop(module, None)
    registry.rescan()


def test_it_is_a_package_like_any_other(installed: Path) -> None:
    (row,) = [r for r in treadle.backends() if r["name"] == "toy"]
    assert (row["distribution"], row["version"], row["state"]) == ("treadle-toy", "1.0", "loaded")
    assert row["kernels"] == "12" and row["detail"] == "always here"


def test_it_is_small(installed: Path) -> None:
    files = list(PLUGIN.glob("**/*.py"))
    assert len(files) == 1 and len(files[0].read_text().splitlines()) < 200


GROUPS = ("Purity", "Device", "Movement", "Isolation", "Honesty", "Graph", "Profiling")
"""Those that take seconds; `make test-plugins` runs all of them, with all samples."""


def test_it_passes_the_kit(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = cli.main(["toy", "--quick", *(f"--group={name}" for name in GROUPS)])
    assert status == 0, capsys.readouterr().out


def test_it_trains_as_the_host_does(installed: Path) -> None:
    expected, _ = train("cpux", mlp, steps=10)
    with treadle.fallback("silent"):
        got, _ = train("toy0", mlp, steps=10)
    assert got == pytest.approx(expected, rel=1e-4) and got[-1] < got[0]
    fallen = {row.op for row in treadle.fallback_report()}
    assert not fallen & {"add", "sub", "mul", "matmul", "relu", "broadcast"}


@needs_compiler
def test_the_device_in_c_passes_the_kit(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = [r for r in treadle.backends() if r["name"] == "ctoy"]
    assert (row["distribution"], row["state"], row["kernels"]) == ("treadle-ctoy", "loaded", "9")
    groups = ("Device", "Movement", "Isolation", "Honesty")
    status = cli.main(["ctoy", "--quick", *(f"--group={name}" for name in groups)])
    assert status == 0, capsys.readouterr().out


@needs_compiler
def test_the_device_in_c_trains_as_the_host_does(installed: Path) -> None:
    expected, _ = train("cpux", mlp, steps=5)
    with treadle.fallback("silent"):
        got, _ = train("ctoy0", mlp, steps=5)
    assert got == pytest.approx(expected, rel=1e-4) and got[-1] < got[0]
    fallen = {row.op for row in treadle.fallback_report()}
    assert not fallen & {"add", "sub", "mul", "matmul", "relu", "reshape"}


DEMOS = {
    "compiled_mlp": ("--steps", "3", "--batch", "16"),
    "several_processes": ("--steps", "1", "--batch", "32", "--width", "16"),
}
"""Eager, compiled and sunk training; training by several processes."""


@pytest.mark.multi
@pytest.mark.parametrize("demo", DEMOS)
def test_examples_run_on_it_unmodified(demo: str, site: Path) -> None:
    if demo == "several_processes":
        pytest.importorskip("mpi4py", reason="several processes need the extra mpi")
    command = [sys.executable, str(ROOT / "examples" / f"{demo}.py"), *DEMOS[demo]]
    outside = {**os.environ, "PYTHONPATH": str(site), "TREADLE_FALLBACK": "silent"}
    done = subprocess.run(
        [*command, "--device", "toy0"], capture_output=True, text=True, env=outside, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    gap = re.search(r"difference of a loss[^:]*: (\S+)", done.stdout)
    assert gap is not None and float(gap[1]) < 1e-5


def test_the_tutorial_builds_it() -> None:
    """Its blocks, one after another, are the module."""
    in_c = [b.code for b in blocks(TUTORIAL, "c") if {"file=ctoy.c", "more=ctoy.c"} & set(b.words)]
    assert "\n".join(in_c) == (IN_C / "ctoy.c").read_text()
    parts = [b.code for b in blocks(TUTORIAL) if {"toy", "file=treadle_toy.py"} & set(b.words)]
    built = "\n".join(parts).splitlines()
    module = (PLUGIN / "treadle_toy.py").read_text().splitlines()
    assert [line for line in built if line] == [line for line in module if line]
    assert len(parts) == 3
