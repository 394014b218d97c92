"""Steps of `treadle compile`: read a model, change it, compile it, write it."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from treadle.base.errors import CompileError, LoadError
from treadle.base.files.trust import Signer, short
from treadle.base.table import size
from treadle.cli.console import progress, show_facts, show_json
from treadle.cli.models.comparison import compared
from treadle.cli.models.opening import (
    EXTENSION,
    parsed_shapes,
    random_inputs,
    run_once,
    source_of,
    with_shapes,
)
from treadle.cli.models.programs import Change, changed
from treadle.cli.models.ranges import Range, ranged_model
from treadle.cli.models.settings import Tuning, precise
from treadle.cli.models.sources import Shapes, provenance
from treadle.cli.status import Misuse
from treadle.deploy import compile_offline, write_library, write_wasm
from treadle.engine.options import Options
from treadle.engine.package.models import Case, Model, Runner, write_models
from treadle.engine.phases import stages_of
from treadle.inspect import Inspected
from treadle.quantization.precision import PrecisionReport

Tell = Callable[[str], None]
Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wish:
    """Options of what is to be made.

    Attributes:
        source: file of the model.
        change: how the model is to differ from it.
        tuning: of the compiler.
        ranges: of extents of inputs, by name, in place of shapes.
        gears: shapes of inputs, a set per text.
        batches: further gears: other extents of the first axis of all inputs.
        targets: instructions to make code for; "native" stands for this processor.
        native: whether code belongs into the file; None: if that is possible.
        case: whether cases to test it with do: the source's, else random inputs.
        info: what the user keeps in it.
        output: where it goes.
        name: prefix of a library's functions, or name of a module's files.
        report: folder for what the compiler did.
        form: "model" for a file, "library", or "wasm".
        sign: file of the private key that signs it.
        command: the command line, for the record.
        system: that a library is for; "" for this one.
    """

    source: Path
    change: Change
    tuning: Tuning
    gears: Sequence[str] = ()
    batches: str = ""
    targets: Sequence[str] = ("native",)
    native: bool | None = None
    case: bool = True
    info: Mapping[str, Any] | None = None
    output: Path | None = None
    name: str = ""
    report: Path | None = None
    form: str = "model"
    sign: Path | None = None
    command: str = ""
    ranges: Mapping[str, tuple[Range, ...]] = field(default_factory=dict)
    system: str = ""


@dataclass(frozen=True, slots=True)
class Read:
    """A model that was read and changed, the gears or ranges of extents that it is wanted for, and
    what became of its ops.
    """

    model: Model
    gears: tuple[Shapes, ...]
    precision: PrecisionReport | None
    options: Options
    ranges: Mapping[str, tuple[Range, ...]] | None = None


def make(wish: Wish, command: Sequence[str], started: float, as_json: bool) -> None:
    """Make it, and print what was made.

    Raises:
        Misuse: a file or a module is asked for another system.
        TreadleError, OSError: something cannot be read, compiled or written.
    """
    if wish.system and wish.form != "library":
        raise Misuse("--system", "it is for libraries alone", hint="add --emit library")
    wish = replace(wish, command=command_line(command))
    with progress(f"reading {wish.source.name}") as now:
        found = read(wish)
        made = _WRITERS[wish.form](wish, found, now.tell)
        if wish.report is not None:
            now.tell("reporting")
            write_report(found, wish.report)
            made["report"] = str(wish.report)
    made["seconds"] = round(time.perf_counter() - started, 2)
    if as_json:
        show_json(made)
    else:
        show_facts(spelled(made))


def command_line(given: Sequence[str]) -> str:
    """The command as files record it: of files their names alone, so that equal work leaves equal
    files wherever it is done."""
    return shlex.join(["treadle", *map(_bare, given)])


def _bare(word: str) -> str:
    if word.startswith("--") and "=" in word:
        option, _, value = word.partition("=")
        return f"{option}={_bare(value)}"
    return Path(word).name if "/" in word and "=" not in word else word


def keyed(given: Sequence[str]) -> dict[str, str]:
    """Return what the user keeps in a file, out of texts like `author=me`.

    Raises:
        Misuse: one is written in another way.
    """
    pairs = [text.partition("=") for text in given]
    for key, sign, _ in pairs:
        if not key or not sign:
            raise Misuse("--info", f"{key!r} has no value", hint="write it as author=me")
    return {key: value for key, _, value in pairs}


# -- reading -------------------------------------------------------------------------------------


def read(wish: Wish) -> Read:
    """The model as it is to be compiled.

    Raises:
        TreadleError: it cannot be read, or something that was asked does not fit it.
    """
    if wish.ranges:
        return _read_ranged(wish)
    gears = [_gear(text) for text in wish.gears]
    batches = _numbers(wish.batches)
    change = wish.change
    if change.preprocess is None and gears:
        change = replace(change, shapes={**gears[0], **change.shapes})
    batch = batches[0] if batches else 0
    model, report = changed(wish.source, change, batch)
    gears += [_of_batch(model, n) for n in batches]
    if gears:
        model = with_shapes(model, gears[0])
    several = tuple(gears) if len(gears) > 1 else ()
    return Read(model, several, report, wish.tuning.options())


def _read_ranged(wish: Wish) -> Read:
    change = wish.change
    if wish.gears or wish.batches or change.preprocess is not None:
        raise Misuse(
            "--shape",
            "ranges of extents go with no other shapes, and no steps in front of inputs",
            hint="leave out --gear, --batch and --preprocess",
        )
    model, ranges = ranged_model(wish.source, wish.ranges, change.outputs)
    asked = change.precision, change.keep, change.allow, change.calibration
    model, report = precise(model, *asked, ranges=ranges)
    return Read(model, (), report, wish.tuning.options(), ranges)


def _gear(text: str) -> Shapes:
    return parsed_shapes([part for part in text.split(";") if part.strip()], "--gear")


def _numbers(text: str) -> list[int]:
    parts = [p.strip() for p in text.split(",") if p.strip()]
    if not all(p.isdecimal() and int(p) for p in parts):
        raise Misuse("--batch", f"{text!r} is not a list of sizes", hint="write it as 1,4,8")
    return [int(p) for p in parts]


def _of_batch(model: Model, batch: int) -> Shapes:
    """Shapes with another first extent for all inputs that share that of the first one."""
    shapes = [tuple(v.type.shape) for v in model.graph.inputs]
    own = next((s[0] for s in shapes if s), None)
    named = zip(model.inputs, shapes, strict=True)
    return {n: (batch, *map(_size, s[1:])) for n, s in named if s and s[0] == own}


def _size(extent: Any) -> int:
    if not isinstance(extent, int):
        raise LoadError("--batch", f"{extent} is not fixed", hint="fix it with --shape")
    return extent


# -- writing -------------------------------------------------------------------------------------


def write_file(wish: Wish, found: Read, tell: Tell) -> Facts:
    """Write a model file; what it holds, by name.

    Raises:
        Misuse: it would replace its source by another model, or options contradict one another.
        CompileError: native code was asked for, and the model has something that needs Python.
        OSError: the file cannot be written.
    """
    path = _place(wish)
    signer = None if wish.sign is None else Signer(wish.sign)
    model = replace(found.model, info=_info(wish, found), options={}, native=())
    note = ""
    if wish.native is not False:
        tell("compiling")
        try:
            model = _with_code(model, wish, found)
        except CompileError as error:
            if wish.native:
                raise
            note = error.problem + (f" ({error.saw})" if error.saw else "")
    if not wish.case:
        model = replace(model, cases=())
    elif not model.cases:  # Those of the source, where they are still of this model, are better.
        tell("testing")
        model = replace(model, cases=(_case(model, found.options),))
    differences = {}
    if found.precision is not None:
        tell("comparing with the precision of the source")
        differences = _differences(model, wish, found)
    tell("writing")
    written = write_models(path, [model], "compile", signer)
    facts: Facts = {"written": str(path), "size": written.nbytes, **_facts(model, found)}
    facts["native"] = [p.code.machine.target for p in model.native]
    further = {
        "signed": short(signer.key) if signer is not None else "",
        "note": note,
        "differences": differences,
    }
    facts |= {name: value for name, value in further.items() if value}
    if model.native:
        part = model.native[0]
        facts["weights"] = part.weights.nbytes
        facts["scratch"] = max(g.arena for g in part.gears)
    return facts


def _place(wish: Wish) -> Path:
    path = wish.output or wish.source.with_suffix(EXTENSION)
    another = not wish.change.is_none or wish.gears or wish.batches or wish.ranges
    if wish.output is None and path == wish.source and another:
        raise Misuse(str(path), "another model would take its place", hint="name a file: -o")
    if wish.native is False and set(wish.targets) - {"native"}:
        raise Misuse("--portable", "it leaves out the code that --target asks for")
    return path


def _with_code(model: Model, wish: Wish, found: Read) -> Model:
    for target in dict.fromkeys(wish.targets or ("native",)):
        model = compile_offline(
            model,
            found.gears,
            found.options,
            None if target == "native" else target,
            ranges=found.ranges,
            command=wish.command,
            source=source_of(model),
        )
    return model


def _info(wish: Wish, found: Read) -> Facts:
    """Return the file's facts about itself, besides what the user keeps in it."""
    own = found.model.info if isinstance(found.model.info, Mapping) else {}
    made: Facts = {**own, **(wish.info or {})}
    made["source"] = source_of(found.model) or provenance(wish.source)
    made["command"] = wish.command
    if found.precision is not None:
        made["precision"] = found.precision.mode
    return made


def _case(model: Model, options: Options) -> Case:
    inputs = random_inputs(model)
    runner = Runner(model.graph, options, model.native)
    results = runner([inputs[name] for name in model.inputs])
    return Case(inputs, dict(zip(model.outputs, results, strict=True)))


def _differences(model: Model, wish: Wish, found: Read) -> dict[str, float]:
    """Compare outputs on random inputs with those in the source's precision: return the largest
    difference as a part of the largest element, by output."""
    asked = replace(wish.change, precision=None, keep=None, allow=None, calibration=None)
    plain = read(replace(wish, change=asked))
    inputs = random_inputs(model)
    arrays = [inputs[name] for name in model.inputs]
    ran = Runner(model.graph, found.options, model.native)(arrays)
    wanted = Runner(plain.model.graph, found.options)(arrays)
    rows = zip(model.outputs, ran, wanted, strict=True)
    return {name: compared(name, got, want, 0.0).relative for name, got, want in rows}


def _facts(model: Model, found: Read) -> Facts:
    facts: Facts = {
        "nodes": len(model.graph.nodes),
        "inputs": _ends(model.inputs, model.graph.inputs),
        "outputs": _ends(model.outputs, model.graph.outputs),
    }
    if found.gears:
        facts["gears"] = [{n: list(s) for n, s in gear.items()} for gear in found.gears]
    if model.native and model.native[0].ranges is not None:
        part = model.native[0]
        extents = part.ranges.extents if part.ranges is not None else {}
        if extents:
            facts["ranges"] = {name: list(ends) for name, ends in extents.items()}
        if part.phases is not None:
            facts["phases"] = len(part.phases.programs)
        facts["programs"] = len(part.gears)
    if found.precision is not None:
        facts["precision"] = found.precision.mode
    return facts


def _ends(names: Sequence[str], values: Sequence[Any]) -> list[dict[str, Any]]:
    pairs = [(name, value.type) for name, value in zip(names, values, strict=True)]
    return [
        {"name": n, "dtype": t.dtype.name, "shape": [_plain(d) for d in t.shape]} for n, t in pairs
    ]


def _plain(extent: Any) -> int | str:
    return extent if isinstance(extent, int) else str(extent)


def spelled(made: Facts) -> dict[str, str]:
    """Return what was made, for people."""
    found = {}
    for key, value in made.items():
        if key in ("size", "weights", "scratch"):
            found[key] = size(value)
        elif key in ("inputs", "outputs"):
            found[key] = ", ".join(f"{e['name']} {e['dtype']}{_listed(e['shape'])}" for e in value)
        elif key == "differences":
            found[key] = ", ".join(f"{n} {d:.2%} of the largest element" for n, d in value.items())
        elif key == "ranges":
            found[key] = ", ".join(f"{n} {low} to {high}" for n, (low, high) in value.items())
        elif key == "gears":
            gears = [", ".join(f"{n} {_listed(s)}" for n, s in gear.items()) for gear in value]
            found[key] = "; ".join(gears)
        else:
            found[key] = (", ".join(value) or "none") if isinstance(value, list) else str(value)
    return found


def _listed(shape: Sequence[Any]) -> str:
    return f"[{','.join(map(str, shape))}]"


def write_native_library(wish: Wish, found: Read, tell: Tell) -> Facts:
    """Write a shared library and its header; what they are, by name.

    Raises:
        Misuse: gears or several targets were asked for.
        CompileError: there is no C compiler, or the model has something that needs Python.
    """
    _of_one(wish, found, "a library")
    tell("compiling")
    prefix = wish.name or "".join(c if c.isalnum() else "_" for c in wish.source.stem)
    folder = wish.output or wish.source.parent
    target = next((t for t in wish.targets if t != "native"), None)
    how = found.options, target, found.ranges, wish.system
    made = write_library(found.model, folder, prefix, *how)
    return {
        "library": str(made.library),
        "header": str(made.header),
        "size": made.library.stat().st_size,
        "weights": made.weights,
        "scratch": made.scratch,
        **_facts(found.model, found),
        **({"ranges": made.ranges} if made.ranges else {}),
    }


def write_web_module(wish: Wish, found: Read, tell: Tell) -> Facts:
    """Write WebAssembly and its JavaScript; what they are, by name.

    Raises:
        Misuse: gears or a target were asked for.
        CompileError: there is no compiler for it, or the model has something that needs Python.
    """
    _of_one(wish, found, "a module")
    if wish.targets[0] != "native":
        raise Misuse("--target", "WebAssembly has no other instructions", hint="leave it out")
    tell("compiling")
    folder = wish.output or wish.source.parent
    how = wish.name or wish.source.stem, found.options, found.ranges
    made = write_wasm(found.model, folder, *how)
    return {
        "wasm": str(made.wasm),
        "script": str(made.script),
        "size": made.wasm.stat().st_size,
        "weights": made.weights,
        "scratch": made.scratch,
        **_facts(found.model, found),
        **({"ranges": made.ranges} if made.ranges else {}),
    }


def _of_one(wish: Wish, found: Read, what: str) -> None:
    """Refuse what only files can have.

    Raises:
        Misuse: a signature, gears, or several targets.
    """
    if wish.sign is not None:
        raise Misuse("--sign", f"{what} is a program: nothing asks who made it", hint="sign files")
    if found.gears or len(wish.targets) > 1:
        given = "--gear or --batch" if found.gears else "--target"
        raise Misuse(given, f"{what} is for one shape and one processor", hint="use --emit model")


_WRITERS = {"model": write_file, "library": write_native_library, "wasm": write_web_module}


def write_report(found: Read, folder: Path) -> None:
    """Write what the compiler does with the model: as text, as data, and as a page to look at.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program = Inspected(stages_of(found.model.graph, options=found.options))
    if program.in_phases:
        run_once(program, found.model)
    (folder / "explain.txt").write_text(program.explained(full=True), encoding="utf-8")
    data = json.dumps(program.data(), indent=1)
    (folder / "explain.json").write_text(data, encoding="utf-8")
    if not program.in_phases:  # A page has one program.
        program.picture(folder / "program.html", found.model.inputs, found.model.outputs)
    if found.precision is not None:
        (folder / "precision.txt").write_text(f"{found.precision}\n", encoding="utf-8")
