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
from treadle.ops.op import Op, Pullback
from treadle.ops.operand import V

Values = tuple[tuple[V, ...], tuple[V, ...]]


@dataclass(frozen=True, slots=True)
class Step(Generic[V]):
    """One recorded application of an op.

    `inputs` and `outputs` are keys of values, None for an input that is a constant; `values`
    makes the operands when (and only when) the gradient rule is called.
    """

    op: Op
    inputs: tuple[Hashable | None, ...]
    outputs: tuple[Hashable, ...]
    values: Callable[[], Values[V]]


def backpropagate(
    steps: Sequence[Step[V]],
    seeds: Mapping[Hashable, V],
    wanted: Sequence[Hashable],
    observe: Callable[[Step[V], tuple[V | None, ...]], None] | None = None,
) -> dict[Hashable, V]:
    """Cotangents of the wanted values.

    Args:
        steps: in forward order.
        seeds: cotangents of the values that are differentiated, by key.
        wanted: keys whose cotangents are returned; those the seeds do not depend on are left out.
        observe: called with every step and the cotangents its rule returned.
    """
    needed = set(wanted)
    for step in steps:
        if any(k in needed for k in step.inputs):
            needed.update(step.outputs)
    cotangents = dict(seeds)
    keep = set(wanted)
    for step in reversed(steps):
        needs = tuple(k in needed for k in step.inputs)
        dys = tuple(cotangents.get(k) for k in step.outputs)
        for key in step.outputs:
            if key not in keep:
                cotangents.pop(key, None)
        if not any(needs) or all(dy is None for dy in dys):
            continue
        grads = _pull_back(step, dys, needs)
        if observe is not None:
            observe(step, grads)
        _accumulate(cotangents, step, grads, needs)
    return {k: cotangents[k] for k in wanted if k in cotangents}


def _pull_back(
    step: Step[V], dys: tuple[V | None, ...], needs: tuple[bool, ...]
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
    step: Step[V],
    grads: tuple[V | None, ...],
    needs: tuple[bool, ...],
) -> None:
    for key, grad, need in zip(step.inputs, grads, needs, strict=True):
        if key is None or grad is None or not need:
            continue
        before = cotangents.get(key)
        cotangents[key] = grad if before is None else before + grad
