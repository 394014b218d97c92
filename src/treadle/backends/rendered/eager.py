"""Eager ops on a device whose kernels are rendered: programs of one op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from treadle.backends.api import Support, no
from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.ir import KernelModule
from treadle.backends.codegen.kernel.language import minimum
from treadle.backends.program import Address, Launch, Lowered, Program, Ref, Run
from treadle.backends.rendered.compiler import RenderedCompiler
from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.ops.op import Op
from treadle.runtime.array import DeviceArray, resident
from treadle.runtime.opened import OpenDevice

_PIECE = 1 << 16
"""Bytes that one work item copies."""


def prepare(
    compiler: RenderedCompiler, op: Op, types: Sequence[TensorType]
) -> Callable[..., Any] | Support:
    """The launch of an op on arrays of these types, or why it has none."""
    lowered = compiler.lower(op, types)
    if isinstance(lowered, Support):
        return lowered
    if lowered.prelude:
        return no("policy", f"{op.name} keeps memory between calls")
    results = op.infer(*types)
    if not all(t.is_static for t in (*types, *results)):
        return no("dynamic-shape", f"a shape of {op.name} is not known")
    return EagerLaunch(compiler, op, types, results, lowered)


class EagerLaunch:
    """An op on operands of given types: its program, and what its results are."""

    def __init__(
        self,
        compiler: RenderedCompiler,
        op: Op,
        types: Sequence[TensorType],
        results: Sequence[TensorType],
        lowered: Lowered,
    ) -> None:
        self._op = op
        self._shapes = [_extents(t) for t in types]
        self._results = [(t.dtype.numpy, _extents(t), t.nbytes) for t in results]
        self._workspaces = lowered.workspaces
        self._constants = [np.ascontiguousarray(c) for c in lowered.constants]
        self._besides = bool(self._workspaces or self._constants)
        self._single = op.n_outputs == 1
        self._held: dict[int, list[DeviceArray]] = {}
        first = {"input": 0, "output": len(types), "workspace": len(types) + len(results)}
        first["constant"] = first["workspace"] + len(self._workspaces)
        copies = tuple(
            _copying(results[out].nbytes, Ref("output", out), Ref("input", i, offset))
            for out, i, offset in lowered.views
            if results[out].nbytes
        )
        steps = tuple(_run(launch, first) for launch in (*lowered.launches, *copies))
        bases = first["constant"] + len(self._constants)
        self._program = compiler.build(Program(steps, bases)) if steps else None

    def __call__(self, *payloads: DeviceArray) -> Any:
        if [p.shape for p in payloads] != self._shapes:
            raise ValueError(f"{self._op.name} was prepared for {self._shapes}")
        device = payloads[0].device
        made = [resident(device, d, s, device.alloc(n)) for d, s, n in self._results]
        if self._program is not None:
            memories = [*payloads, *made]
            if self._besides:
                memories += [_bytes(device, int(n)) for n in self._workspaces]
                memories += self._constants_on(device)
            self._program.submit(device.raw, device.stream, [m.block.buffer for m in memories])
        return made[0] if self._single else tuple(made)

    def _constants_on(self, device: OpenDevice) -> list[DeviceArray]:
        if not self._constants:
            return []
        found = self._held.get(id(device))
        if found is None or found[0].device is not device:
            found = [DeviceArray(device, c.dtype, c.shape, host=c) for c in self._constants]
            self._held[id(device)] = found
        return found


def _extents(type_: TensorType) -> tuple[int, ...]:
    return tuple(int(d) for d in type_.shape)


def _bytes(device: OpenDevice, nbytes: int) -> DeviceArray:
    return DeviceArray(device, np.dtype(np.uint8), (nbytes,), device.alloc(nbytes))


def _run(launch: Launch, first: dict[str, int]) -> Run:
    places = tuple(
        Address(first[a.kind] + a.index, a.offset) if isinstance(a, Ref) else a
        for a in launch.arguments
    )
    return Run(launch.kernel, places, launch.items, launch.serial)


def _copying(nbytes: int, target: Ref, source: Ref) -> Launch:
    """A copy of memory: what ops that only name it anew are where arrays own theirs."""
    return Launch(_COPY, (target, source, nbytes), -(-nbytes // _PIECE))


def _copy() -> KernelModule:
    """Return the kernel whose items copy a piece of memory each."""
    e = KernelBuilder()
    target, source = e.pointer(dt.uint8, "target"), e.pointer(dt.uint8, "source")
    count = e.size("count")
    first = e.lo * _PIECE
    length = minimum(e.hi * _PIECE, count) - first
    (target + first).copy_from(source + first, length)
    return e.kernel("copy_bytes")


_COPY = _copy()
