"""State dicts of other frameworks made to fit a module: names, shapes, element types.

PyTorch's layers keep the same numbers in the same order as ours, under the same names, but some in
other shapes: a bias [C] is [1, C, 1, 1] in a convolution, and the weights of grouped convolutions
[O, C/g, ...] are [g, O/g, C/g, ...]. Where one shape is another with axes of extent 1 put in or
left out, or with its first axis divided, there is one way to reshape, and it is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from treadle.base.array import Array
from treadle.base.dtype import as_dtype
from treadle.base.errors import CheckpointError
from treadle.tensor import Tensor

Shape = tuple[int, ...]
Rule: TypeAlias = "tuple[str, str] | Mapping[str, str | None]"
"""A regular expression and its replacement, as `re.sub` takes them; or names by name, where None
leaves a tensor out."""
PREFIXES = ("module.", "_orig_mod.")
"""Prefixes that PyTorch's wrappers put in front of all names: DataParallel, compiled modules."""
_COUNTER = "num_batches_tracked"
"""PyTorch's batch norms count batches in it; ours do not."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A state that was compared with what a module needs.

    Attributes:
        values: arrays by the module's names, in its shapes and element types.
        missing: names that the state does not have.
        unexpected: names that the module does not have.
        mismatched: names whose shapes do not fit: the state's and the module's.
        reshaped: those that were made to fit, likewise.
        cast: how many arrays were cast, by their element types: "float16 to float32".
        dropped: counters of batches that were left out.
        tied: names that the state does not have, each with the one that has its tensor.
    """

    values: dict[str, Array]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: dict[str, tuple[Shape, Shape]]
    reshaped: dict[str, tuple[Shape, Shape]]
    cast: dict[str, int]
    dropped: tuple[str, ...]
    tied: dict[str, str]

    @property
    def is_whole(self) -> bool:
        """True if the module gets all it needs, and nothing is left over."""
        return not (self.missing or self.unexpected or self.mismatched)


def fit_state(
    state: Mapping[str, Any], wanted: Mapping[str, Array], shared: Sequence[Sequence[str]] = ()
) -> Fit:
    """Compare a state with a module's own, and make it fit where there is one way to.

    Args:
        state: tensors or arrays by name.
        wanted: the module's `state_dict()`.
        shared: names that stand for one tensor of the module. Files of safetensors have one of
            them; it is the value of all.
    """
    values: dict[str, Array] = {}
    mismatched: dict[str, tuple[Shape, Shape]] = {}
    reshaped: dict[str, tuple[Shape, Shape]] = {}
    cast: dict[str, int] = {}
    for name in wanted.keys() & state.keys():
        array, own = _array(state[name]), wanted[name]
        if array.shape != own.shape:
            if not is_same_order(array.shape, own.shape):
                mismatched[name] = array.shape, own.shape
                continue
            reshaped[name] = array.shape, own.shape
        if array.dtype != own.dtype and _is_float(array) and _is_float(own):
            what = f"{array.dtype} to {own.dtype}"
            cast[what] = cast.get(what, 0) + 1
            array = array.astype(own.dtype)
        values[name] = array.reshape(own.shape)
    tied: dict[str, str] = {}
    for names in shared:
        held = next((n for n in names if n in values), None)
        for name in names:
            if held is not None and name not in state:
                tied[name] = held
                values[name] = values[held]
    extra = sorted(state.keys() - wanted.keys())
    dropped = tuple(n for n in extra if n.rpartition(".")[2] == _COUNTER)
    return Fit(
        values,
        tuple(sorted(wanted.keys() - state.keys() - tied.keys())),
        tuple(n for n in extra if n not in dropped),
        mismatched,
        reshaped,
        cast,
        dropped,
        tied,
    )


def shared_names(state: Mapping[str, object]) -> list[list[str]]:
    """Names of a state that stand for one object each, where there are several."""
    found: dict[int, list[str]] = {}
    for name, value in state.items():
        found.setdefault(id(value), []).append(name)
    return [names for names in found.values() if len(names) > 1]


def is_same_order(given: Shape, wanted: Shape) -> bool:
    """Return whether one shape is the other with axes of extent 1 more or less, or its first one
    divided.

    >>> is_same_order((8,), (1, 8, 1, 1)), is_same_order((8, 1, 3, 3), (4, 2, 1, 3, 3))
    (True, True)
    >>> is_same_order((2, 3), (3, 2)), is_same_order((6,), (2, 3))
    (False, False)
    """
    if [n for n in given if n != 1] == [n for n in wanted if n != 1]:
        return True
    flat, split = sorted((given, wanted), key=len)
    divided = len(flat) >= 3 and len(split) == len(flat) + 1
    return divided and split[0] * split[1] == flat[0] and split[2:] == flat[1:]


def _is_float(array: Array) -> bool:
    return as_dtype(array.dtype).is_float


def _array(value: Any) -> Array:
    return value.numpy() if isinstance(value, Tensor) else np.asarray(value)


# -- names -------------------------------------------------------------------------------------


def without_prefix(state: Mapping[str, Any], wanted: Mapping[str, Any]) -> tuple[Any, str]:
    """A state without what wrappers of PyTorch put in front of all its names, and what that was."""
    removed = ""
    while True:
        found = next((p for p in PREFIXES if state and all(n.startswith(p) for n in state)), "")
        if not found or any(n.startswith(found) for n in wanted):
            return state, removed
        state = {name[len(found) :]: state[name] for name in state}
        removed += found


def renamed(state: Mapping[str, Any], rules: Sequence[Rule]) -> dict[str, Any]:
    """A state under other names; the rules are applied in order to every name.

    Raises:
        CheckpointError: a rule is not a regular expression, or two tensors come to have one name.
    """
    found: dict[str, Any] = {}
    steps = [_step(rule) for rule in rules]
    for name in state:
        made: str | None = name
        for step in steps:
            made = made if made is None else step(made)
        if made is None:
            continue
        if made in found:
            raise CheckpointError("rename", f"two tensors would be called {made!r}", saw=name)
        found[made] = state[name]
    return found


def _step(rule: Rule) -> Callable[[str], str | None]:
    """A rule as a function from name to name."""
    if isinstance(rule, Mapping):
        return lambda name: rule.get(name, name)
    pattern, replacement = rule
    hint = r"write it as PATTERN=REPLACEMENT, such as ^backbone\.="
    try:
        compiled = re.compile(pattern)
        compiled.sub(replacement, "")
    except (re.error, IndexError) as error:
        raise CheckpointError("rename", f"{pattern!r}: {error}", hint=hint) from error
    return lambda name: compiled.sub(replacement, name)


def states_in(loaded: object) -> dict[str, Mapping[str, Any]]:
    """State dicts in what a checkpoint holds, by the keys that lead there; "" for the whole.

    A training checkpoint holds more than weights: those are the dicts of tensors alone.
    """
    if _is_state(loaded):
        return {"": loaded}
    found: dict[str, Mapping[str, Any]] = {}
    if isinstance(loaded, Mapping):
        for key, value in loaded.items():
            if isinstance(key, str):
                below = states_in(value)
                found.update({f"{key}.{k}".rstrip("."): v for k, v in below.items()})
    return found


def _is_state(value: object) -> TypeGuard[Mapping[str, Any]]:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(k, str) for k in value)
        and all(isinstance(v, (Tensor, np.ndarray)) for v in value.values())
    )


__all__ = [
    "Fit",
    "Rule",
    "fit_state",
    "is_same_order",
    "renamed",
    "shared_names",
    "states_in",
    "without_prefix",
]
