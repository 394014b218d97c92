"""Pickles made to run code, to take memory, or to leave objects that are traps."""

from __future__ import annotations

import builtins
import os
import pickle
import random
import struct
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serialization.conftest import loaded
from tests.serialization.megengine_pickles import VERSIONS, checkpoint, pickled

from treadle.base.errors import CheckpointError, DeviceError
from treadle.serialization import load, pickle_machine
from treadle.tensor import Parameter, Tensor


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def name(module: str, attribute: str) -> bytes:
    """A name that may have dots, as protocol 4 writes them."""
    return text(module) + text(attribute) + b"\x93"


def call(module: str, attribute: str, arguments: bytes = b")") -> bytes:
    return name(module, attribute) + arguments + b"R"


def refused(raw: bytes, problem: str = "", **kwargs: Any) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        loaded(raw, **kwargs)
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 1000
    return caught.value


TENSOR = name("megengine.tensor", "Tensor")
F4 = call("numpy", "dtype", b"(" + text("f4") + b"\x89\x88t") + (
    b"(K\x03" + text("<") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
)
EMPTY = call(
    "numpy._core.multiarray", "_reconstruct", b"(" + name("numpy", "ndarray") + b"K\x00\x85C\x01bt"
)


def array(
    shape: bytes = b"K\x02\x85", dtype: bytes = F4, data: bytes = b"C\x08" + bytes(8)
) -> bytes:
    return EMPTY + b"(K\x01" + shape + dtype + b"\x89" + data + b"tb"


# -- code ----------------------------------------------------------------------------------------


class Attack:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_executed(protocol: int, tmp_path: Path) -> None:
    witness = tmp_path / "executed"
    attack = Attack(f"touch {witness}")
    path = tmp_path / "attack.pkl"
    for hidden in (attack, {"weight": attack}, [np.ones(3), (attack,)], {1: {2: [attack]}}):
        path.write_bytes(pickle.dumps(hidden, protocol))
        with pytest.raises(CheckpointError, match="system") as caught:
            load(path)
        assert "the pickle names" in str(caught.value) and "if you trust" in caught.value.hint
    assert not witness.exists()


FORBIDDEN = [
    ("os", "system"),
    ("posix", "system"),
    ("subprocess", "Popen"),
    ("builtins", "eval"),
    ("builtins", "exec"),
    ("builtins", "getattr"),
    ("builtins", "__import__"),
    ("builtins", "open"),
    ("builtins", "type"),
    ("builtins", "range"),
    ("builtins", "map"),
    ("__builtin__", "apply"),
    ("operator", "attrgetter"),
    ("operator", "methodcaller"),
    ("functools", "partial"),
    ("importlib", "import_module"),
    ("types", "FunctionType"),
    ("types", "CodeType"),
    ("copyreg", "__newobj__"),
    ("copyreg", "add_extension"),
    ("copyreg", "pickle"),
    ("pickle", "loads"),
    ("weakref", "finalize"),
    ("numpy", "load"),
    ("numpy", "zeros"),
    ("numpy", "object_"),
    ("numpy", "void"),
    ("numpy", "fromfile"),
    ("numpy._core.multiarray", "zeros"),
    ("numpy.testing._private.utils", "runstring"),
    ("numpy.f2py.capi_maps", "getinit"),
    ("collections", "UserDict"),
    ("collections", "OrderedDict.__init__"),
    ("collections", "OrderedDict.__init__.__globals__"),
    ("collections", "_sys.modules"),
    ("_codecs", "decode"),
    ("_codecs", "encode.__self__"),
    ("megengine.tensor", "Tensor.__reduce_ex__"),
    ("megengine.tensor", "np.load"),
    ("megengine.tensor", "get_logger"),
    ("megengine.serialization", "load"),
    ("megengine", "load"),
    ("megengine.module", "Linear"),
    ("treadle.tensor", "_rebuild"),
    ("treadle.serialization", "load"),
    ("treadle.serialization.pickled_tensors", "Tensors"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch.serialization", "load"),
    ("__main__", "anything"),
    ("", ""),
    ("numpy", ""),
    ("..numpy", "dtype"),
    ("numpy\n", "dtype"),
]


@pytest.mark.parametrize(("module", "attribute"), FORBIDDEN)
def test_names_that_are_refused(module: str, attribute: str) -> None:
    before = set(sys.modules)
    for raw in (
        name(module, attribute) + b".",
        call(module, attribute, b"(" + text("x") + b"t") + b".",
        b"(" + text("a") + call(module, attribute) + b"d.",
    ):
        error = refused(b"\x80\x04" + raw, "the pickle names ")
        assert error.hint
    if "\n" not in module:
        refused(f"\x80\x02c{module}\n{attribute}\n.".encode("latin-1"), "the pickle names ")
        refused(f"(i{module}\n{attribute}\n.".encode(), "the pickle names ")
    assert set(sys.modules) == before


CALLS: dict[str, tuple[bytes, str]] = {
    "text": (text("os.system") + b")R.", "a str is called"),
    "a result": (call("collections", "OrderedDict") + b")R.", "a OrderedDict is called"),
    "a tensor": (TENSOR + b"(" + array() + F4 + text("cpux") + b"t\x81)R.", "a Tensor is called"),
    "a type of NumPy": (name("numpy", "float32") + b"K\x01\x85R.", "a type is called"),
    "ndarray": (call("numpy", "ndarray", b"J\xff\xff\xff\x7f\x85") + b".", "only named"),
    "object": (call("builtins", "object") + b".", "only named"),
    "bytes of a number": (call("builtins", "bytes", b"J\xff\xff\xff\x7f\x85") + b".", "bytes is"),
    "bytearray of a number": (
        call("builtins", "bytearray", b"J\xff\xff\xff\x7f\x85") + b".",
        "bytea",
    ),
    "complex of text": (call("builtins", "complex", text("1j") + b"\x85") + b".", "complex number"),
    "complex of 2^2000": (
        call("builtins", "complex", b"\x8a\xfb" + b"\x7f" * 251 + b"K\x00\x86") + b".",
        "complex number",
    ),
    "set of a dict": (call("builtins", "set", b"}\x85") + b".", "a set is malformed"),
    "codec": (call("_codecs", "encode", text("x") + text("rot13") + b"\x86") + b".", "_codecs"),
    "encode what is no byte": (
        call("_codecs", "encode", text("\u1234") + text("latin1") + b"\x86") + b".",
        "text in place of bytes",
    ),
    "arguments in a list": (name("collections", "OrderedDict") + b"]R.", "the arguments of"),
    "keywords": (name("collections", "OrderedDict") + b")}" + text("a") + b"Ns\x92.", "by keyword"),
    "obj without a class": (b"(o.", "is called"),
    "obj of text": (b"(" + text("x") + b"o.", "is called"),
    "reconstructor of dict": (
        call("copyreg", "_reconstructor", TENSOR + name("builtins", "set") + b"}\x87") + b".",
        "copyreg",
    ),
    "reconstructor of text": (
        call("copyreg", "_reconstructor", text("x") + name("builtins", "object") + b"N\x87") + b".",
        "copyreg",
    ),
    "reconstructor of object": (
        call("copyreg", "_reconstructor", name("builtins", "object") * 2 + b"N\x87") + b".",
        "only named",
    ),
    "QuantMode": (
        call("megengine.quantization.utils", "QuantMode", text("x") + b"\x85") + b".",
        "Qu",
    ),
    "name that is no text": (b"K\x01K\x02\x93.", "a name is not text"),
    "class instead of an object": (TENSOR + b".", "not an object of it"),
    "class in a list": (b"]" + name("collections", "OrderedDict") + b"a.", "not an object of it"),
}


@pytest.mark.parametrize("case", CALLS)
def test_calls_that_are_refused(case: str) -> None:
    raw, problem = CALLS[case]
    refused(b"\x80\x04" + raw, problem)


STATE = b"}" + text("__setstate__") + call("collections", "OrderedDict") + b"s"
SLOTS = b"N}" + text("__init__") + text("x") + b"s\x86"


@pytest.mark.parametrize("state", [STATE, SLOTS, b"N", b"}", b")"], ids=repr)
@pytest.mark.parametrize(
    "target",
    [
        name("builtins", "set"),
        name("collections", "OrderedDict"),
        call("collections", "OrderedDict"),
        name("megengine.tensor", "Parameter"),
        name("_codecs", "encode"),
        name("numpy", "dtype"),
        name("numpy", "float32"),
        name("megengine.core._imperative_rt", "pybfloat16"),
        text("x"),
        b"]",
        b"}",
        b"N",
    ],
    ids=repr,
)
def test_state_is_given_to_nothing_else(target: bytes, state: bytes) -> None:
    functions = {f: getattr(cls, f) for cls in (Tensor, Parameter) for f in ("__init__", "__new__")}
    refused(b"\x80\x04" + target + state + b"b.")
    for cls in (Tensor, Parameter):
        assert "__setstate__" not in vars(cls)
        assert all(getattr(cls, f) is functions[f] for f in functions)


TENSORS: dict[str, tuple[bytes, str]] = {
    "no data": (TENSOR + b")\x81.", "has no state"),
    "no array": (
        TENSOR + b"(K\x03" + F4 + text("cpux") + b"t\x81.",
        "the data of a tensor is a int",
    ),
    "unfilled array": (TENSOR + b"(" + EMPTY + b"NNt\x81.", "or missing"),
    "one argument": (TENSOR + b"(" + array() + b"t\x81.", "1 constructor arguments"),
    "dtype a class": (TENSOR + b"(" + array() + TENSOR + b"Nt\x81.", "dtype of a tensor"),
    "dtype another": (TENSOR + b"(" + array() + name("numpy", "int8") + b"Nt\x81.", "float32 data"),
    "device a list": (TENSOR + b"(" + array() + b"N]t\x81.", "device of a tensor is a list"),
    "flag a list": (TENSOR + b"(" + array() + b"NN]t\x81.", "constructor arguments"),
    "unknown state": (
        TENSOR + b"(" + array() + b"NNt\x81}" + text("__class__") + b"Nsb.",
        "the state of a tensor",
    ),
    "state a tuple": (TENSOR + b"(" + array() + b"NNt\x81N}\x86b.", "the state of a tensor"),
    "state a number": (TENSOR + b"(" + array() + b"NNt\x81K\x01b.", "the state of a tensor"),
    "data twice": (
        TENSOR + b"(" + array() + b"NNt\x81}" + text("data") + array() + b"sb.",
        "its data twice",
    ),
    "qparams a list": (
        TENSOR + b"(" + array() + b"NNt\x81}" + text("qparams") + b"]sb.",
        "qparams of a tensor",
    ),
    "qdict of lists": (
        TENSOR + b"(" + array() + b"NNt\x81}" + text("qdict") + b"}" + text("scale") + b"]ssb.",
        "a scale or zero point",
    ),
    "format": (
        TENSOR + b"(" + array() + b"NN\x89\x89N" + text("x" * 99) + b"t\x81.",
        "name or the format",
    ),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_that_are_refused(case: str) -> None:
    raw, problem = TENSORS[case]
    refused(b"\x80\x04" + raw, problem)


def test_a_device_that_is_none() -> None:
    tensor = TENSOR + b"(" + array() + F4 + text("__import__('os')") + b"t\x81."
    with pytest.raises(DeviceError):
        loaded(b"\x80\x04" + tensor)


# -- arrays --------------------------------------------------------------------------------------


def dtype_of(code: str, state: bytes = b"") -> bytes:
    return call("numpy", "dtype", b"(" + text(code) + b"\x89\x88t") + state


def number_state(order: str = "<", fields: bytes = b"NNN", more: bytes = b"") -> bytes:
    return b"(K\x03" + text(order) + fields + b"K\x00K\x00K\x00" + more + b"tb"


INT8 = dtype_of("i1", number_state("|"))
ARRAYS: dict[str, tuple[bytes, str]] = {
    "objects": (array(dtype=dtype_of("O8", number_state("|")), data=b"]"), "'O8' is not one of"),
    "objects as |O": (array(dtype=dtype_of("O"), data=b"]"), "not one of numbers"),
    "a list of data": (array(data=b"]"), "holds Python objects"),
    "void": (array(dtype=dtype_of("V8", number_state("|"))), "not one of numbers"),
    "fields": (
        array(dtype=dtype_of("i8", number_state("<", text("a") + b"\x85}N"))),
        "state of a dtype is malformed",
    ),
    "subarray": (
        array(dtype=dtype_of("i8", number_state("<", b"(" + F4 + b"K\x02\x85tNN"))),
        "state of a dtype is malformed",
    ),
    "metadata": (
        array(dtype=dtype_of("i1", number_state("|", more=b"}" + text("a") + b"Ns"))),
        "a dtype has metadata",
    ),
    "quantized without a scale": (
        array(dtype=dtype_of("i1", number_state("|", more=b"}" + text("mgb_dtype") + b"}s"))),
        "a dtype has metadata",
    ),
    "big-endian": (array(dtype=dtype_of("f4", number_state(">"))), "byte order '>'"),
    "dtype without state": (array(dtype=dtype_of("f4")), "has the dtype float32"),
    "dtype with two states": (dtype_of("f4", number_state() + number_state()), "a state twice"),
    "dtype of a dtype": (call("numpy", "dtype", b"(" + F4 + b"\x89\x88t"), "a dtype is malformed"),
    "dtype of text in fields": (
        call("numpy", "dtype", b"(](" + text("a") + text("O") + b"ta\x89\x88t"),
        "a dtype is malformed",
    ),
    "too little data": (array(data=b"C\x07" + bytes(7)), "7 bytes are the data of float32[2]"),
    "too much data": (array(data=b"C\x09" + bytes(9)), "9 bytes are the data of float32[2]"),
    "text as data": (array(data=text("x" * 8)), "an array is malformed"),
    "negative": (array(shape=b"J\xff\xff\xff\xff\x85"), "has the shape [-1]"),
    "two negatives": (array(shape=b"J\xff\xff\xff\xffJ\xfe\xff\xff\xff\x86"), "has the shape"),
    "shape of booleans": (array(shape=b"\x88\x85"), "has the shape [True]"),
    "shape of floats": (
        array(shape=b"G" + struct.pack(">d", 2.0) + b"\x85"),
        "has the shape [2.0]",
    ),
    "shape a list": (array(shape=b"](K\x02e"), "an array is malformed"),
    "rank 65": (array(shape=b"(" + b"K\x01" * 65 + b"t"), "has the shape"),
    "2^62 times 4": (array(shape=b"\x8a\x08" + struct.pack("<q", 2**62) + b"\x85"), "beyond 2^63"),
    "overflow behind a zero": (
        array(shape=b"(K\x00" + (b"\x8a\x08" + struct.pack("<q", 2**62)) * 2 + b"t", data=b"C\x00"),
        "beyond 2^63",
    ),
    "terabytes of nothing": (
        array(shape=b"\x8a\x06" + struct.pack("<q", 2**40)[:6] + b"\x85"),
        "8 bytes are the data",
    ),
    "filled twice": (
        array() + b"(K\x01K\x02\x85" + F4 + b"\x89C\x08" + bytes(8) + b"tb",
        "an array is given a state twice",
    ),
    "booleans of 2": (
        array(dtype=dtype_of("b1", number_state("|")), data=b"C\x02\x00\x02"),
        "booleans other than 0 and 1",
    ),
    "unfilled": (EMPTY, "has no state"),
    "of a subclass": (
        call("numpy._core.multiarray", "_reconstruct", b"(" + TENSOR + b"K\x00\x85C\x01bt"),
        "of a class of its own",
    ),
    "made with a shape": (
        call(
            "numpy._core.multiarray",
            "_reconstruct",
            b"(" + name("numpy", "ndarray") + b"J\xff\xff\xff\x7f\x85C\x01bt",
        ),
        "an array is malformed",
    ),
    "scalar of an object": (
        call(
            "numpy._core.multiarray", "scalar", b"(" + dtype_of("O8") + b"C\x08" + bytes(8) + b"t"
        ),
        "not one of numbers",
    ),
    "short scalar": (
        call("numpy._core.multiarray", "scalar", b"(" + F4 + b"C\x03" + bytes(3) + b"t"),
        "3 bytes are the data",
    ),
    "buffer of a tensor": (
        call("numpy._core.numeric", "_frombuffer", b"(]" + INT8 + b"K\x00\x85" + text("C") + b"t"),
        "an array is malformed",
    ),
    "axes": (
        call(
            "numpy._core.numeric",
            "_frombuffer",
            b"(C\x01x" + INT8 + b"K\x01\x85" + text("K") + b"K\x01\x85t",
        ),
        "order of an array's axes",
    ),
    "buffer too short": (
        call(
            "numpy._core.numeric",
            "_frombuffer",
            b"(C\x01x" + INT8 + b"K\x02\x85" + text("C") + b"t",
        ),
        "1 bytes are the data",
    ),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_arrays_that_are_refused(case: str) -> None:
    raw, problem = ARRAYS[case]
    refused(b"\x80\x04" + raw + b".", problem)


def test_the_builder_of_these_tests_makes_arrays() -> None:
    np.testing.assert_array_equal(loaded(b"\x80\x04" + array() + b"."), np.zeros(2, np.float32))
    tensor = loaded(b"\x80\x04" + TENSOR + b"(" + array() + F4 + text("cpu0:0") + b"t\x81.")
    assert tensor.tolist() == [0, 0] and str(tensor.device) == "cpu0:0"


def test_an_array_owns_its_memory() -> None:
    """NumPy lets large arrays write to the bytes they were made from; others may refer to them."""
    data = b"B" + struct.pack("<I", 8000) + bytes(8000)
    first = array(shape=b"M\xd0\x07\x85", data=data + b"q\x00")
    second = array(shape=b"M\xd0\x07\x85", data=b"h\x00")
    a, b, raw = loaded(b"\x80\x04" + first + second + b"h\x00\x87.")
    a[:] = 1
    assert b.max() == 0 and raw == bytes(8000)


# -- opcodes -------------------------------------------------------------------------------------

OPCODES: dict[str, tuple[bytes, str]] = {
    "persistent id": (b"\x80\x02" + text("x") + b"Q.", "kept elsewhere"),
    "persistent id as text": (b"\x80\x02Px\n.", "kept elsewhere"),
    "extension 1": (b"\x80\x02\x82\x01.", "registered numbers"),
    "extension 2": (b"\x80\x02\x83\x01\x00.", "registered numbers"),
    "extension 4": (b"\x80\x02\x84\x01\x00\x00\x00.", "registered numbers"),
    "buffer": (b"\x80\x05\x97.", "kept elsewhere"),
    "read-only buffer": (b"\x80\x05C\x01x\x98.", "kept elsewhere"),
    "unknown opcode": (b"\x80\x02\xff.", "does not exist"),
    "protocol 6": (b"\x80\x06N.", "protocol 6 is unknown"),
    "protocol 255": (b"\x80\xffN.", "protocol 255 is unknown"),
    "nothing": (b"\x80\x02.", "another number of objects"),
    "two objects": (b"\x80\x02NN.", "another number of objects"),
    "open mark": (b"\x80\x02(N.", "open marks"),
    "no end": (b"\x80\x02N", "truncated"),
    "more behind the end": (b"\x80\x02N.N.", "2 bytes follow its end"),
    "empty stack": (b"\x80\x02a.", "too little"),
    "pop": (b"\x80\x020.", "a mark that is not there"),
    "dup": (b"\x80\x022.", "too little"),
    "put": (b"\x80\x02q\x00.", "too little"),
    "build": (b"\x80\x02Nb.", "too little"),
    "no mark": (b"\x80\x02Nt.", "a mark that is not there"),
    "memo": (b"\x80\x02h\x00.", "not in the memo"),
    "memo as text": (b"gx\n.", "is not what its opcode says"),
    "negative memo": (b"Np-1\n.", "negative number in the memo"),
    "append to a tuple": (b"\x80\x02)Na.", "appended to a tuple"),
    "append to a dict": (b"\x80\x02}Na.", "appended to a dict"),
    "append to a class": (b"\x80\x04" + TENSOR + b"Na.", "appended to a megengine.tensor.Tensor"),
    "set item of a list": (b"\x80\x02]NNs.", "set in a list"),
    "key without a value": (b"\x80\x02}(Nu.", "a key has no value"),
    "add to a list": (b"\x80\x04](Ne(N\x90.", "added to a list"),
    "list as a key": (b"\x80\x02}]Ns.", "a list is used as a key"),
    "tensor as a key": (b"\x80\x04}" + TENSOR + b"(" + array() + b"NNt\x81Ns.", "as a key"),
    "array in a set": (b"\x80\x04\x8f(" + array() + b"\x90.", "an element of a set"),
    "class as a key": (b"\x80\x04}" + TENSOR + b"Ns.", "as a key"),
    "dict in a frozenset": (b"\x80\x04(}\x91.", "an element of a set"),
    "text of bytes": (b"\x80\x02X\x01\x00\x00\x00\xff.", "is not what its opcode says"),
    "number of letters": (b"Ix\n.", "is not what its opcode says"),
    "number of 5000 digits": (b"L" + b"9" * 5000 + b"L\n.", "is not what its opcode says"),
    "float of letters": (b"Fx\n.", "is not what its opcode says"),
    "float beyond all floats": (b"F-1e400\n.", "is not what its opcode says"),
    "text without quotes": (b"Sx\n.", "is not what its opcode says"),
    "line without an end": (b"cos.", "truncated"),
}


@pytest.mark.parametrize("case", OPCODES)
def test_opcodes_that_are_refused(case: str) -> None:
    raw, problem = OPCODES[case]
    refused(raw, problem)


# -- bombs ---------------------------------------------------------------------------------------


def laughs(first: bytes, again: bytes, count: int) -> bytes:
    """Containers that hold the one before them twice: 2^count ways through a few hundred bytes."""
    steps = [first, b"q\x00"]
    for i in range(count):
        steps += [b"0", again.replace(b"?", b"h" + bytes([i])), b"q" + bytes([i + 1])]
    return b"\x80\x02" + b"".join(steps)


def deep(opening: bytes, closing: bytes, count: int = 20_000) -> bytes:
    return b"\x80\x02" + opening * count + b"N" + closing * count + b"."


HUGE = struct.pack("<Q", 2**62)
BYTES = b"B" + struct.pack("<I", 10**6) + bytes(10**6) + b"q\x00"
BOMBS: dict[str, tuple[bytes, str]] = {
    "bytes of 4 GB": (b"\x80\x03B\xff\xff\xff\xff.", "truncated"),
    "bytes of 2^62": (b"\x80\x04\x8e" + HUGE + b".", "truncated"),
    "bytearray of 2^62": (b"\x80\x05\x96" + HUGE + b".", "truncated"),
    "text of 2^62": (b"\x80\x04\x8d" + HUGE + b".", "truncated"),
    "long of 4 GB": (b"\x80\x02\x8b\xff\xff\xff\xff.", "truncated"),
    "long of a negative size": (b"\x80\x02\x8b\x00\x00\x00\x80.", "truncated"),
    "string of 4 GB": (b"T\xff\xff\xff\xffx.", "truncated"),
    "frame of 2^62": (b"\x80\x04\x95" + HUGE + b"N.", "truncated"),
    "memo number 2^32 - 1, then nothing": (b"\x80\x02Nr\xff\xff\xff\xff0.", "another number"),
    "lists in lists": (deep(b"](", b"e"), "nests deeper than 100"),
    "dicts in dicts": (deep(b"}K\x01", b"s"), "nests deeper than 100"),
    "tuples in tuples": (deep(b"", b"\x85"), "nests deeper than 100"),
    "marks": (b"\x80\x02" + b"(" * 20_000 + b".", "open marks"),
    "a list in itself": (b"\x80\x02]q\x00h\x00a.", "contains itself"),
    "a dict in itself": (b"\x80\x02}q\x00K\x01h\x00s.", "contains itself"),
    "a tuple in a list in it": (b"\x80\x02]q\x00h\x00\x85a.", "contains itself"),
    "laughing lists": (laughs(b"]", b"](??e", 60) + b".", "ways"),
    "laughing tuples": (laughs(b")", b"???\x87", 60) + b".", "ways"),
    "laughing dicts": (laughs(b"}", b"}(K\x01?K\x02?u", 60) + b".", "ways"),
    "laughing key": (b"\x80\x02}" + laughs(b")", b"??\x86", 60)[2:] + b"Ns.", "used as a key"),
    "laughing element": (b"\x80\x04\x8f(" + laughs(b")", b"??\x86", 60)[2:] + b"\x90.", "element"),
    "one set of bytes for many arrays": (
        b"\x80\x04" + BYTES + b"0]("
        + array(shape=b"J\x40\x42\x0f\x00\x85", dtype=INT8, data=b"h\x00") * 100 + b"e.",
        "bytes are used again and again",
    ),
    "one set of bytes for many bytearrays": (
        b"\x80\x04" + BYTES + b"0]("
        + call("builtins", "bytearray", b"h\x00\x85") * 100 + b"e.",
        "bytes are used again and again",
    ),
    "one text for many bytes": (
        b"\x80\x04" + text("x" * 10**6) + b"q\x000]("
        + call("_codecs", "encode", b"h\x00" + text("latin1") + b"\x86") * 100 + b"e.",
        "bytes are used again and again",
    ),
    "one array for many tensors": (
        b"\x80\x04" + array(shape=b"J\x40\x42\x0f\x00\x85", dtype=INT8, data=BYTES) + b"q\x010]("
        + (TENSOR + b"(h\x01NNt\x81") * 100 + b"e.",
        "bytes are used again and again",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BOMBS)
def test_bombs_take_little_memory(case: str) -> None:
    raw, problem = BOMBS[case]
    tracemalloc.start()
    try:
        refused(raw, problem)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 150 * len(raw) + 2_000_000


@pytest.mark.parametrize(
    "content",
    [
        b"]" * 20_000,
        b"\x8f" * 20_000,
        b"N\x94" * 20_000,
        (call("collections", "OrderedDict") + b"0") * 5000,
        b"](" + b"K\x01" * 1000 + b"eq\x00" + call("builtins", "set", b"h\x00\x85") * 100,
        b"]" + b"2" * 10_000 + b"0" * 10_000,
        b"Nq\x00" + b"h\x000" * 10_000,
    ],
    ids=["lists", "sets", "memo", "calls", "copies", "duplicates", "recalls"],
)
def test_small_objects_are_counted(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes become objects that are much larger; the bound is the same whatever the file's size."""
    monkeypatch.setattr(pickle_machine, "_ALL_OBJECTS", 1 << 20)
    tracemalloc.start()
    try:
        refused(b"\x80\x04" + content + b".", "more small objects")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 << 20


def test_floats_may_be_infinite() -> None:
    assert loaded(b"(Finf\nF-Infinity\nG\x7f\xf0" + bytes(6) + b"l.") == [np.inf, -np.inf, np.inf]


def test_millions_of_duplicates_end_soon() -> None:
    """Five million took a minute."""
    refused(b"\x80\x02]" + b"2" * 5_000_000 + b".", "more small objects")


def test_numbers_in_the_memo_may_be_large() -> None:
    """Python's own unpickler takes 16 bytes for each number below the largest."""
    tracemalloc.start()
    try:
        assert loaded(b"\x80\x02Nr\xff\xff\xff\xff.") is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


# -- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_every_truncation_is_noticed(version: str) -> None:
    raw = pickled(version, checkpoint)
    for end in range(0, len(raw), 7):
        refused(raw[:end])


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_random_damage(protocol: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a byte becomes, the file is read or refused, and nothing else is raised."""
    monkeypatch.setattr(builtins, "eval", None)
    raw = pickled("snapshot", checkpoint, protocol)
    chance = random.Random(protocol)
    refusals = 0
    for _ in range(1500):
        damaged = bytearray(raw)
        for _ in range(chance.choice([1, 1, 2, 8])):
            damaged[chance.randrange(2, len(raw))] = chance.randrange(256)
        try:
            loaded(bytes(damaged))
        except (CheckpointError, DeviceError):
            refusals += 1
    assert refusals > 500
