"""Learning rates as functions of the epoch (or of whatever `step()` counts)."""

from __future__ import annotations

import abc
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from treadle.base.spelling import Constructed
from treadle.optimizer.optimizer import Optimizer


class LRScheduler(metaclass=Constructed):
    """Base of all schedulers; a subclass defines `get_lr` and lists what it saves.

    The constructor calls `step()` once, which sets the learning rates of epoch
    `current_epoch + 1`.

    Args:
        optimizer: whose parameter groups get their "lr" set; their first "lr" is kept in them as
            "initial_lr".
        current_epoch: the last epoch that is done; -1 to begin.

    Raises:
        TypeError: `optimizer` is not an optimizer.
        KeyError: `current_epoch` resumes but a group has no "initial_lr".
    """

    _saved: ClassVar[tuple[str, ...]] = ("current_epoch",)

    def __init__(self, optimizer: Optimizer, current_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                "optimizer argument given to the lr_scheduler should be Optimizer, got "
                f"{type(optimizer).__name__}"
            )
        self.optimizer = optimizer
        self.current_epoch = current_epoch
        for i, group in enumerate(optimizer.param_groups):
            if current_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{i}] "
                    "when resuming an optimizer"
                )
        self.base_lrs: list[float] = [group["initial_lr"] for group in optimizer.param_groups]
        self.step()

    @abc.abstractmethod
    def get_lr(self) -> list[float]:
        """Learning rates of all groups at `current_epoch`."""

    def step(self, epoch: int | None = None) -> None:
        """Go to the next epoch, or to `epoch`, and set the learning rates."""
        self.current_epoch = self.current_epoch + 1 if epoch is None else epoch
        for group, lr in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = lr

    def state_dict(self) -> dict[str, Any]:
        """The epoch and the scheduler's constants; the optimizer saves the learning rates."""
        return {name: getattr(self, name) for name in self._saved}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue where `state_dict()` was taken.

        Raises:
            KeyError: something is missing; nothing has changed then.
        """
        missing = [name for name in self._saved if name not in state_dict]
        if missing:
            raise KeyError(
                f"key {missing[0]!r} is not specified in state_dict when loading state dict"
            )
        for name in self._saved:
            setattr(self, name, state_dict[name])


class MultiStepLR(LRScheduler):
    """initial_lr * gamma ** (number of milestones reached).

    Args:
        optimizer: whose learning rates are set.
        milestones: epochs, in increasing order.
        gamma: the factor at each of them.
        current_epoch: the last epoch that is done; -1 to begin.

    Raises:
        ValueError: the milestones are not in order.
    """

    _saved = ("milestones", "gamma", "current_epoch")

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        current_epoch: int = -1,
    ) -> None:
        self.milestones = list(milestones)
        if self.milestones != sorted(self.milestones):
            raise ValueError(
                f"Milestones should be a list of increasing integers. Got {self.milestones}"
            )
        self.gamma = gamma
        super().__init__(optimizer, current_epoch)

    def get_lr(self) -> list[float]:
        """Learning rates of all groups at `current_epoch`."""
        factor = self.gamma ** bisect_right(self.milestones, self.current_epoch)
        return [base * factor for base in self.base_lrs]


class StepLR(LRScheduler):
    """initial_lr * gamma ** (epoch // step_size).

    Args:
        optimizer: whose learning rates are set.
        step_size: epochs between two drops, at least 1.
        gamma: the factor at each of them.
        current_epoch: the last epoch that is done; -1 to begin.

    Raises:
        ValueError: `step_size` is below 1.
    """

    _saved = ("step_size", "gamma", "current_epoch")

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, current_epoch: int = -1
    ) -> None:
        if step_size < 1:
            raise ValueError(f"step_size should be at least 1, got {step_size}")
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, current_epoch)

    def get_lr(self) -> list[float]:
        """Learning rates of all groups at `current_epoch`."""
        factor = self.gamma ** (self.current_epoch // self.step_size)
        return [base * factor for base in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """Linear warm-up, then half a cosine from initial_lr down to `eta_min`, then `eta_min`.

    Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts", 2017, without
    the restarts. Epoch e of the warm-up has initial_lr * (e + 1) / warmup.

    Args:
        optimizer: whose learning rates are set.
        t_max: epoch at which `eta_min` is reached, more than `warmup`.
        eta_min: the last learning rate.
        warmup: epochs of warm-up.
        current_epoch: the last epoch that is done; -1 to begin.

    Raises:
        ValueError: `t_max` is not above `warmup`, or `warmup` is negative.
    """

    _saved = ("t_max", "eta_min", "warmup", "current_epoch")

    def __init__(
        self,
        optimizer: Optimizer,
        t_max: int,
        eta_min: float = 0.0,
        warmup: int = 0,
        current_epoch: int = -1,
    ) -> None:
        if not 0 <= warmup < t_max:
            raise ValueError(f"0 <= warmup < t_max is needed, got warmup {warmup}, t_max {t_max}")
        self.t_max = t_max
        self.eta_min = eta_min
        self.warmup = warmup
        super().__init__(optimizer, current_epoch)

    def get_lr(self) -> list[float]:
        """Learning rates of all groups at `current_epoch`."""
        if self.current_epoch < self.warmup:
            return [base * (self.current_epoch + 1) / self.warmup for base in self.base_lrs]
        done = min(1.0, (self.current_epoch - self.warmup) / (self.t_max - self.warmup))
        share = (1.0 + math.cos(math.pi * done)) / 2.0
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]


class LambdaLR(LRScheduler):
    """initial_lr * factor(epoch); the function itself is not saved.

    Args:
        optimizer: whose learning rates are set.
        factor: from the epoch to a factor.
        current_epoch: the last epoch that is done; -1 to begin.
    """

    def __init__(
        self, optimizer: Optimizer, factor: Callable[[int], float], current_epoch: int = -1
    ) -> None:
        self.factor = factor
        super().__init__(optimizer, current_epoch)

    def get_lr(self) -> list[float]:
        """Learning rates of all groups at `current_epoch`."""
        scale = self.factor(self.current_epoch)
        return [base * scale for base in self.base_lrs]
