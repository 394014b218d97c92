"""Stage 5, load: a plan's kernels made runnable, its constants and kept memory in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.backends.program import Compiler, runs_of
from treadle.engine.plan import Loaded, Plan
from treadle.runtime.host import memory


def load(plan: Plan, compiler: Compiler, *, on_host: bool = True) -> Loaded[Any]:
    """Compile what the cache does not have, and lay out constants.

    Args:
        plan: of the program.
        compiler: builds it.
        on_host: whether it runs there; a device has memory of its own for what is kept.

    Raises:
        OutOfMemory: there is no room for constants or packed weights.
    """
    runs, once = (
        tuple(dict.fromkeys(run.kernel for run in runs_of(steps)))
        for steps in (plan.steps, plan.prelude)
    )
    main = compiler.build(plan.program(plan.steps, once))
    prelude = compiler.build(plan.program(plan.prelude, runs)) if plan.prelude else None
    constants = memory("constants", plan.constants.nbytes)
    for offset, array in plan.constants.entries:
        place = constants.bytes[offset : offset + array.nbytes]
        place[:] = array.reshape(-1).view(np.uint8)
    kept = memory("packed weights", plan.kept if on_host else 0)
    return Loaded(plan, main, prelude, constants, kept, compiler.empty)


__all__ = ["load"]
