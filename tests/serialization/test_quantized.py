"""Quantized arrays in files: their scales come back exactly, and lies about them are noticed."""

import numpy as np
import pytest
from tests.serialization.conftest import loaded, saved
from tests.serialization.test_damage import rewritten

import treadle as mge
from treadle.base.errors import CheckpointError
from treadle.base.quantized import (
    BUILTIN,
    is_dtype_equal,
    qint4,
    qint8,
    qint16,
    qint32,
    quantized_type,
    quint8,
)
from treadle.serialization.quantized import described, description, stands_for

DTYPES = {
    "qint8": qint8(0.1),
    "narrow": quantized_type(BUILTIN["qint8_narrow"], 1 / 3).numpy,
    "quint8": quint8(0.1, 7),
    "qint16": qint16(1e-30),
    "qint32": qint32(1e30),
    "qint4": qint4(0.5),
    "per channel": qint8(np.array([[0.1], [1 / 3]])),
}


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3), (2, 0)])
def test_scales_come_back_exactly(name, shape):
    dtype = DTYPES[name]
    x = mge.Parameter(np.ones(shape, dtype), name="w")
    found = loaded(saved({"tensor": x, "array": x.numpy(), "dtype": dtype}))
    assert type(found["tensor"]) is mge.Parameter
    assert found["tensor"].name == "w"
    for one in (found["tensor"].dtype, found["array"].dtype, found["dtype"]):
        assert is_dtype_equal(one, dtype)
    np.testing.assert_array_equal(found["tensor"].numpy(), x.numpy())
    assert found["array"].tolist() == x.tolist()


GOOD = description(quantized_type(BUILTIN["quint8"], 0.5, 3))


def changed(place, value, inner=None):
    data = [list(GOOD[0]), *GOOD[1:]]
    if inner is None:
        data[place] = value
    else:
        data[place][inner] = value
    return data


LIES = {
    "no list": 3,
    "too short": GOOD[:3],
    "family too short": changed(0, ["a", "b"]),
    "name no text": changed(0, 3, 0),
    "metadata name no text": changed(0, None, 1),
    "stored as float": changed(0, "float32", 2),
    "stored as nonsense": changed(0, "x" * 10, 2),
    "limits beyond storage": changed(0, 300, 4),
    "limits reversed": changed(0, 256, 3),
    "limit a boolean": changed(0, True, 3),
    "limit a float": changed(0, 0.0, 3),
    "unsigned no boolean": changed(0, 1, 5),
    "zero point out of range": changed(1, 256),
    "zero point missing": changed(1, None),
    "zero point a text": changed(1, "3"),
    "shape negative": changed(2, [-1]),
    "shape of another size": changed(2, [2]),
    "shape a number": changed(2, 2),
    "scale zero": changed(3, ["0x0p+0"]),
    "scale infinite": changed(3, ["inf"]),
    "scale no number": changed(3, ["x"]),
    "scale a number": changed(3, [0.5]),
    "no scales": changed(3, []),
}


@pytest.mark.parametrize("name", LIES)
def test_lies_are_noticed(name):
    with pytest.raises((ValueError, TypeError)):
        described(LIES[name])


def test_descriptions_must_fit_the_array():
    kind = described(GOOD)
    assert stands_for(np.ones(2, np.uint8), GOOD).dtype.metadata == kind.numpy.metadata
    with pytest.raises(ValueError, match="int8 data for quint8"):
        stands_for(np.ones(2, np.int8), GOOD)
    each = description(quantized_type(BUILTIN["qint8"], np.array([[0.1], [0.2]])))
    with pytest.raises(ValueError, match="for an array"):
        stands_for(np.ones(2, np.int8), each)
    with pytest.raises(ValueError, match="shape mismatch"):
        stands_for(np.ones((3, 2), np.int8), each)


@pytest.mark.parametrize("lie", ["no list", "scale zero", "stored as float"])
def test_files_that_lie_are_refused(lie):
    raw = saved(mge.tensor([1, 2], dtype=quint8(0.5, 3)))
    node = ["quantized_tensor", "value", "Tensor", "xpux:0", {}]
    assert loaded(rewritten(raw, {"nodes": [[*node, GOOD]]})).tolist() == [1, 2]
    with pytest.raises(CheckpointError, match="malformed"):
        loaded(rewritten(raw, {"nodes": [[*node, LIES[lie]]]}))
    for nodes in (["quantized_array", "value", LIES[lie]], ["quantized_tensor"]):
        with pytest.raises(CheckpointError, match="malformed"):
            loaded(rewritten(raw, {"nodes": [nodes]}))
