"""An op of one's own in C: one pass over memory in place of six, gradient included.

The op is the smooth shrinkage x (1 - t / sqrt(x^2 + t^2)). It is compared with the same written in
Treadle's functions: values, gradients, gradients against differences, and time.

    python examples/custom_op.py [--size 500000]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.utils import custom
from treadle.utils.custom_op_tools import build_and_load, check_gradient

SOURCE = r"""
#include <math.h>
#include "treadle_op.h"

static int shrink(const treadle_tensor *in, treadle_tensor *out, const double *params) {
    const float *x = in[0].data, t = (float)params[0];
    float *y = out[0].data;
    if (in[0].dtype != TREADLE_FLOAT32) return 1;
    for (int64_t i = 0, n = treadle_size(in); i < n; i++)
        y[i] = x[i] * (1 - t / sqrtf(x[i] * x[i] + t * t));
    return 0;
}

static int shrink_backward(const treadle_tensor *dy, const treadle_tensor *in,
                           const treadle_tensor *out, treadle_tensor *dx, const double *params) {
    const float *g = dy[0].data, *x = in[0].data, t = (float)params[0];
    float *d = dx[0].data;
    for (int64_t i = 0, n = treadle_size(in); i < n; i++) {
        float s = x[i] * x[i] + t * t;
        d[i] = g[i] * (1 - t * t * t / (s * sqrtf(s)));
    }
    return 0;
}

TREADLE_OPS({"smooth_shrink", 1, 1, "threshold=0.5", NULL, shrink, shrink_backward})
"""
THRESHOLD = 0.5


def composed(x: mge.Tensor) -> mge.Tensor:
    """The same of Treadle's functions."""
    return x * (1 - THRESHOLD / F.sqrt(x * x + THRESHOLD * THRESHOLD))


def gradient(function: Callable[[mge.Tensor], mge.Tensor], x: mge.Tensor) -> np.ndarray:
    """Of the sum of the results."""
    handle = mge.Parameter(x.numpy())
    manager = GradManager().attach(handle)
    with manager:
        manager.backward(F.sum(function(handle)))
    return handle.grad.numpy()


def best_time(run: Callable[[], object]) -> float:
    """Seconds of the fastest of many calls."""
    found = []
    for _ in range(15):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=500_000)
    given = parser.parse_args()
    mge.set_default_device("cpux")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "shrink.c")
        file.write_text(SOURCE, encoding="utf-8")
        flags = ["-O3", "-march=native", "-fno-math-errno"]  # The loops become vector code.
        build_and_load("smooth_shrink", [file], flags, build_dir=folder)
        own = custom.smooth_shrink(threshold=THRESHOLD)
        x = mge.tensor(np.random.default_rng(0).normal(size=given.size).astype("float32"))
        values = float(np.abs(own(x).numpy() - composed(x).numpy()).max())
        slopes = float(np.abs(gradient(own, x) - gradient(composed, x)).max())
        print(f"largest difference of values {values:.1e}, of gradients {slopes:.1e}")
        check_gradient(own, x[:16])
        print("the gradient agrees with differences")
        compiled = mge.jit.compile(composed)
        for name, function in (("composed", composed), ("compiled", compiled), ("in C", own)):
            print(f"{name:9} {best_time(lambda f=function: f(x)) * 1e6:8.0f} us")


if __name__ == "__main__":
    main()
