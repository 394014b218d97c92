from __future__ import annotations

import numpy as np
import pytest

from treadle.serve.datatypes import DTYPES, from_bytes, from_json, to_json


@pytest.mark.parametrize(("name", "dtype"), DTYPES.items())
def test_numbers_survive_json_and_bytes(name: str, dtype: np.dtype) -> None:
    x = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    again = from_json(to_json(x), dtype)
    assert again.dtype == dtype and (again == x.reshape(-1)).all()
    nested = from_json([to_json(row) for row in x], dtype)
    assert nested.shape == (2, 3) and (nested == x).all()
    flat = from_bytes(memoryview(x.tobytes()), dtype)
    assert flat.dtype == dtype and (flat == x.reshape(-1)).all()


@pytest.mark.parametrize(
    ("data", "dtype", "told"),
    [
        ([300], "int8", "outside of INT8"),
        ([-1], "uint64", "outside of UINT64"),
        ([1.5], "int32", "must be integers"),
        ([True], "int32", "must be integers"),
        ([1], "bool", "true and false"),
        (["1"], "float32", "must be numbers"),
        ([None], "float32", "must be numbers"),
        ([True], "float32", "must be numbers"),
        ([[1, 2], [3]], "float32", "ragged"),
        ([[1], 2], "float32", "ragged"),
        ([1e39], "float32", "too large for FP32"),
        ([1e400], "float64", "too large for FP64"),
        ([10**400], "float64", "too large"),
        ([1e6], "float16", "too large for FP16"),
        ({"a": 1}, "float32", "no array"),
        (None, "float32", "no array"),
    ],
)
def test_what_an_element_type_cannot_hold_is_refused(data: object, dtype: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        from_json(data, np.dtype(dtype))


def test_one_long_string_makes_no_wide_array() -> None:
    # NumPy would give each of them room for the longest: 4 TB.
    with pytest.raises(ValueError, match="must be numbers"):
        from_json(["x" * 1_000_000, *["y"] * 1_000_000], np.dtype("float32"))


def test_the_whole_range_of_uint64_is_taken() -> None:
    assert from_json([2**64 - 1, 0], np.dtype("uint64")).tolist() == [2**64 - 1, 0]


def test_bytes_askew_are_copied_and_others_are_not() -> None:
    memory = np.zeros(64, np.uint8)
    assert np.shares_memory(from_bytes(memory[8:24].data, np.dtype("float32")), memory)
    askew = from_bytes(memory[9:25].data, np.dtype("float32"))
    assert askew.flags.aligned and not np.shares_memory(askew, memory)


def test_a_byte_that_is_no_truth_value_is_refused() -> None:
    with pytest.raises(ValueError, match="neither 0 nor 1"):
        from_bytes(memoryview(b"\0\2"), np.dtype("bool"))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_json_has_no_number_that_is_not_finite(value: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        to_json(np.array([value], np.float32))
