"""ImageNet as its challenge of 2012 publishes it: three archives, or folders made of them."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from treadle.base import env
from treadle.base.files.download import Digest
from treadle.base.log import get_logger
from treadle.data.dataset.unpack import unpack
from treadle.data.dataset.vision.folder import ImageFolder
from treadle.data.dataset.vision.meta_vision import Root
from treadle.data.dataset.vision.synsets import read_synsets
from treadle.data.failure import DatasetError


class ImageNet(ImageFolder):
    """The classification data of ILSVRC 2012: 1000 classes, folders named by WordNet id.

    A sample is an image (H, W, 3), uint8, channels blue, green, red, and its class (int32).

    Under `root` stand the folders `train` and `val` with one folder per class; or the archives as
    published, from which the wanted folder is made once, after their MD5 sums are compared:
    `ILSVRC2012_img_train.tar`, or `ILSVRC2012_img_val.tar` with `ILSVRC2012_devkit_t12.tar.gz`
    (which says which image is of which class).

    Args:
        root: the directory; `megengine/ImageNet` in the user's cache if None.
        train: the images to train on, else those to validate.
        check_valid_func: see `ImageFolder`.
        class_name: see `ImageFolder`.

    Raises:
        FileNotFoundError: neither folder nor archives are there; they cannot be downloaded, as
            their publisher wants to know who gets them.
        DatasetError: an archive or the labels are damaged.
    """

    raw_file_meta: ClassVar[dict[str, tuple[str, str]]] = {
        "train": ("ILSVRC2012_img_train.tar", "1d675b47d978889d74fa0da5fadfb00e"),
        "val": ("ILSVRC2012_img_val.tar", "29b22e2961454d5413ddabcf34fc5622"),
        "devkit": ("ILSVRC2012_devkit_t12.tar.gz", "fa75699e90414af021442c21a62c3abf"),
    }
    default_train_dir = "train"
    default_val_dir = "val"
    default_devkit_dir = "ILSVRC2012_devkit_t12"

    def __init__(
        self,
        root: Root | None = None,
        train: bool = True,
        *,
        check_valid_func: Callable[[str], bool] | None = None,
        class_name: bool = False,
    ) -> None:
        top = env.data_directory() / "ImageNet" if root is None else Path(root).expanduser()
        if not top.is_dir():
            raise FileNotFoundError(f"dir {top} does not exist")
        self.train = train
        self.top = str(top)
        self.devkit_dir = str(top / self.default_devkit_dir)
        target = top / (self.default_train_dir if train else self.default_val_dir)
        if not target.is_dir():
            self._make(target)
        super().__init__(target, check_valid_func, class_name)

    @property
    def valid_ground_truth(self) -> list[int]:
        """Numbers of the classes of the images to validate, in the order of their names.

        Raises:
            FileNotFoundError: the archive `devkit` is not unpacked.
            DatasetError: the file holds something else.
        """
        path = Path(self.devkit_dir, "data", "ILSVRC2012_validation_ground_truth.txt")
        try:
            return [int(line) for line in path.read_text().split()]
        except ValueError as error:
            raise DatasetError(str(path), "it is not a list of numbers", saw=str(error)) from error

    @property
    def meta(self) -> tuple[dict[int, str], dict[str, tuple[str, ...]]]:
        """WordNet ids by number of the class, and names of the class by WordNet id.

        Raises:
            FileNotFoundError: the archive `devkit` is not unpacked.
            DatasetError: the file is damaged.
        """
        return read_synsets(Path(self.devkit_dir, "data", "meta.mat"))

    def check_raw_file(self) -> bool:
        """Return whether all archives are there."""
        names = (name for name, _ in self.raw_file_meta.values())
        return all(os.path.exists(os.path.join(self.top, name)) for name in names)

    def _make(self, target: Path) -> None:
        """Unpack into a folder beside the target, which then appears whole."""
        unfinished = target.with_name(f".{target.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        if self.train:
            self._unpack("train", unfinished)
            for archive in sorted(unfinished.glob("*.tar")):
                _untar(archive, archive.with_suffix(""))
                archive.unlink()
        else:
            if not os.path.isdir(self.devkit_dir):
                self._unpack("devkit", Path(self.top))
            self._unpack("val", unfinished)
            self._sort_into_classes(unfinished)
        os.replace(unfinished, target)

    def _unpack(self, part: str, target: Path) -> None:
        name, md5 = self.raw_file_meta[part]
        archive = Path(self.top, name)
        if not archive.exists():
            raise FileNotFoundError(
                f"expected image folders do not exist in {self.top}, and neither does {name}; "
                "get it from image-net.org"
            )
        logger = get_logger("data")
        logger.info("comparing the checksum of %s", archive)
        digest = Digest("md5", md5)
        digest.check(digest.of(archive), str(archive), "get the archive again")
        logger.info("unpacking %s", archive)
        _untar(archive, target)

    def _sort_into_classes(self, folder: Path) -> None:
        ids = self.meta[0]
        images = sorted(path for path in folder.iterdir() if path.is_file())
        classes = self.valid_ground_truth
        if len(images) != len(classes) or not set(classes) <= ids.keys():
            saw = f"{len(images)} images, {len(classes)} labels, {len(ids)} classes"
            raise DatasetError("ImageNet", "images and labels do not belong together", saw=saw)
        for path, number in zip(images, classes, strict=True):
            (folder / ids[number]).mkdir(exist_ok=True)
            path.rename(folder / ids[number] / path.name)


def _untar(archive: Path, target: Path) -> None:
    try:
        with tarfile.open(archive) as tar:
            unpack(tar, target)
    except (tarfile.TarError, EOFError) as error:
        raise DatasetError(str(archive), "the archive is damaged", saw=str(error)) from error
