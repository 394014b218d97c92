"""Descriptions of model files, made without running or compiling anything."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from treadle.backends import registry
from treadle.backends.program import MeasuringCompiler
from treadle.base.env import cache_directory
from treadle.base.errors import LoadError, TreadleError
from treadle.base.table import count, size
from treadle.base.version import VERSION
from treadle.cli.console import show_facts, show_json, show_table
from treadle.cli.models.programs import native_parts, origin_of
from treadle.cli.models.sources import provenance
from treadle.cli.section import Section
from treadle.engine.devices.placement import find_compiler
from treadle.engine.options import Options
from treadle.engine.package.extents import Ranges
from treadle.engine.package.models import Model, read_models
from treadle.engine.package.native_part import Described
from treadle.engine.package.native_run import loader_of
from treadle.engine.package.phases import NativePhases
from treadle.engine.report import describe_partitions
from treadle.graph.json_text import graph_json
from treadle.graph.printer import to_text
from treadle.ops.constant import Constant

BACKENDS = ("name", "state", "devices", "kinds", "detail")
_SHOWN = 12
"""Ops that a table lists; the rest is one row."""


@dataclass(slots=True)
class Description:
    """A file: facts by name, tables for people, and both as data for programs.

    Attributes:
        facts: texts by name.
        tables: titled.
        data: what programs are told.
    """

    facts: dict[str, str] = field(default_factory=dict)
    tables: list[Section] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def show(self, as_json: bool) -> None:
        """Print all of it."""
        if as_json:
            show_json(self.data)
            return
        show_facts(self.facts)
        for table in self.tables:
            show_table(table.title, table.header, table.rows)


def installation() -> Description:
    """Versions, the machine, backends, and what is kept on disk."""
    facts: dict[str, Any] = {"treadle": VERSION, "Python": platform.python_version()}
    facts |= {"NumPy": np.__version__, "system": platform.platform()}
    compiler = find_compiler(Options())
    if isinstance(compiler, MeasuringCompiler):
        facts |= compiler.about()
    cache = cache_directory()
    files = [p.stat().st_size for p in cache.rglob("*") if p.is_file()] if cache.is_dir() else []
    facts["cache"] = f"{cache}: {len(files)} files, {size(sum(files))}"
    rows = [dict(row) for row in registry.table()]
    table = [[str(row[key]) for key in BACKENDS] for row in rows]
    data = {**facts, "backends": rows}
    return Description(facts, [Section("backends", BACKENDS, table)], data)


def described(path: Path, verify: bool = False, graph: Path | None = None) -> Description:
    """A model file, or an ONNX model.

    Args:
        path: of the file.
        verify: check the digests of native parts as well; the others are checked in any case.
        graph: file that the graph is written to.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError, LoadError: it is damaged, or no model.
    """
    if path.suffix == ".onnx":
        return _onnx(path, graph)
    parts = native_parts(path)
    models = read_models(path, allow_native=verify)
    model = models[0]
    found = Description({"file": f"{path}, {size(path.stat().st_size)}"})
    if len(models) > 1:
        found.facts["models"] = f"{len(models)}; the first is shown"
    found.data = {"file": provenance(path), "size": path.stat().st_size, "models": len(models)}
    if verify:
        found.facts["digests"] = "all as the manifest says"
        found.data["verified"] = True
    _describe_origin(found, model, parts)
    if parts:
        origin = origin_of(path)
        found.facts["trusted"] = f"made by {origin.who}" if origin.who else origin.why_unknown
        found.data["trusted"] = bool(origin.who)
    _describe_ends(found, model)
    _describe_gears(found, model, parts[0] if parts else None)
    _describe_ranges(found, model, parts[0].ranges if parts else None)
    _describe_parts(found, parts)
    _describe_graph(found, model)
    if graph is not None:
        text = graph_json(model.graph, 1) if graph.suffix == ".json" else to_text(model.graph)
        graph.write_text(text, encoding="utf-8")
    return found


def _describe_origin(found: Description, model: Model, parts: Sequence[Described]) -> None:
    """Describe the file's origin."""
    info = dict(model.info) if isinstance(model.info, Mapping) else {}
    source = info.pop("source", {})
    about = parts[0].entry["about"] if parts else {}
    if about:
        found.facts["made by"] = f"{about.get('producer', '')}, {about.get('compiler', '')}"
    if "command" in info:
        found.facts["command"] = str(info.pop("command"))
    if isinstance(source, Mapping) and source:
        words = [str(source.get(k, "")) for k in ("file", "framework", "producer")]
        opsets = source.get("opsets")
        words += [f"{k} {n}" for k, n in opsets.items()] if isinstance(opsets, Mapping) else []
        found.facts["source"] = ", ".join(w for w in words if w)
        found.facts["source sha256"] = str(source.get("sha256", "-"))
    if "preprocessing" in info:
        from treadle.cli.models.images import own_preprocessing

        del info["preprocessing"]
        for name, steps in own_preprocessing(model).items():
            listed = ", ".join(f"{key} {value}" for key, value in steps.as_dict().items())
            found.facts[f"preprocessing {name}"] = listed
    found.facts |= {str(key): str(value) for key, value in info.items()}
    if not isinstance(model.info, Mapping) and model.info is not None:
        found.facts["info"] = str(model.info)
    found.data |= {"info": model.info, "options": dict(model.options), "about": dict(about)}


def _describe_ends(found: Description, model: Model) -> None:
    """Inputs and outputs."""
    rows: list[tuple[str, str, str]] = []
    for kind, names, values in (
        ("input", model.inputs, model.graph.inputs),
        ("output", model.outputs, model.graph.outputs),
    ):
        types = [(name, value.type) for name, value in zip(names, values, strict=True)]
        rows += [(kind, name, str(type_)) for name, type_ in types]
        found.data[f"{kind}s"] = [
            {"name": name, "dtype": type_.dtype.name, "shape": _extents(type_.shape)}
            for name, type_ in types
        ]
    found.tables.append(Section("inputs and outputs", ("", "name", "type"), rows))


def _extents(shape: Sequence[Any]) -> list[int | str]:
    return [d if isinstance(d, int) else str(d) for d in shape]


def _describe_gears(found: Description, model: Model, part: Described | None) -> None:
    """The shapes that code is there for, and what a run with each takes."""
    rows, data = [], []
    gears = part.gears if part is not None else ()
    phases = part.phases if part is not None else None
    taken = _taken(model, phases) if phases is not None else [("", model.inputs)] * len(gears)
    for gear, (phase, names) in zip(gears, taken, strict=True):
        named = dict(zip(names, gear.shapes, strict=True))
        shapes = phase + _shapes(named)
        if gear.many is not None:
            patterns = dict(zip(names, gear.many.inputs, strict=True))
            shapes = f"{phase}{_shapes(patterns)}: {_ranged(gear.many.ranges)}"
        numbers = {"launches": gear.launches, "streams": gear.streams, "events": gear.events}
        cut = describe_partitions(gear.partitions)
        rows.append((shapes, size(gear.arena), cut, *map(str, numbers.values())))
        partitions = [asdict(part) for part in gear.partitions]
        data.append({"shapes": named, "scratch": gear.arena, **numbers, "partitions": partitions})
        if gear.many is not None:
            data[-1] |= {"patterns": patterns, "ranges": dict(gear.many.ranges)}
    header = ("gear", "scratch memory", "partitions", "launches", "streams", "events")
    found.tables.append(Section("compiled for", header, rows))
    found.data["gears"] = data


def _taken(model: Model, phases: NativePhases) -> Iterator[tuple[str, list[str]]]:
    """Return for each gear its phase, and names of the values that it takes."""
    for i, phase in enumerate(phases.programs):
        names = [model.inputs[n] if n < len(model.inputs) else f"%{n}" for n in phase.inputs]
        yield from [(f"phase {i + 1}, ", names)] * len(phase.spans)


def _describe_ranges(found: Description, model: Model, ranges: Ranges | None) -> None:
    """The extents that gears are for together."""
    if ranges is None:
        return
    patterns = dict(zip(model.inputs, ranges.inputs, strict=True))
    if ranges.extents:
        found.facts["extents"] = f"{_shapes(patterns)}: {_ranged(ranges.extents)}"
    if ranges.needs:
        found.facts["extents need"] = ", ".join(ranges.needs)
    outputs = dict(zip(model.outputs, ranges.outputs, strict=True))
    found.data["ranges"] = {
        "extents": dict(ranges.extents),
        "inputs": patterns,
        "outputs": outputs,
        "needs": list(ranges.needs),
    }


def _shapes(named: Mapping[str, Sequence[Any]]) -> str:
    return ", ".join(f"{n} [{','.join(map(str, s))}]" for n, s in named.items())


def _ranged(ranges: Mapping[str, tuple[int, int]]) -> str:
    return ", ".join(f"{n} {low} to {high}" for n, (low, high) in ranges.items())


def _describe_parts(found: Description, parts: Sequence[Described]) -> None:
    """Native code, and whether this machine can run it."""
    rows, data = [], []
    for part in parts:
        problem = _problem(part)
        memory, machine = part.entry["memory"], part.machine
        place = f"{machine.architecture} {machine.system}"
        sizes = size(memory["code"]), size(memory["weights"])
        fits = f"no: {problem}" if problem else "yes"
        rows.append((machine.target, place, *sizes, " ".join(machine.requires), fits))
        data.append({**part.entry["target"], "memory": memory, "fits": not problem})
    header = ("target", "for", "code", "weights", "instructions", "fits this machine")
    found.tables.append(Section("native code", header, rows))
    found.data["native"] = data


def _problem(part: Described) -> str:
    """Return why a part cannot run here."""
    try:
        misfit = loader_of(part.engine).misfit(part.machine)
    except TreadleError as error:
        return error.problem
    return "" if misfit is None else f"needs {misfit[0]}, here is {misfit[1]}"


def _describe_graph(found: Description, model: Model) -> None:
    """Sizes of the graph, its ops, its cases."""
    constants = [n.op.data.array for n in model.graph.nodes if isinstance(n.op, Constant)]
    ops = Counter(n.op.name for n in model.graph.nodes if not isinstance(n.op, Constant))
    elements, nbytes = sum(c.size for c in constants), sum(c.nbytes for c in constants)
    found.facts["parameters"] = f"{count(elements)} in {size(nbytes)}"
    found.facts["ops"] = _counted(ops)
    found.facts["cases"] = str(len(model.cases))
    found.data |= {
        "parameters": elements,
        "parameter_bytes": nbytes,
        "ops": dict(ops.most_common()),
        "cases": len(model.cases),
        "digest": model.graph.digest,
    }


def _counted(ops: Counter[str]) -> str:
    listed = [f"{name} {n}" for name, n in ops.most_common(_SHOWN)]
    rest = sum(ops.values()) - sum(n for _, n in ops.most_common(_SHOWN))
    return f"{sum(ops.values())}: " + ", ".join([*listed, *([f"others {rest}"] if rest else [])])


# -- ONNX ----------------------------------------------------------------------------------------


def _onnx(path: Path, graph: Path | None) -> Description:
    """An ONNX model as its file has it; nothing is converted, so any of them can be looked at."""
    if graph is not None:
        raise LoadError("--graph", "it is for model files", hint="treadle compile --portable first")
    try:
        from treadle.interop.onnx import reader, survey
    except ModuleNotFoundError as error:
        raise LoadError(str(path), str(error), hint="pip install treadle[onnx]") from error
    model, _ = reader.read(path)
    operators = survey.survey(model)
    unsupported = [o.name for o in operators if not o.supported]
    found = Description({"file": f"{path}, {size(path.stat().st_size)}"})
    versions = {o.domain or "ai.onnx": o.version for o in model.opset_import}
    producer = f"{model.producer_name} {model.producer_version}".strip()
    found.facts |= {
        "format": f"ONNX, IR version {model.ir_version}",
        "producer": producer or "-",
        "opsets": ", ".join(f"{domain} {version}" for domain, version in versions.items()),
        "nodes": str(sum(o.nodes for o in operators)),
        "unsupported": ", ".join(unsupported) or "none",
    }
    rows = [(o.name, str(o.nodes), "" if o.supported else "no converter") for o in operators]
    ends = survey.ends(model)
    found.tables = [
        Section("inputs and outputs", ("", "name", "type"), ends),
        Section("operators", ("operator", "nodes", ""), rows),
    ]
    found.data = {
        "file": provenance(path),
        "size": path.stat().st_size,
        "producer": producer,
        "opsets": versions,
        "ends": [dict(zip(("kind", "name", "type"), end, strict=True)) for end in ends],
        "operators": {o.name: o.nodes for o in operators},
        "unsupported": unsupported,
    }
    return found
