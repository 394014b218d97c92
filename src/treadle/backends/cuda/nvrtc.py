"""CUDA C++ to cubin by NVIDIA's run-time compiler; no GPU and no driver is needed.

The result is machine code of exactly one architecture. PTX, which the driver would translate, is
never made: a compiler newer than the driver writes PTX that the driver does not know.
"""

from __future__ import annotations

from functools import cache

from cuda.bindings import nvrtc
from cuda.core import Program, ProgramOptions

from treadle.base.errors import CompileError

STANDARD = "c++17"
_LINES = 8
"""Lines of the compiler's complaint that an error shows."""


def options_for(architecture: str) -> ProgramOptions:
    """Return options that fix what rounding depends on: nothing is contracted, IEEE 754's division
    and roots.
    """
    return ProgramOptions(
        name="treadle.cu",
        arch=architecture,
        std=STANDARD,
        fma=False,
        ftz=False,
        prec_div=True,
        prec_sqrt=True,
        disable_warnings=True,
    )


def to_cubin(source: str, architecture: str) -> bytes:
    """Machine code for an architecture such as "sm_90a".

    Raises:
        CompileError: the compiler refuses the source, or is not installed.
    """
    try:
        code = Program(source, "c++", options_for(architecture)).compile("cubin").code
    except Exception as error:  # the package's classes are not public
        raise _failure(error, architecture) from error
    if not isinstance(code, bytes):
        raise CompileError("nvrtc", "the compiler gave no code", saw=type(code).__name__)
    return code


def compiler_number() -> int:
    """The compiler's version as a number such as 13050; 0 where it is not installed."""
    try:
        _, major, minor = nvrtc.nvrtcVersion()
    except Exception:  # the package's classes are not public
        return 0
    return 1000 * int(major) + 10 * int(minor)


@cache
def compiler_version() -> str:
    """The compiler's version, which is part of the key of what it made.

    Raises:
        CompileError: it is not installed.
    """
    try:
        status, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:
        raise _failure(error, "") from error
    return f"nvrtc {major}.{minor} ({int(status)})"


def _failure(error: Exception, architecture: str) -> CompileError:
    complaint = str(error)
    if ("nvrtc" in complaint and "Failure finding" in complaint) or "DynamicLib" in repr(error):
        hint = "pip install 'treadle[cuda]', or nvidia-cuda-nvrtc alone"
        return CompileError("nvrtc", "NVIDIA's run-time compiler is not installed", hint=hint)
    lines = [line for line in complaint.splitlines() if line.strip()][:_LINES]
    where = f"nvrtc {architecture}"
    return CompileError(where, "a generated kernel does not compile", saw="\n        ".join(lines))
