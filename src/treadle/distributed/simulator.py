"""A model of training by many processes: its cost from what kernels and links cost.

The α-β-γ model: a message of b bytes takes α + β b seconds, and adding up b bytes takes γ b. With
n ranks an all-reduce of b bytes takes, by a ring or by recursive halving and doubling,

    ring       2 (n - 1) α      + 2 (n - 1) / n β b + (n - 1) / n γ b
    halving    2 ceil(log2 n) α + 2 (n - 1) / n β b + (n - 1) / n γ b, times 1.25 for β and γ
               where n is not a power of two

(Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH,
2005; the 1.25 stands for the additional steps there). Libraries choose the quicker one by size, and
so does the model. With several ranks on a machine these reduce and gather among themselves, and
machines among one another, each rank its own share of the bytes.

A training step is its gradients: when each is there, and how many bytes it has. They are put into
buckets by the plan that training itself uses (`runtime/comm/buckets.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from treadle.runtime.comm import buckets
from treadle.runtime.comm.buckets import ReductionCost

__all__ = ["Cluster", "Network", "Prediction", "TrainingStep", "all_reduce_seconds", "predict"]

_UNEVEN = 1.25
"""Factor of bytes that halving and doubling moves where ranks are not a power of two."""


@dataclass(frozen=True, slots=True)
class Network:
    """Seconds to start a message, per byte moved, and per byte added up."""

    alpha: float
    beta: float
    gamma: float = 0.0

    def all_reduce(self, nbytes: float, ranks: int) -> float:
        """Seconds of an all-reduce of so many bytes among so many ranks."""
        if ranks == 1:
            return 0.0
        share = (ranks - 1) / ranks
        moved = 2 * share * self.beta * nbytes
        added = share * self.gamma * nbytes
        ring = 2 * (ranks - 1) * self.alpha + moved + added
        rounds = math.ceil(math.log2(ranks))
        more = 1.0 if ranks == 1 << rounds else _UNEVEN
        return min(ring, 2 * rounds * self.alpha + more * (moved + added))


@dataclass(frozen=True, slots=True)
class Cluster:
    """Machines of equal ranks.

    Attributes:
        between: the network that joins machines, as one machine sees it.
        inside: what joins the ranks of a machine.
        ranks_per_machine: how many there are at most.
        offloads: whether messages move while the processor computes: network cards and GPUs do so;
            where MPI needs the processor for them, nothing is hidden.
        noise: standard deviation of a rank's time for a step, as a part of it.
    """

    between: Network
    inside: Network = Network(1e-6, 1e-10, 1e-10)
    ranks_per_machine: int = 1
    offloads: bool = True
    noise: float = 0.0


def all_reduce_seconds(nbytes: float, ranks: int, cluster: Cluster) -> float:
    """Modelled time of an all-reduce; on several machines first and last inside of each.

    Raises:
        ValueError: there is no rank.
    """
    if ranks < 1:
        raise ValueError(f"a job has ranks, not {ranks}")
    near = min(ranks, cluster.ranks_per_machine)
    machines = -(-ranks // cluster.ranks_per_machine)
    # Inside, every rank ends with its share; the ranks of a machine share its network.
    return cluster.inside.all_reduce(nbytes, near) + cluster.between.all_reduce(nbytes, machines)


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One step of one rank, without communication, in seconds.

    Attributes:
        name: for people.
        ready: when each gradient is there, from the beginning of the step, never before the last.
        nbytes: of each gradient.
        backward: when the backward pass ends.
        update: of the optimizer.
    """

    name: str
    ready: tuple[float, ...]
    nbytes: tuple[int, ...]
    backward: float
    update: float

    @property
    def seconds(self) -> float:
        """The step of a rank that is alone."""
        return self.backward + self.update

    def times(self, factor: float) -> TrainingStep:
        """The same step on a processor that takes `factor` of the time."""
        return replace(
            self,
            ready=tuple(factor * r for r in self.ready),
            backward=factor * self.backward,
            update=factor * self.update,
        )


@dataclass(frozen=True, slots=True)
class Prediction:
    """A step of a rank among others.

    Attributes:
        ranks: how many there are.
        seconds: of the step.
        exposed: seconds in which the rank waits for reductions, or makes them itself.
        buckets: numbers of gradients that are reduced together.
        efficiency: the rate of all ranks, by that of as many that know nothing of one another.
    """

    ranks: int
    seconds: float
    exposed: float
    buckets: tuple[int, ...]
    efficiency: float


def predict(
    step: TrainingStep, ranks: int, cluster: Cluster, cut: Sequence[int] | None = None
) -> Prediction:
    """Predict the time of a step on `ranks` ranks, each with a batch of its own as large as that of
    one.

    Ranks wait for the slowest one: the largest of n normal deviates is about sqrt(2 ln n)
    standard deviations above their mean.

    Args:
        step: of one rank.
        ranks: how many there are.
        cluster: what they run on.
        cut: numbers of gradients per bucket; as planned for the cluster if None.

    Raises:
        ValueError: there is no rank, or the cut is of another number of gradients.
    """
    alpha = all_reduce_seconds(0, ranks, cluster)
    if cut is None:
        whole = float(sum(step.nbytes)) or 1.0
        beta = (all_reduce_seconds(whole, ranks, cluster) - alpha) / whole
        link = ReductionCost(alpha, beta)
        cut = buckets.plan(step.ready, step.nbytes, [0] * len(step.nbytes), link)
    if sum(cut) != len(step.nbytes):
        raise ValueError(f"buckets of {sum(cut)} gradients, where there are {len(step.nbytes)}")
    end, busy, at = 0.0, 0.0, 0
    for size in cut:
        seconds = all_reduce_seconds(sum(step.nbytes[at : at + size]), ranks, cluster)
        end = max(end, step.ready[at + size - 1]) + seconds
        busy += seconds
        at += size
    exposed = max(end - step.backward, 0.0) if cluster.offloads else busy
    late = cluster.noise * math.sqrt(2 * math.log(ranks)) * step.seconds
    seconds = step.seconds + exposed + late
    return Prediction(ranks, seconds, exposed, tuple(cut), step.seconds / seconds)
