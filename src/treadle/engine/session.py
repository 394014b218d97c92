"""`Session`: the engine for programs that build graphs themselves.

    initialize(level=2)
    with Session() as session:
        session.add_graph(0, graph)
        outputs = session.run_graph(0, arrays)

Options are those of `engine.Options`; a graph's override its session's, which override the
engine's. Sessions are isolated from one another; graphs of a session share its variables.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.base.errors import EngineError
from treadle.base.symbol import Expr
from treadle.base.types import TensorType
from treadle.engine.execute import Runner
from treadle.engine.execute.counters import Counters
from treadle.engine.extents.plans import OpenRunners
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface
from treadle.engine.report import CompileReport
from treadle.graph.evaluate import extents_of
from treadle.graph.ir import Graph, symbols_of
from treadle.graph.verify import verify

Done = Callable[["Future[list[Array]]"], Any]


@dataclass
class _Engine:
    """The process's engine: its options, and the sessions that are open."""

    options: Options | None = None
    sessions: set[int] = field(default_factory=set)


_ENGINE = _Engine()
_LOCK = threading.Lock()


def initialize(**options: Any) -> None:
    """Set the engine's options, once per process.

    Raises:
        EngineError: it is initialized already, or an option is unknown or has a wrong value.
    """
    with _LOCK:
        if _ENGINE.options is not None:
            raise EngineError(
                "initialize", "the engine is initialized already", hint="call finalize() first"
            )
        _ENGINE.options = _with(Options(), options, "initialize")


def finalize() -> None:
    """Forget the options.

    Raises:
        EngineError: the engine is not initialized, or sessions are open.
    """
    with _LOCK:
        _options("finalize")
        if _ENGINE.sessions:
            raise EngineError(
                "finalize", f"{len(_ENGINE.sessions)} sessions are open", hint="close them first"
            )
        _ENGINE.options = None


def _options(where: str) -> Options:
    if _ENGINE.options is None:
        raise EngineError(
            where, "the engine is not initialized", hint="call treadle.engine.initialize() first"
        )
    return _ENGINE.options


def _with(base: Options, given: Mapping[str, Any], where: str) -> Options:
    """The options with some replaced."""
    known = {f.name: f for f in dataclasses.fields(Options) if f.init}
    for name, value in given.items():
        if name not in known:
            raise EngineError(
                where, f"there is no option {name!r}", hint=f"options are {', '.join(known)}"
            )
        default = getattr(Options(), name)
        if type(value) is not type(default):
            raise EngineError(
                where,
                f"option {name} takes {type(default).__name__}, not {type(value).__name__}",
                saw=repr(value),
                hint=f"the default is {default!r}",
            )
    return dataclasses.replace(base, **given)


class _Entry:
    """One graph of a session, built when it first runs; where extents are open, for a range."""

    def __init__(
        self, graph: Graph, options: Options, variables: tuple[str, ...], updates: dict[int, str]
    ) -> None:
        self.graph = graph
        self.variables = variables
        self.updates = updates
        self.builds = 0
        self.lock = threading.Lock()
        position = {name: i for i, name in enumerate(variables) if name}
        pairs = tuple((j, position[name]) for j, name in updates.items() if name in position)
        changed = {i for _, i in pairs}
        frozen = tuple(bool(n) and i not in changed for i, n in enumerate(variables))
        interface = Interface(frozen, pairs)
        self.stages = Stages(graph, interface, options)
        self.many = OpenRunners(graph, options, interface) if symbols_of(graph) else None

    @property
    def is_built(self) -> bool:
        """True if there is a program."""
        if self.many is not None:
            return self.many.made > 0
        return self.stages.made.get("running") is not None

    def build(self) -> None:
        """Run all stages but the last, once."""
        if self.many is not None:
            names = ", ".join(s.name for s in symbols_of(self.graph))
            hint = "run it: arrays say what extents are"
            raise EngineError("build_graph", f"the extents {names} are open", hint=hint)
        with self.lock:
            if self.stages.made.get("running") is None:
                self.stages.compile()
                self.builds += 1

    def runner(self, arrays: Sequence[Array]) -> Runner:
        """The program for these arrays, built if there is none.

        Raises:
            ShapeError: the graph does not take their extents.
        """
        if self.many is None:
            self.build()
            return self.stages.compile()
        return self.many.at(extents_of(self.graph, arrays))

    @property
    def counters(self) -> Counters:
        """Counters of its runs."""
        if self.many is not None:
            return self.many.counters
        runner = self.stages.made.get("running")
        return Counters() if runner is None else runner.counters


class Session:
    """Graphs, their programs and the variables they share.

    Args:
        options: override the engine's, for all graphs of the session.

    Raises:
        EngineError: the engine is not initialized, or an option is unknown.
    """

    def __init__(self, **options: Any) -> None:
        with _LOCK:
            self._options = _with(_options("Session"), options, "Session")
            _ENGINE.sessions.add(id(self))
        self._graphs: dict[int, _Entry] = {}
        self._variables: dict[str, Array] = {}
        self._lock = threading.RLock()
        self._pool: ThreadPoolExecutor | None = None
        self._open = True

    # -- life ------------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for what runs, and free programs and variables; harmless when closed."""
        with self._lock:
            if not self._open:
                return
            self._open = False
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)
        self._graphs.clear()
        self._variables.clear()
        with _LOCK:
            _ENGINE.sessions.discard(id(self))

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- variables -------------------------------------------------------------------------

    def set_variable(self, name: str, value: Any) -> None:
        """Create a variable or give it another value; graphs read it as the input of its name."""
        with self._lock:
            self._require_open("set_variable")
            self._variables[name] = np.array(value, order="C", copy=True)

    def variable(self, name: str) -> Array:
        """A copy of a variable's value.

        Raises:
            EngineError: there is no such variable.
        """
        with self._lock:
            if name not in self._variables:
                raise EngineError(
                    "variable",
                    f"the session has no variable {name!r}",
                    saw=", ".join(self._variables) or "it has none",
                )
            return self._variables[name].copy()

    def save_variables(self) -> dict[str, Array]:
        """Copies of all variables, as a checkpoint keeps them."""
        with self._lock:
            return {name: value.copy() for name, value in self._variables.items()}

    # -- graphs ----------------------------------------------------------------------------

    def add_graph(
        self,
        key: int,
        graph: Graph,
        *,
        updates: Mapping[int, str] | None = None,
        **options: Any,
    ) -> None:
        """Take a graph in; it is built when it first runs, or by `build_graph`.

        Args:
            key: the number by which it is called.
            graph: inputs whose names are variables of the session read those.
            updates: outputs that become a variable's next value, in place of being returned.
            options: override the session's.

        Raises:
            EngineError: the number is taken, or an update names no variable or has another type.
            GraphError: the graph is malformed.
        """
        verify(graph)
        with self._lock:
            self._require_open("add_graph")
            if key in self._graphs:
                raise EngineError(
                    "add_graph", f"graph {key} exists already", hint="remove_graph() it first"
                )
            chosen = _with(self._options, options, "add_graph")
            names = tuple(v.name if v.name in self._variables else "" for v in graph.inputs)
            changed = dict(updates or {})
            for output, name in changed.items():
                self._check_update(graph, output, name)
            self._graphs[key] = _Entry(graph, chosen, names, changed)

    def _check_update(self, graph: Graph, output: int, name: str) -> None:
        if name not in self._variables or not 0 <= output < len(graph.outputs):
            raise EngineError(
                "add_graph",
                f"output {output} cannot become variable {name!r}",
                saw=f"{len(graph.outputs)} outputs; variables {', '.join(self._variables)}",
                hint="set_variable() it first",
            )
        type_, value = graph.outputs[output].type, self._variables[name]
        if (type_.shape, type_.dtype.numpy) != (value.shape, value.dtype):
            raise EngineError(
                "add_graph",
                f"output {output} has another type than variable {name!r}",
                saw=f"{type_} and {value.dtype}{list(value.shape)}",
            )

    def remove_graph(self, key: int) -> None:
        """Forget a graph and free its program."""
        with self._lock:
            self._entry(key, "remove_graph")
            del self._graphs[key]

    def build_graph(self, key: int) -> CompileReport:
        """Run all stages but the last, unless that is done; returns their decisions.

        Raises:
            EngineError: extents of the graph are open.
        """
        entry = self._entry(key, "build_graph")
        entry.build()
        return entry.stages.report

    def is_rebuild_needed(self, key: int) -> bool:
        """Return whether the next run builds first; open extents of another range always may."""
        return not self._entry(key, "is_rebuild_needed").is_built

    def counters(self, key: int) -> Counters:
        """Return the counters of a graph's runs and their cost at its border."""
        return self._entry(key, "counters").counters

    def run_graph(self, key: int, inputs: Sequence[Any] = ()) -> list[Array]:
        """Run a graph on arrays, one for each input that is not a variable, in order.

        Where extents of inputs are symbols, arrays say what they are. Programs serve ranges of
        extents, and are built when the first ones of a range come along.

        Returns:
            The outputs that are not updates, in order.

        Raises:
            EngineError: there is no such graph, or an array does not fit its input.
            ShapeError: the graph does not take the extents of the arrays.
        """
        entry = self._entry(key, "run_graph")
        if entry.updates:
            with self._lock:  # Graphs of a session share its variables.
                return self._run(entry, inputs)
        return self._run(entry, inputs)

    def run_graph_async(
        self, key: int, inputs: Sequence[Any] = (), callback: Done | None = None
    ) -> Future[list[Array]]:
        """Run a graph on another thread; `callback` gets the future when it is done."""
        with self._lock:
            self._require_open("run_graph_async")
            if self._pool is None:
                self._pool = ThreadPoolExecutor(4, thread_name_prefix="treadle-session")
            future = self._pool.submit(self.run_graph, key, list(inputs))
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def _run(self, entry: _Entry, inputs: Sequence[Any]) -> list[Array]:
        given = iter(inputs)
        arrays: list[Array] = []
        for value, name in zip(entry.graph.inputs, entry.variables, strict=True):
            if name:
                arrays.append(self._variables[name])
                continue
            array = np.ascontiguousarray(next(given, _MISSING), value.type.dtype.numpy)
            array = array.reshape(()) if not value.type.shape and array.size == 1 else array
            if not _fits(array, value.type):
                raise EngineError(
                    "run_graph",
                    f"an array does not fit input {value.name or value.index}",
                    saw=f"{array.dtype}{list(array.shape)} for {value.type}",
                    hint=f"the graph takes {entry.variables.count('')} arrays",
                )
            arrays.append(array)
        results = entry.runner(arrays).run(arrays)
        for j, name in entry.updates.items():
            if name not in entry.variables:  # Written, but not read, by the graph.
                place = sum(1 for k in range(j) if self._is_result(entry, k))
                self._variables[name] = results[place]
            else:  # Written in place: graphs that have it packed look whether it is another array.
                self._variables[name] = self._variables[name].view()
        return [
            results[sum(1 for k in range(j) if self._is_result(entry, k))]
            for j in range(len(entry.graph.outputs))
            if j not in entry.updates
        ]

    @staticmethod
    def _is_result(entry: _Entry, output: int) -> bool:
        """Return whether the executor returns the output, rather than writing it in place."""
        return entry.updates.get(output, "") not in [n for n in entry.variables if n]

    def _entry(self, key: int, where: str) -> _Entry:
        with self._lock:
            self._require_open(where)
            if key not in self._graphs:
                raise EngineError(
                    where,
                    f"the session has no graph {key}",
                    saw=", ".join(map(str, self._graphs)) or "it has none",
                    hint="add_graph() it first",
                )
            return self._graphs[key]

    def _require_open(self, where: str) -> None:
        if not self._open:
            raise EngineError(where, "the session is closed", hint="open another one")


def _fits(array: Array, type_: TensorType) -> bool:
    """Return whether an array has a type, whose extents may be open."""
    wanted = type_.shape
    pairs = zip(wanted, array.shape, strict=False)
    return len(wanted) == array.ndim and all(isinstance(w, Expr) or w == n for w, n in pairs)


_MISSING = np.empty(0)
"""Stands for an input that was not given; no input that must be given is empty."""


__all__ = ["Session", "finalize", "initialize"]
