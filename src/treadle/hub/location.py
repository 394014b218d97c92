"""Locations of repositories: parsed from what the user wrote, with every part checked.

Each part ends up in the arguments of a program or in a path, so each has a narrow alphabet: no
option (`-x`), no way up (`..`), no other transport (`ext::`) passes.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote, urlsplit

from treadle.hub.exceptions import InvalidGitHost, InvalidProtocol, InvalidRepo

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]*")
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_LABEL = r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?"
# The last part ends in a letter, which tells names from addresses of numbers.
_DOMAIN = re.compile(rf"(?:{_LABEL}\.)+[a-z0-9_-]{{0,62}}[a-z]")
_ADDRESS = re.compile(r"(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)")
_AUTHORITY = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*(?::\d{1,5})?")
_URL_PATH = re.compile(r"/[A-Za-z0-9._~/+%-]+")

PROTOCOLS = ("HTTPS", "SSH")
_LOCAL_STARTS = ("/", "./", "../", "~", ".\\", "..\\")


@dataclass(frozen=True, slots=True)
class Repository:
    """A git repository somewhere.

    Attributes:
        url: what git is given.
        ref: branch or tag; None for the usual one.
        commit: its id or the first digits of it, if pinned.
    """

    url: str
    ref: str | None
    commit: str | None

    @property
    def identity(self) -> str:
        """Host and path, the same for every protocol: `github.com/owner/name`."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        return (host + parts.path).removesuffix("/").removesuffix(".git")

    @property
    def key(self) -> str:
        """Name of the repository's directory in the cache."""
        name = re.sub(r"[^A-Za-z0-9._-]", "_", self.identity.rsplit("/", 1)[-1])
        return f"{name[:40]}-{sha256(self.identity.encode()).hexdigest()[:16]}"


def parse(
    repo_info: str | os.PathLike[str], git_host: str, commit: str | None, protocol: str
) -> Repository | Path:
    """Read where a repository is.

    Args:
        repo_info: "owner/name" or "owner/name:ref" on a host; an https, ssh or file URL of a git
            repository, with "#ref" behind it; or a local directory, as a `Path` or as text that
            begins with `/`, `./`, `../` or `~`.
        git_host: the host, for the first form.
        commit: a commit's id, at least 7 digits of it.
        protocol: "HTTPS" or "SSH", for the first form.

    Raises:
        InvalidRepo: name, ref, URL or commit is malformed, or the directory does not exist.
        InvalidGitHost: the host is malformed.
        InvalidProtocol: another protocol.
    """
    if protocol not in PROTOCOLS:
        raise InvalidProtocol(
            "hub",
            f"Invalid protocol, the value should be one of {', '.join(PROTOCOLS)}.",
            saw=repr(protocol),
        )
    if commit is not None:
        commit = _checked("commit", commit.lower(), _COMMIT)
    if not isinstance(repo_info, str) or repo_info.startswith(_LOCAL_STARTS):
        return _directory(os.fspath(repo_info), commit)
    if "://" in repo_info:
        return _from_url(repo_info, commit)
    return _on_host(repo_info, git_host, commit, protocol)


def _directory(text: str, commit: str | None) -> Path:
    path = Path(text).expanduser().absolute()
    if not path.is_dir():
        raise InvalidRepo("hub", f"{path} is not a directory")
    if commit is not None:
        hint = f"use {path.as_uri()!r}, if it is a git repository"
        raise InvalidRepo("hub", "a directory is used as it is, without a commit", hint=hint)
    return path


def _from_url(text: str, commit: str | None) -> Repository:
    url, _, ref = text.partition("#")
    parts = urlsplit(url)
    if parts.scheme not in ("https", "ssh", "file"):
        raise InvalidProtocol("hub", "a URL begins with https, ssh or file", saw=parts.scheme)
    is_file = parts.scheme == "file"
    if (is_file and parts.netloc) or (not is_file and not _AUTHORITY.fullmatch(parts.netloc)):
        raise InvalidGitHost("hub", "the host of this URL is malformed", saw=repr(text))
    if parts.query or not _URL_PATH.fullmatch(parts.path) or _leads_up(parts.path):
        raise InvalidRepo("hub", "the path of this URL is malformed", saw=repr(text))
    return Repository(url, _checked_ref(ref) if ref else None, commit)


def _on_host(text: str, git_host: str, commit: str | None, protocol: str) -> Repository:
    names, colon, ref = text.partition(":")
    parts = names.split("/")
    if len(parts) != 2 or (colon and not ref):
        raise InvalidRepo(
            "hub",
            f"repo_info: {text!r} is invalid.",
            hint='write "owner/name", "owner/name:branch", a URL, or "./directory"',
        )
    owner, name = (_checked("repository", part, _NAME) for part in parts)
    if not (_DOMAIN.fullmatch(git_host.lower()) or _ADDRESS.fullmatch(git_host)):
        raise InvalidGitHost("hub", f"git_host: {git_host!r} is malformed.")
    start = f"https://{git_host}" if protocol == "HTTPS" else f"ssh://git@{git_host}"
    url = f"{start}/{owner}/{name.removesuffix('.git')}.git"
    return Repository(url, _checked_ref(ref) if ref else None, commit)


def _checked_ref(ref: str) -> str:
    """A branch or tag; the rules of `git check-ref-format`, and narrower ones."""
    parts = ref.split("/")
    if any(not part or part.startswith(".") or part.endswith((".", ".lock")) for part in parts):
        raise InvalidRepo("hub", "this is not a name of a branch or tag", saw=repr(ref))
    return _checked("branch or tag", ref, _REF)


def _checked(what: str, text: str, pattern: re.Pattern[str]) -> str:
    if not pattern.fullmatch(text) or ".." in text:
        raise InvalidRepo("hub", f"the {what} is malformed", saw=repr(text))
    return text


def _leads_up(path: str) -> bool:
    plain = unquote(path)
    return not plain.isprintable() or any(part in (".", "..") for part in plain.split("/"))
