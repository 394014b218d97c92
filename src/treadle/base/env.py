"""Environment variables, all read here so that one table can list them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: names in order of precedence, default and meaning."""

    names: tuple[str, ...]
    default: str
    meaning: str

    def get(self) -> str:
        """The first name that is set to something, else the default."""
        return next((os.environ[n] for n in self.names if os.environ.get(n)), self.default)

    def source(self) -> str:
        """The name the value came from, for error messages; `""` for the default."""
        return next((n for n in self.names if os.environ.get(n)), "")


DEFAULT_DEVICE = Variable(
    ("MGE_DEFAULT_DEVICE", "TREADLE_DEFAULT_DEVICE"), "xpux", "device of new tensors"
)
BACKENDS = Variable(
    ("TREADLE_BACKENDS",), "", "comma-separated allow-list of backends, or 'off' for none foreign"
)
FALLBACK = Variable(
    ("TREADLE_FALLBACK",), "warn", "ops a device lacks: 'warn' once, 'silent', or 'error'"
)
DUMP = Variable(
    ("TREADLE_DUMP",),
    "",
    "stages and passes whose results are written as text; 'kernels' for code; 'all'",
)
CHECK = Variable(("TREADLE_CHECK",), "0", "1 verifies graphs after every pass and plans of memory")
FUSION_SWITCH = Variable(
    ("TREADLE_FUSION_SWITCH",), "", "file that turns rewrites and groups of ops off, by name"
)
FORCE_FALLBACK = Variable(
    ("TREADLE_FORCE_FALLBACK",), "", "comma-separated ops that compiled programs leave to NumPy"
)
CPU_TARGET = Variable(
    ("TREADLE_CPU_TARGET",), "", "instructions the CPU backend may use: generic, avx2, avx512, neon"
)
NUM_THREADS = Variable(
    ("TREADLE_NUM_THREADS",), "", "threads of the CPU backend; the cores this process may use"
)
CACHE_DIR = Variable(
    ("TREADLE_CACHE_DIR",), "", "directory of compiled code; ~/.cache/treadle if left out"
)
LOG_LEVEL = Variable(("MEGENGINE_LOGGING_LEVEL", "TREADLE_LOG_LEVEL"), "", "logging level")

ALL = (
    DEFAULT_DEVICE,
    BACKENDS,
    FALLBACK,
    DUMP,
    CHECK,
    FUSION_SWITCH,
    FORCE_FALLBACK,
    CPU_TARGET,
    NUM_THREADS,
    CACHE_DIR,
    LOG_LEVEL,
)


def cache_directory() -> Path:
    """Where compiled code is kept: the named directory, else `treadle` in the user's cache."""
    named = CACHE_DIR.get()
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "treadle"
