"""Devices in C for tests: built with the system's compiler, and installed as a plug-in."""

import shutil
from pathlib import Path

import pytest

from treadle.utils.custom_op_tools import build

PLUGIN = Path(__file__).resolve().parents[2] / "plugins" / "treadle-ctoy"
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def built(source: Path, folder: Path) -> str:
    """The path of the library of a source, which may include that of the plug-in."""
    paths = [str(PLUGIN)]
    flags = ["-Wall", "-Werror"]
    return build(source.stem, source, flags, (), ["-lm"], paths, build_dir=folder)


def module(library: str) -> str:
    """The text of a plug-in's module."""
    return (
        f"from treadle.backends.c_device import open_library\nbackend = open_library({library!r})\n"
    )
