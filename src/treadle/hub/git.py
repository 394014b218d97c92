"""git, run as a program: arguments in a list, no shell, no prompts, few transports."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from treadle.base import env
from treadle.hub.exceptions import FetcherError, GitCheckoutError, GitPullError
from treadle.hub.location import Repository

# A clone over a slow line may take minutes; what takes longer has stalled.
_TIMEOUT_SECONDS = 900
_FULL_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

_SETTINGS = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ALLOW_PROTOCOL": "https:ssh:file",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "LC_ALL": "C",
}
# Set while git runs a hook, these would lead it into another repository.
_FOREIGN = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
# For writing files, nothing of the user's settings counts: they may name programs as filters.
_BARE = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}


def newest_commit(repository: Repository) -> str:
    """Ask the other side for the id of the commit that a branch or tag stands at.

    Without a ref it is the branch `master`, as in MegEngine, or where there is none the one that
    the other side calls its own.

    Raises:
        GitPullError: the repository cannot be reached, or has no such branch or tag.
    """
    ref = repository.ref or "master"
    # A tag of its own right is followed by the commit it stands for, marked ^{}.
    wanted = [f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}"]
    wanted += [] if repository.ref else ["HEAD"]
    done = _git(["ls-remote", "--", repository.url, *wanted])
    if done.returncode:
        raise _pull_error(repository, done)
    lines = (line.split("\t") for line in done.stdout.splitlines())
    found = {name: commit for commit, name in lines}
    for name in wanted:
        if name in found:
            return found[name]
    raise GitPullError(
        repository.url, f"there is no branch or tag {ref!r}", hint="name another one after a colon"
    )


def check_out(repository: Repository, commit: str, target: Path) -> str:
    """Bring the files of a commit into an empty directory; returns the commit's full id.

    An object's id is the hash of its content, which git computes on arrival; so a full id decides
    what every file holds. Submodules are left out.

    Raises:
        GitPullError: the repository cannot be reached.
        GitCheckoutError: it has no such commit.
    """
    _demand(_git(["init", "--quiet", str(target)]), repository)
    if _FULL_ID.fullmatch(commit):
        done = _fetch(repository, target, ["--depth=1"], [commit])
    # Short ids, and servers that give out only what branches stand at.
    if not _FULL_ID.fullmatch(commit) or done.returncode:
        everything = ["+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"]
        done = _fetch(repository, target, [], everything)
        if done.returncode:
            raise _pull_error(repository, done)
    named = _git(["rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"], target)
    full = named.stdout.strip()
    if named.returncode or not full.startswith(commit):
        raise GitCheckoutError(repository.url, f"there is no commit {commit}")
    _demand(_git(["checkout", "--quiet", "--detach", "--force", full], target, _BARE), repository)
    return full


def _fetch(
    repository: Repository, target: Path, options: list[str], refs: list[str]
) -> subprocess.CompletedProcess[str]:
    options = ["--quiet", "--no-tags", "--no-recurse-submodules", *options]
    return _git(["fetch", *options, "--", repository.url, *refs], target)


def _git(
    arguments: list[str], folder: Path | None = None, more: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = ["git", "-c", "core.hooksPath=/dev/null", *arguments]
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env=env.of_child({**_SETTINGS, **(more or {})}, _FOREIGN),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
        )
    except FileNotFoundError as error:
        raise FetcherError("hub", "git is not installed", hint="apt install git") from error
    except subprocess.TimeoutExpired as error:
        raise FetcherError(
            "hub", f"git did not finish within {_TIMEOUT_SECONDS} s", saw=str(command)
        ) from error


def _demand(done: subprocess.CompletedProcess[str], repository: Repository) -> None:
    if done.returncode:
        raise GitCheckoutError(repository.url, "git failed", saw=done.stderr.strip())


def _pull_error(repository: Repository, done: subprocess.CompletedProcess[str]) -> GitPullError:
    return GitPullError(
        repository.url,
        "the repository cannot be reached",
        saw=done.stderr.strip(),
        hint="check its name, your network and your rights; what is cached works offline",
    )
