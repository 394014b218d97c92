from __future__ import annotations

import json
import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from treadle.serve.protocol import (
    End,
    ModelRequest,
    RequestRefusal,
    read_request,
    write_response,
)

X = End("x", np.dtype("float32"), (None, 3))
K = End("k", np.dtype("int64"), ())
Y = End("y", np.dtype("float32"), (None, 2))
Z = End("z", np.dtype(ml_dtypes.bfloat16), (1,))
DEEP = b"[" * 4000 + b"1" + b"]" * 4000
SIX = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
GOOD_X = {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": SIX}
GOOD_K = {"name": "k", "shape": [], "datatype": "INT64", "data": [7]}


def read(content: Any, tail: bytes = b"", length: int | None = None, **ends: Any) -> ModelRequest:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    said = str(len(text) if length is None else length).encode() if tail or length else None
    inputs, outputs = ends.get("inputs", (X, K)), ends.get("outputs", (Y, Z))
    return read_request(memoryview(text + tail), said, inputs, outputs, 10_000)


def binary(name: str, array: np.ndarray, kind: str, **more: Any) -> dict[str, Any]:
    parameters = {"binary_data_size": array.nbytes, **more}
    return {"name": name, "shape": list(array.shape), "datatype": kind, "parameters": parameters}


def test_inputs_come_in_the_models_order_whatever_the_clients() -> None:
    request = read({"id": "a", "inputs": [GOOD_K, GOOD_X]})
    x, k = request.inputs
    assert x.shape == (2, 3) and x.dtype == np.float32 and x[1, 2] == 6
    assert k.shape == () and k == 7
    assert request.id == "a" and request.outputs == {"y": False, "z": False}


def test_tensors_may_follow_the_json_besides_others_in_it() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    request = read({"inputs": [binary("x", x, "FP32"), GOOD_K]}, x.tobytes())
    assert (request.inputs[0] == x).all() and request.inputs[1] == 7


def test_outputs_are_chosen_and_each_in_its_form() -> None:
    wanted = [{"name": "z", "parameters": {"binary_data": True}}, {"name": "y"}]
    content = {"inputs": [GOOD_X, GOOD_K], "outputs": wanted}
    assert read(content).outputs == {"z": True, "y": False}
    content["parameters"] = {"binary_data_output": True}
    wanted[0]["parameters"] = {"binary_data": False}
    assert list(read(content).outputs.items()) == [("z", False), ("y", True)]


def test_a_bare_tensor_is_the_only_input() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    request = read_request(memoryview(x.tobytes()), b"0", (X,), (Y,), 100)
    assert (request.inputs[0] == x).all() and request.outputs == {"y": True}
    with pytest.raises(RequestRefusal, match="8 bytes, not FP32 \\[any, 3\\]"):
        read_request(memoryview(bytes(8)), b"0", (X,), (Y,), 100)
    with pytest.raises(RequestRefusal, match="one input, not of x, k"):
        read_request(memoryview(bytes(12)), b"0", (X, K), (Y,), 100)


def changed(**fields: Any) -> dict[str, Any]:
    return {"inputs": [{**GOOD_X, **fields}, GOOD_K]}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "malformed"),
        (b"{", "malformed"),
        (b"\xff\xfe{}", "malformed"),
        (b"[]", "not an object"),
        (b"[" * 5000, "the JSON is malformed"),
        # Python 3.12 and later read this many levels.
        (
            json.dumps(changed(data=0)).encode().replace(b'"data": 0', b'"data": ' + DEEP),
            "nested too deeply|dimension",
        ),
        (b'{"id": NaN}', "not a number"),
        (b'{"id": "a", "id": "b"}', "key twice"),
        (b'{"id": ' + b"9" * 5000 + b"}", "malformed"),
        ({"id": 1}, "id must be a string"),
        ({"inputs": {}}, "inputs must be an array"),
        ({"inputs": [1]}, "an input must be an object"),
        ({"inputs": [GOOD_X]}, "input k is missing"),
        ({}, "input x, k is missing"),
        ({"inputs": [GOOD_X, GOOD_X, GOOD_K]}, "input x is there twice"),
        (changed(name="q"), "no input 'q', but x, k"),
        (changed(name=None), "no input None"),
        (changed(datatype="FP64"), "FP32, not FP64"),
        (changed(datatype="BYTES"), "FP32, not BYTES"),
        (changed(datatype="X" * 500), "not datatype 'XXX"),
        (changed(shape=[3]), "FP32 \\[any, 3\\], not \\[3\\]"),
        (changed(shape=[3, 2]), "not \\[3, 2\\]"),
        (changed(shape=[-2, 3]), "not \\[-2, 3\\]"),
        (changed(shape=[True, 3]), "array of integers"),
        (changed(shape=[2.0, 3]), "array of integers"),
        (changed(shape="23"), "shape must be an array"),
        (changed(shape=[10**30, 3]), "its data is \\[6\\]"),
        (changed(data=SIX[:5]), "says \\[2, 3\\], its data is \\[5\\]"),
        (changed(data=[SIX[:2], SIX[2:4], SIX[4:]]), "its data is \\[3, 2\\]"),
        (changed(data=["a"] * 6), "must be numbers"),
        (changed(parameters=[]), "parameters must be an object"),
        (changed(parameters={"binary_data_size": 24}), "data and binary_data_size"),
        (changed(parameters={"binary_data_size": "24"}), "must be an integer"),
        ({"inputs": [GOOD_X, GOOD_K], "outputs": [1]}, "an output must be an object"),
        ({"inputs": [GOOD_X, GOOD_K], "outputs": [{"name": "q"}]}, "no output 'q', but y, z"),
        ({"inputs": [GOOD_X, GOOD_K], "outputs": [{"name": "y"}] * 2}, "output y is there twice"),
        (
            {
                "inputs": [GOOD_X, GOOD_K],
                "outputs": [{"name": "y", "parameters": {"classification": 0}}],
            },
            "classification is 0, not 1 or more",
        ),
        ({"inputs": [GOOD_X, GOOD_K], "parameters": {"binary_data_output": 1}}, "true or false"),
    ],
)
def test_malformed_requests_are_told_what_is_wrong(content: Any, told: str) -> None:
    with pytest.raises(RequestRefusal, match=told) as caught:
        read(content)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("size", "tail", "told"),
    [
        (24, bytes(20), "the body ends in input x: 20 of 24"),
        (24, bytes(25), "1 bytes follow"),
        (23, bytes(23), "takes 24 bytes, binary_data_size is 23"),
        (-1, bytes(1), "takes 24 bytes"),
        (2**70, bytes(1), "takes 24 bytes"),
    ],
)
def test_binary_data_has_the_size_that_its_shape_needs(size: int, tail: bytes, told: str) -> None:
    entry = {"name": "x", "shape": [2, 3], "datatype": "FP32"}
    entry["parameters"] = {"binary_data_size": size}
    with pytest.raises(RequestRefusal, match=told):
        read({"inputs": [entry, GOOD_K]}, tail)


@pytest.mark.parametrize("length", [b"-1", b"1e3", b"", b"9" * 400, b"100000"])
def test_a_length_of_the_json_that_is_none_is_refused(length: bytes) -> None:
    with pytest.raises(RequestRefusal, match="Inference-Header-Content-Length") as caught:
        read_request(memoryview(b"{}"), length, (X,), (Y,), 100)
    assert caught.value.status == 400


def test_long_json_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(RequestRefusal, match="send binary data") as caught:
        read_request(memoryview(b"[" * 101), None, (X,), (Y,), 100)
    assert caught.value.status == 413


def test_mutated_requests_are_read_or_refused() -> None:
    x = np.arange(6, dtype=np.float32)
    text = json.dumps({"id": "a", "inputs": [binary("x", x.reshape(2, 3), "FP32"), GOOD_K]})
    whole, generator, refused = text.encode() + x.tobytes(), random.Random(0), 0
    for _ in range(2000):
        mutated = bytearray(whole)
        for _ in range(generator.randrange(1, 4)):
            at = generator.randrange(len(mutated))
            if generator.random() < 0.3:
                del mutated[at : at + generator.randrange(1, 8)]
            else:
                mutated[at] = generator.randrange(256)
        said = str(len(text) + generator.choice((0, 0, 0, -1, 1))).encode()
        try:
            read_request(memoryview(bytes(mutated)), said, (X, K), (Y, Z), 10_000)
        except RequestRefusal as refusal:
            assert refusal.status == 400 and len(str(refusal)) < 500
            refused += 1
    assert 1000 < refused < 2000


def test_results_are_written_in_the_forms_that_were_asked_for() -> None:
    y, z = np.array([[1.5, 2]], np.float32), np.array([3], ml_dtypes.bfloat16)
    about = {"model_name": "m", "model_version": "1"}
    request = ModelRequest((), {"z": True, "y": False}, "a")
    response = write_response(about, request, {"y": y, "z": z})
    headers, whole = dict(response.headers), b"".join(response.parts)
    length = int(headers[b"inference-header-content-length"])
    assert headers[b"content-type"] == b"application/octet-stream"
    assert whole[length:] == z.tobytes() and response.length == len(whole)
    assert json.loads(whole[:length]) == {
        **about,
        "id": "a",
        "outputs": [
            {"name": "z", "shape": [1], "datatype": "BF16", "parameters": {"binary_data_size": 2}},
            {"name": "y", "shape": [1, 2], "datatype": "FP32", "data": [1.5, 2.0]},
        ],
    }


def test_large_results_are_not_copied() -> None:
    y = np.zeros((50_000, 2), np.float32)
    response = write_response({}, ModelRequest((), {"y": True}), {"y": y})
    assert np.shares_memory(np.frombuffer(response.parts[1], np.uint8), y)


def test_an_empty_result_has_no_bytes() -> None:
    response = write_response(
        {}, ModelRequest((), {"y": True}), {"y": np.zeros((0, 2), np.float32)}
    )
    (text,) = response.parts
    assert json.loads(bytes(text))["outputs"][0]["parameters"] == {"binary_data_size": 0}


def test_a_result_that_json_cannot_hold_is_asked_for_as_bytes() -> None:
    with pytest.raises(RequestRefusal, match=r"output y: .* ask for binary_data"):
        write_response({}, ModelRequest((), {"y": False}), {"y": np.array([np.nan], np.float32)})
