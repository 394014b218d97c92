"""Modules of PyTorch, given by the user, as what converts them needs them: arrays in and out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from treadle.base.array import Array
from treadle.base.errors import LoadError
from treadle.interop.torch.arrays import to_array, to_tensor
from treadle.interop.torch.exported import quiet_torch


def is_torch_module(value: object) -> bool:
    """Return whether a value is a module of PyTorch."""
    return isinstance(value, torch.nn.Module)


def state_of(module: torch.nn.Module) -> dict[str, Array]:
    """Parameters and buffers by name, on the module's memory."""
    return {name: to_array(tensor) for name, tensor in module.state_dict().items()}


def handles_of(module: torch.nn.Module) -> dict[str, object]:
    """Parameters and buffers themselves by name; tied ones are one object."""
    return dict(module.state_dict(keep_vars=True))


def load_state(module: torch.nn.Module, values: Mapping[str, Array]) -> None:
    """Give parameters and buffers new values, those that there are."""
    copies = {name: to_tensor(np.array(array)) for name, array in values.items()}
    module.load_state_dict(copies, strict=False)


def export_module(module: torch.nn.Module, arrays: Sequence[Array]) -> ExportedProgram:
    """`torch.export` of a module for inference on inputs like these.

    Raises:
        LoadError: PyTorch cannot export it.
    """
    given = tuple(to_tensor(np.array(array)) for array in arrays)
    try:
        with quiet_torch():
            return torch.export.export(module.eval(), given)
    except Exception as error:  # the user's code runs in it
        text = str(error).strip().partition("\n")[0]
        raise LoadError(
            type(module).__name__,
            f"torch.export cannot export it: {text or type(error).__name__}",
            hint="call torch.export.export on it yourself to see all that it says",
        ) from error


def results_of(callee: Any, arrays: Sequence[Array]) -> list[Array]:
    """The tensors that a module or an exported program returns for these inputs, as arrays."""
    run = callee.module() if isinstance(callee, ExportedProgram) else callee
    with torch.no_grad():
        found = run(*(to_tensor(np.array(array)) for array in arrays))
    tensors = [leaf for leaf in pytree.tree_leaves(found) if isinstance(leaf, torch.Tensor)]
    return [np.array(to_array(tensor)) for tensor in tensors]


def version() -> str:
    """Return the version of PyTorch."""
    return str(torch.__version__)
