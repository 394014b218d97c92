"""Shared libraries of devices: opened and looked at; failures of their functions as exceptions."""

from __future__ import annotations

import ctypes
import os
import struct
from ctypes import byref, c_uint32, c_void_p
from typing import Any, NoReturn

from treadle.backends.api import DeviceLost
from treadle.backends.c_device.header import (
    ENTRY,
    FAILED,
    FUNCTIONS,
    LOST,
    NO_MEMORY,
    OK,
    REQUIRED,
    STREAMS,
    VERSION,
    CKernel,
    TdLibrary,
)
from treadle.base.errors import LoadError


def load(path: str | os.PathLike[str]) -> DeviceLibrary:
    """A library with a table that can be used; see `open_library`."""
    where = os.fspath(path)
    if _ends_early(where):
        raise LoadError(where, "the end of the file is missing", hint="build or install it anew")
    try:
        library = ctypes.CDLL(where)
        function = getattr(library, ENTRY)
    except (OSError, AttributeError) as error:
        problem = "it is not a library of a device, or one that cannot be opened"
        raise LoadError(where, problem, saw=str(error), hint="see treadle_device.h") from error
    function.restype, function.argtypes = c_void_p, (c_uint32,)
    at = function(VERSION)
    if not at:
        raise _other_version(where, "it refuses that version")
    version, size = (c_uint32 * 2).from_address(at)
    if version != VERSION:
        raise _other_version(where, f"its table says version {version}")
    table = TdLibrary.from_buffer_copy(
        ctypes.string_at(at, min(size, ctypes.sizeof(TdLibrary))).ljust(
            ctypes.sizeof(TdLibrary), b"\0"
        )
    )
    wrong = _problems(table)
    if wrong:
        raise LoadError(where, "; ".join(wrong), hint="treadle_device.h says what has to be there")
    return DeviceLibrary(where, library, table)


def _ends_early(path: str) -> bool:
    """Return whether an ELF file lacks parts that it maps: opening it would end the process."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        head = file.read(64)
        if len(head) < 64 or head[:6] != b"\x7fELF\2\1":
            return False
        at, (size, count) = (
            struct.unpack_from("<Q", head, 32)[0],
            struct.unpack_from("<HH", head, 54),
        )
        file.seek(at)
        table = file.read(size * count)
        length = file.seek(0, os.SEEK_END)
    if len(table) < size * count:
        return True
    entries = (struct.unpack_from("<8xQ16xQ", table, n * size) for n in range(count))
    return any(offset + nbytes > length for offset, nbytes in entries)


def _other_version(where: str, saw: str) -> LoadError:
    problem = f"it is not made for version {VERSION} of treadle_device.h, which this Treadle speaks"
    hint = "build it with this Treadle's header, or install the Treadle that it was built for"
    return LoadError(where, problem, saw=saw, hint=hint)


def _problems(table: TdLibrary) -> list[str]:
    """Parts that a table lacks, in words for the library's author."""
    missing = [name for name in REQUIRED if not getattr(table, name)]
    streams = [name for name in STREAMS if not getattr(table, name)]
    found = [] if table.name else ["its table has no name"]
    found += [f"its table has no function {', '.join(missing)}"] if missing else []
    if streams and len(streams) < len(STREAMS):
        found += [f"its table has streams without {', '.join(streams)}"]
    if table.n_kernels and not table.kernels:
        return [*found, f"its {table.n_kernels} kernels are at no address"]
    if table.n_kernels and table.kernel_size < ctypes.sizeof(CKernel):
        return [*found, f"its kernels have {table.kernel_size} bytes each, too few"]
    for number in range(table.n_kernels):
        kernel = kernel_at(table, number)
        lacks = [name for name in ("op", "dtypes", "run") if not getattr(kernel, name)]
        found += [f"its kernel number {number} has no {', '.join(lacks)}"] if lacks else []
    return found


def kernel_at(table: TdLibrary, number: int) -> CKernel:
    """The kernel of a number in a table."""
    return CKernel.from_address(table.kernels + number * table.kernel_size)


class DeviceLibrary:
    """The functions of a library; what they report becomes exceptions."""

    def __init__(self, path: str, opened: ctypes.CDLL, table: TdLibrary) -> None:
        self.path = path
        self.table = table
        self.name = table.name.decode(errors="replace")
        self._opened = opened
        self._functions = {name: getattr(table, name) for name in ("message", *FUNCTIONS)}

    def has(self, function: str) -> bool:
        """Return whether it has an optional function."""
        return bool(self._functions[function])

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of the table.

        Raises:
            MemoryError, DeviceLost, RuntimeError: what it returned, with its message.
        """
        status = self._functions[function](*arguments)
        if status != OK:
            self.fail(function, status)

    def made(self, function: str, *arguments: Any) -> int:
        """The handle that a function has made, which is its last argument."""
        handle = c_void_p()
        self.call(function, *arguments, byref(handle))
        if not handle.value:
            raise RuntimeError(f"{function}: the library reported success, and made nothing")
        return handle.value

    def end(self, function: str, handle: int) -> None:
        """Call a function that destroys something, whatever it says of that."""
        self._functions[function](handle)

    def fail(self, function: str, status: int) -> NoReturn:
        """Raise the exception for what a function returned."""
        said = self.said()
        if status == NO_MEMORY:
            raise MemoryError(said or "no room")
        if status == LOST:
            raise DeviceLost(self.name, said or "it is gone")
        code = "" if status == FAILED else f" (it returned {status}, which is not a td_status)"
        raise RuntimeError(f"{function}: {said or 'no message'}{code}")

    def said(self) -> str:
        """The message of the library's last failure in this thread."""
        return (self._functions["message"]() or b"").decode(errors="replace")
