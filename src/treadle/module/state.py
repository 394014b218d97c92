"""State dicts: what a module's tensors are called, and how saved values get back into them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from treadle.autodiff import no_grad
from treadle.base.errors import ShapeError
from treadle.base.log import get_logger
from treadle.tensor import Tensor

Source: TypeAlias = "Mapping[str, Any] | Callable[[str, Tensor], Any]"


class StateEntry(NamedTuple):
    """A parameter or buffer under its dotted name; `flat` ones are saved with one axis."""

    key: str
    tensor: Tensor
    flat: bool


def export(entries: Iterable[StateEntry], keep_var: bool) -> OrderedDict[str, Any]:
    """NumPy arrays by name, or the tensors themselves."""
    result: OrderedDict[str, Any] = OrderedDict()
    with no_grad():
        for key, tensor, flat in entries:
            value = tensor.reshape(-1) if flat else tensor
            result[key] = value if keep_var else value.numpy()
    return result


def load(entries: Iterable[StateEntry], source: Source, strict: bool) -> None:
    """Put values from `source` into the tensors; nothing changes unless everything fits."""
    given: Any = source
    if not callable(given) and not isinstance(given, Mapping):
        hint = "; a file by treadle.load(path)" if isinstance(given, str | PathLike) else ""
        raise ValueError(f"`state_dict` must load a dict or callable, got {type(given)}{hint}")
    found: list[tuple[Tensor, np.ndarray[Any, Any]]] = []
    known: set[str] = set()
    missing: list[str] = []
    for entry in entries:
        known.add(entry.key)
        value = _ask(source, entry)
        if value is None:
            missing.append(entry.key)
        else:
            found.append((entry.tensor, _fitted(entry, value)))
    unused = [] if callable(source) else [key for key in source if key not in known]
    _report(missing, unused, strict)
    with no_grad():
        for tensor, array in found:
            # Plain integers for a quantized parameter are its stored ones.
            same = tensor._kind.quantized is not None and array.dtype == tensor.dtype
            dtype = tensor.dtype if same and not array.dtype.metadata else array.dtype
            tensor._reset(Tensor(array, dtype, tensor.device, format=tensor.format))


def _ask(source: Source, entry: StateEntry) -> Any:
    if callable(source):
        return source(entry.key, entry.tensor)
    return source.get(entry.key)


def _fitted(entry: StateEntry, value: object) -> np.ndarray[Any, Any]:
    """The array for an entry, in the entry's shape."""
    array = value.numpy() if isinstance(value, Tensor) else value
    if not isinstance(array, np.ndarray):
        raise AssertionError(
            f"load_state_dict: {entry.key} should be a NumPy array or a tensor, "
            f"got {type(value).__name__}"
        )
    wanted = entry.tensor.shape
    if array.shape == wanted:
        return array
    if entry.flat and array.size == entry.tensor.size and array.squeeze().ndim <= 1:
        return array.reshape(wanted)
    raise ShapeError(
        "load_state_dict",
        f"param `{entry.key}` shape mismatch, should be {wanted}, get {array.shape}",
        hint="build the module with the sizes the state was saved with",
    )


def _report(missing: list[str], unused: list[str], strict: bool) -> None:
    """Raise about, or log, names that only one side has."""
    parts = [f"missing={missing}"] if missing else []
    parts += [f"unused={unused}"] if unused else []
    if not parts:
        return
    if strict:
        raise KeyError(
            f"load_state_dict: the names do not match ({', '.join(parts)}); "
            "pass strict=False to load what fits"
        )
    get_logger("module").warning("load_state_dict: %s", ", ".join(parts))
