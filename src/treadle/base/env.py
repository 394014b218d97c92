"""Environment variables, all read here so that one table can list them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
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

    def set(self, value: str) -> None:
        """Set it for this process, and those that it starts."""
        os.environ[self.names[0]] = value

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
FASTRUN_CACHE_TYPE = Variable(
    ("MGE_FASTRUN_CACHE_TYPE",), "MEMORY", "store of `utils.persistent_cache`: MEMORY, FILE, REDIS"
)
FASTRUN_CACHE_DIR = Variable(("MGE_FASTRUN_CACHE_DIR",), "", "directory of that store's file")
FASTRUN_CACHE_URL = Variable(("MGE_FASTRUN_CACHE_URL",), "", "address of that store's server")
NUM_THREADS = Variable(
    ("TREADLE_NUM_THREADS",), "", "threads of the CPU backend; the cores this process may use"
)
CACHE_DIR = Variable(
    ("TREADLE_CACHE_DIR",), "", "directory of compiled code; ~/.cache/treadle if left out"
)
HOME = Variable(
    ("MGE_HOME",), "", "directory of hub repositories and weights; ~/.cache/megengine if left out"
)
HUB_TRUST = Variable(
    ("TREADLE_HUB_TRUST",),
    "",
    "comma-separated repositories whose code the hub may run; '*' for all",
)
CUSTOM_OP_DIR = Variable(
    ("MGE_CUSTOM_OP_DIR",), "", "directory of built custom ops; a folder of TREADLE_CACHE_DIR"
)
C_COMPILER = Variable(("CC",), "cc", "compiler of custom ops in C")
CXX_COMPILER = Variable(("CXX",), "c++", "compiler of custom ops in C++")
MAX_IMAGE_PIXELS = Variable(
    ("TREADLE_MAX_IMAGE_PIXELS",), "178956970", "images with more pixels are refused"
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
    FASTRUN_CACHE_TYPE,
    FASTRUN_CACHE_DIR,
    FASTRUN_CACHE_URL,
    NUM_THREADS,
    CACHE_DIR,
    HOME,
    HUB_TRUST,
    CUSTOM_OP_DIR,
    C_COMPILER,
    CXX_COMPILER,
    MAX_IMAGE_PIXELS,
    LOG_LEVEL,
)


def cache_directory() -> Path:
    """Where compiled code is kept: the named directory, else `treadle` in the user's cache."""
    named = CACHE_DIR.get()
    return Path(named) if named else _user_cache() / "treadle"


def home_directory() -> Path:
    """Where what comes from the network is kept, in MegEngine's place for it."""
    named = HOME.get()
    return Path(named).expanduser() if named else data_directory()


def data_directory() -> Path:
    """Where data sets are kept if no place is named: `megengine` in the user's cache."""
    return _user_cache() / "megengine"


def of_child(changes: Mapping[str, str], without: Iterable[str] = ()) -> dict[str, str]:
    """The environment of a process to start: this one's, with changes and without some names."""
    left_out = frozenset(without)
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, **changes}


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base) if os.path.isabs(base) else Path.home() / ".cache"
