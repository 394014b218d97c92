"""The OpenVINO engine: whole parts of programs for the host's processor, compiled by OpenVINO.

It takes part only in programs whose options name it. Where to read: `engine.py` (compiling,
running, blobs), `model.py` (graphs to OpenVINO's models), `translation.py` and the modules beside
it (ops), `ready.py` (models made elsewhere, as one op). The package `openvino` is imported when
the first program asks for it.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from treadle.backends.api import Availability, Backend, Support, no
from treadle.backends.segments import Compatibility, Rates, SegmentExecutable
from treadle.base.log import get_logger
from treadle.base.types import TensorType
from treadle.graph.ir import Graph, Node
from treadle.ops.op import Op
from treadle.runtime.api import Device

Types = tuple[TensorType, ...]


class OpenVino(Backend):
    """Compiles segments; runs no single ops and has no memory of its own."""

    name = "openvino"
    protocol = (1, 1)
    serves = ("cpu", "multithread")
    priority = -1
    on_request = True
    is_open = True
    rates = Rates(150e9, 16e9, 0.5e-6, 30e-6)

    def __init__(self) -> None:
        self._warned = False

    def probe(self) -> Availability:
        if importlib.util.find_spec("openvino") is None:
            why = "openvino is not installed; pip install 'treadle[openvino]'"
            return Availability(False, why, lacks_library=True)
        return Availability(True, "segments of programs that ask for it")

    def open(self, index: int, /) -> Device:
        raise NotImplementedError("the host's device is the reference backend's")

    def prepare(self, op: Op, types: Sequence[TensorType], /) -> Callable[..., Any] | Support:
        return no("policy", "it compiles segments of programs, and runs no single ops")

    def supports(self, op: Op, types: Sequence[TensorType], /) -> Support:
        """Return whether there is a translation; what OpenVINO itself says counts in `claim`."""
        if not self._is_here():
            return no("device-feature", self.probe().reason)
        from treadle.backends.openvino import translation

        return translation.supports(op, tuple(types))

    def claim(self, graph: Graph, /) -> Sequence[Collection[Node]]:
        """The nodes that have a translation which OpenVINO's own query accepts."""
        if not self._is_here():
            return ()
        from treadle.backends.openvino import engine

        return engine.claim(graph)

    def keeps(self, name: str, /) -> bool:
        """Composites for which OpenVINO has kernels that it would not find in the parts."""
        return name in ("softmax", "log_softmax", "layer_norm") and self._is_here()

    def compat(self) -> Mapping[str, str]:
        from treadle.backends.openvino import engine

        return engine.compat()

    def judge(self, compat: Mapping[str, str], /) -> Compatibility:
        from treadle.backends.openvino import engine

        return engine.judge(compat)

    def compile_segment(self, graph: Graph, /) -> SegmentExecutable:
        from treadle.backends.openvino import engine

        return engine.compile_segment(graph)

    def load_segment(self, blob: bytes, /) -> SegmentExecutable:
        from treadle.backends.openvino import engine

        return engine.load_segment(blob)

    # -- ready models ----------------------------------------------------------------------

    def model_types(self, data: bytes, /) -> tuple[Types, Types]:
        """Types of the inputs and of the results of a model that somebody else made."""
        from treadle.backends.openvino import ready

        return ready.types_of(data)

    def run_model(self, data: bytes, arrays: Sequence[Any], /) -> Sequence[Any]:
        """The results of such a model."""
        from treadle.backends.openvino import ready

        return ready.run(data, arrays)

    def _is_here(self) -> bool:
        """Return whether the package is installed; says once where it is not."""
        found = self.probe()
        if not found.ok and not self._warned:
            self._warned = True
            get_logger("openvino").warning("openvino: %s; other engines run all", found.reason)
        return found.ok


backend = OpenVino()
