"""The structures of `treadle_device.h`, member by member; a test compares them with the header."""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

VERSION = 1
"""TD_VERSION of the header."""
ENTRY = "treadle_device_library"
DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64"),
)
"""Names of element types, in the order of td_dtype."""
OK, FAILED, NO_MEMORY, LOST = range(4)
"""td_status."""
ABSENT, INTS, FLOATS, TEXT = range(4)
"""td_kind."""


class Tensor(Structure):
    """td_tensor."""

    _fields_ = (
        ("memory", c_void_p),
        ("shape", POINTER(c_int64)),
        ("nbytes", c_int64),
        ("dtype", c_int32),
        ("ndim", c_int32),
    )


class Attribute(Structure):
    """td_attribute."""

    _fields_ = (
        ("name", c_char_p),
        ("ints", POINTER(c_int64)),
        ("floats", POINTER(c_double)),
        ("text", c_char_p),
        ("kind", c_int32),
        ("count", c_int32),
    )


class TdCall(Structure):
    """td_call."""

    _fields_ = (
        ("op", c_char_p),
        ("inputs", c_void_p),
        ("outputs", c_void_p),
        ("attributes", c_void_p),
        ("n_inputs", c_int32),
        ("n_outputs", c_int32),
        ("n_attributes", c_int32),
    )


class CKernel(Structure):
    """td_kernel."""

    _fields_ = (
        ("op", c_char_p),
        ("dtypes", c_uint64),
        ("supports", CFUNCTYPE(c_int32, POINTER(TdCall))),
        ("run", CFUNCTYPE(c_int32, c_void_p, c_void_p, POINTER(TdCall))),
    )


class Properties(Structure):
    """td_properties."""

    _fields_ = (
        ("name", c_char_p),
        ("features", c_char_p),
        ("memory", c_uint64),
        ("bandwidth", c_double),
        ("flops", c_double),
        ("copy_latency", c_double),
        ("copy_bandwidth", c_double),
        ("units", c_uint32),
    )


_PLACE = (c_void_p, c_uint64)
"""Memory, and an offset into it."""
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "count": (POINTER(c_int32),),
    "open": (c_int32, POINTER(c_void_p)),
    "close": (c_void_p,),
    "properties": (c_void_p, POINTER(Properties)),
    "allocate": (c_void_p, c_uint64, POINTER(c_void_p)),
    "release": (c_void_p, c_void_p),
    "copy_in": (c_void_p, c_void_p, *_PLACE, c_void_p, c_uint64),
    "copy_out": (c_void_p, c_void_p, c_void_p, *_PLACE, c_uint64),
    "fill": (c_void_p, c_void_p, *_PLACE, c_uint8, c_uint64),
    "copy_peer": (c_void_p, c_void_p, *_PLACE, c_void_p, *_PLACE, c_uint64),
    "memory_left": (c_void_p, POINTER(c_uint64), POINTER(c_uint64)),
    "stream_create": (c_void_p, POINTER(c_void_p)),
    "stream_destroy": (c_void_p,),
    "stream_wait": (c_void_p, c_void_p),
    "stream_synchronize": (c_void_p,),
    "event_record": (c_void_p, POINTER(c_void_p)),
    "event_done": (c_void_p, POINTER(c_int32)),
    "event_wait": (c_void_p,),
    "event_destroy": (c_void_p,),
    "event_seconds": (c_void_p, c_void_p, POINTER(c_double)),
}
"""Types of the arguments of functions that return a td_status, in the order of the table."""
NAMES = tuple(FUNCTIONS)
REQUIRED = ("message", *NAMES[: NAMES.index("fill")])
STREAMS = NAMES[NAMES.index("stream_create") : NAMES.index("event_seconds")]


class TdLibrary(Structure):
    """td_library."""

    _fields_ = (
        ("version", c_uint32),
        ("size", c_uint32),
        ("name", c_char_p),
        ("kernels", c_void_p),
        ("n_kernels", c_uint32),
        ("kernel_size", c_uint32),
        ("message", CFUNCTYPE(c_char_p)),
        *((name, CFUNCTYPE(c_int32, *types)) for name, types in FUNCTIONS.items()),
    )
