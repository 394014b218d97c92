"""Every name of PyTorch that this package uses and PyTorch does not promise to keep.

They are looked up in one place, so that a version in which one has moved says so at once.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from treadle.base.errors import LoadError

TRIED = "2.13"
NAMES = (
    "torch.utils.backend_registration._setup_privateuseone_for_python_backend",
    "torch._C._get_privateuse1_backend_name",
    "torch._C._acc.PrivateUse1Hooks",
    "torch._C._from_dlpack",
    "torch._C._to_dlpack",
    "torch._C.DispatchKeySet",
    "torch._C.DispatchKey.CPU",
    "torch._ops.OpOverload.redispatch",
    "torch._C._construct_storage_from_data_pointer",
    "torch._C._set_multithreading_enabled",
    "torch._C._ExcludeDispatchKeyGuard",
    "torch._C.DispatchKey.AutocastPrivateUse1",
    "torch._C._dispatch_get_registrations_for_dispatch_key",
    "torch._C._dispatch_has_kernel_for_dispatch_key",
    "torch._conj",
    "torch._neg_view",
    "torch.Tensor._is_zerotensor",
    "torch._C._dynamo.eval_frame.set_eval_frame",
    "torch._dynamo.trace_rules.add",
)


def found(path: str) -> Any:
    """Return the object of a dotted name.

    Raises:
        LoadError: this PyTorch has nothing of that name.
    """
    parts = path.split(".")
    try:
        here: Any = importlib.import_module(parts[0])
        for depth, part in enumerate(parts[1:], 2):
            if not hasattr(here, part):
                importlib.import_module(".".join(parts[:depth]))
            here = getattr(here, part)
    except (ImportError, AttributeError) as error:
        raise LoadError(
            "treadle.torch",
            f"PyTorch {torch.__version__} has no {path}, which devices are registered with",
            hint=f"use PyTorch {TRIED}, with which this was tried, or a newer Treadle",
        ) from error
    return here


def check() -> None:
    """Look for all of them before anything is registered.

    Raises:
        LoadError: one is not there.
    """
    for path in NAMES:
        found(path)


check()
setup: Any = torch.utils.backend_registration._setup_privateuseone_for_python_backend
slot_name: Any = torch._C._get_privateuse1_backend_name
Hooks: Any = torch._C._acc.PrivateUse1Hooks
from_dlpack: Any = torch._C._from_dlpack
to_dlpack: Any = torch._C._to_dlpack
storage_at: Any = torch._C._construct_storage_from_data_pointer
set_multithreading: Any = torch._C._set_multithreading_enabled
registrations: Any = torch._C._dispatch_get_registrations_for_dispatch_key
has_kernel: Any = torch._C._dispatch_has_kernel_for_dispatch_key
CPU_KEY: Any = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
AUTOCAST_KEY: Any = torch._C.DispatchKeySet(found("torch._C.DispatchKey.AutocastPrivateUse1"))
outside: Any = torch._C._ExcludeDispatchKeyGuard
conjugated: Any = torch._conj
negated: Any = torch._neg_view
set_eval_frame: Any = found("torch._C._dynamo.eval_frame.set_eval_frame")
skip_files_of: Any = found("torch._dynamo.trace_rules.add")
