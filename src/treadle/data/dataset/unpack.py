"""Archives of data sets, unpacked where they may not write elsewhere."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path


def unpack(archive: tarfile.TarFile, folder: str | os.PathLike[str]) -> None:
    """Files and folders of an archive, below a folder.

    Raises:
        tarfile.TarError: a name or link leads out of the folder, or something else than a file is
            inside; nothing need have been written by then.
    """
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
        return
    # Before Python 3.11.4.
    root = Path(folder).resolve()
    for member in archive.getmembers():
        inside = (root / member.name).resolve().is_relative_to(root)
        if not inside or not (member.isfile() or member.isdir()):
            raise tarfile.ExtractError(f"{member.name!r} lies outside of {root}, or is not a file")
    archive.extractall(root)
