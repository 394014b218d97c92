"""Models on their way to where they run: native libraries."""

from treadle.deploy.library import Library, compiler_command, write_library

__all__ = ["Library", "compiler_command", "write_library"]
