"""Ops in C++ above the C interface: types, shapes, parameters, gradients, and whatever throws."""

from __future__ import annotations

import shutil
import threading
import time
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
    NumericError,
    OutOfMemory,
    ShapeError,
)
from treadle.utils import custom
from treadle.utils.custom_op_tools import build, build_and_load, check_gradient

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
SOURCE = Path(__file__).with_name("custom_ops.cpp")
A, B = np.linspace(-1, 1, 12).reshape(3, 4), np.linspace(2, -1, 8).reshape(4, 2)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    flags = ["-O0", "-DTREADLE_CHECK_BOUNDS", "-Wall", "-Wextra", "-Werror"]
    path = build_and_load("ops", SOURCE, flags, build_dir=tmp_path_factory.mktemp("cpp"))
    yield path
    custom.unload(path)


def test_one_template_serves_every_element_type(library: str) -> None:
    scaled = custom.cpp_matmul_scale(scale=2)
    for dtype, allowed in (("float64", 1e-14), ("float32", 1e-6), ("float16", 4e-3)):
        y = scaled(mge.tensor(A, dtype=dtype), mge.tensor(B, dtype=dtype))
        assert y.dtype == dtype and abs(y.numpy() - 2 * A @ B).max() <= allowed
    wide = mge.tensor(np.array([1.5, -2, 3]), dtype="bfloat16")
    assert custom.cpp_square()(wide).numpy().astype(float).tolist() == [2.25, 4, 9]
    assert custom.cpp_cube()(mge.tensor([7, -1], dtype="int8")).tolist() == [343 - 256, -1]
    boxes = np.array([[0, 0, 2, 2], [0, 0, 2, 1.9], [5, 5, 6, 6]], np.float32)
    assert custom.cpp_keep()(boxes).tolist() == [True, False, True]
    assert custom.cpp_keep(threshold=0.99, most=2)(boxes).tolist() == [True, True, False]


def test_half_precision_is_rounded_as_numpy_does(library: str) -> None:
    # Squares of float16 are rounded once; every way to round occurs, subnormal results too.
    x = np.random.default_rng(0).standard_normal(2000) * 2.0 ** np.arange(-14, 6).repeat(100)
    half = x.astype(np.float16)
    with np.errstate(over="ignore"):
        wanted = (half.astype(np.float32) ** 2).astype(np.float16)
    np.testing.assert_array_equal(custom.cpp_square()(mge.tensor(half)).numpy(), wanted)
    special = np.array([np.inf, -np.inf, np.nan, 0, -0.0, 60000], np.float16)
    found = custom.cpp_cube()(mge.tensor(special)).numpy()
    np.testing.assert_array_equal(found, np.array([np.inf, -np.inf, np.nan, 0, -0.0, np.inf]))


@pytest.mark.parametrize("capture", [None, jit.compile, jit.trace])
def test_gradients_of_several_results(library: str, capture: Any) -> None:
    check_gradient(custom.cpp_matmul_scale(scale=0.5), A, B)
    p, gate = mge.Parameter(A), mge.Parameter(-A)

    def step() -> mge.Tensor:
        with GradManager().attach([p, gate]) as gm:
            y, kept = custom.cpp_gated()(p, gate)
            total = (y * 2 + kept).sum()
            gm.backward(total)
        return total

    run = step if capture is None else capture(step)
    s, t = 1 / (1 + np.exp(A)), np.tanh(A)
    for _ in range(2):
        p.grad = gate.grad = None
        assert run().item() == pytest.approx((2 * t * s + t).sum(), rel=1e-5)
        np.testing.assert_allclose(p.grad.numpy(), (2 * s + 1) * (1 - t * t), 1e-5)
        np.testing.assert_allclose(gate.grad.numpy(), 2 * t * s * (1 - s), 1e-4, 1e-6)


def test_parameters_have_types(library: str) -> None:
    x = mge.tensor([1, 2], dtype="int16")
    assert custom.cpp_cube(shift=[1, 5], negative=True)(x).tolist() == [-3, -22]
    for given, message in (
        ({"shift": 1}, "shift is 2 numbers, not 1"),
        ({"shift": (1, 2, 3)}, "shift is 2 numbers"),
        ({"shift": (1, 2.5)}, "shift is of type int, not 2.5"),
        ({"negative": 2}, "negative is of type bool, not 2"),
        ({"negative": "no"}, "negative is of type bool, not 'no'"),
    ):
        with pytest.raises(TypeError, match=message):
            custom.cpp_cube(**given)


FAILURES: list[tuple[int, type[Exception], str]] = [
    (1, NumericError, 'its forward function failed: the matrix is "singular", 100%s sure'),
    (2, NumericError, "it threw what is no std::exception"),
    (3, OutOfMemory, "it ran out of memory"),
    (4, NumericError, "there is no input 3"),
    (5, DTypeError, "output 0 is float32, not int32"),
    (6, OutOfMemory, r"no room for its results: float32\[1152921504606846976\]"),
    (7, ShapeError, "its infer function describes no tensor"),
    (8, ShapeError, "refuses its operands: output 0 would have 9 axes"),
    (9, NumericError, "index 1 of axis 0, whose extent is 1"),
    (10, NumericError, "there is no parameter which"),
    (11, ShapeError, "input 0 has 1 axes, not 2"),
    (12, ShapeError, "input 0 has 1 axes, none of number -7"),
]


@pytest.mark.parametrize(("how", "error", "message"), FAILURES)
def test_what_is_thrown_is_an_error_with_its_words(
    library: str, how: int, error: type[Exception], message: str
) -> None:
    x = mge.tensor([1.0, 2.0])
    with pytest.raises(error, match=message):
        custom.cpp_fails(how=how)(x)
    with pytest.raises(error, match="bytes at once" if how == 6 else message):
        jit.compile(lambda v: custom.cpp_fails(how=how)(v) + 1)(x).numpy()
    assert custom.cpp_fails()(x).tolist() == [1.0]  # words of before are gone


def test_axes_may_be_dynamic_where_results_look_like_the_first_operand(library: str) -> None:
    rows = {0: {0: "n"}}
    gated = jit.compile(lambda x: custom.cpp_gated()(x, x)[1], dynamic=rows)
    for n in (2, 5):
        x = np.linspace(-1, 1, 3 * n, dtype=np.float32).reshape(n, 3)
        np.testing.assert_allclose(gated(mge.tensor(x)).numpy(), np.tanh(x), 1e-5)
    squared = jit.compile(lambda x: custom.cpp_matmul_scale()(x, x), dynamic=rows)
    with pytest.raises(ShapeError, match="its infer function takes known extents"):
        squared(mge.tensor(np.ones((3, 3), np.float32)))


def test_element_types_that_are_not_taken_are_named(library: str) -> None:
    with pytest.raises(DTypeError, match="takes float32, float64, not int32"):
        custom.cpp_gated()(mge.tensor([1]), mge.tensor([1]))
    with pytest.raises(ShapeError, match=r"takes matrices \(m, k\) and \(k, n\)"):
        custom.cpp_matmul_scale()(A, A)


def test_other_threads_run_meanwhile(library: str) -> None:
    beats: list[float] = []
    done = threading.Event()

    def beat() -> None:
        while not done.is_set():
            beats.append(time.perf_counter())
            time.sleep(0.005)

    thread = threading.Thread(target=beat)
    thread.start()
    began = time.perf_counter()
    custom.cpp_fails(how=14)(mge.tensor([1.0]))  # sleeps in C++ for 0.3 s
    ended = time.perf_counter()
    done.set()
    thread.join()
    assert sum(began + 0.05 < beat < ended - 0.05 for beat in beats) >= 2


C_PART = (
    '#include "part.h"\nint part(int x) { int *p = __builtin_malloc(4); *p = x; return *p + ONE; }'
)
CXX_PART = """
#include "treadle_op.hpp"
extern "C" {
#include "inner/part.h"
}
struct Sum {
    static constexpr auto name = "mixed_sum";
    static constexpr int inputs = 1, outputs = 1;
    static void forward(treadle::Inputs in, treadle::Outputs out, treadle::Params) {
        *out[0].data<int32_t>() = part(*in[0].data<int32_t>());
    }
};
TREADLE_REGISTER(Sum)
"""


def test_sources_in_c_and_cxx_are_one_library_and_headers_count(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    sources = tmp_path / "inner" / "part.c", tmp_path / "sum.cc"
    sources[0].write_text(C_PART)
    sources[1].write_text(CXX_PART)
    for one in (1, 2):
        (tmp_path / "inner" / "part.h").write_text(f"#define ONE {one}\nint part(int x);\n")
        path = build_and_load("mixed", sources, ["-O0"], build_dir=tmp_path / "built")
        assert build("mixed", sources, ["-O0"], build_dir=tmp_path / "built") == path
        assert custom.mixed_sum()(mge.tensor([40], dtype="int32")).tolist() == [40 + one]
        custom.unload(path)
    left = [p.name for p in (tmp_path / "built").iterdir()]
    assert len(left) == 2 and all(name.endswith(".so") for name in left)


def test_mistakes_in_sources_are_shown_as_the_compiler_says_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.cpp"
    broken.write_text('#include "treadle_op.hpp"\nint broken = treadle::dtype_of<char *>();\n')
    with pytest.raises(CompileError, match=r"(?s)c\+\+ failed:.*broken\.cpp:2.*no element type"):
        build("broken", broken, ["-O0"], build_dir=tmp_path)
    with pytest.raises(CompileError, match="-fno-such-flag"):
        build("broken", broken, ["-fno-such-flag"], build_dir=tmp_path)
    broken.write_text("\n".join(f"int x{i} = y{i};" for i in range(100)))
    with pytest.raises(CompileError, match=r"\n\.\.\. and \d+ lines\n"):
        build("broken", broken, ["-fmax-errors=0"], build_dir=tmp_path)
    broken.write_text('#include "treadle_op.hpp"\nstruct Op {};\nTREADLE_REGISTER(Op)')
    with pytest.raises(CompileError, match="name"):
        build("broken", broken, ["-O0"], build_dir=tmp_path)
    assert list(tmp_path.iterdir()) == [broken]
    with pytest.raises(ValueError, match=r"not a source in C \(\.c\), C\+\+"):
        build("text", tmp_path / "ops.txt", build_dir=tmp_path)
    with pytest.raises(ValueError, match="one source"):
        build("none", [], build_dir=tmp_path)
    (tmp_path / "x.c").write_text('#include "treadle_op.h"\nTREADLE_OPS({"x", 1, 1, "a:text=1"})')
    with pytest.raises(LoadError, match="x has no forward function"):
        build_and_load("x", tmp_path / "x.c", build_dir=tmp_path)
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompileError, match=r"(?s)no compiler 'c\+\+'.*install g\+\+.*in CXX"):
        build("broken", broken, build_dir=tmp_path)
