"""PyTorch programs on Treadle: as a backend of its compiler, and exported programs as modules.

`torch.compile(model, backend="treadle")` runs what PyTorch captures; `from_exported` and
`load_exported` make modules of what `torch.export` wrote. Tried with PyTorch 2.13.
"""

from treadle.interop.torch.backend import Left, backend, left_to_torch
from treadle.interop.torch.exported import (
    ExportedModel,
    from_exported,
    load_exported,
    read_exported,
)

__all__ = [
    "ExportedModel",
    "Left",
    "backend",
    "from_exported",
    "left_to_torch",
    "load_exported",
    "read_exported",
]
