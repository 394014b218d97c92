"""Images in one folder per class."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from treadle.base.log import get_logger
from treadle.data.dataset.vision.meta_vision import Root, VisionDataset
from treadle.data.image_file import read_image

IMG_EXT = (".jpg", ".png", ".jpeg", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class ImageFolder(VisionDataset):
    """Images at `root/<class>/.../<name>.<ext>`; classes are numbered in the order of their names.

    A sample is an image (H, W, 3), uint8, channels blue, green, red, and its class: a number
    (int32) or a name.

    Args:
        root: directory with one folder per class. Links to directories are followed. A directory
            without folders is a dataset of no samples, and the log says so.
        check_valid_func: called with a path, says whether it is an image to use; by default the
            usual extensions are.
        class_name: give the class by name.

    Raises:
        DatasetError: there is no such directory.

    Attributes:
        class_dict: number of each class by name.
        samples: path and class of each sample.
    """

    def __init__(
        self,
        root: Root,
        check_valid_func: Callable[[str], bool] | None = None,
        class_name: bool = False,
    ) -> None:
        super().__init__(root, order=("image", "image_category"))
        self.check_valid = is_img if check_valid_func is None else check_valid_func
        self.class_name = class_name
        self.class_dict = self.collect_class()
        self.samples = self.collect_samples()

    def collect_class(self) -> dict[str, np.int32]:
        """Number the folders in the root."""
        with os.scandir(self._require()) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
        if not names:
            get_logger("data").warning(
                "%s: %s has no folders, so there are no samples; images stand in one folder per "
                "class: root/cat/1.jpg",
                type(self).__name__,
                self.root,
            )
        return {name: np.int32(number) for number, name in enumerate(names)}

    def collect_samples(self) -> list[tuple[str, Any]]:
        """Find the images of every class, in the order of their names."""
        samples: list[tuple[str, Any]] = []
        for name, number in self.class_dict.items():
            kind = name if self.class_name else number
            # A link to a folder above would otherwise be followed for ever.
            visited: set[str] = set()
            for folder, below, files in os.walk(os.path.join(self.root, name), followlinks=True):
                below.sort()
                real = os.path.realpath(folder)
                if real in visited:
                    below.clear()
                    continue
                visited.add(real)
                paths = (os.path.join(folder, file) for file in sorted(files))
                samples += [(path, kind) for path in paths if self.check_valid(path)]
        return samples

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        path, kind = self.samples[index]
        return read_image(path), kind

    def __len__(self) -> int:
        return len(self.samples)


def is_img(filename: str) -> bool:
    """Return whether a name has an extension of an image."""
    return filename.lower().endswith(IMG_EXT)
