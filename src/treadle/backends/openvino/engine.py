"""Compiling, running and keeping of segments by OpenVINO's plug-in for processors."""

from __future__ import annotations

import functools
import io
import os
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov

from treadle.backends.openvino.model import Call, Question, calls_of, to_model
from treadle.backends.segments import Compatibility, differences
from treadle.base.array import Array
from treadle.base.env import NUM_THREADS, OPENVINO_PRECISION
from treadle.base.errors import CompileError
from treadle.base.guards import asking_nothing
from treadle.graph.ir import Graph, Node

DEVICE = "CPU"
PRECISIONS = {"f32": "f32", "int8": "f32", "bf16": "bf16", "f16": "f16"}
"""Modes, and the hint that OpenVINO gets with each: without one it may compute in fewer bits."""


@functools.cache
def core() -> Any:
    """OpenVINO's own registry of plug-ins, one per process."""
    return ov.Core()


def precision() -> str:
    """The mode that the environment asks for.

    Raises:
        CompileError: there is no such mode.
    """
    mode = OPENVINO_PRECISION.get()
    if mode not in PRECISIONS:
        raise CompileError(
            "openvino", f"there is no precision {mode!r}", hint=f"one of {', '.join(PRECISIONS)}"
        )
    return mode


def settings(mode: str) -> dict[str, Any]:
    """Return the settings of every compilation and every import."""
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads(),
        "INFERENCE_PRECISION_HINT": PRECISIONS[mode],
    }


def threads() -> int:
    """Return how many threads one run takes: as many as the CPU engine."""
    return int(NUM_THREADS.get() or len(os.sched_getaffinity(0)))


# -- questions ---------------------------------------------------------------------------------


def claim(graph: Graph) -> Sequence[Collection[Node]]:
    """The nodes that have translations and that OpenVINO's query accepts."""
    calls, answers = calls_of(graph), _answers(precision())
    with asking_nothing():
        new = dict.fromkeys(c for c in calls.values() if c not in answers)
        if new:
            question = Question(new)
            query = core().query_model(question.model, DEVICE, settings(precision()))
            answers.update(question.answered(query))
        return [(node,) for node, call in calls.items() if answers[call]]


@functools.cache
def _answers(mode: str) -> dict[Call, bool]:
    """Return OpenVINO's answers on calls in a mode, in this process."""
    return {}


def compat() -> dict[str, str]:
    """Return the properties that a blob made now depends on."""
    abilities = core().get_property(DEVICE, "OPTIMIZATION_CAPABILITIES")
    return {
        "OpenVINO version": str(ov.get_version()),
        "processor features": " ".join(sorted(map(str, abilities))),
        "processor": str(core().get_property(DEVICE, "FULL_DEVICE_NAME")),
        "precision": precision(),
        "translation": FORMAT,
    }


FORMAT = "1"
"""Raised when a translation changes its meaning."""


def judge(made: Mapping[str, str]) -> Compatibility:
    """Another processor of the same features runs a blob, perhaps with kernels of the other one."""
    found = differences(made, compat())
    reason = "; ".join(found.values())
    if found.keys() - {"processor"}:
        return Compatibility("incompatible", reason)
    return Compatibility("slower", reason) if found else Compatibility("compatible")


# -- making ------------------------------------------------------------------------------------


def compile_segment(graph: Graph) -> Executable:
    """Translate and compile a graph."""
    mode = precision()
    with asking_nothing():
        model = to_model(graph, int8=mode == "int8")
    return Executable(core().compile_model(model, DEVICE, settings(mode)), compat())


def load_segment(blob: bytes) -> Executable:
    """Load what `Executable.serialize` wrote."""
    made = core().import_model(blob, DEVICE, settings(precision()))
    return Executable(made, compat())


class Executable:
    """A compiled model. Every thread that runs it at the same time gets a request of its own."""

    def __init__(self, compiled: Any, compat: Mapping[str, str]) -> None:
        self._compiled = compiled
        self._compat = dict(compat)
        self._takes = len(compiled.inputs)
        self._outputs = [(p.get_partial_shape(), p.get_element_type()) for p in compiled.outputs]
        self._open = [i for i, (shape, _) in enumerate(self._outputs) if shape.is_dynamic]
        self._idle: list[InferRequest] = []
        self._lock = threading.Lock()

    def run(self, payloads: Sequence[Any], /) -> Sequence[Any]:
        """New arrays of the results, whose extents are not open."""
        results = [np.empty(shape.to_shape(), kind.to_dtype()) for shape, kind in self._outputs]
        self.run_into(payloads, results)
        return results

    def run_into(self, payloads: Sequence[Any], results: Sequence[Any], /) -> None:
        """Compute from and into these arrays, without a copy where they are dense.

        Numbers of open extents are the last payload; a model whose inputs tell them leaves it.
        """
        try:
            request = self._idle.pop()
        except IndexError:
            with self._lock:
                request = InferRequest(self._compiled.create_infer_request(), self._open)
        request.run([np.asarray(x, order="C") for x in payloads[: self._takes]], results)
        self._idle.append(request)

    def serialize(self) -> bytes:
        """The compiled model as OpenVINO exports it, weights included."""
        made = self._compiled.export_model()
        return made.getvalue() if isinstance(made, io.BytesIO) else bytes(made)

    def compat(self) -> Mapping[str, str]:
        """Return the properties that the blob depends on."""
        return self._compat

    def describe(self) -> str:
        """Version, precision and threads."""
        hint = self._compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        count = self._compiled.get_property("INFERENCE_NUM_THREADS")
        version = self._compat["OpenVINO version"].partition("-")[0]
        return f"OpenVINO {version}, {self._compat['precision']} (hint {hint}), {count} threads"


class InferRequest:
    """One run at a time, on memory of the caller's.

    OpenVINO is told addresses, and told again only where they change. It does not hold on to the
    arrays, which the caller may want to free or to write in place.

    Args:
        request: OpenVINO's.
        open_results: numbers of results whose extents are open.
    """

    def __init__(self, request: Any, open_results: Sequence[int] = ()) -> None:
        self._request = request
        self._open = open_results
        self._known: dict[tuple[bool, int], tuple[int, tuple[int, ...]]] = {}

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Run once."""
        for i, array in enumerate(inputs):
            if self._is_new(False, i, array):
                self._request.set_input_tensor(i, _tensor(array))
        for i, array in enumerate(outputs):
            if self._is_new(True, i, array):
                self._request.set_output_tensor(i, _tensor(array))
        # In this thread: handing over to another one and waiting for it takes longer.
        self._request.infer(share_outputs=True)
        for i in self._open:
            made = tuple(self._request.get_output_tensor(i).get_shape())
            if made != outputs[i].shape:
                del self._known[True, i]  # Its tensor has this shape now.
                said = f"result {i} has shape {list(made)}, not {list(outputs[i].shape)}"
                raise CompileError("openvino", said)

    def _is_new(self, out: bool, index: int, array: Array) -> bool:
        at = array.__array_interface__["data"][0], array.shape
        if self._known.get((out, index)) == at:
            return False
        self._known[out, index] = at
        return True


class _Memory:
    """An array's memory without the array, which may be one that is not to be written."""

    def __init__(self, array: Array) -> None:
        known = array.__array_interface__
        self.__array_interface__ = {**known, "data": (known["data"][0], False), "strides": None}


def _tensor(array: Array) -> Any:
    """A tensor over an array's memory. Its owner is the caller, who is there while it is used."""
    return ov.Tensor(np.asarray(_Memory(array)), shared_memory=True)
