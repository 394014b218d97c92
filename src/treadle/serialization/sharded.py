"""Checkpoints that all ranks write together, and any number of ranks reads again.

A checkpoint is a folder: `part-<rank>` files with pieces of arrays, and `manifest`, which is
written last. It is put in its place in one step when all ranks have written, so that a folder of
that name is whole. Every file is one of `save`: reading it runs nothing.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from treadle.base.dtype import as_dtype
from treadle.base.errors import CheckpointError
from treadle.distributed import WORLD, Group, get_rank, is_distributed
from treadle.runtime.comm.api import Communicator
from treadle.runtime.comm.loopback import Loopback
from treadle.serialization.checkpoint import load, save
from treadle.tensor import Tensor

_MARK = "\N{NULL}array:"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Part:
    """This rank's part of a vector of `total` elements, from element `start` on.

    Parts of all ranks cover the vector, as those of a `ShardedOptimizer` do.
    """

    array: Any
    start: int
    total: int


def save_sharded(state: Any, folder: str | os.PathLike[str], group: Group = WORLD) -> None:
    """Write a checkpoint; all ranks of the group call this together.

    Arrays that every rank has, such as parameters, are cut evenly, so that each rank writes its
    share of bytes. What is not an array is taken from the first rank.

    Args:
        state: nested dicts, lists and tuples of tensors, arrays, `Part`s and plain values, with
            the same structure on all ranks.
        folder: where to; on a file system that all ranks see. One that exists is replaced once the
            new one is whole.
        group: the ranks; outside of groups the process writes alone.

    Raises:
        TypeError, OSError: as `save`.
    """
    comm = _communicator(group)
    target = Path(folder)
    temporary = target.with_name(target.name + ".writing")
    if comm.rank == 0:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    comm.barrier()
    arrays: list[tuple[tuple[int, ...], str]] = []
    pieces: dict[str, tuple[int, Any]] = {}

    def cut(leaf: Any) -> str:
        piece, shape = _piece(leaf, comm.rank, comm.size)
        pieces[str(len(arrays))] = piece.start, piece.array
        arrays.append((shape, str(piece.array.dtype)))
        return f"{_MARK}{len(arrays) - 1}"

    tree = _mapped(state, _is_array, cut)
    save(pieces, str(temporary / _part(comm.rank)))
    comm.barrier()
    if comm.rank == 0:
        manifest = {"version": _VERSION, "ranks": comm.size, "tree": tree, "arrays": arrays}
        save(manifest, str(temporary / "manifest"))
        _put(temporary, target)
    comm.barrier()


def load_sharded(folder: str | os.PathLike[str]) -> Any:
    """Read a checkpoint, on any number of ranks, each by itself.

    Returns:
        What was saved, with NumPy arrays in place of tensors and whole vectors in place of parts.

    Raises:
        CheckpointError: there is no whole checkpoint, or a file of it is damaged or missing.
    """
    source = Path(folder)
    if not (source / "manifest").exists():
        raise CheckpointError(
            "load_sharded",
            f"{source} holds no checkpoint",
            hint="a folder without manifest was not written to the end",
        )
    manifest = load(str(source / "manifest"))
    try:
        return _assembled(source, manifest)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            "load_sharded",
            f"the files of {source} are none that save_sharded wrote",
            saw=str(error),
        ) from error


def _assembled(source: Path, manifest: Any) -> Any:
    """Assemble what was saved, from the manifest and all parts."""
    if manifest["version"] != _VERSION:
        raise CheckpointError("load_sharded", f"{source} is of another version of Treadle")
    whole = [np.empty(math.prod(shape), as_dtype(d).numpy) for shape, d in manifest["arrays"]]
    filled = [0] * len(whole)
    for rank in range(manifest["ranks"]):
        path = source / _part(rank)
        if not path.exists():
            raise CheckpointError("load_sharded", f"{path} is missing")
        for key, (start, piece) in load(str(path)).items():
            target = whole[int(key)][start : start + piece.size]
            if target.size != piece.size or target.dtype != piece.dtype:
                raise CheckpointError("load_sharded", f"a part in {path} does not fit its array")
            target[:] = piece
            filled[int(key)] += piece.size
    for array, count in zip(whole, filled, strict=True):
        if array.size != count:
            raise CheckpointError("load_sharded", f"parts of {source} do not cover an array")

    def put_together(mark: str) -> Any:
        number = int(mark.removeprefix(_MARK))
        return whole[number].reshape(manifest["arrays"][number][0])

    return _mapped(manifest["tree"], _is_mark, put_together)


def _communicator(group: Group) -> Communicator:
    return group.communicator() if is_distributed() else Loopback(world_rank=get_rank())


def _part(rank: int) -> str:
    return f"part-{rank:05d}"


def _put(temporary: Path, target: Path) -> None:
    """Put a folder in the place of another: the old one is whole until the new one is there."""
    old = target.with_name(target.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    temporary.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _piece(leaf: Any, rank: int, size: int) -> tuple[Part, tuple[int, ...]]:
    """Return this rank's part of an array, and the shape of the whole."""
    if isinstance(leaf, Part):
        array = leaf.array.numpy() if isinstance(leaf.array, Tensor) else np.asarray(leaf.array)
        kept = array[: max(leaf.total - leaf.start, 0)]  # without what pads it
        return Part(kept, leaf.start, leaf.total), (leaf.total,)
    array = leaf.numpy() if isinstance(leaf, Tensor) else leaf
    flat = array.reshape(-1)
    start, stop = flat.size * rank // size, flat.size * (rank + 1) // size
    return Part(flat[start:stop], start, flat.size), array.shape


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (Tensor, np.ndarray, Part))


def _is_mark(leaf: Any) -> bool:
    return isinstance(leaf, str) and leaf.startswith(_MARK)


def _mapped(tree: Any, wanted: Callable[[Any], bool], change: Callable[[Any], Any]) -> Any:
    """A tree of dicts, lists and tuples with some leaves changed, in order."""
    if wanted(tree):
        return change(tree)
    if isinstance(tree, Mapping):
        return {key: _mapped(value, wanted, change) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        made = [_mapped(value, wanted, change) for value in tree]
        return made if isinstance(tree, list) else tuple(made)
    return tree
