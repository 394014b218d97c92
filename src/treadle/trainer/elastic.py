"""Training that goes on when ranks are lost: a step is done by all that are left, or repeated.

A step ends with an agreement, after which either no rank has been lost and every rank has done the
step, or none has: then all of them return to what they had before it, without any copy from one to
another, and repeat it. Parameters are equal on all ranks, so nothing is lost with a rank but its
part of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

from treadle.autodiff import no_grad
from treadle.data import DataLoader
from treadle.data.sampler import MapSampler
from treadle.distributed import RankLost, can_shrink, get_world_size
from treadle.distributed.shrinking import after_meeting, is_whole
from treadle.module import Module
from treadle.optimizer import LRScheduler, Optimizer
from treadle.runtime.comm import groups
from treadle.tensor import Tensor, wrap
from treadle.trainer import randomness

P = ParamSpec("P")
R = TypeVar("R")

POLICIES = ("local", "global")


class Stateful(Protocol):
    """Interface of objects with a state that steps change, such as a scheduler or a
    `GradScaler`.
    """

    def state_dict(self) -> Any:
        """The state, as values of its own."""
        ...

    def load_state_dict(self, state: Any) -> object:
        """Return to it."""
        ...


class Elastic:
    """Steps of data-parallel training that survive the loss of ranks.

    The job is started with `launcher(on_failure="shrink")`, or `mpiexec --with-ft ulfm` of Open
    MPI 5. In others, and in a process that is alone, steps are what they are without this.

    Args:
        model: whose parameters are equal on all ranks.
        optimizer: of its parameters.
        others: schedulers, scalers, and what else a step changes and has a state.
        keep: what stays when ranks are lost. "local": the batch of a rank; the job's gets smaller,
            and learning rates with it, in proportion (Goyal et al., Accurate, Large Minibatch SGD,
            2017). "global": the batch of the job and the learning rates; ranks get larger batches
            from `batches`, rounded up, and need the memory for them.
        on_loss: called with the ranks that are lost, as they were numbered, before the step is
            repeated: to make groups anew, for instance.

    Raises:
        TypeError: the optimizer's state is divided among ranks, so a part is lost with each: such
            a job is started again and resumes from its last checkpoint.
        ValueError: an unknown policy.

    Attributes:
        steps: done so far.
        lost: how many ranks have been lost so far.
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer,
        others: Sequence[Stateful] = (),
        *,
        keep: str = "local",
        on_loss: Callable[[tuple[int, ...]], object] | None = None,
    ) -> None:
        if keep not in POLICIES:
            raise ValueError(f"keep should be one of {list(POLICIES)}, got {keep!r}")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"Elastic takes an Optimizer, got {type(optimizer).__name__}: state that is in "
                "parts on ranks is lost with them; start the job again from its last checkpoint"
            )
        self.steps = self.lost = 0
        self._model, self._optimizer, self._others = model, optimizer, list(others)
        self._keep = keep
        self._on_loss = on_loss
        self._news: tuple[int, ...] = ()

    def step(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a step; repeat it with the ranks that are left if one is lost meanwhile.

        Args:
            function: forward pass, backward pass and update, eager or compiled; all ranks call the
                same. Where it divides a batch by `get_rank` and `get_world_size` itself, the
                repeated step has the whole batch again.
            args, kwargs: of the function.

        Returns:
            What it returns.

        Raises:
            CommunicationError: a rank is there, but does not come in time.
        """
        while True:
            if not can_shrink():
                result = function(*args, **kwargs)
                break
            before = _Memory(self._model, self._optimizer, self._others)
            try:
                self._tell()
                result = function(*args, **kwargs)
                is_done = is_whole(True)
            except RankLost:
                is_done = is_whole(False)
            if is_done:
                break
            self._go_on(before)
        self.steps += 1
        return result

    def batches(self, loader: DataLoader) -> Iterator[Any]:
        """Batches of an epoch; from the loss of ranks on, its rest is divided among those left.

        The samples of the lost ranks' part of the running batch are left out. Loaders of streams,
        and with samplers of a fixed `world_size`, go on as they are.
        """
        sampler, done = loader.sampler, 0
        if not isinstance(sampler, MapSampler) or not sampler.follows:
            yield from loader
            return
        while True:
            order, losses, old = sampler.state_dict(), groups.losses(), sampler.world_size
            together, count = sampler.batch_size * old, 0
            for batch in loader:
                yield batch
                count += 1
                if groups.losses() != losses:
                    break
            else:
                return
            done += count * together
            if done >= sampler.total:
                return
            sampler.load_state_dict(order)
            if self._keep == "global":
                sampler.batch_size = math.ceil(together / get_world_size())
            sampler.leave_out(done)

    def _tell(self) -> None:
        if self._news:
            news, self._news = self._news, ()
            if self._on_loss is not None:
                self._on_loss(news)

    def _go_on(self, before: _Memory) -> None:
        """Continue with the ranks that are left, from the state before the step."""
        size = get_world_size()
        lost = after_meeting()
        before.restore()
        self.lost += len(lost)
        self._news += lost
        if self._keep == "local":
            self._scale(get_world_size() / size)

    def _scale(self, factor: float) -> None:
        """Change learning rates, and those that schedulers begin from."""
        for group in self._optimizer.param_groups:
            for name in ("lr", "initial_lr"):
                if name in group:
                    group[name] *= factor
        for other in self._others:
            if isinstance(other, LRScheduler):
                other.base_lrs = [rate * factor for rate in other.base_lrs]


class _Memory:
    """State before a step.

    Arrays are held, not copied: operations make new ones, and compiled steps, which write in
    place, copy what somebody else holds.
    """

    def __init__(self, model: Module, optimizer: Optimizer, others: Sequence[Stateful]) -> None:
        state = optimizer.state_dict(keep_var=True)["state"]
        held = [tensor for named in state.values() for tensor in named.values()]
        tensors: list[Tensor] = [*model.tensors(), *held]
        self._tensors = [(t, wrap(t._data, t._kind)) for t in tensors]
        self._grads = [(t, t.grad) for t in model.parameters()]
        self._rates = [({**group}, group) for group in optimizer.param_groups]
        self._others = [(other, _copied(other.state_dict())) for other in others]
        self._random = randomness.state()

    def restore(self) -> None:
        """Return to it."""
        with no_grad():
            for tensor, value in self._tensors:
                tensor._reset(value)
        for tensor, grad in self._grads:
            tensor.grad = grad
        for known, group in self._rates:
            group.clear()
            group.update(known)
        for other, state in self._others:
            other.load_state_dict(state)
        randomness.restore(self._random)


def _copied(state: Any) -> Any:
    return dict(state) if isinstance(state, Mapping) else state
