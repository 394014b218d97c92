"""MegEngine's settings of traces that concern memory and fusion.

They become options of the compilation: budgets (`Options.memory_budget`), which it keeps to as
far as it can, and fusions that it leaves out (`Options.disabled`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from treadle.base.log import tell_no_effect

Fusion = Literal[None, False, True]


@dataclass(frozen=True)
class DTRConfig:
    """A budget for recomputation in a traced program.

    Attributes:
        eviction_threshold: bytes of values kept at once; above it, values are recomputed.
        evictee_minimum_size: without effect; another value than the default warns once.
        recomp_memory_factor, recomp_time_factor: for MegEngine's signature.
    """

    eviction_threshold: int
    evictee_minimum_size: int = 1048576
    recomp_memory_factor: float = 1
    recomp_time_factor: float = 1

    def __post_init__(self) -> None:
        if self.eviction_threshold <= 0:
            raise AssertionError("DTRConfig: eviction_threshold must be positive")
        if self.evictee_minimum_size <= 0:
            raise AssertionError("DTRConfig: evictee_minimum_size must be positive")
        if self.evictee_minimum_size != DTRConfig.evictee_minimum_size:
            why = "a compiled program chooses by the peak; treadle.dtr has it for eager code"
            tell_no_effect("DTRConfig.evictee_minimum_size", why)


@dataclass
class SublinearMemoryConfig:
    """Settings of MegEngine's search for what to recompute; `lb_memory_mb` is the budget.

    Raises:
        ValueError: a number is negative.
    """

    thresh_nr_try: int = 10
    genetic_nr_iter: int = 0
    genetic_pool_size: int = 20
    lb_memory_mb: int = 0
    num_worker: int = field(default_factory=lambda: max(1, (os.cpu_count() or 2) // 2))

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < (1 if name == "num_worker" else 0):
                raise ValueError(f"SublinearMemoryConfig: {name} is {value}")


@dataclass
class GraphOptimizationConfig:
    """Settings of whether loops of elementwise ops take in transposes and reductions.

    False, as here by default, leaves each a kernel of its own; True and None let the engine's
    cost model fuse them, as it does for a trace without this setting.
    """

    jit_fuse_dimshuffle: Fusion = False
    jit_fuse_reduce: Fusion = False

    def left_out(self) -> tuple[str, ...]:
        """Names of the fusions that are off, for `Options.disabled`."""
        wanted = {
            "fuse_transposes": self.jit_fuse_dimshuffle,
            "fuse_reductions": self.jit_fuse_reduce,
        }
        return tuple(name for name, on in wanted.items() if on is False)


def memory_budget(dtr: DTRConfig | None, sublinear: SublinearMemoryConfig | None) -> int:
    """The budget in bytes that settings ask for; 0 where there are none, 1 for as low as can be."""
    if dtr is not None:
        return int(dtr.eviction_threshold)
    return 0 if sublinear is None else max(1, sublinear.lb_memory_mb << 20)


__all__ = ["DTRConfig", "GraphOptimizationConfig", "SublinearMemoryConfig", "memory_budget"]
