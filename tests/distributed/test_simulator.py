"""The model of large jobs against sums made by hand, and against plain simulation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from treadle.distributed.simulator import (
    Cluster,
    Network,
    TrainingStep,
    all_reduce_seconds,
    predict,
)

STEP = TrainingStep("made up", (1.0, 2.0, 3.0), (400, 400, 400), 3.0, 0.5)


def ring(network: Network, nbytes: int, ranks: int) -> float:
    """Message by message: every rank sends a part to the next one, and adds what it gets."""
    clocks = [0.0] * ranks
    part = nbytes / ranks
    for turn in range(2 * (ranks - 1)):
        adding = network.gamma * part if turn < ranks - 1 else 0.0
        arrive = [c + network.alpha + network.beta * part for c in clocks]
        clocks = [max(clocks[r], arrive[r - 1]) + adding for r in range(ranks)]
    return max(clocks)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_ring_takes_what_its_messages_take(ranks: int) -> None:
    network = Network(0.0, 2e-3, 1e-3)
    expected = ring(network, 4800, ranks)
    assert network.all_reduce(4800, ranks) == pytest.approx(expected)
    slow = Network(1e-9, 2e-3, 1e-3)
    assert slow.all_reduce(4800, ranks) == pytest.approx(ring(slow, 4800, ranks), rel=1e-6)


def test_small_messages_take_few_rounds_and_large_ones_little_traffic() -> None:
    network = Network(1.0, 1.0)
    assert network.all_reduce(0, 1024) == 20
    assert network.all_reduce(1e9, 1000) == pytest.approx(2 * 999 + 2 * 0.999e9)
    assert network.all_reduce(5, 1) == 0
    assert network.all_reduce(0, 5) == 6


def test_machines_have_two_networks() -> None:
    cluster = Cluster(Network(8.0, 0.0), Network(1.0, 0.0), ranks_per_machine=4)
    assert all_reduce_seconds(0, 1, cluster) == 0
    assert all_reduce_seconds(0, 4, cluster) == 4
    assert all_reduce_seconds(0, 8, cluster) == 4 + 16
    with pytest.raises(ValueError, match="not 0"):
        all_reduce_seconds(0, 0, cluster)


def test_reductions_hide_behind_the_backward_pass() -> None:
    quick = Cluster(Network(0.0, 1e-3))  # 0.4 s for each: all but the last are hidden
    one = predict(STEP, 2, quick, (1, 1, 1))
    assert one.exposed == pytest.approx(0.4) and one.seconds == pytest.approx(3.9)
    assert predict(STEP, 2, quick, (3,)).exposed == pytest.approx(1.2)
    assert predict(STEP, 2, quick).exposed <= 0.4 + 1e-9
    by_hand = Cluster(Network(0.0, 1e-3), offloads=False)
    assert predict(STEP, 2, by_hand, (1, 1, 1)).exposed == pytest.approx(1.2)
    assert predict(STEP, 1, by_hand).efficiency == 1.0
    with pytest.raises(ValueError, match="where there are 3"):
        predict(STEP, 2, quick, (1, 1))


def test_plans_are_the_best_cuts_there_are() -> None:
    rng = np.random.default_rng(0)
    for seed in range(10):
        ready = tuple(np.cumsum(rng.exponential(size=6)).tolist())
        sizes = tuple(rng.integers(1, 1000, size=6).tolist())
        step = TrainingStep(str(seed), ready, sizes, ready[-1], 0.0)
        cluster = Cluster(Network(0.0, float(rng.exponential() / 500)))
        cuts = (
            tuple(np.diff([0, *ends, 6]).tolist())
            for n in range(6)
            for ends in itertools.combinations(range(1, 6), n)
        )
        best = min(predict(step, 4, cluster, cut).seconds for cut in cuts)
        assert predict(step, 4, cluster).seconds == pytest.approx(best)


def test_more_ranks_are_never_more_efficient() -> None:
    cluster = Cluster(Network(2e-5, 1e-5), Network(1e-6, 1e-6), 4, noise=0.02)
    found = [predict(STEP, 1 << k, cluster).efficiency for k in range(13)]
    assert found[0] == 1.0 and found == sorted(found, reverse=True) and 0 < found[-1] < 1


def test_a_quicker_processor_hides_less() -> None:
    cluster = Cluster(Network(0.0, 1e-3))
    assert predict(STEP.times(0.1), 8, cluster).efficiency < predict(STEP, 8, cluster).efficiency
    assert STEP.times(0.1).seconds == pytest.approx(0.35)
