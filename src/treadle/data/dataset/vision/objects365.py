"""Objects365: detection of 365 classes."""

from __future__ import annotations

from treadle.data.dataset.vision.class_name_table import OBJECTS365_CLASSES
from treadle.data.dataset.vision.instances import InstanceDataset


class Objects365(InstanceDataset):
    """Objects365 (Shao et al. 2019).

    Fields of a sample: `image` (H, W, 3), uint8, blue, green, red; `boxes` (N, 4), float32, two
    corners each; `boxes_category` (N,), int32, from 1; `info`, a list of height, width and file
    name.

    Args:
        root: directory of the images.
        ann_file: annotations in COCO's format.
        remove_images_without_annotations: leave out images without a box that counts.
        order: the fields of a sample; ("image",) if None.

    Raises:
        DatasetError: the file is damaged, or its parts do not belong together.
        NotImplementedError: a field is not supported.
    """

    supported_order = ("image", "boxes", "boxes_category", "info")
    class_names = OBJECTS365_CLASSES
