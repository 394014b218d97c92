"""The state of every generator that a training run draws from."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from treadle.random import default_generator
from treadle.random import seed as seed_tensors


def seed_everything(seed: int) -> None:
    """Restart Python's, NumPy's and Treadle's generators, on which loaders and models draw.

    Args:
        seed: a number from 0 to 2^32 - 1.

    Raises:
        ValueError: it is out of range.
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed should be in [0, 2^32), got {seed}")
    random.seed(seed)
    np.random.seed(seed)
    seed_tensors(seed)


def state() -> dict[str, Any]:
    """Return the positions of all generators."""
    name, key, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": [name, np.asarray(key), position, has_gauss, gauss],
        "treadle": list(default_generator().get_state()),
    }


def restore(saved: Mapping[str, Any]) -> None:
    """Restore all generators to where `state` was called."""
    version, numbers, gauss = saved["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, key, position, has_gauss, cached = saved["numpy"]
    np.random.set_state((name, np.asarray(key, np.uint32), position, has_gauss, cached))
    key, counter = saved["treadle"]
    default_generator().set_state((key, counter))
