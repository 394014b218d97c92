"""Random functions in which data decide extents, compiled and in eager code.

Three of the seeds found guards on extents that data decide which a call was asked for, and type
rules that asked about other symbols while 0 and 1 were put in.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import jit

Tables = list[mge.Tensor]
ROWS = (0, 1, 2, 5, 17, 40)
WEIGHT = np.random.default_rng(3).standard_normal((4, 4)).astype(np.float32)


def boxes(x: mge.Tensor) -> mge.Tensor:
    return F.concat([x[:, :2] * 4, x[:, :2] * 4 + F.abs(x[:, 2:4]) * 5], 1)


MOVES: dict[str, Callable[[mge.Tensor, mge.Tensor, float], mge.Tensor]] = {
    "mask": lambda a, b, q: a[a[:, 0] > q * 2 - 1],
    "opposite": lambda a, b, q: a[a[:, 1] <= q],
    "places": lambda a, b, q: a[F.non_zero(a > q)[:, 0]],
    "kept": lambda a, b, q: a[F.vision.nms(boxes(a), a[:, 3], q)],
    "joined": lambda a, b, q: F.concat([a, b], 0),
    "once more": lambda a, b, q: F.concat([a, a[a[:, 1] > 0]], 0),
    "softmax": lambda a, b, q: F.softmax(a, 1) * 3 - 1,
    "product": lambda a, b, q: a @ mge.tensor(WEIGHT),
    "turned": lambda a, b, q: -a[::-1],
    "chosen": lambda a, b, q: F.where(F.expand_dims(a[:, 0] > q, 1), a, -a),
}
ENDS: dict[str, Callable[[mge.Tensor, float], tuple[mge.Tensor, ...]]] = {
    "mean": lambda a, q: (a.sum(0) / (1 + a.shape[0]),),
    "sorted": lambda a, q: (F.sort(a[:, 0])[0],),
    "numbers": lambda a, q: (F.arange(a.shape[0]) * 2,),
    "elements": lambda a, q: (a[a > q].sum(), *F.cond_take(a > q, a)),
    "where": lambda a, q: (F.non_zero(a > q),),
}


def function(seed: int) -> Callable[[mge.Tensor, mge.Tensor], tuple[mge.Tensor, ...]]:
    """A function of two tables [rows, 4]."""
    drawn = random.Random(seed)
    steps = [
        (drawn.choice([*MOVES, *MOVES, *ENDS]), [drawn.random() for _ in range(3)])
        for _ in range(drawn.randint(2, 7))
    ]

    def made(x: mge.Tensor, y: mge.Tensor) -> tuple[mge.Tensor, ...]:
        tables, ends = [x, y], []
        for name, (first, second, q) in steps:
            a, b = (tables[int(place * len(tables))] for place in (first, second))
            if name in MOVES:
                tables.append(MOVES[name](a, b, q))
            else:
                ends += ENDS[name](a, q)
        return (*tables[2:], *ends)

    return made


def differs(seed: int) -> str:
    """Run a function at several numbers of rows; what is not as in eager code."""
    eager, drawn, rng = function(seed), random.Random(-seed), np.random.default_rng(seed)
    options = jit.Options(level=drawn.choice([0, 1, 2]), check=True)
    dynamic = drawn.choice([None, True])
    compiled = jit.compile(eager, options=options, dynamic=dynamic)
    for rows in drawn.sample(ROWS, 2) if dynamic else [drawn.choice(ROWS)] * 2:
        shift = drawn.choice([0.0, -3.0, 3.0, -1.5])
        given = [
            mge.tensor((rng.standard_normal((rows, 4)) + by).astype(np.float32))
            for by in (0, shift)
        ]
        for i, (want, got) in enumerate(zip(eager(*given), compiled(*given), strict=True)):
            same = want.shape == got.shape and want.dtype == got.dtype
            if not same or not np.allclose(want.numpy(), got.numpy(), rtol=1e-4, atol=1e-5):
                return f"seed {seed}, {rows} rows, result {i}: {got} not {want}"
    return ""


@pytest.mark.parametrize("seed", [*range(6), 293, 408, 3283])
def test_compiled_gives_what_eager_gives(seed: int) -> None:
    assert differs(seed) == ""


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 500, 50))
def test_many(first: int) -> None:
    assert [told for seed in range(first, first + 50) if (told := differs(seed))] == []
