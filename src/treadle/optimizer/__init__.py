"""Optimizers, learning rate schedulers and gradient clipping."""

from __future__ import annotations

import typing

from treadle.base import spelling
from treadle.optimizer.adadelta import Adadelta
from treadle.optimizer.adagrad import Adagrad
from treadle.optimizer.adam import Adam
from treadle.optimizer.adamw import AdamW
from treadle.optimizer.clip_grad import clip_grad_norm, clip_grad_value
from treadle.optimizer.lamb import LAMB, LAMBFp16
from treadle.optimizer.lr_by_course import OneCycleLR, ReduceLROnPlateau
from treadle.optimizer.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LRScheduler,
    MultiStepLR,
    StepLR,
)
from treadle.optimizer.optimizer import Optimizer
from treadle.optimizer.rmsprop import RMSprop
from treadle.optimizer.sgd import SGD
from treadle.optimizer.sharded import ShardedOptimizer

__all__ = [
    "LAMB",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "CosineAnnealingLR",
    "LAMBFp16",
    "LRScheduler",
    "LambdaLR",
    "MultiStepLR",
    "OneCycleLR",
    "Optimizer",
    "RMSprop",
    "ReduceLROnPlateau",
    "ShardedOptimizer",
    "StepLR",
    "clip_grad_norm",
    "clip_grad_value",
]

if not typing.TYPE_CHECKING:  # A type checker shall see the names that exist only.

    def __getattr__(name: str) -> typing.Any:
        advice = spelling.of_optimizer(name, __all__)
        raise AttributeError(
            f"module 'treadle.optimizer' has no attribute {name!r}{advice}", name=name
        )
