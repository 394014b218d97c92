"""`ClRenderer`: kernels as OpenCL C, built by the driver, launched through PyOpenCL."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyopencl as cl

from treadle.backends.api import Support, no, yes
from treadle.backends.codegen.kernel import c_opencl
from treadle.backends.codegen.kernel.ir import (
    Block,
    Branch,
    Instruction,
    KernelError,
    KernelModule,
    KernelRoutine,
    Loop,
)
from treadle.backends.codegen.target import Target
from treadle.backends.opencl.device import ClDevice, ClStream, translated
from treadle.backends.opencl.platforms import features_of, is_processor, target_of, versions_of
from treadle.backends.rendering import Argument
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.env import OPENCL_OPTIONS, cache_directory
from treadle.base.errors import CompileError
from treadle.runtime.api import Device, Stream

_SHARES = 4
"""Pieces per thread of a processor that a launch is split into, so that none waits for long."""
_MOST_SCRATCH = 256 << 20
"""Bytes of scratch memory of one launch; fewer items then run at a time."""


class Launchable:
    """A kernel object; it keeps its arguments from launch to launch.

    `slab` are the bytes of scratch memory that one item needs.
    """

    __slots__ = ("arguments", "kernel", "slab")

    def __init__(self, kernel: cl.Kernel, slab: int) -> None:
        self.kernel = kernel
        self.slab = slab
        self.arguments: tuple[Argument, ...] | None = None

    def give(self, arguments: tuple[Argument, ...], items: int, *first: cl.Buffer | int) -> None:
        """Set all arguments; numbers go fifty times as fast once their types are known."""
        values: list[cl.Buffer | int] = [*first]
        for argument in arguments:
            if isinstance(argument, int):
                values.append(argument)
            else:
                memory, offset = argument
                values += memory.buffer, memory.offset + offset
        values.append(items)
        if self.arguments is None:
            types = [np.int64 if isinstance(v, int) else None for v in values]
            self.kernel.set_arg_types(types)
        self.kernel.set_args(*values)
        self.arguments = arguments


class ClRenderer:
    """See `treadle.backends.rendering.Renderer`."""

    name = "opencl"

    def __init__(self, device: cl.Device, *, single: bool | None = None) -> None:
        self._device = device
        self._single = is_processor(device) if single is None else single
        self._target = target_of(device, self._single)
        self._context: cl.Context | None = None
        self._options = _options(device)
        self._lacks = frozenset([] if "float64" in features_of(device) else [dt.float64])
        parts = (
            versions_of(device),
            *self._options,
            repr(self._target),
            printer(),
            str(self._single),
        )
        self._fingerprint = "/".join(parts)
        self._supported: WeakKeyDictionary[KernelModule, Support] = WeakKeyDictionary()

    @property
    def target(self) -> Target:
        return self._target

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def supports(self, kernel: Any, /) -> Support:
        if self._single and not self._lacks:
            return yes()
        found: Support | None = self._supported.get(kernel)
        if found is None:
            found = self._supported[kernel] = self._asked(kernel)
        return found

    def _asked(self, kernel: KernelModule) -> Support:
        lacking = self._lacks & dtypes_of(kernel)
        if lacking:
            names = ", ".join(sorted(d.name for d in lacking))
            return no("device-feature", f"{self._device.name} has no {names}")
        try:
            self.render([kernel])
        except KernelError as error:
            return no("device-feature", str(error))
        return yes()

    def render(self, kernels: Sequence[Any], /) -> str:
        return c_opencl.opencl_source(kernels, self._target, single=self._single)

    def compile(self, source: str, /) -> bytes:
        if self._context is None:
            self._context = cl.Context([self._device])
        program = cl.Program(self._context, source)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # compilers chat
                program.build(list(self._options))
            binaries: Any = program.get_info(cl.program_info.BINARIES)
        except cl.Error as error:
            raise CompileError(
                self.name,
                f"{self._device.platform.name} does not accept a kernel: {error}",
                hint="report it with the source, which TREADLE_DUMP=kernels writes",
            ) from error
        # What a kernel needs of scratch memory goes before the binary.
        return (
            json.dumps(dict(c_opencl.scratch_bytes(source))).encode() + b"\n" + bytes(binaries[0])
        )

    def load(self, device: Device, binary: bytes, symbols: Sequence[str], /) -> list[Launchable]:
        head, _, code = binary.partition(b"\n")
        slabs: dict[str, int] = json.loads(head)
        program = _loaded(_own(device), code)
        return [Launchable(cl.Kernel(program, s), slabs.get(s, 0)) for s in symbols]

    @translated
    def launch(
        self,
        device: Device,
        launchable: Launchable,
        arguments: tuple[Argument, ...],
        items: int,
        serial: bool,
        stream: Stream,
        /,
    ) -> None:
        own = _own(device)
        queue = stream if isinstance(stream, ClStream) else own.stream()
        if self._single:
            if arguments is not launchable.arguments:
                launchable.give(arguments, items)
            size = 1 if serial else min(items, _SHARES * own.units)
            queue.launch(launchable.kernel, size, (1,))
            return
        slab = launchable.slab
        size = min(items, max(1, _MOST_SCRATCH // slab)) if slab else items
        launchable.give(arguments, items, own.scratch(max(1, slab * size)), slab)
        queue.launch(launchable.kernel, size, None)


def _own(device: Device) -> ClDevice:
    if not isinstance(device, ClDevice):
        raise TypeError(f"{type(device).__name__} is not an OpenCL device")
    return device


def _loaded(device: ClDevice, binary: bytes) -> cl.Program:
    program = device.programs.get(binary)
    if program is None:
        try:
            program = cl.Program(device.context, [device.device], [binary])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # compilers chat
                program.build()
        except cl.Error as error:
            raise CompileError(
                "opencl",
                f"the driver does not take a binary of its own: {error}",
                hint=f"remove {cache_directory() / 'opencl'}",
            ) from error
        device.programs[binary] = program
    return program


def printer() -> str:
    """A hash of what prints kernels: binaries are kept by kernel, whatever their source was."""
    state = hashlib.sha256()
    for file in sorted(Path(c_opencl.__file__).parent.glob("c*.py")):
        state.update(file.read_bytes())
    return state.hexdigest()[:16]


def _options(device: cl.Device) -> tuple[str, ...]:
    options = ["-cl-std=CL1.2", "-w"]
    exact = cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
    if device.single_fp_config & exact:
        options.append("-cl-fp32-correctly-rounded-divide-sqrt")
    return (*options, *OPENCL_OPTIONS.get().split())


def dtypes_of(kernel: KernelModule) -> frozenset[DType]:
    """Element types of everything in a kernel."""
    functions = (*kernel.functions, kernel.entry)
    return frozenset(d for f in functions for d in _of_function(f))


def _of_function(function: KernelRoutine) -> Iterator[DType]:
    yield from (p.dtype for p in function.parameters)
    yield from _of_block(function.body)


def _of_block(block: Block) -> Iterator[DType]:
    for statement in block.statements:
        if isinstance(statement, Instruction):
            yield from (v.dtype for v in statement.arguments)
        elif isinstance(statement, Loop):
            yield from _of_block(statement.body)
        elif isinstance(statement, Branch):
            yield from _of_block(statement.then)
            yield from _of_block(statement.otherwise)
