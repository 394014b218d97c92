"""Optimizers, learning rate schedulers and gradient clipping."""

from __future__ import annotations

from treadle.optimizer.adadelta import Adadelta
from treadle.optimizer.adagrad import Adagrad
from treadle.optimizer.adam import Adam
from treadle.optimizer.adamw import AdamW
from treadle.optimizer.clip_grad import clip_grad_norm, clip_grad_value
from treadle.optimizer.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LRScheduler,
    MultiStepLR,
    StepLR,
)
from treadle.optimizer.optimizer import Optimizer
from treadle.optimizer.sgd import SGD

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "CosineAnnealingLR",
    "LRScheduler",
    "LambdaLR",
    "MultiStepLR",
    "Optimizer",
    "StepLR",
    "clip_grad_norm",
    "clip_grad_value",
]
