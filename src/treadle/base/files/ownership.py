"""Ownership of files: folders that only this user can write to, and files that only this user can
change.

Whoever can write into a folder, or rename one above it, decides what is read there. That matters
where what is read is code, or a key.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from pathlib import Path

_UNMAPPED = 65534
"""Owner that a container shows for users it has no number for, such as the machine's root."""


def exposed(folder: str | os.PathLike[str]) -> str:
    """Return in words how somebody else could put files into a folder; "" where nobody can.

    The folder must be this user's own, closed to other writers and no symbolic link. Those above it
    may be root's or lead on by links of this user's, and must be closed, too; in one that all may
    write to, such as /tmp, the sticky bit keeps others from replacing it.

    Raises:
        OSError: it is not there, or cannot be looked at.
    """
    path = os.path.abspath(folder)
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return "is a symbolic link"
    if not stat.S_ISDIR(status.st_mode):
        return "is not a folder"
    if status.st_uid != os.geteuid():
        return "belongs to another user"
    if _others_write(status):
        return "can be written by others"
    for above in {*Path(path).parents, *Path(os.path.realpath(path)).parents}:
        if _is_open(os.lstat(above)):
            return f"lies in {above}, where others can put another in its place"
    return ""


def _is_open(status: os.stat_result) -> bool:
    """Return whether others can rename what is in a folder, or lead a link elsewhere."""
    mode, mine = status.st_mode, os.geteuid()
    if status.st_uid not in (mine, 0, _UNMAPPED):
        return True
    if stat.S_ISLNK(mode) or mode & stat.S_ISVTX:
        return False
    return _others_write(status)


def _others_write(status: os.stat_result) -> bool:
    mode = status.st_mode
    return bool(mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not _is_alone(status.st_gid)))


def _is_alone(group: int) -> bool:
    """Return whether a group is the one that many systems make for a user, under the same name."""
    try:
        found = grp.getgrgid(group)
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return found.gr_name == name and set(found.gr_mem) <= {name}


def is_own(status: os.stat_result) -> bool:
    """Return whether a file is a regular one of this user's that nobody else can write."""
    mine = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    return mine and not _others_write(status)


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are not there, for this user alone.

    Raises:
        OSError: it cannot be made.
    """
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process makes it, too
            each.mkdir(mode=0o700)


def read_own(path: Path, secret: bool = False) -> tuple[bytes, str]:
    """The content of a file of this user's, and why it is not taken, in words; b"" goes with that.

    Args:
        path: of the file; its folder must be closed to others, too.
        secret: nobody else may be able to read it either.

    Raises:
        OSError: it is not there, or cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        problem = exposed(path.parent)
        if problem:
            return b"", f"{path.parent} {problem}"
        if not is_own(status):
            return b"", f"{path} belongs to or can be written by others"
        if secret and status.st_mode & (stat.S_IRGRP | stat.S_IROTH):
            return b"", f"{path} can be read by others"
        return file.read(), ""


def write_own(path: Path, content: bytes, *, replace: bool = True) -> None:
    """Write a file that this user alone can read and write, in one step.

    Raises:
        FileExistsError: it is there, and not to be replaced.
        OSError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(content)
        if replace:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


__all__ = ["exposed", "is_own", "make_private", "read_own", "write_own"]
