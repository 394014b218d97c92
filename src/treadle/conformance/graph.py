"""Graph: compiled programs on the device, and what engines for whole segments compile."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from treadle import jit
from treadle.backends import registry
from treadle.backends.program import CompilingEngine
from treadle.backends.segments import ClaimingEngine, SegmentEngine, SegmentExecutable
from treadle.base.array import Array
from treadle.conformance import segment_visit
from treadle.conformance.check import Check, CheckFailed, Measured, NotOffered, require
from treadle.conformance.honesty import check_answer
from treadle.conformance.programs import graph_of, inputs_of, interpret, random_program
from treadle.conformance.samples import (
    calls,
    differing,
    element_types,
    main_type,
    op_names,
    require_close,
)
from treadle.conformance.subject import Subject
from treadle.graph.evaluate import evaluate
from treadle.graph.ir import Graph
from treadle.ops import REGISTRY
from treadle.ops.transfer import Identity
from treadle.runtime.array import to_host

_ALLOWED = 2e-4
"""Programs of many ops: errors of a dozen roundings, of values up to some tens."""


def checks(subject: Subject) -> Iterator[Check]:
    """Programs on the device; then every segment engine of the backend."""
    if not subject.engine_only or isinstance(subject.backend, CompilingEngine):
        yield Check("Graph", "random_programs", partial(random_programs, subject))
        yield Check("Graph", "other_shapes", partial(other_shapes, subject))
    for engine in registry.engines(subject.kind):
        if isinstance(engine, SegmentEngine) and subject.owns(engine):
            for run in _OF_ENGINES:
                name = f"segments/{engine.name}/{run.__name__}"
                yield Check("Graph", name, partial(run, subject, engine), 2)


# -- programs ----------------------------------------------------------------------------------


def random_programs(subject: Subject) -> Measured:
    """Compiled programs and the same ops one by one give what the reference gives."""
    count = 3 if subject.quick else 24
    for number in range(count):
        rng = subject.rng(100 + number)
        graph = random_program(rng)
        arrays = inputs_of(graph, rng)
        expected = _evaluate(graph, arrays)
        eager = interpret(graph, [subject.tensor(a) for a in arrays])
        require_near([t.numpy() for t in eager], expected, f"random program {number}, eager")
        compiled = jit.compile(lambda *xs, graph=graph: interpret(graph, xs))
        for turn in range(2):
            got = compiled(*[subject.tensor(a) for a in arrays])
            what = f"random program {number}, compiled, call {turn}"
            require_near([t.numpy() for t in got], expected, what)
            places = {str(t.device) for t in got}
            require(places == {str(subject.place())}, f"{what}: results are on {places}")
    return {"programs": float(count)}


def other_shapes(subject: Subject) -> None:
    """Check that a compiled function takes other shapes afterwards."""
    double = jit.compile(lambda x: (x * 2.0).sum(axis=0))
    for rows in (2, 5, 1, 2):
        x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
        got = double(subject.tensor(x)).numpy()
        require_near([got], [(x * 2).sum(0)], f"a function called with {rows} rows")


def _evaluate(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    with np.errstate(all="ignore"):
        return list(evaluate(graph, arrays))


def require_near(got: Sequence[Array], expected: Sequence[Array], what: str) -> None:
    """Raise unless results are the expected ones up to some roundings."""
    require(len(got) == len(expected), f"{what}: {len(got)} results, expected {len(expected)}")
    for i, (x, y) in enumerate(zip(got, expected, strict=True)):
        require(x.shape == y.shape, f"{what}: result {i} has shape {x.shape}, not {y.shape}")
        wrong = differing(x, y, _ALLOWED)
        if wrong.size:
            raise CheckFailed(f"{what}: {wrong.size} of {x.size} elements of result {i} are wrong")


# -- segments ----------------------------------------------------------------------------------


def answers(subject: Subject, engine: SegmentEngine) -> Measured:
    """`supports` answers yes, or no with a code and a message, for every sample of every op."""
    asked = taken = 0
    for name in op_names():
        op = REGISTRY[name]
        for dtype in [main_type(op)] if subject.quick else element_types(op):
            for call in calls(op, dtype, quick=subject.quick):
                asked += 1
                check_answer(partial(engine.supports, call.op, call.types), call)
                taken += bool(engine.supports(call.op, call.types))
    require(taken > 0, "it supports no op")
    return {"asked": float(asked), "taken": float(taken)}


def keeps_word(subject: Subject, engine: SegmentEngine) -> Measured:
    """Graphs that it supports compile and give the reference's results."""
    taken = 0
    for name in op_names():
        op = REGISTRY[name]
        for call in list(calls(op, main_type(op)))[: 2 if subject.quick else None]:
            expected = call.expected()
            if expected is None or not call.arrays or not engine.supports(call.op, call.types):
                continue
            taken += 1
            try:
                executable = engine.compile_segment(graph_of(call.op, call.types))
                got = run(subject, executable, call.arrays)
            except Exception as error:
                raise CheckFailed(
                    f"{call}: supports said yes, then {type(error).__name__}: {error}"
                ) from error
            require_close(got, expected, call)
    return {"segments": float(taken)}


def whole_programs(subject: Subject, engine: SegmentEngine) -> Measured:
    """Segments of many ops, run twice and by several threads at once, leave their inputs alone."""
    count = 2 if subject.quick else 12
    for number in range(count):
        graph, arrays = _program(subject, engine, number)
        executable = engine.compile_segment(graph)
        expected = _evaluate(graph, arrays)
        payloads = [subject.payload(a) for a in arrays]
        for turn in range(2):
            got = _on_host(executable.run(payloads))
            require_near(got, expected, f"segment {number}, run {turn}")
        for payload, array in zip(payloads, arrays, strict=True):
            same = np.array_equal(to_host(payload), array)
            require(same, f"segment {number} changed an input")
        _at_once(subject, executable, arrays, expected)
    return {"segments": float(count)}


def _program(subject: Subject, engine: SegmentEngine, number: int) -> tuple[Graph, list[Array]]:
    rng = subject.rng(200 + number)
    graph = random_program(rng, allowed=lambda op, types: bool(engine.supports(op, types)))
    if not graph.nodes:
        kind = graph.input_types[0]
        require(bool(engine.supports(Identity(), (kind,))), "it supports no op on float32 arrays")
        graph = graph_of(Identity(), (kind,))
    return graph, inputs_of(graph, rng)


def _at_once(
    subject: Subject, executable: SegmentExecutable, arrays: list[Array], expected: list[Array]
) -> None:
    failures: list[str] = []

    def work() -> None:
        try:
            for _ in range(3):
                require_near(run(subject, executable, arrays), expected, "one of three threads")
        except Exception as error:
            failures.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    require(not failures, "; ".join(failures[:1]))


def stored(subject: Subject, engine: SegmentEngine) -> Measured:
    """Stored programs say what they depend on, and load again here and in another process."""
    graph, arrays = _program(subject, engine, 0)
    executable = engine.compile_segment(graph)
    compat: Any = executable.compat()
    words = all(isinstance(k, str) and isinstance(v, str) for k, v in compat.items())
    require(words and bool(compat), f"compat() is {dict(compat)!r}; it must name versions in words")
    require(dict(compat) == dict(engine.compat()), "compat() of the segment is not the engine's")
    require(bool(executable.describe()), "describe() says nothing")
    blob: Any = executable.serialize()
    require(isinstance(blob, bytes) and bool(blob), f"serialize() returned {type(blob).__name__}")
    expected = run(subject, executable, arrays)
    again = run(subject, engine.load_segment(blob), arrays)
    require_near(again, expected, "a segment loaded from its blob")
    found = _elsewhere(subject, engine, blob, arrays)
    require_near(found, expected, "a segment loaded in another process")
    return {"bytes": float(len(blob))}


def _elsewhere(
    subject: Subject, engine: SegmentEngine, blob: bytes, arrays: list[Array]
) -> list[Array]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "blob").write_bytes(blob)
        np.savez(Path(folder, "inputs.npz"), *arrays)
        script = segment_visit.__file__
        command = [sys.executable, "-P", script, folder, subject.kind, engine.name]
        done = subprocess.run(
            command, env=subject.environment, capture_output=True, text=True, timeout=120
        )
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
            raise CheckFailed(f"a segment does not load in another process: {last[0]}")
        with np.load(Path(folder, "outputs.npz")) as made:
            return [made[f"arr_{i}"] for i in range(len(made.files))]


def damaged_blobs_are_refused(subject: Subject, engine: SegmentEngine) -> None:
    """A blob that is cut off, changed or something else raises, and never runs."""
    graph, _ = _program(subject, engine, 0)
    blob = engine.compile_segment(graph).serialize()
    damaged = {
        "cut off": blob[: len(blob) // 2],
        "empty": b"",
        "something else": b"\x7fELF" + bytes(200),
        "of another version": bytes([blob[0] ^ 0xFF]) + blob[1:],
    }
    for how, data in damaged.items():
        try:
            engine.load_segment(data)
        except Exception:
            continue
        raise CheckFailed(f"load_segment takes a blob that is {how}")


def claims_fit(subject: Subject, engine: SegmentEngine) -> None:
    """Check that a claim has nodes of the graph it was asked about, none of them twice."""
    if not isinstance(engine, ClaimingEngine):
        raise NotOffered("the engine claims nothing; it answers op by op")
    for number in range(4):
        graph = random_program(subject.rng(300 + number))
        taken: set[Any] = set()
        for nodes in engine.claim(graph):
            foreign = [n for n in nodes if n not in graph.nodes]
            require(not foreign, f"it claims {len(foreign)} nodes that are not in the graph")
            twice = taken & set(nodes)
            require(not twice, f"it claims {len(twice)} nodes twice")
            taken |= set(nodes)


def run(subject: Subject, executable: SegmentExecutable, arrays: Sequence[Array]) -> list[Array]:
    """The results of a segment for arrays that are on the device."""
    return _on_host(executable.run([subject.payload(a) for a in arrays]))


def _on_host(payloads: Sequence[Any]) -> list[Array]:
    return [np.array(to_host(p)) for p in payloads]


_OF_ENGINES = (answers, keeps_word, whole_programs, stored, damaged_blobs_are_refused, claims_fit)
