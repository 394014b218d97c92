"""Entries of a repository: the functions of its `hubconf.py`."""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from treadle.hub import trust
from treadle.hub.cache import fetched
from treadle.hub.exceptions import HubError, InvalidRepo
from treadle.hub.location import parse
from treadle.hub.tools import check_module_exists, load_module

_CONF = "hubconf.py"
_DEPENDENCIES = "dependencies"
_HOST, _PROTOCOL = "github.com", "HTTPS"

Repo = str | os.PathLike[str]


def import_module(
    repo_info: Repo,
    git_host: str = _HOST,
    use_cache: bool = True,
    commit: str | None = None,
    protocol: str = _PROTOCOL,
    *,
    trust_repo: bool | None = None,
) -> ModuleType:
    """Run a repository's `hubconf.py` and return it as a module.

    Args:
        repo_info: "owner/name" or "owner/name:branch" on a git host (branch `master`, or else the
            host's own choice, if none is named); an https, ssh or file URL of a git repository,
            with "#branch" behind it; or a local directory, as a `Path` or as text that begins
            with `/`, `./`, `../` or `~`. A tag may stand for a branch.
        git_host: name of the host, for the first form.
        use_cache: use what was fetched before, without a network; else look for something newer.
        commit: id of the commit to use, at least its first 7 digits.
        protocol: "HTTPS" or "SSH", for the first form.
        trust_repo: whether the code may run with your rights. If None, it may if
            `TREADLE_HUB_TRUST` names the repository or somebody has said yes to the question that
            is asked at a terminal. Code in a local directory is yours and always may.

    Raises:
        UntrustedRepo: nobody has agreed to run the code.
        FetcherError: the repository cannot be fetched or is damaged; see its subclasses.
        HubError: the repository has no `hubconf.py`.
        Exception: whatever the code raises.
    """
    folder = _folder(repo_info, git_host, use_cache, commit, protocol, trust_repo)
    with _importable(folder):
        return _run(folder)


def list(
    repo_info: Repo,
    git_host: str = _HOST,
    use_cache: bool = True,
    commit: str | None = None,
    protocol: str = _PROTOCOL,
    *,
    trust_repo: bool | None = None,
) -> builtins.list[str]:
    """Return the names of the functions and classes in a repository's `hubconf.py`.

    That runs the file. Arguments and errors are those of `import_module`.
    """
    module = import_module(repo_info, git_host, use_cache, commit, protocol, trust_repo=trust_repo)
    return [n for n in dir(module) if not n.startswith("_") and callable(getattr(module, n))]


def load(
    repo_info: Repo,
    entry: str,
    *args: Any,
    git_host: str = _HOST,
    use_cache: bool = True,
    commit: str | None = None,
    protocol: str = _PROTOCOL,
    trust_repo: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Call a function of a repository's `hubconf.py`, which usually makes a model.

    Args:
        repo_info: see `import_module`, as those without words here.
        entry: name of the function.
        *args: for the function.
        git_host: name of the host.
        use_cache: use what was fetched before.
        commit: id of the commit to use.
        protocol: "HTTPS" or "SSH".
        trust_repo: whether the code may run.
        **kwargs: for the function, such as `pretrained=True`.

    Raises:
        HubError: there is no such function, or something it depends on is not installed.
        Exception: whatever the function raises, and what `import_module` does.
    """
    folder = _folder(repo_info, git_host, use_cache, commit, protocol, trust_repo)
    with _importable(folder):
        module = _run(folder)
        function = _entry(module, entry)
        _check_dependencies(module)
        return function(*args, **kwargs)


def help(
    repo_info: Repo,
    entry: str,
    git_host: str = _HOST,
    use_cache: bool = True,
    commit: str | None = None,
    protocol: str = _PROTOCOL,
    *,
    trust_repo: bool | None = None,
) -> str | None:
    """Return the docstring of a function of a repository's `hubconf.py`; None if it has none.

    That runs the file. Arguments and errors are those of `import_module`.

    Raises:
        HubError: there is no such function.
    """
    module = import_module(repo_info, git_host, use_cache, commit, protocol, trust_repo=trust_repo)
    return _entry(module, entry).__doc__


def _folder(
    repo_info: Repo,
    git_host: str,
    use_cache: bool,
    commit: str | None,
    protocol: str,
    trust_repo: bool | None,
) -> Path:
    """The directory of a repository whose code may run."""
    place = parse(repo_info, git_host, commit, protocol)
    if isinstance(place, Path):
        return place
    folder, found = fetched(place, use_cache)
    trust.require(place, found, folder, trust_repo)
    return folder


def _run(folder: Path) -> ModuleType:
    path = folder / _CONF
    if not path.is_file():
        raise HubError(f"hub: {folder}", f"the repository has no {_CONF}")
    if not path.resolve().is_relative_to(folder.resolve()):
        raise InvalidRepo(f"hub: {folder}", f"{_CONF} is a link that leads out of the repository")
    return load_module("hubconf", path)


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Make the repository's files importable in the block, without writing bytecode among them."""
    writes = sys.dont_write_bytecode
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes
        if str(folder) in sys.path:
            sys.path.remove(str(folder))


def _entry(module: ModuleType, name: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if not callable(found):
        public = [n for n in dir(module) if not n.startswith("_")]
        offered = [n for n in public if callable(getattr(module, n))]
        raise HubError(
            "hub",
            f"Cannot find callable {name} in {_CONF}",
            hint=f"there is {', '.join(offered)}" if offered else "",
        )
    checked: Callable[..., Any] = found
    return checked


def _check_dependencies(module: ModuleType) -> None:
    needed = getattr(module, _DEPENDENCIES, None) or ()
    missing = [name for name in needed if not check_module_exists(name)]
    if missing:
        raise HubError("hub", f"Missing dependencies: {', '.join(missing)}", hint="install them")
