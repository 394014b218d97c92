"""The protocol over gRPC: calls, streams, refusals, the end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.serve.running import Array, Running, double, doubling, running

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.cli import main
from treadle.serve.access import Access
from treadle.serve.limits import Limits
from treadle.serve.models import ServedModel
from treadle.serve.server import bind

NEEDS = "the extra grpc is not installed"
grpc = pytest.importorskip("grpc", reason=NEEDS)
health_pb2 = pytest.importorskip("grpc_health.v1.health_pb2", reason=NEEDS)
health_pb2_grpc = pytest.importorskip("grpc_health.v1.health_pb2_grpc", reason=NEEDS)
database = pytest.importorskip(
    "grpc_reflection.v1alpha.proto_reflection_descriptor_database", reason=NEEDS
)
messages = pytest.importorskip("treadle.serve.rpc.messages", reason=NEEDS)
SERVICE, message, pool = messages.SERVICE, messages.message, messages.pool
X = np.array([[1, 5, 3], [9, 7, 8]], np.float32)


class Client:
    """Every method of the service, with the messages that the server has."""

    def __init__(self, port: int, token: str = "") -> None:
        # One address, one channel: they share connections otherwise.
        self.channel = grpc.insecure_channel(
            f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]
        )
        self.metadata = [("authorization", f"Bearer {token}")] if token else []
        self.methods = {m.name: m for m in pool().FindServiceByName(SERVICE).methods}

    def __call__(self, method: str, /, **fields: Any) -> Any:
        return self.send(method, message(self.methods[method].input_type.name)(**fields))

    def send(self, name: str, asked: Any) -> Any:
        call = self.channel.unary_unary(f"/{SERVICE}/{name}", *self._codecs(name))
        return call(asked, metadata=self.metadata, timeout=300, wait_for_ready=True)

    def stream(self, requests: Iterator[Any]) -> Any:
        call = self.channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer", *self._codecs("ModelStreamInfer")
        )
        return call(requests, timeout=300, wait_for_ready=True)

    def _codecs(self, name: str) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
        answer = message(self.methods[name].output_type.name)
        return (lambda made: made.SerializeToString()), answer.FromString


@contextmanager
def asked(
    models: Sequence[ServedModel], limits: Limits | None = None, token: str = ""
) -> Iterator[tuple[Client, Running]]:
    with running(models, limits, Access(token), grpc=True) as server:
        client = Client(server.grpc_port, token)
        with client.channel:
            yield client, server


def inference(x: Array = X, kind: str = "FP32", **more: Any) -> Any:
    """A request whose elements are bytes."""
    made = message("ModelInferRequest")(model_name="m", **more)
    made.inputs.add(name="x", datatype=kind, shape=x.shape)
    made.raw_input_contents.append(x.tobytes())
    return made


def result(answer: Any, dtype: Any = np.float32) -> Array:
    (output,), (data,) = answer.outputs, answer.raw_output_contents
    return np.frombuffer(data, dtype).reshape(output.shape)


def refused(call: Callable[[], Any]) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code().name, caught.value.details()


def test_what_can_be_read_is_what_http_says() -> None:
    joined = doubling([(1, 3), (2, 3), (4, 3)], most=4)
    with asked([joined, doubling(version="2", dtype="bfloat16")]) as (client, _):
        assert client("ServerLive").live and client("ServerReady").ready
        assert client("ModelReady", name="m").ready
        assert client("ServerMetadata").name == "treadle"
        about = client("ModelMetadata", name="m", version="1")
        assert list(about.versions) == ["1", "2"]
        assert (about.inputs[0].datatype, list(about.inputs[0].shape)) == ("FP32", [-1, 3])
        config = client("ModelConfig", name="m", version="1").config
        assert config.max_batch_size == 4 and config.HasField("dynamic_batching")
        assert list(config.input[0].dims) == [3] and config.input[0].data_type == 11
        assert client("ModelConfig", name="m").config.input[0].data_type == 14
        assert [m.version for m in client("RepositoryIndex").models] == ["1", "2"]
        client.send("ModelInfer", inference(model_version="1"))
        counts = client("ModelStatistics", name="m", version="1").model_stats[0]
        assert (counts.inference_count, counts.inference_stats.success.count) == (2, 1)
        assert len(client("ModelStatistics", name="m").model_stats) == 2
        assert len(client("ModelStatistics").model_stats) == 2
        assert refused(lambda: client("ModelReady", name="q"))[0] == "NOT_FOUND"
        assert refused(lambda: client("ModelStatistics", name="q"))[0] == "NOT_FOUND"


def test_elements_come_as_bytes_or_as_numbers() -> None:
    with asked([doubling()]) as (client, _):
        answer = client.send("ModelInfer", inference(id="7"))
        assert (answer.id, answer.model_name, answer.model_version) == ("7", "m", "1")
        np.testing.assert_array_equal(result(answer), X + X)
        asked_numbers = inference()
        asked_numbers.inputs[0].contents.fp32_contents.extend([*X.ravel()[:5], float("inf")])
        del asked_numbers.raw_input_contents[:]
        assert result(client.send("ModelInfer", asked_numbers))[1, 2] == np.inf
        ranked = inference()
        ranked.outputs.add(name="y").parameters["classification"].int64_param = 1
        answer = client.send("ModelInfer", ranked)
        assert answer.outputs[0].datatype == "BYTES" and list(answer.outputs[0].shape) == [2, 1]
        assert answer.raw_output_contents[0] == b"\6\0\0\x0010.0:1\6\0\0\x0018.0:0"


@pytest.mark.parametrize(
    ("dtype", "kind", "field"),
    [
        ("bool", "BOOL", "bool_contents"),
        ("int8", "INT8", "int_contents"),
        ("uint16", "UINT16", "uint_contents"),
        ("int64", "INT64", "int64_contents"),
        ("uint64", "UINT64", "uint64_contents"),
        ("float64", "FP64", "fp64_contents"),
        (ml_dtypes.bfloat16, "BF16", ""),
    ],
)
def test_element_types(dtype: Any, kind: str, field: str) -> None:
    x = np.array([[1, 0, 1]], dtype)
    with asked([doubling([(1, 3)], dtype=dtype)]) as (client, _):
        given = inference(x, kind)
        np.testing.assert_array_equal(result(client.send("ModelInfer", given), dtype), x + x)
        del given.raw_input_contents[:]
        if not field:
            told = refused(lambda: client.send("ModelInfer", given))
            assert told == ("INVALID_ARGUMENT", "input x: BF16 comes in raw_input_contents")
            return
        getattr(given.inputs[0].contents, field).extend(x.ravel().tolist())
        np.testing.assert_array_equal(result(client.send("ModelInfer", given), dtype), x + x)


def _out_of_range(made: Any) -> None:
    made.inputs[0].datatype = "INT8"
    del made.raw_input_contents[:]
    made.inputs[0].contents.int_contents.extend([1, 2, 300, 4, 5, 6])


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (lambda r: setattr(r, "model_name", "q"), "NOT_FOUND", "no model 'q'"),
        (lambda r: setattr(r, "model_version", "9"), "NOT_FOUND", "no version '9'"),
        (lambda r: r.inputs.pop(), "INVALID_ARGUMENT", "1 for 0 inputs"),
        (lambda r: r.raw_input_contents.pop(), "INVALID_ARGUMENT", "int_contents has 0"),
        (lambda r: r.raw_input_contents.append(b""), "INVALID_ARGUMENT", "2 for 1 inputs"),
        (
            lambda r: r.raw_input_contents.__setitem__(0, b"12345"),
            "INVALID_ARGUMENT",
            "takes 6 bytes, raw_input_contents has 5",
        ),
        (lambda r: r.inputs[0].shape.append(1), "INVALID_ARGUMENT", "is INT8 [2, 3]"),
        (lambda r: setattr(r.inputs[0], "datatype", "X"), "INVALID_ARGUMENT", "not datatype 'X'"),
        (lambda r: setattr(r.inputs[0], "name", "z"), "INVALID_ARGUMENT", "no input 'z'"),
        (lambda r: r.outputs.add(name="z"), "INVALID_ARGUMENT", "no output 'z'"),
        (
            lambda r: (
                r.inputs[0].parameters["shared_memory_region"].__setattr__("string_param", "a")
            ),
            "INVALID_ARGUMENT",
            "shares no memory",
        ),
        (_out_of_range, "INVALID_ARGUMENT", "a number lies outside of INT8"),
        (lambda r: setattr(r, "id", "a" * 2000), "RESOURCE_EXHAUSTED", "larger than max"),
    ],
)
def test_wrong_requests_are_told_what_is_wrong(
    change: Callable[[Any], Any], code: str, words: str
) -> None:
    given = inference(np.zeros((2, 3), np.int8), "INT8")
    change(given)
    with asked([doubling(dtype="int8")], Limits(body=1500)) as (client, _):
        found = refused(lambda: client.send("ModelInfer", given))
        assert found[0] == code and words in found[1]
        assert client("ServerReady").ready


def test_streams_answer_in_order_and_outlive_mistakes() -> None:
    with asked([doubling()]) as (client, _):
        wrong = inference(id="wrong")
        wrong.inputs[0].datatype = "FP64"
        requests = [*(inference(X * n, id=str(n)) for n in range(9)), wrong, inference(id="last")]
        answers = list(client.stream(iter(requests)))
        assert [a.infer_response.id for a in answers] == [r.id for r in requests]
        np.testing.assert_array_equal(result(answers[4].infer_response), X * 8)
        assert "FP32" in answers[9].error_message
        assert not any(a.error_message for a in (*answers[:9], answers[10]))


def test_a_token_is_asked_for_but_not_for_health() -> None:
    with asked([doubling()], token="secret") as (client, server):
        assert client("ModelReady", name="m").ready
        with Client(server.grpc_port).channel as channel:
            stranger = Client(server.grpc_port)
            stranger.channel = channel
            assert stranger("ServerLive").live
            assert refused(lambda: stranger("ServerMetadata"))[0] == "UNAUTHENTICATED"
            assert refused(lambda: stranger.send("ModelInfer", inference()))[0] == "UNAUTHENTICATED"
            stream = stranger.stream(iter([inference()]))
            assert refused(lambda: next(stream))[0] == "UNAUTHENTICATED"
            assert _health(channel) == "SERVING"


def test_the_service_describes_itself() -> None:
    with asked([doubling()]) as (client, _):
        described = database.ProtoReflectionDescriptorDatabase(client.channel)
        assert set(described.get_services()) >= {SERVICE, "grpc.health.v1.Health"}
        file = described.FindFileContainingSymbol("inference.ModelInferRequest")
        assert {m.name for m in file.message_type} >= {"ModelInferRequest", "ModelConfig"}


def _health(channel: Any) -> str:
    answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=300)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def test_the_end_waits_for_calls_and_ends_streams() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow(arrays: Sequence[Array]) -> list[Array]:
        if arrays[0].any():  # not the run that warms up
            entered.set()
            assert go_on.wait(300)
        return double(arrays)

    with asked([doubling(program=slow)]) as (client, server):
        open_ended = threading.Event()

        def requests() -> Iterator[Any]:
            yield inference(id="first")
            open_ended.wait(300)  # a client that keeps its stream

        stream = client.stream(requests())
        assert entered.wait(300)
        server.stop()
        while _health(client.channel) == "SERVING":
            time.sleep(0.01)
        assert not client("ServerReady").ready
        late = refused(lambda: client.send("ModelInfer", inference()))
        assert late == ("UNAVAILABLE", "the server is about to end")
        go_on.set()
        np.testing.assert_array_equal(result(next(stream).infer_response), X + X)
        assert refused(lambda: next(stream)) == ("UNAVAILABLE", "the server is about to end")
        open_ended.set()
        server.thread.join(300)
        assert not server.thread.is_alive() and server.server.cut == 0


def test_the_command_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @jit.trace(symbolic=True, capture_as_const=True)
    def positive(x: mge.Tensor) -> mge.Tensor:
        return F.relu(x)

    positive(mge.tensor(X))
    path = str(tmp_path / "positive.tm")
    positive.dump(path, arg_names=["x"], output_names=["y"])
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["serve", path, "--port", "0", "--grpc-port", port]) == 1
        assert f"cannot listen at 127.0.0.1:{port}" in capsys.readouterr().err
    command = [sys.executable, "-m", "treadle", "serve", path, "--port", "0"]
    with subprocess.Popen(
        [*command, "--grpc-port", "0"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(3)]
        assert lines[1].startswith("gRPC at 127.0.0.1:") and lines[2].startswith("listening at")
        client = Client(int(lines[1].rpartition(":")[2]))
        with client.channel:
            assert client("ModelReady", name="positive").ready
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
