"""Errors of the hub, with MegEngine's names."""

from __future__ import annotations

from treadle.base.errors import TreadleError


class HubError(TreadleError, RuntimeError):
    """A repository's entry file or an entry in it is missing, or lacks what it depends on."""

    code = "T21"


class UntrustedRepo(HubError):
    """Code from elsewhere would run, and nobody has agreed to that."""


class FetcherError(TreadleError, RuntimeError):
    """A repository cannot be brought here, or is damaged here. Base of the classes below."""

    code = "T22"


class InvalidRepo(FetcherError, ValueError):
    """The name of a repository or branch is malformed, or its files are not what they should be."""


class InvalidGitHost(FetcherError, ValueError):
    """The name of the host is malformed."""


class InvalidProtocol(FetcherError, ValueError):
    """The protocol is none of those that are supported."""


class GitPullError(FetcherError):
    """git could not get the repository or branch."""


class GitCheckoutError(FetcherError):
    """git could not get the commit, or got another one."""
