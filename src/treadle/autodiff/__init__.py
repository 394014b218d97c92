"""Gradients of eager computations: `GradManager`, user gradients, anomaly detection."""

from treadle.autodiff.anomaly import detect_anomaly
from treadle.autodiff.function import Function
from treadle.autodiff.grad_manager import (
    GradManager,
    GradManagerGroup,
    get_backwarding_grad_manager,
)
from treadle.autodiff.recompute import recompute
from treadle.autodiff.tape import no_grad, stop_gradient

__all__ = [
    "Function",
    "GradManager",
    "GradManagerGroup",
    "detect_anomaly",
    "get_backwarding_grad_manager",
    "no_grad",
    "recompute",
    "stop_gradient",
]
