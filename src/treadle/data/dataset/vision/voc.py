"""Pascal VOC: detection and segmentation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

import numpy as np

from treadle.base.array import Array
from treadle.data.dataset.vision.class_name_table import VOC_CLASSES
from treadle.data.dataset.vision.meta_vision import Root, VisionDataset
from treadle.data.failure import DatasetError
from treadle.data.image_file import read_gray, read_image

_IGNORED = 255
_CORNERS = ("xmin", "ymin", "xmax", "ymax")


def _palette() -> tuple[tuple[int, int, int], ...]:
    """Color (blue, green, red) of each class in masks: the bits of its number, dealt out."""
    colors = []
    for number in range(len(VOC_CLASSES) + 1):
        red, green, blue = (
            sum((number >> 3 * step + channel & 1) << 7 - step for step in range(3))
            for channel in range(3)
        )
        colors.append((blue, green, red))
    return tuple(colors)


class PascalVOC(VisionDataset):
    """Pascal Visual Object Classes (Everingham et al. 2010).

    Fields of a sample: `image` (H, W, 3), uint8, blue, green, red; `boxes` (N, 4), float32, two
    corners each, in pixels from 1 as in the files; `boxes_category` (N,), int32, from 1; `mask`
    (H, W, 1), uint8: 0 for background, class numbers from 1, 255 for borders to ignore; `info`, a
    list of height, width and name.

    Args:
        root: directory with `JPEGImages`, `Annotations`, `ImageSets`, such as `VOC2012`.
        image_set: name of a list in `ImageSets/Main` (boxes) or `ImageSets/Segmentation` (mask),
            such as "train"; if it contains "aug", masks are grey images of class numbers in
            `SegmentationClass_aug`.
        order: the fields of a sample, with boxes, boxes_category or mask.

    Raises:
        ValueError: boxes together with a mask, whose lists differ.
        NotImplementedError: neither boxes nor a mask, or a field is not supported.
        DatasetError: there is no such directory or list; when read, an annotation is damaged.
    """

    supported_order = ("image", "boxes", "boxes_category", "mask", "info")
    class_names = VOC_CLASSES
    class_colors: ClassVar[tuple[tuple[int, int, int], ...]] = _palette()

    def __init__(self, root: Root, image_set: str, *, order: Sequence[str] | None = None) -> None:
        super().__init__(root, order=order, supported_order=self.supported_order)
        has_boxes = "boxes" in self.order or "boxes_category" in self.order
        if has_boxes and "mask" in self.order:
            raise ValueError("PascalVOC only supports boxes & boxes_category or mask, not both.")
        if not has_boxes and "mask" not in self.order:
            raise NotImplementedError(
                f"order={self.order} needs boxes, boxes_category or mask: they choose the list"
            )
        self.image_set = image_set
        part = "Main" if has_boxes else "Segmentation"
        names = Path(self._require("ImageSets", part, f"{image_set.strip()}.txt")).read_text()
        # Lists of single classes say after each name whether it is in the image.
        self.file_names = [line.split()[0] for line in names.splitlines() if line.strip()]
        self._is_augmented = "aug" in image_set
        masks = "SegmentationClass_aug" if self._is_augmented else "SegmentationClass"
        self.images = self._paths("JPEGImages", ".jpg")
        self.annotations = self._paths("Annotations", ".xml") if has_boxes else []
        self.masks = [] if has_boxes else self._paths(masks, ".png")
        self.img_infos: dict[int, dict[str, Any]] = {}
        self._fields = {name: getattr(self, f"_{name}") for name in self.supported_order}

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self._sample(index, self._fields)

    def __len__(self) -> int:
        return len(self.images)

    def get_img_info(self, index: int, image: Array | None = None) -> dict[str, Any]:
        """Height, width and file name of an image, which is read for it if it is not given."""
        if index not in self.img_infos:
            height, width = (self._image(index) if image is None else image).shape[:2]
            name = self.file_names[index]
            self.img_infos[index] = {"height": height, "width": width, "file_name": name}
        return self.img_infos[index]

    def _paths(self, folder: str, extension: str) -> list[str]:
        return [os.path.join(self.root, folder, name + extension) for name in self.file_names]

    def _objects(self, index: int) -> list[ElementTree.Element]:
        path = self.annotations[index]
        try:
            # Expat has limits of its own against entities that unfold without end.
            return ElementTree.parse(path).getroot().findall("object")
        except ElementTree.ParseError as error:
            raise DatasetError(path, "the annotation is not XML", saw=str(error)) from error

    def _image(self, index: int) -> Array:
        return read_image(self.images[index])

    def _boxes(self, index: int) -> Array:
        objects = self._objects(index)
        texts = [[item.findtext(f"bndbox/{corner}") for corner in _CORNERS] for item in objects]
        try:
            boxes = np.array(texts, dtype=np.float32).reshape(-1, 4)
        except ValueError:
            boxes = np.full((1, 4), np.nan, np.float32)
        # A corner that is missing counts as not a number.
        if not np.isfinite(boxes).all():
            path = self.annotations[index]
            raise DatasetError(path, "a box lacks a corner", saw=f"{texts}")
        return boxes

    def _boxes_category(self, index: int) -> Array:
        names = [item.findtext("name", "").strip() for item in self._objects(index)]
        unknown = set(names) - set(self.class_names)
        if unknown:
            path = self.annotations[index]
            raise DatasetError(path, "there is no such class", saw=f"{sorted(unknown)}")
        return np.array([self.class_names.index(name) + 1 for name in names], dtype=np.int32)

    def _mask(self, index: int) -> Array:
        if self._is_augmented:
            return read_gray(self.masks[index])[:, :, np.newaxis]
        colors = read_image(self.masks[index]).astype(np.int32)
        codes = colors @ np.array([1 << 16, 1 << 8, 1], dtype=np.int32)
        mask = np.full(codes.shape, _IGNORED, dtype=np.uint8)
        for number, (blue, green, red) in enumerate(self.class_colors):
            mask[codes == (blue << 16 | green << 8 | red)] = number
        return mask[:, :, np.newaxis]

    def _info(self, index: int) -> list[Any]:
        info = self.get_img_info(index)
        return [info["height"], info["width"], info["file_name"]]
