"""Descriptions of the server and its models, in words of Triton and the Open Inference Protocol.

Objects of JSON whose keys are the fields of the messages that gRPC has for the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.base.version import VERSION
from treadle.serve.datatypes import NAMES
from treadle.serve.models import Servable
from treadle.serve.protocol import End
from treadle.serve.statistics import ServedStatistics

EXTENSIONS = ("binary_tensor_data", "classification", "model_configuration", "statistics")


def server() -> dict[str, Any]:
    """Name, version and extensions of the server."""
    return {"name": "treadle", "version": VERSION, "extensions": list(EXTENSIONS)}


def metadata(model: Servable, versions: Sequence[str]) -> dict[str, Any]:
    """Inputs and outputs; `versions` are those that the model's name has."""
    return {
        "name": model.name,
        "versions": list(versions),
        "platform": "treadle",
        "inputs": [end.described for end in model.inputs],
        "outputs": [end.described for end in model.outputs],
    }


def statistics(served: Sequence[tuple[Servable, ServedStatistics]]) -> dict[str, Any]:
    """Triton's statistics of models."""
    stats = []
    for model, counted in served:
        stats.append({"name": model.name, "version": model.version, **counted.data()})
    return {"model_stats": stats}


def configuration(model: Servable, delay: float) -> dict[str, Any]:
    """Triton's configuration of a model: where rows are joined, extents are those behind them.

    Args:
        model: that is described.
        delay: seconds that a request waits for others.
    """
    rows = model.most if model.most > 1 else 0

    def described(end: End) -> dict[str, Any]:
        dims = end.described["shape"][1:] if rows else end.described["shape"]
        return {"name": end.name, "data_type": f"TYPE_{NAMES[end.dtype]}", "dims": dims}

    content: dict[str, Any] = {
        "name": model.name,
        "platform": "treadle",
        "backend": "treadle",
        "version_policy": {"all": {}},
        "max_batch_size": rows,
        "input": [described(end) for end in model.inputs],
        "output": [described(end) for end in model.outputs],
    }
    if rows:
        content["dynamic_batching"] = {"max_queue_delay_microseconds": round(delay * 1e6)}
    return content


__all__ = ["configuration", "metadata", "server", "statistics"]
