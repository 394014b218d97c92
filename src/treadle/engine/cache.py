"""Whole programs on disk: a known graph comes back without passing the stages again.

The key holds everything a program depends on: the captured graph's digest, what the caller does
with its inputs and outputs, options, the compiler's target, and Treadle's own sources. Entries lie
in the compiler's private cache beside the code they run, and are trusted as that code is; one that
does not decode counts as absent.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from treadle.backends.native_code import Executable
from treadle.backends.program import Address, Compiler, DeviceExecutable
from treadle.base.dtype import as_dtype
from treadle.base.errors import TreadleError
from treadle.base.log import get_logger
from treadle.base.types import TensorType
from treadle.base.version import VERSION
from treadle.engine.options import Options
from treadle.engine.plan import ConstantPool, HostTask, Interface, Loaded, MemoryPlan, Plan
from treadle.engine.scheme import Open, data_of, open_of
from treadle.graph.ir import Graph, regions_of
from treadle.ops import REGISTRY
from treadle.ops.check import CheckIndices
from treadle.ops.collective import AllReduce, Collective
from treadle.runtime.comm import buckets, carriers, groups
from treadle.runtime.comm.api import Communicator
from treadle.runtime.host import memory

Cuts = tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]
"""As in `CompileReport.cuts`."""
FORMAT = 3
"""Part of every key: raised when the meaning of an entry changes."""


@dataclass(frozen=True, slots=True)
class CachedProgram:
    """A program out of the cache, loaded; its plan has no steps to look at.

    `open` is what one for many extents has besides; types of results are left out then.
    """

    loaded: Loaded[Any]
    results: tuple[TensorType, ...]
    cuts: Cuts = ()
    open: Open | None = None


def key_of(
    graph: Graph, interface: Interface, options: Options, compiler: Compiler, settings: str = ""
) -> str:
    """The name of a graph's program; equal programs have equal names in every process.

    It is "" for a program that is not kept, because it has ops from outside of Treadle: nobody
    would see that their code has changed. `settings` says what else it depends on.
    """
    if not _is_own(graph):
        return ""
    parts = (
        str(FORMAT),
        sources(),
        compiler.target,
        graph.digest,
        repr(interface),
        repr(options),
        settings,
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest() + ".program"


def _is_own(graph: Graph) -> bool:
    return all(
        type(node.op).__module__.startswith("treadle.") and all(map(_is_own, regions_of(node.op)))
        for node in graph.nodes
    )


@functools.cache
def sources() -> str:
    """Version of Treadle, and sizes and times of its files: another generator, other programs."""
    state = hashlib.sha256(VERSION.encode())
    root = Path(__file__).resolve().parent.parent
    for line in sorted(_files(root)):
        state.update(line.encode())
    return state.hexdigest()


def _files(folder: Path) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir() and entry.name != "__pycache__":
                yield from _files(Path(entry.path))
            elif entry.name.endswith(".py"):
                status = entry.stat()
                yield f"{entry.path} {status.st_size} {status.st_mtime_ns}\n"


# -- writing -----------------------------------------------------------------------------------


def save(key: str, entry: CachedProgram, compiler: Compiler) -> None:
    """Keep a program; one that returns to Python for other ops than collectives is not kept."""
    loaded = entry.loaded
    plan = loaded.plan
    if not key or not all(map(_is_kept, plan.host)):
        return
    main = loaded.main.stored()
    prelude = b"" if loaded.prelude is None else loaded.prelude.stored()
    arrays = [array.tobytes() for _, array in plan.constants.entries]
    head = {
        "inputs": plan.inputs,
        "outputs": plan.outputs,
        "kept": plan.kept,
        "launches": plan.launches,
        "updates": plan.updates,
        "memory": [plan.memory.peak, plan.memory.bound, plan.memory.naive],
        "results": [_type_data(t) for t in entry.results],
        "host": [_task_data(task) for task in plan.host],
        "halts": list(plan.tasks.items()),
        "cuts": entry.cuts,
        "constants": [[offset, a.nbytes] for offset, a in plan.constants.entries],
        "room": plan.constants.nbytes,
        "main": len(main),
        "prelude": len(prelude),
    }
    if entry.open is not None:
        head["open"], code = data_of(entry.open)
        head["slots"], head["sums"], arrays = plan.slots, plan.sums, [*arrays, *code]
    text = json.dumps(head).encode()
    compiler.save(key, b"\n".join((text, b"".join((main, prelude, *arrays)))))


def _is_kept(task: HostTask) -> bool:
    """Return whether a task is a check, or a collective, of numbers and names alone."""
    ends = [n for where, type_ in task.inputs + task.outputs for n in (where.offset, *type_.shape)]
    plain = all(type(v) in (int, str) for v in (*task.op.attributes.values(), *ends))
    return isinstance(task.op, Collective | CheckIndices) and plain


def _task_data(task: HostTask) -> list[Any]:
    ends = [
        [[where.base, where.offset, *_type_data(type_)] for where, type_ in side]
        for side in (task.inputs, task.outputs)
    ]
    return [task.op.name, task.op.attributes, *ends, task.engine, task.phase]


def _type_data(type_: TensorType) -> list[Any]:
    return [type_.dtype.name, type_.shape]


# -- reading -----------------------------------------------------------------------------------


def fetch(key: str, compiler: Compiler, *, on_host: bool = True) -> CachedProgram | None:
    """A program that was kept, ready to run; None where there is none, or its code is gone.

    `on_host` says where it runs, as in `load`.
    """
    data = compiler.saved(key) if key else None
    if data is None:
        return None
    try:
        return _decode(data, compiler, on_host)
    except (ValueError, KeyError, TypeError, IndexError, TreadleError) as error:
        get_logger("engine").info("a cached program is ignored: %s", error)
        return None


def _decode(data: bytes, compiler: Compiler, on_host: bool) -> CachedProgram | None:
    text, _, rest = data.partition(b"\n")
    head: dict[str, Any] = json.loads(text)
    first, second = head["main"], head["main"] + head["prelude"]
    main = compiler.restore(rest[:first])
    prelude: Executable | DeviceExecutable | None = None
    if second > first:
        prelude = compiler.restore(rest[first:second])
        if prelude is None:
            return None
    if main is None:
        return None
    constants = memory("constants", head["room"])
    at = second
    for offset, nbytes in head["constants"]:
        raw = np.frombuffer(rest, np.uint8, nbytes, at) if nbytes else np.empty(0, np.uint8)
        constants.bytes[offset : offset + nbytes] = raw
        at += nbytes
    peak, bound, naive = head["memory"]
    plan = Plan(
        (),
        tuple(itertools.starmap(_task, head["host"])),
        head["inputs"],
        head["outputs"],
        ConstantPool(head["room"]),
        head["kept"],
        (),
        MemoryPlan((), peak, bound, naive),
        tuple((j, i) for j, i in head["updates"]),
        launches=head["launches"],
        halts=tuple((step, task) for step, task in head["halts"]),
        slots=head.get("slots", 0),
        sums=tuple(map(tuple, head.get("sums", ()))),
    )
    kept = memory("packed weights", head["kept"] if on_host else 0)
    loaded: Loaded[Any] = Loaded(plan, main, prelude, constants, kept, compiler.empty)
    results = tuple(itertools.starmap(_type, head["results"]))
    cuts = tuple((what, tuple(map(tuple, cut))) for what, cut in head["cuts"])
    known = open_of(head["open"], rest[at:]) if "open" in head else None
    return CachedProgram(loaded, results, cuts, known)


def _task(
    name: str, attributes: dict[str, Any], inputs: Any, outputs: Any, engine: str, phase: str
) -> HostTask:
    ends = [
        tuple((Address(base, offset), _type(*type_)) for base, offset, *type_ in side)
        for side in (inputs, outputs)
    ]
    return HostTask(REGISTRY[name](**attributes), ends[0], ends[1], engine, phase)


def _type(name: str, shape: Sequence[int]) -> TensorType:
    return TensorType(as_dtype(name), tuple(shape))


# -- programs with reductions ------------------------------------------------------------------
#
# Ranks talk when they make one: all measure the link, and the first one's cut into buckets holds
# for all. One that came from a cache would not take part, and the others would wait for it. Nor
# would programs that were made at different times reduce the same buckets. So ranks compare what
# they have found before any goes on; where that differs, or one has nothing, all make the program.


def settings(graph: Graph, options: Options) -> str | None:
    """Return the settings that a program depends on besides its ops: of its groups, who is on which
    machine.

    None for a program that is not kept, as its ranks talk in several groups when they make it, and
    each of those would have to be asked.
    """
    if len(_asked(graph, options)) > 1:
        return None
    names = {node.op.group for node in graph.nodes if isinstance(node.op, Collective)}
    return "; ".join(_described(name) for name in sorted(names))


def _described(name: str) -> str:
    comm = groups.find(name)
    if comm is None:
        return f"{name}: nobody"
    places = list(dict.fromkeys(comm.machines))
    carried = "" if carriers.why_not(carriers.NCCL, name) else f" {carriers.NCCL}"
    return f"{name}: {comm.engine}{carried} {[places.index(m) for m in comm.machines]}"


def _asked(graph: Graph, options: Options) -> list[str]:
    """The groups whose ranks talk when they make a program."""
    if options.reductions == "off" or not options.allows("reductions", 1):
        return []
    ops = [node.op for node in graph.nodes if isinstance(node.op, AllReduce)]
    return sorted({op.group for op in ops if op.world > 1})


def shared(graph: Graph, options: Options, known: CachedProgram | None) -> CachedProgram | None:
    """Return the entry of the cache, if all ranks have found the like; else None.

    A group whose ranks have reduced the same before is not asked again: one of them may be alone in
    making a program, as for a last batch that is smaller than those of others.

    Raises:
        CommunicationError: a rank does not come in time.
    """
    comm = _asked_one(graph, options)
    if comm is None:
        return known
    agreed = buckets.programs_of(comm).get(_reduced(graph, options))
    if agreed is not None:
        return known if known is not None and known.cuts == agreed else None
    mine = "" if known is None else hashlib.sha256(repr(known.cuts).encode()).hexdigest()
    alike = set(comm.exchange(mine)) == {mine}
    if known is None or not alike:
        return None
    for what, cut in known.cuts:
        buckets.remember(comm, what, cut)
    return known


def settle(graph: Graph, options: Options, cuts: Cuts) -> None:
    """Keep in mind how the reductions of a program are cut that this rank has now."""
    comm = _asked_one(graph, options)
    if comm is not None:
        buckets.programs_of(comm).setdefault(_reduced(graph, options), cuts)


def _asked_one(graph: Graph, options: Options) -> Communicator | None:
    """The one group whose ranks talk when they make a program, if there is one."""
    names = _asked(graph, options)
    comm = groups.find(names[0]) if len(names) == 1 else None
    return None if comm is None or comm.size == 1 else comm


def _reduced(graph: Graph, options: Options) -> str:
    """Return a text of the program's reductions, equal on ranks whose batches have different
    shapes.
    """
    found = [f"{n.op} {n.output.type}" for n in graph.nodes if isinstance(n.op, AllReduce)]
    return "; ".join((repr(options.reductions), *found))
