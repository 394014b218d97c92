"""Files with a manifest: a container whose header says what the arrays are and seals them.

The manifest is JSON under one key of the container's metadata; it names the format, its version
and the producer, and holds a SHA-256 per array. A digest covers manifest, dtypes and shapes. Beside
it may stand who made the file, see `trust`.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any

from treadle.base.array import Array
from treadle.base.errors import CheckpointError
from treadle.base.files import strict_json, trust
from treadle.base.files.atomic import Chunk, write_atomically
from treadle.base.files.container import (
    Header,
    TensorEntry,
    as_bytes,
    header_bytes,
    lay_out,
    read_array,
)
from treadle.base.files.source import PathLike, SizedStream, stream_name
from treadle.base.files.strict_json import shorten
from treadle.base.version import VERSION

MANIFEST = "treadle.manifest"
DIGEST = "treadle.digest"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file: the name and the newest version of its format."""

    format: str
    version: int


def chunks_of(
    kind: Kind,
    content: Mapping[str, Any],
    arrays: Mapping[str, Array],
    *,
    own: bool = False,
    signer: trust.Signer | None = None,
) -> list[Chunk]:
    """A file in pieces: header first, then the data of each array.

    It bears this user's seal if it is the user's `own`, and a signature if there is a signer.
    """
    entries = lay_out(arrays)
    data = {name: as_bytes(arrays[name]) for name in entries}
    manifest = {
        "format": kind.format,
        "version": kind.version,
        "producer": f"treadle {VERSION}",
        **content,
        "sha256": {name: hashlib.sha256(raw).hexdigest() for name, raw in data.items()},
    }
    text = strict_json.canonical(manifest).decode()
    digest = _digest(text, entries)
    metadata = {MANIFEST: text, DIGEST: digest}
    if own:
        metadata[trust.SEAL] = trust.seal(digest)
    if signer is not None:
        metadata[trust.SIGNATURE] = signer.signature(digest)
    return [header_bytes(entries, metadata), *data.values()]


def write(f: PathLike | IO[Any], chunks: list[Chunk], function: str) -> int:
    """Write a file: a path is replaced atomically, a file object is written to. Returns bytes."""
    if isinstance(f, str | bytes | os.PathLike):
        write_atomically(os.fsdecode(f), chunks, sum(map(len, chunks)))
    else:
        _write_stream(f, chunks, function)
    return sum(map(len, chunks))


def is_sealed(header: Header) -> bool:
    """Return whether a container has a manifest."""
    return MANIFEST in header.metadata or DIGEST in header.metadata


class Sealed:
    """A file that was opened: its manifest, and its arrays, each checked when it is taken.

    Args:
        source: the open file.
        header: its header.
        kind: what it must be.

    Raises:
        CheckpointError: the file is damaged, of another kind, or of a newer version.
    """

    def __init__(self, source: SizedStream, header: Header, kind: Kind) -> None:
        self.manifest = _manifest(source, header, kind)
        self._source, self._header = source, header
        self.where = source.where
        checksums = self.manifest.get("sha256")
        if not isinstance(checksums, dict) or checksums.keys() != header.entries.keys():
            raise source.error("the manifest does not list the tensors of the file")
        self._checksums: dict[str, Any] = checksums
        self._unread = dict(header.entries)

    def array(self, name: str) -> Array:
        """An array of the file, once."""
        entry = self._unread.pop(name, None)
        if entry is None:
            # Reading one tensor many times would turn a small file into a large object.
            raise self._source.error(f"tensor {shorten(name)} is missing or used twice")
        array = read_array(self._source, self._header, entry)
        if hashlib.sha256(as_bytes(array)).hexdigest() != self._checksums[name]:
            raise self._source.error(
                f"checksum of tensor {shorten(name)} does not match: its data is damaged",
                hint="use another copy of the file",
            )
        return array

    def mapped(self, name: str, file: memoryview, *, check: bool = True) -> memoryview:
        """The bytes of an array in a map of the whole file, once; unchecked where asked for."""
        entry = self._unread.pop(name, None)
        if entry is None:
            raise self._source.error(f"tensor {shorten(name)} is missing or used twice")
        start = self._header.data_start
        raw = file[start + entry.begin : start + entry.end]
        if len(raw) < entry.end - entry.begin:
            raise self._source.error("the file became shorter while it was read")
        if check and hashlib.sha256(raw).hexdigest() != self._checksums[name]:
            raise self._source.error(
                f"checksum of tensor {shorten(name)} does not match: its data is damaged",
                hint="use another copy of the file",
            )
        return raw

    def skip(self, name: str) -> None:
        """Leave an array of the file alone."""
        self._unread.pop(name, None)

    def finish(self) -> None:
        """Raise where arrays of the file belong to nothing."""
        if self._unread:
            name = shorten(next(iter(self._unread)))
            raise self._source.error(f"tensor {name} belongs to no object")

    @cached_property
    def origin(self) -> trust.FileOrigin:
        """The file's maker, as the manifest tells; arrays are checked when they are taken."""
        metadata = self._header.metadata
        return trust.origin(metadata[DIGEST], metadata)

    @property
    def error(self) -> Callable[..., CheckpointError]:
        """Makes errors that name the file."""
        return self._source.error


def _digest(manifest: str, entries: Mapping[str, TensorEntry]) -> str:
    # Offsets are left out: they follow from the rest, and a tool that copies the file may reorder.
    signatures = {name: entry.signature for name, entry in entries.items()}
    return hashlib.sha256(strict_json.canonical([manifest, signatures])).hexdigest()


def _manifest(source: SizedStream, header: Header, kind: Kind) -> dict[str, Any]:
    text = header.metadata.get(MANIFEST, "")
    try:
        manifest = strict_json.parse(text.encode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise source.error(f"manifest is damaged: {error}") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), str):
        raise source.error("manifest is not one of Treadle's")
    if manifest["format"] != kind.format:
        raise _of_another_kind(source, manifest["format"], kind)
    # Before the digest: a later version may compute that differently.
    version = manifest.get("version")
    if type(version) is not int or version < 1:
        raise source.error("manifest has no format version", saw=shorten(version))
    if version > kind.version:
        raise source.error(
            f"format version {version} is newer than {kind.version}, the newest this Treadle reads",
            saw=f"written by {shorten(manifest.get('producer'))}",
            hint=f"upgrade Treadle (this is {VERSION})",
        )
    if _digest(text, header.entries) != header.metadata.get(DIGEST):
        raise source.error(
            "checksum of the manifest does not match: the header is damaged",
            hint="use another copy of the file",
        )
    return manifest


_READERS = {
    "treadle": "treadle.load",
    "treadle model": "utils.network.Network.load or cgtools.GraphInference",
}


def _of_another_kind(source: SizedStream, found: str, kind: Kind) -> CheckpointError:
    reader = _READERS.get(found)
    if reader is None:
        return source.error("manifest is not one of Treadle's")
    return source.error(
        f"this is a file of format {found!r}, not {kind.format!r}", hint=f"read it with {reader}"
    )


def _write_stream(f: object, chunks: Iterable[Chunk], function: str) -> None:
    write = getattr(f, "write", None)
    if not callable(write):
        raise TypeError(f"{function}: expected a path or a file object, got {type(f).__name__}")
    if isinstance(f, io.TextIOBase):
        raise TypeError(f"{function}: {stream_name(f)} is opened as text; open it with 'wb'")
    for chunk in chunks:
        rest = memoryview(chunk)
        while rest:
            # A raw stream may take a part and say how much; a buffered one takes all.
            count = write(rest)
            rest = rest[count if isinstance(count, int) else len(rest) :]
