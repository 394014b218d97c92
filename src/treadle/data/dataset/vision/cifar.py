"""CIFAR-10 and CIFAR-100, from their archives of pickled batches."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from treadle.base.array import Array
from treadle.base.files.download import Digest, fetch
from treadle.base.log import get_logger
from treadle.data.dataset.unpack import unpack
from treadle.data.dataset.vision.array_pickle import load_arrays
from treadle.data.dataset.vision.meta_vision import Root, VisionDataset, prepared_root
from treadle.data.failure import DatasetError

_PIXELS = 3 * 32 * 32


class CIFAR10(VisionDataset):
    """Small photographs in ten classes (Krizhevsky 2009): 50000 to train on, 10000 to test.

    A sample is an image (32, 32, 3), uint8, channels blue, green, red, and its class as int32.

    The files are pickles, which could run code; here they are read by an unpickler that knows
    NumPy arrays and plain values, and nothing else.

    Args:
        root: directory that holds the folder `cifar-10-batches-py` or the archive
            `cifar-10-python.tar.gz`; `megengine/CIFAR10` in the user's cache if None.
        train: the samples to train on, else those to test.
        download: fetch the archive if it is missing and compare it with its published MD5 sum.
        timeout: longest silence of the server in seconds.

    Raises:
        DatasetError: files are missing and not to be downloaded, or are damaged.
        DownloadError: the download failed; the message says where to put a file from elsewhere.
    """

    url_path = "https://www.cs.toronto.edu/~kriz/"
    raw_file_name = "cifar-10-python.tar.gz"
    raw_file_md5 = "c58f30108f718f92721af3b95e74349a"
    raw_file_dir = "cifar-10-batches-py"
    train_batch: ClassVar[tuple[str, ...]] = tuple(f"data_batch_{i}" for i in range(1, 6))
    test_batch: ClassVar[tuple[str, ...]] = ("test_batch",)
    meta_info: ClassVar[dict[str, str]] = {"name": "batches.meta"}
    label_keys: ClassVar[tuple[bytes, ...]] = (b"labels",)

    def __init__(
        self,
        root: Root | None = None,
        train: bool = True,
        download: bool = True,
        timeout: float = 500,
    ) -> None:
        folder = prepared_root(type(self), root, download)
        super().__init__(folder, order=("image", "image_category"))
        self.timeout = timeout
        self.target_file = os.path.join(self.root, self.raw_file_dir)
        if not os.path.isdir(self.target_file):
            self._unpack(download)
        self.arrays = self._read(self.train_batch if train else self.test_batch)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        images, *labels = self.arrays
        # A copy, so that what is done to a sample does not reach the dataset.
        return images[index].copy(), *(column[index] for column in labels)

    def __len__(self) -> int:
        return len(self.arrays[0])

    @property
    def meta(self) -> dict[Any, Any]:
        """The names of the classes and the counts, as the file `batches.meta` or `meta` has them.

        Raises:
            DatasetError: the file is missing or damaged.
        """
        return load_arrays(self._require(self.raw_file_dir, self.meta_info["name"]))

    def _unpack(self, download: bool) -> None:
        archive = Path(self.root, self.raw_file_name)
        if not archive.exists() and not download:
            raise DatasetError(
                type(self).__name__,
                f"dir does not contain target file {self.target_file}",
                hint="set download=True",
            )
        get_logger("data").info("unpacking %s", archive)
        digest = Digest("md5", self.raw_file_md5)
        fetch(self.url_path + self.raw_file_name, archive, digest, self.timeout)
        with tarfile.open(archive) as tar:
            unpack(tar, self.root)

    def _read(self, names: Iterable[str]) -> tuple[Array, ...]:
        batches = [self._read_batch(self._require(self.raw_file_dir, name)) for name in names]
        return tuple(np.concatenate(column) for column in zip(*batches, strict=True))

    def _read_batch(self, path: str) -> tuple[Array, ...]:
        content = load_arrays(path)
        data = content.get(b"data")
        labels = [np.asarray(content.get(key, ()), dtype=np.int32) for key in self.label_keys]
        if not (
            isinstance(data, np.ndarray)
            and data.dtype == np.uint8
            and data.shape[1:] == (_PIXELS,)
            and all(column.shape == data.shape[:1] for column in labels)
        ):
            raise DatasetError(path, "this is not a batch of CIFAR images", saw=f"{list(content)}")
        # Stored as red, green and blue planes.
        images = data.reshape(-1, 3, 32, 32)[:, ::-1].transpose(0, 2, 3, 1)
        return np.ascontiguousarray(images), *labels


class CIFAR100(CIFAR10):
    """Small photographs in 100 classes (Krizhevsky 2009): 50000 to train on, 10000 to test.

    A sample is an image (32, 32, 3), uint8, channels blue, green, red, its class and its one of 20
    coarse classes, both int32.

    Args:
        root: directory that holds the folder `cifar-100-python` or the archive
            `cifar-100-python.tar.gz`; `megengine/CIFAR100` in the user's cache if None.
        train: see `CIFAR10`, as the rest.
        download: fetch the archive if it is missing.
        timeout: longest silence of the server in seconds.

    Raises:
        DatasetError: files are missing and not to be downloaded, or are damaged.
        DownloadError: the download failed.
    """

    raw_file_name = "cifar-100-python.tar.gz"
    raw_file_md5 = "eb9058c3a382ffc7106e4002c42a8d85"
    raw_file_dir = "cifar-100-python"
    train_batch = ("train",)
    test_batch = ("test",)
    meta_info: ClassVar[dict[str, str]] = {"name": "meta"}
    label_keys = (b"fine_labels", b"coarse_labels")
