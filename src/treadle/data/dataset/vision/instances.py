"""Files of annotated instances in COCO's JSON: images, boxes, categories, keypoints."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from treadle.base.array import Array
from treadle.data.dataset.vision.meta_vision import Root, VisionDataset
from treadle.data.failure import DatasetError
from treadle.data.image_file import read_image

Annotation = dict[str, Any]

_MIN_KEYPOINTS = 10
_UNUSED = ("license", "coco_url", "date_captured", "flickr_url")


class InstanceDataset(VisionDataset):
    """Base of `COCO` and `Objects365`.

    Args:
        root: directory of the images.
        ann_file: JSON file with the lists `images`, `annotations` and `categories`.
        remove_images_without_annotations: leave out images without a box that counts (not of a
            crowd, not empty) or, where keypoints are asked for, with fewer than ten visible ones.
        order: the fields of a sample.

    Raises:
        DatasetError: the file is damaged, or its parts do not belong together.
        NotImplementedError: a field is not supported.

    Attributes:
        ids: of the images, sorted.
        imgs: what the file says of each image, by id.
        img_to_anns: annotations of each image, by its id.
        cats: categories, by id.
        json_category_id_to_contiguous_id: number of each category, from 1.
        contiguous_category_id_to_json_id: the reverse.
    """

    supported_order: ClassVar[tuple[str, ...]] = ()
    class_names: ClassVar[tuple[str, ...]] = ()
    keypoint_names: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        root: Root,
        ann_file: Root,
        remove_images_without_annotations: bool = False,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        super().__init__(root, order=order, supported_order=self.supported_order)
        self._file = os.fspath(ann_file)
        content = _read_json(self._file)
        try:
            self.imgs = {
                image["id"]: {key: image[key] for key in image if key not in _UNUSED}
                for image in content["images"]
            }
            self.cats = {category["id"]: category for category in content["categories"]}
            self.img_to_anns: dict[Any, list[Annotation]] = defaultdict(list)
            for annotation in content["annotations"]:
                self.img_to_anns[annotation["image_id"]].append(self._trimmed(annotation))
        except (KeyError, TypeError) as error:
            raise DatasetError(
                self._file, "this is not a file of annotations in COCO's format", saw=repr(error)
            ) from error
        self.ids = sorted(self.imgs)
        if remove_images_without_annotations:
            self._remove_images_without_annotations()
        self.json_category_id_to_contiguous_id = {
            key: number for number, key in enumerate(sorted(self.cats), start=1)
        }
        self.contiguous_category_id_to_json_id = {
            number: key for key, number in self.json_category_id_to_contiguous_id.items()
        }
        self._fields = {name: getattr(self, f"_{name}") for name in self.supported_order}

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self._sample(index, self._fields)

    def __len__(self) -> int:
        return len(self.ids)

    def get_img_info(self, index: int) -> dict[str, Any]:
        """Return the file's record of an image: `id`, `file_name`, `height`, `width`, ..."""
        return self.imgs[self.ids[index]]

    def _trimmed(self, annotation: Annotation) -> Annotation:
        """An annotation without the outlines, which take most of the memory, if nobody asks."""
        if "polygons" in self.order:
            return annotation
        return {key: annotation[key] for key in annotation if key != "segmentation"}

    def _remove_images_without_annotations(self) -> None:
        kept = []
        for key in self.ids:
            counted = [a for a in self.img_to_anns[key] if not a.get("iscrowd") and _has_area(a)]
            if has_valid_annotation(counted, self.order):
                kept.append(key)
                self.img_to_anns[key] = counted
            else:
                del self.imgs[key], self.img_to_anns[key]
        self.ids = kept

    def _annotations(self, index: int, field: str) -> list[Any]:
        """One entry of every annotation of an image."""
        key = self.ids[index]
        try:
            return [annotation[field] for annotation in self.img_to_anns.get(key, ())]
        except KeyError:
            raise DatasetError(self._file, f"image {key} has no {field}") from None

    def _image(self, index: int) -> Array:
        return read_image(os.path.join(self.root, self.get_img_info(index)["file_name"]))

    def _boxes(self, index: int) -> Array:
        boxes = np.array(self._annotations(index, "bbox"), dtype=np.float32).reshape(-1, 4)
        # In the file: corner and size.
        boxes[:, 2:] += boxes[:, :2]
        return boxes

    def _boxes_category(self, index: int) -> Array:
        numbers = self.json_category_id_to_contiguous_id
        keys = self._annotations(index, "category_id")
        if not numbers.keys() >= set(keys):
            raise DatasetError(
                self._file, "there is no such category", saw=f"category_id in {keys}"
            )
        return np.array([numbers[key] for key in keys], dtype=np.int32)

    def _keypoints(self, index: int) -> Array:
        keypoints = np.array(self._annotations(index, "keypoints"), dtype=np.float32)
        return keypoints.reshape(-1, len(self.keypoint_names), 3)

    def _polygons(self, index: int) -> list[list[Array]]:
        outlines = self._annotations(index, "segmentation")
        if any(isinstance(parts, dict) for parts in outlines):
            raise DatasetError(
                self._file,
                f"an outline of image {self.ids[index]} is a mask, not polygons",
                hint="use remove_images_without_annotations=True, which leaves crowds out",
            )
        return [
            [np.array(part, dtype=np.float32).reshape(-1, 2) for part in parts]
            for parts in outlines
        ]

    def _info(self, index: int) -> list[Any]:
        info = self.get_img_info(index)
        return [info["height"], info["width"], info["file_name"]]


def has_valid_annotation(anno: Sequence[Annotation], order: Sequence[str]) -> bool:
    """Return whether the annotations of an image have what the fields of `order` need."""
    if not anno:
        return False
    if ("boxes" in order or "boxes_category" in order) and "bbox" not in anno[0]:
        return False
    if "keypoints" not in order:
        return True
    visible = sum(value > 0 for a in anno for value in a.get("keypoints", ())[2::3])
    return bool(visible >= _MIN_KEYPOINTS)


def _has_area(annotation: Annotation) -> bool:
    box = annotation.get("bbox", (0, 0, 0, 0))
    return bool(box[2] > 0 and box[3] > 0)


def _read_json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (ValueError, RecursionError) as error:
        raise DatasetError(path, "the file is not JSON", saw=str(error)) from error
    if not isinstance(content, dict):
        raise DatasetError(path, "this is not a file of annotations", saw=type(content).__name__)
    return content
