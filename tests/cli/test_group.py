"""The command as a whole: lists, completion, endings."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.engine
from treadle import cli, jit
from treadle.base import table
from treadle.cli import main
from treadle.cli.arguments import PASSES
from treadle.cli.compile.making import command_line
from treadle.cli.console import Progress
from treadle.cli.status import Status

NAMES = [command.name for command in cli._COMMANDS]


def typed(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "treadle", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("command", cli._COMMANDS, ids=lambda c: c.name)
def test_lists_begin_as_commands_describe_themselves(command: cli.Lazy) -> None:
    function = importlib.import_module(f"treadle.cli.{command.name}").command
    own, listed = function.__doc__.splitlines()[0], command.summary
    assert own.split()[0] == listed.split()[0] and listed.endswith(".")
    assert len(listed) <= 68  # one row of a list in 80 columns


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert f"treadle {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["", *NAMES])
def test_help_shows_what_to_type_and_no_types_of_python(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([name, "--help"] if name else ["--help"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert not re.search(r"<(bool|str|int|float|list|path|file)", text, re.IGNORECASE)


def test_codes_of_errors_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "T01"]) == 0
    by_code = capsys.readouterr().out
    assert by_code.lstrip().startswith("ShapeError") and "in_features" in by_code
    assert main(["help", "shapeerror"]) == 0
    assert capsys.readouterr().out == by_code
    assert main(["help", "run"]) == 0
    assert "--input" in capsys.readouterr().out
    assert main(["help", "T99"]) == Status.MISUSE
    assert "commands bench" in capsys.readouterr().err
    page = Path(__file__).parents[2].joinpath("docs", "errors.md").read_text(encoding="utf-8")
    for code, class_ in re.findall(r"^\| (T\d\d) \| \[(\w+)\]", page, re.MULTILINE):
        assert main(["help", code]) == 0 and class_ in capsys.readouterr().out


def test_no_traceback_reaches_a_user(
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "x.pt").write_bytes(b"PK")
    (tmp_path / "x.npz").write_bytes(b"PK")
    name = "--input=x="
    for given, wanted in (
        (f"{name}{tmp_path}/x.pt", "another framework"),
        (f"{name}{tmp_path}/x.npz", "cannot be read"),
        (f'{name}["a"]', "holds no numbers for x"),
        (f"{name}[[1, 2], [3]]", "holds no numbers for x"),
        (f"{name}[1, 2]", "an array does not fit"),
    ):
        assert main(["run", str(model), given]) == Status.FAILED, given
        said = capsys.readouterr().err
        assert said.startswith("treadle run: ") and wanted in said, said

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("unforeseen")

    run = importlib.import_module("treadle.cli.run.running")
    monkeypatch.setattr(run, "carry_out", broken)
    assert main(["run", str(model)]) == Status.FAILED
    said = capsys.readouterr().err
    assert said.startswith("treadle run: RuntimeError: unforeseen\n  hint:")
    monkeypatch.setenv("TREADLE_TRACEBACK", "full")
    with pytest.raises(RuntimeError, match="unforeseen"):
        main(["run", str(model)])


def test_tables_fit_and_never_cut_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    header = ("op", "kernel", *[f"number{i}" for i in range(6)])
    rows = [("o" * 50, "k" * 50, *["123.45 ms"] * 6), ("p", "q", *["1.00 us"] * 6)]
    for columns in (72, 80, 118, 200):
        monkeypatch.setattr(table, "_available", lambda: columns - 2)  # noqa: B023
        text = table.lines(header, rows)
        assert max(map(len, text)) <= columns
        assert "\n".join(text).count("123.45 ms") == 6
    assert len(text) == 3 and "o" * 50 in text[1]  # Where there is room, a row is a line.


def test_help_lists_all_commands_and_imports_no_compiler() -> None:
    script = (
        "import sys; from treadle.cli import main; main(['--help'])\n"
        "print([m for m in ('treadle.engine.pipeline', 'numpy', 'llvmlite') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert all(f" {name} " in done.stdout for name in NAMES)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_mistyped_command_is_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["compil"])
    assert end.value.code == Status.MISUSE
    assert "Did you mean 'compile'" in capsys.readouterr().err


def test_commands_options_and_inputs_are_completed(tmp_path: Path) -> None:
    mge.set_default_device("cpux")
    traced = jit.trace(symbolic=True, capture_as_const=True)(lambda x: x * 2)
    traced(mge.tensor(np.ones(3, np.float32)))
    path = tmp_path / "model.tm"
    traced.dump(path, arg_names=["image"], output_names=["y"])
    for words, wanted in (
        ("treadle compi", "compile"),
        ("treadle compile --disable fold_s", "fold_scales"),
        (f"treadle run {path} --shape ", "image="),
    ):
        count = str(len(words.split(" ")) - 1)
        asked = {"COMP_WORDS": words, "COMP_CWORD": count, "_TREADLE_COMPLETE": "complete_bash"}
        script = "from treadle.cli import main; main([])"
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **asked},
        )
        assert wanted in done.stdout.splitlines()


def printed(shell: str) -> str:
    script = "from treadle.cli import main; main(['completion', '%s'])"
    return subprocess.check_output([sys.executable, "-c", script % shell], text=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["completi"], ["completion"]),
        (["completion", ""], ["bash", "fish", "zsh"]),
        (["compile", "--port"], ["--portable"]),
        (["compile", "--emit", "l"], ["library"]),
        (["compile", "--disable", "fold_s"], ["fold_scales"]),
    ],
)
def test_bash_completes(words: list[str], wanted: list[str], tmp_path: Path) -> None:
    """Bash's own function is run on what somebody has typed, as bash does at Tab."""
    command = tmp_path / "treadle"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m treadle "$@"\n')
    command.chmod(0o755)
    at_tab = """
eval "$(cat script)"
complete -p treadle | grep -q -- '-F _treadle_completion'
COMP_WORDS=(treadle "$@") COMP_CWORD=$# COMPREPLY=()
_treadle_completion treadle
printf '%s\\n' "${COMPREPLY[@]}"
"""
    (tmp_path / "script").write_text(printed("bash"))
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    found = subprocess.check_output(
        ["bash", "--norc", "-euc", at_tab, "bash", *words],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        text=True,
    )
    assert sorted(found.split()) == wanted


def test_each_shell_has_its_own_script() -> None:
    assert "#compdef treadle" in printed("zsh") and "complete_zsh" in printed("zsh")
    assert "complete --command treadle" in printed("fish") and "complete_fish" in printed("fish")
    with pytest.raises(SystemExit) as end:
        main(["completion", "tcsh"])
    assert end.value.code == Status.MISUSE


def test_the_list_of_passes_is_that_of_the_engine() -> None:
    folder = Path(treadle.engine.__file__).parent
    sources = [*folder.rglob("*.py"), *folder.parent.joinpath("graph").glob("*.py")]
    found: set[str] = set()
    for path in sources:
        text = path.read_text(encoding="utf-8")
        found.update(re.findall(r'allows\(\s*"(\w+)"', text))
        if "ClassVar" in text:
            found.update(re.findall(r'name: ClassVar\[str\] = "(\w+)"', text))
    assert set(PASSES) == found


def test_records_of_commands_have_names_in_place_of_paths() -> None:
    given = ["compile", "/data/me/a b.onnx", "-o", "out/b.tm", "--shape", "x=1,3", "--report=a/b"]
    assert command_line(given) == "treadle compile 'a b.onnx' -o b.tm --shape x=1,3 --report=b"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file with a small model."""
    mge.set_default_device("cpux")
    traced = jit.trace(symbolic=True, capture_as_const=True)(lambda x: x * 2)
    traced(mge.tensor(np.ones(3, np.float32)))
    path = tmp_path / "model.tm"
    traced.dump(path, arg_names=["x"], output_names=["y"])
    return path


def test_an_interrupt_is_quiet(model: Path) -> None:
    script = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from treadle.cli import main\nfrom treadle.cli.run import running\n"
        "def timed(*_): print('ready', flush=True); signal.pause()\n"
        "running.timed = timed\n"
        f"sys.exit(main(['run', {str(model)!r}]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=300)
    assert process.returncode == Status.INTERRUPTED
    assert "Traceback" not in error


def test_nobody_reads_what_is_printed(model: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "treadle", "info", str(model)],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert done.stderr == "" and done.returncode in (0, 1)


def test_the_start_of_the_command_is_no_line_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "notes.tm"
    path.write_text("nothing")
    done = typed(["run", str(path)])
    assert done.returncode == Status.FAILED
    assert "holds no model" in done.stderr and "at:" not in done.stderr


class Spinner:
    """Writes down what is asked of it."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def update(self, what: str) -> None:
        self.log.append(what)

    def start(self) -> None:
        self.log.append("start")

    def stop(self) -> None:
        self.log.append("stop")


def test_progress_is_still_while_something_is_measured() -> None:
    spinner: Any = Spinner()
    progress = Progress(spinner)
    for what in ("compiling", "", "writing"):
        progress.tell(what)
    assert spinner.log == ["compiling", "start", "stop", "writing", "start"]
    Progress().tell("silent")
