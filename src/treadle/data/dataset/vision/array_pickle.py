"""Pickles of arrays and plain values, read without running what else they may hold."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from treadle.data.failure import DatasetError

# What NumPy, old and new, names in a pickle of an array. Rebuilding one runs nothing of the file.
_ALLOWED = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    *((f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")),
    *((f"numpy.{core}.multiarray", "scalar") for core in ("core", "_core")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
    ("_codecs", "encode"),
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Refuse everything but NumPy's arrays."""
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"the file names {module}.{name}, which is not an array")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def load_arrays(path: str) -> dict[Any, Any]:
    """Read a pickled dict of arrays, lists, numbers and texts; texts of Python 2 become bytes.

    Raises:
        DatasetError: the file is damaged, holds something else, or tries to run code.
    """
    try:
        with open(path, "rb") as file:
            content = _ArrayUnpickler(file, encoding="bytes").load()
    except FileNotFoundError:
        raise
    except Exception as error:
        raise DatasetError(
            path,
            "the file is damaged, or holds more than arrays and plain values",
            saw=f"{type(error).__name__}: {error}",
        ) from error
    if not isinstance(content, dict) or _has_objects(content.values()):
        raise DatasetError(path, "this is not a dict of arrays", saw=type(content).__name__)
    return content


def _has_objects(values: Any) -> bool:
    return any(isinstance(value, np.ndarray) and value.dtype.hasobject for value in values)
