"""Convolutions as the layout stage writes them: values that are channels-last, in between."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tests.backends.codegen.contractions import fused
from tests.backends.codegen.irregular import Array

from treadle.ops.conv import ConvGradWeight, Convolution
from treadle.ops.fused import Fused
from treadle.ops.movement import Transpose


def to_last(ndim: int) -> tuple[int, ...]:
    """The permutation of [N,C,*S] to [N,*S,C]."""
    return (0, *range(2, ndim), 1)


def to_first(ndim: int) -> tuple[int, ...]:
    """The permutation of [N,*S,C] to [N,C,*S]."""
    return (0, ndim - 1, *range(1, ndim - 1))


def last(x: Array) -> Array:
    return np.ascontiguousarray(x.transpose(to_last(x.ndim)))


def moved(x: Any, permutation: Sequence[int]) -> Any:
    return x.apply(Transpose(tuple(permutation)), (x,))[0]


def channels_last(
    op: Convolution,
    first: Array,
    second: Array,
    others: Sequence[Array] = (),
    after: Callable[..., Any] | None = None,
    *,
    given: bool = True,
    made: bool = True,
) -> tuple[Fused, list[Array]]:
    """A group around a convolution, and its operands.

    `after` is what follows it, a function of the result and `others`, all of which are in the
    layout of the result. `given` and `made` say whether operands and results are channels-last.
    """
    ndim, weight = first.ndim, isinstance(op, ConvGradWeight)
    operands = [last(first) if given else first, last(second) if given and weight else second]
    operands += [last(x) if made and x.ndim == ndim else x for x in others]

    def body(x: Any, y: Any, *more: Any) -> Any:
        if given:
            x = moved(x, to_first(ndim))
            y = moved(y, to_first(ndim)) if weight else y
        z = x.apply(op, (x, y))[0]
        z = moved(z, to_last(ndim)) if made and not weight else z
        return z if after is None else after(z, *more)

    return fused(body, operands), operands
