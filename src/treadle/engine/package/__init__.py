"""Everything that is a model file: its container, graphs with weights, native parts, runners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from treadle.base.files.container import looks_like_container, read_header
from treadle.base.files.sealed import Kind, Sealed, is_sealed
from treadle.base.files.source import SizedStream

KIND = Kind("treadle model", 2)
"""Version 2 is that of files with native parts; others are written as version 1."""


class Foreign(NamedTuple):
    """Model files of others.

    Attributes:
        looks: whether bytes are the beginning of one.
        read: gives the models in it, as `models.read_models` does.
    """

    looks: Callable[[bytes], bool]
    read: Callable[[SizedStream], list[Any]]


def is_megengines(head: bytes) -> bool:
    """Return whether a file that begins so was dumped by MegEngine's own runtime."""
    return head[:4] in (b"MGBS", b"MGBC") or head[:8] == b"mgbtest0" or head[8:12] == b"mgv2"


_FOREIGN: list[Foreign] = []


def read_also(other: Foreign) -> None:
    """Register another kind of files for `read_models` to read, unless it does already."""
    if all(known.looks is not other.looks for known in _FOREIGN):
        _FOREIGN.append(other)


def foreign(head: bytes) -> Foreign | None:
    """Return the reader of a file that begins so; None if it is Treadle itself, or nobody."""
    return next((f for f in _FOREIGN if f.looks(head)), None)


def opened(source: SizedStream) -> Sealed:
    """The file behind a source, its manifest checked.

    Raises:
        CheckpointError: the file is damaged, of another kind, or of a newer version.
    """
    head = source.read(0, 32)
    if not looks_like_container(head):
        hint = "trace.dump and treadle compile write them"
        if is_megengines(head):
            hint = "it was dumped by MegEngine; import treadle.interop.megengine, which reads it"
        elif head[:4] == b"PK\3\4":
            hint = "it is an archive, as PyTorch writes them: `treadle convert` makes a model of an"
            hint += " exported program (.pt2) and reads weights (.pt)"
        raise source.error("the file holds no model", hint=hint)
    header = read_header(source)
    if not is_sealed(header):
        raise source.error("the file holds tensors and no model", hint="read it with load()")
    return Sealed(source, header, KIND)
