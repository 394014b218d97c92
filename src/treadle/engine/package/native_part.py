"""The native part of a model file: its program for some machine, in one form per gear.

A gear is a set of shapes of the inputs, or of many (`extents.py`). All gears share code and
weights; equal weights are kept once. In a file the part is an entry of the manifest and three
members, which only numbers and text describe: that they are code, and that words of programs index
into memory, is why they are opened only for those who trust the file.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from treadle.backends.native_code import Machine, NativeCode, NativeProgram
from treadle.base.array import Array
from treadle.base.dtype import DType, as_dtype
from treadle.base.files.checksum import checksum
from treadle.base.files.container import as_bytes
from treadle.base.types import TensorType
from treadle.engine.package.extents import (
    Many,
    Pattern,
    Ranges,
    code_of,
    described_many,
    entry_of_many,
    listed,
    opened_many,
    patterns_in,
    ranges_in,
)
from treadle.engine.package.phases import (
    MOST_PHASES,
    NativePhases,
    described_phases,
    entry_of_phases,
)
from treadle.engine.report import Partition

Bytes = bytes | memoryview
SCHEMA = 5
"""Of the entry in the manifest: raised when its meaning changes."""
_WITHOUT_MANY, _WITHOUT_PHASES, _IN_PHASES = 2, 3, 4
"""The schemas written where no gear is for many extents, where there are no phases, and where no
branches and loops are between them: older readers take them."""
_FEW = 16
"""Extents that readers of the schemas before take."""
MOST_GEARS = 100
MEMBERS = ("words", "code", "weights")
_LINE = 64
_MOST_BYTES = 1 << 40
_MOST_ITEMS = 1 << 24


@dataclass(frozen=True, slots=True)
class NativeStop:
    """A step at which a program stops because an index is out of range.

    Attributes:
        step: its number.
        base, offset: where a number says what was found, and the index behind it.
        op, low, high: of the index: the op it belongs to, and its range.
    """

    step: int
    base: int
    offset: int
    op: str
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Gear:
    """One set of shapes, and what a run with them takes.

    Attributes:
        inputs, outputs: types in order; of a gear for many extents, at the largest of them.
        arena: bytes of scratch memory.
        launches: kernels that a run starts.
        streams, events: that a run takes.
        stops: where it may stop early.
        partitions: what it was cut into; none in files that were written before they were noted.
        many: how it serves other extents, too.
    """

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    arena: int
    launches: int
    streams: int = 1
    events: int = 0
    stops: tuple[NativeStop, ...] = ()
    partitions: tuple[Partition, ...] = ()
    many: Many | None = None

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the inputs."""
        return tuple(tuple(int(d) for d in t.shape) for t in self.inputs)


@dataclass(frozen=True, slots=True)
class NativePart:
    """A model compiled for one machine.

    Attributes:
        gears: one per program of the code.
        code: programs and machine code.
        weights: all that the programs read, packed and folded, from base to base.
        engine: name of the backend that runs it.
        about: what is recorded besides, as JSON knows it: who compiled it, from what, and how.
        ranges: the extents that its gears are for together; None where each is for its own.
        phases: to which gears belong, one behind the other; None where each is all of the model.
    """

    gears: tuple[Gear, ...]
    code: NativeCode
    weights: npt.NDArray[np.uint8]
    engine: str
    about: Mapping[str, Any] = field(default_factory=dict)
    ranges: Ranges | None = None
    phases: NativePhases | None = None


# -- writing -----------------------------------------------------------------------------------


def members_of(part: NativePart, prefix: str) -> dict[str, Array]:
    """The members of a part, by name: whole lines of 64-bit words, so that each starts at one."""
    code = part.code
    words = []
    for gear, program in zip(part.gears, code.programs, strict=True):
        words += [program.words, program.places]
        words += [code_of(gear.many)] if gear.many is not None else []
    image = code.library or b"".join(bytes(o) for o in code.objects)
    return {
        f"{prefix}.words": _lines(np.concatenate(words).view(np.uint8)),
        f"{prefix}.code": _lines(np.frombuffer(image, np.uint8)),
        f"{prefix}.weights": _lines(part.weights),
    }


def _lines(raw: npt.NDArray[np.uint8]) -> Array:
    room = -(-max(raw.nbytes, 1) // _LINE) * _LINE
    if room == raw.nbytes and raw.flags.c_contiguous and not raw.ctypes.data % 8:
        return raw.view(np.int64)
    made = np.zeros(room, np.uint8)
    made[: raw.nbytes] = raw
    return made.view(np.int64)


def entry_of(part: NativePart, prefix: str, members: Mapping[str, Array]) -> dict[str, Any]:
    """Return the manifest's entry on a part with these members."""
    code, machine = part.code, part.code.machine
    sizes = {
        "words": sum(p.words.nbytes + p.places.nbytes for p in code.programs)
        + sum(g.many.width for g in part.gears if g.many is not None),
        "code": len(code.library) or sum(map(len, code.objects)),
        "weights": part.weights.nbytes,
    }
    gears = []
    for gear, program in zip(part.gears, code.programs, strict=True):
        gears.append(
            {
                "inputs": [_typed(t) for t in gear.inputs],
                "outputs": [_typed(t) for t in gear.outputs],
                "arena": gear.arena,
                "launches": gear.launches,
                "streams": gear.streams,
                "events": gear.events,
                "stops": [list(astuple(stop)) for stop in gear.stops],
                "partitions": [list(astuple(part)) for part in gear.partitions],
                "steps": program.steps,
                "bases": program.bases,
                "words": len(program.words),
                "places": len(program.places),
                **({"many": entry_of_many(gear.many)} if gear.many is not None else {}),
            }
        )
    return {
        "schema": _schema(part),
        "engine": part.engine,
        "target": {
            "name": machine.target,
            "architecture": machine.architecture,
            "system": machine.system,
            "requires": list(machine.requires),
            "format": machine.format,
        },
        "gears": gears,
        "memory": {"arena": max(g.arena for g in part.gears), **sizes},
        "symbols": list(code.symbols),
        "objects": [len(o) for o in code.objects],
        "members": prefix,
        "checksum": checksum(as_bytes(members[f"{prefix}.weights"])),
        "about": dict(part.about),
        **({"ranges": _ranged(part.ranges)} if part.ranges is not None else {}),
        **({"phases": entry_of_phases(part.phases)} if part.phases is not None else {}),
    }


def _schema(part: NativePart) -> int:
    if part.phases is not None and not part.phases.is_plain:
        return SCHEMA
    if part.phases is not None or (part.ranges and len(part.ranges.extents) > _FEW):
        return _IN_PHASES
    return _WITHOUT_MANY if part.ranges is None else _WITHOUT_PHASES


def _ranged(ranges: Ranges) -> dict[str, Any]:
    return {
        "extents": listed(ranges.extents),
        "inputs": [list(p) for p in ranges.inputs],
        "outputs": [list(p) for p in ranges.outputs],
        "at": [[list(shape) for shape in ends] for ends in ranges.at],
        "needs": list(ranges.needs),
    }


def _typed(type_: TensorType) -> list[Any]:
    return [type_.dtype.name, [int(d) for d in type_.shape]]


# -- reading -----------------------------------------------------------------------------------

Take = Callable[[str], memoryview]
"""The bytes of a member, by its whole name."""


@dataclass(frozen=True, slots=True)
class Described:
    """An entry of a manifest that was checked: numbers are in range and fit one another.

    Attributes:
        entry: as it is in the manifest.
        gears: of the part.
        machine: that it runs on.
        engine: name of the backend that runs it.
        prefix: of the names of its members.
        sizes: bytes that each member has.
        about: the record.
        checksum: of the weights; "" in files that were written before there was one.
        ranges, phases: see `NativePart`.
    """

    entry: Mapping[str, Any]
    gears: tuple[Gear, ...]
    machine: Machine
    engine: str
    prefix: str
    sizes: Mapping[str, int]
    about: Mapping[str, Any]
    checksum: str = ""
    ranges: Ranges | None = None
    phases: NativePhases | None = None

    @property
    def types(self) -> list[tuple[tuple[TensorType, ...], tuple[TensorType, ...]]]:
        """Types of the model's inputs and outputs, by gear; at one set of shapes where gears are
        for ranges of extents, or for phases.
        """
        if self.ranges is None:
            return [(gear.inputs, gear.outputs) for gear in self.gears]
        first = self.gears[0]
        own = tuple(t.dtype for t in first.inputs), tuple(t.dtype for t in first.outputs)
        taken, given = own if self.phases is None else self.phases.dtypes
        at = self.ranges.at
        return [(_typed_at(taken, at[0]), _typed_at(given, at[1]))]

    def open(self, take: Take) -> NativePart:
        """The part, over members that `take` gives.

        Raises:
            ValueError: sizes do not fit.
        """
        # Weights first: what is done with them goes on while code is checked and opened.
        raw = {k: take(f"{self.prefix}.{k}") for k in reversed(MEMBERS)}
        sizes = self.sizes
        for what, size in sizes.items():
            if not size <= raw[what].nbytes < size + 2 * _LINE:
                raise ValueError(f"{what} are {raw[what].nbytes} bytes, not {size}")
        code = raw["code"][: sizes["code"]]
        objects = _cut(code, [_count(n) for n in _list(self.entry["objects"])])
        symbols = tuple(_text(s) for s in _list(self.entry["symbols"]))
        words = np.frombuffer(raw["words"], np.int64)
        programs, gears = _programs(self.entry, self.gears, words, len(symbols))
        library = b"" if objects else code
        whole = NativeCode(programs, symbols, library, objects, self.machine)
        weights = np.frombuffer(raw["weights"], np.uint8, sizes["weights"])
        more = self.about, self.ranges, self.phases
        return NativePart(gears, whole, weights, self.engine, *more)


def _typed_at(dtypes: Sequence[DType], shapes: Sequence[tuple[int, ...]]) -> tuple[TensorType, ...]:
    return tuple(TensorType(d, shape) for d, shape in zip(dtypes, shapes, strict=True))


def described(entry: Any) -> Described:
    """Return the description in an entry of a manifest.

    Raises:
        ValueError, KeyError, TypeError: it is damaged, or of a newer schema.
    """
    if not isinstance(entry, dict):
        raise ValueError("the entry of a native part is not an object")
    schema = _count(entry["schema"])
    if not _WITHOUT_MANY <= schema <= SCHEMA:
        raise NewerSchema(schema, str(entry.get("about", {}).get("producer", "")))
    target = entry["target"]
    texts = [_text(target[k]) for k in ("name", "architecture", "system")]
    requires = tuple(_text(f) for f in _list(target["requires"]))
    machine = Machine(texts[0], texts[1], texts[2], requires, _text(target["format"]))
    is_phased = "phases" in entry
    gears = tuple(_gear(g, is_phased) for g in _list(entry["gears"]))
    if not is_phased:
        _check_gears(gears)
    sizes = {k: _count(entry["memory"][k]) for k in MEMBERS}
    if not isinstance(entry["about"], dict):
        raise ValueError("its record is not an object")
    engine, prefix = _text(entry["engine"]), _text(entry["members"])
    summed = _text(entry.get("checksum", ""))
    phases, counts = None, (len(gears[0].inputs), len(gears[0].outputs))
    if is_phased:
        phases = _phases(entry, gears)
        counts = len(phases.dtypes[0]), len(phases.dtypes[1])
    ranges = _ranges(entry.get("ranges"), gears, counts, is_phased)
    more = entry["about"], summed, ranges, phases
    return Described(entry, gears, machine, engine, prefix, sizes, *more)


def _check_gears(gears: Sequence[Gear]) -> None:
    if not 1 <= len(gears) <= MOST_GEARS or len({g.shapes for g in gears}) < len(gears):
        raise ValueError(f"{len(gears)} gears, or two of the same shapes")
    ends = {(len(g.inputs), len(g.outputs)) for g in gears}
    if len(ends) > 1:
        raise ValueError("gears have different numbers of inputs or outputs")


def _phases(entry: Any, gears: Sequence[Gear]) -> NativePhases:
    if not 1 <= len(gears) <= MOST_GEARS * MOST_PHASES:
        raise ValueError(f"{len(gears)} gears")
    ends = [(len(g.inputs), len(g.outputs)) for g in gears]
    phases = described_phases(entry["phases"], ends, ranges_in(entry["ranges"]["extents"], 0))
    owned = [names for p in phases.programs for names in [set(p.extents)] * len(p.spans)]
    for gear, names in zip(gears, owned, strict=True):
        if gear.many is not None and not gear.many.ranges.keys() <= names:
            raise ValueError("a gear is for extents that its phase does not have")
    return phases


def _ranges(
    entry: Any, gears: Sequence[Gear], counts: tuple[int, int], is_phased: bool
) -> Ranges | None:
    if entry is None:
        if any(gear.many is not None for gear in gears):
            raise ValueError("gears are for many extents, but it declares none")
        return None
    extents = ranges_in(entry["extents"], 0 if is_phased else 1)
    inputs, outputs = patterns_in(entry["inputs"], extents), patterns_in(entry["outputs"], None)
    if {d for shape in inputs for d in shape if isinstance(d, str)} != extents.keys():
        raise ValueError("an extent is of no input, or has no range")
    if (len(inputs), len(outputs)) != counts:
        raise ValueError("gears have other inputs or outputs than its ranges")
    taken, given = (patterns_in(ends, ()) for ends in _list(entry["at"]))
    if (len(taken), len(given)) != (len(inputs), len(outputs)):
        raise ValueError("its shapes are those of other inputs or outputs")
    needs = _list(entry["needs"])
    if not all(isinstance(need, str) for need in needs):
        raise ValueError("what its extents need is not text")
    at = _numbered(taken), _numbered(given)
    return Ranges(extents, inputs, outputs, at, tuple(needs))


def _numbered(shapes: Sequence[Pattern]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(d) for d in shape) for shape in shapes)


class NewerSchema(ValueError):
    """The entry is written in a way that this Treadle does not know."""

    def __init__(self, schema: int, producer: str) -> None:
        super().__init__(f"its native part has schema {schema}, this Treadle reads {SCHEMA}")
        self.producer = producer


def _gear(entry: Any, is_phased: bool) -> Gear:
    inputs, outputs = (tuple(_type(t) for t in _list(entry[k])) for k in ("inputs", "outputs"))
    arena, launches, streams, events = (
        _count(entry[k]) for k in ("arena", "launches", "streams", "events")
    )
    many = described_many(entry["many"], is_phased) if "many" in entry else None
    stops = tuple(_stop(s, entry, many is not None) for s in _list(entry["stops"]))
    cut = tuple(_partition(p) for p in _list(entry.get("partitions", [])))
    gear = Gear(inputs, outputs, arena, launches, streams, events, stops, cut, many)
    bases, ends = _count(entry["bases"], _MOST_ITEMS), len(inputs) + len(outputs) + 3
    if bases < ends or (many is None and bases != ends):
        raise ValueError(f"a program over {entry['bases']} bases")
    if many is not None and len(many.inputs) != len(inputs):
        raise ValueError("a gear for many extents has other inputs")
    return gear


def _stop(given: Any, entry: Any, is_open: bool) -> NativeStop:
    step, base, offset, op, low, high = _list(given)
    places = _count(step, _MOST_ITEMS), _count(base, _MOST_ITEMS), _count(offset)
    inside = base < entry["bases"] if is_open else base == entry["bases"] - 1
    if step >= entry["steps"] or not inside or offset + 16 > entry["arena"]:
        raise ValueError("a check lies outside of its program")
    if type(low) is not int or type(high) is not int:
        raise ValueError("the range of an index is not a pair of numbers")
    return NativeStop(*places, _text(op), low, high)


def _partition(given: Any) -> Partition:
    engine, nodes, *sizes = _list(given)
    reads, writes = map(_count, sizes)
    return Partition(_text(engine), _count(nodes, _MOST_ITEMS), reads, writes)


def _type(entry: Any) -> TensorType:
    name, shape = entry
    type_ = TensorType(as_dtype(_text(name)), tuple(_count(d) for d in _list(shape)))
    _count(type_.nbytes)
    return type_


def _programs(
    entry: Any, gears: Sequence[Gear], words: Array, symbols: int
) -> tuple[tuple[NativeProgram, ...], tuple[Gear, ...]]:
    """Programs, and gears with their code."""
    made: list[NativeProgram] = []
    whole: list[Gear] = []
    at = 0
    for gear, known in zip(entry["gears"], gears, strict=True):
        steps, bases, length, places = (
            _count(gear[k], _MOST_ITEMS) for k in ("steps", "bases", "words", "places")
        )
        own, kernels = words[at : at + length], words[at + length : at + length + places]
        at += length + places
        if len(own) < length or len(kernels) < places or at > len(words):
            raise ValueError("the words of a program are cut off")
        if places and not (kernels.min() >= 0 and kernels.max() < length):
            raise ValueError("a kernel belongs outside of its program")
        if places and not (own[kernels].min() >= 0 and own[kernels].max() < symbols):
            raise ValueError("a program uses a kernel that is not there")
        made.append(NativeProgram(own, kernels, steps, bases))
        if known.many is not None:
            raw = words[at : at + known.many.width // 8].tobytes()
            at += known.many.width // 8
            known = replace(known, many=_coded(known, known.many, raw, bases))
        whole.append(known)
    return tuple(made), tuple(whole)


def _coded(gear: Gear, many: Many, raw: bytes, bases: int) -> Many:
    if len(raw) < many.width:
        raise ValueError("the code of a gear is cut off")
    slots = bases - len(gear.inputs) - len(gear.outputs) - 3
    results = [len(t.shape) for t in gear.outputs] + [2] * len(gear.stops)
    return opened_many(many, raw, slots, results)


def _cut(raw: memoryview, sizes: Sequence[int]) -> tuple[memoryview, ...]:
    if sizes and sum(sizes) != len(raw):
        raise ValueError(f"objects of {sum(sizes)} bytes in {len(raw)}")
    ends = np.cumsum([0, *sizes]).tolist()
    return tuple(raw[a:b] for a, b in itertools.pairwise(ends))


def _count(value: Any, most: int = _MOST_BYTES) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{str(value)[:40]} is not a size")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 256:
        raise ValueError(f"{str(value)[:40]} is not a name")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > _MOST_ITEMS:
        raise ValueError(f"{str(value)[:40]} is not a list")
    return value


__all__ = [
    "MEMBERS",
    "MOST_GEARS",
    "SCHEMA",
    "Described",
    "Gear",
    "NativePart",
    "NativeStop",
    "NewerSchema",
    "described",
    "entry_of",
    "members_of",
]
