"""The files of a release: made twice with equal bytes, listed, and true to what they describe."""

from __future__ import annotations

import hashlib
import json
import subprocess
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tools import release
from tools.sbom import bill_of

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "tiny"
version = "0.1.0"
requires-python = ">=3.11"
license = "Apache-2.0"
dependencies = ["rich>=13", "absent; extra == 'more'", "numpy"]

[project.urls]
Source = "https://example.org/tiny"
"""
HOOK = """
import time
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

class Hook(BuildHookInterface):
    def initialize(self, version, build_data):
        with open("tiny/when.py", "w") as file:
            file.write(f"WHEN = {time.time_ns()}")
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project whose last commit can be released."""
    place = tmp_path / "project"
    (place / release.VERSION_FILE).parent.mkdir(parents=True)
    (place / release.VERSION_FILE).write_text('VERSION = "0.1.0"\n')
    (place / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [Unreleased]\n\n- a thing\n\n## [0.1.0] - 2026-01-01\n\n- the first\n"
    )
    (place / "pyproject.toml").write_text(PROJECT)
    (place / "tiny").mkdir()
    (place / "tiny/__init__.py").write_text("")
    subprocess.run(["git", "init", "-q"], cwd=place, check=True)
    commit(place)
    return place


def commit(place: Path) -> None:
    subprocess.run(["git", "add", "-A"], cwd=place, check=True)
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *who, "commit", "-qm", "change"], cwd=place, check=True)


def test_a_cut_names_the_version_and_gives_changes_a_section(root: Path) -> None:
    release.cut(root, "0.2.0", "2026-12-01")
    log = (root / "CHANGELOG.md").read_text()
    assert "## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n\n- a thing\n\n## [0.1.0]" in log
    assert (root / release.VERSION_FILE).read_text() == 'VERSION = "0.2.0"\n'
    with pytest.raises(release.ReleaseError, match="nothing stands under"):
        release.cut(root, "0.3.0", "2026-12-02")


@pytest.mark.parametrize(
    ("number", "told"),
    [("0.2", "three numbers"), ("0.1.0", "not later than 0.1.0"), ("0.0.9", "not later")],
)
def test_a_cut_takes_later_versions_only(root: Path, number: str, told: str) -> None:
    before = (root / "CHANGELOG.md").read_text()
    with pytest.raises(release.ReleaseError, match=told):
        release.cut(root, number, "2026-12-01")
    assert (root / "CHANGELOG.md").read_text() == before


def test_what_stands_in_the_way_is_told(root: Path) -> None:
    assert release.obstacles(root) == []
    (root / release.VERSION_FILE).write_text('VERSION = "0.2.0"\n')
    (root / "pyproject.toml").write_text(PROJECT.partition("[project.urls]")[0])
    section, source, tree = release.obstacles(root)
    assert "no section of 0.2.0" in section and "Source" in source and "not committed" in tree


def test_a_release_has_all_files_and_they_tell_the_truth(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="builds the wheel")
    out = tmp_path / "dist"
    made = release.build(root, out)
    wheel, sources = out / "tiny-0.1.0-py3-none-any.whl", out / "tiny-0.1.0.tar.gz"
    assert {p.name for p in made} == {p.name for p in out.iterdir()}
    assert wheel in made and sources in made and len(made) == 5
    subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=out, check=True)
    digests = {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in (wheel, sources)}
    told = json.loads((out / "tiny-0.1.0-py3-none-any.provenance.json").read_text())
    assert {s["name"]: s["digest"]["sha256"] for s in told["subject"]} == digests
    source, builder = told["predicate"]["buildDefinition"]["resolvedDependencies"]
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True)
    assert source == {
        "uri": "git+https://example.org/tiny",
        "digest": {"gitCommit": head.stdout.strip()},
    }
    assert builder == {"uri": f"pkg:pypi/hatchling@{version('hatchling')}"}
    again = tmp_path / "again"
    release.build(root, again)
    assert (again / "SHA256SUMS").read_bytes() == (out / "SHA256SUMS").read_bytes()


def test_builds_that_differ_are_refused(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="builds the wheel")
    (root / "hatch_build.py").write_text(HOOK)
    with (root / "pyproject.toml").open("a") as file:
        file.write("\n[tool.hatch.build.hooks.custom]\n")
    commit(root)
    with pytest.raises(release.ReleaseError, match=r"two builds differ: tiny-0\.1\.0"):
        release.build(root, tmp_path / "dist")


def test_the_bill_lists_what_the_wheel_leads_to(tmp_path: Path) -> None:
    wheel = tmp_path / "tiny-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "tiny-0.1.0.dist-info/METADATA",
            "Name: tiny\nVersion: 0.1.0\nLicense-Expression: MIT\n"
            "Requires-Dist: rich>=13\nRequires-Dist: absent; extra == 'more'\n",
        )
    bill = json.loads(bill_of(wheel))
    subject, parts = bill["metadata"]["component"], {p["name"]: p for p in bill["components"]}
    assert subject["purl"] == "pkg:pypi/tiny@0.1.0"
    assert subject["hashes"][0]["content"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    # What it leads to at second hand is there, what extras ask for is not.
    assert parts["rich"]["version"] == version("rich") and parts["mdurl"]["licenses"]
    assert "absent" not in parts
    edges = {e["ref"]: e["dependsOn"] for e in bill["dependencies"]}
    assert edges[subject["bom-ref"]] == [parts["rich"]["bom-ref"]]
    assert set(edges) == {subject["bom-ref"], *(p["bom-ref"] for p in parts.values())}
    assert all(ref in edges for many in edges.values() for ref in many)
