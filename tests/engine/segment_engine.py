"""A segment engine that evaluates graphs with NumPy, and can be told to fail."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from treadle.backends.api import Support, no, yes
from treadle.backends.segments import Compatibility, Rates, differences
from treadle.base.types import TensorType
from treadle.graph.ir import Graph
from treadle.graph.parser import parse
from treadle.graph.printer import to_text
from treadle.ops.constant import ArrayData
from treadle.ops.op import Op


class Executable:
    """A graph, and what it was called with."""

    def __init__(self, owner: FakeSegments, graph: Graph) -> None:
        self.owner = owner
        self.graph = graph
        self.calls: list[tuple[Any, ...]] = []

    def run(self, payloads: Sequence[Any], /) -> Sequence[Any]:
        if self.owner.fail == "run":
            raise RuntimeError("the accelerator is on fire")
        self.calls.append(tuple(payloads))
        return self.graph.evaluate(payloads)

    def serialize(self) -> bytes:
        data: dict[str, ArrayData] = {}
        text = to_text(self.graph, constants=data)
        arrays = {k: [str(d.dtype.name), d.shape, d.array.tolist()] for k, d in data.items()}
        return json.dumps([text, arrays]).encode()

    def compat(self) -> Mapping[str, str]:
        return self.owner.compat()

    def describe(self) -> str:
        return f"{len(self.graph.nodes)} nodes of NumPy"


class Writing(Executable):
    """The same for callers that have memory for the results."""

    def run_into(self, payloads: Sequence[Any], results: Sequence[Any], /) -> None:
        self.calls.append((*payloads, *results))
        for target, made in zip(results, self.graph.evaluate(payloads), strict=True):
            np.copyto(target, made)


class FakeSegments:
    """Takes all ops but those named in `never`.

    Attributes:
        fail: "" or what raises: "supports", "compile", "run", "load".
        whole: names of composites that it wants in one piece.
        made: what was compiled or loaded, in order.
    """

    priority = -1

    def __init__(
        self,
        name: str = "fake",
        never: tuple[str, ...] = (),
        serves: tuple[str, ...] = ("cpu",),
        *,
        on_request: bool = False,
        writes: bool = False,
    ) -> None:
        self.name = name
        self.serves = serves
        self.on_request = on_request
        self.never = never
        self.rates = Rates(1e15, 1e15, 1e-9, 1e-9)
        self.version = uuid.uuid4().hex  # What an earlier test left on disk is of no use.
        self.processor = "one"
        self.fail = ""
        self.whole: tuple[str, ...] = ()
        self.made: list[Executable] = []
        self.loaded = 0
        self._kind: type[Executable] = Writing if writes else Executable

    def prepare(self, op: Op, types: Sequence[TensorType], /) -> Callable[..., Any] | Support:
        return no("policy", "it compiles segments only")

    def supports(self, op: Op, types: Sequence[TensorType], /) -> Support:
        if self.fail == "supports":
            raise RuntimeError("do not ask")
        return no("op", f"{self.name} has no {op.name}") if op.name in self.never else yes()

    def keeps(self, name: str, /) -> bool:
        return name in self.whole

    def compat(self) -> Mapping[str, str]:
        return {"version": self.version, "processor": self.processor}

    def judge(self, compat: Mapping[str, str], /) -> Compatibility:
        found = differences(compat, self.compat())
        fit = "incompatible" if "version" in found else "slower" if found else "compatible"
        return Compatibility(fit, "; ".join(found.values()))  # type: ignore[arg-type]

    def compile_segment(self, graph: Graph, /) -> Executable:
        if self.fail == "compile":
            raise RuntimeError("no room on the chip")
        self.made.append(self._kind(self, graph))
        return self.made[-1]

    def load_segment(self, blob: bytes, /) -> Executable:
        if self.fail == "load":
            raise RuntimeError("the blob says nothing to me")
        text, arrays = json.loads(blob)
        known = {
            k: ArrayData(np.array(v, np.dtype(d)).reshape(s)) for k, (d, s, v) in arrays.items()
        }
        self.loaded += 1
        self.made.append(self._kind(self, parse(text, known)))
        return self.made[-1]
