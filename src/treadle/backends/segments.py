"""Segment engines: compilers that take whole parts of a program (tier 2).

Such an engine says of each op whether it can have it, compiles graphs, and runs what it made on the
payloads of the devices it serves, which it must neither change nor keep. The framework decides
which nodes it gets, hands values over, keeps what is compiled on disk and in model files, and runs
the nodes otherwise where the engine fails.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from treadle.backends.api import Engine, Support
from treadle.base.errors import LoadError
from treadle.base.estimates import estimate
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.graph.ir import Graph, Node
from treadle.ops.op import Op

Fit = Literal["compatible", "slower", "incompatible"]
"""Fit of a blob to this process: use it; use it and say so; compile the graph anew."""


@dataclass(frozen=True, slots=True)
class Compatibility:
    """Fit of a blob to an engine, and the reason where it is not better: both values of what
    differs.
    """

    fit: Fit
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rates:
    """Speed of an engine: operations and bytes per second, and seconds per op and per segment."""

    flops: float
    bandwidth: float
    launch: float
    segment: float = 0.0

    def seconds(self, flops: Dim, nbytes: Dim) -> float:
        """Modelled time of one launch: what limits it, arithmetic or memory, and its start."""
        return self.launch + max(estimate(flops) / self.flops, estimate(nbytes) / self.bandwidth)


class SegmentExecutable(Protocol):
    """A compiled segment. Threads may run it at the same time."""

    def run(self, payloads: Sequence[Any], /) -> Sequence[Any]:
        """New payloads of the results, in order; those of the inputs are only read."""
        ...

    def serialize(self) -> bytes:
        """Return bytes from which the engine's `load_segment` makes the same executable, in any
        process.
        """
        ...

    def compat(self) -> Mapping[str, str]:
        """Return the properties that the blob depends on: versions, processor features, options, by
        name.
        """
        ...

    def describe(self) -> str:
        """One line for people: sizes, precision, threads."""
        ...


@runtime_checkable
class WritingExecutable(Protocol):
    """An executable that writes its results where it is told to, which saves a copy of each."""

    def run_into(self, payloads: Sequence[Any], results: Sequence[Any], /) -> None:
        """Run the program as `run` does, and write the results into these payloads."""
        ...


@runtime_checkable
class SegmentEngine(Engine, Protocol):
    """An engine that compiles parts of programs.

    Attributes:
        on_request: it takes part only where options or the environment name it.
        rates: what the partition stage reckons with. `segment` is what one call costs.
    """

    on_request: bool
    rates: Rates

    def supports(self, op: Op, types: Sequence[TensorType], /) -> Support:
        """Return whether it can have an op on operands of these types, or why not."""
        ...

    def compat(self) -> Mapping[str, str]:
        """Return the properties that a segment compiled now would depend on."""
        ...

    def compile_segment(self, graph: Graph, /) -> SegmentExecutable:
        """Compile a graph of supported ops; any exception has the others run it."""
        ...

    def load_segment(self, blob: bytes, /) -> SegmentExecutable:
        """Load what `serialize` wrote, ready to run; any exception has it compiled anew."""
        ...


@runtime_checkable
class ClaimingEngine(Protocol):
    """A segment engine that looks at the program before it says what it wants."""

    def claim(self, graph: Graph, /) -> Sequence[Collection[Node]]:
        """Sets of nodes, each to be had as a whole or not at all; it gets no node besides.

        A set with a node on the way from one of its nodes to another outside of it cannot run in
        one piece: it is cut back to one that can, and the report says so.
        """
        ...


@runtime_checkable
class KeepingEngine(Protocol):
    """A segment engine that has its own way for ops that are taken apart otherwise."""

    def keeps(self, name: str, /) -> bool:
        """Return whether it wants composites of this name whole. Those that it does not get in the
        end are taken apart after all."""
        ...


@runtime_checkable
class CostingEngine(Protocol):
    """A segment engine that knows better than `rates` what an op takes."""

    def cost(self, op: Op, types: Sequence[TensorType], /) -> float:
        """Seconds of an op inside of a segment."""
        ...


@runtime_checkable
class OpenSegmentEngine(Protocol):
    """A segment engine that compiles graphs with symbols in their types, for all their extents.

    `supports` and `compile_segment` get such types and graphs as well. An op that it takes with
    numbers alone is refused as "dynamic-shape": then each extents get a program of their own. What
    it compiles of such a graph takes one operand more, the last one: an int64 vector of the extents
    of `graph.ir.symbols_of`. Results are as large as those extents make them.
    """

    @property
    def is_open(self) -> bool:
        """True if it does."""
        ...


def is_open(engine: SegmentEngine) -> bool:
    """Return whether an engine compiles graphs with symbols in their types."""
    return isinstance(engine, OpenSegmentEngine) and engine.is_open


@runtime_checkable
class JudgingEngine(Protocol):
    """A segment engine that knows which differences matter. For others all of them do."""

    def judge(self, compat: Mapping[str, str], /) -> Compatibility:
        """Judge how a blob that depends on this fits the engine as it is here."""
        ...


def differences(compat: Mapping[str, str], here: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that differ, by name, with both values in words."""
    return {
        name: f"made for {name} {compat.get(name, 'unknown')!r}, here it is "
        f"{here.get(name, 'unknown')!r}"
        for name in sorted({*compat, *here})
        if compat.get(name) != here.get(name)
    }


def judged(engine: SegmentEngine, compat: Mapping[str, str]) -> Compatibility:
    """Return how a blob fits an engine."""
    if isinstance(engine, JudgingEngine):
        return engine.judge(compat)
    found = differences(compat, engine.compat())
    return Compatibility("incompatible", "; ".join(found.values())) if found else _FITS


_FITS = Compatibility("compatible")

# -- blobs on their way ------------------------------------------------------------------------

_MAGIC = b"TREADLE SEGMENT 1\n"


@dataclass(frozen=True, slots=True)
class Blob:
    """A serialized segment with what it depends on."""

    engine: str
    compat: Mapping[str, str]
    data: bytes


def seal(engine: str, executable: SegmentExecutable) -> bytes:
    """A serialized segment that says whose it is, what it depends on, and whether it is whole."""
    data = executable.serialize()
    head = {
        "engine": engine,
        "compat": dict(executable.compat()),
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    return b"".join((_MAGIC, json.dumps(head).encode(), b"\n", data))


def unseal(sealed: bytes) -> Blob:
    """Read what `seal` wrote.

    Raises:
        LoadError: it is something else, cut off, or changed.
    """
    head, _, data = sealed.removeprefix(_MAGIC).partition(b"\n")
    if not sealed.startswith(_MAGIC):
        raise LoadError("segment", "this is not a compiled segment", hint="compile the graph anew")
    try:
        known = json.loads(head)
        engine, compat = str(known["engine"]), {str(k): str(v) for k, v in known["compat"].items()}
        nbytes, digest = int(known["bytes"]), known["sha256"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"the head of a compiled segment cannot be read: {error}"
        raise LoadError("segment", problem, hint="compile the graph anew") from None
    if len(data) != nbytes:
        problem = f"a compiled segment of {engine} is cut off"
        saw = f"{len(data)} bytes where {nbytes} were written"
        raise LoadError("segment", problem, saw=saw, hint="compile the graph anew")
    if hashlib.sha256(data).hexdigest() != digest:
        problem = f"a compiled segment of {engine} was changed: its checksum differs"
        raise LoadError("segment", problem, hint="compile the graph anew")
    return Blob(engine, compat, data)
