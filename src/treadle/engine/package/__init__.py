"""Everything that is a model file: its container, graphs with weights, native parts, runners."""

from __future__ import annotations

from treadle.base.files.container import looks_like_container, read_header
from treadle.base.files.sealed import Kind, Sealed, is_sealed
from treadle.base.files.source import Source

KIND = Kind("treadle model", 2)
"""Version 2 is that of files with native parts; others are written as version 1."""


def opened(source: Source) -> Sealed:
    """The file behind a source, its manifest checked.

    Raises:
        CheckpointError: the file is damaged, of another kind, or of a newer version.
    """
    if not looks_like_container(source.read(0, 32)):
        raise source.error(
            "the file holds no model", hint="trace.dump and treadle compile write them"
        )
    header = read_header(source)
    if not is_sealed(header):
        raise source.error("the file holds tensors and no model", hint="read it with load()")
    return Sealed(source, header, KIND)
