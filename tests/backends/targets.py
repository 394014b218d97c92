"""Programs and kernels compiled for a target that a test names, whatever the host's best one is."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from tests.backends.codegen.execution import RUNNABLE

from treadle.backends.codegen.target import TARGETS
from treadle.backends.cpu.compiler import NativeCompiler
from treadle.backends.cpu.native import toolchain
from treadle.backends.cpu.toolchain import Toolchain
from treadle.engine.targets import compiled

HERE = tuple(t.name for t in RUNNABLE)
"""The targets that this processor can run."""


@functools.cache
def compiler_for(name: str) -> NativeCompiler:
    """The compiler of programs for one of them."""
    return NativeCompiler(Toolchain(TARGETS[name], toolchain().cache))


@contextmanager
def compiling_for(name: str) -> Iterator[None]:
    """Whole programs are compiled for a target; single ops run as ever."""
    with mock.patch.object(compiled, "find_compiler", lambda options, kind: compiler_for(name)):
        yield
