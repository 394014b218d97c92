"""True if code from elsewhere may run here: asked once per repository, never assumed."""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from pathlib import Path

from treadle.base import env
from treadle.base.files.atomic import write_atomically
from treadle.hub.cache import hub_directory
from treadle.hub.exceptions import UntrustedRepo
from treadle.hub.location import Repository


def require(repository: Repository, commit: str, folder: Path, trust_repo: bool | None) -> None:
    """Make sure that somebody has agreed to run a repository's code.

    That is so if `trust_repo` is true, if `TREADLE_HUB_TRUST` names the repository, if the
    question was answered with yes before, or is now, where somebody sits at a terminal.

    Args:
        repository: where the code is from.
        commit: which state of it.
        folder: where it can be looked at.
        trust_repo: True or False decide for this call; None leaves it to the other ways.

    Raises:
        UntrustedRepo: nobody has.
    """
    if trust_repo or (trust_repo is None and (_is_named(repository) or _is_recorded(repository))):
        return
    if trust_repo is None and _ask(repository, commit, folder):
        _record(repository)
        return
    raise UntrustedRepo(
        f"hub: {repository.identity}",
        "this would run code from there with your rights, and nobody has agreed to that",
        saw=f"commit {commit}, to be read in {folder}",
        hint="after a look at hubconf.py pass trust_repo=True, or set "
        f"TREADLE_HUB_TRUST={repository.identity}",
    )


def _is_named(repository: Repository) -> bool:
    """Return whether the environment names it: host/owner/name, or a pattern with *."""
    patterns = (pattern.strip() for pattern in env.HUB_TRUST.get().split(","))
    return any(fnmatchcase(repository.identity, pattern) for pattern in patterns if pattern)


def _is_recorded(repository: Repository) -> bool:
    return repository.identity in _recorded()


def _recorded() -> list[str]:
    try:
        return _record_file().read_text().splitlines()
    except FileNotFoundError:
        return []


def _record(repository: Repository) -> None:
    lines = [*_recorded(), repository.identity]
    data = "".join(f"{line}\n" for line in lines).encode()
    write_atomically(str(_record_file()), [data], len(data))


def _record_file() -> Path:
    return hub_directory() / "trusted"


def _ask(repository: Repository, commit: str, folder: Path) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sys.stderr.write(
        f"The hub is about to run code from {repository.identity} (commit {commit[:12]}) with your "
        f"rights.\nIt can be read in {folder}.\nRun it, now and from now on? [y/N] "
    )
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
