"""Whole programs on disk: a known graph comes back without passing the stages again.

The key holds everything a program depends on: the captured graph's digest, what the caller does
with its inputs and outputs, options, the compiler's target, and Treadle's own sources. Entries lie
in the compiler's private cache beside the code they run, and are trusted as that code is; one that
does not decode counts as absent.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from treadle.backends.native_code import Executable
from treadle.backends.program import Compiler, DeviceExecutable
from treadle.base.dtype import as_dtype
from treadle.base.errors import TreadleError
from treadle.base.log import get_logger
from treadle.base.types import TensorType
from treadle.base.version import VERSION
from treadle.engine.options import Options
from treadle.engine.plan import Interface, Loaded, MemoryPlan, Plan, Pool
from treadle.graph.ir import Graph, regions_of
from treadle.runtime.host import memory

FORMAT = 1
"""Part of every key: raised when the meaning of an entry changes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A program out of the cache, loaded; its plan has no steps to look at."""

    loaded: Loaded[Any]
    results: tuple[TensorType, ...]


def key_of(graph: Graph, interface: Interface, options: Options, compiler: Compiler) -> str:
    """The name of a graph's program; equal programs have equal names in every process.

    It is "" for a program that is not kept, because it has ops from outside of Treadle: nobody
    would see that their code has changed.
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


def save(
    key: str, loaded: Loaded[Any], results: tuple[TensorType, ...], compiler: Compiler
) -> None:
    """Keep a program; one that returns to Python for some ops is not kept."""
    plan = loaded.plan
    if plan.host or not key:
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
        "results": [[t.dtype.name, t.shape] for t in results],
        "constants": [[offset, a.nbytes] for offset, a in plan.constants.entries],
        "room": plan.constants.nbytes,
        "main": len(main),
        "prelude": len(prelude),
    }
    text = json.dumps(head).encode()
    compiler.save(key, b"\n".join((text, b"".join((main, prelude, *arrays)))))


# -- reading -----------------------------------------------------------------------------------


def fetch(key: str, compiler: Compiler, *, on_host: bool = True) -> Entry | None:
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


def _decode(data: bytes, compiler: Compiler, on_host: bool) -> Entry | None:
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
        (),
        head["inputs"],
        head["outputs"],
        Pool(head["room"]),
        head["kept"],
        (),
        MemoryPlan((), peak, bound, naive),
        tuple((j, i) for j, i in head["updates"]),
        launches=head["launches"],
    )
    kept = memory("packed weights", head["kept"] if on_host else 0)
    loaded: Loaded[Any] = Loaded(plan, main, prelude, constants, kept, compiler.empty)
    results = tuple(TensorType(as_dtype(name), tuple(shape)) for name, shape in head["results"])
    return Entry(loaded, results)
