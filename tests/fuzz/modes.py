"""Every way to run a program, and what counts as a difference."""

from __future__ import annotations

import io
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tests.fuzz.program import Array, Program

import treadle as mge
from treadle.backends.cpu import pool
from treadle.base.errors import TreadleError
from treadle.engine.options import PASSES as OPTIONAL
from treadle.engine.options import Options
from treadle.serialization import load_program, save_program
from treadle.utils.comp_graph_tools import GraphInference

PASSES = tuple(p for p in OPTIONAL if p != "reductions")
"""Optional passes, which are left out one at a time; all-reductions are of several processes."""

Calls = list[list[Array]]
MORE = 50
"""Calls of a program that several threads run."""
RUN_TIME = "known only at run time"
"""What programs refuse: extents that depend on values, as in `x[mask]`."""
EPS = {"float64": 2e-10, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""Relative differences that another order of sums may make, by the coarsest element type."""


def _calls(
    program: Program, made: Callable[[Any], Any], change: bool = True, more: int = 0
) -> Calls:
    """Results of two equal calls, and of one after the parameters have changed.

    Of `more` equal calls the first that differs from the first of all is returned as the second.
    """
    bound = program.bound()
    function = made(bound.function)
    found = [[y.numpy() for y in function(*bound.inputs)] for _ in range(2)]
    for _ in range(0 if program.changes else more):
        again = [y.numpy() for y in function(*bound.inputs)]
        if any(a.tobytes() != b.tobytes() for a, b in zip(again, found[0], strict=True)):
            found[1] = again
            break
    if change:
        bound.change()
    found.append([y.numpy() for y in function(*bound.inputs)])
    return found


def _compiled(**options: Any) -> Callable[[Program], Calls]:
    return lambda p: _calls(p, mge.jit.compile(options=Options(check=True, **options)))


def _first_axes(program: Program) -> dict[int, dict[int, str]]:
    leaves = [program.leaves[name] for name in program.inputs]
    return {i: {0: f"n{leaf.shape[0]}"} for i, leaf in enumerate(leaves) if leaf.shape}


def _dynamic(program: Program) -> Calls:
    """First axes are symbols; what cannot be done with symbols is not compared."""
    made = mge.jit.compile(dynamic=_first_axes(program))
    bound = program.bound()
    try:
        made(bound.function).graph(*bound.inputs)
    except TreadleError:
        return []
    return _calls(program, made)


def grown(program: Program) -> Program:
    """The program with one more in the first axis of every input."""
    leaves = {
        name: replace(leaf, shape=(leaf.shape[0] + 1, *leaf.shape[1:]))
        if leaf.kind == "input" and leaf.shape and not leaf.source
        else leaf
        for name, leaf in program.leaves.items()
    }
    return program.without(leaves=leaves)


def _elsewhere(program: Program) -> Calls:
    """What was captured at some extents, called at others."""
    bound, other = program.bound(), grown(program).bound()
    if program.changes:
        return []
    leaves = [program.leaves[name] for name in program.inputs]
    axes = {i: a for i, a in _first_axes(program).items() if not leaves[i].source}
    function = mge.jit.compile(dynamic=axes)(bound.function)
    try:
        function.graph(*bound.inputs)
    except TreadleError:
        return []
    found = [[y.numpy() for y in function(*other.inputs)] for _ in range(2)]
    bound.change()
    return [*found, [y.numpy() for y in function(*other.inputs)]]


def _automatic(program: Program) -> Calls:
    """A program whose extents have become symbols, since others came."""
    bound = program.bound()
    if program.changes:
        return []
    function = mge.jit.compile(bound.function)
    other, larger = (p.bound() for p in (grown(program), grown(grown(program))))
    try:
        function(*bound.inputs)
        function(*larger.inputs)
    except TreadleError:
        return []
    found = [[y.numpy() for y in function(*other.inputs)] for _ in range(2)]
    bound.change()
    return [*found, [y.numpy() for y in function(*other.inputs)]]


def _traced(program: Program) -> Calls:
    return _calls(program, mge.jit.trace)


def _sunk(program: Program) -> Calls:
    """Three turns in one native call, which gives the results of the last."""
    bound = program.bound()
    if not bound.inputs:
        return []
    step = mge.jit.compile(bound.function)
    try:
        results = list(mge.jit.sink(step, [tuple(bound.inputs)] * 3, 3))
    except mge.jit.TraceError:
        return []
    except TreadleError as error:
        if "returns to Python" in str(error):
            return []
        raise
    return [[y.numpy() for y in call] for call in results]


def _saved(program: Program) -> Calls:
    bound, file = program.bound(), io.BytesIO()
    if program.changes:
        return []  # A file has its own state.
    save_program(bound.function, file, *bound.inputs)
    file.seek(0)
    loaded = load_program(file)
    return [[y.numpy() for y in loaded(*bound.inputs)]]


def _dumped(program: Program) -> Calls:
    bound = program.bound()
    if program.grads or program.changes or not bound.inputs:
        return []
    traced = mge.jit.trace(capture_as_const=True)(bound.function)
    traced(*bound.inputs)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.tm")
        names = [f"out{i}" for i in range(len(program.outputs))]
        traced.dump(path, output_names=names)
        arrays = [x.numpy() for x in bound.inputs]
        return [list(GraphInference(path).run(*arrays).values())]


def _threads(count: int) -> Callable[[Program], Calls]:
    """Several threads: called often, since who comes late is another one each time."""

    def run(program: Program) -> Calls:
        before = pool.get_threads()
        pool.set_threads(count)
        try:
            made = mge.jit.compile(options=Options(check=True))
            return _calls(program, made, more=MORE * (count > 1))
        finally:
            pool.set_threads(before)

    return run


MODES: dict[str, Callable[[Program], Calls]] = {
    "reference": _compiled(engines=("reference",)),
    **{f"level {n}": _compiled(level=n) for n in (0, 1, 2, 3)},
    **{f"no {name}": _compiled(disabled=(name,)) for name in PASSES},
    "no groups": _compiled(fusion=False),
    "own memory": _compiled(reuse_memory=False),
    "budget": _compiled(memory_budget=1, strict_budget=False),
    "streams": _compiled(streams=2),
    "blocked": _compiled(layouts=("blocked", "channels-last")),
    "trace": _traced,
    "sink": _sunk,
    "dynamic": _dynamic,
    "other extents": _elsewhere,
    "changing extents": _automatic,
    "program file": _saved,
    "model file": _dumped,
    "1 thread": _threads(1),
    "2 threads": _threads(2),
}


class Truth:
    """What a program gives op by op, and how much that means.

    Values of the same program with inputs that are off by some units in the last place say which
    results hang on a comparison, and how much an error grows. Where they move parameters by a tenth
    of the largest, as training that diverges does, calls that begin with these mean nothing.
    """

    def __init__(self, program: Program, change: bool = True) -> None:
        self.program, self._change = program, change
        self.error: TreadleError | None = None
        self.calls: Calls = []
        self.spread: list[list[Array]] = []
        self._nudges, self._before = 0, 0
        try:
            self.calls = _calls(program, lambda f: f, change)
        except TreadleError as error:
            self.error = error
            return
        self._nudge(3)

    def _nudge(self, more: int) -> None:
        """Look how far results move for some more nudges, and keep the farthest."""
        numbers = range(self._nudges + 1, self._nudges + more + 1)
        self._nudges += more
        near = [_nudged(self.program, n, self._change) for n in numbers]
        lost, before, self.spread = False, self.spread, []
        for k, call in enumerate(self.calls):
            spread = []
            for i, want in enumerate(call):
                others = [n[self._before + k][i] for n in near if self._before + k < len(n)]
                found = np.full(want.shape, np.inf) if lost else _spread(want, others)
                spread.append(np.maximum(found, before[k][i]) if before else found)
            self.spread.append(spread)
            lost = lost or (self.program.changes and any(map(_is_noise, call, spread)))

    def drop(self, calls: int) -> None:
        """Leave calls out from the front."""
        self.calls, self.spread = self.calls[calls:], self.spread[calls:]
        self._before += calls

    def differs(self, got: Calls) -> str:
        """What is wrong with the results of another way, or nothing."""
        found = self._found(got)
        if found and self._nudges < 15:
            # relu of an exact 0 has another slope in half of the nudges: in none of three for one
            # zero of eight.
            self._nudge(12)
            found = self._found(got)
        return found

    def _found(self, got: Calls) -> str:
        for k, call in enumerate(got):
            if len(call) != len(self.calls[k]):
                return f"call {k}: {len(call)} results, not {len(self.calls[k])}"
            for i, (want, found) in enumerate(zip(self.calls[k], call, strict=True)):
                message = self._differs(want, found, self.spread[k][i], stepped=k > 0)
                if message:
                    return f"call {k}, result {i}: {message}"
        return ""

    def _differs(self, want: Array, got: Array, spread: Array, stepped: bool) -> str:
        if want.shape != got.shape or want.dtype != got.dtype:
            return f"{got.dtype}{got.shape}, not {want.dtype}{want.shape}"
        if want.dtype.kind in "iub":
            wrong = (want != got) & (spread == 0)
            # Behind a step of training sums in another order are 100 times as far off as what
            # three nudges tried, and a few of many comparisons with them come out otherwise.
            if stepped and self.program.optimizer and wrong.sum() <= 0.05 * wrong.size:
                return ""
        else:
            a, b = want.astype("float64"), got.astype("float64")
            eps = max(EPS[self.program.coarse], EPS.get(want.dtype.name, 0))
            finite = np.abs(a[np.isfinite(a)])
            eps = 0.0 if self.program.exact else eps
            room = eps * (np.abs(a) + 0.1 * float(finite.max(initial=0)) + 0.1) + 30 * spread * (
                eps > 0
            )
            with np.errstate(all="ignore"):
                close = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= room)
            wrong = ~close & np.isfinite(spread)
        if not wrong.any():
            return ""
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        return f"{int(wrong.sum())} of {wrong.size} wrong, {got[at]} for {want[at]} at {at}"


def _nudged(program: Program, nudge: int, change: bool) -> Calls:
    bound = program.bound(nudge)
    try:
        first = [y.numpy() for y in bound.function(*bound.inputs)]
        second = [y.numpy() for y in bound.function(*bound.inputs)] if program.changes else first
        if change:
            bound.change()
        return [first, second, [y.numpy() for y in bound.function(*bound.inputs)]]
    except TreadleError:  # An index that hangs on a comparison.
        return []


def _is_noise(want: Array, spread: Array) -> bool:
    """Whether a result moves by more than a tenth of its largest number."""
    finite = np.abs(want[np.isfinite(want)]) if want.dtype.kind == "f" else np.zeros(0)
    return bool(finite.size) and bool((spread > 0.1 * float(finite.max()) + 0.1).any())


def _spread(want: Array, others: Sequence[Array]) -> Array:
    """How far results move where inputs do; infinite where their shape does."""
    if len(others) < 3 or any(o.shape != want.shape for o in others):
        return np.full(want.shape, np.inf)
    with np.errstate(all="ignore"):
        moves = [np.abs(o.astype("float64") - want.astype("float64")) for o in others]
    same = [np.isfinite(want.astype("float64")) == np.isfinite(o.astype("float64")) for o in others]
    found = np.nan_to_num(np.max(moves, axis=0), nan=0.0, posinf=np.inf)
    return np.where(np.all(same, axis=0), found, np.inf)


def differences(program: Program, modes: Sequence[str]) -> dict[str, str]:
    """What goes wrong, by mode; "eager" is an error of another kind in the program itself."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            truth = Truth(program)
        except Exception as error:
            return {"eager": _told(error)}
        found: dict[str, str] = {}
        for mode in modes:
            message = "" if mode == "eager" else _compared(truth, mode)
            if message:
                found[mode] = message
        return found


def _compared(truth: Truth, mode: str) -> str:
    if mode == "sink":
        truth = Truth(truth.program, change=False)
        truth.drop(2)
    program = truth.program
    if mode in ("other extents", "changing extents"):
        truth = Truth(grown(program))
    try:
        got = MODES[mode](program)
    except TreadleError as error:
        return "" if truth.error is not None or RUN_TIME in str(error) else _told(error)
    except Exception as error:
        return _told(error)
    if truth.error is not None:
        return f"no error, eager: {_told(truth.error)}" if got else ""
    return truth.differs(got)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
