"""Requests and responses of the Open Inference Protocol, version 2, with binary tensors.

Everything here is a function of bytes: no sockets, no models. The protocol is the one that KServe
documents (`/v2/models/<name>/infer`), its extension `binary_tensor_data` the one of Triton: a
JSON object, then the bytes of the tensors that have a `binary_data_size`, in order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from treadle.base.array import Array
from treadle.serve.classes import ranked, to_bytes
from treadle.serve.datatypes import DTYPES, NAMES, from_bytes, from_json, to_json

HEADER_LENGTH = b"inference-header-content-length"
"""Bytes of the JSON object, where tensors follow it."""
_JSON, _OCTETS = (
    (b"content-type", b"application/json"),
    (
        b"content-type",
        b"application/octet-stream",
    ),
)
_TOGETHER = 64 * 1024
"""Up to here a response is joined, and sent at once."""


class RequestRefusal(Exception):
    """A request that is answered with an error.

    Attributes:
        status: of HTTP.
        headers: that go with it.
    """

    def __init__(self, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


class Disconnected(Exception):
    """The client has gone before it had its answer."""


@dataclass(frozen=True, slots=True)
class End:
    """An input or output: its name, element type, and shape; None stands for any extent."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]

    @property
    def described(self) -> dict[str, Any]:
        """Name, datatype and shape as the metadata of a model has them."""
        shape = [-1 if d is None else d for d in self.shape]
        return {"name": self.name, "datatype": NAMES[self.dtype], "shape": shape}


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A client's request of a model.

    Attributes:
        inputs: in the model's order.
        outputs: the wanted ones by name, and whether as bytes.
        id: of the request, which the response repeats.
        classes: how many classes of each row are wanted in place of an output, by its name.
    """

    inputs: tuple[Array, ...]
    outputs: Mapping[str, bool]
    id: str | None = None
    classes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """Status, headers, and a body in parts."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    parts: tuple[bytes | memoryview, ...]

    @property
    def length(self) -> int:
        """Bytes of the body."""
        return sum(len(part) for part in self.parts)


def json_response(content: object, status: int = 200, *headers: tuple[bytes, bytes]) -> Response:
    """A JSON document."""
    body = _ENCODER.encode(content).encode()
    return Response(status, (_JSON, *headers), (body,))


def error_response(refusal: RequestRefusal) -> Response:
    """An error as the protocol has it."""
    return json_response({"error": str(refusal)}, refusal.status, *refusal.headers)


# -- reading ---------------------------------------------------------------------------------------


def read_request(
    body: memoryview,
    header_length: bytes | None,
    inputs: Sequence[End],
    outputs: Sequence[End],
    most_json: int,
) -> ModelRequest:
    """The request in a body.

    Args:
        body: all of it.
        header_length: what the client says the JSON object takes of it; None for all. With 0 the
            body is the model's only input, bare.
        inputs, outputs: of the model.
        most_json: bytes of JSON that are parsed.

    Raises:
        Refusal: the request is malformed, or does not fit the model.
    """
    length = len(body) if header_length is None else _length(header_length, len(body))
    if header_length is not None and not length and body:
        return _bare(body, inputs, outputs)
    if length > most_json:
        raise RequestRefusal(
            413, f"the JSON has {length} bytes, {most_json} are taken: send binary data"
        )
    content = _parsed(body[:length])
    parameters = _field(content, "parameters", dict) or {}
    binary = bool(_field(parameters, "binary_data_output", bool))
    behind = _Behind(body[length:])
    request = read_content(content, behind, inputs, outputs, binary)
    if behind.data:
        raise RequestRefusal(400, f"{len(behind.data)} bytes follow the last tensor")
    return request


Elements = Callable[[Mapping[str, Any], End, tuple[int, ...]], Array]
"""The tensor of an entry, for an input of this shape."""


def read_content(
    content: Mapping[str, Any],
    elements: Elements,
    inputs: Sequence[End],
    outputs: Sequence[End],
    binary: bool,
) -> ModelRequest:
    """The request in an object of the protocol.

    Args:
        content: `id`, `inputs` and `outputs`.
        elements: finds the tensors; called in the order of `inputs` in the object.
        inputs, outputs: of the model.
        binary: whether outputs come as bytes, unless an entry says otherwise.

    Raises:
        Refusal: the request is malformed, or does not fit the model.
    """
    id_ = _field(content, "id", str)
    given = _tensors(content, elements, {end.name: end for end in inputs})
    missing = [end.name for end in inputs if end.name not in given]
    if missing:
        raise RequestRefusal(400, f"input {', '.join(missing)} is missing")
    wanted, classes = _wanted(_field(content, "outputs", list), outputs, binary)
    arrays = tuple(given[end.name] for end in inputs)
    return ModelRequest(arrays, wanted, id_, classes)


def _length(text: bytes, most: int) -> int:
    value = int(text) if text.isdigit() and len(text) < 20 else -1
    if not 0 <= value <= most:
        shown = text[:40].decode("latin-1")
        raise RequestRefusal(
            400, f"Inference-Header-Content-Length is {shown!r} in a body of {most}"
        )
    return value


def _bare(body: memoryview, inputs: Sequence[End], outputs: Sequence[End]) -> ModelRequest:
    """A body without JSON, the only input's bytes; extents left open follow from their number."""
    if len(inputs) != 1:
        names = ", ".join(end.name for end in inputs)
        raise RequestRefusal(400, f"a bare tensor needs a model of one input, not of {names}")
    (end,) = inputs
    if end.shape.count(None) > 1:
        raise RequestRefusal(400, f"the shape of {end.name} does not follow from its bytes")
    size = end.dtype.itemsize * math.prod(d for d in end.shape if d is not None)
    if len(body) % size if None in end.shape else len(body) != size:
        raise RequestRefusal(400, f"{end.name} has {len(body)} bytes, not {_spelled(end)}")
    shape = [len(body) // size if d is None else d for d in end.shape]
    array = _from_bytes(end, body).reshape(shape)
    return ModelRequest((array,), {o.name: True for o in outputs})


def _parsed(text: memoryview) -> dict[str, Any]:
    try:
        content = _DECODER.decode(str(text, "utf-8"))
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise RequestRefusal(400, f"the JSON is malformed: {reason}") from None
    if not isinstance(content, dict):
        raise RequestRefusal(400, "the JSON is not an object")
    return content


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


# Made once: as much work as a small document.
_DECODER = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_unique)
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def _field(content: Mapping[str, Any], name: str, kind: type) -> Any:
    """An optional field.

    Raises:
        Refusal: it is of another kind.
    """
    value = content.get(name)
    if value is None or type(value) is kind:
        return value
    raise RequestRefusal(400, f"{name} must be {_KINDS[kind]}")


_KINDS = {str: "a string", dict: "an object", list: "an array", bool: "true or false"}
_KINDS[int] = "an integer"


def _tensors(
    content: Mapping[str, Any], elements: Elements, known: Mapping[str, End]
) -> dict[str, Array]:
    """Inputs by name."""
    given: dict[str, Array] = {}
    for entry in _field(content, "inputs", list) or ():
        if not isinstance(entry, dict):
            raise RequestRefusal(400, "an input must be an object")
        name = _field(entry, "name", str)
        end = known.get(name)
        if end is None:
            raise RequestRefusal(400, f"there is no input {_short(name)}, but {', '.join(known)}")
        if name in given:
            raise RequestRefusal(400, f"input {name} is there twice")
        shape = _shape(entry, end)
        given[name] = elements(entry, end, shape)
    return given


def _short(name: object) -> str:
    text = repr(name)
    return text if len(text) <= 80 else text[:80] + "..."


def _shape(entry: Mapping[str, Any], end: End) -> tuple[int, ...]:
    kind, shape = _field(entry, "datatype", str), _field(entry, "shape", list)
    if kind != NAMES[end.dtype]:
        known = kind in DTYPES or kind == "BYTES"
        saw = kind if known else f"datatype {_short(kind)}"
        raise RequestRefusal(400, f"input {end.name} is {NAMES[end.dtype]}, not {saw}")
    if shape is None or not all(type(d) is int for d in shape):
        raise RequestRefusal(400, f"the shape of {end.name} must be an array of integers")
    pairs = zip(shape, end.shape, strict=False)
    if len(shape) != len(end.shape) or any(d < 0 or w not in (None, d) for d, w in pairs):
        raise RequestRefusal(400, f"input {end.name} is {_spelled(end)}, not {_short(shape)}")
    return tuple(shape)


def _spelled(end: End) -> str:
    extents = ", ".join("any" if d is None else str(d) for d in end.shape)
    return f"{NAMES[end.dtype]} [{extents}]"


class _Behind:
    """The bytes behind a JSON object, which tensors take one by one."""

    def __init__(self, data: memoryview) -> None:
        self.data = data

    def __call__(self, entry: Mapping[str, Any], end: End, shape: tuple[int, ...]) -> Array:
        size = _field(_field(entry, "parameters", dict) or {}, "binary_data_size", int)
        if size is None:
            return _from_json(end, entry.get("data"), shape)
        if "data" in entry:
            raise RequestRefusal(400, f"input {end.name} has data and binary_data_size")
        check_size(end, shape, size, "binary_data_size is")
        if size > len(self.data):
            held = len(self.data)
            raise RequestRefusal(400, f"the body ends in input {end.name}: {held} of {size} bytes")
        own, self.data = self.data[:size], self.data[size:]
        return from_octets(own, end, shape)


def check_size(end: End, shape: tuple[int, ...], size: int, saw: str) -> None:
    """Refuse a tensor that has other bytes than its shape takes.

    Raises:
        Refusal: it has.
    """
    wanted = math.prod(shape) * end.dtype.itemsize
    if size != wanted:
        raise RequestRefusal(400, f"input {end.name} takes {wanted} bytes, {saw} {size}")


def from_octets(data: memoryview, end: End, shape: tuple[int, ...]) -> Array:
    """An input out of as many bytes as it takes.

    Raises:
        Refusal: they are not elements.
    """
    return _from_bytes(end, data).reshape(shape)


def _from_bytes(end: End, data: memoryview) -> Array:
    try:
        return from_bytes(data, end.dtype)
    except ValueError as error:
        raise RequestRefusal(400, f"input {end.name}: {error}") from None


def _from_json(end: End, data: object, shape: tuple[int, ...]) -> Array:
    try:
        array = from_json(data, end.dtype)
    except ValueError as error:
        raise RequestRefusal(400, f"input {end.name}: {error}") from None
    if array.size != math.prod(shape) or (array.ndim != 1 and array.shape != shape):
        raise RequestRefusal(
            400, f"input {end.name} says {list(shape)}, its data is {list(array.shape)}"
        )
    return array.reshape(shape)


def _wanted(
    entries: list[Any] | None, outputs: Sequence[End], binary: bool
) -> tuple[dict[str, bool], dict[str, int]]:
    """Return whether the wanted outputs come as bytes, and of which ones classes are wanted."""
    known = [end.name for end in outputs]
    if not entries:
        return dict.fromkeys(known, binary), {}
    wanted: dict[str, bool] = {}
    classes: dict[str, int] = {}
    for entry in entries:
        if not isinstance(entry, dict):
            raise RequestRefusal(400, "an output must be an object")
        name = _field(entry, "name", str)
        if name not in known:
            raise RequestRefusal(400, f"there is no output {_short(name)}, but {', '.join(known)}")
        if name in wanted:
            raise RequestRefusal(400, f"output {name} is there twice")
        parameters = _field(entry, "parameters", dict) or {}
        count = _field(parameters, "classification", int)
        if count is not None and count < 1:
            raise RequestRefusal(400, f"output {name}: classification is {count}, not 1 or more")
        if count is not None:
            classes[name] = count
        own = _field(parameters, "binary_data", bool)
        wanted[name] = binary if own is None else own
    return wanted, classes


# -- writing ---------------------------------------------------------------------------------------


def write_response(
    about: Mapping[str, Any], request: ModelRequest, outputs: Mapping[str, Array]
) -> Response:
    """The results that a request wants.

    Args:
        about: name and version of the model.
        request: what was asked.
        outputs: all results, dense.

    Raises:
        Refusal: JSON cannot hold a result.
    """
    entries: list[dict[str, Any]] = []
    tensors: list[memoryview | bytes] = []
    for name, binary in request.outputs.items():
        array = outputs[name]
        if name in request.classes:
            entries.append(_classified(name, array, request.classes[name], binary, tensors))
            continue
        entry: dict[str, Any] = {"name": name, "shape": list(array.shape)}
        entry["datatype"] = NAMES[array.dtype]
        if binary:
            entry["parameters"] = {"binary_data_size": array.nbytes}
            if array.nbytes:
                # Elements of ml_dtypes have no buffer protocol of their own.
                tensors.append(array.reshape(-1).view(np.uint8).data)
        else:
            entry["data"] = _listed(name, array)
        entries.append(entry)
    content = dict(about) if request.id is None else {**about, "id": request.id}
    text = _ENCODER.encode({**content, "outputs": entries}).encode()
    if not any(request.outputs.values()):
        return Response(200, (_JSON,), (text,))
    headers = (_OCTETS, (HEADER_LENGTH, str(len(text)).encode()))
    if sum(map(len, tensors)) <= _TOGETHER:
        return Response(200, headers, (b"".join((text, *tensors)),))
    return Response(200, headers, (text, *tensors))


def _classified(
    name: str, array: Array, count: int, binary: bool, tensors: list[memoryview | bytes]
) -> dict[str, Any]:
    """The entry of an output as classes; bytes are added to those of the tensors."""
    shape, strings = ranked(array, count)
    entry: dict[str, Any] = {"name": name, "shape": list(shape), "datatype": "BYTES"}
    if not binary:
        return {**entry, "data": strings}
    data = to_bytes(strings)
    if data:
        tensors.append(data)
    return {**entry, "parameters": {"binary_data_size": len(data)}}


def _listed(name: str, array: Array) -> list[Any]:
    try:
        return to_json(array)
    except ValueError as error:
        raise RequestRefusal(400, f"output {name}: {error}; ask for binary_data") from None


__all__ = [
    "HEADER_LENGTH",
    "Disconnected",
    "Elements",
    "End",
    "ModelRequest",
    "RequestRefusal",
    "Response",
    "check_size",
    "error_response",
    "from_octets",
    "json_response",
    "read_content",
    "read_request",
    "write_response",
]
