"""`save` and `load`: what users call, and the manifest that makes a container a checkpoint.

The file is a safetensors file. Its `__metadata__` holds two strings of ours: `treadle.manifest`, a
JSON object with the format's name and version, the object tree and a SHA-256 for the data of each
tensor; and `treadle.digest`, the SHA-256 of the manifest together with all dtypes and shapes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from treadle.base.files.container import Header, looks_like_container, read_array, read_header
from treadle.base.files.sealed import Kind, Sealed, chunks_of, is_sealed, write
from treadle.base.files.source import PathLike, SizedStream, open_source
from treadle.serialization import foreign
from treadle.serialization.decode import Decoder
from treadle.serialization.directories import load_directory
from treadle.serialization.encode import Encoder
from treadle.serialization.locations import MapLocation, current_locator, locator, plain_tensor
from treadle.serialization.pickled_tensors import load_pickle
from treadle.serialization.torch_archive import is_torch, load_torch
from treadle.tensor import Tensor

KIND = Kind("treadle", 1)


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
    gradients are not. Modules, and objects of other classes that `allow` names, are saved as the
    name of their class and their attributes; functions among those may be of `functional`.

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
    content = {"root": root, "nodes": encoder.nodes}
    write(f, chunks_of(KIND, content, encoder.arrays), "save")


def load(
    f: PathLike | IO[Any], map_location: MapLocation = None, pickle_module: object = None
) -> Any:
    """Read what `save`, MegEngine or PyTorch wrote, or safetensors as a dict of tensors.

    Everything is checked before it is believed, and nothing in a file can run code: the pickles of
    MegEngine and PyTorch are read by an interpreter of their opcodes that knows tensors, arrays,
    plain values, containers and MegEngine's traced modules, calls nothing, and refuses every other
    name. Of modules that were saved whole the class is looked up among what the program has
    imported, and its objects get their attributes without their constructor; a `__setstate__` of
    the class is called. What `forward` does with attributes is the class's own affair.

    A directory is read as one of a model's weights, see `load_directory`.

    Args:
        f: a path, or a file object opened in binary mode, read from its position to its end.
        map_location: where tensors go: None (the device named in the file), a device name, a dict
            of names compared on their first four characters (`{"gpu0": "cpu0"}`), or a function
            from the saved logical name (`"gpu0:0"`) to a name. Tensors of plain safetensors
            files and of PyTorch go to the default device unless a name or function is given; a
            function gets "".
        pickle_module: for MegEngine's signature; None or the standard `pickle`, unused.

    Raises:
        CheckpointError: the file is damaged, of another kind, of a newer format version, or a
            pickle that holds anything else, or far more objects than data.
        DeviceError: a device named in the file is not on this machine; use `map_location`.
        OSError: the file cannot be opened.
    """
    _refuse_pickle("load", pickle_module)
    locate = current_locator(map_location)
    if isinstance(f, str | bytes | os.PathLike) and os.path.isdir(f):
        return dict(load_directory(os.fsdecode(f), locate))
    with open_source(f) as source:
        reader = _foreign_reader(source)
        if reader is not None:
            return reader(source, locate)
        header = read_header(source)
        if is_sealed(header):
            return _load_tree(source, header, locate)
        return {
            name: plain_tensor(read_array(source, header, entry), locate)
            for name, entry in header.entries.items()
        }


@contextmanager
def dmap(map_location: MapLocation) -> Iterator[None]:
    """Place tensors that are loaded in the block where `map_location` says, as in `load`.

    That holds for `load` without one of its own, and for tensors that `pickle` reads.
    """
    before = Tensor.dmap_callback
    Tensor.dmap_callback = staticmethod(locator(map_location))
    try:
        yield
    finally:
        Tensor.dmap_callback = before


def _refuse_pickle(function: str, module: object) -> None:
    # MegEngine's default, spelled out by its users; any other module was chosen for its effect.
    if module is not None and getattr(module, "__name__", "") != "pickle":
        raise TypeError(
            f"{function}: pickle_module {module!r} cannot be used\n  hint: leave it out"
        )


def _foreign_reader(
    source: SizedStream,
) -> Callable[[SizedStream, Callable[[str], str]], object] | None:
    """Return the reader of a file, None if it is a container; raises for kinds that
    nothing reads.
    """
    prefix = source.read(0, 32)
    if not prefix:
        raise source.error("the file is empty")
    if looks_like_container(prefix):
        return None
    if prefix.startswith(b"PK\x03\x04") and is_torch(source):
        return load_torch
    kind, hint = foreign.identify(prefix)
    if kind:
        raise source.error(f"this is {kind}, not a checkpoint", hint=hint)
    return load_pickle if foreign.is_pickle(prefix, source.read(source.size - 1, 1)) else None


def _load_tree(source: SizedStream, header: Header, locate: Callable[[str], str]) -> object:
    sealed = Sealed(source, header, KIND)
    decoder = Decoder(source, sealed.array, locate)
    obj = decoder.decode(sealed.manifest.get("nodes"), sealed.manifest.get("root"))
    sealed.finish()
    return obj
