"""Model files: graphs with their weights, the names of their ends, and cases to test them with.

A file is sealed and mapped as checkpoints are (`base.files`); a graph is text that reads back, its
weights are arrays of the file. What it holds is a program before any stage, so it is compiled for
the machine that loads it. Nothing in it can run code, except for native parts, which are read only
where that is asked for, and what other engines have made, which is used only out of files of this
user, or of those whose keys are trusted (`base.files.trust`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any

import numpy as np

from treadle.backends.segments import seal
from treadle.base.array import Array
from treadle.base.errors import CheckpointError, CompileError, GraphError, ShapeError
from treadle.base.files.container import as_bytes
from treadle.base.files.sealed import Kind, Sealed, chunks_of, write
from treadle.base.files.source import PathLike, SizedStream, open_source
from treadle.base.files.trust import Signer
from treadle.base.log import get_logger
from treadle.base.shape import Shape
from treadle.engine.devices.names import CompNode
from treadle.engine.devices.placement import engines_of, has_compiler
from treadle.engine.execute import Runner as Running
from treadle.engine.execute.segments import SegmentLaunch, blob_key, body_of, engine_of, shelve
from treadle.engine.extents.plans import Plans
from treadle.engine.options import Options
from treadle.engine.package import KIND, foreign, opened
from treadle.engine.package.native_part import MEMBERS, NativePart, described, entry_of, members_of
from treadle.engine.package.native_run import NativeRunner, Shapes, as_input, best_of
from treadle.engine.package.open_graph import OpenGraph, at_shapes
from treadle.engine.package.phases_run import PhasedNativeRunner, runner_of
from treadle.engine.phases import Phases, finds_extents, stages_of
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface
from treadle.graph.ir import Graph, Value, regions_of
from treadle.graph.parser import parse
from treadle.graph.printer import to_text
from treadle.ops.constant import ArrayData
from treadle.ops.custom import RuntimeBlob, load_blob, store_blob
from treadle.ops.fused import Fused
from treadle.runtime.array import DeviceArray, to_device, to_host


@dataclass(frozen=True, slots=True)
class Case:
    """Inputs by name, and what the model made of them; outputs may differ by `maxerr`, relative."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    maxerr: float = 1e-4


@dataclass(frozen=True, slots=True)
class Model:
    """A graph for inference.

    Attributes:
        graph: what it computes; weights are constants in it.
        inputs, outputs: names of the graph's inputs and outputs, in order.
        info: what the user keeps with it, as JSON knows it.
        options: what it was dumped with, for the record.
        cases: to test it with.
        segments: parts of it as other engines compiled them, for whoever has the same engine.
        native: the whole of it as machine code, made by `deploy.compile_offline`; who changes the
            graph has to leave it out.
        own: whether code in it was made here, or by one who is trusted.
        opened: the graph with symbols for extents that may change.
    """

    graph: Graph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    info: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    cases: tuple[Case, ...] = ()
    segments: Mapping[str, bytes | memoryview] = field(default_factory=dict)
    native: tuple[NativePart, ...] = ()
    own: bool = True
    opened: OpenGraph | None = None

    def at(self, shapes: Sequence[Shape]) -> Graph:
        """The graph for inputs of these shapes.

        Raises:
            TreadleError: the model does not take them.
        """
        return at_shapes(self.graph, self.opened, shapes)

    def changed(self, graph: Graph, change: Callable[[Graph], Graph]) -> Model:
        """The model with another graph; `change` gives the same one with symbols for extents.

        Cases and what is compiled are left out, as they belong to the graph before.
        """
        known, opened = self.opened, None
        if known is not None and known.closed is self.graph:
            opened = known.of(graph, change)
        return replace(self, graph=graph, cases=(), segments={}, opened=opened)

    def fixed(self) -> Model:
        """The model for its own extents only."""
        return replace(self, opened=OpenGraph.fixed(self.graph))

    @property
    def has_code(self) -> bool:
        """True if there is more in it than a graph and arrays: what may run as it is."""
        return bool(self.native or self.segments or foreign_models(self.graph))


@dataclass(frozen=True, slots=True)
class FileSizes:
    """Size of a file, and of the tensors in it, in bytes; names of its tensors."""

    nbytes: int
    tensor_bytes: int
    tensors: tuple[str, ...]


def write_models(
    f: PathLike | IO[Any], models: Sequence[Model], function: str, signer: Signer | None = None
) -> FileSizes:
    """Write models into one file.

    Where there is code in them, all of it made here or by one who is trusted, the file bears this
    user's seal: here it is run without asking again.

    Args:
        f: path, or a binary file object.
        models: in their order in the file.
        function: who asks, for errors.
        signer: signs the file, for machines that trust the key.

    Raises:
        TypeError: `info` holds what JSON does not know.
        OSError: the file cannot be written.
    """
    arrays: dict[str, Array] = {}
    parts = [_native(m, arrays, f"native{i}") for i, m in enumerate(models)]
    kind = KIND if any(parts) else Kind(KIND.format, 1)
    saved = [_saved(m, arrays, f"case{i}") for i, m in enumerate(models)]
    content = {"models": [{**s, **p} for s, p in zip(saved, parts, strict=True)]}
    own = any(m.has_code for m in models) and all(m.own for m in models)
    size = write(f, chunks_of(kind, content, arrays, own=own, signer=signer), function)
    return FileSizes(size, sum(a.nbytes for a in arrays.values()), tuple(arrays))


def _native(model: Model, arrays: dict[str, Array], prefix: str) -> dict[str, Any]:
    """Native parts go first, so that they start at whole lines of the file."""
    entries = []
    for number, part in enumerate(model.native):
        name = f"{prefix}.{number}"
        members = members_of(part, name)
        arrays.update(members)
        entries.append(entry_of(part, name, members))
    return {"native": entries} if entries else {}


def _saved(model: Model, arrays: dict[str, Array], prefix: str) -> dict[str, Any]:
    constants: dict[str, ArrayData] = {}
    text = to_text(model.graph, locs=True, constants=constants)
    opened: dict[str, str] = {}
    if model.opened is not None and model.opened.closed is model.graph:
        opened["open"] = "" if model.opened.is_fixed else to_text(model.opened.graph)
    arrays.update({name: data.array for name, data in constants.items()})
    cases = []
    for number, case in enumerate(model.cases):
        ends: dict[str, dict[str, str]] = {}
        for kind, held in (("inputs", case.inputs), ("outputs", case.outputs)):
            ends[kind] = {name: f"{prefix}.{number}.{kind}.{name}" for name in held}
            arrays.update({ends[kind][name]: held[name] for name in held})
        cases.append({**ends, "maxerr": case.maxerr})
    for key, sealed in model.segments.items():
        arrays[f"segment.{key}"] = np.frombuffer(sealed, np.uint8)
    blobs = foreign_models(model.graph)
    for digest in blobs:
        arrays[f"blob.{digest}"] = np.frombuffer(load_blob(digest), np.uint8)
    return {
        "graph": text,
        **opened,
        "constants": list(constants),
        "inputs": list(model.inputs),
        "outputs": list(model.outputs),
        "info": json.loads(json.dumps(model.info, allow_nan=False)),
        "options": dict(model.options),
        "cases": cases,
        "segments": list(model.segments),
        "blobs": blobs,
    }


def foreign_models(graph: Graph) -> list[str]:
    """Digests of the models of other engines that a graph has as ops."""
    found: dict[str, None] = {}
    for node in graph.nodes:
        if isinstance(node.op, RuntimeBlob):
            found[node.op.digest] = None
        for region in regions_of(node.op):
            found.update(dict.fromkeys(foreign_models(region)))
    return list(found)


def with_segments(model: Model, engines: Sequence[str]) -> Model:
    """The model with what these engines compile of it.

    It is used where the model is run with the same engines of the same versions; anywhere else the
    graph is compiled as if it were not there.

    Raises:
        CompileError: an engine is not there, or fails.
    """
    plain = [e.name for e in engines_of(Options(engines=())) if e.name not in engines]
    stages = Stages(model.graph, options=Options(engines=(*engines, *plain)))
    found = {}
    for node in stages.lowered.graph.nodes:
        if isinstance(node.op, Fused) and node.op.is_segment:
            launch = SegmentLaunch(engine_of(node.op), body_of(node.op), strict=True)
            launch.prepare()
            if launch.executable is not None:
                key = blob_key(launch.engine.name, launch.body)
                found[key] = seal(launch.engine.name, launch.executable)
    return replace(model, segments=found)


def read_models(f: PathLike | IO[Any], *, allow_native: bool | None = None) -> list[Model]:
    """The models in a file.

    Args:
        f: its path, or a binary file object.
        allow_native: True reads native parts, too, and uses what other engines have made, whoever
            the file is from: that is for those who are trusted as programs are. False does
            neither. If left out, what other engines have made is used where the file is this
            user's, or signed by a trusted key.

    Raises:
        CheckpointError: the file is damaged, or of another kind.
        OSError: the file cannot be opened.
    """
    with open_source(f) as source:
        return models_in(source, allow_native=allow_native)


def models_in(source: SizedStream, *, allow_native: bool | None = None) -> list[Model]:
    """Read the models of an open file, as `read_models` does."""
    if (other := foreign(source.read(0, 32))) is not None:
        return other.read(source)
    sealed = opened(source)
    models = _models(sealed, source, allow_native)
    sealed.finish()
    return models


def _models(sealed: Sealed, source: SizedStream, allow_native: bool | None) -> list[Model]:
    taken: dict[str, ArrayData] = {}
    try:
        made = []
        for entry in sealed.manifest["models"]:
            parts = [_part(part, sealed, bool(allow_native)) for part in entry.get("native", ())]
            native = tuple(part for part in parts if part is not None)
            made.append(replace(_model(entry, sealed, taken, allow_native), native=native))
        return made
    except (KeyError, TypeError, ValueError, AttributeError, GraphError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise source.error(f"the model is damaged: {error}") from error


def _part(entry: Any, sealed: Sealed, allowed: bool) -> NativePart | None:
    if allowed:
        return described(entry).open(lambda name: as_bytes(sealed.array(name)))
    for name in MEMBERS:
        sealed.skip(f"{entry['members']}.{name}")
    return None


def _model(
    entry: Mapping[str, Any],
    sealed: Sealed,
    taken: dict[str, ArrayData],
    allow_native: bool | None,
) -> Model:
    for name in entry["constants"]:
        if name not in taken:  # Models of a file share weights.
            taken[name] = ArrayData(sealed.array(name))
    code = any(entry.get(kind) for kind in ("native", "blobs", "segments"))
    own = not code or bool(sealed.origin.who)
    segments = _foreign(entry, sealed, own if allow_native is None else allow_native)
    arrays = {name: taken[name] for name in entry["constants"]}
    graph = parse(entry["graph"], arrays)
    text = entry.get("open")
    opened = None
    if text is not None:
        if not isinstance(text, str):
            raise ValueError("its graph for other extents is not text")
        opened = OpenGraph(graph, lambda: parse(text, arrays) if text else graph)
    cases = [
        Case(
            {name: sealed.array(key) for name, key in case["inputs"].items()},
            {name: sealed.array(key) for name, key in case["outputs"].items()},
            float(case["maxerr"]),
        )
        for case in entry["cases"]
    ]
    inputs, outputs = tuple(entry["inputs"]), tuple(entry["outputs"])
    if len(inputs) != len(graph.inputs) or len(outputs) != len(graph.outputs):
        raise ValueError("its inputs or outputs are not those of its graph")
    if not all(isinstance(name, str) for name in (*inputs, *outputs)):
        raise ValueError("the name of an input or output is not text")
    info, options = entry["info"], entry["options"]
    if not isinstance(options, Mapping):
        raise ValueError("its options are not an object")
    return Model(graph, inputs, outputs, info, options, tuple(cases), segments, (), own, opened)


def _foreign(entry: Mapping[str, Any], sealed: Sealed, allowed: bool) -> dict[str, memoryview]:
    """Put what other engines have made where they look for it; return parts of the graph
    by name.
    """
    blobs = {digest: f"blob.{digest}" for digest in entry.get("blobs", ())}
    keys = {key: f"segment.{key}" for key in entry.get("segments", ())}
    if not allowed:
        for name in (*blobs.values(), *keys.values()):
            sealed.skip(name)
        if blobs or keys:
            why = sealed.origin.why_unknown or "as was asked"
            get_logger().warning(
                "%s: what other engines made of it is left alone: %s", sealed.where, why
            )
        return {}
    for digest, name in blobs.items():
        if store_blob(sealed.array(name).tobytes()) != digest:
            raise ValueError(f"the embedded model {digest[:12]}... is another one")
    segments = {key: sealed.array(name).data for key, name in keys.items()}
    for key, compiled in segments.items():
        shelve(key, compiled)
    return segments


class Runner:
    """A graph of arrays, run as a program that is compiled when it is first called.

    Where data decide extents it runs in phases; no machine code is there for those.

    Args:
        graph: what to run.
        options: of the compilation.
        native: the same graph as machine code: where one fits this machine, and has the shapes of
            the inputs as a gear, that runs and nothing is compiled.
        home: the device that it runs on, whose arrays it then takes (besides the host's) and gives;
            None for the host.
    """

    def __init__(
        self,
        graph: Graph,
        options: Options | None = None,
        native: Sequence[NativePart] = (),
        home: CompNode | None = None,
    ) -> None:
        self.graph = graph
        self.stages = stages_of(graph, options=options or Options(), home=home)
        self._native = _ready(native, tuple(v.type.shape for v in graph.inputs))

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Run on one array per input, in order; they take the element types of the inputs.

        Raises:
            ShapeError: an array has another shape than its input.
            DTypeError: it would lose more than digits in the input's element type.
        """
        given = [
            _fitting(value, array) for value, array in zip(self.graph.inputs, arrays, strict=True)
        ]
        return self._native.run(given) if self._native is not None else self._run(given)

    def _run(self, given: Sequence[Any]) -> list[Any]:
        if self.stages.home is not None:
            device = self.stages.home.open()
            return self.stages.compile().run([to_device(a, device) for a in given])
        try:
            return self.stages.compile().run(given)
        except CompileError as error:
            if has_compiler() or self.stages.source.options.engines:
                raise
            get_logger().warning("NumPy runs the model, op by op: %s", error.problem)
        options = replace(self.stages.source.options, engines=("reference",))
        self.stages = stages_of(self.graph, options=options)
        return self.stages.compile().run(given)


class OpenRunner:
    """A model run at any extents that it takes, by programs that many of them share.

    Where it has no form for other extents, or no compiler is there, each set of shapes has a
    program of its own.

    Args:
        model: what to run.
        options: of the compilation.
    """

    def __init__(self, model: Model, options: Options) -> None:
        self._model, self._options = model, options
        self._own: dict[Shapes, Runner] = {}
        opened, graph = model.opened, model.graph
        own = opened is not None and opened.closed is graph
        self._opened = opened if own else None
        self._plans: Plans | Phases | None = None

    def at(self, shapes: Sequence[tuple[int, ...]]) -> Callable[[Sequence[Array]], list[Any]]:
        """Return what runs arrays of these shapes, of the element types of the inputs.

        Raises:
            TreadleError: the model does not take them.
        """
        given = tuple(shapes)
        if given not in self._own:
            own = tuple(v.type.shape for v in self._model.graph.inputs)
            # At the file's own extents there is what engines have compiled of it.
            shared = None if self._model.segments and given == own else self._shared(given)
            if shared is not None:
                return shared.run
            self._own[given] = Runner(self._model.at(given), self._options)
        return self._own[given]

    def _shared(self, shapes: Sequence[tuple[int, ...]]) -> Running | None:
        """The program that other extents share, if there is one for these."""
        extents = None if self._opened is None else self._opened.extents(shapes)
        if self._opened is None or not extents or not has_compiler():
            return None
        if self._plans is None:
            kind = Phases if finds_extents(self._opened.graph) else Plans
            self._plans = kind(self._opened.graph, self._options, Interface())
        if isinstance(self._plans, Phases):
            return self._plans.at(extents)
        found = self._plans.at(extents)
        return None if found is None else found[1]


def _ready(
    native: Sequence[NativePart], shapes: Shapes
) -> NativeRunner | PhasedNativeRunner | None:
    """Return the runner of the best of these parts, if one has such a gear and fits this
    machine.
    """
    having = [p for p in native if p.phases or any(g.many or g.shapes == shapes for g in p.gears)]
    best = best_of([(p.engine, p.code.machine) for p in having])
    runner = None if best is None else runner_of(having[best])
    return None if runner is None or not runner.serves(shapes) else runner


def _fitting(value: Value, array: Any) -> Any:
    if isinstance(array, DeviceArray) and array.dtype == value.type.dtype.numpy:
        fit: Any = array
    else:
        name = value.name or str(value.index)
        # Which makes a number an array of one.
        fit = np.ascontiguousarray(as_input(to_host(array), value.type.dtype.numpy, name))
        if not value.type.shape and fit.size == 1:
            fit = fit.reshape(())
    if fit.shape != value.type.shape:
        raise ShapeError(
            "model",
            f"an array does not fit input {value.name or value.index}",
            saw=f"{fit.dtype}{list(fit.shape)} for {value.type}",
            hint="dump the model for this shape, or use Network.reset_batch_size",
        )
    return fit


__all__ = [
    "Case",
    "FileSizes",
    "Model",
    "OpenRunner",
    "Runner",
    "read_models",
    "with_segments",
    "write_models",
]
