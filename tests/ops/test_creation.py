"""Values and limits of ops without operands."""

import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.base.errors import DTypeError, OutOfMemory
from treadle.ops.creation import Eye, Full, Iota
from treadle.ops.op import Op


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (300, dt.uint8, 44),
        (-1, dt.uint16, 65535),
        (2**63 + 5, dt.int64, -(2**63) + 5),
        (1.9, dt.int8, 1),
        (-1.9, dt.int32, -1),
        (2.5, dt.bool_, True),
        (True, dt.float32, 1.0),
        (1 + 2j, dt.complex64, 1 + 2j),
    ],
)
def test_values_are_cast_like_tensors(value: complex, dtype: dt.DType, expected: object) -> None:
    made = Full((2,), value, dtype).reference()
    assert made.dtype == dtype.numpy and list(made) == [expected, expected]


def test_negative_zero_is_kept() -> None:
    assert np.signbit(Full((2,), -0.0).reference()).all()
    assert not np.signbit(Full((2,), 0.0).reference()).any()


def test_complex_values_need_a_complex_type() -> None:
    with pytest.raises(DTypeError, match="complex"):
        Full((2,), 1j, dt.float32).infer()


def test_iota_rounds_once() -> None:
    made = Iota(0.0, 0.1, 1000, dt.float32).reference()
    np.testing.assert_array_equal(made, (np.arange(1000) * 0.1).astype(np.float32))
    assert list(Iota(2**53 + 1, 1, 2, dt.int64).reference()) == [2**53 + 1, 2**53 + 2]


@pytest.mark.parametrize(("n", "m", "k"), [(3, 3, 0), (2, 5, 2), (4, 2, -1), (3, 2, 7), (2, 3, -9)])
def test_eye_is_numpys(n: int, m: int, k: int) -> None:
    np.testing.assert_array_equal(Eye(n, m, k).reference(), np.eye(n, m, k, np.float32))


@pytest.mark.parametrize(
    "op",
    [
        Full((2**20, 2**20)),
        Full((2**40,), 0, dt.int8),
        Full((2**40,), 1, dt.bool_),
        Iota(0, 1, 2**40),
        Eye(2**20, 2**21),
    ],
    ids=str,
)
def test_huge_requests_are_refused(op: Op) -> None:
    with pytest.raises(OutOfMemory, match="cannot allocate") as caught:
        op.reference()
    assert isinstance(caught.value, MemoryError)
