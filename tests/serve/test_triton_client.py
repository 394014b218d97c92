"""Triton's own client for Python, over gRPC. `make test-oracle` installs it beside the tests."""

from __future__ import annotations

import queue
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serve.running import Running, doubling, running

pytestmark = pytest.mark.oracle
X = np.array([[1, 5, 3], [9, 7, 8]], np.float32)
# Without what it asks for: it allows older versions of protobuf only than ONNX's newest takes.
sys.path.append(str(Path(__file__).parents[2] / "build" / "triton"))
triton = pytest.importorskip("tritonclient.grpc", reason="make test-oracle installs it")
messages = pytest.importorskip(
    "treadle.serve.rpc.messages", reason="the extra grpc is not installed"
)


@pytest.fixture
def server() -> Iterator[Running]:
    models = [doubling([(1, 3), (2, 3)], most=2), doubling(version="2", dtype="float16")]
    with running(models, grpc=True) as made:
        yield made


def given(x: Any = X, kind: str = "FP32") -> list[Any]:
    made = triton.InferInput("x", x.shape, kind)
    made.set_data_from_numpy(x)
    return [made]


def test_it_reads_infers_and_streams(server: Running) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("m")
        assert client.get_server_metadata().name == "treadle"
        assert list(client.get_model_metadata("m", "1").inputs[0].shape) == [-1, 3]
        assert client.get_model_config("m", "1").config.max_batch_size == 2
        answer = client.infer("m", given(), model_version="1", request_id="7")
        np.testing.assert_array_equal(answer.as_numpy("y"), X + X)
        assert answer.get_response().id == "7"
        half = given(X.astype("float16"), "FP16")
        assert client.infer("m", half).as_numpy("y").dtype == "float16"
        classes = [triton.InferRequestedOutput("y", class_count=1)]
        ranked = client.infer("m", given(), model_version="1", outputs=classes)
        assert ranked.as_numpy("y").tolist() == [[b"10.0:1"], [b"18.0:0"]]
        counts = client.get_inference_statistics("m", "1").model_stats[0]
        assert counts.inference_stats.success.count == 2
        assert [m.state for m in client.get_model_repository_index().models] == ["READY"] * 2

        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(5):
            client.async_stream_infer("m", given(), model_version="1", request_id=str(number))
        client.async_stream_infer("q", given())
        found = [answers.get(timeout=300) for _ in range(6)]
        client.stop_stream()
        assert [result.get_response().id for result, _ in found[:5]] == list("01234")
        assert "no model 'q'" in found[5][1].message()
        with pytest.raises(triton.InferenceServerException, match="input x is missing"):
            client.infer("m", [])


def test_fields_have_its_numbers_and_types() -> None:
    service_pb2 = triton.service_pb2
    theirs = service_pb2.DESCRIPTOR
    ours = messages.pool().FindServiceByName(messages.SERVICE)
    for method in ours.methods:
        other = theirs.services_by_name[ours.name].methods_by_name[method.name]
        assert method.client_streaming == other.client_streaming
        assert method.server_streaming == other.server_streaming
        for mine, its in (
            (method.input_type, other.input_type),
            (method.output_type, other.output_type),
        ):
            assert mine.full_name == its.full_name
            _compare(mine, its)


def _compare(mine: Any, its: Any) -> None:
    for field in mine.fields:
        other = its.fields_by_number[field.number]
        assert (field.name, field.type) == (other.name, other.type), mine.full_name
        assert field.is_repeated == other.is_repeated
        if field.enum_type is not None:
            for value in field.enum_type.values:
                assert other.enum_type.values_by_name[value.name].number == value.number
        if field.message_type is not None:
            _compare(field.message_type, other.message_type)
