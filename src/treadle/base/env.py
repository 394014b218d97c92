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
    ("TREADLE_FALLBACK",),
    "warn",
    "ops a device lacks: 'warn' once, 'silent', or 'error'; 'warn,sort=silent' for one op else",
)
RETRY = Variable(
    ("TREADLE_RETRY",), "0", "1 runs ops on the host that fail on a device, and reports them"
)
KERNEL = Variable(
    ("TREADLE_KERNEL",), "", "op=implementation pairs, separated by commas, that eager ops must use"
)
TRACE_DISPATCH = Variable(
    ("TREADLE_TRACE_DISPATCH",), "0", "1 logs every new decision about who runs an op"
)
SYNC = Variable(
    ("TREADLE_SYNC",), "0", "1 waits for the device after every op, so that errors are at the op"
)
COMPARE = Variable(
    ("TREADLE_COMPARE",),
    "",
    "'cpu' compares every eager op with the host, and stops where they differ",
)
REPLAY = Variable(
    ("TREADLE_REPLAY",), "", "directory of scripts that run again what failed or differed"
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
ENGINES = Variable(
    ("TREADLE_ENGINES",), "", "comma-separated engines that compiled programs use, best first"
)
OPENVINO_PRECISION = Variable(
    ("TREADLE_OPENVINO_PRECISION",), "f32", "how OpenVINO computes: f32, int8, bf16 or f16"
)
FORCE_FALLBACK = Variable(
    ("TREADLE_FORCE_FALLBACK",),
    "",
    "comma-separated ops that are left to the host, and there to NumPy",
)
CPU_TARGET = Variable(
    ("TREADLE_CPU_TARGET",),
    "",
    "instructions the CPU backend may use: generic, avx2, avx512, neon, neon-sdot, neon-dot",
)
BFLOAT16 = Variable(
    ("TREADLE_BFLOAT16",),
    "fast",
    "products of bfloat16: fast, or exact (in float32, subnormal numbers included)",
)
FASTRUN_CACHE_TYPE = Variable(
    ("MGE_FASTRUN_CACHE_TYPE",), "MEMORY", "store of `utils.persistent_cache`: MEMORY, FILE, REDIS"
)
FASTRUN_CACHE_DIR = Variable(("MGE_FASTRUN_CACHE_DIR",), "", "directory of that store's file")
FASTRUN_CACHE_URL = Variable(("MGE_FASTRUN_CACHE_URL",), "", "address of that store's server")
TORCH_HOT = Variable(
    ("TREADLE_TORCH_HOT",),
    "32",
    "calls of a kind after which an operator of PyTorch on our devices is compiled; 0 for never",
)
NUM_THREADS = Variable(
    ("TREADLE_NUM_THREADS",), "", "threads of the CPU backend; the cores this process may use"
)
OPENCL_OPTIONS = Variable(("TREADLE_OPENCL_OPTIONS",), "", "further options of the OpenCL compiler")
POCL_SPECIALIZATION = Variable(
    ("POCL_WORK_GROUP_SPECIALIZATION",), "", "PoCL's own; set to 0 unless it is set"
)
CACHE_DIR = Variable(
    ("TREADLE_CACHE_DIR",), "", "directory of compiled code; ~/.cache/treadle if left out"
)
CONFIG_DIR = Variable(
    ("TREADLE_CONFIG_DIR",),
    "",
    "directory of this user's key and of keys to trust; ~/.config/treadle if left out",
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
C_COMPILER = Variable(("CC",), "cc", "compiler of custom ops in C and of libraries")
CXX_COMPILER = Variable(("CXX",), "c++", "compiler of custom ops in C++")
CUDA_COMPILER = Variable(("CUDACXX",), "nvcc", "compiler of custom ops in CUDA")
MAX_IMAGE_PIXELS = Variable(
    ("TREADLE_MAX_IMAGE_PIXELS",), "178956970", "images with more pixels are refused"
)
COMM_TIMEOUT = Variable(
    ("TREADLE_COMM_TIMEOUT",), "600", "seconds that a process waits for others of its group"
)
MPIEXEC = Variable(
    ("TREADLE_MPIEXEC",), "", "command that starts processes: of the environment, or of the path"
)
CUDA_TF32 = Variable(
    ("TREADLE_CUDA_TF32",), "0", "1 rounds operands of float32 products on GPUs to 10 bits: faster"
)
CUDA_LIBRARIES = Variable(
    ("TREADLE_CUDA_LIBRARIES",),
    "cublasLt,cudnn,nccl",
    "libraries of NVIDIA's that are used on GPUs where they are installed",
)
CUDA_GRAPHS = Variable(
    ("TREADLE_CUDA_GRAPHS",), "1", "0 submits a program's launches on NVIDIA GPUs one by one"
)
SERVE_TOKEN = Variable(
    ("TREADLE_SERVE_TOKEN",), "", "token that `treadle serve` asks of requests; none if left out"
)
LANGUAGE = Variable(
    ("TREADLE_LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"),
    "en",
    "'zh' and what begins so tells errors in Chinese as well",
)
TRACEBACK = Variable(
    ("TREADLE_TRACEBACK",),
    "short",
    "'full' shows Treadle's own frames in tracebacks of errors that nobody catches",
)
LOG_LEVEL = Variable(("MEGENGINE_LOGGING_LEVEL", "TREADLE_LOG_LEVEL"), "", "logging level")

ALL = tuple([found for found in tuple(globals().values()) if isinstance(found, Variable)])
"""Every variable, in the order of this page."""


def foreign(name: str) -> str | None:
    """A variable that another program set for its own ends, such as MPI's launchers."""
    return os.environ.get(name)


def cache_directory() -> Path:
    """Return the directory of compiled code: the one that is named, else `treadle` in the user's
    cache.
    """
    named = CACHE_DIR.get()
    return Path(named) if named else _user_cache() / "treadle"


def config_directory() -> Path:
    """Return the directory of this user's key and of trusted ones: `treadle` in the user's
    settings.
    """
    named, base = CONFIG_DIR.get(), os.environ.get("XDG_CONFIG_HOME", "")
    if named:
        return Path(named)
    return (Path(base) if os.path.isabs(base) else Path.home() / ".config") / "treadle"


def home_directory() -> Path:
    """Return the directory of downloads, which is MegEngine's."""
    named = HOME.get()
    return Path(named).expanduser() if named else data_directory()


def data_directory() -> Path:
    """Return the directory of data sets if none is named: `megengine` in the user's cache."""
    return _user_cache() / "megengine"


def visible_devices(backend: str) -> tuple[str, str | None]:
    """The variable that says which devices of a backend are seen, and its value; None: unset."""
    name = f"TREADLE_{backend.upper().replace('-', '_')}_VISIBLE_DEVICES"
    return name, os.environ.get(name)


def settings() -> dict[str, str]:
    """Return the values that are set, by name; of variables that look like ours, too."""
    known = {name for variable in ALL for name in variable.names}
    ours = {n: v for n, v in os.environ.items() if n in known or n.startswith("TREADLE_")}
    return {name: ours[name] for name in sorted(ours)}


def of_child(changes: Mapping[str, str], without: Iterable[str] = ()) -> dict[str, str]:
    """The environment of a process to start: this one's, with changes and without some names."""
    left_out = frozenset(without)
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, **changes}


def add_python_path(folder: Path) -> None:
    """Put a folder first on the module path of Python processes started from here on."""
    known = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), known]))


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base) if os.path.isabs(base) else Path.home() / ".cache"
