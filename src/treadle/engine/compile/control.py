"""Branches and loops among a program's steps: the steps of their regions, and jumps around them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treadle.backends.program import Address, Jump
from treadle.base import dtype as dt
from treadle.base.errors import CompileError
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.engine.compile.link import Linker, Placed
from treadle.engine.compile.place import Home
from treadle.engine.compile.work import COPY, Work
from treadle.engine.plan import Interface, Plan
from treadle.graph.ir import Graph
from treadle.ops.control import Cond, Scan, While
from treadle.ops.creation import Extent
from treadle.ops.elementwise import Add
from treadle.ops.gather import IndexUpdate, Take
from treadle.ops.logic import Less

MOST_WRITTEN_OUT = 512
"""Turns of a scan that are written out."""
COUNTER = TensorType(dt.int64, ())


def regions_of(item: Work) -> tuple[Graph, ...]:
    """The programs a control-flow op holds, in the order in which its plans are kept."""
    op = item.op
    if isinstance(op, Cond):
        regions: tuple[object, ...] = (op.then, op.otherwise)
    elif isinstance(op, While):
        regions = (op.condition, op.body)
    elif isinstance(op, Scan):
        regions = (op.body,)
    else:
        regions = ()
    found = tuple(r for r in regions if isinstance(r, Graph))
    if len(found) != len(regions):
        raise CompileError(
            op.name, "a region is not a graph", hint="capture control flow with treadle.jit"
        )
    return found


def interfaces_of(item: Work) -> tuple[Interface, ...]:
    """The border of each region: the body of a loop changes the state where it is."""
    op = item.op
    if isinstance(op, While | Scan):
        count = op.n_carried if isinstance(op, Scan) else len(item.outputs)
        body = Interface(updates=tuple((i, i) for i in range(count)))
        return (body,) if isinstance(op, Scan) else (Interface(), body)
    return tuple(Interface() for _ in regions_of(item))


def region_spaces(item: Work, parts: Sequence[Plan]) -> list[Dim]:
    """Bytes of what a control-flow op needs besides its results: arena, test.

    A scan that is a loop needs the number of the turn, whether there are more, and rows.
    """
    if not parts:
        return []
    sizes: list[Dim] = [max([p.memory.peak for p in parts if not p.memory.open], default=0)]
    if isinstance(item.op, While):
        sizes.append(1)
    elif isinstance(item.op, Scan) and not _is_written_out(item.op):
        n = item.op.n_carried
        sizes += [COUNTER.nbytes, COUNTER.nbytes, 1]
        sizes += [_row(v.type).open_nbytes for v in (*item.inputs[n:], *item.outputs[n:])]
    return sizes


def write_control(
    linker: Linker, item: Work, homes: Sequence[Home], parts: Sequence[Plan], node: int
) -> None:
    """The steps of a control-flow op.

    Args:
        linker: receives them.
        item: the op.
        homes: memory that it needs besides its results, see `region_spaces`.
        parts: the plans of its regions.
        node: its number.
    """
    linker.node = node
    spaces = [linker.address(home) for home in homes]
    inputs = [linker.where(v) for v in item.inputs]
    outputs = [linker.where(v) for v in item.outputs]
    if isinstance(item.op, Cond):
        _cond(linker, parts, inputs, outputs, spaces[0])
    elif isinstance(item.op, While):
        _while(linker, item, parts, inputs, outputs, spaces)
    elif isinstance(item.op, Scan):
        _scan(linker, item, parts[0], inputs, outputs, spaces)


def _cond(
    linker: Linker,
    parts: Sequence[Plan],
    inputs: Sequence[Address],
    outputs: Sequence[Address],
    arena: Address,
) -> None:
    choice = len(linker.steps)
    linker.write(Jump(0))
    linker.splice(parts[0], inputs[1:], outputs, arena)
    leave = len(linker.steps)
    linker.write(Jump(0))
    linker.steps[choice] = Jump(len(linker.steps), inputs[0])
    linker.splice(parts[1], inputs[1:], outputs, arena)
    linker.steps[leave] = Jump(len(linker.steps))


def _while(
    linker: Linker,
    item: Work,
    parts: Sequence[Plan],
    inputs: Sequence[Address],
    state: Sequence[Address],
    spaces: Sequence[Address],
) -> None:
    arena, test = spaces
    for value, source, target in zip(item.outputs, inputs, state, strict=True):
        linker.copy(source, target, value)
    again = len(linker.steps)
    linker.splice(parts[0], state, [test], arena)
    leave = len(linker.steps)
    linker.write(Jump(0))
    linker.splice(parts[1], state, [], arena)
    linker.write(Jump(again))
    linker.steps[leave] = Jump(len(linker.steps), test)


def _scan(
    linker: Linker,
    item: Work,
    body: Plan,
    inputs: Sequence[Address],
    outputs: Sequence[Address],
    spaces: Sequence[Address],
) -> None:
    """All turns, written out: they share their kernels, and a turn is a few table entries.

    Many turns are a loop that copies entries to one place, and results from one.
    """
    op = item.op
    if not isinstance(op, Scan):
        return
    n, arena = op.n_carried, spaces[0]
    state = list(outputs[:n])
    for value, source, target in zip(item.outputs, inputs[:n], state, strict=False):
        linker.copy(source, target, value)
    stacked = [(a, v.type) for a, v in zip(inputs[n:], item.inputs[n:], strict=True)]
    results = [(a, v.type) for a, v in zip(outputs[n:], item.outputs[n:], strict=True)]
    if not _is_written_out(op):
        _looped(linker, op, body, state, stacked, results, spaces)
        return
    for turn in op.turns:
        entries = [_entry(a, kind, turn) for a, kind in stacked]
        made = [_entry(a, kind, turn) for a, kind in results]
        linker.splice(body, [*state, *entries], made, arena)


def _looped(
    linker: Linker,
    op: Scan,
    body: Plan,
    state: Sequence[Address],
    stacked: Sequence[Placed],
    results: Sequence[Placed],
    spaces: Sequence[Address],
) -> None:
    """A scan whose body stands in the program once."""
    rest = iter(spaces[1:])
    turn, last = (next(rest), COUNTER), (next(rest), COUNTER)
    more = next(rest), TensorType(dt.bool_, ())
    entries = [(next(rest), _row(kind)) for _, kind in stacked]
    made = [(next(rest), _row(kind)) for _, kind in results]

    def number(value: int) -> Placed:
        array = np.array(value, COUNTER.dtype.numpy)
        return Address(linker.constants_base, linker.constants.add(array)), COUNTER

    step = number(-1 if op.backwards else 1)
    if op.backwards:
        linker.apply(COPY, (step,), last)
        linker.apply(Extent(op.length, COUNTER.dtype), (), turn)
        linker.apply(Add(), (turn, step), turn)
    else:
        linker.apply(COPY, (number(0),), turn)
        linker.apply(Extent(op.length, COUNTER.dtype), (), last)
    again = len(linker.steps)
    linker.apply(Less(), (last, turn) if op.backwards else (turn, last), more)
    leave = len(linker.steps)
    linker.write(Jump(0))
    for source, entry in zip(stacked, entries, strict=True):
        linker.apply(Take(0), (source, turn), entry)
    given = [at for at, _ in entries]
    linker.splice(body, [*state, *given], [at for at, _ in made], spaces[0])
    for row, result in zip(made, results, strict=True):
        linker.apply(IndexUpdate((0,)), (result, row, turn), result)
    linker.apply(Add(), (turn, step), turn)
    linker.write(Jump(again))
    linker.steps[leave] = Jump(len(linker.steps), more[0])


def _is_written_out(op: Scan) -> bool:
    """Return whether every turn has steps of its own."""
    return isinstance(op.length, int) and op.length <= MOST_WRITTEN_OUT


def _entry(start: Address, stacked: TensorType, turn: int) -> Address:
    """Entry number `turn` of a value stacked along its first axis."""
    return Address(start.base, start.offset + turn * _row(stacked).open_nbytes)


def _row(stacked: TensorType) -> TensorType:
    """The type of an entry."""
    return stacked.with_shape(stacked.shape[1:])
