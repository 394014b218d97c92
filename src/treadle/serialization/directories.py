"""Directories of a model's weights, as Hugging Face's libraries write them, read with doors shut.

Such a directory holds `config.json` and the weights: `model.safetensors`, or shards of it that
`model.safetensors.index.json` lists, or the same of `pytorch_model.bin`, which are PyTorch's
pickles. An index names files, and a directory may come from anywhere, so every file must lie in the
directory itself, as a plain one of its own: no path, no symbolic link, no second name.
Format: https://huggingface.co/docs/safetensors/index
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeGuard

from treadle.base.array import Array
from treadle.base.errors import CheckpointError
from treadle.base.files import strict_json
from treadle.base.files.container import Header, TensorEntry, read_array, read_header
from treadle.base.files.sealed import is_sealed
from treadle.base.files.source import SizedStream
from treadle.base.files.strict_json import shorten
from treadle.serialization import foreign
from treadle.serialization.locations import Locate, MapLocation, current_locator, plain_tensor
from treadle.serialization.torch_archive import is_torch, load_torch
from treadle.tensor import Tensor

MAX_CONFIG, MAX_INDEX = 16 << 20, 100_000_000
"""Bytes of the two JSON files; the second is what safetensors allows its headers."""
MAX_SHARDS = 10_000

_SAFE = (
    "model.safetensors",
    "diffusion_pytorch_model.safetensors",
    "adapter_model.safetensors",
)
_BIN = ("pytorch_model.bin", "diffusion_pytorch_model.bin", "adapter_model.bin")
_INDEX = ".index.json"
_IN_CACHE = re.compile(r"\.\./\.\./blobs/[0-9a-f]{40,64}")
"""Pattern of links in the cache of huggingface_hub: snapshots/<commit>/<file> to blobs/<hash>."""
_OTHERS = {
    "manifest": "load_sharded reads what save_sharded wrote",
    "flax_model.msgpack": "its weights are Flax's: convert them to safetensors",
    "tf_model.h5": "its weights are TensorFlow's: convert them to safetensors",
}


class WeightDirectory(Mapping[str, Tensor]):
    """The weights of a directory by name; see `load_directory`.

    Tensors of safetensors files are read when they are asked for, each time anew. (They are read
    and not mapped: a process that looks at a mapped file which somebody cuts is ended.)

    Attributes:
        path: the directory.
        config: what `config.json` holds; empty if there is none.
        metadata: strings by name from the headers of safetensors files.
        files: names of the files that hold weights, in order.
    """

    def __init__(
        self,
        path: str,
        config: Mapping[str, Any],
        shards: Mapping[str, _Shard | Mapping[str, Tensor]],
        locate: Locate,
    ) -> None:
        self.path = path
        self.config = config
        self.files = tuple(shards)
        self.metadata: dict[str, str] = {}
        self._locate = locate
        self._homes: dict[str, _Shard | Mapping[str, Tensor]] = {}
        for shard in shards.values():
            if isinstance(shard, _Shard):
                self.metadata.update(shard.header.metadata)
                self._homes.update(dict.fromkeys(shard.header.entries, shard))
            else:
                self._homes.update(dict.fromkeys(shard, shard))

    def __getitem__(self, name: str) -> Tensor:
        home = self._homes[name]
        return home.tensor(name, self._locate) if isinstance(home, _Shard) else home[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)

    def array(self, name: str) -> Array:
        """A tensor as an array, which never leaves the host."""
        home = self._homes[name]
        return home.array(name) if isinstance(home, _Shard) else home[name].numpy()

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, which is not read for it."""
        home = self._homes[name]
        return home.header.entries[name].shape if isinstance(home, _Shard) else home[name].shape

    def __repr__(self) -> str:
        return f"<{len(self)} tensors of {', '.join(self.files)} in {self.path}>"


def load_directory(
    path: str | os.PathLike[str], map_location: MapLocation = None
) -> WeightDirectory:
    """The weights of a directory that Hugging Face's libraries, or `save_pretrained`, wrote.

    Searched are, in this order, `model.safetensors`, its index of shards, the same of
    `diffusion_pytorch_model` and `adapter_model`, then `pytorch_model.bin` and its index, then a
    single safetensors file of any name. Everything is checked at once: every name of the index must
    be in the shard it says, no shard may hold others, no tensor may be in two, and the sizes must
    sum up to the `total_size` that the index gives. Only the data of safetensors waits until it is
    asked for; `.bin` files are read whole, without running what they hold.

    Args:
        path: the directory. Links of the cache of huggingface_hub are followed, no others.
        map_location: where tensors go, as for `load`.

    Raises:
        CheckpointError: there are no weights, or a file is damaged, missing, outside of the
            directory, a link, or contradicts the index.
        OSError: the directory cannot be read.
    """
    folder = os.fspath(path)
    locate = current_locator(map_location)
    config = read_object(folder, "config.json", MAX_CONFIG)
    name = _weights_of(folder)
    if name.endswith(_INDEX):
        return WeightDirectory(folder, config, _sharded(folder, name, locate), locate)
    return WeightDirectory(folder, config, {name: _shard(folder, name, locate)}, locate)


def _weights_of(folder: str) -> str:
    """The name of the file of weights, or of their index."""
    there = set(os.listdir(folder))
    for name in (*_SAFE, *_BIN):
        for found in (name, name + _INDEX):
            if found in there:
                return found
    loose = sorted(name for name in there if name.endswith(".safetensors"))
    if len(loose) == 1:
        return loose[0]
    if loose:
        listed = ", ".join(map(shorten, loose[:5]))
        hint = f"several files and no {_SAFE[0]}{_INDEX} that lists them: load one by its path"
        raise CheckpointError(folder, "it is unclear which weights to load", saw=listed, hint=hint)
    hint = next((text for name, text in _OTHERS.items() if name in there), "")
    raise CheckpointError(
        folder,
        "the directory holds no weights",
        saw=", ".join(map(shorten, sorted(there)[:8])) or "nothing",
        hint=hint or f"looked for {_SAFE[0]}, {_BIN[0]} and their indexes",
    )


def read_object(folder: str, name: str, most: int) -> dict[str, Any]:
    """The object in a JSON file of a directory; empty if there is no file.

    Raises:
        CheckpointError: the file is a link, is larger than `most` bytes, or holds no JSON object.
    """
    if not os.path.lexists(os.path.join(folder, name)):
        return {}
    found = read_json(folder, name, most)
    if not isinstance(found, dict):
        raise CheckpointError(os.path.join(folder, name), "the file is not a JSON object")
    return found


def read_json(folder: str, name: str, most: int) -> Any:
    """Read a JSON file of a directory.

    Raises:
        CheckpointError: the file is missing, a link, larger than `most` bytes, or no JSON.
    """
    with open_member(folder, name) as source:
        if source.size > most:
            raise source.error("the file is too large", saw=f"{source.size} bytes, limit {most}")
        try:
            return strict_json.parse(source.read(0, source.size))
        except ValueError as error:
            raise source.error(f"the file is damaged: {error}") from None


# -- shards ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shard:
    """A safetensors file that was checked, and is opened again for each tensor."""

    folder: str
    name: str
    header: Header
    identity: tuple[int, ...]

    def tensor(self, name: str, locate: Locate) -> Tensor:
        """One of its tensors."""
        return plain_tensor(self.array(name), locate)

    def array(self, name: str) -> Array:
        """One of its tensors, on the host."""
        entry: TensorEntry = self.header.entries[name]
        with open_member(self.folder, self.name) as source:
            if _identity(source) != self.identity:
                raise source.error("the file is not the one that was opened", hint="load it again")
            return read_array(source, self.header, entry)


def _shard(folder: str, name: str, locate: Locate) -> _Shard | Mapping[str, Tensor]:
    """A file of weights: the header of a safetensors file, all of a pickle."""
    with open_member(folder, name) as source:
        if name.endswith(".safetensors"):
            header = read_header(source)
            if is_sealed(header):
                raise source.error(
                    "the file is a checkpoint of Treadle", hint="load it by its path"
                )
            return _Shard(folder, name, header, _identity(source))
        prefix = source.read(0, 32)
        if not (prefix.startswith(b"PK\x03\x04") and is_torch(source)):
            kind, hint = foreign.identify(prefix)
            raise source.error(f"this is {kind or 'no file of torch.save'}", hint=hint)
        found = load_torch(source, locate)
        if not _is_state(found):
            raise source.error("the file holds something other than tensors by name")
        return found


def _is_state(found: object) -> TypeGuard[Mapping[str, Tensor]]:
    return isinstance(found, Mapping) and all(
        isinstance(k, str) and isinstance(v, Tensor) for k, v in found.items()
    )


def _sharded(folder: str, index: str, locate: Locate) -> dict[str, _Shard | Mapping[str, Tensor]]:
    """The shards that an index lists, compared with it."""
    where = os.path.join(folder, index)
    content = read_object(folder, index, MAX_INDEX)
    wanted = _names_by_shard(where, content, index.removesuffix(_INDEX))
    found: dict[str, _Shard | Mapping[str, Tensor]] = {}
    total = 0
    for name, names in wanted.items():
        shard = _shard(folder, name, locate)
        inside = shard.header.entries if isinstance(shard, _Shard) else shard
        _compare(where, name, names, set(inside))
        total += sum(_nbytes(value) for value in inside.values())
        found[name] = shard
    declared = content.get("metadata", {}).get("total_size", total)
    # Pickles hold tied weights under both names, which their indexes count once.
    tied = index.startswith(_BIN) and isinstance(declared, int) and 0 <= declared < total
    if declared != total and not tied:
        raise CheckpointError(
            where,
            "total_size is not the size of the tensors in the shards",
            saw=f"{shorten(declared)}, the tensors have {total} bytes",
            hint="a shard is another one than the index was written for: fetch the directory again",
        )
    return found


def _names_by_shard(where: str, content: Mapping[str, Any], stem: str) -> dict[str, set[str]]:
    """Names of tensors by the shard that the index says they are in."""
    mapped, metadata = content.get("weight_map"), content.get("metadata", {})
    if not isinstance(mapped, dict) or not mapped or not isinstance(metadata, dict):
        raise CheckpointError(where, "the index has no weight_map of tensors by name")
    found: dict[str, set[str]] = defaultdict(set)
    suffix = os.path.splitext(stem)[1]
    for tensor, shard in mapped.items():
        if not isinstance(shard, str) or not is_plain_name(shard) or not shard.endswith(suffix):
            raise CheckpointError(
                where,
                f"tensor {shorten(tensor)} is said to be in {shorten(shard)}, which is not a"
                f" {suffix} file of the directory",
                hint="shards lie beside the index, under plain names",
            )
        found[shard].add(tensor)
    if len(found) > MAX_SHARDS:
        raise CheckpointError(where, f"the index lists {len(found)} shards, limit {MAX_SHARDS}")
    return dict(found)


def _compare(where: str, shard: str, names: set[str], there: set[str]) -> None:
    """Refuse a shard that holds fewer or other tensors than the index says."""
    for what, different in (("lacks", names - there), ("also holds", there - names)):
        if different:
            listed = ", ".join(shorten(n) for n in sorted(different)[:3])
            raise CheckpointError(
                where,
                f"shard {shorten(shard)} {what} {len(different)} tensors, against the index",
                saw=listed + (", ..." if len(different) > 3 else ""),
                hint="the shards belong to another index: fetch the directory again",
            )


def _nbytes(value: TensorEntry | Tensor) -> int:
    if isinstance(value, TensorEntry):
        return value.end - value.begin
    return value.size * value.dtype.itemsize


# -- files -------------------------------------------------------------------------------------


def is_plain_name(name: str) -> bool:
    """Return whether a name can only be of a file beside the one that says it."""
    return bool(name) and name not in (".", "..") and not set(name) & set("/\\\0:")


@contextmanager
def open_member(folder: str, name: str) -> Iterator[SizedStream]:
    """A file of a directory, which must be a plain one that no other name leads to.

    Raises:
        CheckpointError: it is missing, or a link (those of huggingface_hub's cache are followed).
    """
    path = os.path.join(folder, name)
    handle = _handle(folder, path)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(path, "not a regular file")
        if status.st_nlink != 1:
            raise CheckpointError(
                path,
                "the file has a second name (a hard link), which may lie outside of the directory",
                hint="copy the file in place of the link",
            )
        with open(handle, "rb", closefd=False) as stream:
            yield SizedStream(stream, status.st_size, path)
    finally:
        os.close(handle)


def _handle(folder: str, path: str) -> int:
    # O_NONBLOCK: opening a pipe that nobody writes to must fail, not hang.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        raise CheckpointError(path, "the file is missing", hint="fetch it, too") from None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    target = os.readlink(path)
    if not _IN_CACHE.fullmatch(target):
        raise CheckpointError(
            path,
            "the file is a symbolic link",
            saw=shorten(target),
            hint="copy the file in place of the link",
        )
    return os.open(os.path.join(folder, target), flags)


def _identity(source: SizedStream) -> tuple[int, ...]:
    status = os.fstat(source.stream.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
