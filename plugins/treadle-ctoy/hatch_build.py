"""Compiles ctoy.c when a wheel is built, against the header of the Treadle that is installed."""

import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

from treadle.utils.custom_op_tools import build


class Compiled(BuildHookInterface):
    """Puts the library beside the module, in a wheel for this kind of machine."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        source = Path(self.root) / "ctoy.c"
        made = build("libctoy", source, extra_ldflags=["-lm"], build_dir=tempfile.mkdtemp())
        build_data["pure_python"], build_data["infer_tag"] = False, True
        build_data["force_include"][made] = "libctoy.so"
