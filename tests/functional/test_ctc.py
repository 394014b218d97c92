"""CTC: sums over every alignment, lengths, packed labels, gradients, compiled runs, errors."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.autodiff import GradManager
from treadle.base.errors import IndexRangeError, ShapeError

RNG = np.random.default_rng(2)
T, N, C = 5, 3, 4
PRED = RNG.dirichlet(np.ones(C), (T, N)).astype(np.float32)
LABEL = np.array([[1, 1], [2, 3], [3, 9]], np.int32)
FRAMES, SIZES = np.array([5, 4, 3], np.int32), np.array([2, 2, 1], np.int32)


def spelled(path: tuple[int, ...], blank: int) -> list[int]:
    return [c for c, _ in itertools.groupby(path) if c != blank]


def by_enumeration(blank: int = 0) -> Any:
    """-log of the summed probability of all alignments of each sample."""
    losses = []
    for b in range(N):
        paths = itertools.product(range(C), repeat=int(FRAMES[b]))
        wanted = LABEL[b, : SIZES[b]].tolist()
        total = sum(
            np.prod([PRED[t, b, c] for t, c in enumerate(path)])
            for path in paths
            if spelled(path, blank) == wanted
        )
        losses.append(-np.log(total))
    return np.array(losses)


def given() -> tuple[mge.Tensor, ...]:
    return tuple(mge.tensor(a) for a in (PRED, FRAMES, LABEL, SIZES))


def test_losses_are_sums_over_all_alignments() -> None:
    wanted = by_enumeration()
    found = F.loss.ctc_loss(*given(), reduction="none")
    np.testing.assert_allclose(found.numpy(), wanted, 1e-5)
    assert F.nn.ctc_loss(*given()).item() == pytest.approx((wanted / SIZES).mean(), rel=1e-5)
    assert F.loss.ctc_loss(*given(), reduction="sum").item() == pytest.approx(wanted.sum(), 1e-5)


def test_labels_may_stand_one_behind_the_other() -> None:
    pred, frames, _, sizes = given()
    packed = mge.tensor(np.array([1, 1, 2, 3, 3], np.int32))
    found = F.loss.ctc_loss(pred, frames, packed, sizes, reduction="none")
    np.testing.assert_allclose(found.numpy(), by_enumeration(), 1e-5)
    compiled = jit.compile(lambda *a: F.loss.ctc_loss(*a, reduction="none"))
    np.testing.assert_allclose(compiled(pred, frames, packed, sizes).numpy(), found.numpy(), 1e-5)


def test_another_blank_and_empty_labels() -> None:
    pred, frames, _, _ = given()
    label = mge.tensor(np.array([[0], [1], [2]], np.int32))
    swapped = mge.tensor(PRED[:, :, [3, 1, 2, 0]])
    mine = F.loss.ctc_loss(swapped, frames, label, [1, 1, 1], blank=3, reduction="none")
    same = mge.tensor(np.array([[3], [1], [2]], np.int32))
    theirs = F.loss.ctc_loss(pred, frames, same, [1, 1, 1], reduction="none")
    np.testing.assert_allclose(mine.numpy(), theirs.numpy(), 1e-5)
    silent = F.loss.ctc_loss(pred, frames, label, [0, 0, 0], reduction="none")
    quiet = [-np.log(PRED[: FRAMES[b], b, 0]).sum() for b in range(N)]
    np.testing.assert_allclose(silent.numpy(), quiet, 1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_gradient_agrees_with_differences(compiled: bool) -> None:
    p = mge.Parameter(PRED)
    _, *rest = given()

    def step() -> mge.Tensor:
        with GradManager().attach([p]) as gm:
            y = F.loss.ctc_loss(p, *rest)
            gm.backward(y)
        return y

    (jit.compile(step) if compiled else step)()
    direction = RNG.standard_normal(PRED.shape).astype(np.float32) * PRED
    slope = float((p.grad.numpy() * direction).sum())
    ends = []
    for sign in (1, -1):
        p[...] = mge.tensor(PRED + np.float32(sign * 1e-3) * direction)
        ends.append(float(step()))
    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-3, rel=1e-2)
    assert (p.grad.numpy()[4, 1:] == 0).all(), "frames behind the end of a sample do not count"


def test_wrong_calls_are_refused() -> None:
    pred, frames, label, sizes = given()
    with pytest.raises(ShapeError, match="labels of N samples"):
        F.loss.ctc_loss(pred, frames[:2], label, sizes)
    with pytest.raises(ShapeError, match="takes"):
        F.loss.ctc_loss(pred[0], frames, label, sizes)
    with pytest.raises(ValueError, match="none of 4 classes"):
        F.loss.ctc_loss(pred, frames, label, sizes, blank=4)
    with pytest.raises(ValueError, match="reduction must be"):
        F.loss.ctc_loss(pred, frames, label, sizes, reduction="max")


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("argument", "values", "index"),
    [
        (1, [5, T + 1, 3], T + 1),
        (1, [5, -1, 3], -1),
        (2, [[1, C], [2, 3], [3, 9]], C),
        (2, [[1, 1], [2, -1], [3, 9]], -1),
        (3, [2, 3, 1], 3),
        (3, [2, -1, 1], -1),
    ],
)
def test_labels_and_lengths_beyond_their_ends_are_errors(
    argument: int, values: list[Any], index: int, compiled: bool
) -> None:
    run = jit.compile(F.loss.ctc_loss) if compiled else F.loss.ctc_loss
    operands = list(given())
    run(*operands)
    operands[argument] = mge.tensor(np.array(values, np.int32))
    with pytest.raises(IndexRangeError, match=f"ctc_loss: index {index} is out of range"):
        run(*operands)


@pytest.mark.parametrize("compiled", [False, True])
def test_packed_labels_are_as_long_as_all_of_them(compiled: bool) -> None:
    run = jit.compile(F.loss.ctc_loss) if compiled else F.loss.ctc_loss
    pred, frames, _, sizes = given()
    with pytest.raises(IndexRangeError, match="ctc_loss: index 5 is out of range"):
        run(pred, frames, mge.tensor(np.array([1, 1, 2, 3], np.int32)), sizes)
