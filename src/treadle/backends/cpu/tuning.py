"""Tuning: alternatives of compiled ops are timed on this machine, and the best ones recorded."""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from treadle.backends.api import Support
from treadle.backends.codegen import tuned
from treadle.backends.cpu.tuning_record import write
from treadle.backends.program import (
    ALIGNMENT,
    Address,
    Launch,
    Lowered,
    Program,
    Ref,
    Run,
    Tuned,
    Watched,
)
from treadle.base.array import Array
from treadle.base.env import of_child
from treadle.base.log import get_logger
from treadle.base.symbol import Dim
from treadle.base.types import TensorType

WORTH = 1.05
"""Factor by which an alternative has to be faster."""
_TURN = 2e-4
"""Seconds that are timed at once; shorter programs run several times."""
_APART = """
import pickle, sys
from treadle.backends.cpu.eager import compiler
watched, seconds = pickle.load(sys.stdin.buffer)
sys.stdout.buffer.write(pickle.dumps(list(compiler().tune(watched, seconds))))
"""

Lower = Callable[[Watched], Lowered | Support]
Bind = Callable[[Program, Sequence[Array]], Callable[[], None]]


@dataclass(slots=True)
class _Rival:
    """One choice in a contest: the model's is None."""

    choice: tuned.Choice | None
    run: Callable[[], None]
    times: int
    best: float = math.inf

    def measure(self) -> None:
        """Run once more."""
        start = time.perf_counter()
        for _ in range(self.times):
            self.run()
        self.best = min(self.best, (time.perf_counter() - start) / self.times)


def tune(watched: Sequence[Watched], lower: Lower, bind: Bind, seconds: float) -> Iterator[Tuned]:
    """Time the alternatives of each question once; record what is clearly better.

    Alternatives take turns; the slower half of them leaves after each round (successive halving:
    Jamieson, Talwalkar 2016), and the last few meet again for the rest of the time.

    Args:
        watched: ops that were lowered, and what was asked then.
        lower: lowers them again.
        bind: makes a function of a program and its memory.
        seconds: for each question.
    """
    last = {name: (w, offers) for w in watched for name, offers in w.asked.items()}
    for name, (work, offers) in last.items():
        with tuned.trying({name: {}}):
            model = _rival(None, work, lower, bind)
        rivals = [model]
        others = work.others or (work.op,) * len(offers)
        for choice, op in zip(offers, others, strict=True):
            with tuned.trying({name: choice}):
                rivals.append(_rival(choice, replace(work, op=op), lower, bind))
        best = _contest([r for r in rivals if r is not None], seconds)
        if model is None or best is None:
            continue
        better = best is not model and best.best * WORTH < model.best
        choices = dict(tuned.installed())
        choices.pop(name, None)
        if better and best.choice is not None:
            choices[name] = dict(best.choice)
        if choices != tuned.installed():
            write(choices)
            tuned.install(choices)
        kept = best.choice if better else None
        yield Tuned(name, kept, model.best, best.best if better else model.best, len(rivals))


def tune_apart(watched: Sequence[Watched], seconds: float) -> list[Tuned]:
    """Tune in a separate process, as `tune` does; an empty list if that process fails.

    A kernel that reads where it may not, or never ends, takes that process along and no other.
    """
    if not watched or not sys.executable:
        return []
    command = [sys.executable, "-c", _APART]
    environment = of_child({"PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    given = pickle.dumps((list(watched), seconds))
    done = subprocess.run(command, input=given, capture_output=True, env=environment, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        get_logger().warning("cpu: measuring kernels apart failed: %s", said[-1] if said else "")
        return []
    found: list[Tuned] = pickle.loads(done.stdout)
    choices = {**tuned.installed(), **{t.name: t.choice for t in found if t.choice is not None}}
    for one in found:
        if one.choice is None:
            choices.pop(one.name, None)
    tuned.install(choices)
    return found


def _contest(rivals: list[_Rival], seconds: float) -> _Rival | None:
    """The fastest."""
    if not rivals:
        return None
    model, end = rivals[0], time.perf_counter() + seconds
    while len(rivals) > 4:
        for rival in rivals:
            rival.measure()
        rivals = sorted(rivals, key=lambda r: r.best)[: len(rivals) // 2]
    rivals = rivals if model in rivals else [model, *rivals]
    turns = 0
    while turns < 5 or time.perf_counter() < end:
        for rival in rivals:
            rival.measure()
        turns += 1
    return min(rivals, key=lambda r: r.best)


def _rival(choice: tuned.Choice | None, work: Watched, lower: Lower, bind: Bind) -> _Rival | None:
    """A choice ready to run, or None where it is refused."""
    lowered = lower(work)
    if isinstance(lowered, Support) or not lowered.launches:
        return None
    arrays, first = _memory(work, lowered)
    prelude, main = (_program(xs, first, len(arrays)) for xs in (lowered.prelude, lowered.launches))
    if prelude.steps:
        bind(prelude, arrays)()
    run = bind(main, arrays)
    start = time.perf_counter()
    run()
    once = max(time.perf_counter() - start, 1e-7)
    return _Rival(choice, run, max(1, round(_TURN / once)))


def _program(launches: Sequence[Launch], first: Mapping[str, int], bases: int) -> Program:
    def place(argument: Ref | Dim) -> Address | Dim:
        if isinstance(argument, Ref):
            return Address(first[argument.kind] + argument.index, argument.offset)
        return argument

    runs = (Run(x.kernel, tuple(map(place, x.arguments)), x.items, x.serial) for x in launches)
    return Program(tuple(runs), bases)


def _memory(work: Watched, lowered: Lowered) -> tuple[list[Array], dict[str, int]]:
    """An array per base, and the first base of each kind."""
    rng = np.random.default_rng(0)
    kinds: dict[str, list[Array]] = {
        "input": [_filled(t, rng) for t in work.types],
        "output": [_filled(t, None) for t in work.op.infer(*work.types)],
        "workspace": [_room(int(n)) for n in lowered.workspaces],
        "constant": [_copied(a) for a in lowered.constants],
        "kept": [_room(int(n)) for n in lowered.kept],
    }
    first: dict[str, int] = {}
    arrays: list[Array] = []
    for kind, found in kinds.items():
        first[kind] = len(arrays)
        arrays += found
    return arrays, first


def _room(nbytes: int) -> Array:
    """Zeros, aligned as values of programs are."""
    room = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    found: Array = room[start : start + max(nbytes, 1)]
    return found


def _copied(array: Array) -> Array:
    room = _room(array.nbytes)
    room[: array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    return room


def _filled(type_: TensorType, rng: np.random.Generator | None) -> Array:
    """Memory of a value: floats are random, since zeros may be quicker; integers are zero."""
    room = _room(type_.nbytes)
    if rng is not None and type_.dtype.is_float:
        array = room[: type_.nbytes].view(type_.dtype.numpy)
        array[...] = rng.standard_normal(array.size, np.float32).astype(array.dtype)
    return room
