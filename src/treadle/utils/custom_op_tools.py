"""Building custom ops from C, C++ and CUDA, and checking them; `treadle.utils.custom` runs them."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from treadle.base.env import (
    C_COMPILER,
    CUDA_COMPILER,
    CUSTOM_OP_DIR,
    CXX_COMPILER,
    Variable,
    cache_directory,
)
from treadle.base.errors import CompileError
from treadle.base.files.ownership import exposed, is_own, make_private
from treadle.base.log import get_logger
from treadle.utils import custom
from treadle.utils.custom import CudaKernel, CustomOp
from treadle.utils.custom_op_checks import check_gradient, check_op

__all__ = [
    "CudaKernel",
    "CustomOp",
    "build",
    "build_and_load",
    "check_gradient",
    "check_op",
    "include_dir",
]

_FLAGS = ["-O3", "-fPIC", "-fvisibility=hidden"]
_STANDARD = "-std=c++17"
_CXX = (".cc", ".cpp", ".cxx")
_HEADERS = ("treadle_op.h", "treadle_op.hpp")
_INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
_MOST_LINES = 60
"""Lines of what a compiler says that an error shows."""


def include_dir() -> str:
    """The directory of `treadle_op.h`."""
    return str(Path(__file__).parent)


def build(
    name: str,
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    extra_cflags: Sequence[str] = (),
    extra_cuda_cflags: Sequence[str] = (),
    extra_ldflags: Sequence[str] = (),
    extra_include_paths: Sequence[str] = (),
    with_cuda: bool | None = None,
    build_dir: str | os.PathLike[str] | None = None,
    verbose: bool = False,
    abi_tag: int | None = None,
) -> str:
    """Compile sources of ops to a shared library with the system's compilers; returns its path.

    What is built already, of the same texts with the same compilers and flags, is not built again.
    Headers that the texts include by `#include "..."` count, those of the system do not.

    Args:
        name: of the library.
        sources: files in C (`.c`), C++17 (`.cc`, `.cpp`, `.cxx`) and CUDA (`.cu`), which include
            "treadle_op.h" or "treadle_op.hpp".
        extra_cflags, extra_cuda_cflags: more arguments for the compilers of C and C++, and for
            nvcc; another `-std=` takes the place of C++17.
        extra_ldflags: more arguments for linking, behind the objects.
        extra_include_paths: more directories of headers.
        build_dir: where the library is put; `MGE_CUSTOM_OP_DIR` or the cache if left out. One that
            others can write to is not used, but a temporary one; nor is a library of others.
        verbose: log the compilers' commands.
        with_cuda: link CUDA's runtime; if left out, where there are sources in CUDA.
        abi_tag: of MegEngine's signature; the interface is C's, so that compilers need not match.

    Raises:
        FileNotFoundError: a source is missing.
        ValueError: a source is in none of these languages, or there is none.
        CompileError: there is no compiler, or it fails; the message has what it said.
    """
    given = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    files = [Path(s).resolve() for s in given]
    paths = [Path(include_dir()), *(Path(p).resolve() for p in extra_include_paths)]
    cuda = any(f.suffix == ".cu" for f in files) if with_cuda is None else with_cuda
    includes = [f"-I{path}" for path in paths]
    commands = [
        _command(f, [*includes, *extra_cflags], [*includes, *extra_cuda_cflags]) for f in files
    ]
    if not commands:
        raise ValueError("build takes one source at least")
    linker = _linker(files, cuda)
    texts = [*(Path(include_dir(), h).read_bytes() for h in _HEADERS), *_texts(files, paths)]
    said = repr((commands, linker, list(extra_ldflags))).encode()
    digest = hashlib.sha256(b"\0".join([said, *texts])).hexdigest()[:16]
    folder = Path(build_dir or CUSTOM_OP_DIR.get() or cache_directory() / "custom_ops")
    library = _private(folder) / f"{name}-{digest}.so"
    if not _is_built(library):
        _compile(commands, [*linker, *extra_ldflags], library, verbose)
    return str(library)


def _command(file: Path, flags: Sequence[str], cuda_flags: Sequence[str]) -> list[str]:
    """Return the command that compiles a source, but for the object it makes."""
    if file.suffix == ".cu":
        standard = [] if any(f.startswith("-std=") for f in cuda_flags) else [_STANDARD]
        hidden = ["-O3", "-Xcompiler", "-fPIC,-fvisibility=hidden", "-cudart", "none"]
        return [*_compiler(CUDA_COMPILER), *standard, *hidden, *cuda_flags, "-c", str(file)]
    if file.suffix == ".c":
        return [*_compiler(C_COMPILER), *_FLAGS, *flags, "-c", str(file)]
    if file.suffix not in _CXX:
        raise ValueError(f"{file} is not a source in C (.c), C++ ({', '.join(_CXX)}) or CUDA (.cu)")
    standard = [] if any(f.startswith("-std=") for f in flags) else [_STANDARD]
    return [*_compiler(CXX_COMPILER), *_FLAGS, *standard, *flags, "-c", str(file)]


def _linker(files: Sequence[Path], cuda: bool) -> list[str]:
    """Return the command that links the objects."""
    if cuda:
        # CUDA's runtime is linked in, so that the library opens where there is no toolkit.
        return [*_compiler(CUDA_COMPILER), "-shared", "-cudart", "static"]
    plain = all(f.suffix == ".c" for f in files)
    return [*_compiler(C_COMPILER if plain else CXX_COMPILER), "-shared"]


def _texts(files: Sequence[Path], paths: Sequence[Path]) -> list[bytes]:
    """The sources, and the headers that they include of their own folders and `paths`."""
    found: dict[Path, bytes] = {}
    waiting = list(reversed(files))
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found[file] = text = file.read_bytes()
        for name in _INCLUDE.findall(text):
            places = [folder / os.fsdecode(name) for folder in (file.parent, *paths)]
            waiting += [p.resolve() for p in places if p.is_file()][:1]
    return list(found.values())


def _private(folder: Path) -> Path:
    """The folder, or a temporary one where others could put libraries into it."""
    make_private(folder)
    folder = folder.resolve()
    problem = exposed(folder)
    if not problem:
        return folder
    if folder not in _INSTEAD:
        _INSTEAD[folder] = tempfile.TemporaryDirectory(prefix="treadle-ops-")
        get_logger().warning(
            "the folder of custom ops %s %s: they are built in a temporary one; name a folder of "
            "your own in build_dir or %s",
            *(folder, problem, CUSTOM_OP_DIR.names[0]),
        )
    return Path(_INSTEAD[folder].name)


_INSTEAD: dict[Path, tempfile.TemporaryDirectory[str]] = {}


def _is_built(library: Path) -> bool:
    """Return whether the library is there, and nobody else has written it."""
    try:
        return is_own(os.lstat(library))
    except FileNotFoundError:
        return False


def _compiler(variable: Variable) -> list[str]:
    """The command of one of the system's compilers.

    Raises:
        CompileError: it is not there.
    """
    words = shlex.split(variable.get())
    if not words or shutil.which(words[0]) is None:
        raise CompileError(
            "custom op",
            f"there is no compiler {words[0] if words else ''!r}",
            hint=f"install {_INSTALL[variable.names[0]]}, or name one in {variable.names[0]}",
        )
    return words


_INSTALL = {"CC": "gcc or clang", "CXX": "g++ or clang++", "CUDACXX": "NVIDIA's CUDA toolkit"}


def _compile(
    commands: Sequence[list[str]], linking: list[str], library: Path, verbose: bool
) -> None:
    """Run the compilers; the library appears only once it is complete."""
    with tempfile.TemporaryDirectory(prefix="build-", dir=library.parent) as folder:
        objects = [f"{folder}/{number}.o" for number in range(len(commands))]
        for command, made in zip(commands, objects, strict=True):
            _run([*command, "-o", made], verbose)
        at = next((i for i, flag in enumerate(linking) if flag == "-shared"), 0) + 1
        unfinished = f"{folder}/{library.name}"
        _run([*linking[:at], "-o", unfinished, *objects, *linking[at:]], verbose)
        os.replace(unfinished, library)


def _run(command: list[str], verbose: bool) -> None:
    if verbose:
        get_logger().warning("custom op: %s", shlex.join(command))
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        rest = [f"... and {len(lines) - _MOST_LINES} lines"] if len(lines) > _MOST_LINES else []
        words = "\n".join([*lines[:_MOST_LINES], *rest])
        raise CompileError("custom op", f"{command[0]} failed:\n{words}")


def build_and_load(
    name: str,
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    extra_cflags: Sequence[str] = (),
    extra_cuda_cflags: Sequence[str] = (),
    extra_ldflags: Sequence[str] = (),
    extra_include_paths: Sequence[str] = (),
    with_cuda: bool | None = None,
    build_dir: str | os.PathLike[str] | None = None,
    verbose: bool = False,
    abi_tag: int | None = None,
) -> str:
    """`build`, then `custom.load`: the ops are attributes of `treadle.utils.custom` afterwards."""
    path = build(
        name,
        sources,
        extra_cflags,
        extra_cuda_cflags,
        extra_ldflags,
        extra_include_paths,
        with_cuda,
        build_dir,
        verbose,
        abi_tag,
    )
    custom.load(path)
    return path
