"""Treadle's devices as devices of PyTorch: `treadle:0` is the host, others follow in a fixed order.

`import treadle.torch` registers them, in Python alone: PyTorch's own key for devices that it does
not know, tensors with real storages, kernels, and one fallback that runs PyTorch's CPU kernels on
the same memory. docs/design/109-torch-devices.md has the reasons.
"""

from treadle.interop.torch.device.registration import register

__all__ = ["register"]
