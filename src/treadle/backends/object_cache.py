"""Compiled code on disk: a private directory of files named by the hash of what they came from.

A file is the data, then a magic number and a digest of its key and the data (after the data, so
that the system's loader can open a library in place). Whatever does not check, an entry under the
name of another one included, is taken for absent and written anew. Writers rename complete files
into place: readers and other writers never see half of one, and a killed writer leaves only a
temporary file, which is swept up later. Whoever can write here can run code as the user, hence a
directory that others may write to, or put another in the place of, is not used at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import stat
import time
import weakref
from pathlib import Path
from typing import Any

from treadle.base.files.ownership import exposed, make_private
from treadle.base.log import get_logger

DEFAULT_LIMIT = 1 << 30
_MAGIC = b"TRDLOBJ2"
_DIGEST = 32
_TRAILER = len(_MAGIC) + _DIGEST
_TEMPORARY = ".partial-"
_FRESH = 3600.0
"""Seconds for which a file's time of use is not renewed, and a temporary file is left alone."""
_WRITES_PER_SWEEP = 256


class ObjectCache:
    """Files of one directory, by key. What fails on disk is logged once and then does without.

    Args:
        directory: made, with its parents, when something is first written.
        limit: bytes above which the files unused for longest are removed.
    """

    def __init__(self, directory: Path, limit: int = DEFAULT_LIMIT) -> None:
        self._directory = directory
        self._limit = limit
        self._writes = 0
        self._said = False
        self._trusted: bool | None = None

    def path(self, key: str) -> Path:
        """Return the path of a key's data, whether or not it is there."""
        return self._directory / key

    def get(self, key: str) -> bytes | None:
        """The data written under a key, or None where there is none that checks."""
        if not self._is_private():
            return None
        path = self.path(key)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            with open(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                content = file.read() if stat.S_ISREG(status.st_mode) else b""
        except OSError:
            return None
        data = _checked(key, content)
        if data is not None and time.time() - status.st_mtime > _FRESH:
            with contextlib.suppress(OSError):
                os.utime(path)
        return data

    def put(self, key: str, data: bytes) -> bool:
        """Write data under a key; whether that worked."""
        if self._trusted is None:
            with contextlib.suppress(OSError):
                make_private(self._directory)
        if not self._is_private(missing_is_trouble=True):
            return False
        temporary = self._directory / f"{_TEMPORARY}{os.getpid()}-{os.urandom(8).hex()}"
        try:
            _write(temporary, data + _trailer(key, data))
            os.replace(temporary, self.path(key))
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            self._say(f"cannot be written ({error.strerror or error})")
            return False
        if self._writes % _WRITES_PER_SWEEP == 0:
            self.sweep()
        self._writes += 1
        return True

    def sweep(self) -> None:
        """Remove files left by killed writers and, above the limit, those unused for longest."""
        files: list[tuple[float, int, str]] = []
        now = time.time()
        with contextlib.suppress(OSError), os.scandir(self._directory) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # another process may remove it meanwhile
                    status = entry.stat(follow_symlinks=False)
                    if not stat.S_ISREG(status.st_mode):
                        continue
                    if not entry.name.startswith(_TEMPORARY):
                        files.append((status.st_mtime, status.st_size, entry.path))
                    elif now - status.st_mtime > _FRESH:
                        os.unlink(entry.path)
        excess = sum(size for _, size, _ in files) - self._limit
        for _, size, path in sorted(files):
            if excess <= 0:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            excess -= size

    def _is_private(self, missing_is_trouble: bool = False) -> bool:
        """Return whether the directory is there, ours, and closed to writers other than us.

        Where it is not, a temporary one takes its place, for this process.
        """
        if self._trusted is None:
            problem = ""
            try:
                problem = exposed(self._directory)
            except OSError as error:
                if not missing_is_trouble:
                    return False
                problem = f"cannot be made ({error.strerror or error})"
            self._trusted = True
            if problem:
                self._say(problem)
                self._trusted = self._goes_elsewhere()
        return self._trusted

    def _goes_elsewhere(self) -> bool:
        """Take a temporary directory; whether there is one."""
        tempfile: Any = importlib.import_module("tempfile")  # seldom needed, and not quick
        try:
            made = tempfile.mkdtemp(prefix="treadle-")
        except OSError:
            return False
        self._directory = Path(made)
        remove = importlib.import_module("shutil").rmtree
        weakref.finalize(self, _removed, remove, made, os.getpid())
        return True

    def _say(self, problem: str) -> None:
        if not self._said:
            self._said = True
            get_logger().warning(
                "the code cache %s %s: programs are compiled anew in every process; "
                "set TREADLE_CACHE_DIR to a directory of your own",
                self._directory,
                problem,
            )


def _removed(remove: Any, folder: str, process: int) -> None:
    if os.getpid() == process:  # Forks use it, too.
        remove(folder, ignore_errors=True)


def _trailer(key: str, data: bytes) -> bytes:
    """Return the trailer behind the data of a key."""
    state = hashlib.blake2b(key.encode() + b"\0", digest_size=_DIGEST)
    state.update(data)
    return _MAGIC + state.digest()


def _checked(key: str, content: bytes) -> bytes | None:
    """The data of a file's content, if it is that of the key."""
    data = content[:-_TRAILER]
    return data if content[-_TRAILER:] == _trailer(key, data) else None


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
