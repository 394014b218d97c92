import json
import os
import tempfile
from pathlib import Path

import cv2
import megengine.data.transform as T
import numpy as np
from megengine.data import Collator, DataLoader, RandomSampler, SequentialSampler
from megengine.data.dataset import COCO, ConcatDataset, ImageFolder, PascalVOC
from megengine.data.transform import (
    Compose,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResize,
    ShortestEdgeResize,
    ToMode,
    VisionTransform,
)

root = tempfile.mkdtemp()
for d in (
    "Annotations",
    "JPEGImages",
    "ImageSets/Main",
    "ImageSets/Segmentation",
    "SegmentationClass",
):
    os.makedirs(os.path.join(root, d))
rng = np.random.RandomState(0)
ids = [f"{i:06d}" for i in range(6)]
for i in ids:
    cv2.imwrite(f"{root}/JPEGImages/{i}.jpg", rng.randint(0, 255, (48, 64, 3), dtype=np.uint8))
    seg = np.zeros((48, 64, 3), np.uint8)
    seg[10:20, 10:30] = (0, 0, 128)
    cv2.imwrite(f"{root}/SegmentationClass/{i}.png", seg)
    obj = "".join(
        f"<object><name>{n}</name><difficult>0</difficult><bndbox><xmin>{x}</xmin><ymin>5</ymin>"
        f"<xmax>{x + 20}</xmax><ymax>30</ymax></bndbox></object>"
        for n, x in (("dog", 4), ("person", 20))
    )
    Path(f"{root}/Annotations/{i}.xml").write_text(
        f"<annotation><filename>{i}.jpg</filename><size><width>64</width><height>48</height>"
        f"<depth>3</depth></size>{obj}</annotation>"
    )
for s in ("Main", "Segmentation"):
    Path(f"{root}/ImageSets/{s}/trainval.txt").write_text("\n".join(ids) + "\n")
ds = PascalVOC(root, "trainval", order=["image", "boxes", "boxes_category", "info"])


class DetectionPadCollator(Collator):
    def __init__(self, pad_value=0.0):
        super().__init__()
        self.pad_value = pad_value

    def apply(self, inputs):
        batch = {"data": [], "im_info": [], "gt_boxes": []}
        for image, boxes, cats, info in inputs:
            batch["data"].append(image.astype(np.float32))
            batch["gt_boxes"].append(
                np.concatenate([boxes, cats[:, np.newaxis]], axis=1).astype(np.float32)
            )
            _, h, w = image.shape
            batch["im_info"].append(
                np.array([h, w, info[0], info[1], boxes.shape[0]], dtype=np.float32)
            )
        H = max(d.shape[1] for d in batch["data"])
        W = max(d.shape[2] for d in batch["data"])
        out = np.full((len(inputs), 3, H, W), self.pad_value, np.float32)
        for o, d in zip(out, batch["data"], strict=False):
            o[:, : d.shape[1], : d.shape[2]] = d
        return {
            "data": out,
            "im_info": np.stack(batch["im_info"]),
            "gt_boxes": np.stack(batch["gt_boxes"]),
        }


loader = DataLoader(
    ds,
    sampler=RandomSampler(ds, 2, drop_last=True, seed=1),
    transform=Compose(
        [ShortestEdgeResize((32, 40), 80, sample_style="choice"), RandomHorizontalFlip(), ToMode()],
        order=["image", "boxes", "boxes_category"],
    ),
    collator=DetectionPadCollator(),
    num_workers=0,
)
n = 0
for mini in loader:
    assert set(mini) == {"data", "im_info", "gt_boxes"} and mini["gt_boxes"].shape[1:] == (2, 5)
    n += 1
assert n == 3
seg = PascalVOC(root, "trainval", order=["image", "mask"])


class RandomBlur(VisionTransform):
    def __init__(self, *, order=None):
        super().__init__(order)

    def _apply_image(self, image):
        return cv2.GaussianBlur(image, (3, 3), 0)

    def _apply_mask(self, mask):
        return mask


tr = Compose(
    [
        RandomResize((0.8, 1.2)),
        RandomCrop((32, 32), padding_value=[1, 2, 3], padding_maskvalue=255),
        RandomHorizontalFlip(0.5),
        RandomBlur(),
        Normalize(mean=[100, 100, 100], std=[50, 50, 50]),
        ToMode(),
    ],
    order=["image", "mask"],
)
for img, mask in DataLoader(seg, SequentialSampler(seg, batch_size=3), tr):
    assert (
        img.shape == (3, 3, 32, 32) and mask.shape == (3, 1, 32, 32) and img.dtype == np.float32
    ), (img.shape, mask.shape)
cls = PascalVOC.class_names
colors = PascalVOC.class_colors if hasattr(PascalVOC, "class_colors") else None
ann = {
    "images": [
        {"id": i, "file_name": f"{x}.jpg", "height": 48, "width": 64} for i, x in enumerate(ids)
    ],
    "categories": [{"id": 1, "name": "person"}, {"id": 3, "name": "car"}],
    "annotations": [
        {
            "id": i,
            "image_id": i % 6,
            "category_id": 3,
            "bbox": [4, 5, 20, 20],
            "area": 400,
            "iscrowd": 0,
        }
        for i in range(8)
    ],
}
Path(f"{root}/ann.json").write_text(json.dumps(ann))
coco = COCO(
    f"{root}/JPEGImages",
    f"{root}/ann.json",
    remove_images_without_annotations=True,
    order=["image", "boxes", "boxes_category", "info"],
)
im, b, c, info = coco[0]
assert im.shape == (48, 64, 3) and b.shape[1] == 4 and c.dtype == np.int32, (b.shape, c.dtype)
for k in ("a", "b"):
    os.makedirs(f"{root}/folder/{k}")
    cv2.imwrite(f"{root}/folder/{k}/x.png", rng.randint(0, 255, (10, 12, 3), dtype=np.uint8))
fl = ImageFolder(f"{root}/folder")
both = ConcatDataset([fl, fl])
assert len(both) == 4 and both[3][1] == 1
for x, _ in DataLoader(
    both,
    SequentialSampler(both, 2),
    T.Compose([T.Resize((8, 8)), T.ToMode("CHW")]),
    num_workers=2,
    timeout=30,
):
    assert x.shape == (2, 3, 8, 8)
print("voc", len(ds), len(coco), len(cls))
