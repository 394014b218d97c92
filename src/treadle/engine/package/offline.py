"""Offline models: compiled into their file before, mapped and run with nothing left to compile.

    model = load_offline("model.tm")
    results = model.run({"x": image})

No compiler and no module of the six stages is imported, and the graph's text is not parsed, unless
a model has to be compiled after all. That happens where it is asked for (`recompile=True`), and
where nobody who is trusted has made the file.
"""

from __future__ import annotations

import mmap
import os
import stat
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from treadle.base.array import Array
from treadle.base.dtype import as_dtype
from treadle.base.edition import COMPILED
from treadle.base.env import ENGINES
from treadle.base.errors import CheckpointError, EngineError, LoadError, ShapeError, TreadleError
from treadle.base.files.checksum import LaterChecksum
from treadle.base.files.sealed import Sealed
from treadle.base.files.source import SizedStream
from treadle.base.log import get_logger
from treadle.base.types import TensorType
from treadle.base.version import LITE, VERSION
from treadle.engine.package import opened
from treadle.engine.package.extents import Pattern, Range
from treadle.engine.package.native_part import Described, NewerSchema, described
from treadle.engine.package.native_run import (
    as_input,
    best_of,
    extents,
    loader_of,
    usable,
)
from treadle.engine.package.phases_run import PhasedNativeRunner, runner_of

if TYPE_CHECKING:
    from treadle.engine.options import Options
    from treadle.engine.package.models import Model, OpenRunner
    from treadle.engine.package.native_run import NativeRunner
    from treadle.graph.ir import Graph

Inputs = Mapping[str, Any] | Sequence[Any]
_POPULATE_READ = 22
"""Linux's MADV_POPULATE_READ, which Python's mmap has no name for."""
_DAMAGE = (KeyError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output.

    Attributes:
        name: of it.
        dtype: of its elements.
        shapes: one per gear; none where the graph leaves extents open and nothing was compiled,
            and one of those that it takes where there is a pattern.
        pattern: the shape with names for extents that have ranges (`OfflineModel.ranges`), of an
            output with expressions in them; () where there are none.
    """

    name: str
    dtype: np.dtype[Any]
    shapes: tuple[tuple[int, ...], ...]
    pattern: Pattern = ()


class OfflineModel:
    """A model out of a file, ready to run; made by `load_offline`. Threads may share it.

    Attributes:
        path: of the file.
        inputs, outputs: what they are called and what they take and give, gear by gear.
        ranges: least and largest extent of what may change, by name; none of a file of gears.
        manifest: what the file says about this model, its graph and weights left out.
        target: name of the instructions that its native part uses; "" where that is not used.
    """

    def __init__(
        self,
        file: _File,
        entry: Mapping[str, Any],
        part: Described | None,
        runner: NativeRunner | PhasedNativeRunner | None,
        recompile: bool,
    ) -> None:
        self._file, self._entry, self._runner, self._recompile = file, entry, runner, recompile
        self.path = file.source.where
        self.manifest: Mapping[str, Any] = MappingProxyType(_manifest(file.sealed, entry, part))
        self.target = part.machine.target if part is not None and runner is not None else ""
        self._lock = threading.Lock()
        self._compiled: OpenRunner | None = None
        names = entry["inputs"], entry["outputs"]
        gears = self._types() if part is None else part.types
        ranges = None if part is None else part.ranges
        self.ranges: dict[str, Range] = {} if ranges is None else dict(ranges.extents)
        ends = (None, None) if ranges is None else (ranges.inputs, ranges.outputs)
        self.inputs, self.outputs = (
            tuple(
                _port(*pair, () if patterns is None else patterns[i])
                for i, pair in enumerate(zip(named, zip(*types, strict=True), strict=True))
            )
            for named, types, patterns in zip(names, zip(*gears, strict=True), ends, strict=True)
        )

    def _types(self) -> list[tuple[list[TensorType], list[TensorType]]]:
        """Return the types that the graph takes and gives, as the one gear there is."""
        graph = self.graph
        return [([v.type for v in graph.inputs], [v.type for v in graph.outputs])]

    @property
    def gears(self) -> list[dict[str, tuple[int, ...]]]:
        """The shapes of the inputs by name, gear by gear."""
        shapes = zip(*(port.shapes for port in self.inputs), strict=False)
        return [dict(zip([p.name for p in self.inputs], gear, strict=True)) for gear in shapes]

    @cached_property
    def model(self) -> Model:
        """The portable part: an `engine.package.Model`. Parsed when it is first asked for."""
        from treadle.engine.package.models import models_in

        with self._file.lock:
            models = models_in(self._file.source)
        return models[self._file.number]

    @property
    def graph(self) -> Graph:
        """The graph that the model was compiled from."""
        return self.model.graph

    def run(self, inputs: Inputs, out: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Run the model.

        Args:
            inputs: arrays by name, or in order; they are converted to the element types of the
                inputs. Their shapes choose the gear.
            out: arrays for results, by name; results that it does not name are new arrays.

        Raises:
            EngineError: a name is unknown, or an input is missing.
            DTypeError: an input would lose more than digits in its element type.
            ShapeError: there is no gear of these shapes, an extent lies outside of its range, or an
                array of `out` cannot be used.
            OutOfMemory: at these extents it needs more scratch memory than the file declares.
        """
        arrays = [
            as_input(value, port.dtype, port.name)
            for value, port in zip(self._ordered(inputs), self.inputs, strict=True)
        ]
        places = None if out is None else self._places(out)
        runner, shapes = self._runner, tuple([a.shape for a in arrays])
        if runner is not None and runner.serves(shapes):
            results = runner.run(arrays, places)
        else:
            results = self._run_compiled(shapes, arrays, places)
        return dict(zip([p.name for p in self.outputs], results, strict=True))

    def results(self, shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]] | None:
        """Shapes of the results, for inputs of these, with -1 for extents that data decide; None
        where no code here is for them.

        Raises:
            OutOfMemory: at these extents it needs more scratch memory than the file declares.
        """
        return None if self._runner is None else self._runner.results(tuple(shapes))

    def close(self) -> None:
        """Give scratch memory back; running again takes new."""
        if self._runner is not None:
            self._runner.close()

    def _ordered(self, inputs: Inputs) -> Sequence[Any]:
        names = [p.name for p in self.inputs]
        if isinstance(inputs, Mapping):
            if inputs.keys() != set(names):
                raise EngineError(
                    "model",
                    "inputs have other names",
                    saw=", ".join(map(str, inputs)) or "none",
                    hint=f"the model has {', '.join(names)}",
                )
            return [inputs[name] for name in names]
        if len(inputs) != len(names):
            raise EngineError(
                "model",
                f"{len(names)} inputs are needed, {len(inputs)} were given",
                hint=f"in order: {', '.join(names)}",
            )
        return inputs

    def _places(self, out: Mapping[str, Array]) -> list[Array | None]:
        names = [p.name for p in self.outputs]
        unknown = [name for name in out if name not in names]
        if unknown:
            raise EngineError(
                "model",
                f"there is no output {unknown[0]!r}",
                hint=f"the model has {', '.join(names)}",
            )
        return [out.get(name) for name in names]

    # -- compiled here -----------------------------------------------------------------------

    def _run_compiled(
        self, shapes: tuple[Any, ...], arrays: list[Array], places: list[Array | None] | None
    ) -> list[Array]:
        """Run for shapes, or on a machine, that nothing was compiled for."""
        if not self._recompile:
            if self._runner is not None and (refused := self._runner.refused(shapes)) is not None:
                raise refused
            known = "; ".join(_spelled(gear) for gear in self.gears)
            given = dict(zip([p.name for p in self.inputs], shapes, strict=True))
            raise ShapeError(
                "model",
                "it was not compiled for inputs of these shapes",
                saw=_spelled(given),
                hint=f"it has gears for {known}; recompile=True (run --recompile) for others",
            )
        with self._lock:
            if self._compiled is None:
                from treadle.engine.package.models import OpenRunner

                self._compiled = OpenRunner(self.model, self._options())
            run = self._compiled.at(shapes)
        results: list[Array] = run(arrays)
        for i, place in enumerate(places or ()):
            if place is not None:
                kind = TensorType(as_dtype(results[i].dtype), results[i].shape)
                usable(place, kind, arrays)[...] = results[i]
                results[i] = place
        return results

    def _options(self) -> Options:
        """The options that the native part was compiled with, as far as the file records them.

        Engines that are not here are left out.
        """
        from treadle.backends import registry
        from treadle.engine.options import Options

        known = {f.name for f in fields(Options) if f.init}
        try:
            noted = self.manifest.get("about", {}).get("options", {}).items()
            given: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in noted if k in known}
            if given.get("engines"):
                here = registry.engine_names("cpu")
                given["engines"] = tuple(n for n in given["engines"] if n in here)
            return Options(**given)
        except _DAMAGE as error:
            raise _damaged(self._file, error) from error


def load_offline(
    path: str | os.PathLike[str],
    *,
    recompile: bool = False,
    verify: bool = False,
    allow_native: bool | None = None,
    number: int = 0,
) -> OfflineModel:
    """Open a model that was compiled into its file.

    Native parts are machine code, which can do what a program can do. They run only if this user
    made the file on this machine, or a key signed it that the user trusts (`treadle trust`). The
    graph of any other file is compiled here, and a warning says so.

    Args:
        path: of the file. It is mapped: replace it by renaming, as Treadle does, not by writing
            into it while it is open.
        recompile: compile the graph here, with the recorded options, where no native part fits
            this machine or can be opened, or none of its gears fits the inputs.
        verify: check the SHA-256 of the weights as well, which tells malice, too. That they are
            not damaged is checked in any case, by a checksum at the speed of memory that is under
            way when this returns: the first run waits for it, and raises CheckpointError. Manifest,
            programs and code are checked by their SHA-256 before the code is opened.
        allow_native: True runs native parts whoever made them; False leaves them alone, and the
            graph is compiled here, as with `recompile`.
        number: of the model, in a file with several.

    Raises:
        LoadError: the file has no native part, or none that fits this processor or this version
            of Treadle (and `recompile` is not set).
        CheckpointError: the file is damaged, or of another kind.
        OSError: it cannot be opened.
    """
    file = _File(path, number)
    entry = file.entry()
    if allow_native is None and entry.get("native") and not file.sealed.origin.who:
        get_logger().warning(
            "%s: its machine code is left alone and its graph %s here: %s",
            file.source.where,
            COMPILED,
            file.sealed.origin.why_unknown,
        )
        return _guarded(file, entry, None, None, True)
    parts = _described(file, entry) if allow_native is not False else []
    best = best_of([(p.engine, p.machine) for p in parts])
    if best is None:
        if allow_native is not False and not recompile:
            raise _refusal(file, parts)
        if LITE is not None and allow_native is not False and not (parts or ENGINES.get()):
            get_logger().warning(
                "%s: NumPy runs the model, op by op: it has no machine code; `treadle compile` "
                "makes some, where all of Treadle is installed",
                file.source.where,
            )
        return _guarded(file, entry, parts[0] if parts else None, None, True)
    known = parts[best].checksum
    try:
        part = parts[best].open(lambda name: file.member(name, verify or not known))
    except _DAMAGE as error:
        raise _damaged(file, error) from error
    try:
        runner = runner_of(part, partial(_check_weights, file, known))
    except LoadError:
        if not recompile:
            raise
        return _guarded(file, entry, parts[best], None, True)
    return _guarded(file, entry, parts[best], runner, recompile)


def _check_weights(file: _File, known: str) -> None:
    """Wait for the checksum of the weights, which is under way since the file was opened.

    Raises:
        CheckpointError: it is another one.
    """
    if file.checksum is not None and file.checksum.value() != known:
        raise file.source.error(
            "checksum of the weights does not match: they are damaged",
            hint="use another copy of the file",
        )


def _guarded(file: _File, entry: Mapping[str, Any], *rest: Any) -> OfflineModel:
    try:
        return OfflineModel(file, entry, *rest)
    except _DAMAGE as error:
        raise _damaged(file, error) from error


def _described(file: _File, entry: Mapping[str, Any]) -> list[Described]:
    try:
        found = [described(part) for part in entry.get("native", ())]
        for part in found:
            counts = tuple(map(len, part.types[0]))
            if counts != (len(entry["inputs"]), len(entry["outputs"])):
                raise ValueError("its gears have other inputs or outputs than its graph")
        return found
    except NewerSchema as error:
        raise file.source.error(
            str(error), saw=f"written by {error.producer}", hint=f"upgrade Treadle ({VERSION})"
        ) from None
    except _DAMAGE as error:
        raise _damaged(file, error) from error


def _damaged(file: _File, error: Exception) -> TreadleError:
    if isinstance(error, TreadleError):
        return error
    told = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return file.source.error(f"the model is damaged: {told}")


def _refusal(file: _File, parts: Sequence[Described]) -> LoadError:
    """Return an error that says why no part was taken, with what each needs and what is here."""
    hint = "load it with recompile=True, which compiles its graph for this machine"
    if not parts:
        return LoadError(
            file.source.where,
            "it has no native part",
            hint=f"write it with deploy.compile_offline, or {hint}",
        )
    lines = []
    for part in parts:
        needs, here = loader_of(part.engine).misfit(part.machine) or ("", "")
        lines.append(f"compiled for {needs}, this process has {here}")
    writer = parts[0].about.get("producer", "an unknown version")
    saw = f"written by {str(writer)[:80]}, this is treadle {VERSION}"
    return LoadError(file.source.where, "; ".join(lines), saw=saw, hint=hint)


def _manifest(sealed: Sealed, entry: Mapping[str, Any], part: Described | None) -> dict[str, Any]:
    """Return the manifest of a model: all there is to know besides its data."""
    whole = sealed.manifest
    found = {k: whole[k] for k in ("format", "version", "producer")}
    found |= {k: entry[k] for k in ("inputs", "outputs", "info", "options")}
    if part is not None:
        listed = ("schema", "engine", "target", "gears", "memory", "about", "ranges", "phases")
        found |= {k: part.entry[k] for k in listed if k in part.entry}
        digests = whole["sha256"].items()
        own = f"{part.prefix}."
        found["sha256"] = {n.removeprefix(own): d for n, d in digests if n.startswith(own)}
    return found


def _port(name: Any, types: Sequence[Any], pattern: Pattern) -> Port:
    if not isinstance(name, str) or len({t.dtype for t in types}) != 1:
        raise ValueError(f"{str(name)[:40]} has no name, or several element types")
    shapes = tuple(extents(t) for t in types if t.is_static)
    return Port(name, types[0].dtype.numpy, shapes, pattern)


def _spelled(shapes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())


# -- the file ----------------------------------------------------------------------------------


def _not_waiting(path: str, flags: int) -> int:
    """Opening a pipe that nobody writes to must fail, not hang."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


class _File:
    """A model file, open and mapped: what is read later is of the same file, whatever its name."""

    def __init__(self, path: str | os.PathLike[str], number: int) -> None:
        self.number = number
        self.lock = threading.Lock()
        self.checksum: LaterChecksum | None = None
        """Of weights, under way."""
        self._stream: IO[bytes] = open(path, "rb", opener=_not_waiting)  # noqa: SIM115 - it stays
        try:
            status = os.fstat(self._stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError(os.fsdecode(path), "not a regular file")
            size = status.st_size
            self.source = SizedStream(self._stream, size, os.fsdecode(path))
            self.sealed = opened(self.source)
            self._map = mmap.mmap(self._stream.fileno(), 0, access=mmap.ACCESS_READ)
        except BaseException:
            self._stream.close()
            raise
        self._bytes = memoryview(self._map)
        weakref.finalize(self, self._stream.close)

    def entry(self) -> Mapping[str, Any]:
        """Return the manifest's entry on the model."""
        models = self.sealed.manifest.get("models")
        if not isinstance(models, list) or not all(isinstance(m, dict) for m in models):
            raise self.source.error("the manifest lists no models")
        if not 0 <= self.number < len(models):
            raise self.source.error(f"there is no model {self.number}", saw=f"{len(models)} models")
        found: Mapping[str, Any] = models[self.number]
        return found

    def member(self, name: str, verify: bool) -> memoryview:
        """The bytes of a member; weights are read ahead, and mostly only added up meanwhile."""
        weights = name.endswith(".weights")
        if not weights:
            return self.sealed.mapped(name, self._bytes)
        raw = self.sealed.mapped(name, self._bytes, check=verify)
        self._ready(raw)
        self.checksum = None if verify else LaterChecksum(raw)
        return raw

    def _ready(self, raw: memoryview) -> None:
        """Ask the system to load pages of weights, so that the first run need not wait for them."""
        start = np.frombuffer(raw, np.uint8).__array_interface__["data"][0]
        start -= np.frombuffer(self._bytes, np.uint8).__array_interface__["data"][0]
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        for advice in (_POPULATE_READ, getattr(mmap, "MADV_WILLNEED", None)):
            try:
                if advice is not None:
                    self._map.madvise(advice, first, start + len(raw) - first)
                    return
            except (OSError, AttributeError):  # an older system
                continue


__all__ = ["OfflineModel", "Port", "load_offline"]
