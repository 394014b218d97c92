"""Ops of users, in Python and in C: eager, compiled, traced, differentiated, saved; mistakes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
from treadle import jit
from treadle.autodiff import GradManager
from treadle.base.errors import (
    CompileError,
    DTypeError,
    LoadError,
    NoGradient,
    NumericError,
    ShapeError,
    UnsupportedOp,
)
from treadle.base.types import TensorType
from treadle.serialization.program import save_program
from treadle.utils import custom, custom_op_tools
from treadle.utils.comp_graph_tools import GraphInference
from treadle.utils.custom_op_tools import CustomOp, build, build_and_load, check_gradient

X = np.array([[-1.5, 0.5, 2.0]], np.float32)


class Softsquare(CustomOp):
    """x^2 / (x^2 + a), and x^2."""

    name = "tests.softsquare"
    n_outputs = 2

    def forward(self, x: Any) -> Any:
        square = x * x
        return square / (square + x.dtype.type(self.a)), square

    def backward(self, inputs: Any, outputs: Any, grads: Any) -> Any:
        (x,), (_, square), (one, two) = inputs, outputs, grads
        inner = 0 if two is None else two
        if one is not None:
            inner = one * (self.a / ((square + self.a) * (square + self.a))) + inner
        return inner * 2 * x


class Rows(CustomOp):
    """The sum of every row, of which there is no gradient."""

    name = "tests.rows"

    def infer(self, x: TensorType) -> TensorType:
        if x.ndim != 2:
            raise ShapeError("rows", "takes a matrix", saw=str(x))
        return TensorType(x.dtype, x.shape[:1])

    def forward(self, x: Any) -> Any:
        return x.sum(1)


def test_python_op_runs_and_has_several_results() -> None:
    ratio, square = Softsquare(a=3.0)(mge.tensor(X))
    np.testing.assert_allclose(square.numpy(), X**2)
    np.testing.assert_allclose(ratio.numpy(), X**2 / (X**2 + 3), 1e-6)
    assert repr(Softsquare(a=3.0)) == "Softsquare(a=3.0)"
    assert Rows()(X).tolist() == [1.0]


def test_python_op_is_differentiated_twice() -> None:
    x = mge.tensor(X, dtype="float64")
    check_gradient(Softsquare(a=3.0), x, step=1e-5, tolerance=1e-6)
    check_gradient(lambda t: Softsquare(a=3.0)(t)[1], x, step=1e-5, tolerance=1e-6)

    def slope(t: mge.Tensor) -> mge.Tensor:
        t = t * 1
        with GradManager().attach([t]) as gm:
            gm.backward(Softsquare(a=2.0)(t)[0].sum())
        return t.grad

    check_gradient(slope, x, step=1e-5, tolerance=1e-5)


@pytest.mark.parametrize("capture", [jit.compile, jit.trace])
def test_python_op_is_captured_with_its_gradient(capture: Any) -> None:
    p = mge.Parameter(X)

    def step(scale: mge.Tensor) -> mge.Tensor:
        with GradManager().attach([p]) as gm:
            y = (Softsquare(a=3.0)(p)[0] * scale).sum()
            gm.backward(y)
        return y

    eager = step(mge.tensor(2.0)).item()
    wanted = p.grad.numpy()
    captured = capture(step)
    for _ in range(2):
        p.grad = None
        assert captured(mge.tensor(2.0)).item() == pytest.approx(eager, rel=1e-6)
        np.testing.assert_allclose(p.grad.numpy(), wanted, 1e-5)


def test_mistakes_in_python_ops_are_explained() -> None:
    with pytest.raises(ShapeError, match="takes a matrix"):
        Rows()(mge.tensor([1.0]))
    x = mge.tensor(X)
    with GradManager().attach([x]) as gm, pytest.raises(NoGradient, match="has no gradient"):
        gm.backward(Rows()(x))

    class Short(CustomOp):
        name = "tests.short"

        def forward(self, x: Any, y: Any) -> Any:
            return x + y

        def backward(self, inputs: Any, outputs: Any, grads: Any) -> Any:
            return grads[0]

    y = mge.tensor(X)
    with GradManager().attach([x, y]) as gm, pytest.raises(NoGradient, match="1 gradients for 2"):
        gm.backward(Short()(x, y))
    with pytest.raises(LoadError, match="already defined by"):
        type("Rows", (CustomOp,), {"name": "tests.rows", "__module__": "elsewhere"})


def test_check_gradient_finds_a_wrong_rule() -> None:
    class Wrong(CustomOp):
        name = "tests.wrong"

        def forward(self, x: Any) -> Any:
            return x * x

        def backward(self, inputs: Any, outputs: Any, grads: Any) -> Any:
            return grads[0] * inputs[0]

    with pytest.raises(NumericError, match=r"operand 0 at \(0, 2\) is .*differences give"):
        check_gradient(Wrong(), X)
    with pytest.raises(NumericError, match="operand 0 has no gradient"):
        check_gradient(lambda x: mge.functional.floor(x), X)


# -- C -------------------------------------------------------------------------------------------

SOURCE = r"""
#include "treadle_op.h"

static int add_infer(const treadle_tensor *in, treadle_tensor *out, const double *params) {
    if (in[0].ndim != 1 || in[1].ndim != 1) return 7;
    out[0] = in[0];
    out[0].shape[0] = in[0].shape[0] + in[1].shape[0];
    return 0;
}

/* Two vectors joined, the second one scaled. */
static int join(const treadle_tensor *in, treadle_tensor *out, const double *params) {
    float *y = out[0].data;
    if (in[0].dtype != TREADLE_FLOAT32 || in[1].dtype != TREADLE_FLOAT32) return 3;
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < in[k].shape[0]; i++)
            *y++ = ((const float *)in[k].data)[i] * (float)(k ? params[1] : params[0]);
    return 0;
}

static int join_backward(const treadle_tensor *dy, const treadle_tensor *in,
                         const treadle_tensor *out, treadle_tensor *dx, const double *params) {
    const float *g = dy[0].data;
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < in[k].shape[0]; i++)
            ((float *)dx[k].data)[i] = *g++ * (float)(k ? params[1] : params[0]);
    return 0;
}

static int twice(const treadle_tensor *in, treadle_tensor *out, const double *params) {
    for (int64_t i = 0; i < treadle_size(in); i++)
        ((float *)out[0].data)[i] = ((float *)out[1].data)[i] = ((const float *)in[0].data)[i];
    return 0;
}

TREADLE_OPS({"tests_join", 2, 1, "first=1 second=2", add_infer, join, join_backward},
            {"tests_twice", 1, 2, "", NULL, twice, NULL})
"""

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("custom")
    (folder / "join.c").write_text(SOURCE)
    path = build_and_load("join", folder / "join.c", build_dir=folder)
    yield path
    custom.unload(path)


A, B = np.array([1.0, -2.0], np.float32), np.array([3.0, 4.0, 5.0], np.float32)


@needs_compiler
def test_c_op_runs_with_its_parameters(library: str) -> None:
    assert custom.loaded() == custom.load(library) == ["tests_join", "tests_twice"]
    assert custom.tests_join()(A, B).tolist() == [1, -2, 6, 8, 10]
    assert custom.tests_join(first=0.5, second=1)(A, B).tolist() == [0.5, -1, 3, 4, 5]
    assert [y.tolist() for y in custom.tests_twice()(A)] == [[1, -2]] * 2


@needs_compiler
@pytest.mark.parametrize("capture", [None, jit.compile, jit.trace])
def test_c_op_is_differentiated_and_captured(library: str, capture: Any) -> None:
    def joined(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        return custom.tests_join(second=3.0)(x, y) * 2

    check_gradient(joined, A, B)
    a, b = mge.Parameter(A), mge.Parameter(B)

    def step() -> mge.Tensor:
        with GradManager().attach([a, b]) as gm:
            y = joined(a, b).sum()
            gm.backward(y)
        return y

    run = step if capture is None else capture(step)
    for _ in range(2):
        a.grad = b.grad = None
        assert run().item() == pytest.approx(2 * (A.sum() + 3 * B.sum()))
        assert a.grad.tolist() == [2, 2] and b.grad.tolist() == [6, 6, 6]


@needs_compiler
def test_mistakes_with_c_ops_are_explained(library: str) -> None:
    with pytest.raises(ShapeError, match="refuses its operands with code 7"):
        custom.tests_join()(X, A)
    with pytest.raises(NumericError, match="forward function failed with code 3"):
        custom.tests_join()(mge.tensor([1]), mge.tensor([2]))
    with pytest.raises(ShapeError, match="takes 2 operands, got 1"):
        custom.tests_join()(A)
    with pytest.raises(DTypeError, match="does not know complex64"):
        custom.tests_twice()(mge.tensor([1j]))
    with pytest.raises(TypeError, match="not \\['third'\\]"):
        custom.tests_join(third=1)
    with pytest.raises(AttributeError, match="no loaded library has an op 'tests_thrice'"):
        custom.tests_thrice
    x = mge.tensor(A)
    with GradManager().attach([x]) as gm, pytest.raises(NoGradient, match="backward function"):
        gm.backward(custom.tests_twice()(x)[0])


@needs_compiler
def test_building_is_done_once_and_its_mistakes_are_explained(tmp_path: Path) -> None:
    good, broken = tmp_path / "good.c", tmp_path / "broken.cpp"
    good.write_text(SOURCE.replace("tests_", "others_"))
    path = build("good", [good], build_dir=tmp_path)
    before = Path(path).stat().st_mtime_ns
    assert build("good", [good], build_dir=tmp_path) == path
    assert Path(path).stat().st_mtime_ns == before
    assert build("good", [good], ["-DX"], build_dir=tmp_path) != path
    broken.write_text('#include "treadle_op.h"\nint broken( { }\n')
    with pytest.raises(CompileError, match=r"failed:\n.*broken\.cpp:2"):
        build("broken", broken, build_dir=tmp_path)
    with pytest.raises(FileNotFoundError):
        build("none", tmp_path / "none.c", build_dir=tmp_path)
    custom.load(path)
    with pytest.raises(LoadError, match="'others_join' is loaded already"):
        custom.load(build("good", [good], ["-DX"], build_dir=tmp_path))
    op = custom.others_join()
    custom.unload(path)
    with pytest.raises(UnsupportedOp, match="no op is registered as 'others_join'"):
        op(A, B)
    with pytest.raises(ValueError, match="is not loaded"):
        custom.unload(path)


def test_libraries_of_others_are_built_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = tmp_path / "good.c"
    good.write_text(SOURCE.replace("tests_", "planted_"))
    path = Path(build("good", [good], build_dir=tmp_path / "own"))
    built = path.read_bytes()
    planted = tmp_path / "planted.so"
    planted.write_bytes(b"planted")
    for plant in (lambda: path.write_bytes(b"planted"), lambda: path.symlink_to(planted)):
        path.unlink()
        plant()
        path.chmod(0o666)
        build("good", [good], build_dir=tmp_path / "own")
        assert path.read_bytes() == built and not path.is_symlink()
    path.parent.chmod(0o777)
    path.write_bytes(b"planted")
    for _ in range(2):
        elsewhere = Path(build("good", [good], build_dir=tmp_path / "own"))
        assert elsewhere.read_bytes() == built and path.read_bytes() == b"planted"
    assert capsys.readouterr().err.count("can be written by others") == 1


def test_a_missing_compiler_and_a_wrong_library_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    (tmp_path / "x.c").write_text(SOURCE)
    with pytest.raises(CompileError, match="there is no compiler 'no-such-compiler'"):
        custom_op_tools.build("x", tmp_path / "x.c", build_dir=tmp_path)
    (tmp_path / "x.so").write_bytes(b"no library")
    with pytest.raises(LoadError, match="is not a library of ops"):
        custom.load(tmp_path / "x.so")


@needs_compiler
def test_the_header_compiles_as_cxx_too(tmp_path: Path) -> None:
    source = tmp_path / "join.cpp"
    text = SOURCE.replace("tests_", "plus_")
    text = text.replace("*y = out[0].data", "*y = (float *)out[0].data")
    source.write_text(text.replace("*g = dy[0].data", "*g = (const float *)dy[0].data"))
    path = build_and_load("plus", source, build_dir=tmp_path)
    assert custom.plus_join()(A, B).tolist() == [1, -2, 6, 8, 10]
    custom.unload(path)


def test_a_dumped_trace_holds_the_op(tmp_path: Path) -> None:
    @jit.trace(capture_as_const=True)
    def traced(x: mge.Tensor) -> mge.Tensor:
        return Softsquare(a=3.0)(x)[1] * 2

    traced(mge.tensor(X))
    traced.dump(str(tmp_path / "traced.mge"))
    (found,) = GraphInference(str(tmp_path / "traced.mge")).run(X).values()
    np.testing.assert_allclose(found, 2 * X**2)


MODULE = """
from treadle.utils.custom_op_tools import CustomOp

class Shifted(CustomOp):
    name = "saved.shifted"

    def forward(self, x):
        return x + x.dtype.type(self.by)
"""
RUN = """
import sys, treadle
from treadle.serialization.program import load_program
{imports}
print(load_program(sys.argv[1])(treadle.tensor([1.0, 2.0])).tolist())
"""


def test_a_saved_program_runs_where_the_class_is_imported(tmp_path: Path) -> None:
    (tmp_path / "shifted.py").write_text(MODULE)
    names: dict[str, Any] = {"__name__": "shifted"}
    exec(MODULE, names)
    file = tmp_path / "program.treadle"
    save_program(lambda x: names["Shifted"](by=2.5)(x) * 2, file, mge.tensor([0.0, 0.0]))
    runs = {}
    for imports in ("import shifted", ""):
        command = [sys.executable, "-c", RUN.format(imports=imports), str(file)]
        runs[imports] = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, check=False
        )
    assert runs["import shifted"].stdout == "[7.0, 9.0]\n"
    assert "no op is registered as 'saved.shifted'" in runs[""].stderr
