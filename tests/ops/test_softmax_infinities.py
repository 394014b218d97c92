"""Rows with infinities, as other frameworks have them: eager, compiled and the oracle alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F

INF, NAN = np.inf, np.nan
ROWS = np.array(
    [
        [INF, 1, 2],
        [INF, INF, 1],
        [-INF, 1, 2],
        [-INF, -INF, -INF],
        [INF, -INF, 0],
        [NAN, 1, 2],
        [1, 2, 3],
    ],
    np.float32,
)
LABELS = np.full(len(ROWS), 1, np.int32)
NOTHING = [NAN, NAN, NAN]


def log_softmax(row: Any) -> Any:
    return row - np.log(np.exp(row.astype("d")).sum())


CASES: dict[str, tuple[Any, list[Any]]] = {
    "softmax": (
        lambda x: F.softmax(x, axis=1),
        [
            NOTHING,
            NOTHING,
            [0, *np.exp(log_softmax(ROWS[2, 1:]))],
            NOTHING,
            NOTHING,
            NOTHING,
            np.exp(log_softmax(ROWS[6])),
        ],
    ),
    "log_softmax": (
        lambda x: F.logsoftmax(x, axis=1),
        [
            NOTHING,
            NOTHING,
            [-INF, *log_softmax(ROWS[2, 1:])],
            NOTHING,
            NOTHING,
            NOTHING,
            log_softmax(ROWS[6]),
        ],
    ),
    "logsumexp": (
        lambda x: F.logsumexp(x, axis=1),
        [INF, INF, np.log(np.exp([1, 2]).sum()), -INF, INF, NAN, np.log(np.exp([1, 2, 3]).sum())],
    ),
    "cross_entropy": (
        lambda x: F.nn.cross_entropy(x, mge.tensor(LABELS), reduction="none"),
        [NAN, NAN, -log_softmax(ROWS[2, 1:])[0], NAN, NAN, NAN, -log_softmax(ROWS[6])[1]],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_with_infinities(name: str) -> None:
    function, expected = CASES[name]
    with np.errstate(all="ignore"):
        for compute in (function, mge.jit.compile(function)):
            np.testing.assert_allclose(compute(mge.tensor(ROWS)).numpy(), expected, 1e-5, 1e-6)
