"""Element types: one object each, every spelling, and MegEngine's promotion table."""

import copy
import itertools
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.base.dtype import DType, as_dtype, float_for, promote, promote_scalar
from treadle.base.errors import DTypeError

NAMES = "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64"

# Rows and columns as MegEngine 1.13 answers `a + b`; "-" is where it raises for lack of a kernel.
MEGENGINE = """
         bool    uint8   int8    int16   uint16  int32   float16 float32
bool     -       float32 float32 float32 float32 float32 float32 float32
uint8    float32 uint8   -       -       uint16  -       float32 float32
int8     float32 -       int8    int16   -       int32   float32 float32
int16    float32 -       int16   int16   -       int32   float32 float32
uint16   float32 uint16  -       -       uint16  -       float32 float32
int32    float32 -       int32   int32   -       int32   float32 float32
float16  float32 float32 float32 float32 float32 float32 float16 float32
float32  float32 float32 float32 float32 float32 float32 float32 float32
"""

# Ours alone: where MegEngine raises, and the types it has no arithmetic for.
EXTENSIONS = {
    ("bool", "bool"): "float32",
    ("uint8", "int8"): "int16",
    ("uint8", "int16"): "int16",
    ("uint8", "int32"): "int32",
    ("uint16", "int8"): "int32",
    ("uint16", "int16"): "int32",
    ("uint16", "int32"): "int32",
    ("uint32", "int32"): "int64",
    ("uint64", "int8"): "int64",
    ("uint64", "uint8"): "uint64",
    ("int64", "int32"): "int64",
    ("int64", "float16"): "float32",
    ("int64", "float32"): "float32",
    ("int64", "float64"): "float64",
    ("bool", "int64"): "float32",
    ("bool", "float64"): "float64",
    ("float16", "float64"): "float64",
    ("bfloat16", "float64"): "float64",
    ("bfloat16", "float32"): "float32",
    ("bfloat16", "float16"): "float32",
    ("bfloat16", "int8"): "float32",
    ("bool", "complex64"): "complex64",
    ("float64", "complex64"): "complex64",
}


def _table() -> dict[tuple[str, str], str]:
    head, *rows = (line.split() for line in MEGENGINE.strip().splitlines())
    cells = {(row[0], name): cell for row in rows for name, cell in zip(head, row[1:], strict=True)}
    return {pair: cell for pair, cell in cells.items() if cell != "-"}


def test_there_is_one_object_per_type() -> None:
    assert " ".join(d.name for d in dt.ALL) == NAMES + " complex64"
    for d in dt.ALL:
        assert as_dtype(d.name) is d and as_dtype(d) is d and as_dtype(d.numpy) is d
        assert pickle.loads(pickle.dumps(d)) is d
        assert copy.copy(d) is d and copy.deepcopy(d) is d
        assert d.itemsize == d.numpy.itemsize and d.bits == 8 * d.itemsize
        assert repr(d) == d.name == d.numpy.name


def test_groups() -> None:
    groups = {
        kind: " ".join(d.name for d in dt.ALL if d.kind == kind)
        for kind in ("bool", "uint", "int", "float", "complex")
    }
    assert groups == {
        "bool": "bool",
        "uint": "uint8 uint16 uint32 uint64",
        "int": "int8 int16 int32 int64",
        "float": "float16 bfloat16 float32 float64",
        "complex": "complex64",
    }
    assert set(dt.FLOATS) == {d for d in dt.ALL if d.is_float}
    assert set(dt.INTEGERS) == {d for d in dt.ALL if d.is_integer}
    assert dt.REALS == dt.INTEGERS + dt.FLOATS and not dt.bool_.is_integer


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("float", "float32"),
        (float, "float32"),
        ("int", "int32"),
        (int, "int32"),
        ("complex", "complex64"),
        (complex, "complex64"),
        ("half", "float16"),
        ("double", "float64"),
        ("f4", "float32"),
        ("<i8", "int64"),
        (bool, "bool"),
        ("?", "bool"),
        (np.float64, "float64"),
        (np.int64, "int64"),
        (np.bool_, "bool"),
        (np.dtype("uint16"), "uint16"),
        (np.dtype("float32", metadata={"scale": 2.0}), "float32"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (np.dtype(ml_dtypes.bfloat16), "bfloat16"),
    ],
)
def test_spellings(spelling: object, name: str) -> None:
    assert as_dtype(spelling).name == name


@pytest.mark.parametrize(
    "spelling",
    [
        "float33",
        "",
        None,
        5,
        1.5,
        object,
        list,
        str,
        "complex128",
        ">f4",
        np.dtype("datetime64[s]"),
        np.dtype([("a", "f4")]),
        [],
        {},
        {"names": 3},
        "(",
        np.zeros(3),
    ],
    ids=repr,
)
def test_what_is_no_type(spelling: object) -> None:
    with pytest.raises(DTypeError) as caught:
        as_dtype(spelling)
    assert caught.value.problem == f"{spelling!r} is not an element type"
    assert caught.value.hint == f"use one of {', '.join(NAMES.split())}, complex64"
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(("pair", "expected"), [*_table().items(), *EXTENSIONS.items()])
def test_promotion(pair: tuple[str, str], expected: str) -> None:
    x, y = as_dtype(pair[0]), as_dtype(pair[1])
    assert promote(x, y).name == promote(y, x).name == expected


def test_promotion_is_total_symmetric_and_keeps_a_type_with_itself() -> None:
    for x, y in itertools.product(dt.ALL, repeat=2):
        both = promote(x, y)
        assert both is promote(y, x) and both in dt.ALL
        assert both is promote(both, x), (x, y)
    assert [x for x in dt.ALL if promote(x, x) is not x] == [dt.bool_]


def test_promoted_integers_hold_both() -> None:
    for x, y in itertools.product(dt.INTEGERS, repeat=2):
        if {x.kind, y.kind} == {"int", "uint"} and dt.uint64 in (x, y):
            continue  # No integer type holds both; int64 as documented.
        low = min(np.iinfo(x.numpy).min, np.iinfo(y.numpy).min)
        high = max(np.iinfo(x.numpy).max, np.iinfo(y.numpy).max)
        both = np.iinfo(promote(x, y).numpy)
        assert both.min <= low and high <= both.max


@pytest.mark.parametrize("x", dt.ALL, ids=repr)
def test_scalars_are_weak(x: DType) -> None:
    whole = dt.float32 if x is dt.bool_ else x
    fractional = x if x.kind in ("float", "complex") else dt.float32
    wanted: list[tuple[Any, DType]] = [
        (2, whole),
        (True, whole),
        (0.5, fractional),
        (1j, dt.complex64),
    ]
    for scalar, expected in wanted:
        assert promote_scalar(x, scalar) is expected
    assert float_for(x) is fractional
