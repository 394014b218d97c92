"""Makes the files of a release, which whoever owns the accounts then uploads (docs/releasing.md).

    python -m tools.release cut 0.2.0   # the version, and a section of the changelog
    python -m tools.release build       # wheel, sources, bill of materials, provenance, digests

A wheel is built twice, from two copies of the sources, and must have equal bytes.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.sbom import bill_of

ROOT = Path(__file__).resolve().parents[1]
VERSION_FILE = Path("src/treadle/base/version.py")
_NUMBER = re.compile(r"\d+\.\d+\.\d+")
_VERSION = re.compile(r'^VERSION = "([^"]+)"', re.MULTILINE)
_UNRELEASED = "## [Unreleased]\n"
_STATEMENT = "https://in-toto.io/Statement/v1"


class ReleaseError(Exception):
    """Something that a release may not be made with."""


def cut(root: Path, version: str, date: str) -> None:
    """Name the version, and give what is unreleased in the changelog a section of its own.

    Raises:
        ReleaseError: it is no version, no later one than the last, or nothing has changed.
    """
    if _NUMBER.fullmatch(version) is None:
        raise ReleaseError(f"{version!r} is no version: write three numbers, as 0.2.0")
    log, place = root / "CHANGELOG.md", root / VERSION_FILE
    text = log.read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", text, re.MULTILINE)
    if any(_parts(version) <= _parts(before) for before in released):
        raise ReleaseError(f"{version} is not later than {released[0]}, which was released")
    start = text.find(_UNRELEASED)
    changes = text[start + len(_UNRELEASED) :].split("\n## [", 1)[0]
    if start < 0 or not re.search(r"^- ", changes, re.MULTILINE):
        raise ReleaseError("nothing stands under [Unreleased] in CHANGELOG.md")
    log.write_text(
        text.replace(_UNRELEASED, f"{_UNRELEASED}\n## [{version}] - {date}\n", 1), encoding="utf-8"
    )
    source = place.read_text(encoding="utf-8")
    place.write_text(_VERSION.sub(f'VERSION = "{version}"', source, count=1), encoding="utf-8")


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def obstacles(root: Path) -> list[str]:
    """What a release may not be made with, in words."""
    source = (root / VERSION_FILE).read_text(encoding="utf-8")
    version = _VERSION.findall(source)[0]
    found = []
    if f"## [{version}] - " not in (root / "CHANGELOG.md").read_text(encoding="utf-8"):
        found.append(
            f"CHANGELOG.md has no section of {version}: python -m tools.release cut {version}"
        )
    if not _source(root):
        found.append("pyproject.toml names no Source under [project.urls]")
    if _git(root, "status", "--porcelain"):
        found.append("the work tree has changes that are not committed")
    return found


def build(root: Path, out: Path) -> list[Path]:
    """Make all files of a release from the last commit.

    Raises:
        ReleaseError: the bytes of two builds differ, or a build fails.
    """
    commit, time = _git(root, "rev-parse", "HEAD"), _git(root, "log", "-1", "--format=%ct")
    out.mkdir(parents=True, exist_ok=True)
    first, second = (_built(root, commit, time) for _ in range(2))
    differing = [name for name in first if first[name] != second.get(name)]
    if differing or first.keys() != second.keys():
        raise ReleaseError(f"two builds differ: {', '.join(differing) or 'in their files'}")
    made = []
    for name, data in first.items():
        (out / name).write_bytes(data)
        made.append(out / name)
    (wheel,) = [path for path in made if path.suffix == ".whl"]
    texts = {f"{wheel.stem}.cdx.json": bill_of(wheel)}
    texts[f"{wheel.stem}.provenance.json"] = _text(provenance(made, _source(root), commit, time))
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
        made.append(out / name)
    sums = "".join(f"{_digest(path)}  {path.name}\n" for path in sorted(made))
    (out / "SHA256SUMS").write_text(sums, encoding="utf-8")
    return [*made, out / "SHA256SUMS"]


def _built(root: Path, commit: str, time: str) -> dict[str, bytes]:
    """Wheel and sources of a commit, by name, built in a copy of their own."""
    with tempfile.TemporaryDirectory(prefix="treadle-release-") as folder:
        place = Path(folder, "sources")
        place.mkdir()
        packed = subprocess.run(
            ["git", "archive", commit], cwd=root, check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "-x"], cwd=place, input=packed, check=True)
        ran = subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", "out"],
            cwd=place,
            env={**os.environ, "SOURCE_DATE_EPOCH": time},
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            raise ReleaseError(f"the build fails: {ran.stderr.strip()}")
        return {path.name: path.read_bytes() for path in sorted((place / "out").iterdir())}


def _source(root: Path) -> str:
    """The address of the sources; empty where none is named."""
    with (root / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"].get("urls", {}).get("Source", ""))


def provenance(files: Sequence[Path], repository: str, commit: str, time: str) -> dict[str, Any]:
    """Of what and by what files were built, as SLSA's provenance has it."""
    source = {"uri": f"git+{repository}", "digest": {"gitCommit": commit}}
    definition = {
        "buildType": f"{repository}/blob/main/docs/releasing.md",
        "externalParameters": {"source": source["uri"], "command": "python -m tools.release build"},
        "internalParameters": {"SOURCE_DATE_EPOCH": time, "python": sys.version.split()[0]},
        "resolvedDependencies": [source, *_builders()],
    }
    run = {"builder": {"id": f"{repository}/blob/main/tools/release.py"}}
    predicate = {"buildDefinition": definition, "runDetails": run}
    subjects = [{"name": f.name, "digest": {"sha256": _digest(f)}} for f in files]
    return {
        "_type": _STATEMENT,
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": predicate,
    }


def _builders() -> list[dict[str, Any]]:
    """The packages that build, with their versions."""
    asked = "import hatchling.__about__ as a; print(a.__version__)"
    ran = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    return [{"uri": f"pkg:pypi/hatchling@{ran.stdout.strip()}"}]


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _git(root: Path, *arguments: str) -> str:
    ran = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def _text(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Cut or build; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    cutting = commands.add_parser("cut", help="name a version")
    cutting.add_argument("version")
    building = commands.add_parser("build", help="make the files of the last commit")
    building.add_argument("--out", type=Path, default=ROOT / "dist")
    building.add_argument("--trial", action="store_true", help="whatever stands in the way")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "cut":
            cut(ROOT, chosen.version, datetime.datetime.now(datetime.UTC).date().isoformat())
            return 0
        found = obstacles(ROOT)
        if found and not chosen.trial:
            raise ReleaseError("; ".join(found))
        for path in build(ROOT, chosen.out):
            print(path)
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
