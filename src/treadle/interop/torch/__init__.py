"""PyTorch programs on Treadle's engine: `torch.compile(model, backend="treadle")`.

Needs PyTorch 2.4 or later.
"""

from treadle.interop.torch.backend import Left, backend, left_to_torch

__all__ = ["Left", "backend", "left_to_torch"]
