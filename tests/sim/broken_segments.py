"""Compilers of segments with one mistake each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tests.sim.backend import MAGIC, SimSegment, SimWithSegments
from tests.sim.mutation import MUTATIONS, Mutation

from treadle.backends.api import Support
from treadle.graph.builder import GraphBuilder


def segments(check: str) -> Callable[[type[SimWithSegments]], type[SimWithSegments]]:
    """Decorator: a backend whose compiler of segments is broken."""

    def add(cls: type[SimWithSegments]) -> type[SimWithSegments]:
        MUTATIONS[cls.__name__] = Mutation(cls.__name__, f"graph/segments/sim/{check}", cls)
        return cls

    return add


@segments("damaged_blobs_are_refused")
class TakesDamagedBlobs(SimWithSegments):
    def load_segment(self, blob: bytes, /) -> SimSegment:
        try:
            return super().load_segment(blob)
        except Exception:
            return _empty()


@segments("damaged_blobs_are_refused")
class TakesBlobsOfOtherVersions(SimWithSegments):
    def load_segment(self, blob: bytes, /) -> SimSegment:
        return super().load_segment(MAGIC + blob[len(MAGIC) :])


def _empty() -> SimSegment:
    return SimSegment(GraphBuilder("nothing").build())


class NearlyRight(SimSegment):
    def compute(self, arrays: list[Any]) -> Sequence[Any]:
        return [np.asarray(r * np.float32(1.01)) for r in super().compute(arrays)]


@segments("keeps_word")
class CompilesSomethingElse(SimWithSegments):
    segment = NearlyRight


@segments("keeps_word")
class SupportsMoreThanItCompiles(SimWithSegments):
    def compile_segment(self, graph: Any, /) -> SimSegment:
        unknown = [n.op.name for n in graph.nodes if n.op.name == "softmax"]
        if unknown:
            raise NotImplementedError(f"no converter for {unknown[0]}")
        return super().compile_segment(graph)


class OneContext(SimSegment):
    """All runs share one context of the driver."""

    def __init__(self, graph: Any) -> None:
        super().__init__(graph)
        self._lock = threading.Lock()

    def run(self, payloads: Sequence[Any], /) -> list[Any]:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError("the context is in use")
        try:
            time.sleep(1e-3)
            return super().run(payloads)
        finally:
            self._lock.release()


@segments("whole_programs")
class CannotRunTwiceAtOnce(SimWithSegments):
    segment = OneContext


class Scribbler(SimSegment):
    def run(self, payloads: Sequence[Any], /) -> list[Any]:
        made = super().run(payloads)
        device = payloads[0].device
        device.raw.fill(payloads[0].buffer, 0, payloads[0].nbytes, device.stream)
        payloads[0].device.synchronize()
        return made


@segments("whole_programs")
class WritesItsInputs(SimWithSegments):
    segment = Scribbler


class Local(SimSegment):
    plans: dict[bytes, Any] = {}

    def serialize(self) -> bytes:
        key = MAGIC + str(id(self.graph)).encode()
        Local.plans[key] = self.graph
        return key


@segments("stored")
class StoresPointers(SimWithSegments):
    segment = Local

    def load_segment(self, blob: bytes, /) -> SimSegment:
        return SimSegment(Local.plans[blob])


class Undated(SimSegment):
    def compat(self) -> Mapping[str, str]:
        return {}


@segments("stored")
class SaysNotWhatBlobsDependOn(SimWithSegments):
    segment = Undated


@segments("answers")
class RefusesSegmentsWithoutReason(SimWithSegments):
    def supports(self, op: Any, types: Sequence[Any], /) -> Support:
        found = super().supports(op, types)
        return found if found else Support(False)
