"""Compiled code on disk: a private directory of files named by the hash of what they came from.

A file is the data, then a magic number and the SHA-256 of the data (after the data, so that the
system's loader can open a library in place). Whatever does not check is taken for absent and
written anew. Writers rename complete files into place: readers and other writers never see half of
one, and a killed writer leaves only a temporary file, which is swept up later. Whoever can write
here can run code as the user, hence a directory that others may write to is not used at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import time
from pathlib import Path

from treadle.base.log import get_logger

DEFAULT_LIMIT = 1 << 30
_MAGIC = b"TRDLOBJ1"
_TRAILER = len(_MAGIC) + hashlib.sha256().digest_size
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
        """Where the data of a key is, if it is."""
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
        data = _checked(content)
        if data is not None and time.time() - status.st_mtime > _FRESH:
            with contextlib.suppress(OSError):
                os.utime(path)
        return data

    def put(self, key: str, data: bytes) -> bool:
        """Write data under a key; whether that worked."""
        if self._trusted is None:
            with contextlib.suppress(OSError):
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._is_private(missing_is_trouble=True):
            return False
        temporary = self._directory / f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}"
        try:
            _write(temporary, data + _MAGIC + hashlib.sha256(data).digest())
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
        """Whether the directory is there, ours, and closed to writers other than us."""
        if self._trusted is None:
            try:
                status = os.stat(self._directory)
            except OSError as error:
                if missing_is_trouble:
                    self._say(f"cannot be made ({error.strerror or error})")
                return False
            mine = status.st_uid == os.geteuid() and stat.S_ISDIR(status.st_mode)
            self._trusted = mine and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if not self._trusted:
                self._say("belongs to or can be written by others")
        return self._trusted

    def _say(self, problem: str) -> None:
        if not self._said:
            self._said = True
            get_logger().warning(
                "the code cache %s %s: programs are compiled anew in every process; "
                "set TREADLE_CACHE_DIR to a directory of your own",
                self._directory,
                problem,
            )


def _checked(content: bytes) -> bytes | None:
    """The data of a file's content, if the checksum is right."""
    data, trailer = content[:-_TRAILER], content[-_TRAILER:]
    if trailer != _MAGIC + hashlib.sha256(data).digest():
        return None
    return data


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
