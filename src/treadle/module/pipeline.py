"""Networks whose parts lie on different ranks, one part each.

Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism (2019):
a batch is cut into micro-batches, so that ranks work on different ones at the same time. Each rank
goes forward through all of them and then backward; gradients add up, so a step computes what one
process would.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable

import numpy as np

from treadle.autodiff import GradManager
from treadle.autodiff.grad_manager import GradManagerGroup
from treadle.base.dtype import as_dtype
from treadle.base.errors import ShapeError
from treadle.distributed import WORLD, Group
from treadle.distributed.shrinking import require_all_ranks
from treadle.functional import zeros_like
from treadle.module.module import Module
from treadle.runtime.comm import groups
from treadle.runtime.comm.api import CommunicationError, Communicator
from treadle.tensor import Tensor

Loss = Callable[[Tensor, int], Tensor]
"""The mean loss of a micro-batch: of what the network made of it, and its number."""


class Pipeline:
    """This rank's part of a network, and its neighbors.

    Ranks of the group are in the order of their parts. With n ranks and m micro-batches a rank is
    idle for a share of (n - 1) / (m + n - 1) of a step.

    Args:
        stage: this rank's part, of one tensor whose first axis is the batch. Have it
            `stage.forward = autodiff.recompute(stage.forward)` where the values between its layers
            take too much memory.
        micro_batches: how many parts a batch is cut into.
        group: the ranks that have the parts.

    Raises:
        ValueError: there is no micro-batch.

    Example:
        >>> import treadle as mge
        >>> from treadle import module as M
        >>> from treadle.module.pipeline import Pipeline
        >>> stage = M.Linear(4, 2)  # on every rank its own part
        >>> pipeline = Pipeline(stage, micro_batches=4)
        >>> pipeline.micro_batches
        4
    """

    def __init__(self, stage: Module, micro_batches: int, group: Group = WORLD) -> None:
        if micro_batches < 1:
            raise ValueError(f"a batch has at least one part, got {micro_batches}")
        self.stage, self.micro_batches, self.group = stage, micro_batches, group
        self._losses = groups.losses()

    def step(self, x: Tensor | None, loss: Loss | None) -> Tensor | None:
        """Go forward and backward; gradients add up in `.grad` of the stage's parameters.

        All ranks of the group call it together.

        Args:
            x: the batch, [n, ...]; the first rank's counts.
            loss: of a micro-batch; the last rank's counts.

        Returns:
            The mean loss of the batch on the last rank, None elsewhere.

        Raises:
            ShapeError: the batch has fewer rows than there are micro-batches, or a loss is not one
                number.
            TypeError: the first rank has no batch, or the last one no loss.
            CommunicationError: another rank has raised one of these, or does not come in time.
        """
        require_all_ranks("Pipeline", self._losses)
        run = _Run(self.stage, self.group.communicator(), *self._agreed(x, loss))
        weights = list(self.stage.parameters())
        managers = [GradManager().attach(weights) for _ in run.shares]
        group = GradManagerGroup(managers)
        group.record()
        try:
            total = run.forward(managers, x, loss)
            run.backward(managers)
        finally:
            group.release()
        return total

    def _agreed(self, x: Tensor | None, loss: Loss | None) -> tuple[int, list[int]]:
        """The number of the step and the rows of each micro-batch, once all ranks can begin."""
        comm = self.group.communicator()
        shares: list[int] = []
        problem: Exception | None = None
        try:
            if comm.rank == 0:
                shares = _shares(x, self.micro_batches)
            if comm.rank == comm.size - 1 and loss is None:
                raise TypeError("Pipeline.step: the last rank has to pass a loss")
        except (TypeError, ShapeError) as error:
            problem = error
        said = None if problem is None else str(problem)
        every: list[tuple[int, list[int], str | None]]
        every = comm.exchange((next(_STEPS), shares, said))
        if problem is not None:
            raise problem
        for rank, (_, _, theirs) in enumerate(every):
            if theirs is not None:
                raise CommunicationError("Pipeline", f"rank {rank} cannot begin: {theirs}")
        number, shares, _ = every[0]
        return number, shares


_STEPS = itertools.count()
"""Numbers of steps; those of a group's first rank tell its messages apart."""


class _Run:
    """One step of a rank.

    Args:
        stage: this rank's part.
        comm: what ranks talk through.
        number: of the step.
        shares: rows of each micro-batch.
    """

    def __init__(self, stage: Module, comm: Communicator, number: int, shares: list[int]) -> None:
        self.shares = shares
        self._stage, self._comm, self._number = stage, comm, number
        self._first, self._last = comm.rank == 0, comm.rank == comm.size - 1
        self._made: deque[tuple[Tensor, Tensor]] = deque()

    def forward(
        self, managers: list[GradManager], x: Tensor | None, loss: Loss | None
    ) -> Tensor | None:
        """All micro-batches forward; the last rank goes backward through each at once."""
        total, start = None, 0
        for number, (manager, rows) in enumerate(zip(managers, self.shares, strict=True)):
            if x is not None and self._first:
                given = x[start : start + rows]
                start += rows
            else:
                given = self._receive(self._comm.rank - 1)
                manager.attach(given)
            made = self._stage(given)
            if not self._last or loss is None:
                self._send(made, self._comm.rank + 1)
                self._made.append((given, made))
                continue
            part = _one_number(loss(made, number)) * (rows / sum(self.shares))
            manager.backward(part)
            self._return(given)
            total = part.detach() if total is None else total + part.detach()
        return total

    def backward(self, managers: list[GradManager]) -> None:
        """All micro-batches backward, in the order in which their gradients come."""
        for manager in managers[: len(self._made)]:
            given, made = self._made.popleft()
            manager.backward(made, self._receive(self._comm.rank + 1))
            self._return(given)

    def _return(self, given: Tensor) -> None:
        """Send the gradient of what came from the rank before back to it."""
        if self._first:
            return
        # There is none where the part does not depend on its input.
        self._send(zeros_like(given) if given.grad is None else given.grad, self._comm.rank - 1)

    def _send(self, x: Tensor, rank: int) -> None:
        array = np.ascontiguousarray(x.numpy())
        self._comm.send_value((self._number, x.shape, x._kind.dtype.name), rank)
        self._comm.send(array, rank)

    def _receive(self, rank: int) -> Tensor:
        """Receive a rank's tensor of this step; what is left of a step that failed is
        passed over.
        """
        number = None
        while number != self._number:
            number, shape, dtype = self._comm.recv_value(rank)
            array = self._comm.recv(shape, as_dtype(dtype).numpy, rank)
        return Tensor(array, dtype=dtype)


def _shares(x: Tensor | None, count: int) -> list[int]:
    """Rows of each micro-batch: as equal as can be."""
    if x is None:
        raise TypeError("Pipeline.step: the first rank has to pass a batch")
    rows = int(x.shape[0]) if x.shape else 0
    if rows < count:
        raise ShapeError(
            "Pipeline", f"{rows} rows cannot be cut into {count} parts", hint="use fewer parts"
        )
    return [rows // count + (i < rows % count) for i in range(count)]


def _one_number(loss: Tensor) -> Tensor:
    if loss.size != 1:
        raise ShapeError(
            "Pipeline",
            "the loss of a micro-batch is one number, its mean",
            saw=f"loss {loss.type}",
            hint="take the mean of it",
        )
    return loss


__all__ = ["Loss", "Pipeline"]
