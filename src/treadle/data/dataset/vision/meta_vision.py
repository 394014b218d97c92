"""Base of the readers of image datasets, and where their files are."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from treadle.base import env
from treadle.data.dataset.base import MapDataset
from treadle.data.failure import DatasetError

Root = str | os.PathLike[str]


class VisionDataset(MapDataset):
    """A dataset of images and of what belongs to them.

    Args:
        root: directory of the files; `~` is expanded.
        order: which fields a sample has, and in which order; ("image",) if None.
        supported_order: the fields there are; not checked if None.

    Raises:
        ValueError: `order` is not a sequence of names.
        NotImplementedError: a field is not supported.

    Attributes:
        order: the fields of a sample, for `VisionTransform(order=...)`.
    """

    def __init__(
        self,
        root: Root | None,
        *,
        order: Sequence[str] | None = None,
        supported_order: Sequence[str] | None = None,
    ) -> None:
        self.root = "" if root is None else os.path.expanduser(os.fspath(root))
        order = ("image",) if order is None else order
        if isinstance(order, str) or not isinstance(order, Sequence):
            raise ValueError(f"order should be a sequence, but got order={order!r}")
        for field in order:
            if supported_order is not None and field not in supported_order:
                raise NotImplementedError(
                    f"{field} is unsupported data type of {type(self).__name__}, which has "
                    f"{', '.join(supported_order)}"
                )
        self.order = tuple(order)

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no __getitem__")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} has no __len__")

    def _require(self, *parts: str) -> str:
        """The path of a file or directory of the dataset, which must be there."""
        path = os.path.join(self.root, *parts)
        if not os.path.exists(path):
            raise DatasetError(type(self).__name__, f"{path} does not exist")
        return path

    def _sample(self, index: int, fields: dict[str, Callable[[int], Any]]) -> tuple[Any, ...]:
        """A sample in this dataset's order, each field from its function."""
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of range for {size} samples")
        return tuple(fields[name](index % size) for name in self.order)


def prepared_root(cls: type[VisionDataset], root: Root | None, download: bool) -> str:
    """The directory of a dataset that can be downloaded, made if that is wanted.

    Raises:
        DatasetError: it does not exist and is not to be made.
    """
    path = env.data_directory() / cls.__name__ if root is None else Path(root).expanduser()
    if not path.is_dir():
        if not download:
            raise DatasetError(cls.__name__, f"dir {path} does not exist", hint="set download=True")
        path.mkdir(parents=True, exist_ok=True)
    return str(path)
