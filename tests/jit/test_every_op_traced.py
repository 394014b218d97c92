"""Traced equals eager, op by op: what ops' samples give in one program is what single calls give.

By default one sample of every op, many ops in a program; with the marker `oracle`, all samples
with all their element types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from tests.ops import harness

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.base.dtype import DType
from treadle.base.dtype import float32 as f32
from treadle.ops import REGISTRY
from treadle.ops.op import Sample

PARTS = 8
ENGINES_OWN = {
    **dict.fromkeys(
        ("cond", "finding_cond", "finding_while", "finding_while_gradient", "while", "scan"),
        "holds regions: tests/jit/test_control.py",
    ),
    **dict.fromkeys(("end", "placeholder"), "borders that the partition stage writes in pairs"),
}
"""Ops that no call of a user is, and why."""
TAKEN = [
    n for n in harness.OPS if n not in ENGINES_OWN and any(s.args for s in REGISTRY[n].samples())
]
Pair = tuple[Sample, DType]


def first(name: str) -> Iterator[Pair]:
    sample = next(s for s in REGISTRY[name].samples() if s.args)
    types = sample.element_types()
    yield sample, f32 if f32 in types else types[0]


def every(name: str) -> Iterator[Pair]:
    for sample, dtype in harness.all_pairs(REGISTRY[name]):
        if sample.args:
            yield sample, dtype


def check(names: Sequence[str], chosen: Callable[[str], Iterator[Pair]]) -> int:
    pairs = [pair for name in names for pair in chosen(name)]
    given = [[mge.tensor(a, dtype=str(a.dtype)) for a in s.arrays(dtype)] for s, dtype in pairs]

    def all_of(operands: list[list[mge.Tensor]]) -> list[tuple[mge.Tensor, ...]]:
        calls = zip(pairs, operands, strict=True)
        return [tensors[0].apply(sample.op, tuple(tensors)) for (sample, _), tensors in calls]

    with np.errstate(all="ignore"):
        want = all_of(given)
        traced = jit.trace(all_of, symbolic=True)
        traced(given)
        found = traced(given)
    for (sample, dtype), results, eager in zip(pairs, found, want, strict=True):
        assert len(results) == len(eager)
        for y, expected in zip(results, eager, strict=True):
            what = f"{sample} with {dtype}"
            assert (y.dtype, y.shape) == (expected.dtype, expected.shape), what
            harness.assert_close(y.numpy(), expected.numpy(), y._kind.dtype, what)
    return len(pairs)


@pytest.mark.parametrize("part", range(PARTS))
def test_ops_of_a_program_give_what_single_calls_give(part: int) -> None:
    names = TAKEN[part::PARTS]
    assert check(names, first) == len(names) > 10


@pytest.mark.oracle
@pytest.mark.parametrize("name", TAKEN)
def test_every_sample_of_an_op_gives_what_a_call_gives(name: str) -> None:
    assert check([name], every)


X = np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]], np.float32)
INDICES: dict[str, Callable[[Any], Any]] = {
    "rows": lambda x: x[mge.tensor([1, 0, 1])],
    "rows and columns": lambda x: x[mge.tensor([1, 0]), mge.tensor([2, -1])],
    "steps": lambda x: x[::-1, ::2],
    "an index among slices": lambda x: x[None, :, mge.tensor([[0, 2]])],
    "computed": lambda x: x[F.argmax(x, axis=0)],
    "non_zero": lambda x: F.non_zero(x > 0),
    "non_zero as tuple": lambda x: F.non_zero(x, as_tuple=True),
    "mask": lambda x: x[x > 0],
    "cond_take": lambda x: F.cond_take(x > 0, x),
    "top": lambda x: F.topk(x, 2, descending=True),
    "sorted": lambda x: F.argsort(x),
    "gathered": lambda x: F.gather(x, 1, mge.tensor([[2], [1]])),
    "one_hot": lambda x: F.one_hot(x.astype("int32")[0], 4),
}


@pytest.mark.parametrize("name", INDICES)
@pytest.mark.parametrize("symbolic", [True, False])
def test_indices_and_what_depends_on_values(name: str, symbolic: bool) -> None:
    def leaves(made: Any) -> list[Any]:
        several = made if isinstance(made, list | tuple) else (made,)
        return [np.asarray(y.numpy()) for y in several]

    function = INDICES[name]
    traced = jit.trace(function, symbolic=symbolic)
    for x in (X, X, X[::-1].copy()):  # As many are found, elsewhere.
        want, found = (leaves(f(mge.tensor(x))) for f in (function, traced))
        assert len(found) == len(want)
        for y, expected in zip(found, want, strict=True):
            np.testing.assert_array_equal(y, expected)
            assert y.dtype == expected.dtype
