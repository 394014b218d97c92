"""Optimizer state shared out among the ranks of a group.

Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models (2020):
stage 1 keeps a part of the state on each rank, stage 2 a part of the summed gradients, too. Here
the parameters of a group are one vector, of which each rank updates a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from treadle.autodiff import no_grad
from treadle.base.errors import ShapeError
from treadle.distributed import WORLD
from treadle.distributed import Group as Ranks
from treadle.distributed.helper import get_offsets, param_pack_split
from treadle.distributed.shrinking import require_all_ranks
from treadle.functional.tensor import concat, zeros
from treadle.ops.collective import AllGather, ReduceScatter
from treadle.optimizer.lamb import LAMB
from treadle.optimizer.optimizer import Group, Optimizer
from treadle.runtime.comm.groups import losses
from treadle.tensor import Parameter, Tensor


class ShardedOptimizer:
    """An optimizer whose state, and summed gradients, are shared out among ranks (ZeRO 1 and 2).

    Gradients are summed by `step` itself, so `GradManager.attach` needs no callback. A step costs
    as much communication as one all-reduce of the gradients, half of it after the update.

    Args:
        params: parameters, or dicts of "params" and hyper-parameters.
        make: an optimizer of given parameter groups, such as `lambda p: Adam(p, lr=1e-3)`; one
            that treats each element by itself, so not LAMB.
        group: the ranks.
        reduce_method: "mean" or "sum" of the ranks' gradients.

    Attributes:
        inner: the optimizer of this rank's parts; learning rate schedulers take this one.

    Raises:
        AssertionError: this process is in no group, or not in this one.
        ValueError: the optimizer or the method is another one.
    """

    def __init__(
        self,
        params: Iterable[Parameter] | Iterable[Group],
        make: Callable[[list[Group]], Optimizer],
        group: Ranks = WORLD,
        reduce_method: str = "mean",
    ) -> None:
        group.communicator()
        self._losses = losses()
        if reduce_method not in ("mean", "sum"):
            raise ValueError(f"reduce_method must be 'mean' or 'sum', got {reduce_method!r}")
        given: list[Any] = list(params)
        several = given if given and isinstance(given[0], dict) else [{"params": given}]
        self._share = 1.0 / group.size if reduce_method == "mean" else 1.0
        self._vectors: list[_Vector] = []
        groups = []
        for one in several:
            made = [_Vector(p, group) for p in _by_kind(one["params"])]
            self._vectors += made
            groups.append({**one, "params": [v.part for v in made]})
        self.inner = make(groups)
        if isinstance(self.inner, LAMB):
            raise ValueError("LAMB looks at whole parameters, which no rank has: use Adam or SGD")

    @property
    def param_groups(self) -> list[Group]:
        """Groups of the inner optimizer; "params" are this rank's parts."""
        return self.inner.param_groups

    def step(self) -> ShardedOptimizer:
        """Sum gradients, update this rank's parts, and put the parameters together again."""
        require_all_ranks("ShardedOptimizer", self._losses)
        with no_grad():
            for vector in self._vectors:
                vector.take_apart()
                vector.part.grad = vector.summed() * self._share
            self.inner.step()
            for vector in self._vectors:
                vector.put_together()
        return self

    def clear_grad(self) -> None:
        """Set the gradient of every parameter to None."""
        self.inner.clear_grad()
        for vector in self._vectors:
            for param in vector.params:
                param.grad = None

    def state_dict(self) -> dict[str, Any]:
        """The state of all ranks; a collective that all of them call.

        The state of parts is joined, [all elements], so that another number of ranks can load it.
        """
        found = self.inner.state_dict()
        for index, vector in enumerate(self._vectors):
            held = found["state"].get(index, {})
            for name, array in held.items():
                if array.shape == vector.part.shape:
                    held[name] = vector.whole(Tensor(array, dtype=array.dtype)).numpy()
        return found

    def parts(self, make: Callable[[Any, int, int], Any]) -> dict[str, Any]:
        """The state with this rank's parts as they are; no communication.

        Args:
            make: called with an array, the place of its first element and the size of the whole;
                returns what stands for the array, such as `serialization.Part`.
        """
        found = self.inner.state_dict()
        for index, vector in enumerate(self._vectors):
            held = found["state"].get(index, {})
            for name, array in held.items():
                if array.shape == vector.part.shape:
                    held[name] = make(array, vector.start, vector.size)
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take this rank's part of what `state_dict` gave, on any number of ranks.

        Raises:
            ValueError, ShapeError: as `Optimizer.load_state_dict`.
        """
        own = {}
        for index, vector in enumerate(self._vectors):
            held = state["state"].get(index, {})
            own[index] = {name: vector.own_part(array) for name, array in held.items()}
        self.inner.load_state_dict({**state, "state": own})


class _Vector:
    """Parameters of one element type and device as one vector, and this rank's part of it."""

    def __init__(self, params: Sequence[Parameter], group: Ranks) -> None:
        self.params = list(params)
        self._shapes = [p.shape for p in params]
        self.size = sum(p.size for p in params)
        self._padding = -self.size % group.size
        self._rank, self._ranks = group.rank, group.size
        length = (self.size + self._padding) // group.size
        self.start = min(self._rank * length, self.size)
        self._missing = length - min(length, self.size - self.start)
        self._stop = self.start + length - self._missing
        self._scatter = ReduceScatter(group.name, group.size)
        self._gather = AllGather(group.name, group.size)
        with no_grad():
            mine = self._mine()
        self.part = Parameter(mine.numpy(), dtype=mine.dtype, device=mine.device)

    def _mine(self) -> Tensor:
        """Return this rank's part of the parameters as they are now."""
        first = 0
        pieces: list[Tensor] = []
        for p in self.params:
            low, high = max(self.start - first, 0), min(self._stop - first, p.size)
            if low < high:
                pieces.append(p.reshape(-1)[low:high])
            first += p.size
        if self._missing:
            kind = self.params[0]
            pieces.append(zeros((self._missing,), dtype=kind.dtype, device=kind.device))
        return concat(pieces)

    def take_apart(self) -> None:
        """Set this rank's part to that of the parameters, which others may have set."""
        self.part._reset(self._mine())

    def _join(self, tensors: Sequence[Tensor]) -> Tensor:
        """One vector, with zeros at the end so that it divides evenly."""
        parts = [t.reshape(-1) for t in tensors]
        if self._padding:
            parts.append(zeros((self._padding,), dtype=parts[0].dtype, device=parts[0].device))
        return concat(parts)

    def summed(self) -> Tensor:
        """Return this rank's part of the sum of gradients; missing gradients count as zero."""
        grads = [
            zeros(p.shape, dtype=p.dtype, device=p.device) if p.grad is None else p.grad
            for p in self.params
        ]
        return self._scatter(self._join(grads))

    def whole(self, part: Tensor) -> Tensor:
        """The parts of all ranks put together."""
        return self._gather(part)[: self.size]

    def put_together(self) -> None:
        """Give the parameters the values of all ranks' parts."""
        values = param_pack_split(self.whole(self.part), get_offsets(self._shapes), self._shapes)
        for param, value in zip(self.params, values, strict=True):
            param._reset(value)

    def own_part(self, array: Any) -> Any:
        """Return this rank's part of an array for all elements; a scalar stays as it is.

        Raises:
            ShapeError: it is a vector of another length.
        """
        if array.ndim == 0:
            return array
        if array.shape != (self.size,):
            raise ShapeError(
                "load_state_dict",
                "the state is of other parameters",
                saw=f"expected [{self.size}], got {list(array.shape)}",
            )
        padded = np.concatenate([array, np.zeros(self._padding, array.dtype)])
        return np.split(padded, self._ranks)[self._rank]


def _by_kind(params: Iterable[Parameter]) -> list[list[Parameter]]:
    """Parameters of equal element type and device, in their order."""
    found: dict[Any, list[Parameter]] = {}
    for param in params:
        found.setdefault(param._kind, []).append(param)
    return list(found.values())
