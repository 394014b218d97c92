"""MNIST, from its four files in the IDX format."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path

import numpy as np

from treadle.base.array import Array
from treadle.base.files.download import Digest, fetch
from treadle.base.log import get_logger
from treadle.data.dataset.vision.meta_vision import Root, VisionDataset, prepared_root
from treadle.data.failure import DatasetError

_UBYTE = 8
_CHUNK = 1 << 20


class MNIST(VisionDataset):
    """Handwritten digits (LeCun et al. 1998): 60000 samples to train on, 10000 to test.

    A sample is an image (28, 28, 1), uint8, and its digit as int32.

    Args:
        root: directory of the files `train-images-idx3-ubyte.gz`, `train-labels-idx1-ubyte.gz`,
            `t10k-images-idx3-ubyte.gz` and `t10k-labels-idx1-ubyte.gz` (also without `.gz`);
            `megengine/MNIST` in the user's cache if None.
        train: the samples to train on, else those to test.
        download: fetch files that are missing and compare them with their published MD5 sums.
        timeout: longest silence of the server in seconds.

    Raises:
        DatasetError: files are missing and not to be downloaded, or are damaged.
        DownloadError: the download failed; the message says where to put files from elsewhere.
    """

    url_path = "https://ossci-datasets.s3.amazonaws.com/mnist/"
    raw_file_name = (
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    )
    raw_file_md5 = (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    )

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
        wanted = slice(0, 2) if train else slice(2, 4)
        images, labels = (
            _read_idx(self._file(name, md5, download))
            for name, md5 in zip(self.raw_file_name[wanted], self.raw_file_md5[wanted], strict=True)
        )
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise DatasetError(
                "MNIST",
                "images and labels do not belong together",
                saw=f"images {images.shape}, labels {labels.shape}",
            )
        self.arrays = (images[..., np.newaxis], labels.astype(np.int32))

    def __getitem__(self, index: int) -> tuple[Array, np.int32]:
        images, labels = self.arrays
        # A copy, so that what is done to a sample does not reach the dataset.
        return images[index].copy(), labels[index]

    def __len__(self) -> int:
        return len(self.arrays[0])

    @property
    def meta(self) -> dict[str, dict[str, int]]:
        """Headers of the files: counts and sizes of images and labels."""
        count, height, width, _ = self.arrays[0].shape
        return {
            "images": {"magic": 2051, "imgs": count, "height": height, "width": width},
            "labels": {"magic": 2049, "imgs": count},
        }

    def _file(self, name: str, md5: str, download: bool) -> Path:
        path = Path(self.root, name)
        for found in (path, path.with_suffix("")):
            if found.exists():
                return found
        if not download:
            raise DatasetError(
                "MNIST",
                f"root does not contain valid raw files: {name} is missing in {self.root}",
                hint="set download=True",
            )
        get_logger("data").info("downloading %s", name)
        return fetch(self.url_path + name, path, Digest("md5", md5), self.timeout)


def _read_idx(path: Path) -> Array:
    """An array of uint8 from an IDX file: two zeros, type, rank, big-endian sizes, values."""
    open_file = gzip.open if path.suffix == ".gz" else open
    try:
        with open_file(path, "rb") as file:
            zeros, kind, rank = struct.unpack(">HBB", file.read(4))
            if zeros or kind != _UBYTE or not 1 <= rank <= 4:
                saw = f"type {kind}, rank {rank}"
                raise DatasetError(os.fspath(path), "this is not an IDX file of bytes", saw=saw)
            shape = struct.unpack(f">{rank}I", file.read(4 * rank))
            wanted = math.prod(shape)
            # In pieces: what the header asks for may be more than there is, and than fits.
            values = bytearray()
            while len(values) <= wanted and (chunk := file.read(_CHUNK)):
                values += chunk
    except (EOFError, struct.error, zlib.error, gzip.BadGzipFile) as error:
        raise DatasetError(os.fspath(path), "the file is damaged or cut off") from error
    if len(values) != wanted:
        saw = f"{len(values)} bytes for shape {shape}"
        raise DatasetError(os.fspath(path), "the file does not hold what its header says", saw=saw)
    return np.frombuffer(bytes(values), np.uint8).reshape(shape)
