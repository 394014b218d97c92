"""Building custom ops from C, and checking their gradients; `treadle.utils.custom` runs them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from treadle.autodiff import GradManager
from treadle.base.env import C_COMPILER, CUSTOM_OP_DIR, CXX_COMPILER, cache_directory
from treadle.base.errors import CompileError, NumericError, UnsupportedOp
from treadle.base.files.ownership import exposed, is_own, make_private
from treadle.base.log import get_logger
from treadle.tensor import Tensor
from treadle.utils import custom
from treadle.utils.custom import CustomOp

__all__ = ["CustomOp", "build", "build_and_load", "check_gradient", "include_dir"]

_FLAGS = ["-O3", "-fPIC", "-shared", "-fvisibility=hidden"]
_CXX = (".cc", ".cpp", ".cxx")


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
    """Compile sources of ops to a shared library with the system's compiler; returns its path.

    What is built already, of the same texts with the same compiler and flags, is not built again.

    Args:
        name: of the library.
        sources: files in C (`.c`) or C++ (`.cc`, `.cpp`, `.cxx`), which include "treadle_op.h".
        extra_cflags, extra_ldflags: more arguments for the compiler, before and after the sources.
        extra_include_paths: more directories of headers.
        build_dir: where the library is put; `MGE_CUSTOM_OP_DIR` or the cache if left out. One that
            others can write to is not used, but a temporary one; nor is a library of others.
        verbose: log the compiler's command.
        extra_cuda_cflags, with_cuda, abi_tag: of MegEngine's signature; CUDA sources are refused.

    Raises:
        UnsupportedOp: sources in CUDA.
        FileNotFoundError: a source is missing.
        CompileError: there is no compiler, or it fails; the message has what it said.
    """
    given = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    files = [Path(s).resolve() for s in given]
    if with_cuda or any(f.suffix == ".cu" for f in files):
        raise UnsupportedOp("custom op", "sources in CUDA cannot be built", saw=str(given))
    compiler = _compiler(any(f.suffix in _CXX for f in files))
    includes = [include_dir(), *map(str, extra_include_paths)]
    flags = [*_FLAGS, *extra_cflags, *(f"-I{path}" for path in includes)]
    texts = [f.read_bytes() for f in (Path(include_dir(), "treadle_op.h"), *files)]
    said = repr((compiler, flags, list(extra_ldflags))).encode()
    digest = hashlib.sha256(b"\0".join([said, *texts])).hexdigest()[:16]
    folder = Path(build_dir or CUSTOM_OP_DIR.get() or cache_directory() / "custom_ops")
    library = _private(folder) / f"{name}-{digest}.so"
    if not _is_built(library):
        _compile([*compiler, *flags, *map(str, files)], library, list(extra_ldflags), verbose)
    return str(library)


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
    """Whether the library is there, and nobody else has written it."""
    try:
        return is_own(os.lstat(library))
    except FileNotFoundError:
        return False


def _compiler(is_cxx: bool) -> list[str]:
    """The command of the system's compiler."""
    variable = CXX_COMPILER if is_cxx else C_COMPILER
    words = variable.get().split()
    if shutil.which(words[0]) is None:
        raise CompileError(
            "custom op",
            f"there is no compiler {words[0]!r}",
            hint=f"install gcc or clang, or name one in {variable.names[0]}",
        )
    return words


def _compile(command: list[str], library: Path, after: list[str], verbose: bool) -> None:
    """Run the compiler; the library appears only once it is complete."""
    unfinished = library.with_name(f"{library.name}.{os.getpid()}")
    full = [*command, "-o", str(unfinished), *after]
    if verbose:
        get_logger().warning("custom op: %s", " ".join(full))
    done = subprocess.run(full, capture_output=True, text=True, check=False)
    if done.returncode:
        unfinished.unlink(missing_ok=True)
        raise CompileError("custom op", f"{command[0]} failed:\n{done.stderr.strip()}")
    os.replace(unfinished, library)


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


def check_gradient(
    function: Callable[..., Any],
    *inputs: Any,
    step: float = 1e-2,
    tolerance: float = 2e-2,
    seed: int = 0,
) -> None:
    """Compare the gradients of a function with central differences, and raise where they differ.

    The function's results are projected on random numbers, so one pass covers them all.

    Args:
        function: takes tensors, gives a tensor or a tuple of them, and depends on nothing else.
        inputs: floating tensors (or what tensors are made of) at which to compare; in float64 a
            step of 1e-5 gives six digits.
        step: half of the distance over which differences are taken.
        tolerance: largest difference, relative to the largest gradient where that is above 1.
        seed: of the random numbers.

    Raises:
        NumericError: a gradient is missing or wrong; the message has operand, place and values.
    """
    tensors = [x if isinstance(x, Tensor) else Tensor(x) for x in inputs]
    rng = np.random.default_rng(seed)
    weights: list[np.ndarray[Any, Any]] = []

    def project(*given: Tensor) -> Tensor:
        found = function(*given)
        results = list(found) if isinstance(found, (tuple, list)) else [found]
        for y in results[len(weights) :]:
            weights.append(rng.standard_normal(y.shape))
        terms = [
            (y * y.constant(np.asarray(w, y.dtype))).sum()
            for y, w in zip(results, weights, strict=True)
        ]
        total: Tensor = sum(terms[1:], terms[0])
        return total

    wanted = [x.detach() for x in tensors]
    with GradManager().attach(wanted) as manager:
        manager.backward(project(*wanted))
    for number, x in enumerate(wanted):
        _compare(project, [t.detach() for t in wanted], number, x.grad, step, tolerance)


def _compare(
    project: Callable[..., Tensor],
    inputs: list[Tensor],
    number: int,
    grad: Tensor | None,
    step: float,
    tolerance: float,
) -> None:
    """One operand's gradient against differences."""
    x = inputs[number].numpy()
    if grad is None:
        raise NumericError("check_gradient", f"operand {number} has no gradient")
    found = grad.numpy().astype(np.float64)
    for place in np.ndindex(x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[place] += sign * step
            changed = [*inputs]
            changed[number] = Tensor(moved, dtype=x.dtype)
            ends.append(float(project(*changed)))
        slope = (ends[0] - ends[1]) / (2 * step)
        if not abs(found[place] - slope) <= tolerance * max(1.0, np.abs(found).max()):
            raise NumericError(
                "check_gradient",
                f"the gradient of operand {number} at {place} is {found[place]:g}, "
                f"differences give {slope:g}",
                hint="kinks near the inputs spoil differences; else look at the backward rule",
            )
