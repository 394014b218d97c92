"""What people see of an error that nobody catches: their own lines, in real processes."""

import os
import re
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest

import treadle as mge
from treadle.base import tracebacks
from treadle.base.errors import TreadleError

HEAD = """
import threading
import numpy as np
import treadle as mge
import treadle.functional as F
import treadle.module as M

class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.layers = M.Sequential(M.Linear(4, 8), M.ReLU(), M.Linear(9, 2))

    def forward(self, x):
        return self.layers(x)  # forward

net = Net()
x = mge.tensor(np.ones((2, 4), "float32"))
"""

PROGRAMS = {
    "eager": ("net(x)  # call", ["call", "forward"], "ShapeError"),
    "an operator": ("x + mge.tensor(np.ones(3, 'float32'))  # call", ["call"], "ShapeError"),
    "compiled": (
        "step = mge.jit.compile(lambda x: net(x))  # body\nstep(x)  # call",
        ["call", "body", "forward"],
        "ShapeError",
    ),
    "traced": (
        "step = mge.jit.trace(lambda x: net(x))  # body\nstep(x)  # call",
        ["call", "body", "forward"],
        "ShapeError",
    ),
    "manager": (
        "gm = mge.autodiff.GradManager()\ngm.record()\ngm.record()  # call",
        ["call"],
        "AutodiffError",
    ),
    "while it runs": (
        "f = mge.jit.compile(lambda x, i: F.gather(x, 0, i))\n"
        "f(x, mge.tensor(np.full((2, 4), 9, 'int32')))  # call",
        ["call"],
        "IndexRangeError",
    ),
    "the user's own": (
        "f = mge.jit.compile(lambda x: x + missing)  # body\nf(x)  # call",
        ["call", "body"],
        "NameError",
    ),
    "with a cause": (
        "def f(x):\n"
        "    try:\n"
        "        net(x)  # inner\n"
        "    except ValueError as error:\n"
        "        raise KeyError('mine') from error  # raise\n"
        "mge.jit.compile(f)(x)  # call",
        ["inner", "forward", "call", "raise"],
        "KeyError: 'mine'",
    ),
    "in a thread": (
        "t = threading.Thread(target=lambda: net(x))  # call\nt.start()\nt.join()",
        ["call", "forward"],
        "ShapeError",
    ),
}


RUN_ALL = """
import runpy, sys
for name in sys.argv[1:]:
    print("=====", file=sys.stderr)
    try:
        runpy.run_path(name)
    except BaseException:
        sys.excepthook(*sys.exc_info())
"""
OWN = str(Path(mge.__file__).parent)


def run(folder: Path, *command: str, **environment: str) -> str:
    """What a process writes to its error stream."""
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, **environment},
        cwd=folder,
    )
    return done.stderr


def files(text: str) -> list[str]:
    return re.findall(r'^  File "(.*?)", line', text, re.MULTILINE)


def test_only_lines_of_the_user_are_shown(tmp_path: Path) -> None:
    for name, (text, _, _) in PROGRAMS.items():
        (tmp_path / f"{name}.py").write_text(HEAD + text)
    shown = run(tmp_path, "-c", RUN_ALL, *[f"{name}.py" for name in PROGRAMS])
    assert shown.count("=====") == len(PROGRAMS), shown
    for said, (_, marks, ending) in zip(shown.split("=====\n")[1:], PROGRAMS.values(), strict=True):
        assert ending in said, said
        assert re.findall(r"  # (\w+)$", said, re.MULTILINE) == marks, said
        assert not [f for f in files(said) if f.startswith(OWN)], said
        assert "own frames hidden: TREADLE_TRACEBACK=full shows them)" in said
        assert "During handling" not in said


def test_programs_for_megengine_get_the_same_and_all_frames_on_demand(tmp_path: Path) -> None:
    alias = "import treadle.interop.megengine as alias\nalias.install()\n"
    program = tmp_path / "program.py"
    program.write_text(alias + HEAD.replace("treadle", "megengine") + PROGRAMS["compiled"][0])
    short, full = run(tmp_path, str(program)), run(tmp_path, str(program), TREADLE_TRACEBACK="full")
    assert "ShapeError" in short and "own frames hidden" in short, short
    assert not [f for f in files(short) if f.startswith(OWN)], short
    assert any(f.endswith("jit/capture.py") for f in files(full)) and "hidden" not in full


def caught(call: object) -> BaseException:
    try:
        call()  # type: ignore[operator]
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_errors_of_other_kinds_keep_the_frames_behind_the_users_last() -> None:
    def raising() -> None:
        with mge.jit.fuse("x"):
            pass
        tracebacks._is_own(None)  # type: ignore[arg-type]

    error = caught(raising)
    with tracebacks.shortened(error, error.__traceback__) as short:
        assert traceback.extract_tb(short)[-1].filename.endswith("tracebacks.py")


def test_the_error_itself_is_as_before_afterwards() -> None:
    """Debuggers and logs see every frame, whatever was printed."""
    error = caught(lambda: mge.tensor([1.0]) + mge.tensor([1.0, 2.0, 3.0]).reshape(4))
    before, notes = error.__traceback__, list(error.__notes__)
    assert isinstance(error, TreadleError)
    with tracebacks.shortened(error, before) as short:
        assert len(traceback.extract_tb(short)) < len(traceback.extract_tb(before))
        assert error.__traceback__ is short and "hidden" in error.__notes__[-1]
    assert error.__traceback__ is before and error.__notes__ == notes


@pytest.mark.parametrize("taken", [(), (ValueError,)])
def test_notebooks_show_short_tracebacks_unless_somebody_else_does(
    taken: tuple[type[Exception], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """IPython's shell as far as it is used: `set_custom_exc` and `showtraceback`."""
    shown: list[int] = []
    handlers: list[object] = []
    shell = SimpleNamespace(
        custom_exceptions=taken,
        set_custom_exc=lambda kinds, handler: handlers.append(handler),
        showtraceback=lambda given, tb_offset: shown.append(len(traceback.extract_tb(given[2]))),
    )
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    tracebacks._install_in_notebook()
    assert bool(handlers) != bool(taken)
    for handler in handlers:
        error = caught(lambda: mge.tensor([1.0]) + mge.tensor([1.0, 2.0, 3.0]).reshape(4))
        handler(shell, type(error), error, error.__traceback__, tb_offset=1)  # type: ignore[operator]
        assert shown == [2]
