"""Records: kernels and launches that cannot disagree on parameters."""

from __future__ import annotations

import pytest

from treadle.backends.codegen.kernel.builder import KernelBuilder, numbered
from treadle.backends.codegen.kernel.language import KernelError, Pointer, Value
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
from treadle.backends.program import Ref
from treadle.base import dtype as dt


class Sizes(Record[P, S]):
    count: S
    step: S


class Lines(Record[P, S], table=dt.int64, sizes=Sizes):
    table: P
    sizes: Sizes[P, S]


class Weighted(Lines[P, S]):
    weights: P | None
    grid: tuple[S, ...]
    last: S | None


def _kernel(*, weighted: bool) -> RecordedKernel:
    e = KernelBuilder()
    weights, last = (dt.float32, "size") if weighted else (None, None)
    kind = Weighted[Pointer, Value]
    p = e.record(kind, weights=weights, grid=numbered("n", 2), last=last)
    return RecordedKernel(e.kernel("lines"), p)


def test_fields_are_parameters_in_order() -> None:
    made = _kernel(weighted=True)
    kinds = [(p.name, p.dtype, p.type.pointer) for p in made.kernel.parameters]
    sizes = [(name, dt.int64, False) for name in ("count", "step", "n0", "n1", "size")]
    assert kinds == [
        ("table", dt.int64, True),
        *sizes[:2],
        ("weights", dt.float32, True),
        *sizes[2:],
    ]


def test_launches_give_arguments_in_that_order() -> None:
    table, weights = Ref("input", 0), Ref("input", 1)
    given = Weighted(table, Sizes(1, 2), weights, (3, 4), 5)
    launch = _kernel(weighted=True).launch(given, items=7)
    assert (launch.arguments, launch.items) == ((table, 1, 2, weights, 3, 4, 5), 7)
    fewer = Weighted(table, Sizes(1, 2), weights, (3, 4), None)
    assert _kernel(weighted=False).arguments(fewer) == (table, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Lines("table", Sizes(1, 2)), "Lines for Weighted"),
        (Weighted("table", Sizes(None, 2), None, (3, 4), None), "count is a parameter"),
    ],
)
def test_launches_that_disagree_are_errors(given: object, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        _kernel(weighted=False).arguments(given)


def test_arguments_beside_the_record_are_those_of_the_last_parameters() -> None:
    e = KernelBuilder()
    p = e.record(Sizes[Pointer, Value])
    e.size("rows")
    made = RecordedKernel(e.kernel("rows"), p)
    assert made.arguments(Sizes(1, 2), 3) == (1, 2, 3)
    for last in ((), (3, 4)):
        with pytest.raises(KernelError, match="no field of its record"):
            made.arguments(Sizes(1, 2), *last)


def test_names_that_a_record_has_not_are_errors() -> None:
    with pytest.raises(KernelError, match=r"Lines.* has no \['tabel'\]"):
        KernelBuilder().record(Lines[Pointer, Value], tabel=dt.int32)


def test_records_lack_nothing() -> None:
    assert Sizes(1, step=2).step == 2
    for values, named in (((1,), {}), ((1, 2, 3), {}), ((1,), {"steps": 2}), ((1, 2), {"step": 2})):
        with pytest.raises(KernelError, match=r"Sizes has \('count', 'step'\)"):
            Sizes(*values, **named)
