"""Objects to shared libraries, by the linker of the system: no LLVM is imported for it."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from treadle.base.log import get_logger

_LINKERS = ("ld", "ld.lld", "mold", "ld.gold")
_FOR_OTHERS = ("{0}-linux-gnu-ld", "ld.lld", "mold")
"""Linkers that join objects for another architecture than this machine's."""
_FLAGS = ("-z", "noexecstack", "-z", "noseparate-code")
"""Constants share the pages of code: a masked load whose lanes are all off faults no page in, and
from a page that is not there it takes 300 cycles, every time (the 0s of a `isnan` without NaN)."""


@functools.cache
def linker(architecture: str = "") -> str | None:
    """The system's linker, or one for another architecture; None where there is none."""
    if sys.platform != "linux":
        return None
    names = [name.format(architecture) for name in _FOR_OTHERS] if architecture else _LINKERS
    return next((path for name in names if (path := shutil.which(name)) is not None), None)


def shared_library(objects: Sequence[bytes | memoryview], architecture: str = "") -> bytes | None:
    """The image of a shared library; None where there is no linker, or it fails.

    Equal objects give equal images: nothing in one tells when or where it was made.
    """
    program = linker(architecture)
    if program is None:
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="treadle-") as folder:
            names = [f"{number}.o" for number in range(len(objects))]
            for name, image in zip(names, objects, strict=True):
                Path(folder, name).write_bytes(image)
            command = [program, "-shared", *_FLAGS, "-o", "made.so", *names]
            subprocess.run(command, check=True, capture_output=True, cwd=folder)
            return Path(folder, "made.so").read_bytes()
    except (OSError, subprocess.CalledProcessError) as error:  # a full disk, among others
        get_logger().info("the linker fails, LLVM loads the objects: %s", error)
        return None
