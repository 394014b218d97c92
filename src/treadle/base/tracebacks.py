"""Tracebacks without the frames of Treadle's own, where nobody catches an error.

What is hidden: frames between two of the user's, such as those from the call of a compiled function
to its body; and those behind the user's last one if the error is one of Treadle's, which says what
was wrong and where. Other errors keep the latter, since they may be faults of Treadle. Errors
themselves are untouched: debuggers, `logging` and `traceback` see every frame.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

from treadle.base.env import TRACEBACK

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
PASSING = frozenset((contextlib.__file__, dataclasses.__file__, functools.__file__))
"""Files of the standard library that stand between Treadle's frames on its behalf."""


def install() -> None:
    """Shorten tracebacks of uncaught errors in this process, its threads and notebooks."""
    before, in_threads = sys.excepthook, threading.excepthook

    def hook(kind: type[BaseException], error: BaseException, tb: TracebackType | None, /) -> None:
        with shortened(error, tb) as short:
            before(kind, error, short)

    def of_thread(args: threading.ExceptHookArgs, /) -> None:
        if args.exc_value is None:
            in_threads(args)
            return
        with shortened(args.exc_value, args.exc_traceback) as short:
            fields = args.exc_type, args.exc_value, short, args.thread
            in_threads(threading.ExceptHookArgs(fields))

    sys.excepthook, threading.excepthook = hook, of_thread
    _install_in_notebook()


def _install_in_notebook() -> None:
    """IPython prints tracebacks by itself; somebody else's handler there is left alone."""
    found = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = found() if found is not None else None
    if shell is None or getattr(shell, "custom_exceptions", None):
        return

    def handler(
        shell: Any, kind: type[BaseException], error: BaseException, tb: Any, tb_offset: Any = None
    ) -> None:
        with shortened(error, tb) as short:
            shell.showtraceback((kind, error, short), tb_offset=tb_offset)
        sys.last_traceback = tb  # What %debug opens.

    shell.set_custom_exc((Exception,), handler)


@contextlib.contextmanager
def shortened(error: BaseException, tb: TracebackType | None) -> Iterator[TracebackType | None]:
    """Shorten the tracebacks of the error and its causes in the block; yields the one for `tb`.

    An interrupt keeps its own: it says where the program was, in our frames as well.
    """
    if TRACEBACK.get() == "full" or not isinstance(error, Exception):
        yield tb
        return
    whole = [(e, e.__traceback__, e.__suppress_context__) for e in _chain(error)]
    short, hidden = _without_own(error, tb)
    try:
        for found, trace, _ in whole:
            found.__traceback__ = short if trace is tb else _without_own(found, trace)[0]
        for found, _, _ in whole:
            _quiet(found)
        if hidden:
            error.add_note(f"  ({hidden} of Treadle's own frames hidden: {_HOW} shows them)")
        yield short
    finally:
        for found, trace, suppressed in whole:
            found.__traceback__, found.__suppress_context__ = trace, suppressed
        if hidden:
            error.__notes__.pop()


_HOW = f"{TRACEBACK.names[0]}=full"


def _quiet(error: BaseException) -> None:
    """Hide causes that lie in our frames alone behind an error of ours, except for their messages.

    What was only being handled at the time is how Treadle looks things up.
    """
    if not _explains_itself(error):
        return
    cause, context = error.__cause__, error.__context__
    if cause is not None and _only_own(cause.__traceback__):
        cause.__traceback__ = None
    elif context is not None and not _explains_itself(context):
        error.__suppress_context__ |= _only_own(context.__traceback__)


def _only_own(tb: TracebackType | None) -> bool:
    return all(_is_own(entry.tb_frame) for entry in _entries(tb))


def _entries(tb: TracebackType | None) -> list[TracebackType]:
    found = []
    while tb is not None:
        found.append(tb)
        tb = tb.tb_next
    return found


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, its causes and contexts, and the members of groups, each once."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        found = waiting.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        waiting += [found.__cause__, found.__context__]
        if isinstance(found, BaseExceptionGroup):
            waiting += found.exceptions


def _without_own(
    error: BaseException, tb: TracebackType | None
) -> tuple[TracebackType | None, int]:
    """The traceback without frames of ours, and how many those were.

    Where nothing else is in it, as in Treadle's own commands, it is left as it is.
    """
    entries = _entries(tb)
    own = [_is_own(entry.tb_frame) for entry in entries]
    for i, entry in enumerate(entries):
        if entry.tb_frame.f_code.co_filename in PASSING:
            own[i] = any(own[max(i - 1, 0) : i + 2])
    last = max((i for i, ours in enumerate(own) if not ours), default=-1)
    explained = _explains_itself(error)
    kept = [
        e for i, e in enumerate(entries) if not own[i] or last < 0 or (i > last and not explained)
    ]
    if len(kept) == len(entries):
        return (entries[0] if entries else None), 0
    made: TracebackType | None = None
    for entry in reversed(kept):
        made = TracebackType(made, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return made, len(entries) - len(kept)


def _explains_itself(error: BaseException) -> bool:
    """Return whether it is one of Treadle's; their class need not be imported to tell."""
    errors = sys.modules.get("treadle.base.errors")
    return errors is not None and isinstance(error, errors.TreadleError)


def _is_own(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return is_own_file(file) or (file == "<string>" and is_generated(frame))


def is_own_file(file: str) -> bool:
    """Return whether a file is Treadle's."""
    return file.startswith(_PACKAGE)


def is_generated(frame: FrameType) -> bool:
    """Return whether a frame runs a constructor that dataclasses or ops generate for Treadle.

    Those have no file, but their module's name.
    """
    return str(frame.f_globals.get("__name__")).startswith("treadle.")
