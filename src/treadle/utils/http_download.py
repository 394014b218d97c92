"""`download_from_url`: a file from the network that is whole and what was expected, or an error."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from treadle.base.files.download import Digest, DownloadError, fetch

SCHEMES = ("http://", "https://")

HTTPDownloadError = DownloadError
"""MegEngine's name of the error."""


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
    digest = None if md5 is None else Digest("md5", md5)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download") as folder:
        fetch(url, Path(folder) / target.name, digest, http_read_timeout).replace(target)
    return str(target)


__all__ = ["HTTPDownloadError", "download_from_url"]
