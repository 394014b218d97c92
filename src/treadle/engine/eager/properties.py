"""Properties of devices: kind, number of cores, and what they run by themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from treadle.backends.api import Support, no, yes
from treadle.backends.program import MeasuringCompiler
from treadle.base import dtype as dt
from treadle.base.dtype import DType, as_dtype
from treadle.base.errors import TreadleError
from treadle.base.types import TensorType
from treadle.engine.devices.names import CompNode
from treadle.engine.devices.placement import HOST, compiling, engines_of, find_compiler
from treadle.engine.eager.choice import choose_on_device
from treadle.engine.options import Options
from treadle.ops.op import REGISTRY, Op

_ELEMENTS = (
    *(dt.bool_, dt.uint8, dt.uint16, dt.uint32, dt.uint64),
    *(dt.int8, dt.int16, dt.int32, dt.int64),
    *(dt.float16, dt.bfloat16, dt.float32, dt.float64),
)
_PROBES = ("add", "logical_and")
"""Ops of which one must run for an element type to count as the device's own."""


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """Properties that a device reports, and what can be run there.

    Attributes:
        device: its physical name, such as `cpu0`.
        kind: of device: `cpu`, `gpu`, `opencl` or a plug-in's.
        name: for people.
        total_memory: bytes.
        cores: cores of a processor that this process may use, multiprocessors of a GPU; 0 where
            the device does not tell.
        threads: of the host, those that share the work of a kernel; 0 elsewhere.
        compute_capability: of an NVIDIA GPU, major and minor; None elsewhere.
        bandwidth, flops: bytes and operations per second as the backend states them; 0: unknown.
        features: capability strings of the backend.
        compiles: whether programs are compiled for it; else they run there op by op.
        dtypes: names of element types that it computes with, without falling back to the host.
        units: names of those whose products have instructions that add several at a time, such as
            bfloat16; empty where the device does not tell.
    """

    device: str
    kind: str
    name: str
    total_memory: int
    cores: int
    threads: int
    compute_capability: tuple[int, int] | None
    bandwidth: float
    flops: float
    features: tuple[str, ...]
    compiles: bool
    dtypes: tuple[str, ...]
    units: tuple[str, ...] = ()

    def supports(self, op: str = "add", dtype: object = None) -> Support:
        """Return whether the device itself runs an op on operands of an element type; nothing is
        run.

        The answer is true or false, and has `reason` and `message` where it is no. An op that a
        device does not run falls back to the host.

        Args:
            op: its name, as `treadle.device.ops` and the table of ops list it.
            dtype: an element type or its name; if left out, float32, or else the op's first.
        """
        return supports(self.kind, op, None if dtype is None else as_dtype(dtype))


def properties_of(node: CompNode) -> DeviceProperties:
    """Return the properties of a device. It is opened for that."""
    info = node.open().info
    kind = HOST if node.on_host else node.kind
    cores, threads, name = info.units, 0, info.name
    units: tuple[str, ...] = ()
    if kind == HOST:
        compiler = find_compiler(Options())
        if isinstance(compiler, MeasuringCompiler):
            threads, cores = compiler.cores()
            units = compiler.units()
            name = compiler.about().get("processor", name)
    found = [re.fullmatch(r"compute_(\d+)(\d)", text) for text in info.features]
    capability = next(((int(m[1]), int(m[2])) for m in found if m), None)
    own = [d.name for d in _ELEMENTS if any(supports(kind, op, d) for op in _PROBES)]
    return DeviceProperties(
        node.physical_name.partition(":")[0],
        kind,
        name,
        node.open().memory()[0],
        cores,
        threads,
        capability,
        info.bandwidth,
        info.flops,
        info.features,
        bool(compiling(engines_of(Options(), kind))),
        tuple(own),
        units,
    )


def supports(kind: str, name: str, dtype: DType | None) -> Support:
    """Return whether devices of a kind run an op by themselves: on one of its samples at least."""
    op_class = REGISTRY.get(name)
    if op_class is None:
        return no("op", f"no op is called {name!r}; docs/ops.md lists them")
    answer = no("op", f"{name} has no sample to ask about")
    for sample in op_class.samples():
        own = sample.element_types()
        wanted = dtype or (dt.float32 if dt.float32 in own else own[0])
        if wanted not in own:
            answer = no("dtype", f"{name} does not take {wanted.name}")
            continue
        types = tuple(TensorType(a.dtype or wanted, a.shape) for a in sample.args)
        answer = _answer(kind, sample.op, types)
        if answer:
            return answer
    return answer


def _answer(kind: str, op: Op, types: Sequence[TensorType]) -> Support:
    try:
        results = op.infer(*types)
        if kind == HOST:
            return yes()  # NumPy runs what no engine compiles.
        choice = choose_on_device(op, tuple(types), results, kind)
    except TreadleError as error:
        return no("dtype", error.problem)
    return choice.why if choice.kernel is None and choice.launch is None else yes()


__all__ = ["DeviceProperties", "properties_of", "supports"]
