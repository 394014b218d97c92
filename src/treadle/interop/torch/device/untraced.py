"""Kernels that PyTorch's compiler leaves alone.

Code between two graphs runs while Dynamo looks at every frame of Python. A kernel in Python, and
whatever a backend runs for it, would be taken for the user's code and captured.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from treadle.interop.torch.device import private

P = ParamSpec("P")
R = TypeVar("R")


def untraced(kernel: Callable[P, R]) -> Callable[P, R]:
    """Return a kernel that runs with nobody looking at its frames."""
    switch: Any = private.set_eval_frame

    @functools.wraps(kernel)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        before = switch(None)
        if before is None:
            return kernel(*args, **kwargs)
        try:
            return kernel(*args, **kwargs)
        finally:
            switch(before)

    return call


_PASSED: set[str] = set()


def pass_over(*names: str) -> None:
    """Make Dynamo skip all files of modules, or of packages.

    A script is not skipped, even if it has a backend in it: its functions are to be compiled. Nor
    is a module without a spec, whose files are not known.
    """
    for name in names:
        module = sys.modules.get(name)
        is_found = module is None or getattr(module, "__spec__", None) is not None
        if name not in _PASSED and name != "__main__" and is_found:
            _PASSED.add(name)
            private.skip_files_of(name)
