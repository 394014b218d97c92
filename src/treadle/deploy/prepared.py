"""Preparation of libraries and offline models: packing, folding, leaving out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from treadle.backends.native_code import Executable
from treadle.backends.program import Address, Program, Step
from treadle.base.array import Array
from treadle.base.errors import CompileError, IndexRangeError
from treadle.base.symbol import evaluate, is_identical
from treadle.engine.package.native_part import NativeStop
from treadle.engine.plan import Plan, aligned, relocate
from treadle.ops.check import CheckIndices
from treadle.ops.gather import Index
from treadle.runtime.host import address, memory

WASM = "wasm"
"""The target that only modules for the web have."""
_NOTHING: Mapping[str, int] = MappingProxyType({})
Placed = Callable[[Array], int]
"""Finds a place for some bytes: their offset."""


@dataclass
class PreparedWeights:
    """Bytes that programs read; equal ones have one place, whichever gear they belong to."""

    nbytes: int = 0
    _places: dict[bytes, int] = field(default_factory=dict)
    _held: list[tuple[int, Array]] = field(default_factory=list)

    def add(self, raw: Array) -> int:
        """The offset of these bytes."""
        key = hashlib.sha256(raw.data).digest()
        if key not in self._places:
            self._places[key] = self.nbytes
            self._held.append((self.nbytes, raw.copy()))
            self.nbytes += aligned(raw.nbytes)
        return self._places[key]

    def joined(self) -> Array:
        """All of them."""
        made = np.zeros(self.nbytes, np.uint8)
        for offset, raw in self._held:
            made[offset : offset + raw.nbytes] = raw
        return made


def refuse(plan: Plan, what: str) -> None:
    """Refuse programs that cannot leave this process.

    Raises:
        CompileError: an op needs Python, or the program changes its inputs.
        IndexRangeError: there is nothing where an index looks, so that no run could succeed.
    """
    for task in plan.left:
        if isinstance(task.op, Index):
            x, *places = (type_ for _, type_ in task.inputs)
            looked_at = [is_identical(x.shape[axis], 0) for axis in task.op.axes]
            if any(looked_at) and not any(is_identical(d, 0) for t in places for d in t.shape):
                raise IndexRangeError("index", "there are no elements", saw=f"x {x}")
    if plan.left:
        ops = ", ".join(sorted({task.op.name for task in plan.left}))
        raise CompileError(
            what, f"these ops need Python: {ops}", hint="leave them out of the model"
        )
    if plan.updates:
        raise CompileError(what, "the model changes its inputs", hint="trace it for inference")


def stops_of(plan: Plan) -> tuple[NativeStop, ...]:
    """Return the places where a program stops because an index is out of range."""
    found = []
    for step, number in plan.tasks.items():
        check, ((place, _),) = plan.host[number].op, plan.host[number].inputs
        if isinstance(check, CheckIndices):
            own = check.of, int(check.low), int(check.high)
            found.append(NativeStop(step, place.base, int(place.offset), *own))
    return tuple(found)


def packed(plan: Plan, build: Callable[[Program], Executable]) -> Array:
    """The bytes that a program keeps: what depends on weights alone, computed now.

    Raises:
        OutOfMemory: there is no room for weights or packed weights.
    """
    kept = memory("packed weights", plan.kept)
    kept.bytes[:] = 0  # Kernels leave room between rows, which goes into the file as well.
    if plan.prelude:
        prelude = build(Program(plan.prelude, plan.bases))
        constants = memory("constants", plan.constants.nbytes)
        for offset, array in plan.constants.entries:
            place = constants.bytes[offset : offset + array.nbytes]
            place[:] = array.reshape(-1).view(np.uint8)
        arena = memory("activations", plan.memory.peak)
        bases = np.zeros(plan.bases, np.int64)
        bases[-3:] = [address(b.bytes) for b in (constants, kept, arena)]
        prelude.run(bases)
    return kept.bytes[: plan.kept]


def moved(
    plan: Plan, kept: Array, place: Placed, extents: Mapping[str, int] = _NOTHING
) -> tuple[Step, ...]:
    """The steps, reading constants and what is kept from where `place` puts them.

    Only what steps read is placed: constants that the prelude alone has read are left out.

    Args:
        plan: has the steps.
        kept: the bytes that it keeps.
        place: finds places for bytes.
        extents: some that the plan serves, if it has expressions: they say in which constant an
            address lies, for all that it serves.
    """
    first = plan.inputs + plan.outputs
    constants = {offset: a.reshape(-1).view(np.uint8) for offset, a in plan.constants.entries}
    areas = {offset: kept[offset : offset + size] for offset, size in plan.areas}
    known = {first: constants, first + 1: areas}
    starts = {base: np.array(sorted(held), np.int64) for base, held in known.items()}
    found: dict[tuple[int, int], int] = {}

    def rebase(at: Address) -> Address:
        if at.base not in known:
            return at
        offset = evaluate(at.offset, extents)
        start = int(starts[at.base][np.searchsorted(starts[at.base], offset, "right") - 1])
        if (at.base, start) not in found:
            found[at.base, start] = place(known[at.base][start])
        return Address(at.base, found[at.base, start] + at.offset - start)

    return relocate(plan.steps, rebase, 0, 0)


__all__ = ["WASM", "PreparedWeights", "moved", "packed", "refuse", "stops_of"]
