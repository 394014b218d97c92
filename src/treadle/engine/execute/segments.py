"""Segments of programs while they run: by their engine, and by the others once that has failed.

An engine gets a segment's graph with its constants. Inputs that stay the same from run to run are
constants to it as well: they are put into the graph when they are first seen, and again when the
caller has replaced them. What it compiled is kept on disk, under what it was compiled of.

A segment of a program for many extents is compiled once, if its engine does that: it gets numbers
of the extents behind its operands.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import is_
from types import MappingProxyType
from typing import Any, Protocol, cast

import numpy as np

from treadle.backends import registry
from treadle.backends.api import Engine, Support
from treadle.backends.segments import (
    KeepingEngine,
    SegmentEngine,
    SegmentExecutable,
    WritingExecutable,
    judged,
    seal,
    unseal,
)
from treadle.base.env import REPLAY
from treadle.base.errors import CompileError, TreadleError
from treadle.base.log import get_logger
from treadle.base.types import TensorType
from treadle.engine.plan import Plan
from treadle.engine.report import CompileReport
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph, Value, symbols_of
from treadle.graph.replay import write_if_asked
from treadle.ops.composite import Composite
from treadle.ops.constant import Constant
from treadle.ops.fused import Fused
from treadle.ops.op import REGISTRY, as_tuple
from treadle.runtime.array import to_host

Launch = Callable[..., Any]
Others = Callable[[Graph, tuple[bool, ...]], Callable[..., Sequence[Any]]]
"""Makes of a graph and its frozen inputs what runs it without the engine that failed.

What it makes takes all inputs, and the numbers of open extents by symbol where there are some.
"""
NO_EXTENTS: Mapping[str, int] = MappingProxyType({})
"""Those of a program for certain extents."""
MOST_KEPT = 1 << 28
"""Bytes of a blob up to which it is kept on disk."""
MOST_REPLACED = 4
"""So often frozen inputs may be others before they are taken for inputs like any other."""


class BlobStore(Protocol):
    """The interface of stores of blobs that outlive a process."""

    def save(self, key: str, data: bytes, /) -> None:
        """Keep data, if there is room."""
        ...

    def saved(self, key: str, /) -> bytes | None:
        """Return the bytes that were kept, None where nothing is."""
        ...


@dataclass(slots=True)
class Notes:
    """Notes on what was done with a segment.

    Attributes:
        engine: whose it is.
        outcome: "waiting" for its frozen inputs, "compiled", "restored" from a blob, or "demoted".
        detail: what the engine says of it, or why it is demoted.
        seconds: it took to make.
        runs: by the engine.
        handed: values that were handed over, to and fro.
        copied: those of them that were copied on the way.
        remarks: about blobs that were slower or refused, with both values.
    """

    engine: str
    outcome: str = "waiting"
    detail: str = ""
    seconds: float = 0.0
    runs: int = 0
    handed: int = 0
    copied: int = 0
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Made:
    """An engine's executable, and its frozen inputs; `version` names these for the caller."""

    executable: SegmentExecutable
    writes: bool
    held: tuple[Any, ...]
    version: object = None


class SegmentLaunch:
    """Runs one segment. Threads may call it at the same time.

    Args:
        engine: compiles it.
        body: what it computes.
        frozen: which inputs stay the same from run to run.
        others: how it runs where the engine fails; op by op, if left out.
        strict: a failure is an error.
        store: of blobs.
        report: receives what became of it.
    """

    def __init__(
        self,
        engine: SegmentEngine,
        body: Graph,
        frozen: Sequence[bool] = (),
        others: Others | None = None,
        *,
        strict: bool = False,
        store: BlobStore | None = None,
        report: CompileReport | None = None,
    ) -> None:
        self.engine = engine
        self.body = body
        self.notes = Notes(engine.name)
        self.frozen = tuple(frozen) or (False,) * len(body.inputs)
        self._constant = any(self.frozen)
        """True if frozen inputs are constants, as they are until they have changed too often."""
        self._others = others or op_by_op
        self._strict = strict
        self._store = store
        self._report = report
        self._lock = threading.Lock()
        self._made: _Made | None = None
        self._instead: Callable[..., Sequence[Any]] | None = None
        self._replaced = 0
        self.symbols = tuple(s.name for s in symbols_of(body))
        """Names of open extents."""

    def __call__(self, *arrays: Any) -> Any:
        """New arrays of the results, one alone or a tuple, as any launch."""
        given = [a for a, yes in zip(arrays, self.frozen, strict=True) if not yes]
        fixed = [a for a, yes in zip(arrays, self.frozen, strict=True) if yes]
        results = self.results(given, lambda: fixed)
        return results[0] if len(results) == 1 else tuple(results)

    def into(
        self,
        given: Sequence[Any],
        fixed: Callable[[], Sequence[Any]],
        results: Sequence[Any],
        version: object = None,
        extents: Mapping[str, int] = NO_EXTENTS,
    ) -> None:
        """Write the results where the caller wants them.

        Args:
            given: the inputs that are not frozen.
            fixed: gives the others.
            results: arrays to write to.
            version: names the frozen inputs: as long as it is the same object, so are they.
            extents: by symbol, where the segment is for many.
        """
        made = self.results(given, fixed, results, version, extents)
        if made is not results:
            for target, source in zip(results, made, strict=True):
                target[...] = source
            self.notes.copied += len(results)

    def at(self, extents: Mapping[str, int]) -> SegmentInstance:
        """The segment at certain extents."""
        return SegmentInstance(self, extents)

    @property
    def executable(self) -> SegmentExecutable | None:
        """The engine's executable; None before it is made, and after it has failed."""
        return None if self._made is None else self._made.executable

    def prepare(self) -> None:
        """Compile now, if all that it takes is here."""
        if not any(self.frozen):
            self._ready((), tuple, None)

    def _all(self, given: Sequence[Any], fixed: Sequence[Any]) -> list[Any]:
        """All inputs in order."""
        rest, held = iter(given), iter(fixed)
        return [next(held) if yes else next(rest) for yes in self.frozen]

    # -- making ----------------------------------------------------------------------------

    def _ready(
        self, given: Sequence[Any], fixed: Callable[[], Sequence[Any]], version: object
    ) -> _Made | None:
        """Return the engine's executable for these frozen inputs; None where the others run the
        segment.
        """
        made = self._made
        if made is not None and (
            not self._constant or (version is not None and made.version is version)
        ):
            return made
        with self._lock:
            if self._instead is not None:
                return None
            held = tuple(fixed())
            made = self._made
            if made is not None and all(map(is_, held, made.held)):
                self._made = replace(made, version=version)
                return self._made
            self._replaced += made is not None
            self._constant &= self._replaced < MOST_REPLACED
            try:
                found = self._compiled(self._graph(held))
                self._made = _Made(found, isinstance(found, WritingExecutable), held, version)
            except Exception as error:  # whatever an engine raises, the others can run it
                self._demote("compile", error, self._all(given, held) if given else ())
            return self._made

    def _graph(self, held: Sequence[Any]) -> Graph:
        """The body with its frozen inputs as constants."""
        if not self._constant:
            return self.body
        rest = [None] * (len(self.frozen) - len(held))
        return with_constants(self.body, self._all(rest, list(map(to_host, held))))

    def _compiled(self, graph: Graph) -> SegmentExecutable:
        start = time.perf_counter()
        made = self._restored(graph)
        if made is None:
            made = self.engine.compile_segment(graph)
            self.notes.outcome = "compiled"
            self._keep(graph, made)
        self.notes.detail = made.describe()
        self.notes.seconds = time.perf_counter() - start
        self._tell()
        return made

    def _tell(self) -> None:
        """Write what became of the segment into the program's report."""
        if self._report is not None:
            notes = self.notes
            what = f"{self.body.name}, {len(self.body.nodes)} nodes for {notes.engine}"
            outcome = notes.outcome + (f" in {notes.seconds:.3f} s" if notes.seconds else "")
            why = "; ".join((notes.detail, *notes.remarks))
            self._report.decide("segments", what, outcome, why)

    def _restored(self, graph: Graph) -> SegmentExecutable | None:
        key = blob_key(self.engine.name, graph)
        found = _SHELF.get(key)
        if found is None and self._store is not None:
            found = self._store.saved(key)
        if found is None:
            return None
        made, remark = restored(self.engine, found)
        if remark:
            self.notes.remarks.append(remark)
            get_logger("segments").info("segment %s: %s", self.body.name, remark)
        if made is not None:
            self.notes.outcome = "restored"
        return made

    def _keep(self, graph: Graph, made: SegmentExecutable) -> None:
        if self._store is None:
            return
        try:
            sealed = seal(self.engine.name, made)
            if len(sealed) <= MOST_KEPT:  # Others need the cache, too.
                self._store.save(blob_key(self.engine.name, graph), sealed)
            else:
                self.notes.remarks.append(f"not kept: {len(sealed)} bytes are too many")
        except Exception as error:  # a segment that cannot be kept is as good as any
            self.notes.remarks.append(f"not kept: {_said(error)}")

    # -- running ---------------------------------------------------------------------------

    def results(
        self,
        given: Sequence[Any],
        fixed: Callable[[], Sequence[Any]],
        results: Sequence[Any] | None = None,
        version: object = None,
        extents: Mapping[str, int] = NO_EXTENTS,
    ) -> Sequence[Any]:
        """The results: `results` themselves if they were written. Arguments are those of `into`."""
        made = self._ready(given, fixed, version)
        if made is not None:
            passed = given if self._constant or not made.held else self._all(given, fixed())
            self.notes.runs += 1
            self.notes.handed += len(passed) + len(self.body.outputs)
            if self.symbols:
                numbers = np.array([extents[name] for name in self.symbols], np.int64)
                passed = [*passed, numbers]
            try:
                if results is not None and made.writes:
                    cast(WritingExecutable, made.executable).run_into(passed, results)
                    return results
                return self._checked(made.executable.run(passed), results)
            except Exception as error:  # as above
                with self._lock:
                    self._demote("run", error, self._all(given, fixed()))
        if self._instead is None:
            raise CompileError("segment", f"{self.body.name} has no engine to run it")
        rest = (extents,) if self.symbols else ()
        return self._instead(self._all(given, fixed()), *rest)

    def _checked(self, made: Sequence[Any], targets: Sequence[Any] | None) -> Sequence[Any]:
        """Results of the types that the body has: an engine's mistake should not travel on.

        Open extents are those of `targets`.
        """
        types = self.body.output_types
        if len(made) != len(types):
            raise TypeError(f"it gave {len(made)} results where {len(types)} belong")
        shapes = [t.shape for t in types] if targets is None else [t.shape for t in targets]
        for result, type_, shape in zip(made, types, shapes, strict=True):
            if result.dtype != type_.dtype.numpy or result.shape != shape:
                given = f"{result.dtype}{list(result.shape)}"
                raise TypeError(f"it gave {given} where {type_.with_shape(shape)} belongs")
        return made

    def _demote(self, what: str, error: Exception, arrays: Sequence[Any]) -> None:
        """Leave the segment to other engines from now on, and say so once."""
        self._made = None
        replay = self._replay(f"{self.engine.name} failed to {what} it: {_said(error)}", arrays)
        if self._strict:
            raise CompileError(
                f"segment {self.body.name}",
                f"{self.engine.name} failed to {what} it: {_said(error)}",
                saw=", ".join(dict.fromkeys(n.op.name for n in self.body.nodes)),
                hint="leave an op out with force_fallback, or let strict_segments be False",
            ) from error
        if self._instead is None:
            self.notes.outcome, self.notes.detail = "demoted", f"{what}: {_said(error)}"
            self.notes.remarks += [replay] if replay else []
            get_logger("segments").warning(
                "segment %s (%d ops) is run by other engines: %s failed to %s it: %s",
                *(self.body.name, len(self.body.nodes), self.engine.name, what, _said(error)),
            )
            self._tell()
            self._instead = self._others(self.body, self.frozen)

    def _replay(self, why: str, arrays: Sequence[Any]) -> str:
        """Return where a script is that runs it again, if one is asked for; ones stand for no
        inputs.
        """
        if not REPLAY.get() or not all(t.is_static for t in self.body.input_types):
            return ""
        types = self.body.input_types
        given = arrays or [np.ones(t.shape, t.dtype.numpy) for t in types]
        found = [to_host(a) for a in given]
        return write_if_asked(self.body, found, "cpux", why, engine=self.engine.name)


class SegmentInstance:
    """A segment for many extents at certain ones.

    Args:
        launch: of the segment.
        extents: by symbol.
    """

    def __init__(self, launch: SegmentLaunch, extents: Mapping[str, int]) -> None:
        self.launch = launch
        self.frozen = launch.frozen
        self._extents = extents

    def into(
        self,
        given: Sequence[Any],
        fixed: Callable[[], Sequence[Any]],
        results: Sequence[Any],
        version: object = None,
    ) -> None:
        """Write the results where the caller wants them; see `SegmentLaunch.into`."""
        self.launch.into(given, fixed, results, version, self._extents)


def restored(
    engine: SegmentEngine, sealed: bytes | memoryview
) -> tuple[SegmentExecutable | None, str]:
    """Return the executable in a blob, None where it is of no use here; and what there is to say
    about it.
    """
    try:
        blob = unseal(bytes(sealed))
        if blob.engine != engine.name:
            return None, f"a blob of {blob.engine} is none for {engine.name}; compiled anew"
        fit = judged(engine, blob.compat)
        if fit.fit == "incompatible":
            return None, f"a blob of {engine.name} does not fit, compiled anew: {fit.reason}"
        remark = f"a blob may be slower than one compiled here: {fit.reason}"
        return engine.load_segment(blob.data), remark if fit.fit == "slower" else ""
    except Exception as error:  # a blob is a convenience
        return None, f"a blob is of no use, compiled anew: {_said(error)}"


def blob_key(engine: str, graph: Graph) -> str:
    """The name of a segment's blob. What must fit besides is in the blob, and is judged."""
    return hashlib.sha256(f"{engine}\n{graph.digest}".encode()).hexdigest() + ".segment"


_SHELF: dict[str, bytes | memoryview] = {}


def shelve(key: str, sealed: bytes | memoryview) -> None:
    """Put a blob that came with a program before those on disk."""
    _SHELF[key] = sealed


def _said(error: BaseException) -> str:
    """Return what went wrong, on one line."""
    if isinstance(error, TreadleError):
        return f"{error.problem} ({error.saw})" if error.saw else error.problem
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return f"{type(error).__name__}: {text[:300]}"


def with_constants(graph: Graph, arrays: Sequence[Any]) -> Graph:
    """The graph with constants in the place of those inputs for which there is an array."""
    builder = GraphBuilder(graph.name)
    known: dict[Value, Value] = {}
    for value, array in zip(graph.inputs, arrays, strict=True):
        if array is None:
            known[value] = builder.input(value.type, value.name).value
        else:
            known[value] = builder.constant(array).value
    for node in graph.nodes:
        made = builder.copy(node, tuple(known[v] for v in node.inputs))
        known.update(zip(node.outputs, made.outputs, strict=True))
    builder.output(*(builder.operand(known[v]) for v in graph.outputs))
    return builder.build()


# -- finding them ------------------------------------------------------------------------------


def launches_of(
    plan: Plan,
    frozen: Sequence[bool],
    others: Others,
    store: BlobStore,
    report: CompileReport,
    *,
    strict: bool = False,
    kind: str = "cpu",
) -> dict[int, SegmentLaunch]:
    """Return the launches of the segments of a program of a device kind, by the number of their
    tasks.

    Those that take no frozen inputs are compiled now.
    """
    constant = {i for i, yes in enumerate(frozen) if yes}
    found = {}
    for number, task in enumerate(plan.host):
        if not isinstance(task.op, Fused) or not task.op.is_segment:
            continue
        flags = [at.base in constant and not at.offset for at, _ in task.inputs]
        found[number] = launch = SegmentLaunch(
            engine_of(task.op, kind),
            body_of(task.op),
            flags,
            others,
            strict=strict,
            store=store,
            report=report,
        )
        launch.prepare()
    return found


def is_apart(engine: Engine) -> bool:
    """Return whether an engine compiles parts of programs by itself."""
    return isinstance(engine, SegmentEngine)


def kept_whole(engines: Iterable[Engine]) -> tuple[str, ...]:
    """Names of the composites that some of the engines would have in one piece."""
    keeping = [e for e in engines if isinstance(e, KeepingEngine)]
    if not keeping:
        return ()
    names = (n for n, op in REGISTRY.items() if issubclass(op, Composite))
    return tuple(n for n in names if any(e.keeps(n) for e in keeping))


def engine_of(op: Fused, kind: str = "cpu") -> SegmentEngine:
    """The engine of a segment.

    Raises:
        CompileError: it is not installed here.
    """
    for engine in (*registry.engines(kind), *registry.engines("cpu")):
        if engine.name == op.engine and isinstance(engine, SegmentEngine):
            return engine
    raise CompileError(
        "segment", f"there is no segment engine called {op.engine!r}", hint="is it installed?"
    )


def body_of(op: Fused) -> Graph:
    """The graph of a segment."""
    if not isinstance(op.body, Graph):
        raise CompileError("segment", f"the body of {op.kind} is not a graph")
    return op.body


def op_by_op(
    body: Graph, frozen: tuple[bool, ...], kind: str = "cpu"
) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """The graph run node by node by engines that run single ops."""
    engines = [e for e in registry.engines(kind) if not isinstance(e, SegmentEngine)]
    steps = [
        (n, _launch(n.op.name, engines, n.op, [_plain(v) for v in n.inputs]))
        for n in body.nodes
        if not isinstance(n.op, Constant)
    ]
    constants = {n.output: n.op.reference() for n in body.nodes if isinstance(n.op, Constant)}

    def run(arrays: Sequence[Any]) -> Sequence[Any]:
        known = dict(constants)
        known.update(zip(body.inputs, arrays, strict=True))
        for node, launch in steps:
            results = as_tuple(launch(*[known[v] for v in node.inputs]))
            known.update(zip(node.outputs, results, strict=True))
        return tuple(known[v] for v in body.outputs)

    return run


def _plain(value: Value) -> TensorType:
    return TensorType(value.type.dtype, value.type.shape)


def _launch(name: str, engines: Sequence[Engine], op: Any, types: Sequence[TensorType]) -> Launch:
    for engine in engines:
        found = engine.prepare(op, types)
        if not isinstance(found, Support):
            return found
    raise TreadleError(name, "no engine besides that of its segment runs it")
