"""Checkpoints that MegEngine wrote."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.serialization.conftest import assert_same, loaded, saved
from tests.serialization.megengine_pickles import VERSIONS, checkpoint, pickled

from treadle import module as M
from treadle.base.errors import CheckpointError, DeviceError
from treadle.base.quantized import BUILTIN, create_quantized_dtype, quantized_type_of
from treadle.optimizer import SGD
from treadle.serialization import load, save
from treadle.tensor import Parameter, Tensor

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("version", VERSIONS)
def test_checkpoints_of_all_versions(version: str, protocol: int) -> None:
    found = loaded(pickled(version, checkpoint, protocol))
    weight = found["model"]["fc.weight"]
    assert type(weight) is Parameter and type(found["model"]["mean"]) is Tensor
    assert weight.tolist() == [[0, 1, 2], [3, 4, 5]] and weight.dtype == np.float32
    assert found["model"]["tied"] is weight
    assert str(weight.device) == "xpux:0" and str(found["ints"].device) == "cpu0:0"
    assert found["ints"].tolist() == [1, 2, 3] and found["ints"].dtype == np.int8
    assert found["epoch"] == 12
    assert type(found["optimizer"]["param_groups"][0]["momentum"]) is np.float64
    state = found["optimizer"]["state"][0]["momentum_buffer"]
    assert state.flags.writeable and state.tolist() == [[0.5] * 3] * 2


@pytest.mark.parametrize("protocol", [0, 1])
def test_old_protocols_of_version_1_1(protocol: int) -> None:
    """Its tensors are objects of a Python class, which these protocols make by copyreg."""
    found = loaded(pickled("1.1", checkpoint, protocol))
    assert found["model"]["fc.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["model"]["tied"] is found["model"]["fc.weight"]


def plain() -> OrderedDict[str, Any]:
    """A value of every kind that needs no class."""
    return OrderedDict(
        arrays=[np.arange(6, dtype=t).reshape(2, 3) for t in ("i1", "u2", "i8", "f2", "f4", "c8")],
        more=[np.asfortranarray(np.eye(3)), np.zeros((0, 2)), np.array(5), np.array([True, False])],
        axes=np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2),
        bfloat16=np.ones(3, ml_dtypes.bfloat16).view(np.uint16),
        scalars=[np.float32(0.5), np.bool_(True), np.int64(-7)],
        numbers=[1, -1, 255, 65536, -(2**40), 2**70, True, False, None, 1.5, -0.0, 1j],
        texts=["", "ü\U0001f600", "x" * 70_000, "it's \\ \n", b"", b"\x00\xff", b"y" * 70_000],
        sets=[set(), {1, 2}, frozenset({"a"}), bytearray(b"ab"), bytearray()],
        tuples=[(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ([{}],)],
        types=[np.dtype("int16"), np.float32],
        keys={1: 1, None: 2, ("a", 1): 3, b"b": 4, np.int64(3): 5},
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values(protocol: int) -> None:
    assert_same(loaded(pickle.dumps(plain(), protocol)), plain())


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_what_older_numpy_writes(protocol: int) -> None:
    """Its core was `numpy.core` before version 2, the same length less one underscore."""
    raw = pickle.dumps({"a": np.arange(3), "b": np.float32(2)}, protocol)
    with_frames = raw.count(b"\x95")
    old = raw.replace(b"numpy._core", b"numpy.core")
    if protocol >= 4:
        old = old.replace(b"\x8c\x16numpy.core.multiarray", b"\x8c\x15numpy.core.multiarray")
        old = old.replace(b"\x8c\x13numpy.core.numeric", b"\x8c\x12numpy.core.numeric")
        assert with_frames == 1
        old = old[:3] + (len(old) - 11).to_bytes(8, "little") + old[11:]
    assert_same(loaded(old), {"a": np.arange(3), "b": np.float32(2)})


def test_into_a_module_and_an_optimizer() -> None:
    net = M.Linear(3, 2)
    opt = SGD(net.parameters(), lr=0.1, momentum=0.9)
    wanted = {name: array + 1 for name, array in net.state_dict().items()}
    state = opt.state_dict()
    state["param_groups"][0]["lr"] = 0.25
    found = loaded(pickle.dumps({"net": OrderedDict(wanted), "opt": state}, 4))
    net.load_state_dict(found["net"])
    opt.load_state_dict(found["opt"])
    for name, array in wanted.items():
        np.testing.assert_array_equal(net.state_dict()[name], array)
    assert opt.param_groups[0]["lr"] == 0.25


def test_map_location() -> None:
    """Logical names are given, and the keys of a dict are compared on four characters."""
    raw = pickled("snapshot", lambda mge: mge.Tensor(np.ones(2, np.float32), device="gpu0:0"))
    with pytest.raises(DeviceError):
        loaded(raw)
    assert str(loaded(raw, map_location="cpu0").device) == "cpu0:0"
    assert str(loaded(raw, map_location={"gpu0": "cpu1"}).device) == "cpu1:0"
    with pytest.raises(DeviceError):
        loaded(raw, map_location={"gpu1": "cpu1"})
    asked: list[str] = []

    def locate(name: str) -> str:
        asked.append(name)
        return "cpux"

    assert str(loaded(raw, map_location=locate).device) == "cpux:0"
    assert asked == ["gpu0:0"]


def test_errors_of_map_location_reach_the_caller() -> None:
    raw = pickled("1.13", lambda mge: mge.Tensor(np.ones(2, np.float32)))
    for error in (IndexError("mine"), ValueError("mine"), KeyError("mine")):

        def locate(name: str, error: Exception = error) -> str:
            raise error

        with pytest.raises(type(error)) as caught:
            loaded(raw, map_location=locate)
        assert caught.value is error


def test_format() -> None:
    raw = pickled("snapshot", lambda mge: mge.Tensor(np.ones((1, 2, 3, 4), "f4"), format="nhwc"))
    assert loaded(raw).format == "nhwc"


@pytest.mark.parametrize("version", ["1.1", "1.2", "1.13", "snapshot"])
def test_quantization_parameters(version: str) -> None:
    def make(mge: SimpleNamespace) -> Any:
        scale = mge.Tensor(np.array([0.5], np.float32))
        if version in ("1.1", "1.2"):
            more = {"mode": mge.QuantMode.ASYMMERTIC, "scale": scale, "zero_point": 3}
            return mge.Tensor(np.ones(2, np.float32), **more)
        parameters = mge.QParams()
        parameters.mode, parameters.scale = mge.QuantMode.ASYMMERTIC, scale
        parameters.dtype_meta = mge.QuantDtypeMeta("quint8", "Quantized8Asymm", "uint8", 0, 255, 1)
        parameters.zero_point = 3
        return mge.Tensor(np.ones(2, np.float32), qparams=parameters)

    found = loaded(pickled(version, make)).qparams
    assert found.mode.name == "ASYMMERTIC" and found.zero_point == 3
    assert found.scale.tolist() == [0.5]
    assert found.dtype_meta is (BUILTIN["quint8"] if version in ("1.13", "snapshot") else None)


@pytest.mark.parametrize(("family", "zero"), [("quint8", 7), ("qint8", None), ("qint32", None)])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_quantized_dtype(protocol: int, family: str, zero: int | None) -> None:
    dtype = create_quantized_dtype(BUILTIN[family], 0.25, zero)
    raw = pickled("snapshot", lambda mge: mge.Tensor(np.arange(3, dtype=dtype)), protocol)
    found = loaded(raw)
    assert found.numpy().tolist() == [0, 1, 2]
    assert quantized_type_of(found.dtype) is quantized_type_of(dtype)


def test_bfloat16() -> None:
    """NumPy names the scalar type of a dtype that MegEngine registered."""
    raw = pickle.dumps(np.array([1, -2], ml_dtypes.bfloat16), 4)
    name = b"\x8c\x1dmegengine.core._imperative_rt\x94\x8c\npybfloat16"
    assert raw.count(b"\x8c\tml_dtypes\x94\x8c\x08bfloat16") == 1
    raw = raw.replace(b"\x8c\tml_dtypes\x94\x8c\x08bfloat16", name)
    raw = raw[:3] + (len(raw) - 11).to_bytes(8, "little") + raw[11:]
    found = loaded(raw)
    assert found.dtype == ml_dtypes.bfloat16 and found.tolist() == [1, -2]


def test_saving_again_writes_the_own_format(tmp_path: Path) -> None:
    found = loaded(pickled("snapshot", checkpoint))
    save(found, tmp_path / "again.mge")
    assert (tmp_path / "again.mge").read_bytes()[8:9] == b"{"
    assert_same(loaded(saved(found)), found)


def test_in_a_fresh_process(tmp_path: Path) -> None:
    """Where nothing was imported that a pickle could name."""
    for version in VERSIONS:
        (tmp_path / f"{version}.pkl").write_bytes(pickled(version, checkpoint))
    program = (
        "import json, sys, treadle\n"
        "found = [treadle.load(path)['model']['fc.weight'].tolist() for path in sys.argv[1:]]\n"
        "print(json.dumps([found, 'megengine' in sys.modules]))"
    )
    paths = [str(tmp_path / f"{version}.pkl") for version in VERSIONS]
    done = subprocess.run(
        [sys.executable, "-c", program, *paths], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [[[[0, 1, 2], [3, 4, 5]]] * len(VERSIONS), False]


def test_modules_are_refused_with_the_way_out() -> None:
    raw = b"cmegengine.module.conv\nConv2d\n)\x81."
    with pytest.raises(CheckpointError, match=r"megengine\.module\.conv\.Conv2d") as caught:
        loaded(raw)
    assert "state_dict()" in caught.value.hint


def test_from_a_file_object_that_is_not_at_its_start() -> None:
    stream = io.BytesIO(b"head" + pickle.dumps([1], 0))
    stream.seek(4)
    assert load(stream) == [1]
