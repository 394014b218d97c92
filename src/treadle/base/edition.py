"""`treadle-lite`, the part of Treadle that runs model files: what is left out of it says so.

`tools/lite_wheel.py` makes that distribution out of the same source, and writes the names of its
backends into `version`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import ModuleType

from treadle.base.version import LITE

DISTRIBUTION = "treadle" if LITE is None else "treadle-lite"
COMPILED = "compiled" if LITE is None else "run by NumPy"
"""The way a graph runs on the host where there is no native code of it."""
_ONLY_IN_TREADLE = "tensor.py"


class LeftOutError(ModuleNotFoundError):
    """A module of Treadle that `treadle-lite` has not."""


def left_out(name: str) -> str:
    """The message for a name that is asked for in vain, such as `treadle.module`."""
    _, _, backend = name.partition("treadle.backends.")
    if backend:
        backend = backend.partition(".")[0]
        switch = ",".join((*(LITE or ()), backend))
        advice = f"build it with BACKENDS={switch} (make lite-wheel), or install treadle instead"
    else:
        advice = "it runs model files and makes none; install treadle instead"
    return f"{name} is not in treadle-lite: {advice}"


class _Finder:
    """Asked for a module when nobody else has found it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """Raise LeftOutError for a module of Treadle that is left out; find nothing else."""
        if name.startswith("treadle."):
            # Without `name`: `from treadle import module` would swallow the error if it had one.
            raise LeftOutError(left_out(name))


def install(folder: str) -> None:
    """Make imports of modules that are left out raise an error that names the distribution.

    Args:
        folder: where the package is.

    Raises:
        ImportError: all of Treadle is in this folder, too.
    """
    if os.path.exists(os.path.join(folder, _ONLY_IN_TREADLE)):
        raise ImportError(
            f"treadle and treadle-lite are both installed in {os.path.dirname(folder)}, and each "
            "owns the package `treadle`: uninstall both, then install one of them"
        )
    sys.meta_path.append(_Finder())


__all__ = ["COMPILED", "DISTRIBUTION", "LeftOutError", "install", "left_out"]
