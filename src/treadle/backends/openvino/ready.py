"""Models that were made elsewhere: files of OpenVINO's, and compiled models that it exported.

As bytes a model is either what `CompiledModel.export_model` gives, or `pack` of the two files of
OpenVINO's own format, the graph (.xml) and its weights (.bin).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov

from treadle.backends.openvino.engine import DEVICE, Executable, compat, core, precision, settings
from treadle.backends.openvino.table import TYPES
from treadle.base.errors import LoadError
from treadle.base.types import TensorType

MAGIC = b"TREADLE OPENVINO MODEL 1\n"
_FROM = {str(v): k for k, v in TYPES.items()}


Types = tuple[TensorType, ...]


def types_of(data: bytes) -> tuple[Types, Types]:
    """Types of the inputs and of the results.

    Raises:
        LoadError: OpenVINO does not read the model, or an extent of it is open.
    """
    takes, gives, _ = _loaded(data)
    return takes, gives


def _type(port: Any) -> TensorType:
    shape, kind = port.get_partial_shape(), str(port.get_element_type())
    if not shape.is_static or kind not in _FROM:
        problem = f"an input or result of the model is {kind}{shape}"
        raise LoadError("openvino model", problem, hint="give it static shapes of usual types")
    return TensorType(_FROM[kind], tuple(shape.to_shape()))


def run(data: bytes, arrays: Sequence[Any]) -> Sequence[Any]:
    """The results of a model."""
    return _loaded(data)[2].run(arrays)


@functools.lru_cache(maxsize=16)
def _loaded(data: bytes) -> tuple[Types, Types, Executable]:
    """A model with the types of its ends; quick to find again, as Python keeps hashes of bytes."""
    mode = precision()
    try:
        if data.startswith(MAGIC):
            graph, weights = _unpacked(data)
            model = core().read_model(graph, ov.Tensor(weights) if weights.size else None)
            compiled = core().compile_model(model, DEVICE, settings(mode))
        else:
            compiled = core().import_model(data, DEVICE, settings(mode))
    except RuntimeError as error:
        said = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
        here = str(ov.get_version())
        raise LoadError(
            "openvino model",
            f"OpenVINO {here} does not read it: {said[:400]}",
            hint="export it with this version, or embed its .xml and .bin files",
        ) from None
    takes, gives = tuple(map(_type, compiled.inputs)), tuple(map(_type, compiled.outputs))
    return takes, gives, Executable(compiled, compat())


def _unpacked(data: bytes) -> tuple[bytes, Any]:
    """The graph and the weights of a packed model."""
    size, _, rest = data.removeprefix(MAGIC).partition(b"\n")
    length = int(size) if size.isdigit() else -1
    if not 0 < length <= len(rest):
        problem = "a packed model is cut off"
        raise LoadError("openvino model", problem, saw=f"{len(rest)} bytes of {length} or more")
    return rest[:length], np.frombuffer(rest, np.uint8, offset=length)
