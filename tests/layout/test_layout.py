"""The shape of the repository: import contract, stage names, light import, clean texts."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("prepare", "partition", "optimize", "compile", "load", "execute")


def _lint_imports(source: Path) -> subprocess.CompletedProcess[str]:
    """Check the committed contract against the package under `source`."""
    # A fresh interpreter that sees `source` first, so that the copy is analysed, not the install.
    program = (
        "import sys; sys.path.insert(0, sys.argv.pop(1));"
        "from importlinter.cli import lint_imports_command; lint_imports_command()"
    )
    config = str(ROOT / "pyproject.toml")
    return subprocess.run(
        [sys.executable, "-c", program, str(source), "--config", config, "--no-cache"],
        capture_output=True,
        text=True,
        check=False,
        cwd=source,
    )


def test_import_contract_holds() -> None:
    result = _lint_imports(ROOT / "src")
    assert result.returncode == 0, result.stdout + result.stderr


_BREAKS = [
    ("base/shape.py", "import treadle.ops", "Data flows one way", "base.shape -> treadle.ops"),
    (
        "base/shape.py",
        "def late():\n    import treadle",
        "Data flows one way",
        "base.shape -> treadle (",
    ),
    ("misplaced.py", "import math", "Data flows one way", "- treadle.misplaced"),
    (
        "engine/eager/dispatch.py",
        "import treadle.backends.reference",
        "The engine and all above",
        "engine.eager.dispatch -> treadle.backends.reference",
    ),
    (
        "backends/api.py",
        "import treadle.backends.reference",
        "Concrete backends are islands",
        "backends.api -> treadle.backends.reference",
    ),
    (
        "ops/op.py",
        "def late():\n    import llvmlite.ir",
        "Compilers, drivers",
        "ops.op -> llvmlite",
    ),
    ("runtime/api.py", "import ctypes", "Compilers, drivers", "runtime.api -> ctypes"),
]


@pytest.fixture(scope="module")
def broken_contracts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is reported, by contract, of a package with every line that the contract forbids."""
    folder = tmp_path_factory.mktemp("broken")
    package = folder / "treadle"
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "treadle", package, ignore=without)
    for module, line, _, _ in _BREAKS:
        with (package / module).open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
    result = _lint_imports(folder)
    assert result.returncode == 1, result.stdout + result.stderr
    titles = re.split(r"\n(\S.*)\n-{5,}\n", result.stdout)
    return dict(zip(titles[1::2], titles[2::2], strict=True))


@pytest.mark.parametrize(("module", "line", "contract", "reported"), _BREAKS)
def test_import_contract_breaks_on(
    module: str, line: str, contract: str, reported: str, broken_contracts: dict[str, str]
) -> None:
    (title,) = [title for title in broken_contracts if title.startswith(contract)]
    assert reported in broken_contracts[title], broken_contracts[title]


def test_import_takes_no_backend() -> None:
    program = "import json, sys, treadle.functional, treadle.autodiff, treadle.device; "
    program += "print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    modules = set(json.loads(run.stdout))
    heavy = {"llvmlite", "onnx", "torch", "scipy", "sklearn", "cv2", "rich", "typer"}
    backends = {name for name in modules if name.startswith("treadle.backends.")}
    assert not modules & heavy
    framework = {"api", "inspection", "measuring", "registry"}
    assert backends <= {f"treadle.backends.{name}" for name in framework}


def test_jit_takes_no_stage_before_a_program_has_to_be_made() -> None:
    program = "import json, sys, treadle.jit; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    modules = set(json.loads(run.stdout))
    made = {"prepare", "partition", "optimize", "compile", "load", "dumps"}
    assert not modules & {f"treadle.engine.{stage}" for stage in made}
    assert not {name for name in modules if name.startswith("treadle.inspect.")}
    assert not modules & {"treadle.graph.passes", "treadle.graph.rewrite", "treadle.graph.verify"}


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md"])
def test_stage_names_stand_in_order(page: str) -> None:
    words = re.findall(r"\w+", (ROOT / page).read_text(encoding="utf-8").lower())
    windows = (tuple(words[start : start + 6]) for start in range(len(words)))
    assert STAGES in windows, f"{page} does not list the stages as {' → '.join(STAGES)}"


def test_contract_names_the_stages_in_order() -> None:
    contract = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert " | ".join(f"({stage})" for stage in STAGES) in contract


# Folders of one person's machine, and package indexes that only somebody's network reaches.
_PRIVATE = re.compile(
    r"(?<![\w.])/(?:work|root|home|Users|mnt)/\w"
    r"|https?://(?!pypi\.org)[\w.-]*(?:pypi|artifactory|nexus|devpi)"
    r"|(?:index[-_]url|find[-_]links)[ =]+[\"']?(?:https?://(?!download\.pytorch\.org/)|file:|/)"
)


def _committed_texts() -> list[tuple[str, str]]:
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    texts = []
    for name in filter(None, listing.stdout.split("\0")):
        content = (ROOT / name).read_bytes() if (ROOT / name).is_file() else b"\0"
        if b"\0" not in content:
            texts.append((name, content.decode("utf-8")))
    return texts


def test_no_private_path_is_committed() -> None:
    texts = _committed_texts()
    assert len(texts) > 20
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts
        for number, line in enumerate(text.splitlines(), start=1)
        if _PRIVATE.search(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "cd /" + "work/main",
        "open('/" + "home/ann/x.npz')",
        "pip install --index-url " + "https://wheels.example/simple x",
        "see https://my-py" + "pi.example/simple",
    ],
)
def test_private_path_is_recognized(line: str) -> None:
    assert _PRIVATE.search(line)
