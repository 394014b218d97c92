"""`save` and `load`: what users call, and the manifest that makes a container a checkpoint.

The file is a safetensors file. Its `__metadata__` holds two strings of ours: `treadle.manifest`, a
JSON object with the format's name and version, the object tree and a SHA-256 for the data of each
tensor; and `treadle.digest`, the SHA-256 of the manifest together with all dtypes and shapes.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, TypeAlias

from treadle.base.files import strict_json
from treadle.base.files.atomic import Chunk, write_atomically
from treadle.base.files.container import (
    Array,
    Entry,
    Header,
    as_bytes,
    header_bytes,
    lay_out,
    looks_like_container,
    read_array,
    read_header,
)
from treadle.base.files.source import PathLike, Source, open_source, stream_name
from treadle.base.files.strict_json import shorten
from treadle.serialization import foreign
from treadle.serialization.decode import Decoder
from treadle.serialization.encode import Encoder
from treadle.tensor import Tensor

MapLocation: TypeAlias = "str | Mapping[str, str] | Callable[[str], str] | None"

FORMAT = "treadle"
VERSION = 1
MANIFEST = "treadle.manifest"
DIGEST = "treadle.digest"


def save(
    obj: object,
    f: PathLike | IO[Any],
    pickle_module: object = None,
    pickle_protocol: int | None = None,
) -> None:
    """Write an object to a file that `load` and any safetensors reader can open.

    Saved are `Tensor`, `Parameter`, NumPy arrays, scalars and dtypes, `dict`, `OrderedDict`,
    `list`, `tuple`, `set`, `frozenset`, `str`, `bytes`, `int`, `float`, `complex`, `bool` and
    `None`, nested up to 100 levels. Classes, dtypes, device names and shared references are kept;
    gradients are not.

    A path is replaced atomically: a crash, a kill or a full disk leaves the old file as it was. A
    file object is written to as it is, without that guarantee.

    Args:
        obj: what to save.
        f: a path, or a file object opened in binary mode.
        pickle_module: for MegEngine's signature; None or the standard `pickle`, unused.
        pickle_protocol: for MegEngine's signature; unused.

    Raises:
        TypeError: something in `obj` is of a type that is not saved; the message says where.
        ValueError: `obj` contains itself or nests too deeply.
        OSError: the file cannot be written.
    """
    _refuse_pickle("save", pickle_module)
    encoder = Encoder()
    root = encoder.value(obj)
    entries = lay_out(encoder.arrays)
    data = {name: as_bytes(encoder.arrays[name]) for name in entries}
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "producer": f"treadle {VERSION}",
        "root": root,
        "nodes": encoder.nodes,
        "sha256": {name: hashlib.sha256(raw).hexdigest() for name, raw in data.items()},
    }
    text = strict_json.canonical(manifest).decode()
    metadata = {MANIFEST: text, DIGEST: _digest(text, entries)}
    chunks: list[Chunk] = [header_bytes(entries, metadata), *data.values()]
    if isinstance(f, str | bytes | os.PathLike):
        write_atomically(os.fsdecode(f), chunks, sum(map(len, chunks)))
    else:
        _write_stream(f, chunks)


def load(
    f: PathLike | IO[Any], map_location: MapLocation = None, pickle_module: object = None
) -> Any:
    """Read what `save` wrote, or a plain safetensors file as a dict of tensors by name.

    Everything is checked before it is believed, and nothing in a file can run code. Pickle files
    are refused.

    Args:
        f: a path, or a file object opened in binary mode, read from its position to its end.
        map_location: where tensors go: None (the device named in the file), a device name, a dict
            of names compared on their first four characters (`{"gpu0": "cpu0"}`), or a function
            from the saved logical name (`"gpu0:0"`) to a name. Tensors of a plain safetensors
            file go to the default device unless a name or function is given; a function gets "".
        pickle_module: for MegEngine's signature; None or the standard `pickle`, unused.

    Raises:
        CheckpointError: the file is damaged, of another kind, or of a newer format version.
        DeviceError: a device named in the file is not on this machine; use `map_location`.
        OSError: the file cannot be opened.
    """
    _refuse_pickle("load", pickle_module)
    locate = _locator(map_location)
    with open_source(f) as source:
        _refuse_foreign(source)
        header = read_header(source)
        if MANIFEST in header.metadata or DIGEST in header.metadata:
            return _load_tree(source, header, locate)
        return {
            name: _plain_tensor(read_array(source, header, entry), locate)
            for name, entry in header.entries.items()
        }


def _refuse_pickle(function: str, module: object) -> None:
    # MegEngine's default, spelled out by its users; any other module was chosen for its effect.
    if module is not None and getattr(module, "__name__", "") != "pickle":
        raise TypeError(
            f"{function}: pickle_module {module!r} cannot be used\n  hint: leave it out"
        )


def _refuse_foreign(source: Source) -> None:
    prefix = source.read(0, 32)
    if not prefix:
        raise source.error("the file is empty")
    if looks_like_container(prefix):
        return
    kind, hint = foreign.identify(prefix, source.read(source.size - 1, 1))
    if kind:
        raise source.error(f"this is {kind}, not a checkpoint", hint=hint)


def _digest(manifest: str, entries: Mapping[str, Entry]) -> str:
    # Offsets are left out: they follow from the rest, and a tool that copies the file may reorder.
    signatures = {name: entry.signature for name, entry in entries.items()}
    return hashlib.sha256(strict_json.canonical([manifest, signatures])).hexdigest()


def _load_tree(source: Source, header: Header, locate: Callable[[str], str]) -> object:
    manifest = _read_manifest(source, header)
    checksums = manifest.get("sha256")
    if not isinstance(checksums, dict) or checksums.keys() != header.entries.keys():
        raise source.error("the manifest does not list the tensors of the file")
    unread = dict(header.entries)

    def checked_array(name: str) -> Array:
        entry = unread.pop(name, None)
        if entry is None:
            # Reading one tensor many times would turn a small file into a large object.
            raise source.error(f"tensor {shorten(name)} is missing or used twice")
        array = read_array(source, header, entry)
        if hashlib.sha256(as_bytes(array)).hexdigest() != checksums[name]:
            raise source.error(
                f"checksum of tensor {shorten(name)} does not match: its data is damaged",
                hint="use another copy of the file",
            )
        return array

    decoder = Decoder(source, checked_array, locate)
    obj = decoder.decode(manifest.get("nodes"), manifest.get("root"))
    if unread:
        raise source.error(f"tensor {shorten(next(iter(unread)))} belongs to no object")
    return obj


def _read_manifest(source: Source, header: Header) -> dict[str, Any]:
    text = header.metadata.get(MANIFEST, "")
    try:
        manifest = strict_json.parse(text.encode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise source.error(f"manifest is damaged: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise source.error("manifest is not one of Treadle's")
    # Before the digest: a later version may compute that differently.
    version = manifest.get("version")
    if type(version) is not int or version < 1:
        raise source.error("manifest has no format version", saw=shorten(version))
    if version > VERSION:
        raise source.error(
            f"format version {version} is newer than {VERSION}, the newest this Treadle reads",
            saw=f"written by {shorten(manifest.get('producer'))}",
            hint=f"upgrade Treadle (this is {VERSION})",
        )
    if _digest(text, header.entries) != header.metadata.get(DIGEST):
        raise source.error(
            "checksum of the manifest does not match: the header is damaged",
            hint="use another copy of the file",
        )
    return manifest


def _locator(map_location: MapLocation) -> Callable[[str], str]:
    """`map_location` as a function from logical name to logical name."""
    if map_location is None:
        return lambda name: name
    if isinstance(map_location, str):
        return lambda name: map_location
    if isinstance(map_location, Mapping):
        by_start = {start[:4]: name for start, name in map_location.items()}
        return lambda name: by_start.get(name[:4], name)
    if callable(map_location):
        return map_location
    raise TypeError(
        f"load: map_location is a {type(map_location).__name__}\n"
        "  hint: give a device name, a dict of names, or a function"
    )


def _plain_tensor(array: Array, locate: Callable[[str], str]) -> Tensor:
    return Tensor(array, dtype=array.dtype, device=locate("") or None)


def _write_stream(f: object, chunks: Iterable[Chunk]) -> None:
    write = getattr(f, "write", None)
    if not callable(write):
        raise TypeError(f"save: expected a path or a file object, got {type(f).__name__}")
    if isinstance(f, io.TextIOBase):
        raise TypeError(f"save: {stream_name(f)} is opened as text; open it with 'wb'")
    for chunk in chunks:
        rest = memoryview(chunk)
        while rest:
            # A raw stream may take a part and say how much; a buffered one takes all.
            count = write(rest)
            rest = rest[count if isinstance(count, int) else len(rest) :]
