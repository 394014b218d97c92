"""Models on their way to where they run: native libraries, and files that hold native code."""

from treadle.deploy.library import Library, compiler_command, write_library
from treadle.deploy.offline import compile_offline
from treadle.engine.offline import OfflineModel, load_offline

__all__ = [
    "Library",
    "OfflineModel",
    "compile_offline",
    "compiler_command",
    "load_offline",
    "write_library",
]
