"""Files from the network: hashed on the way, whole or not there at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from treadle.base.errors import TreadleError

_CHUNK = 1 << 20
# As PyTorch names weight files: resnet18-f37072fd.pth holds the first digits of its SHA-256.
_NAMED_DIGEST = re.compile(r"-([0-9a-f]{8,64})\.[A-Za-z0-9.]+$")


class DownloadError(TreadleError, RuntimeError):
    """A file cannot be fetched, or is not the one that was asked for."""

    code = "T20"


@dataclass(frozen=True, slots=True)
class Digest:
    """The beginning that a file's hash must have.

    Attributes:
        algorithm: a name `hashlib` knows.
        value: hexadecimal digits, all of them or the first.
    """

    algorithm: str
    value: str

    @classmethod
    def in_name(cls, name: str) -> Digest | None:
        """The digest that a file's name promises (`name-<hex digits>.ext`), if any."""
        found = _NAMED_DIGEST.search(name)
        return cls("sha256", found[1]) if found else None

    def of(self, path: Path) -> str:
        """The hash of a file, in full."""
        with open(path, "rb") as file:
            return hashlib.file_digest(file, self._new).hexdigest()

    def check(self, found: str, what: str, hint: str) -> None:
        """Compare with a hash in full.

        Raises:
            DownloadError: it is another one.
        """
        if not found.startswith(self.value.lower()):
            raise DownloadError(
                what,
                "this is not the file that was asked for",
                saw=f"{self.algorithm} {found}, expected {self.value}",
                hint=hint,
            )

    def _new(self) -> Any:
        # These compare files with published sums; nothing is signed with them.
        return hashlib.new(self.algorithm, usedforsecurity=False)


def fetch(url: str, target: Path, digest: Digest | None = None, timeout: float = 60.0) -> Path:
    """Return `target`, downloaded from `url` unless it is there already.

    Args:
        url: an https, http or file address.
        target: where the file goes; its directory is made.
        digest: what it must be; also checked of a file that is there already.
        timeout: longest silence of the other side in seconds.

    Raises:
        DownloadError: the address cannot be reached, or the file is another one. A file that was
            there before is left as it is.
    """
    if target.exists():
        if digest is not None:
            digest.check(digest.of(target), str(target), "delete the file to download it again")
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with open(descriptor, "wb") as file:
            found = _copy(url, file, digest, timeout, target)
        if digest is not None:
            digest.check(found, url, "it was damaged on the way, or replaced by its publisher")
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return target


def _copy(url: str, file: IO[bytes], digest: Digest | None, timeout: float, target: Path) -> str:
    """Write what stands at an address to a file; returns its hash."""
    hasher = hashlib.sha256() if digest is None else digest._new()
    hint = f"get the file by other means and store it as {target}"
    try:
        with _opener(url).open(url, timeout=timeout) as response:
            announced = response.headers.get("Content-Length")
            received = 0
            while chunk := response.read(_CHUNK):
                hasher.update(chunk)
                file.write(chunk)
                received += len(chunk)
    except (urllib.error.URLError, OSError, HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            # It is the answer, too, and holds the connection.
            error.close()
        saw = f"{type(error).__name__}: {error}"
        raise DownloadError(url, "the download failed", saw=saw, hint=hint) from error
    if announced is not None and announced.isdecimal() and int(announced) != received:
        saw = f"{received} of {announced} bytes"
        raise DownloadError(url, "the download ended early", saw=saw, hint=hint)
    return str(hasher.hexdigest())


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections, but not from a protected connection to an open one."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        """Make the request for the new address."""
        old, new = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if new not in ("http", "https") or (old == "https" and new != "https"):
            raise urllib.error.URLError(f"redirection from {old} to {new} is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener(url: str) -> urllib.request.OpenerDirector:
    scheme = urlsplit(url).scheme
    if scheme not in ("https", "http", "file"):
        raise DownloadError(url, "addresses begin with https, http or file", saw=scheme or "none")
    opener = urllib.request.OpenerDirector()
    handlers: list[urllib.request.BaseHandler] = [
        urllib.request.ProxyHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
    ]
    if scheme == "file":
        handlers.append(urllib.request.FileHandler())
    for handler in handlers:
        opener.add_handler(handler)
    return opener
