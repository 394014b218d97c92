"""Subjects of commits, and the files that call on hosts and before commits what people run."""

from pathlib import Path

import pytest
import yaml

from tools.commit_subject import fault, main

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "message",
    [
        "ops: state bounds of integers in the op",
        "engine, jit: keep plans of many extents\n\nA warm start takes 12 ms in place of 40.",
        "Merge branch 'main' into x",
    ],
)
def test_good_messages(message: str) -> None:
    assert fault(message) == ""


@pytest.mark.parametrize(
    ("message", "what"),
    [
        ("", "no `area: verb what`"),
        ("Fix things", "no `area: verb what`"),
        ("ops: state bounds.", "no `area: verb what`"),
        ("ops: " + "a" * 120, "has 125 characters"),
        ("ops: state bounds\nand more", "is not empty"),
    ],
)
def test_faults(message: str, what: str) -> None:
    assert what in fault(message)


def test_the_hook_reads_gits_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "COMMIT_EDITMSG"
    file.write_text("ops: state bounds\n# comments of git\n")
    assert main([str(file)]) == 0
    file.write_text("stuff\n")
    assert main([str(file)]) == 1 and "CONTRIBUTING.md" in capsys.readouterr().err


def test_hosts_run_what_people_run() -> None:
    """Workflows and hooks call `.ci/run`, make targets and tools that exist, and nothing else."""
    targets = {line.split(":")[0] for line in (ROOT / "Makefile").read_text().splitlines()}
    jobs = {}
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        jobs |= yaml.safe_load(path.read_text())["jobs"]
    lines = [s["run"] for job in jobs.values() for s in job["steps"] if "run" in s]
    matrix = jobs["fuzz"]["strategy"]["matrix"]["target"]
    made = [
        w for line in lines if line.startswith("make ") for w in line.split()[1:] if w[0] != "$"
    ]
    assert ".ci/run" in lines and {*made, *matrix} - {"{{", "}}", "matrix.target"} <= targets
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    own = [h["entry"].split()[2] for h in hooks if "tools." in h["entry"]]
    assert own and all((ROOT / f"{n.replace('.', '/')}.py").exists() for n in own)
