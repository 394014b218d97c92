"""The simulated backend: two devices, a part of the ops, a compiler that only pretends."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tests.sim.device import SimDevice
from tests.sim.kernels import LARGEST, standard

from treadle.backends.api import Availability, Backend, Kernel, Support, no, yes
from treadle.backends.segments import Rates
from treadle.base.errors import LoadError
from treadle.base.types import TensorType
from treadle.graph.evaluate import evaluate
from treadle.graph.ir import Graph
from treadle.graph.parser import parse
from treadle.graph.printer import to_text
from treadle.ops.op import Op
from treadle.runtime.array import DeviceArray

MakeDevice = Callable[[int], SimDevice]


class Sim(Backend):
    """A family of simulated devices."""

    protocol = (1, 1)

    def __init__(
        self,
        name: str = "sim",
        *,
        device: MakeDevice = SimDevice,
        kernels: Sequence[Kernel] | None = None,
        count: int = 2,
    ) -> None:
        self.name = name
        self.device_kinds = (name,)
        self.opened: dict[int, SimDevice] = {}
        self._device = device
        self._kernels = standard() if kernels is None else list(kernels)
        self._found = Availability(True, "simulated", count)

    def probe(self) -> Availability:
        return self._found

    def open(self, index: int, /) -> SimDevice:
        self.opened[index] = self._device(index)
        return self.opened[index]

    def kernels(self) -> Sequence[Kernel]:
        return self._kernels


# -- segments ----------------------------------------------------------------------------------

MAGIC = b"SIMPLAN2"
SEGMENT_OPS = {
    "abs", "add", "broadcast", "clip", "concat", "exp", "flip", "gelu", "identity", "layer_norm",
    "matmul", "max", "maximum", "mean", "mul", "relu", "reshape", "sigmoid", "softmax", "square",
    "sub", "sum", "tanh", "transpose",
}  # fmt: skip
_COMPAT = {"sim": "2", "plan": "text"}


class SimSegment:
    """A "compiled" graph: its text, evaluated by the stream's thread on the device's memory."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def run(self, payloads: Sequence[Any], /) -> list[Any]:
        device = payloads[0].device
        made = [
            DeviceArray(device, t.dtype.numpy, shape_of(t), block=device.alloc(t.nbytes))
            for t in (v.type for v in self.graph.outputs)
        ]
        inputs = [(p.buffer, p.dtype, p.shape) for p in payloads]
        outputs = [(p.buffer, p.dtype, p.shape) for p in made]

        def work() -> None:
            arrays = [device.raw.view(*place) for place in inputs]
            with np.errstate(all="ignore"):
                results = self.compute([a.copy() for a in arrays])
            for place, result in zip(outputs, results, strict=True):
                device.raw.view(*place)[...] = result

        device.raw.submit(device.stream, work)
        return made

    def compute(self, arrays: list[Any]) -> Sequence[Any]:
        """The results."""
        return evaluate(self.graph, arrays)

    def serialize(self) -> bytes:
        data = to_text(self.graph).encode()
        head = {"sha256": hashlib.sha256(data).hexdigest(), **_COMPAT}
        return b"".join((MAGIC, json.dumps(head).encode(), b"\n", data))

    def compat(self) -> Mapping[str, str]:
        return _COMPAT

    def describe(self) -> str:
        return f"a plan of {len(self.graph.nodes)} ops"


def shape_of(type_: TensorType) -> tuple[int, ...]:
    return tuple([int(d) for d in type_.shape])


class SimWithSegments(Sim):
    """The same with a compiler of segments."""

    on_request = False
    rates = Rates(flops=1e9, bandwidth=1e9, launch=1e-5, segment=2e-5)
    priority = 5
    segment: type[SimSegment] = SimSegment

    def __init__(self, name: str = "sim", **options: Any) -> None:
        super().__init__(name, **options)
        self.serves = (name,)
        self.compiled = 0

    def prepare(self, op: Op, types: Sequence[TensorType], /) -> Support:
        return no("policy", "the compiler takes whole segments only")

    def supports(self, op: Op, types: Sequence[TensorType], /) -> Support:
        if op.name not in SEGMENT_OPS:
            return no("op", f"the compiler does not know {op.name}")
        wrong = [t.dtype.name for t in types if t.dtype.name != "float32"]
        if wrong:
            return no("dtype", f"only float32, not {wrong[0]}")
        if any(t.nbytes > LARGEST or not t.nbytes for t in types):
            return no("size-limit", f"1 to {LARGEST} bytes")
        return yes()

    def compat(self) -> Mapping[str, str]:
        return _COMPAT

    def compile_segment(self, graph: Graph, /) -> SimSegment:
        self.compiled += 1
        return self.segment(graph)

    def load_segment(self, blob: bytes, /) -> SimSegment:
        head, _, data = blob.removeprefix(MAGIC).partition(b"\n")
        if not blob.startswith(MAGIC):
            raise LoadError("sim", "this is no plan of this version")
        if json.loads(head)["sha256"] != hashlib.sha256(data).hexdigest():
            raise LoadError("sim", "the plan is damaged")
        return self.segment(parse(data.decode()))
