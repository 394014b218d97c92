"""MS COCO: detection and keypoints."""

from __future__ import annotations

from typing import ClassVar

from treadle.data.dataset.vision.class_name_table import COCO_CLASSES, COCO_KEYPOINTS
from treadle.data.dataset.vision.instances import InstanceDataset, has_valid_annotation

__all__ = ["COCO", "has_valid_annotation"]


class COCO(InstanceDataset):
    """Common Objects in Context (Lin et al. 2014).

    Fields of a sample: `image` (H, W, 3), uint8, blue, green, red; `boxes` (N, 4), float32, two
    corners each; `boxes_category` (N,), int32, from 1; `keypoints` (N, 17, 3), float32;
    `polygons`, per instance a list of arrays (M, 2); `info`, a list of height, width and file
    name. Without instances the arrays have N = 0.

    Args:
        root: directory of the images, such as `train2017`.
        ann_file: such as `instances_train2017.json` or `person_keypoints_train2017.json`.
        remove_images_without_annotations: leave out images without a box that counts (not of a
            crowd, not empty) or, where keypoints are asked for, with fewer than ten visible ones.
        order: the fields of a sample; ("image",) if None.

    Raises:
        DatasetError: the file is damaged, or its parts do not belong together.
        NotImplementedError: a field is not supported.
    """

    supported_order = (
        "image",
        "boxes",
        "boxes_category",
        "keypoints",
        "polygons",
        "info",
    )
    class_names = COCO_CLASSES
    keypoint_names = COCO_KEYPOINTS
    # The numbers in the files run to 90 and leave some out.
    classes_originID: ClassVar[dict[str, int]] = dict(
        zip(
            COCO_CLASSES,
            (i for i in range(1, 91) if i not in {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}),
            strict=True,
        )
    )
