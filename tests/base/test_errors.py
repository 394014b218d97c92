"""The text and the fields of errors, and the line of the user's they point at."""

import contextlib
import inspect
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle
from treadle.base import errors
from treadle.base.errors import (
    DeviceError,
    DTypeError,
    IndexRangeError,
    NumericError,
    OutOfMemory,
    ShapeError,
    TreadleError,
    UnsupportedOp,
)
from treadle.base.loc import UNKNOWN, Loc, user_location
from treadle.base.types import TensorType
from treadle.ops.linalg import MatInv, Svd

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, TreadleError)]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "errors.md"


def _line() -> int:
    """The caller's line."""
    return sys._getframe(1).f_lineno


def test_layout() -> None:
    error = ShapeError("add", "it is wrong", saw="x [2]", hint="try y", at=Loc("a.py", 3, "f"))
    assert str(error) == "add: it is wrong\n  saw:  x [2]\n  hint: try y\n  at:   a.py:3 in f"
    assert str(ShapeError("add", "it is wrong", at=UNKNOWN)) == "add: it is wrong"
    module = ShapeError("add", "is wrong", hint="h", at=Loc("a.py", 3, "<module>"))
    assert str(module) == "add: is wrong\n  hint: h\n  at:   a.py:3"


def test_the_users_line_is_found() -> None:
    error, line = ShapeError("add", "wrong"), _line()
    here = inspect.currentframe()
    assert here is not None and error.at.line == line
    assert error.at.function == "test_the_users_line_is_found"
    assert os.path.abspath(error.at.file) == here.f_code.co_filename
    x, y = treadle.tensor([1.0, 2.0]), treadle.tensor([1.0, 2.0, 3.0])
    with pytest.raises(ShapeError) as caught:
        line = _line() + 1
        x + y
    assert (caught.value.at.line, caught.value.at.file) == (line, error.at.file)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_every_class_is_explained(cls: type[TreadleError]) -> None:
    assert inspect.getdoc(cls)
    headings = re.findall(r"^#+ +`?(\w+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert cls.__name__ in headings, f"docs/errors.md has no section for {cls.__name__}"


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_errors_pickle_with_all_their_fields(cls: type[TreadleError]) -> None:
    error = cls("op", "problem", saw="saw", hint="hint", at=Loc("a.py", 3, "f"))
    error.add_note("a note")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is cls and str(back) == str(error)
    assert vars(back) == vars(error) and back.__notes__[-1] == "a note"
    nowhere = pickle.loads(pickle.dumps(cls("op", "problem", at=UNKNOWN)))
    assert nowhere.at == UNKNOWN and "at:" not in str(nowhere)


def test_tracebacks_end_with_a_code_and_a_place_to_read() -> None:
    text = PAGE.read_text(encoding="utf-8")
    codes = {cls.code: cls for cls in CLASSES if "code" in vars(cls)}
    assert len(codes) == len([c for c in CLASSES if "code" in vars(c)])
    for code, cls in codes.items():
        name = cls.__name__
        assert f"| {code} | [{name}](#{name.lower()}) |" in text
        [note] = cls("op", "problem").__notes__
        assert note == f"  help: treadle help {code}"


def test_errors_are_pythons_kinds() -> None:
    kinds = {
        ShapeError: ValueError,
        DTypeError: TypeError,
        DeviceError: RuntimeError,
        IndexRangeError: IndexError,
        NumericError: ArithmeticError,
        UnsupportedOp: NotImplementedError,
        OutOfMemory: MemoryError,
    }
    for cls, kind in kinds.items():
        with pytest.raises(kind, match=r"^op: problem"):
            raise cls("op", "problem")


def test_causes_are_kept() -> None:
    cause = KeyError("k")
    with pytest.raises(ShapeError) as caught:
        try:
            raise cause
        except KeyError as error:
            raise ShapeError("op", "problem") from error
    assert caught.value.__cause__ is cause and caught.value.at.function == "test_causes_are_kept"


def test_numbers_without_a_result() -> None:
    with pytest.raises(NumericError, match=r"^mat_inv: a matrix is singular\n  saw:  x float32"):
        MatInv().reference(np.ones((2, 2), np.float32))
    with pytest.raises(NumericError, match=r"^svd: did not converge\n"):
        Svd().reference(np.full((2, 2), np.nan, np.float32))


def _run(code: str, folder: Path, name: str = "script.py") -> str:
    """What a script of the user's prints."""
    path = folder / name
    path.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(path)], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_deleted_working_directory_does_no_harm(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code = f"""
import os, treadle
os.chdir({str(gone)!r})
os.rmdir({str(gone)!r})
try:
    treadle.tensor([1.0, 2.0]) + treadle.tensor([1.0, 2.0, 3.0])
except treadle.TreadleError as error:
    print(error.at)
"""
    assert _run(code, tmp_path) == f"{tmp_path / 'script.py'}:6"


def test_generated_constructors_are_no_lines_of_the_users(tmp_path: Path) -> None:
    # A node infers inside the constructor that `dataclass` wrote, whose file is "<string>".
    code = """
from treadle.base.dtype import float32
from treadle.base.errors import ShapeError
from treadle.base.types import TensorType
from treadle.graph.ir import Node, Value
from treadle.ops.elementwise import Add

inputs = tuple(Value(TensorType(float32, (n,))) for n in (2, 3))
try:
    Node(Add(), inputs)
except ShapeError as error:
    print(error.at)
"""
    assert _run(code, tmp_path) == "script.py:10"


def test_code_without_a_file_is_the_users() -> None:
    scope: dict[str, Loc] = {}
    exec("from treadle.base.loc import user_location\nat = user_location()", scope)
    assert scope["at"].file == "<string>" and scope["at"].line == 2


def test_a_context_manager_of_treadle_leads_to_the_with_statement() -> None:
    scope: dict[str, Any] = {"__name__": "treadle.made_up", "user_location": user_location}
    exec("def locate():\n    yield user_location()", scope)
    line = _line() + 1
    with contextlib.contextmanager(scope["locate"])() as at:
        assert at.line == line and at.function == inspect.stack()[0].function


def test_locations() -> None:
    at, line = user_location(), _line()
    assert at.line == line and at and str(at).endswith(f":{line} in test_locations")
    assert not UNKNOWN and str(UNKNOWN) == "unknown"
    assert str(TensorType(treadle.base.dtype.float32, (2, 3), "cpu0")) == "float32[2,3]@cpu0"


def test_a_renamed_error_keeps_all_else() -> None:
    error = ShapeError("op", "problem", saw="x", hint="fix")
    before = str(error)
    error.rename("function")
    assert str(error) == before.replace("op:", "function:", 1)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
