"""Trust in machine code: this user's own may run here, and that of keys that the user trusts.

What this user writes is sealed: a digest under a key that is made at first use, and that nobody
else can read. What comes from another machine is signed there with Ed25519, by the package
`cryptography`, which is imported only for a file that a trusted key has signed. Both stand beside
a file's manifest and cover its digest, and with it all that the file holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hmac import compare_digest
from pathlib import Path
from typing import Any

from treadle.base.env import config_directory
from treadle.base.errors import LoadError
from treadle.base.files.ownership import make_private, read_own, write_own
from treadle.base.log import get_logger

SEAL, SIGNATURE = "treadle.seal", "treadle.signature"
"""Of a file's metadata: hexadecimal; a signature stands behind its public key and a colon."""
_KEY_BYTES = 32
_SAID = b"treadle model file 1\n"
"""In front of what is signed, so that no signature made for something else fits."""


@dataclass(frozen=True, slots=True)
class FileOrigin:
    """The maker of a file.

    Attributes:
        who: "you", or the name of a trusted key; "" where it is unknown.
        why_unknown: in words.
    """

    who: str
    why_unknown: str = ""


def origin(digest: str, metadata: Mapping[str, str]) -> FileOrigin:
    """Return the maker of a file with a manifest of this digest, by its metadata."""
    given = metadata.get(SEAL, "")
    if given and compare_digest(given, seal(digest, make=False)):
        return FileOrigin("you")
    holder, _, signature = metadata.get(SIGNATURE, "").partition(":")
    if not holder:
        return FileOrigin("", "it was not made by you here, and nobody has signed it")
    name = trusted_keys().get(holder)
    if name is None:
        return FileOrigin("", f"the key that signed it, {short(holder)}, is not trusted here")
    problem = _unfit(holder, signature, digest)
    return FileOrigin("" if problem else name, problem)


# -- this user's own key ---------------------------------------------------------------------------


def seal(digest: str, *, make: bool = True) -> str:
    """The digest under this user's key; "" where there is none, and none is to be made."""
    key = _own_key(config_directory(), make)
    if not key:
        return ""
    return hashlib.blake2b(
        digest.encode(), digest_size=32, key=key, person=b"treadle file"
    ).hexdigest()


def _own_key(folder: Path, make: bool) -> bytes:
    """Return this user's key, or one of the process alone where none can be kept."""
    path = folder / "key"
    if folder in _PROCESS_KEYS:
        return _PROCESS_KEYS[folder]
    try:
        found, problem = read_own(path, secret=True)
        if len(found) != _KEY_BYTES:
            problem = problem or f"{path} is not a key"
    except (FileNotFoundError, NotADirectoryError):  # devices may have no home
        if not make:
            return b""
        found, problem = _made(path)
    except OSError as error:
        problem = f"{path}: {error.strerror or error}"
    if problem:
        get_logger().warning(
            "%s: machine code that is compiled here is trusted in this process alone; repair or "
            "remove it, or set TREADLE_CONFIG_DIR to a directory of your own",
            problem,
        )
        found = _PROCESS_KEYS[folder] = os.urandom(_KEY_BYTES)
    return found


_PROCESS_KEYS: dict[Path, bytes] = {}


def _made(path: Path) -> tuple[bytes, str]:
    """A new key that is kept, or the one that another process has made in between."""
    try:
        make_private(path.parent)
        with contextlib.suppress(FileExistsError):
            write_own(path, os.urandom(_KEY_BYTES), replace=False)
        return read_own(path, secret=True)
    except OSError as error:
        return b"", f"{path} cannot be made: {error.strerror or error}"


# -- keys of others --------------------------------------------------------------------------------


def trusted_keys() -> dict[str, str]:
    """Names of the keys that this user trusts, by the keys in hexadecimal.

    Raises:
        LoadError: others could have written the list.
    """
    path = config_directory() / "trusted_keys"
    try:
        content, problem = read_own(path)
    except FileNotFoundError:
        return {}
    if problem:
        raise LoadError(
            "trust", problem, hint="look at what it holds, and repair its owner and mode"
        )
    lines = (line.split(maxsplit=1) for line in content.decode().splitlines())
    return {words[0]: (words[1:] or [short(words[0])])[0] for words in lines if words}


def set_trusted_keys(keys: Mapping[str, str]) -> None:
    """Trust these keys, and no others.

    Raises:
        OSError: that cannot be written down.
    """
    path = config_directory() / "trusted_keys"
    make_private(path.parent)
    write_own(path, "".join(f"{key} {name}\n" for key, name in keys.items()).encode())


def short(key: str) -> str:
    """A key in a few letters, for people."""
    return f"ed25519:{key[:16]}"


@cache
def _part(name: str) -> Any:
    """A part of `cryptography`.

    Raises:
        LoadError: it is not installed.
    """
    try:
        return importlib.import_module(f"cryptography.hazmat.primitives.{name}")
    except ImportError as error:
        raise LoadError("sign", str(error), hint="pip install treadle[sign]") from error


def _unfit(holder: str, signature: str, digest: str) -> str:
    """Return in words what keeps a signature from being this holder's; "" where nothing does."""
    try:
        ed25519 = _part("asymmetric.ed25519")
    except LoadError as error:
        return f"its signature cannot be checked: {error.problem} ({error.hint})"
    try:
        key = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(holder))
        key.verify(bytes.fromhex(signature), _SAID + digest.encode())
    except Exception as error:  # ValueError, or the package's own InvalidSignature
        return f"its signature is wrong ({type(error).__name__})"
    return ""


class Signer:
    """A private key in a file, which signs model files.

    Args:
        path: of an Ed25519 key as OpenSSL (PEM) or OpenSSH writes it, without a password.

    Attributes:
        key: the public key, in hexadecimal.

    Raises:
        LoadError: it is no such key, or `cryptography` is not installed.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        text = path.read_bytes()
        kind = "ssh" if b"BEGIN OPENSSH" in text else "pem"
        load = getattr(_part("serialization"), f"load_{kind}_private_key")
        self._key = _of_kind("Ed25519PrivateKey", path, lambda: load(text, None))
        self.key: str = self._key.public_key().public_bytes_raw().hex()

    def signature(self, digest: str) -> str:
        """Return the value of `SIGNATURE` for a file whose manifest has this digest."""
        return f"{self.key}:{self._key.sign(_SAID + digest.encode()).hex()}"


def public_key(path: Path) -> str:
    """The public key in a file, in hexadecimal.

    Args:
        path: of an Ed25519 key as OpenSSL (PEM) or OpenSSH writes it.

    Raises:
        LoadError: it is no such key, or `cryptography` is not installed.
        OSError: it cannot be read.
    """
    text = path.read_bytes()
    load = getattr(
        _part("serialization"), f"load_{'ssh' if text[:4] == b'ssh-' else 'pem'}_public_key"
    )
    found = _of_kind("Ed25519PublicKey", path, lambda: load(text))
    made: str = found.public_bytes_raw().hex()
    return made


def _of_kind(kind: str, path: Path, load: Any) -> Any:
    try:
        found = load()
    except Exception as error:  # the package's parsers raise what they like
        what = "public" if "Public" in kind else "private"
        raise LoadError(
            str(path),
            f"it holds no {what} key that can be read: {str(error).splitlines()[0]}",
            hint="treadle trust --new makes a pair; so does openssl genpkey -algorithm ed25519",
        ) from error
    if not isinstance(found, getattr(_part("asymmetric.ed25519"), kind)):
        raise LoadError(
            str(path),
            f"a key of the kind {type(found).__name__} cannot be used",
            hint="use Ed25519",
        )
    return found


def new_pair(path: Path) -> str:
    """Make a key pair: the private key at `path`, the public one beside it with `.pub` appended.

    Raises:
        FileExistsError: there is a file at `path`.
        OSError: a file cannot be written.
        LoadError: `cryptography` is not installed.
    """
    form = _part("serialization")
    made = _part("asymmetric.ed25519").Ed25519PrivateKey.generate()
    pem = form.Encoding.PEM
    private = made.private_bytes(pem, form.PrivateFormat.PKCS8, form.NoEncryption())
    public = made.public_key().public_bytes(pem, form.PublicFormat.SubjectPublicKeyInfo)
    write_own(path, private, replace=False)
    Path(f"{path}.pub").write_bytes(public)
    key: str = made.public_key().public_bytes_raw().hex()
    return key


__all__ = [
    "SEAL",
    "SIGNATURE",
    "FileOrigin",
    "Signer",
    "new_pair",
    "origin",
    "public_key",
    "seal",
    "set_trusted_keys",
    "short",
    "trusted_keys",
]
