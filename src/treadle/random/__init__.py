"""Random tensors, from a counter-based generator that gives one stream on every device.

The module-level functions draw from one process-wide `RNG`, which `seed` restarts.
"""

from treadle.random.generator import (
    RNG,
    beta,
    default_generator,
    exponential,
    gamma,
    multinomial,
    normal,
    permutation,
    poisson,
    seed,
    shuffle,
    uniform,
)

__all__ = [
    "RNG",
    "beta",
    "default_generator",
    "exponential",
    "gamma",
    "multinomial",
    "normal",
    "permutation",
    "poisson",
    "seed",
    "shuffle",
    "uniform",
]
