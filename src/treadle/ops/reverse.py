"""Reverse-mode differentiation over a list of steps.

One walk serves eager tapes, graphs and composite bodies: they differ only in what a step's values
are (tensors, graph operands, arrays) and how values are told apart (keys).
Source: Griewank and Walther, Evaluating Derivatives, 2nd ed., SIAM 2008, chapter 3.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from treadle.base.errors import TreadleError
from treadle.ops.op import Op, Pullback, V

Values = tuple[tuple[V, ...], tuple[V, ...]]


@dataclass(frozen=True, slots=True)
class TapeEntry(Generic[V]):
    """One recorded application of an op.

    `inputs` and `outputs` are keys of values, None for an input that is a constant; `values`
    makes the operands when (and only when) the gradient rule is called.
    """

    op: Op
    inputs: tuple[Hashable | None, ...]
    outputs: tuple[Hashable, ...]
    values: Callable[[], Values[V]]


def backpropagate(
    steps: Sequence[TapeEntry[V]],
    seeds: Mapping[Hashable, V],
    wanted: Sequence[Hashable],
    observe: Callable[[TapeEntry[V], tuple[V | None, ...]], None] | None = None,
    settled: Callable[[Hashable, V], None] | None = None,
) -> dict[Hashable, V]:
    """Cotangents of the wanted values.

    Args:
        steps: in forward order.
        seeds: cotangents of the values that are differentiated, by key.
        wanted: keys whose cotangents are returned; those the seeds do not depend on are left out.
        observe: called with every step and the cotangents its rule returned.
        settled: called with each wanted key and its cotangent as soon as nothing is added to it
            any more, while the walk goes on.
    """
    needed = set(wanted)
    for step in steps:
        if any(k in needed for k in step.inputs):
            needed.update(step.outputs)
    cotangents = dict(seeds)
    keep = set(wanted)
    waiting = _uses(steps, keep) if settled is not None else {}
    for step in reversed(steps):
        needs = tuple(k in needed for k in step.inputs)
        dys = tuple(cotangents.get(k) for k in step.outputs)
        for key in step.outputs:
            if key not in keep:
                cotangents.pop(key, None)
        if any(needs) and not all(dy is None for dy in dys):
            grads = _pull_back(step, dys, needs)
            if observe is not None:
                observe(step, grads)
            _accumulate(cotangents, step, grads, needs)
        if settled is not None:
            _settle(step, waiting, cotangents, settled)
    return {k: cotangents[k] for k in wanted if k in cotangents}


def _uses(steps: Sequence[TapeEntry[V]], wanted: set[Hashable]) -> dict[Hashable, int]:
    """Count the steps that read each wanted value."""
    found: dict[Hashable, int] = {}
    for step in steps:
        for key in set(step.inputs) & wanted:
            found[key] = found.get(key, 0) + 1
    return found


def _settle(
    step: TapeEntry[V],
    waiting: dict[Hashable, int],
    cotangents: Mapping[Hashable, V],
    settled: Callable[[Hashable, V], None],
) -> None:
    """Count down the steps that are left to read each value, and tell of those with none."""
    for key in dict.fromkeys(step.inputs):
        if key in waiting:
            waiting[key] -= 1
            if not waiting[key] and key in cotangents:
                settled(key, cotangents[key])


def _pull_back(
    step: TapeEntry[V], dys: tuple[V | None, ...], needs: tuple[bool, ...]
) -> tuple[V | None, ...]:
    inputs, outputs = step.values()
    grads = step.op.vjp(Pullback(dys, inputs, outputs, needs))
    if len(grads) != len(inputs):
        raise TreadleError(
            step.op.name,
            f"its gradient rule returned {len(grads)} cotangents for {len(inputs)} inputs",
        )
    return grads


def _accumulate(
    cotangents: dict[Hashable, V],
    step: TapeEntry[V],
    grads: tuple[V | None, ...],
    needs: tuple[bool, ...],
) -> None:
    for key, grad, need in zip(step.inputs, grads, needs, strict=True):
        if key is None or grad is None or not need:
            continue
        before = cotangents.get(key)
        cotangents[key] = grad if before is None else before + grad
