"""`treadle bench`: kernels beside the roofline of the machine; choices measured and kept."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import typer

from treadle import functional as F
from treadle.backends.program import Limits, MeasuringCompiler, Tuned, Watched
from treadle.base.errors import DeviceError
from treadle.base.table import duration, lines
from treadle.engine.devices.placement import find_compiler
from treadle.engine.options import Options
from treadle.inspect.profile import RATES_SHOWN, limits_text, rates
from treadle.jit import compile as jit_compile
from treadle.tensor import Tensor


@dataclass(frozen=True)
class Example:
    """A function whose kernels are shown, and the shapes of its float32 arguments."""

    title: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]


def _conv(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(x, w, padding=w.shape[-1] // 2)


def _chain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(x * w + b)


EXAMPLES = (
    Example("product, 1024 x 1024 x 1024", F.matmul, ((1024, 1024), (1024, 1024))),
    Example("product, 128 x 768 x 3072", F.matmul, ((128, 768), (768, 3072))),
    Example("product, 1 x 1024 x 1024", F.matmul, ((1, 1024), (1024, 1024))),
    Example("convolution 3x3, 64 to 64, 56x56", _conv, ((1, 64, 56, 56), (64, 64, 3, 3))),
    Example("convolution 1x1, 256 to 64, 56x56", _conv, ((1, 256, 56, 56), (64, 256, 1, 1))),
    Example("gelu(x w + b), 16.8 M", _chain, ((4096, 4096), (4096,), (4096,))),
    Example("softmax, 4096 x 1024", lambda x: F.softmax(x, axis=1), ((4096, 1024),)),
    Example("sum, 16.8 M", F.sum, ((4096, 4096),)),
)


def command(
    script: Annotated[
        str | None, typer.Argument(help="A program whose contractions are tuned.")
    ] = None,
    arguments: Annotated[list[str] | None, typer.Argument(help="Of the script.")] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Measure alternatives and record them.")
    ] = False,
    seconds: Annotated[float, typer.Option(help="For each contraction that is tuned.")] = 0.5,
) -> None:
    """Measure this machine and a few kernels against its roofline.

    With --tune, measure alternatives for contractions as well, and keep the best ones on disk,
    where every program finds them that is compiled on this machine from then on: those of SCRIPT,
    which is run for the purpose, or without one those of the kernels shown.
    """
    compiler = find_compiler(Options())
    if not isinstance(compiler, MeasuringCompiler):
        raise DeviceError("bench", "there is nothing to measure: no engine compiles programs")
    if script and not tune:
        raise DeviceError("bench", "a script is run to tune its programs", hint="add --tune")
    print("\n".join(f"{name}: {text}" for name, text in compiler.about().items()))
    if tune:
        _tune(compiler, seconds, script, arguments or ())
    if not script:
        show(compiler.limits(anew=True))


def show(limits: Limits, repeats: int = 10) -> None:
    """A table of kernels."""
    print("\n".join(limits_text(limits)))
    rows = []
    for example in EXAMPLES:
        profile = jit_compile(example.function).profile(*_operands(example), repeats=repeats)
        work = [sum(k.flops for k in profile.kernels), sum(k.nbytes for k in profile.kernels)]
        best = sum(s.attainable for s in profile.steps)
        shown = rates(work[0], work[1], profile.seconds, best)
        rows.append((example.title, duration(profile.seconds), *shown))
    print("\n".join(lines(("kernel", "time", *RATES_SHOWN), rows)))


def _tune(
    compiler: MeasuringCompiler, seconds: float, script: str | None, arguments: Sequence[str]
) -> None:
    """Collect what can be tuned of a script or of the examples, and tune it."""
    with compiler.watch() as watched:
        if script:
            _run_script(script, arguments)
        else:
            for example in EXAMPLES:
                jit_compile(example.function).compile(*_operands(example))
    questions = _questions(watched)
    if not questions:
        print("no contraction with a choice was compiled")
    for number, found in enumerate(compiler.tune(watched, seconds), start=1):
        print(f"{number}/{questions}  {describe(found)}", flush=True)


def _questions(watched: Sequence[Watched]) -> int:
    return len({name for work in watched for name in work.asked})


def describe(found: Tuned) -> str:
    """Return a question's outcome in one line."""
    head = f"{found.name}: {duration(found.before)}"
    if found.choice is None:
        return f"{head}, none of {found.tried} is clearly better"
    chosen = ", ".join(f"{name} {value}" for name, value in found.choice.items())
    gain = found.before / found.after
    return f"{head} -> {duration(found.after)} ({gain:.2f} times as fast) with {chosen}"


def _operands(example: Example) -> list[Tensor]:
    rng = np.random.default_rng(0)
    return [
        Tensor(rng.standard_normal(shape, "float32"), device="cpux") for shape in example.shapes
    ]


def _run_script(script: str, arguments: Sequence[str]) -> None:
    before = sys.argv
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as error:
        if error.code:
            raise
    finally:
        sys.argv = before
