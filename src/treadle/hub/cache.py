"""Repositories kept on disk: one directory per commit, compared with its hash before each use.

<MGE_HOME>/hub/<name>-<hash of host and path>/<commit>/       the files
                                              <commit>.sha256 what they must be
                                              refs/<hash>     the commit a branch stood at
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from hashlib import sha256
from pathlib import Path

from treadle.base import env
from treadle.base.files.atomic import write_atomically
from treadle.hub import git
from treadle.hub.exceptions import FetcherError, InvalidRepo
from treadle.hub.location import Repository

_BYTECODE = "__pycache__"


def hub_directory() -> Path:
    """Return the directory of repositories and of the record of trust; made for this user alone.

    Raises:
        FetcherError: others may write to it, so what is in it may be theirs.
    """
    path = env.home_directory() / "hub"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_mode & stat.S_IWOTH:
        raise FetcherError("hub", f"anybody may write to {path}", hint=f"chmod o-w {path}")
    return path


def fetched(repository: Repository, use_cache: bool) -> tuple[Path, str]:
    """The directory with the files of a repository, and the commit they are of.

    With `use_cache`, what was fetched before is used without looking for anything newer, and
    without a network.

    Raises:
        FetcherError: the repository cannot be had, or what is cached has changed since.
    """
    home = hub_directory() / repository.key
    commit = _known_commit(home, repository) if use_cache else None
    if commit is None:
        wanted = repository.commit or git.newest_commit(repository)
        commit = _store(home, repository, wanted)
        _remember(home, repository, commit)
    verify(home / commit)
    return home / commit, commit


def verify(folder: Path) -> None:
    """Compare cached files with their hash.

    Raises:
        FetcherError: they have changed since they were fetched.
    """
    for compiled in sorted(folder.rglob(_BYTECODE)):
        shutil.rmtree(compiled)
    if _digest_file(folder).read_text().strip() != digest_of_tree(folder):
        raise FetcherError(
            str(folder),
            "the files differ from those that were fetched",
            hint="use_cache=False fetches them again",
        )


def digest_of_tree(folder: Path) -> str:
    """A SHA-256 over names, kinds and contents of all files.

    Raises:
        InvalidRepo: a link leads out of the folder.
    """
    top = folder.resolve()
    total = sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            if not path.resolve().is_relative_to(top):
                raise InvalidRepo(
                    str(folder),
                    "a link leads out of the repository",
                    saw=f"{name} -> {os.readlink(path)}",
                )
            kind, content = b"link", os.readlink(path).encode()
        elif path.is_file():
            kind, content = b"file", path.read_bytes()
        else:
            continue
        total.update(b"%s %s %s\n" % (kind, sha256(content).hexdigest().encode(), name.encode()))
    return total.hexdigest()


def _known_commit(home: Path, repository: Repository) -> str | None:
    if repository.commit is not None:
        found = [path.name for path in home.glob(f"{repository.commit}*") if path.is_dir()]
    else:
        try:
            found = [_ref_file(home, repository).read_text().strip()]
        except OSError:
            found = []
    return found[0] if len(found) == 1 and _digest_file(home / found[0]).exists() else None


def _store(home: Path, repository: Repository, wanted: str) -> str:
    """Fetch a commit beside its place, then move it there whole."""
    home.mkdir(mode=0o700, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=home))
    try:
        commit = git.check_out(repository, wanted, temporary)
        shutil.rmtree(temporary / ".git")
        digest = digest_of_tree(temporary)
        target = home / commit
        # Another process may have been faster, or the files there may be damaged.
        old = Path(tempfile.mkdtemp(prefix=".old-", dir=home))
        with contextlib.suppress(FileNotFoundError):
            os.rename(target, old / commit)
        os.rename(temporary, target)
        _write(_digest_file(target), digest)
        shutil.rmtree(old)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return commit


def _remember(home: Path, repository: Repository, commit: str) -> None:
    if repository.commit is None:
        path = _ref_file(home, repository)
        path.parent.mkdir(exist_ok=True)
        _write(path, commit)


def _digest_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.sha256")


def _ref_file(home: Path, repository: Repository) -> Path:
    return home / "refs" / sha256((repository.ref or "").encode()).hexdigest()[:16]


def _write(path: Path, text: str) -> None:
    data = text.encode() + b"\n"
    write_atomically(str(path), [data], len(data))
