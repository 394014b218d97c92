"""Replace a file in one step: whoever looks, at whatever moment, finds the old or the new one."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import stat
from collections.abc import Iterable
from typing import TypeAlias

Chunk: TypeAlias = "bytes | memoryview"

_MAX_STEM = 40
_in_progress: set[str] = set()


def write_atomically(path: str, chunks: Iterable[Chunk], size: int) -> None:
    """Write `chunks`, `size` bytes together, to `path`, or leave `path` as it was.

    The bytes go to a temporary file beside the target, are forced to the disk, and take the
    target's name; then the directory is forced to the disk too. A symbolic link is followed. An
    existing file keeps its permission bits, a new one gets what the umask leaves. Temporary files
    of processes that died in a save to the same name are removed.

    Raises:
        OSError: no such directory, no permission, disk full, not a regular file, ...
    """
    target = os.path.realpath(path)
    mode = _mode_of_existing(target, path)
    directory, name = os.path.split(target)
    temporary = os.path.join(directory, _prefix(name) + f"{os.getpid()}.{os.urandom(4).hex()}.tmp")
    _in_progress.add(temporary)
    try:
        _remove_stale(directory, name)
        _write_durably(temporary, chunks, mode)
        os.replace(temporary, target)
        _sync_directory(directory)
    except OSError as error:
        raise _explain(error, path, size) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        _in_progress.discard(temporary)


def _explain(error: OSError, path: str, size: int) -> OSError:
    """The same error (and class) about the file the user named, with the size where that helps."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        reason += f"; {size} bytes are needed"
    return OSError(error.errno, f"cannot save: {reason}", path)


def _mode_of_existing(target: str, path: str) -> int | None:
    """The permission bits of the file about to be replaced, None if there is none."""
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "cannot save: this is a directory", path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "cannot save: not a regular file", path)
    return stat.S_IMODE(mode) & 0o777


def _write_durably(temporary: str, chunks: Iterable[Chunk], mode: int | None) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(temporary, flags, 0o666), "wb") as stream:
        if mode is not None:
            os.chmod(temporary, mode)
        for chunk in chunks:
            stream.write(chunk)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_directory(directory: str) -> None:
    """Make the rename itself survive a power cut."""
    if os.name != "posix":
        return
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems know no fsync of directories; they commit renames at once.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def _prefix(name: str) -> str:
    """Start of all temporary names for a target: its name, then the machine the process is on."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", platform.node())[:_MAX_STEM]
    return f".{name[:_MAX_STEM]}.{host}."


def _remove_stale(directory: str, name: str) -> None:
    """Unlink what dead processes of this machine left behind while saving to `name`."""
    if os.name != "posix":
        return  # there is no harmless way to ask whether a process is alive
    pattern = re.compile(re.escape(_prefix(name)) + r"(\d{1,9})\.[0-9a-f]{8}\.tmp")
    try:
        names = os.listdir(directory)
    except OSError:
        return  # tidying is a courtesy; whether the save can be done is decided by the save
    for found in names:
        match = pattern.fullmatch(found)
        if match and _is_stale(os.path.join(directory, found), int(match[1])):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(directory, found))


def _is_stale(temporary: str, pid: int) -> bool:
    if pid == os.getpid():
        # The process number was reused, as in a restarted container, unless the file is ours.
        return temporary not in _in_progress
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
