"""Models that MegEngine's runtime dumped, written here field by field as its schemas say."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.base.errors import CheckpointError, TreadleError, UnsupportedOp
from treadle.interop.megengine import DumpedModel, read_model
from treadle.interop.megengine.dumped.operators import xxh64

Fields = dict[int, tuple[str, Any]]
"""Fields of a table: a format of `struct` and a number, or "table", "text", "raw" and so on."""


def table(fields: Fields) -> bytes:
    """A table behind its list of fields; what it refers to stands behind it."""
    inline, places, later = b"", {}, []
    for number, (kind, value) in fields.items():
        form = kind if len(kind) == 1 else "I"
        inline += b"\0" * (-len(inline) % struct.calcsize(form))
        places[number] = 4 + len(inline)
        if len(kind) > 1:
            later.append((len(inline), _body(kind, value)))
        inline += struct.pack("<" + form, 0 if len(kind) > 1 else value)
    slots = [places.get(i, 0) for i in range(max(fields, default=-1) + 1)]
    listed = struct.pack(f"<{len(slots) + 2}H", 4 + 2 * len(slots), 4 + len(inline), *slots)
    start, made = len(listed), bytearray(listed + struct.pack("<i", len(listed)) + inline)
    for place, (body, inside) in later:
        at = start + 4 + place
        made[at : at + 4] = struct.pack("<I", len(made) + inside - at)
        made += body
    return bytes(made)


def begin(made: bytes) -> int:
    """Where a table that `table` wrote begins."""
    return struct.unpack_from("<H", made)[0]


def _body(kind: str, value: Any) -> tuple[bytes, int]:
    if kind == "table":
        made = table(value)
        return made, begin(made)
    if kind in ("text", "raw"):
        raw = value.encode() if kind == "text" else value
        return struct.pack("<I", len(raw)) + raw, 0
    if kind.startswith("structs "):
        form = "<" + kind.partition(" ")[2]
        packed = b"".join(struct.pack(form, *each) for each in value)
        return struct.pack("<I", len(value)) + packed, 0
    each = [_body(kind.removesuffix("s"), v) for v in value]
    head, tail = struct.pack("<I", len(each)), b""
    for i, (body, inside) in enumerate(each):
        head += struct.pack("<I", 4 * (len(each) - i) + len(tail) + inside)
        tail += body
    return head + tail, 0


def root(fields: Fields, identifier: bytes) -> bytes:
    """A whole buffer behind its size."""
    made = table(fields)
    body = struct.pack("<I", 8 + begin(made)) + identifier + made
    return struct.pack("<I", len(body)) + body


class Net:
    """The same network, of the same values, as operators: (type, inputs, parameters, values)."""

    def __init__(self) -> None:
        rng = np.random.RandomState(0)
        self.weight = rng.randn(2, 2, 1, 3, 3).astype("float32")
        self.bias = rng.randn(1, 4, 1, 1).astype("float32")
        self.matrix = rng.randn(36, 5).astype("float32")
        self.x = rng.rand(2, 2, 6, 6).astype("float32")
        self.operators: list[tuple[str, list[int], Fields | None, Any]] = [
            ("Host2DeviceCopy", [], {}, ("data", (2, 2, 6, 6), "float32")),
            ("SharedDeviceTensor", [], None, ("conv.weight", self.weight)),
            ("ConvolutionV2", [0, 1], {1: ("I", 1), 2: ("I", 1), 7: ("I", 1)}, None),
            ("SharedDeviceTensorWithFormat", [], None, ("", self.bias)),
            ("Elemwise", [2, 3], {0: ("I", 37)}, None),  # FUSE_ADD_RELU
            ("PoolingV1", [4], {3: ("I", 2), 4: ("I", 2)}, None),
            ("ImmutableTensor", [], None, ("", np.array([2, 36], "int32"))),
            ("ReshapeV1", [5, 6], {}, None),
            ("SharedDeviceTensor", [], None, ("fc.weight", self.matrix)),
            ("MatrixMulV2", [7, 8], {}, None),
            ("ReduceV2", [9], {0: ("I", 4), 1: ("i", 1)}, None),
            ("AxisAddRemove", [10], {0: ("structs b3xi", [(1, 1), (0, 0)])}, None),
            ("TypeCvtV2", [11], {0: ("b", 9)}, None),
        ]
        self.weights = {"conv.weight": self.weight, "fc.weight": self.matrix}

    def expected(self) -> Any:
        x = F.conv2d(mge.tensor(self.x), mge.tensor(self.weight), None, 1, 1, groups=2)
        x = F.max_pool2d(F.relu(x + mge.tensor(self.bias)), 2)
        x = F.max(F.reshape(x, (2, 36)) @ mge.tensor(self.matrix), 1)
        return F.expand_dims(x, 0).astype("float16")

    def tensor(self, value: Any, *, first: bool) -> tuple[Fields, bytes]:
        name, data = value[0], value[1]
        raw = data.tobytes() if isinstance(data, np.ndarray) else b""
        shape = data.shape if isinstance(data, np.ndarray) else data
        dtype = {"float32": 0, "int32": 4}[str(data.dtype) if raw else "float32"]
        fields: Fields = {1: ("structs I", [(n,) for n in shape])}
        fields[3] = ("table", {0: ("b", dtype)})
        if name:
            fields[0] = ("text", name)
        fields |= {4: ("I", len(raw))} if first else {6: ("raw", raw)}
        return fields, raw

    def first(self) -> bytes:
        """A file of the first version: values, then the graph, types by number."""
        values, operators = b"", []
        for kind, inputs, parameters, value in self.operators:
            op: Fields = {0: ("Q", xxh64(kind.encode() + b"\0"))}
            op[3] = ("structs I", [(i,) for i in inputs])
            if parameters is not None:
                op |= {1: ("B", 1), 2: ("table", parameters)}
            if value is not None:
                fields, raw = self.tensor(value, first=True)
                values += raw
                op[7] = ("tables", [fields])
            operators.append(op)
        graph: Fields = {0: ("I", 100900), 3: ("tables", operators)}
        graph[4] = ("structs II", [(len(operators) - 1, 0)])
        head = b"MGBS" + struct.pack("<IQ", 0, len(values))
        return head + values + root(graph, b"mgb1")

    def second(self) -> bytes:
        """A file of the second version: one buffer, types by name."""
        operators = []
        for i, (kind, inputs, parameters, value) in enumerate(self.operators):
            op: Fields = {0: ("text", kind), 2: ("text", f"op{i}")}
            op[7] = ("structs I", [(n,) for n in inputs])
            op[8] = ("structs I", [(i,)])
            if parameters is not None:
                op |= {3: ("B", 1), 4: ("table", parameters)}
            if value is not None:
                op[11] = ("tables", [self.tensor(value, first=False)[0]])
            operators.append(op)
        graph: Fields = {0: ("I", 101100), 1: ("I", 2), 2: ("tables", operators)}
        graph[4] = ("tables", [{0: ("I", len(operators) - 1)}])
        return root(graph, b"mgv2")


@pytest.mark.parametrize("version", ["first", "second", "with cases"])
def test_weights_and_graph_of_a_dumped_model(version: str, tmp_path: Path) -> None:
    net, path = Net(), tmp_path / "model.mge"
    raw = net.second() if version == "second" else net.first()
    cases = b"mgbtest0" + struct.pack("<I", 0)
    path.write_bytes(cases + raw if version == "with cases" else raw)
    model = read_model(path)
    assert isinstance(model, DumpedModel)
    assert model.inputs == {"data": (2, 2, 6, 6)}
    for name, value in net.weights.items():
        np.testing.assert_array_equal(model.weights[name].numpy(), value)
    assert len(model.weights) == 3  # the bias has no name of its own
    assert [op.kind for op in model.operators][2:6:3] == ["Convolution", "Pooling"]
    x, expected = mge.tensor(net.x), net.expected().numpy()
    (found,) = model(x)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-2)
    (compiled,) = mge.jit.compile(model)(data=x)
    np.testing.assert_allclose(compiled.numpy(), expected, rtol=1e-2)
    assert len(list(model.parameters())) == 3
    with pytest.raises(TypeError, match="takes data"):
        model()


def test_what_has_no_counterpart_says_so_and_weights_are_read(tmp_path: Path) -> None:
    net, path = Net(), tmp_path / "model.mge"
    net.operators.append(("NewThing", [12], None, None))
    path.write_bytes(net.second())
    model = read_model(path)
    assert len(model.weights) == 3
    with pytest.raises(UnsupportedOp, match="op13 of type NewThing"):
        model(mge.tensor(net.x))
    net = Net()
    net.operators[2] = ("ConvolutionV2", [0, 1], {8: ("I", 7)}, None)  # NCHW44
    path.write_bytes(net.second())
    with pytest.raises(UnsupportedOp, match="format 7"):
        read_model(path)(mge.tensor(net.x))


def test_other_readers_say_who_reads_such_files(tmp_path: Path) -> None:
    path = tmp_path / "model.mge"
    for raw in (Net().first(), Net().second()):
        path.write_bytes(raw)
        with pytest.raises(CheckpointError, match="read_model"):
            mge.load(str(path))
    path.write_bytes(b"anything else")
    with pytest.raises(CheckpointError, match="not a model that MegEngine dumped"):
        read_model(path)


@pytest.mark.parametrize("version", ["first", "second"])
def test_damaged_files_are_refused_or_read(version: str, tmp_path: Path) -> None:
    raw, path, rng = getattr(Net(), version)(), tmp_path / "m.mge", np.random.RandomState(1)
    for length in range(0, len(raw), 37):
        path.write_bytes(raw[:length])
        with pytest.raises(CheckpointError):
            read_model(path)
    for _ in range(200):
        bad = bytearray(raw)
        bad[rng.randint(len(raw))] = rng.randint(256)
        bad[rng.randint(len(raw) - 2500, len(raw))] = rng.randint(256)
        path.write_bytes(bytes(bad))
        with contextlib.suppress(TreadleError):
            model = read_model(path)
            if list(model.inputs.values()) == [(2, 2, 6, 6)]:
                model(mge.tensor(Net().x))


LIES: dict[str, tuple[int, list[int], Fields, str]] = {
    "a value nobody makes": (4, [2, 77], {}, "reads what no operator made before"),
    "its own result": (4, [2, 4], {}, "reads what no operator made before"),
    "one operand too many": (4, [2, 3, 3, 3], {0: ("I", 37)}, "does not take what it is given"),
    "no operand": (4, [], {0: ("I", 0)}, "does not take what it is given"),
    "a mode that is none": (10, [9], {0: ("I", 400), 1: ("i", 1)}, "tuple index out of range"),
    "an axis that is none": (10, [9], {0: ("I", 4), 1: ("i", 99)}, "axis 99 is out of"),
    "a border without end": (2, [0, 1], {1: ("I", 2**29), 7: ("I", 1)}, "wider than 1024"),
    "another, of a pool": (5, [4], {1: ("I", 2**29)}, "wider than 1024"),
}


@pytest.mark.parametrize("lie", LIES)
def test_operators_that_do_not_fit_are_refused(lie: str, tmp_path: Path) -> None:
    """Python's own errors came out of the reader, and a border of 2^29 columns took minutes."""
    net, path = Net(), tmp_path / "model.mge"
    place, inputs, parameters, message = LIES[lie]
    net.operators[place] = (net.operators[place][0], inputs, parameters, None)
    for raw in (net.first(), net.second()):
        path.write_bytes(raw)
        with pytest.raises(TreadleError, match=message):
            read_model(path)(mge.tensor(net.x))


def test_types_are_numbered_as_in_published_files() -> None:
    for text, number in (
        (b"Host2DeviceCopy", 0x9F9DB55D661D5F11),
        (b"Elemwise", 0xD6C488C11172EC08),
        (b"ConvolutionBackwardFilter", 0xAA1F9F08BAE07230),
    ):
        assert xxh64(text) == number
    # From the reference implementation, seed 0; the second is of more than 32 bytes.
    assert xxh64(b"", 0) == 0xEF46DB3751D8E999
    assert xxh64(b"xxhash" * 6, 0) == 0x693A93F32C7374F7


def test_a_value_that_its_operator_does_not_make_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.mge"
    path.write_bytes(Net().second())
    model = read_model(path)
    last = model.operators[-1]
    model.operators[-1] = replace(last, outputs=(99, *last.outputs))
    with pytest.raises(CheckpointError, match="value 12 is read"):
        model(mge.tensor(Net().x))
