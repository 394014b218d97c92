"""Cityscapes: semantic segmentation of streets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from treadle.base.array import Array
from treadle.data.dataset.vision.class_name_table import CITYSCAPES_CLASSES
from treadle.data.dataset.vision.meta_vision import Root, VisionDataset
from treadle.data.failure import DatasetError
from treadle.data.image_file import read_gray, read_image

_IGNORED = 255
_IMAGE_END = "_leftImg8bit.png"
_SETS = {"gtFine": ("train", "test", "val"), "gtCoarse": ("train", "train_extra", "val")}


class Cityscapes(VisionDataset):
    """Cityscapes (Cordts et al. 2016).

    Fields of a sample: `image` (H, W, 3), uint8, blue, green, red; `mask` (H, W, 1), uint8: the 19
    classes that count, from 0 (road), and 255 for the rest; `info`, a list of height, width and
    path.

    Args:
        root: directory with `leftImg8bit` and `gtFine` or `gtCoarse`.
        image_set: "train", "val", and "test" (fine) or "train_extra" (coarse).
        mode: "gtFine" or "gtCoarse".
        order: the fields of a sample; ("image",) if None.

    Raises:
        ValueError: there is no such mode, or no such set in it.
        DatasetError: there are no such directories.
        NotImplementedError: a field is not supported.

    Attributes:
        images: paths of the images, sorted.
        masks: paths of their masks.
    """

    supported_order = ("image", "mask", "info")
    class_names = CITYSCAPES_CLASSES
    # Numbers in the files of the classes that count.
    label_ids: ClassVar[tuple[int, ...]] = (
        7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33,
    )  # fmt: skip

    def __init__(
        self, root: Root, image_set: str, mode: str, *, order: Sequence[str] | None = None
    ) -> None:
        super().__init__(root, order=order, supported_order=self.supported_order)
        if image_set not in _SETS.get(mode, ()):
            raise ValueError(f"no set {image_set!r} of mode {mode!r}; sets by mode: {_SETS}")
        self.mode = mode
        self.images_dir = self._require("leftImg8bit", image_set)
        self.masks_dir = self._require(mode, image_set)
        self.images: list[str] = []
        self.masks: list[str] = []
        for city in sorted(os.listdir(self.images_dir)):
            for name in sorted(os.listdir(os.path.join(self.images_dir, city))):
                if not name.endswith(_IMAGE_END):
                    continue
                label = f"{name.removesuffix(_IMAGE_END)}_{mode}_labelIds.png"
                self.images.append(os.path.join(self.images_dir, city, name))
                self.masks.append(os.path.join(self.masks_dir, city, label))
        if not self.images:
            raise DatasetError("Cityscapes", f"{self.images_dir} has no images")
        table = np.full(256, _IGNORED, dtype=np.uint8)
        table[list(self.label_ids)] = range(len(self.label_ids))
        self._table = table
        self._fields = {name: getattr(self, f"_{name}") for name in self.supported_order}

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self._sample(index, self._fields)

    def __len__(self) -> int:
        return len(self.images)

    def _image(self, index: int) -> Array:
        return read_image(self.images[index])

    def _mask(self, index: int) -> Array:
        mask: Array = self._table[read_gray(self.masks[index])][:, :, np.newaxis]
        return mask

    def _info(self, index: int) -> list[Any]:
        height, width = self._image(index).shape[:2]
        return [height, width, self.images[index]]
