"""Checkpoints and the code of their models: what `treadle convert` puts together."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import treadle
from treadle.base.errors import LoadError, TreadleError
from treadle.module.module import Module
from treadle.serialization import load_directory
from treadle.serialization.fitting import (
    Fit,
    Rule,
    fit_state,
    renamed,
    shared_names,
    states_in,
    without_prefix,
)

_LISTED = 12


# -- the model's code --------------------------------------------------------------------------


def build_model(place: str, arguments: str) -> Any:
    """Return the result of the user's function: a module of Treadle or PyTorch.

    Args:
        place: `package.module:function`, or `file.py:function`; a class is a function, too.
        arguments: JSON: a list of arguments, or an object of named ones; "" for none.

    Raises:
        LoadError: there is no such function, it fails, or it returns something else.
    """
    function = _function(place)
    given = _arguments(arguments)
    try:
        made = function(**given) if isinstance(given, dict) else function(*given)
    except TreadleError:
        raise
    except Exception as error:  # whatever the user's code raises
        hint = "--args takes a JSON list of arguments, or an object of named ones"
        text = f"the function fails: {type(error).__name__}: {error}"
        raise LoadError(place, text, hint=hint) from error
    if not isinstance(made, Module) and torch_modules(made) is None:
        raise LoadError(
            place,
            "the function returns no module of Treadle or PyTorch",
            saw=type(made).__name__,
        )
    return made


def torch_modules(made: object) -> Any:
    """Return the handler of PyTorch's modules, where `made` is one; else None."""
    if "torch" not in sys.modules:
        return None
    from treadle.interop.torch import modules as handling

    return handling if handling.is_torch_module(made) else None


def _function(place: str) -> Callable[..., Any]:
    name, sign, attribute = place.rpartition(":")
    if not sign or not name or not attribute:
        hint = "write package.module:function or file.py:function"
        raise LoadError("--model", f"{place!r} names no function", hint=hint)
    module = _module_of(name)
    found: Any = module
    for part in attribute.split("."):
        if part not in dir(found):
            near = get_close_matches(part, dir(found), 3)
            hint = f"did you mean {' or '.join(near)}?" if near else ""
            raise LoadError("--model", f"{name} has no {attribute}", hint=hint)
        found = getattr(found, part)
    if not callable(found):
        raise LoadError("--model", f"{place} cannot be called", saw=type(found).__name__)
    made: Callable[..., Any] = found
    return made


def _module_of(name: str) -> Any:
    """A module by its dotted name, or by its file; modules beside it can be imported, too."""
    path = Path(name)
    is_file = path.suffix == ".py"
    folder = str(path.resolve().parent) if is_file else os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(path.stem) if is_file else importlib.import_module(name)
    except Exception as error:  # whatever the user's code raises
        text = f"{name} cannot be imported: {type(error).__name__}: {error}"
        hint = "modules are looked for in the current directory first"
        raise LoadError("--model", text, hint=hint) from error


def _arguments(text: str) -> dict[str, Any] | list[Any]:
    try:
        given = json.loads(text) if text else []
    except ValueError as error:
        hint = """write it as '{"layers": 50}' or '[50]'"""
        raise LoadError("--args", f"it is not JSON: {error}", hint=hint) from error
    if not isinstance(given, (dict, list)):
        raise LoadError("--args", "it is neither a list nor an object", saw=text)
    return given


# -- the checkpoint ----------------------------------------------------------------------------


def read_state(path: Path, key: str) -> tuple[Mapping[str, Any], str]:
    """The state dict of a checkpoint, and under which key it is; "" for the whole.

    Raises:
        LoadError: there is none, or several and no key.
        CheckpointError: the file or directory cannot be read.
    """
    if path.is_dir():
        return load_directory(path), ""
    states = states_in(treadle.load(path, map_location="cpux"))
    if key and key not in states:
        hint = f"there are {', '.join(map(repr, states))}" if states else ""
        raise LoadError(str(path), f"it has no dict of tensors under {key!r}", hint=hint)
    if not states:
        raise LoadError(str(path), "it holds no dict of tensors by name")
    if not key and len(states) > 1:
        raise LoadError(
            str(path),
            "it holds several dicts of tensors",
            saw=", ".join(states),
            hint=f"choose one: --key {next(iter(states))}",
        )
    chosen = key or next(iter(states))
    return states[chosen], chosen


def parsed_rules(given: Sequence[str]) -> list[Rule]:
    """Rules of renaming: `PATTERN=REPLACEMENT`, or JSON files with names by name.

    Raises:
        LoadError: one is neither.
    """
    rules: list[Rule] = []
    for text in given:
        if text.endswith(".json") and "=" not in text:
            rules.append(_mapping(Path(text)))
            continue
        pattern, sign, replacement = text.partition("=")
        if not sign or not pattern:
            hint = r"write PATTERN=REPLACEMENT, such as ^backbone\.=, or a JSON file"
            raise LoadError("--rename", f"{text!r} is not a rule", hint=hint)
        rules.append((pattern, replacement))
    return rules


def _mapping(path: Path) -> dict[str, str | None]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise LoadError(str(path), f"it is not JSON: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(v, str | None) for v in found.values()):
        hint = 'write it as {"old": "new", "unused": null}'
        raise LoadError(str(path), "it is not an object of names", hint=hint)
    return found


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """Record of how a checkpoint was loaded.

    Attributes:
        fit: with the module.
        tensors: how many the checkpoint has.
        key: under which they were found.
        prefix: what was taken off all names.
    """

    fit: Fit
    tensors: int
    key: str
    prefix: str

    def facts(self) -> dict[str, str]:
        """Return what was done, in words."""
        fit = self.fit
        found = f"{self.tensors} tensors" + (f" under {self.key!r}" if self.key else "")
        made = {"checkpoint": found, "loaded": f"{len(fit.values)} parameters and buffers"}
        if self.prefix:
            made["prefix"] = f"{self.prefix!r} taken off all names"
        if fit.reshaped:
            name, (old, new) = next(iter(sorted(fit.reshaped.items())))
            made["reshaped"] = f"{len(fit.reshaped)}, such as {name} {list(old)} to {list(new)}"
        if fit.tied:
            name, held = next(iter(sorted(fit.tied.items())))
            made["tied"] = f"{len(fit.tied)}, such as {name} to {held}"
        if fit.cast:
            made["cast"] = ", ".join(f"{n} from {what}" for what, n in fit.cast.items())
        if fit.dropped:
            count = len(fit.dropped)
            made["left out"] = f"{count} counter{'s' * (count > 1)} of batches"
        return made

    def problems(self) -> list[tuple[str, str, str, str]]:
        """Rows of a table: what is wrong, the name, the checkpoint's shape and the module's."""
        fit = self.fit
        rows = [("missing", n, "", "") for n in fit.missing]
        rows += [("unexpected", n, "", "") for n in fit.unexpected]
        shapes = sorted(fit.mismatched.items())
        return rows + [("shape", n, str(list(a)), str(list(b))) for n, (a, b) in shapes]


def load_into(
    module: Any, path: Path, key: str, rules: Sequence[Rule], strict: bool
) -> LoadedCheckpoint:
    """Give a module the weights of a checkpoint.

    Args:
        module: of Treadle or PyTorch.
        path: a file of Treadle, MegEngine, PyTorch or safetensors, or a directory.
        key: of the state dict in it.
        rules: of renaming; see `serialization.fitting.renamed`.
        strict: give it none unless all fit; else those that do.

    Raises:
        LoadError, CheckpointError: the checkpoint cannot be read, or a rule makes no sense.
    """
    state, chosen = read_state(path, key)
    count = len(state)
    handling = torch_modules(module)
    if handling is not None:
        wanted, handles = handling.state_of(module), handling.handles_of(module)
    else:
        wanted, handles = module.state_dict(), module.state_dict(keep_var=True)
    named, prefix = without_prefix(renamed(state, rules) if rules else state, wanted)
    fit = fit_state(named, wanted, shared_names(handles))
    if fit.is_whole or not strict:
        if handling is not None:
            handling.load_state(module, fit.values)
        else:
            module.load_state_dict({**wanted, **fit.values})
    return LoadedCheckpoint(fit, count, chosen, prefix)


def listed(rows: Sequence[tuple[str, str, str, str]]) -> list[tuple[str, str, str, str]]:
    """The first rows, and how many there are besides."""
    more = len(rows) - _LISTED
    return [*rows[:_LISTED], *([("", f"and {more} more", "", "")] if more > 0 else [])]


def came_from(path: Path) -> dict[str, Any]:
    """Name and digest of a checkpoint; of a directory, that of the digests of its weights."""
    if not path.is_dir():
        return {"file": path.name, "sha256": _digest(path).hex()}
    digests = (_digest(path / name) for name in load_directory(path).files)
    return {"file": path.name, "sha256": hashlib.sha256(b"".join(digests)).hexdigest()}


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
