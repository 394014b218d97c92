"""Networks whose parts lie on different ranks, one part each.

Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism (2019):
a batch is cut into micro-batches, so that ranks work on different ones at the same time. Each rank
goes forward through all of them and then backward; gradients add up, so a step computes what one
process would.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from treadle.autodiff import GradManager
from treadle.autodiff.grad_manager import GradManagerGroup
from treadle.base.dtype import as_dtype
from treadle.base.errors import ShapeError
from treadle.distributed import WORLD, Group
from treadle.module.module import Module
from treadle.runtime.comm.api import Communicator
from treadle.tensor import Tensor

Loss = Callable[[Tensor, int], Tensor]
"""The mean loss of a micro-batch: of what the network made of it, and its number."""


class Pipeline:
    """This rank's part of a network, and its neighbors.

    Ranks of the group are in the order of their parts. With n ranks and m micro-batches a rank is
    idle for a share of (n - 1) / (m + n - 1) of a step.

    Args:
        stage: this rank's part, of one tensor whose first axis is the batch. Wrap it in
            `autodiff.recompute` where the values between its layers take too much memory.
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

    def step(self, x: Tensor | None, loss: Loss | None) -> Tensor | None:
        """Go forward and backward; gradients add up in `.grad` of the stage's parameters.

        All ranks of the group call it together.

        Args:
            x: the batch, [n, ...]; the first rank's counts.
            loss: of a micro-batch; the last rank's counts.

        Returns:
            The mean loss of the batch on the last rank, None elsewhere.

        Raises:
            ShapeError: the batch has fewer rows than there are micro-batches.
            TypeError: the first rank has no batch, or the last one no loss.
            CommunicationError: a neighbor does not come in time.
        """
        run = _Run(self, self.group.communicator(), _shares(x, self.micro_batches, self.group))
        weights = list(self.stage.parameters())
        managers = [GradManager().attach(weights) for _ in range(self.micro_batches)]
        group = GradManagerGroup(managers)
        group.record()
        try:
            total = run.forward(managers, x, loss)
            run.backward(managers)
        finally:
            group.release()
        return total


class _Run:
    """One step of a rank.

    Args:
        pipeline: whose step it is.
        comm: what ranks talk through.
        shares: rows of each micro-batch; the first rank knows them.
    """

    def __init__(self, pipeline: Pipeline, comm: Communicator, shares: list[int]) -> None:
        self._stage, self._comm = pipeline.stage, comm
        self._shares: list[int] = comm.broadcast_value(shares, 0)
        self._first, self._last = comm.rank == 0, comm.rank == comm.size - 1
        self._made: list[tuple[Tensor, Tensor]] = []

    def forward(
        self, managers: list[GradManager], x: Tensor | None, loss: Loss | None
    ) -> Tensor | None:
        """All micro-batches forward; the last rank goes backward through each at once."""
        total, start = None, 0
        for number, (manager, rows) in enumerate(zip(managers, self._shares, strict=True)):
            if x is not None and self._first:
                given = x[start : start + rows]
                start += rows
            else:
                given = self._receive(self._comm.rank - 1)
                manager.attach(given)
            made = self._stage(given)
            if not self._last:
                self._send(made, self._comm.rank + 1)
                self._made.append((given, made))
                continue
            if loss is None:
                raise TypeError("Pipeline.step: the last rank has to pass a loss")
            part = loss(made, number) * (rows / sum(self._shares))
            manager.backward(part)
            self._return(given)
            total = part.detach() if total is None else total + part.detach()
        return total

    def backward(self, managers: list[GradManager]) -> None:
        """All micro-batches backward, in the order in which their gradients come."""
        for manager, (given, made) in zip(managers, self._made, strict=False):
            manager.backward(made, self._receive(self._comm.rank + 1))
            self._return(given)

    def _return(self, given: Tensor) -> None:
        """Send the gradient of what came from the rank before back to it."""
        if self._first:
            return
        grad = given.grad
        if grad is None:  # The part does not depend on its input.
            grad = given * 0
        self._send(grad, self._comm.rank - 1)

    def _send(self, x: Tensor, rank: int) -> None:
        array = np.ascontiguousarray(x.numpy())
        self._comm.send_value((array.shape, x._kind.dtype.name), rank)
        self._comm.send(array, rank)

    def _receive(self, rank: int) -> Tensor:
        shape, dtype = self._comm.recv_value(rank)
        return Tensor(self._comm.recv(shape, as_dtype(dtype).numpy, rank), dtype=dtype)


def _shares(x: Tensor | None, count: int, group: Group) -> list[int]:
    """Rows of each micro-batch: as equal as can be."""
    if group.rank:
        return []
    if x is None:
        raise TypeError("Pipeline.step: the first rank has to pass a batch")
    rows = int(x.shape[0])
    if rows < count:
        raise ShapeError(
            "Pipeline", f"{rows} rows cannot be cut into {count} parts", hint="use fewer parts"
        )
    return [rows // count + (i < rows % count) for i in range(count)]


__all__ = ["Loss", "Pipeline"]
