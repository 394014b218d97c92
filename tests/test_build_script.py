"""`build.sh`: its options, over an interpreter that writes down what it is asked."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
INTERPRETER = """#!/bin/sh
echo "$*" >> "$LOG"
case "$*" in
    *"sys.version_info"*) exit "${OLD:-0}" ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m hatchling build "*) touch output/treadle-0-py3-none-any.whl ;;
esac
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "build.sh", tmp_path)
    (tmp_path / "python").write_text(INTERPRETER)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def build(folder: Path, *options: str, **settings: str) -> subprocess.CompletedProcess[str]:
    given = {"LOG": str(folder / "log"), "PYTHON": str(folder / "python"), **settings}
    return subprocess.run(
        ["bash", str(folder / "build.sh"), *options],
        env={"PATH": os.environ["PATH"], **given},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_names_options_variables_and_downloads(folder: Path, option: str) -> None:
    done = build(folder, option)
    assert done.returncode == 0 and not (folder / "log").exists()
    for word in ("-j N", "--clean", "--offline DIR", "PYTHON", "hatchling", "output/"):
        assert word in done.stdout


@pytest.mark.parametrize("given", [("-j", "3"), ("-j3",)])
def test_the_number_of_processes(folder: Path, given: tuple[str, ...]) -> None:
    done = build(folder, *given)
    assert done.returncode == 0, done.stderr
    asked = (folder / "log").read_text()
    assert "-m pytest -q -n 3 " in asked and "treadle-0-py3-none-any.whl" in done.stdout


def test_offline_installs_from_the_folder_alone(folder: Path) -> None:
    (folder / "wheels").mkdir()
    assert build(folder, "--offline", str(folder / "wheels")).returncode == 0
    installs = [s for s in (folder / "log").read_text().splitlines() if "pip install" in s]
    assert len(installs) == 3
    assert all(f"--no-index --find-links {folder / 'wheels'}" in s for s in installs)


def test_clean_removes_what_was_built(folder: Path) -> None:
    for name in ("build", "output"):
        (folder / name).mkdir()
        (folder / name / "old").touch()
    assert build(folder).returncode == 0 and (folder / "output" / "old").exists()
    assert build(folder, "--clean").returncode == 0
    assert not (folder / "output" / "old").exists() and not (folder / "build" / "old").exists()


@pytest.mark.parametrize(
    ("options", "settings", "told"),
    [
        (["--fast"], {}, "unknown option --fast"),
        (["-j"], {}, "-j needs a number"),
        (["-j", "0"], {}, "-j needs a positive number, not '0'"),
        (["--offline"], {}, "--offline needs a directory"),
        (["--offline=nowhere"], {}, "no directory nowhere"),
        ([], {"PYTHON": "no-such-python"}, "no interpreter 'no-such-python'; set PYTHON"),
        ([], {"OLD": "1"}, "is older than Python 3.11; set PYTHON"),
    ],
)
def test_mistakes_are_named(
    folder: Path, options: list[str], settings: dict[str, str], told: str
) -> None:
    done = build(folder, *options, **settings)
    assert done.returncode == 2 and told in done.stderr and "build.sh -h" in done.stderr
    assert not (folder / "build").exists()


def test_equal_sources_give_equal_wheels(tmp_path: Path) -> None:
    """Times, umask, folder, zone and hash seed leave no trace in the bytes."""
    pytest.importorskip("hatchling", reason="builds the wheel")
    wheels = []
    for number, (umask, zone) in enumerate((("022", "UTC"), ("077", "Asia/Tokyo"))):
        source = tmp_path / f"source{number}"
        subprocess.run(
            f"umask {umask} && mkdir {source} && cd {ROOT} && cp -R --no-preserve=mode,timestamps "
            f"src docs pyproject.toml README.md LICENSE {source} && cd {source} && "
            f"{sys.executable} -m hatchling build -t wheel -d out",
            shell=True,
            check=True,
            env={**os.environ, "TZ": zone, "PYTHONHASHSEED": str(number)},
            capture_output=True,
        )
        (wheel,) = source.glob("out/*.whl")
        wheels.append(wheel)
    first, second = (wheel.read_bytes() for wheel in wheels)
    assert first == second
    with zipfile.ZipFile(wheels[0]) as file:
        pages = {"treadle/cli/errors.md", "treadle/cli/errors-zh.md"}
        assert pages <= set(file.namelist())  # `treadle help T01` reads them.
