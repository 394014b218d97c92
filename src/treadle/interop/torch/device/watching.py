"""PyTorch's modules and tensors for tools that watch ops: comparison, dumps, profiles.

Operators on our devices run as Treadle's ops, which such tools see. While one watches, it is told
of calls of `torch.nn.Module` as of Treadle's own modules, so that layers have their names.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
import torch

from treadle.base import loc
from treadle.base.observer import OBSERVER, read_by
from treadle.base.process import RUNTIME
from treadle.interop.torch.arrays import PARTS, to_array
from treadle.interop.torch.device.memory import host_alias
from treadle.interop.torch.device.places import NAME

_PLAIN: Any = torch.nn.Module.__call__


def _watched(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """`Module.__call__` while somebody watches; compiled modules are captured as they are."""
    watcher = OBSERVER.now
    if watcher is None or torch.compiler.is_compiling():
        return _PLAIN(self, *args, **kwargs)
    return watcher.module(self, args, partial(_PLAIN, self, *args, **kwargs))


def _follow() -> None:
    call = _PLAIN if OBSERVER.now is None else _watched
    if torch.nn.Module.__call__ is not call:
        torch.nn.Module.__call__ = call  # type: ignore[method-assign, unused-ignore]


def _array(value: Any) -> Any:
    """A tensor's elements as an array of their own; None of what is not a tensor."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    plain = value.detach()
    if plain.device.type == NAME:
        plain = host_alias(plain)
    if not plain.is_cpu:
        return None
    array = to_array(plain.resolve_conj().resolve_neg()).copy()
    if plain.dtype not in PARTS:
        return array
    return array.view(np.result_type(array.dtype, np.complex64))[..., 0]


def register() -> None:
    """Make modules and tensors of PyTorch visible to tools, and name lines outside of it."""
    loc.pass_over(os.path.dirname(os.path.abspath(torch.__file__)))
    read_by(_array)
    RUNTIME.after("launches", _follow)
    _follow()
