"""Anomaly mode: names the op and the user's line that first made a NaN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from treadle.autodiff.tape import TapeNode, current
from treadle.base.errors import AutodiffError
from treadle.base.modes import LOCAL, install
from treadle.ops.op import Op
from treadle.tensor import Tensor


def _has_nan(tensors: Sequence[Tensor | None]) -> bool:
    return any(
        t is not None and t._kind.dtype.is_float and bool(np.isnan(t.numpy()).any())
        for t in tensors
    )


class _Watch:
    """Looks at every result, forward and backward, and raises at the first NaN."""

    def __call__(self, op: Op, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        if _has_nan(results) and not _has_nan(inputs):
            raise AutodiffError(
                op.name,
                "made a NaN from inputs without one",
                saw=op.saw(tuple(x.type for x in inputs)),
                hint="look for 0/0, inf-inf, log or sqrt of a negative number",
            )

    def gradient(self, node: TapeNode, grads: Sequence[Tensor | None]) -> None:
        """Check what one gradient rule returned."""
        if _has_nan(grads) and node.rule is not None:
            raise AutodiffError(
                node.rule.name,
                "its gradient is NaN",
                hint="the op ran at the line below; look at its inputs there",
                at=current().places.get(node.seq),
            )


@contextmanager
def detect_anomaly() -> Iterator[None]:
    """Check every op of this thread for NaN inside the block, gradients included; slow.

    Raises:
        AutodiffError: at the op that first makes a NaN, or whose gradient is one; the message
            names the op and the line that ran it.
    """
    tape = current()
    before: Any = tape.watch, tape.locate
    tape.watch, tape.locate = _Watch(), True
    if LOCAL.hook is None:
        install(tape)
    try:
        yield
    finally:
        tape.watch, tape.locate = before
        if LOCAL.hook is tape and tape.watch is None and not tape.managers:
            install(None)
