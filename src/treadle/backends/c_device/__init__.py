"""Devices of shared libraries that implement `treadle_device.h`, as backends.

    backend = open_library(Path(__file__).with_name("libshelf.so"))

in the module that an entry point of "treadle.backends" names is all that such a package needs of
Python. The header lies in `treadle.utils.custom_op_tools.include_dir()` and says what the functions
do.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from ctypes import byref, c_int32

from treadle.backends.api import Availability, Backend, Device, Kernel
from treadle.backends.c_device.device import device_class
from treadle.backends.c_device.kernel import Launcher
from treadle.backends.c_device.library import DeviceLibrary, kernel_at, load

__all__ = ["CBackend", "open_library"]


def open_library(path: str | os.PathLike[str]) -> CBackend:
    """The backend that a shared library is, by its function `treadle_device_library`.

    Args:
        path: of the library; a name without a folder is sought where the system's loader looks.

    Raises:
        LoadError: it cannot be opened, lacks the function, is made for another version of
            `treadle_device.h`, or its table lacks what has to be there.
    """
    return CBackend(load(path))


class CBackend(Backend):
    """A library's devices."""

    protocol = (1, 2)

    def __init__(self, library: DeviceLibrary) -> None:
        self.name = library.name
        self.device_kinds = (library.name,)
        self.library = library
        self._device = device_class(library)
        table = library.table
        found = (kernel_at(table, n) for n in range(table.n_kernels))
        self._kernels = [Launcher(library, kernel).kernel() for kernel in found]

    def probe(self) -> Availability:
        count = c_int32()
        try:
            self.library.call("count", byref(count))
        except Exception as error:
            return Availability(False, str(error))
        if count.value <= 0:
            return Availability(False, f"{self.library.path} finds no device")
        return Availability(True, self.library.path, count=count.value)

    def open(self, index: int, /) -> Device:
        return self._device(self.library, index)

    def kernels(self) -> Sequence[Kernel]:
        return self._kernels
