"""NCCL's part in collectives: two ranks over a fake of it, and the real one's signatures."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path

import pytest
from tests.backends.cuda.host_gpu import host_compiler
from tests.distributed.world import checks_of, run_checks

from treadle.backends import cuda
from treadle.backends.api import Support
from treadle.backends.cuda import Cuda
from treadle.backends.cuda.driver import unique_name
from treadle.backends.cuda.libraries.channel import ChannelError
from treadle.backends.cuda.libraries.collectives import (
    SUMMED,
    Exchange,
    lower_collective,
    parsed,
)
from treadle.backends.program import Lowered
from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.ops import collective as co
from treadle.runtime.comm.carriers import NCCL, Offer

MPI = bool(importlib.util.find_spec("mpi4py"))
if MPI:
    from tests.backends.cuda import carried_checks
needs_ranks = pytest.mark.skipif(not MPI or host_compiler() is None, reason="needs MPI and g++")


@pytest.mark.long
@needs_ranks
@pytest.mark.multi
def test_every_check_passes_on_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path))
    assert run_checks((carried_checks,), 2) == list(checks_of((carried_checks,)))


# -- one process ---------------------------------------------------------------------------------


def refuses(op: object, types: object) -> Support:
    raise AssertionError("no kernel is needed")


X = TensorType(dt.float32, (4, 6))


@pytest.mark.parametrize(
    "op", [co.AllReduce(), co.AllGather(axis=1), co.ReduceScatter(axis=1), co.BroadcastRank()]
)
def test_a_group_of_one_copies_nothing(op: co.Collective) -> None:
    for installed in (False, True):
        found = lower_collective(op, (X,), refuses, installed)
        assert isinstance(found, Lowered) and found.views == ((0, 0, 0),) and not found.launches


def test_refusals_say_why() -> None:
    def why(op: co.Collective, installed: bool = True) -> str:
        found = lower_collective(op, (X,) * len(op.operands), refuses, installed)
        assert isinstance(found, Support) and not found
        return found.message

    assert "pip install 'treadle[nccl]'" in why(co.AllReduce("world", 2), installed=False)
    assert "no rank has said" in why(co.AllReduce("world", 2))
    assert "wait for their receivers" in why(co.Send("world", 2, 1))


def test_calls_are_values() -> None:
    call = Exchange("all_reduce", "0,2", 2, "bfloat16", (3, 5), "mean", 1, 'it has "quotes"')
    assert parsed(call.symbol) == call and call.symbol.partition(" ")[0] == "nccl"
    assert call.name == "nccl all_reduce mean of 0,2 bfloat16[8]"


def test_a_rank_says_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CUDA_LIBRARIES", "cublasLt")
    monkeypatch.setattr(cuda, "_is_installed", lambda name: False)
    assert "pip install 'treadle[nccl]'" in Cuda().offers(0)[NCCL].refusal
    monkeypatch.setattr(cuda, "_is_installed", lambda name: True)
    assert Cuda().offers(0)[NCCL].refusal == "TREADLE_CUDA_LIBRARIES leaves NCCL out"


# -- nccl4py -------------------------------------------------------------------------------------

needs_nccl4py = pytest.mark.skipif(
    not importlib.util.find_spec("nccl"), reason="needs nccl4py, of the nccl extra"
)
POSITIONS = {
    "all_reduce": "sendbuff recvbuff count datatype op comm stream",
    "reduce": "sendbuff recvbuff count datatype op root comm stream",
    "broadcast": "sendbuff recvbuff count datatype root comm stream",
    "all_gather": "sendbuff recvbuff sendcount datatype comm stream",
    "reduce_scatter": "sendbuff recvbuff recvcount datatype op comm stream",
    "send": "sendbuff count datatype peer comm stream",
    "recv": "recvbuff count datatype peer comm stream",
}


@needs_nccl4py
def test_bindings_take_what_they_are_given() -> None:
    bindings = importlib.import_module("nccl.bindings.nccl")
    for name, wanted in POSITIONS.items():
        assert list(inspect.signature(getattr(bindings, name)).parameters) == wanted.split()


class Recorder:
    """Stands for the bindings' functions: what they are called with, by name."""

    def __init__(self) -> None:
        self.calls: dict[str, tuple[object, ...]] = {}

    def __getattr__(self, name: str) -> object:
        return lambda *given: self.calls.update({name: given})


@needs_nccl4py
def test_calls_reach_the_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = importlib.import_module("treadle.backends.cuda.libraries.nccl")
    core = importlib.import_module("nccl.core")
    bindings, recorder = nccl.bindings, Recorder()
    for name in POSITIONS:
        monkeypatch.setattr(bindings, name, getattr(recorder, name))
    channel = nccl.NcclChannel(core.Communicator(0x1000))
    channel.all_reduce(1, 2, 3, "bfloat16", "mean", 9)
    channel.reduce(1, 2, 3, "float16", "sum", 1, 9)
    channel.broadcast(1, 2, 3, "uint8", 1, 9)
    channel.all_gather(1, 2, 3, "uint8", 9)
    channel.reduce_scatter(1, 2, 3, "int64", "max", 9)
    channel.send(1, 3, "uint8", 5, 9)
    channel.recv(2, 3, "uint8", 5, 9)
    assert set(recorder.calls) == set(POSITIONS)
    for name, given in recorder.calls.items():
        named = dict(zip(POSITIONS[name].split(), given, strict=True))
        assert named.pop("stream") == 9 and int(named.pop("comm")) == 0x1000
        recorder.calls[name] = tuple(named.values())
    types = core.NcclDataType
    assert recorder.calls["all_reduce"] == (1, 2, 3, types.BFLOAT16, core.NcclRedOp.AVG)
    assert recorder.calls["reduce"] == (1, 2, 3, types.FLOAT16, core.NcclRedOp.SUM, 1)
    assert recorder.calls["reduce_scatter"] == (1, 2, 3, types.INT64, core.NcclRedOp.MAX)
    assert recorder.calls["recv"] == (2, 3, types.UINT8, 5)
    for dtype in SUMMED:
        assert types[dtype.name.upper()].itemsize == dtype.itemsize


@needs_nccl4py
def test_states_and_errors_are_put_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = importlib.import_module("treadle.backends.cuda.libraries.nccl")
    core = importlib.import_module("nccl.core")
    results = nccl.bindings.Result
    answers = iter((results.InProgress, results.Success, results.RemoteError))
    communicator = core.Communicator(0x1000)
    monkeypatch.setattr(communicator, "get_async_error", lambda: next(answers))
    monkeypatch.setattr(core, "get_error_string", lambda result: f"error {result}")
    channel = nccl.NcclChannel(communicator)
    assert [channel.state() for _ in range(3)] == [None, "", "error 6"]
    parameters = inspect.signature(core.Communicator.init).parameters
    assert list(parameters) == ["nranks", "rank", "unique_id", "config"]
    assert core.NCCLConfig(blocking=False, comm_name="world")._to_lowpp().blocking == 0
    with pytest.raises(ChannelError, match="not initialized"):
        nccl.NcclChannel(core.Communicator()).state()


@needs_nccl4py
def test_a_missing_library_is_told_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = importlib.import_module("treadle.backends.cuda.libraries.nccl")
    monkeypatch.setattr(nccl, "version", lambda: "")
    assert "libnccl.so.2 was not found" in Cuda().offers(0)[NCCL].refusal
    monkeypatch.setattr(nccl, "version", lambda: "2.32.3")
    assert Cuda().offers(0)[NCCL] == Offer("2.32.3", unique_name(0))


@needs_nccl4py
def test_the_library_itself_where_it_is_installed() -> None:
    nccl = importlib.import_module("treadle.backends.cuda.libraries.nccl")
    if not nccl.version():
        pytest.skip("needs libnccl, 240 MB, of the nccl extra")
    assert len(nccl.Nccl().new_key()) == 128
