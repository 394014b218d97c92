"""What the server has of Triton's extensions: configuration, statistics, classes."""

from __future__ import annotations

import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.serve.running import Array, ask, doubling, infer, running

from treadle.serve.classes import ranked, to_bytes

X = np.array([[1, 5, 3], [9, 7, 8]], np.float32)


def wanting(classes: int, binary: bool = False, x: Array = X) -> dict[str, Any]:
    parameters = {"classification": classes, "binary_data": binary}
    return infer(x, outputs=[{"name": "y", "parameters": parameters}])


def test_outputs_are_ranked_by_class() -> None:
    with running([doubling()]) as server:
        assert "classification" in ask(server.port, "/v2").json["extensions"]
        (output,) = ask(server.port, "/v2/models/m/infer", wanting(2)).json["outputs"]
        assert output == {
            "name": "y",
            "shape": [2, 2],
            "datatype": "BYTES",
            "data": ["10.0:1", "6.0:2", "18.0:0", "16.0:2"],
        }
        answer = ask(server.port, "/v2/models/m/infer", wanting(1, binary=True))
        (output,) = answer.json["outputs"]
        assert output["parameters"] == {"binary_data_size": 20} and "data" not in output
        assert answer.tensors == struct.pack("<I6sI6s", 6, b"10.0:1", 6, b"18.0:0")


@pytest.mark.parametrize(
    ("array", "count", "shape", "strings"),
    [
        (np.array([1, 5, 10, 4], np.int32), 2, (2,), ["10:2", "5:1"]),
        (np.array([2, 7, 7, 2], np.uint8), 9, (4,), ["7:1", "7:2", "2:0", "2:3"]),
        (np.array([[[1, 2], [4, 3]]], np.int64), 3, (1, 3), ["4:2", "3:3", "2:1"]),
        (np.array([np.nan, 1, np.inf], np.float64), 3, (3,), ["inf:2", "1.0:1", "nan:0"]),
        (np.array([1, 1.5], ml_dtypes.bfloat16), 1, (1,), ["1.5:1"]),
        (np.array([False, True]), 1, (1,), ["True:1"]),
        (np.array(3.5, np.float16), 1, (1,), ["3.5:0"]),
        (np.zeros((2, 0), np.float32), 1, (0,), []),
    ],
)
def test_ranks(array: Array, count: int, shape: tuple[int, ...], strings: list[str]) -> None:
    assert ranked(array, count) == (shape, strings)
    assert len(to_bytes(strings)) == sum(4 + len(one) for one in strings)


def test_the_configuration_tells_what_is_joined() -> None:
    joined = doubling([(1, 3), (2, 3), (4, 3)], most=4)
    with running([joined, doubling(version="2", dtype="float16")]) as server:
        config = ask(server.port, "/v2/models/m/versions/1/config").json
        assert (config["name"], config["max_batch_size"]) == ("m", 4)
        assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}]
        assert config["dynamic_batching"] == {"max_queue_delay_microseconds": 0}
        config = ask(server.port, "/v2/models/m/config").json
        assert config["max_batch_size"] == 0 and "dynamic_batching" not in config
        assert config["output"] == [{"name": "y", "data_type": "TYPE_FP16", "dims": [2, 3]}]
        assert ask(server.port, "/v2/models/q/config").status == 404
        assert ask(server.port, "/v2/models/m/config", {}).status == 405


def test_statistics_count_requests_runs_and_rows() -> None:
    joined = doubling([(1, 3), (2, 3), (4, 3)], most=4)
    with running([joined, doubling(version="2")]) as server:
        for x in (X, X, X[:1]):
            assert ask(server.port, "/v2/models/m/versions/1/infer", infer(x)).status == 200
        assert ask(server.port, "/v2/models/m/versions/1/infer", b"{").status == 400
        found = ask(server.port, "/v2/models/m/versions/1/stats").json["model_stats"]
        (stats,) = found
        assert (stats["inference_count"], stats["execution_count"]) == (5, 3)
        counts = {name: one["count"] for name, one in stats["inference_stats"].items()}
        phases = {"queue": 3, "compute_input": 3, "compute_infer": 3, "compute_output": 3}
        rest = {"success": 3, "fail": 1, "cache_hit": 0, "cache_miss": 0}
        assert counts == phases | rest
        whole = stats["inference_stats"]
        assert whole["success"]["ns"] >= sum(whole[name]["ns"] for name in phases) > 0
        sizes = {one["batch_size"]: one["compute_infer"]["count"] for one in stats["batch_stats"]}
        assert sizes == {1: 1, 2: 2} and stats["last_inference"] > 1_600_000_000_000
        assert [
            s["version"] for s in ask(server.port, "/v2/models/m/stats").json["model_stats"]
        ] == [
            "1",
            "2",
        ]
        assert len(ask(server.port, "/v2/models/stats").json["model_stats"]) == 2
        assert ask(server.port, "/v2/models/q/stats").status == 404
