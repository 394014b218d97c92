"""Programs of language models."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from treadle import jit

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> jit.Compiled[P, R]:
    """A function as programs that hold no weights of their own.

    There is one for each width of a step, and each would hold all matrices in another order: a
    model of 1 GB in bfloat16 took 5 GB. Making that order anew costs a tenth of the time of a step
    of 512 tokens, two fifths of one of 32, and nothing in float32. Widths are few and chosen by who
    calls, so none becomes a symbol.
    """
    return jit.compile(dynamic=False, options=jit.Options(disabled=("prepack",)))(function)
