"""Failures of workers on their way to the caller: deaths, time-outs, exceptions, bad values."""

from __future__ import annotations

import pickle
import signal
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from treadle.base.errors import TreadleError

_SHOWN = 8
_DEEPEST = 6


class DataLoaderError(TreadleError, RuntimeError):
    """A loader's worker died, took too long, or could not be given or give back its objects."""

    code = "T17"


class ImageError(TreadleError, ValueError):
    """An image file is damaged, cut off, too large or no image."""

    code = "T18"


class DatasetError(TreadleError, ValueError, RuntimeError):
    """Files of a dataset are missing, damaged or of another kind."""

    code = "T19"


class WorkerTraceback(Exception):
    """The traceback of an exception in a worker, shown as the cause of the one raised here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass(frozen=True, slots=True)
class RemoteException:
    """An exception on its way out of a worker.

    Attributes:
        pickled: the exception, or None if it does not survive pickling.
        summary: its type and message.
        text: its whole traceback.
        notes: what was added to it on the way up; some exceptions lose theirs in pickling.
    """

    pickled: bytes | None
    summary: str
    text: str
    notes: tuple[str, ...]

    @classmethod
    def capture(cls, error: Exception) -> RemoteException:
        """Take an exception apart for the journey."""
        summary = "".join(traceback.format_exception_only(type(error), error)[:1]).strip()
        notes = tuple(getattr(error, "__notes__", ()))
        text = "".join(traceback.format_exception(error))
        return cls(_survivor(error), summary, text, notes)

    def restore(self, where: str) -> Exception:
        """Return the exception, of its own type if possible, with the worker's traceback.

        It is a RuntimeError besides, where its class allows for that: MegEngine raises one.
        """
        error = self._unpickled()
        if error is None:
            error = DataLoaderError("DataLoader", f"{where} raised {self.summary}")
        error = _as_runtime_error(error)
        present = getattr(error, "__notes__", ())
        # MegEngine's and PyTorch's words, which programs look for.
        for note in (*self.notes, f"Caught {type(error).__name__} in {where}"):
            if note not in present:
                error.add_note(note)
        error.__cause__ = WorkerTraceback(self.text)
        return error

    def _unpickled(self) -> Exception | None:
        """The exception, unless its class lives in the worker only."""
        try:
            error: Exception | None = None if self.pickled is None else pickle.loads(self.pickled)
        except Exception:
            return None
        return error


def _as_runtime_error(error: Exception) -> Exception:
    """The exception as an instance of a class that derives from its own and RuntimeError."""
    cls = type(error)
    if isinstance(error, RuntimeError):
        return error
    try:
        both = type(cls.__name__, (cls, RuntimeError), {"__module__": cls.__module__})
        made: Exception = both.__new__(both, *error.args)
        made.args = error.args
    except TypeError:  # Two layouts that do not go together, or a constructor of its own.
        return error
    vars(made).update(vars(error))
    return made


def _survivor(error: Exception) -> bytes | None:
    """The pickled exception if the same type comes back from it."""
    try:
        pickled = pickle.dumps(error)
        returned = pickle.loads(pickled)
    except Exception:
        return None
    return pickled if type(returned) is type(error) else None


def describe_exit(code: int | None) -> tuple[str, str]:
    """Say in words how a process ended, and what that suggests."""
    if code is None:
        return "vanished", ""
    if code >= 0:
        return f"exited with code {code}", ""
    try:
        name = f" ({signal.Signals(-code).name})"
    except ValueError:
        name = ""
    return f"killed by signal {-code}{name}", _SIGNAL_HINTS.get(-code, "")


_SIGNAL_HINTS: dict[int, str] = {
    signal.SIGKILL: "if you did not kill it, the system ran out of memory: use fewer workers, "
    "a smaller prefetch_factor or smaller batches",
    signal.SIGSEGV: "native code called by the dataset crashed: run it with num_workers=0 and "
    "`python -X faulthandler`",
    signal.SIGBUS: "shared or file-mapped memory ran out: use fewer workers or smaller batches",
}


def abbreviate(indices: Sequence[Any]) -> str:
    """Print a list of indices, the first few of a long one."""
    if len(indices) <= _SHOWN:
        return str(list(indices))
    shown = ", ".join(map(str, indices[:_SHOWN]))
    return f"[{shown}, ... {len(indices) - _SHOWN} more]"


def find_unpicklable(value: object, path: str, depth: int = 0) -> tuple[str, Exception] | None:
    """Find the innermost part of `value` that cannot be pickled: where it is, and why not."""
    try:
        pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        if depth < _DEEPEST:
            for part_path, part in _parts(value, path):
                found = find_unpicklable(part, part_path, depth + 1)
                if found is not None:
                    return found
        return path, error
    return None


def _parts(value: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f"{path}[{key!r}]", item
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            yield f"{path}[{position}]", item
    elif not isinstance(value, type | FunctionType | ModuleType):
        for name, item in getattr(value, "__dict__", {}).items():
            yield f"{path}.{name}", item
