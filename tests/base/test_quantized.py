"""Quantized dtypes: what they carry, how they compare, and what arrays of them stand for."""

import copy
import pickle

import numpy as np
import pytest

from treadle.base.errors import DTypeError
from treadle.base.qparams import QParams, QuantMode, create_qparams
from treadle.base.quantized import (
    BUILTIN,
    QuantDtypeMeta,
    bfloat16,
    convert_from_qint1,
    convert_from_qint4,
    convert_from_qint8,
    convert_from_qint32,
    convert_from_quint4,
    convert_from_quint8,
    convert_to_qint1,
    convert_to_qint4,
    convert_to_qint8,
    convert_to_qint32,
    convert_to_quint4,
    convert_to_quint8,
    create_quantized_dtype,
    get_dtype_bit,
    get_scale,
    get_zero_point,
    intb1,
    intb2,
    intb4,
    is_bfloat16,
    is_differentible_dtype,
    is_dtype_equal,
    is_lowbit,
    is_quantize,
    qint1,
    qint4,
    qint8,
    qint16,
    qint32,
    quantized_type,
    quantized_type_of,
    quint4,
    quint8,
)
from treadle.quantization import dtype as public

SIGNED = {qint8: "int8", qint16: "int16", qint32: "int32", qint4: "int8", qint1: "int8"}


@pytest.mark.parametrize("make", SIGNED, ids=lambda m: m.__name__)
def test_a_signed_dtype_is_a_numpy_dtype_with_a_scale(make):
    dtype = make(0.25)
    assert isinstance(dtype, np.dtype)
    assert dtype == SIGNED[make]  # NumPy compares without metadata
    assert is_quantize(dtype)
    assert get_scale(dtype) == 0.25
    assert dtype.metadata["mgb_dtype"]["name"] == BUILTIN[make.__name__].cname
    with pytest.raises(AssertionError, match="no zero point"):
        get_zero_point(dtype)


@pytest.mark.parametrize("make", [quint8, quint4], ids=lambda m: m.__name__)
def test_an_unsigned_dtype_has_a_zero_point(make):
    dtype = make(0.25, 7)
    assert dtype == np.uint8
    assert (get_scale(dtype), get_zero_point(dtype)) == (0.25, 7)


@pytest.mark.parametrize("zero", [0.233, 777, -1, None, True])
def test_a_zero_point_is_an_integer_in_range(zero):
    with pytest.raises(ValueError, match="zero point of quint8"):
        quint8(0.05, zero)


def test_signed_dtypes_take_no_zero_point():
    with pytest.raises(ValueError, match="qint8 has no zero point"):
        create_quantized_dtype(BUILTIN["qint8"], 0.1, 3)
    assert is_dtype_equal(create_quantized_dtype(BUILTIN["qint8"], 0.1, 0), qint8(0.1))


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf, [], [0.1, 0.0]])
def test_scales_are_positive_and_finite(scale):
    with pytest.raises(ValueError, match="must be positive and finite"):
        qint8(scale)


def test_one_type_is_one_object():
    first = quantized_type(BUILTIN["qint8"], 0.1)
    assert quantized_type_of(qint8(0.1)) is first
    assert quantized_type_of(qint8(np.array([0.1]))) is first
    assert quantized_type_of(qint8(0.2)) is not first
    assert pickle.loads(pickle.dumps(first)) is first
    assert quantized_type_of(pickle.loads(pickle.dumps(qint8(0.1)))) is first
    assert quantized_type_of(np.dtype("int8")) is None
    assert quantized_type_of("int8") is None
    assert str(first) == "qint8(0.1)"
    assert str(quantized_type(BUILTIN["quint8"], 0.5, 3)) == "quint8(0.5, 3)"


def test_narrow_families_survive_the_way_through_numpy():
    narrow = quantized_type(BUILTIN["qint8_narrow"], 0.1)
    assert quantized_type_of(narrow.numpy) is narrow
    own = QuantDtypeMeta("mine", "Mine", "int8", -5, 5)
    kind = quantized_type_of(create_quantized_dtype(own, 0.1))
    assert (kind.meta.qmin, kind.meta.qmax) == (-5, 5)


def test_foreign_metadata_is_refused_or_ignored():
    assert quantized_type_of(np.dtype("int8", metadata={"other": 1})) is None
    with pytest.raises(DTypeError, match="not a family of quantized dtypes"):
        quantized_type_of(np.dtype("int8", metadata={"mgb_dtype": {"name": "X", "scale": 1.0}}))


def test_equality_looks_at_scales():
    assert is_dtype_equal(qint8(0.1), qint8(0.1))
    assert not is_dtype_equal(qint8(0.1), qint8(0.2))
    assert not is_dtype_equal(qint8(0.1), np.int8)
    assert is_dtype_equal("float32", np.float32)
    assert not is_dtype_equal(intb2, intb4)
    assert is_dtype_equal(intb4, intb4)


def test_scales_per_channel():
    scale = np.array([[0.1], [0.2]])
    kind = quantized_type_of(qint8(scale))
    assert kind.is_per_channel
    np.testing.assert_array_equal(get_scale(qint8(scale)), scale.astype(np.float32))
    assert quantized_type_of(qint8(scale.copy())) is kind
    with pytest.raises(ValueError, match="read-only"):
        kind.scale[0] = 1


def test_conversion_rounds_halves_away_and_clamps():
    dtype = qint8(0.5)
    stored = convert_to_qint8(np.array([0.25, -0.25, 0.74, 100.0, -100.0, np.nan]), dtype)
    assert stored.dtype.metadata == dtype.metadata
    assert stored.tolist() == [1, -1, 1, 127, -128, -128]
    assert convert_from_qint8(stored).tolist() == [0.5, -0.5, 0.5, 63.5, -64.0, -64.0]
    assert convert_to_quint4(np.array([-1.0, 0.0, 9.0]), quint4(1.0, 7)).tolist() == [6, 7, 15]
    assert convert_to_qint32(np.array([3e9, 1e9]), qint32(1.0)).tolist() == [2**31 - 1, 10**9]


def test_conversions_check_what_they_get():
    with pytest.raises(ValueError, match="should be a NumPy array"):
        convert_to_qint8([1.0], qint8(0.1))
    with pytest.raises(ValueError, match="should be a qint8 dtype"):
        convert_to_qint8(np.ones(2), quint8(0.1, 3))
    with pytest.raises(ValueError, match="should be a NumPy array"):
        convert_from_qint8([1])
    with pytest.raises(ValueError, match="arr's dtype should be a qint8 dtype"):
        convert_from_qint8(np.ones(2, np.int8))


PAIRS = {
    "qint8": (convert_to_qint8, convert_from_qint8),
    "qint32": (convert_to_qint32, convert_from_qint32),
    "qint4": (convert_to_qint4, convert_from_qint4),
    "qint1": (convert_to_qint1, convert_from_qint1),
    "quint8": (convert_to_quint8, convert_from_quint8),
    "quint4": (convert_to_quint4, convert_from_quint4),
}


@pytest.mark.parametrize("name", PAIRS)
def test_every_family_has_both_conversions(name):
    there, back = PAIRS[name]
    assert getattr(public, f"convert_to_{name}") is there
    dtype = getattr(public, name)(*((0.5, 3) if name.startswith("quint") else (0.5,)))
    found = back(there(np.array([0.5, 0.0], np.float32), dtype))
    assert found.dtype == np.float32
    assert found.tolist() == [0.5, 0.0]
    other = qint32(0.5) if name != "qint32" else qint8(0.5)
    with pytest.raises(ValueError, match=f"should be a {name} dtype"):
        there(np.ones(2), other)
    with pytest.raises(ValueError, match=f"should be a {name} dtype"):
        back(np.ones(2, other))


def test_low_bits_and_bfloat16():
    assert is_lowbit(intb1)
    assert not is_lowbit(qint4(0.1))
    assert not is_quantize(intb4)
    assert is_bfloat16(bfloat16)
    assert not is_bfloat16("float32")
    assert not is_bfloat16("no dtype")
    assert np.array([1.5], bfloat16).dtype == bfloat16


def test_which_dtypes_have_gradients():
    assert all(map(is_differentible_dtype, ("float16", bfloat16, np.float32, "float64")))
    assert not any(map(is_differentible_dtype, ("int32", "bool", qint8(0.1), intb2)))


def test_bits():
    assert [get_dtype_bit(n) for n in ("quint8", "float16", "qint4")] == [8, 16, 4]
    with pytest.raises(ValueError, match="number of bits"):
        get_dtype_bit("bool")


def test_families_are_values():
    family = BUILTIN["qint8"]
    assert copy.deepcopy(family) is family
    assert copy.copy(family) is family
    assert QuantDtypeMeta("x", None, "int8", -1, 1).is_unsigned is False


def test_qparams_compare_and_update():
    empty = create_qparams()
    assert (empty.mode, empty.scale, empty.zero_point) == (QuantMode.SYMMERTIC, None, None)
    full = create_qparams(QuantMode.ASYMMERTIC, "quint8", 0.5, 3)
    assert empty != full
    empty.update(full)
    assert empty == full
    assert empty != "full"
    assert create_qparams(scale=np.ones(2)) == create_qparams(scale=np.ones(2))
    assert create_qparams(scale=np.ones(2)) != create_qparams(scale=np.array([1, 2]))
    assert create_qparams(scale=np.ones(2)) != create_qparams(scale=np.ones(3))
    assert repr(full).startswith("QParams(mode=QuantMode.ASYMMERTIC, dtype_meta=QuantDtypeMeta(")
    assert isinstance(copy.deepcopy(full), QParams)


def test_qparams_check_what_they_get():
    with pytest.raises(ValueError, match="unknown dtype: qint5"):
        create_qparams(QuantMode.SYMMERTIC, "qint5")
    with pytest.raises(ValueError, match="mode is a QuantMode"):
        create_qparams("symmetric")
