from __future__ import annotations

import io
import pickle
from collections import Counter, OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.serialization.conftest import assert_same, header_of, loaded, saved

from treadle.base import dtype as dtypes
from treadle.base.errors import CheckpointError, DeviceError
from treadle.serialization import load, save
from treadle.tensor import Parameter, Tensor

NUMPY_DTYPES = [d.numpy for d in dtypes.ALL if d is not dtypes.bfloat16]
KEYS = st.one_of(
    st.text(max_size=5), st.integers(-(2**63), 2**64 - 1), st.booleans(), st.none(), st.floats()
)
ARRAYS = st.sampled_from(NUMPY_DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
)
LEAVES = st.one_of(
    KEYS,
    st.integers(),
    st.complex_numbers(),
    st.binary(max_size=20),
    ARRAYS,
    ARRAYS.map(lambda a: Tensor(a, dtype=a.dtype)),
    st.sampled_from(NUMPY_DTYPES),
    st.sampled_from(NUMPY_DTYPES).map(lambda dtype: dtype.type),
    st.sampled_from(NUMPY_DTYPES).map(lambda dtype: dtype.type(1)),
    st.sets(KEYS, max_size=3),
    st.frozensets(st.tuples(KEYS, KEYS), max_size=3),
)
OBJECTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4).map(OrderedDict),
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(OBJECTS)
def test_any_nesting_comes_back_bit_for_bit(obj: object) -> None:
    assert_same(obj, loaded(saved(obj)))


@pytest.mark.parametrize("dtype", [d.numpy for d in dtypes.ALL], ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (3, 5)], ids=str)
@pytest.mark.parametrize("kind", [Tensor, Parameter])
def test_every_dtype_and_shape(
    dtype: np.dtype[Any], shape: tuple[int, ...], kind: type[Tensor]
) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    back = loaded(saved(kind(array, dtype=dtype)))
    assert type(back) is kind
    assert back.dtype == dtype
    assert_same(array, back.numpy())


def test_special_values_of_bfloat16() -> None:
    array = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40], ml_dtypes.bfloat16)
    assert_same(array, loaded(saved(array)))
    assert_same(array[2], loaded(saved(array[2])))


def test_every_kind_of_node(state: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "state.treadle"
    save(state, path)
    assert_same(state, load(path))
    assert_same(state, load(str(path)))
    assert_same(state, load(bytes(path)))


def test_lone_surrogate_and_control_characters() -> None:
    obj = {"\ud800\n\0": [np.zeros(1), "\udfff"], "__metadata__": np.ones(1)}
    assert_same(obj, loaded(saved(obj)))


def test_shared_references_stay_shared() -> None:
    tensor, array, inner = Tensor([1.0]), np.zeros(2), [1]
    back = loaded(saved({"a": tensor, "b": [tensor, array], "c": array, "d": inner, "e": inner}))
    assert back["a"] is back["b"][0]
    assert back["c"] is back["b"][1]
    assert back["d"] is back["e"]


def test_equal_but_distinct_objects_stay_distinct() -> None:
    back = loaded(saved([Tensor([1.0]), Tensor([1.0]), [], []]))
    assert back[0] is not back[1]
    assert back[2] is not back[3]


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(10)[::-2],
        np.broadcast_to(np.float32(3), (2, 2)),
        np.arange(3, dtype=">i4"),
    ],
    ids=["fortran", "negative stride", "broadcast", "big-endian"],
)
def test_layouts_become_plain(array: np.ndarray[Any, Any]) -> None:
    back = loaded(saved(array))
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype.newbyteorder("=")
    assert back.flags.c_contiguous and back.flags.writeable and back.flags.owndata


def test_one_object_gives_one_file(state: dict[str, Any]) -> None:
    assert saved(state) == saved(state)
    one, other = {0, 8}, {8, 0}
    assert list(one) != list(other)
    assert saved(one) == saved(other)


def test_tensors_are_named_by_their_place() -> None:
    raw = saved({"model": {"fc.weight": Tensor([1.0])}, "model.fc": {"weight": Tensor([2.0])}})
    assert set(header_of(raw)) == {"__metadata__", "model.fc.weight", "model.fc.weight#2"}


def test_data_is_aligned() -> None:
    raw = saved([np.zeros(3, np.int8), np.zeros(1), np.zeros(3, np.float16), np.zeros(1, "f4")])
    header = header_of(raw)
    del header["__metadata__"]
    data_start = len(raw) - max(entry["data_offsets"][1] for entry in header.values())
    assert data_start % 64 == 0
    for entry in header.values():
        itemsize = {"I8": 1, "F16": 2, "F32": 4, "F64": 8}[entry["dtype"]]
        assert entry["data_offsets"][0] % itemsize == 0


def test_file_objects_are_used_from_their_position(tmp_path: Path) -> None:
    with open(tmp_path / "x", "w+b") as f:
        f.write(b"prefix")
        save({"x": 1}, f)
        f.seek(6)
        assert load(f) == {"x": 1}


def test_raw_stream_that_takes_a_part_at_a_time() -> None:
    class Trickle(io.RawIOBase):
        taken = b""

        def write(self, data: Any) -> int:
            self.taken += bytes(data[:100])
            return min(100, len(data))

    stream = Trickle()
    save(np.arange(100), stream)
    np.testing.assert_array_equal(loaded(stream.taken), np.arange(100))


@pytest.mark.parametrize(
    ("map_location", "expected"),
    [
        (None, "cpu1:0"),
        ("cpu0", "cpu0:0"),
        ({"cpu1": "cpu0"}, "cpu0:0"),
        ({"cpu1:0": "cpu0"}, "cpu0:0"),
        ({"gpu1": "cpu0"}, "cpu1:0"),
        (lambda name: {"cpu1:0": "cpu0:0"}[name], "cpu0:0"),
    ],
    ids=["none", "name", "dict", "dict with stream", "dict without match", "function"],
)
def test_map_location(map_location: Any, expected: str) -> None:
    raw = saved({"w": Tensor([1.0], device="cpu1:0")})
    assert str(loaded(raw, map_location=map_location)["w"].device) == expected


def test_map_location_that_fails() -> None:
    with pytest.raises(TypeError, match="map_location is a int"):
        loaded(saved(1), map_location=3)
    with pytest.raises(ZeroDivisionError):
        loaded(saved(Tensor([1.0])), map_location=lambda name: str(1 // 0))


def test_device_that_is_not_here() -> None:
    raw = saved(Tensor([1.0], device="cpu0")).replace(b"cpu0:0", b"zpu0:0")
    with pytest.raises(CheckpointError, match="checksum of the manifest"):
        loaded(raw)
    with pytest.raises(DeviceError):
        loaded(saved(Tensor([1.0])), map_location="zpu0")


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        ({"model": {"hook": print}}, "obj['model']['hook'] is a builtin_function_or_method"),
        ([1, (2, object())], "obj[1][1] is a object"),
        (Point(1, 2), "obj is a Point"),
        ({"n": Counter("aab")}, "obj['n'] is a Counter"),
        ({"t": int}, "obj['t'] is the class int"),
        ({Point(1, 2): 1}, "obj has a key of type Point"),
        ({(1, (2, 3)): 1}, "obj has a key of type tuple"),
        ([{2**70}], "obj[0] has an element of type int"),
        ({"s": np.array(["a"])}, "obj['s'] has dtype <U1, which is not saved"),
        (np.array([object()]), "obj has dtype object, which is not saved"),
        (np.zeros(1, np.dtype("i1", metadata={"scale": 0.1})), "has metadata"),
        (np.ma.array([1]), "obj is a MaskedArray"),
        (np.datetime64("2020-01-01"), "obj is a datetime64"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_is_not_saved_is_named(obj: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    save("old", path)
    with pytest.raises(TypeError) as caught:
        save(obj, path)
    assert str(caught.value).startswith("save: ")
    assert message in str(caught.value)
    assert "\n  hint: " in str(caught.value)
    assert load(path) == "old"


def test_cycles_and_depth() -> None:
    cycle: list[Any] = [0]
    cycle[0] = {"again": cycle}
    with pytest.raises(ValueError, match=r"obj\[0\]\['again'\] contains itself"):
        saved(cycle)
    deep: list[Any] = []
    for _ in range(99):
        deep = [deep]
    assert_same(deep, loaded(saved(deep)))
    with pytest.raises(ValueError, match="nests deeper than 100 levels"):
        saved([[deep]])


def test_arguments_of_pickle() -> None:
    stream = io.BytesIO()
    save([1], stream, pickle_module=pickle, pickle_protocol=4)
    assert loaded(stream.getvalue(), pickle_module=pickle) == [1]
    with pytest.raises(TypeError, match="pickle_module"):
        save([1], stream, pickle_module=io)
    with pytest.raises(TypeError, match="pickle_module"):
        loaded(stream.getvalue(), pickle_module=io)


@pytest.mark.parametrize("f", [3, None, io.StringIO(), object()], ids=["int", "none", "text", "?"])
def test_neither_path_nor_binary_file(f: Any) -> None:
    with pytest.raises(TypeError, match=r"^save: "):
        save([1], f)
    with pytest.raises(TypeError, match=r"^load: "):
        load(f)
