"""Programs with a difference, made as small as they can be while they keep it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.fuzz.generate import sliced, targets
from tests.fuzz.program import Leaf, Program

import treadle as mge
from treadle.base.errors import TreadleError

Fails = Callable[[Program], bool]


def minimized(program: Program, fails: Fails) -> Program:
    """The smallest program found that still fails."""
    again = True
    while again:
        again = False
        for smaller in _smaller(program):
            if size(smaller) < size(program) and fails(smaller):
                program, again = smaller, True
                break
    return program


def size(program: Program) -> tuple[int, int, int]:
    """What is to become small: lines, results, gradients and leaves."""
    kinds = program.grads + bool(program.optimizer) + bool(program.casting)
    return len(program.lines), len(program.outputs) + kinds, len(program.leaves)


def _smaller(program: Program) -> Iterator[Program]:
    if program.grads:
        yield sliced(program.without(grads=False, optimizer=""))
    yield from (program.without(**{n: ""}) for n in ("optimizer", "casting"))
    if len(program.outputs) > 1:
        for name in program.outputs:
            yield sliced(program.without(outputs=(name,)))
    types = _types(program)
    for i, line in enumerate(program.lines):
        # Results of a line as inputs, which leaves out all that only it needs.
        leaves = {n: types[n] for n in targets(line) if n in types}
        if len(leaves) != len(targets(line)):
            continue
        lines = (*program.lines[:i], *program.lines[i + 1 :])
        if set(program.outputs) & set(leaves) == set(program.outputs):
            continue
        yield sliced(program.without(lines=lines, leaves={**program.leaves, **leaves}))
    for name in [n for line in program.lines for n in targets(line)]:
        if name not in program.outputs:
            yield sliced(program.without(outputs=(name,)))


def _types(program: Program) -> dict[str, Leaf]:
    """Leaves like the results of each line."""
    whole = program.without(
        outputs=tuple(t for line in program.lines for t in targets(line)),
        grads=False,
        optimizer="",
    )
    bound = whole.bound()
    try:
        values: tuple[Any, ...] = bound.function(*bound.inputs)
    except TreadleError:
        return {}
    found = {}
    for i, (name, value) in enumerate(zip(whole.outputs, values, strict=True)):
        if isinstance(value, mge.Tensor):
            low, high = (0, 2) if value._kind.dtype.name == "bool" else (-4, 5)
            if value._kind.dtype.name.startswith(("int", "uint")) and value.size:
                low, high = int(value.numpy().min()), int(value.numpy().max()) + 1
            kind = "param" if _from_params(program, name) else "input"
            shape = tuple(int(d) for d in value.shape)
            found[name] = Leaf(kind, value._kind.dtype.name, shape, 77 + i, low, high)
    return found


def _from_params(program: Program, name: str) -> bool:
    """Whether a value depends on parameters alone."""
    whole = sliced(program.without(outputs=(name,)))
    return bool(whole.leaves) and not whole.inputs
