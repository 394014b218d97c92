"""Requests and results of inference between messages and arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.serve.application import Outputs
from treadle.serve.classes import ranked, to_bytes
from treadle.serve.datatypes import NAMES
from treadle.serve.protocol import (
    End,
    ModelRequest,
    RequestRefusal,
    check_size,
    from_octets,
    read_content,
)
from treadle.serve.rpc.messages import message

_CONTENTS = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "BOOL": "bool_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}
"""Fields of elements as numbers; the protocol has none for 16-bit floats."""


def request_of(asked: Any, inputs: Sequence[End], outputs: Sequence[End]) -> ModelRequest:
    """Return what a `ModelInferRequest` asks of a model with these ends.

    Raises:
        Refusal: it is malformed, or does not fit the model.
    """
    content: dict[str, Any] = {
        "id": asked.id,
        "inputs": [_entry(one) for one in asked.inputs],
        "outputs": [
            {"name": one.name, "parameters": _parameters(one.parameters)} for one in asked.outputs
        ],
    }
    raw = asked.raw_input_contents
    if raw and len(raw) != len(asked.inputs):
        counts = f"{len(raw)} for {len(asked.inputs)} inputs"
        raise RequestRefusal(
            400, f"raw_input_contents are those of all inputs or none, not {counts}"
        )
    octets = iter(raw)

    def elements(entry: Mapping[str, Any], end: End, shape: tuple[int, ...]) -> Array:
        if not raw:
            return _from_contents(entry["contents"], end, shape)
        data = next(octets)
        check_size(end, shape, len(data), "raw_input_contents has")
        return from_octets(memoryview(data), end, shape)

    return read_content(content, elements, inputs, outputs, binary=True)


def _entry(given: Any) -> dict[str, Any]:
    if "shared_memory_region" in given.parameters:
        raise RequestRefusal(400, f"input {given.name}: this server shares no memory with clients")
    entry = {"name": given.name, "datatype": given.datatype, "shape": list(given.shape)}
    return {**entry, "contents": given.contents}


def _parameters(given: Any) -> dict[str, Any]:
    found = {}
    for name, value in given.items():
        kind = value.WhichOneof("parameter_choice")
        found[name] = getattr(value, kind) if kind else None
    if "shared_memory_region" in found:
        raise RequestRefusal(400, "this server shares no memory with clients")
    return found


def _from_contents(contents: Any, end: End, shape: tuple[int, ...]) -> Array:
    """An input whose elements came as numbers."""
    kind = NAMES[end.dtype]
    field = _CONTENTS.get(kind)
    if field is None:
        raise RequestRefusal(400, f"input {end.name}: {kind} comes in raw_input_contents")
    given = getattr(contents, field)
    if len(given) != np.prod(shape, dtype=object):
        raise RequestRefusal(400, f"input {end.name} says {list(shape)}, {field} has {len(given)}")
    if end.dtype.kind in "iu" and len(given):
        least, most = np.iinfo(end.dtype).min, np.iinfo(end.dtype).max
        if min(given) < least or max(given) > most:
            raise RequestRefusal(400, f"input {end.name}: a number lies outside of {kind}")
    return np.array(given, end.dtype).reshape(shape)


def response_of(about: Mapping[str, str], request: ModelRequest, outputs: Outputs) -> Any:
    """A `ModelInferResponse` with the results that a request wants, as bytes."""
    made = message("ModelInferResponse")(**about, id=request.id or "")
    for name in request.outputs:
        array = outputs[name]
        shape: tuple[int, ...] = array.shape
        if name in request.classes:
            shape, strings = ranked(array, request.classes[name])
            kind, data = "BYTES", to_bytes(strings)
        else:
            kind, data = NAMES[array.dtype], array.tobytes()
        made.outputs.add(name=name, datatype=kind, shape=shape)
        made.raw_output_contents.append(data)
    return made


__all__ = ["request_of", "response_of"]
