"""Layouts that the native part of calls and the Python around it agree on.

All numbers are 64-bit words, or bytes where they say so.
"""

from __future__ import annotations

FUNCTIONS = (
    *("look", "to_object", "run"),
    *("PyObject_Call", "PyObject_CallOneArg", "PyErr_Clear", "PyErr_Occurred", "PyErr_NoMemory"),
    "PyObject_VectorcallMethod",
    *(
        "PyTuple_New",
        "PyTuple_SetItem",
        "PyList_New",
        "PyList_SetItem",
        "PyBytes_FromStringAndSize",
    ),
    *("PyLong_AsLongLong", "PyFloat_AsDouble", "PyUnicode_AsUTF8AndSize", "PyDict_Next"),
    *("Py_IncRef", "Py_DecRef", "PyMem_RawMalloc", "PyMem_RawFree"),
    *("list_size", "list_item", "list_free", "value_free", "tensor_free", "storage_bytes"),
    *("offset", "ndim", "sizes", "strides", "type_of", "element_bytes", "reinterpret"),
    *("empty_strided", "dispatch", "what", "raise"),
)
"""Functions of DLPack, of the engine, of CPython and of PyTorch that native code calls."""
OBJECTS = (
    *("Tensor", "Parameter", "NoneType", "bool", "int", "float", "list", "tuple", "str"),
    *("dtype", "layout", "memory_format", "None", "True", "is_neg"),
)
"""Python objects that it compares with."""
NUMBERS = ("enabled", "pool", "keys", "room", "version", "meta", "built")
"""1 if lookups are on; the pool of threads, 0 if it sleeps; memory of a key, and its words;
DLPack's version; for PyTorch's C functions, the device type without memory, and the version of
PyTorch that the texts are written for."""
CONTEXT = {name: at for at, name in enumerate((*FUNCTIONS, *OBJECTS, *NUMBERS))}
"""Words of the context, by name."""

NOTHING, BOOL, INT, FLOAT, LIST, TUPLE, TEXT, SINGLE, TENSOR, OPEN = range(1, 11)
"""Kinds of arguments: the lowest byte of a part of a key."""

ENTRY = {
    name: at
    for at, name in enumerate(
        (
            *("next", "hash", "length", "key", "program", "bases", "base_count", "runs"),
            *("input_count", "inputs", "output_count", "outputs"),
            *("return_count", "returns", "form"),
        )
    )
}
"""A call that is known: its key; its program, the bases that do not change, and where runs are
counted; how inputs are read, outputs are made, and what is returned."""
ENTRY_WORDS = len(ENTRY)
NO_RESULT, ONE_RESULT, AS_TUPLE, AS_LIST = range(4)

INPUT = {
    name: at
    for at, name in enumerate(
        ("tensor", "gathers", "ndim", "sizes", "to", "strides", "chunk", "place")
    )
}
"""An input: the number of its tensor; if its elements are gathered, how they lie here and there,
in bytes, the bytes that are moved at a time, and where to."""
INPUT_WORDS = len(INPUT)
OUTPUT = {
    name: at
    for at, name in enumerate(
        (
            *("writes", "nbytes", "type", "device", "ndim", "sizes", "strides"),
            *("target", "axes", "extents", "to", "from", "chunk", "place"),
        )
    )
}
"""An output: a new tensor of a type, a device and so on as DLPack has them; or, if it is written
into a tensor of the call, which one, how elements lie there, and where the program puts them."""
OUTPUT_WORDS = len(OUTPUT)

OWN = {name: at for at, name in enumerate(("buckets", "mask", "slow", "opens"))}
"""Words of a kernel's object: known calls by hash, the function for all others, and whether real
numbers are not part of a key."""
PROGRAM = {name: at for at, name in enumerate(("entry", "slow"))}
"""Words of the object of a program's call."""

MOST_TENSORS = 2048
KEY_WORDS = 1 << 15
MOST_AXES = 64

# -- DLPack, in bytes ---------------------------------------------------------------------------
TENSOR_BYTES, MANAGED_BYTES, HEAD_BYTES = 48, 80, 128
DATA, DEVICE, AXES, TYPE, SHAPE, STRIDES, OFFSET = 0, 8, 16, 20, 24, 32, 40
MANAGED_CONTEXT, MANAGED_DELETER, MANAGED_FLAGS, MANAGED_TENSOR = 8, 16, 24, 32
COMPLEX = 5
"""DLPack's code of complex element types."""
