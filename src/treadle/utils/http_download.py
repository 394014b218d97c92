"""Downloads that are whole and what was expected, or an error."""

from __future__ import annotations

import hashlib
import os
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from rich.progress import Progress

CHUNK = 1 << 16
SCHEMES = ("http://", "https://")


class HTTPDownloadError(OSError):
    """A download failed; the message says why."""


class Bar:
    """A progress bar on standard error; `None` in its place shows nothing."""

    def __init__(self, total: int, name: str) -> None:
        self._progress = Progress(transient=True)
        self._task = self._progress.add_task(name, total=total or None)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, count: int) -> None:
        """So many bytes more have come."""
        self._progress.advance(self._task, count)


def download_from_url(
    url: str, dst: str | os.PathLike[str], http_read_timeout: float = 10, md5: str | None = None
) -> str:
    """Fetch a file; a path that exists is replaced when all of it has arrived.

    Args:
        url: of the schemes http and https.
        dst: where to write it.
        http_read_timeout: seconds to wait for the server.
        md5: digest in hexadecimal that the file must have.

    Returns:
        The path.

    Raises:
        HTTPDownloadError: the server cannot be reached or says no, the connection broke, or the
            digest is another one.
        ValueError: the scheme is another one.
    """
    if not url.startswith(SCHEMES):
        raise ValueError(f"download_from_url: {url!r} is not of {' or '.join(SCHEMES)}")
    target = Path(dst)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            found = _fetch(url, file, http_read_timeout, target.name)
        if md5 is not None and found != md5.lower():
            raise HTTPDownloadError(f"{url}: its MD5 is {found}, expected {md5}")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return str(target)


def _fetch(url: str, file: object, timeout: float, name: str) -> str:
    """Copy a response into a file; its MD5."""
    write = getattr(file, "write")  # noqa: B009  (any writable object)
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            total = int(response.headers.get("Content-Length") or 0)
            done = 0
            with Bar(total, name) as advance:
                while chunk := response.read(CHUNK):
                    write(chunk)
                    digest.update(chunk)
                    done += len(chunk)
                    advance(len(chunk))
    except (urllib.error.URLError, TimeoutError, ConnectionError, OSError) as error:
        raise HTTPDownloadError(f"{url}: {error}") from error
    if total and done != total:
        raise HTTPDownloadError(f"{url}: {done} of {total} bytes came")
    return digest.hexdigest()


__all__ = ["HTTPDownloadError", "download_from_url"]
