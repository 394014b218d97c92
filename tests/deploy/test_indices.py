"""Indices out of range in models: portable files, native ones, Lite, C libraries, servers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serve.running import ask, running

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.backends.cpu import host
from treadle.base.errors import IndexRangeError
from treadle.deploy import compile_offline, write_library
from treadle.engine.package.models import Model, read_models, write_models
from treadle.engine.package.offline import load_offline
from treadle.lite import LiteNetwork
from treadle.serve.models import load_compiled, load_model

GOOD, BAD = np.array([0, 1], np.int32), np.array([0, 99], np.int32)
BELOW = np.array([-77, 0], np.int32)
ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)
TOLD = "index {} is out of range for an extent of 3"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    table = mge.Parameter(ROWS)
    traced = jit.trace(lambda i: F.nn.embedding(i + 1, table) * 2, capture_as_const=True)
    traced(mge.tensor(GOOD))
    path = tmp_path_factory.mktemp("model") / "model.tm"
    traced.dump(path, arg_names=["i"], output_names=["rows"])
    return read_models(path)[0]


def check(run: Callable[[Any], Any]) -> None:
    """Wrong indices are refused, and the next run is as good as any."""
    for bad, index in ((BAD, 100), (BELOW, -76), (BAD, 100)):
        with pytest.raises(IndexRangeError, match=TOLD.format(index)):
            run(bad)
        np.testing.assert_array_equal(run(GOOD), ROWS[1:3] * 2)


@pytest.fixture(scope="module", params=host._lesser(host.host_target()))
def native(request: pytest.FixtureRequest, model: Model, tmp_path_factory: Any) -> Path:
    path: Path = tmp_path_factory.mktemp("native") / "model.tm"
    write_models(path, [compile_offline(model, target=request.param)], "f")
    return path


def test_native_files(native: Path) -> None:
    found = load_offline(native)
    assert found.target
    check(lambda i: found.run([i])["rows"])


def test_lite(native: Path) -> None:
    network = LiteNetwork()
    network.load(native)

    def run(i: Any) -> Any:
        network.get_io_tensor("i").set_data_by_copy(i)
        network.forward()
        network.wait()
        return network.get_io_tensor("rows").to_numpy()

    check(run)


def test_portable_files(native: Path) -> None:
    portable = load_offline(native, allow_native=False)
    check(lambda i: portable.run([i])["rows"])


@pytest.mark.parametrize("compiled", [False, True])
def test_a_server_refuses_the_request(model: Model, native: Path, compiled: bool) -> None:
    found = load_offline(native)
    served = load_compiled("m", "1", found) if compiled else load_model("m", "1", model)

    def post(i: Any) -> Any:
        entry = {"name": "i", "shape": [2], "datatype": "INT32", "data": i.tolist()}
        return ask(here.port, "/v2/models/m/infer", {"inputs": [entry]})

    with running([served]) as here:
        for bad, index in ((BAD, 100), (BELOW, -76)):
            answer = post(bad)
            assert answer.status == 400 and TOLD.format(index) in answer.json["error"]
            assert post(GOOD).status == 200


@pytest.mark.parametrize("target", host._lesser(host.host_target()))
def test_libraries(model: Model, target: str, tmp_path: Path) -> None:
    made = write_library(model, tmp_path, "net", target=target)
    library, handle = ctypes.CDLL(str(made.library)), ctypes.c_void_p()
    library.net_error.restype = ctypes.c_char_p
    results = np.zeros((2, 4), np.float32)
    assert library.net_create(ctypes.byref(handle), 1, None) == 0
    assert library.net_set_output(handle, 0, results.ctypes.data_as(ctypes.c_void_p)) == 0
    for indices, index in ((BAD, 100), (GOOD, 0), (BELOW, -76), (GOOD, 0)):
        library.net_set_input(handle, 0, indices.ctypes.data_as(ctypes.c_void_p))
        status = library.net_run(handle)
        if not index:
            assert status == 0
            np.testing.assert_array_equal(results, ROWS[1:3] * 2)
            continue
        assert status == 5, "NAME_BAD_INDEX"
        assert TOLD.format(index) in library.net_error().decode()
    library.net_destroy(handle)
