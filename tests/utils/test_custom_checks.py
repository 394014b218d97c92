"""Checks of custom ops find what is wrong with them, and say where."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.base import dtype as dt
from treadle.base.errors import NoGradient, NumericError, ShapeError
from treadle.base.types import TensorType
from treadle.utils import custom
from treadle.utils.custom_op_tools import CustomOp, build_and_load, check_gradient, check_op

X = np.array([[0.5, -1.5, 2.0], [3.0, 0.25, -0.75]], np.float32)
CHECKS = (
    *("results", "strided", "broadcast", "empty", "threads"),
    *("compiled", "traced", "saved", "gradient"),
)


class Ratio(CustomOp):
    """x / (1 + y^2), and where it is positive."""

    name = "checks.ratio"
    n_outputs = 2

    def infer(self, x: TensorType, y: TensorType) -> Any:
        if x.shape != y.shape:
            raise ShapeError("ratio", "takes equal shapes", saw=f"{x}, {y}")
        return x, TensorType(dt.bool_, x.shape)

    def forward(self, x: Any, y: Any) -> Any:
        r = x / (1 + y * y)
        return r, r > 0

    def backward(self, inputs: Any, outputs: Any, grads: Any) -> Any:
        (x, y), (dr, _) = inputs, grads
        below = 1 + y * y
        return dr / below, dr * x * y * -2 / (below * below)


def op(forward: Callable[..., Any], backward: Callable[..., Any] | None = None) -> CustomOp:
    """An op whose result looks like its first operand."""
    members: dict[str, Any] = {"__module__": __name__, "name": f"checks.{id(forward)}"}
    members["forward"] = lambda self, *arrays: forward(*arrays)
    if backward is not None:
        members["backward"] = lambda self, inputs, outputs, grads: backward(*inputs, *grads)
    made: CustomOp = type("Made", (CustomOp,), members)()
    return made


def test_a_sound_op_passes_everything() -> None:
    report = check_op(Ratio(), X, X[::-1])
    assert report == dict.fromkeys((*CHECKS, "second gradient"), "passed")
    passed = check_op(lambda x: F.exp(x) * 2, X)
    assert set(passed.values()) == {"passed"}
    silent = check_op(op(np.floor), X, gradient=False)
    assert silent["gradient"] == "not asked for" and "second gradient" not in silent


def test_operands_without_elements_are_taken_or_refused_in_words() -> None:
    class Refusing(CustomOp):
        name = "checks.refusing"

        def infer(self, x: TensorType) -> TensorType:
            if 0 in x.shape:
                raise ShapeError("refusing", "takes elements")
            return x

        def forward(self, x: Any) -> Any:
            return x - x.max()

    found = check_op(Refusing(), X, gradient=False)["empty"]
    assert found == "refused: (0, 3): takes elements; (2, 0): takes elements"
    with pytest.raises(NumericError, match=r"empty: operands of shapes \(0, 3\) raise ZeroDiv"):
        check_op(op(lambda x: x * (6 // x.shape[0])), X, gradient=False)
    silent = check_op(op(lambda x: x - x.max()), X, gradient=False)["empty"]
    assert "zero-size array" in silent


def test_promises_that_are_broken_are_named() -> None:
    calls = []

    def counting(x: Any) -> Any:
        calls.append(1)
        return x + np.float32(len(calls))

    with pytest.raises(
        NumericError, match=r"called again: result 0 at \(0, 0\) is 2\.5.* call 1\.5"
    ):
        check_op(op(counting), X)
    busy = threading.Lock()

    def alone(x: Any) -> Any:
        if not busy.acquire(blocking=False):
            raise RuntimeError("somebody is in here")
        time.sleep(0.05)
        busy.release()
        return x + 1

    with pytest.raises(NumericError, match=r"threads: calls at once raise .*somebody is in"):
        check_op(op(alone), X)
    wrong = op(lambda x: x if x.flags.c_contiguous else x[::-1].copy())
    with pytest.raises(NumericError, match=r"strided: result 0 at \(0, 0\)"):
        check_op(wrong, X, gradient=False)
    with pytest.raises(NumericError, match="writes to an operand"):
        check_op(op(lambda x: x.sort() or x), X)
    with pytest.raises(ShapeError, match=r"returned float32\[2\], inferred was float32\[2,3\]"):
        check_op(op(lambda x: x.sum(1)), X)


def test_gradients_are_checked_in_every_operand_and_order() -> None:
    squares = op(lambda x: x * x, lambda x, dy: dy * x * 2 + (x > 2.5) * 1.0)
    with pytest.raises(
        NumericError, match=r"(?s)gradient of operand 0 at \(1, 0\) is .*1 of 6 elements differ"
    ):
        check_gradient(squares, X)
    second = op(lambda x, y: x * y, lambda x, y, dz: (dz * y, dz * x * 1.001))
    with pytest.raises(NumericError, match="the gradient of operand 1 at"):
        check_gradient(second, X, X)  # a thousandth is found, since it runs in float64
    # Its rule is right, and cannot be differentiated: the slope is taken for a constant.
    cut = op(lambda x: x**3, lambda x, dy: dy * (x * x * 3).detach())
    check_gradient(cut, X)
    with pytest.raises(NumericError, match="operand 0 has no second gradient"):
        check_gradient(cut, X, order=2)
    half = op(lambda x: x**3, lambda x, dy: dy * (x * x.detach() * 3))
    with pytest.raises(NumericError, match="the second gradient of operand 0 at"):
        check_gradient(half, X, order=2)
    check_gradient(Ratio(), X, X, order=2)
    with pytest.raises(NoGradient):
        check_gradient(op(lambda x: x + 1), X)
    noise = np.random.default_rng(0)
    with pytest.raises(NumericError, match="other results for equal operands"):
        check_gradient(op(lambda x: x + noise.random(), lambda x, dy: dy), X)


def test_operands_of_integers_are_left_alone_and_large_ones_sampled() -> None:
    calls = []

    def picked(x: mge.Tensor, i: mge.Tensor) -> mge.Tensor:
        calls.append(1)
        return F.indexing_one_hot(x * x, i, axis=1)

    check_gradient(picked, X, np.array([2, 0]))
    calls.clear()
    check_gradient(picked, np.ones((100, 50), np.float32), np.arange(100) % 50, most=20)
    assert len(calls) < 60
    for wrong, message in ((np.array([1]), "operand with floating"), (X, "order is 1 or 2")):
        with pytest.raises(ValueError, match=message):
            check_gradient(lambda x: x * 2, wrong, order=3 if wrong is X else 1)
    with pytest.raises(ValueError, match="floating-point results"):
        check_gradient(lambda x: x > 0, X)


SOURCE = r"""
#include "treadle_op.h"
static int lost(const treadle_tensor *in, treadle_tensor *out, const double *params) {
    float *x = in[0].data, *y = out[0].data;
    int64_t n = treadle_size(in);
    int how = (int)params[0];
    if (in[0].dtype != TREADLE_FLOAT32)
        return treadle_fail(TREADLE_DTYPE_ERROR, "takes %s", "float32");
    for (int64_t i = how == 3; i < n; i++) y[i] = x[i];
    if (how == 1 && n) x[0] = 7;
    if (how == 2 && n) y[n] = 1;
    if (how == 4 && n) y[-1] = 1;
    return 0;
}
static int back(const treadle_tensor *dy, const treadle_tensor *in, const treadle_tensor *out,
                treadle_tensor *dx, const double *params) {
    const float *g = dy[0].data;
    float *d = dx[0].data;
    for (int64_t i = params[0] == 5; i < treadle_size(in); i++) d[i] = g[i];
    return 0;
}
TREADLE_OPS({"checks_lost", 1, 1, "how:int=0", NULL, lost, back})
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_what_c_code_writes_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "lost.c").write_text(SOURCE)
    path = build_and_load("lost", tmp_path / "lost.c", build_dir=tmp_path)
    report = check_op(custom.checks_lost(), X)
    assert report["gradient"] == "passed" and "no gradient" in report["second gradient"]
    for how, message in (
        (1, "operands: number 0 was written to"),
        (2, "its forward function writes behind result 0"),
        (3, "called again: result 0 at"),
        (4, "its forward function writes before result 0"),
    ):
        with pytest.raises(NumericError, match=message):
            check_op(custom.checks_lost(how=how), mge.tensor(X.copy()))
    with pytest.raises(NumericError, match="gradient"):
        check_op(custom.checks_lost(how=5), X)
    custom.unload(path)


def test_calls_without_operands_are_refused_in_words() -> None:
    class Alone(CustomOp):
        name = "alone.square"

        def forward(self, x: Any) -> Any:
            return x * x

    with pytest.raises(ShapeError, match="takes one operand at least"):
        Alone()()
