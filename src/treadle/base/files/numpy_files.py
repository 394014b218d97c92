"""NumPy's own files, `.npy` and `.npz`: whatever its parsers raise on a damaged one is our error.

They raise zipfile's and zlib's errors, Python's own of its tokenizer and parser, EOFError,
MemoryError for a size that the header makes up, and others.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import IO, TypeVar

import numpy as np

from treadle.base.array import Array
from treadle.base.errors import LoadError

Path = str | os.PathLike[str]
_T = TypeVar("_T")


def load_array(path: Path) -> Array:
    """The array of an .npy.

    Raises:
        LoadError: it is damaged, or something else.
        OSError: it cannot be opened.
    """

    def read(file: IO[bytes]) -> Array:
        found = np.load(file, allow_pickle=False)
        if not isinstance(found, np.ndarray):
            found.close()
            raise ValueError("it is an archive of arrays")
        return found

    return _guarded(path, read, "write it by numpy.save")


def load_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an .npz, by name.

    Raises:
        LoadError: it is damaged, or something else.
        OSError: it cannot be opened.
    """

    def read(file: IO[bytes]) -> dict[str, Array]:
        found = np.load(file, allow_pickle=False)
        if isinstance(found, np.ndarray):
            raise ValueError("it holds one array without a name")
        with found:
            arrays = {name: found[name] for name in found.files}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):  # NumPy hands on what is no array as bytes.
                raise ValueError(f"its member {name!r} is not an array")
        return arrays

    return _guarded(path, read, "write it by numpy.savez")


def _guarded(path: Path, read: Callable[[IO[bytes]], _T], hint: str) -> _T:
    with open(path, "rb") as file:  # NumPy leaves it open where it raises.
        try:
            return read(file)
        except Exception as error:
            said = str(error).partition("\n")[0] or type(error).__name__
            raise LoadError(os.fspath(path), f"it cannot be read: {said}", hint=hint) from error
