"""Functions with arguments that fit nothing: an error of ours, no crash, no hang.

What is drawn is no contract: an exception counts as ours if a `raise` or `assert` of the package
raised it, or if Python refused the call itself. TypeErrors for values of a wrong kind are Python's
own, and say what was expected.
"""

import inspect
import linecache
import random
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.base.errors import ShapeError, TreadleError

SHAPES = [(), (0,), (3,), (2, 3), (1, 3, 4, 4), (2, 3, 4, 4), (1, 2, 3, 4, 5), (3, 0, 2)]
DTYPES = ["float32", "int32", "bool", "float16", "float64", "uint8"]
VALUES: list[Any] = [
    None, True, 0, 1, -1, 2, 7, -9, 999, 0.5, float("inf"), "mean", "x", "", (1, 2), [1], (),
    [-1, 0], (999, 1), {}, np.ones((2, 3), "float32"), slice(None), object(),
]  # fmt: skip
FUNCTIONS = sorted(
    name
    for name in F.__all__
    if inspect.isfunction(getattr(F, name)) and not name.startswith(("extern", "_"))
)


def _tensor(rng: random.Random) -> mge.Tensor:
    return mge.tensor(np.ones(rng.choice(SHAPES)), dtype=rng.choice(DTYPES))


def _arguments(function: Callable[..., Any], rng: random.Random) -> dict[str, Any]:
    found = {}
    for place, parameter in enumerate(inspect.signature(function).parameters.values()):
        needed = parameter.default is parameter.empty
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            continue
        if needed or rng.random() < 0.4:
            tensor = (needed or place == 0) and rng.random() < 0.8
            found[parameter.name] = _tensor(rng) if tensor else rng.choice(VALUES)
    return found


def _is_ours(error: Exception) -> bool:
    last = traceback.extract_tb(error.__traceback__)[-1]
    lines = linecache.getlines(last.filename)[max(0, (last.lineno or 1) - 7) : last.lineno]
    said = any(line.strip().startswith(("raise", "assert")) for line in lines)
    return isinstance(error, TreadleError) or (said and "/treadle/" in last.filename)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_but_errors_of_ours(name: str) -> None:
    function, rng = getattr(F, name), random.Random(name)
    for _ in range(12):
        given = _arguments(function, rng)
        try:
            found = function(**given)
            for result in found if isinstance(found, list | tuple) else [found]:
                np.asarray(result)
        except (AttributeError, IndexError, ZeroDivisionError, UnboundLocalError) as error:
            assert _is_ours(error), f"{name}({given}): {type(error).__name__}: {error}"
        except Exception:
            pass


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: F.pixel_shuffle(F.ones((2, 3)), 2), "pixel_shuffle: expects"),
        (lambda: F.nn.pixel_shuffle(F.ones((4, 2, 2)), 0), "r of 1 or more"),
        (lambda: F.group_norm(F.ones(3), 1, affine=False), "group_norm: expects samples"),
        (lambda: F.instance_norm(F.ones(3), affine=False), "instance_norm: expects samples"),
    ],
)
def test_too_few_axes(call: Callable[[], Any], problem: str) -> None:
    with pytest.raises(ShapeError, match=problem):
        call()


def test_modes_that_are_no_words() -> None:
    x = F.ones((1, 1, 2, 2))
    with pytest.raises(ValueError, match=r"roi_align: unknown mode 1\.0|unknown mode '1\.0'"):
        F.vision.roi_align(x, F.ones((1, 5)), 2, 1.0)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="conv_mode must be"):
        F.conv2d(x, x, conv_mode=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is given no operand"):
        F.einsum("ij")


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("extent", [2**38, 2**41, 2**62])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: F.adaptive_avg_pool2d(x, n),
        lambda x, n: F.adaptive_max_pool2d(x, n),
        lambda x, n: F.adaptive_avg_pool2d(x, (2, n)),
        lambda x, n: F.vision.interpolate(x, size=n),
        lambda x, n: F.tile(x, (1, 1, n, 1)),
        lambda x, n: F.repeat(x, n, 2),
        lambda x, n: F.full((n, n), 1.0),
        lambda x, n: F.diag(x[0, 0, 0], n),
        lambda x, n: F.one_hot(x[0, 0, 0].astype("int32"), n),
        lambda x, n: F.conv2d(x, F.ones((1, 2, 1, 1)), padding=n),
        lambda x, n: F.nn.pad(x, ((0, 0), (0, 0), (n, 0), (0, n))),
    ],
)
def test_results_beyond_all_memory_are_refused_at_once(
    function: Callable[..., Any], extent: int, compiled: bool
) -> None:
    x = mge.tensor(np.zeros((1, 2, 1024, 3), "float32"))
    run = (
        mge.jit.compile(lambda x: function(x, extent)) if compiled else partial(function, n=extent)
    )
    with pytest.raises(TreadleError):
        run(x)
