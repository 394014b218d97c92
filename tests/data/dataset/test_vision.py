"""Readers of image datasets, on small files in their true formats."""

import gzip
import json
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from treadle.base.files.download import Digest, DownloadError
from treadle.data import DataLoader, SequentialSampler
from treadle.data.dataset import (
    CIFAR10,
    CIFAR100,
    COCO,
    MNIST,
    Cityscapes,
    Dataset,
    ImageFolder,
    MapDataset,
    Objects365,
    PascalVOC,
    VisionDataset,
)
from treadle.data.dataset.vision.coco import has_valid_annotation
from treadle.data.failure import DatasetError, ImageError
from treadle.data.transform import Compose, Resize, ToMode

Array = np.ndarray[Any, Any]


def noise(height: int = 6, width: int = 8, seed: int = 0) -> Array:
    return np.random.RandomState(seed).randint(0, 256, (height, width, 3), np.uint8)


def write_image(path: Path, image: Array) -> Array:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), image)
    return image


# ── MNIST ──────────────────────────────────────────────────────────────────────────────────────


def write_mnist(root: Path, count: int = 5, *, test: bool = False) -> tuple[Array, Array]:
    prefix = "t10k" if test else "train"
    images = np.random.RandomState(count).randint(0, 256, (count, 28, 28), np.uint8)
    labels = np.arange(count, dtype=np.uint8) % 10
    for name, array, magic in (("images-idx3", images, 2051), ("labels-idx1", labels, 2049)):
        header = struct.pack(f">I{array.ndim}I", magic, *array.shape)
        with gzip.open(root / f"{prefix}-{name}-ubyte.gz", "wb") as file:
            file.write(header + array.tobytes())
    return images, labels


def test_mnist(tmp_path: Path) -> None:
    images, labels = write_mnist(tmp_path)
    dataset = MNIST(str(tmp_path), train=True, download=False)
    assert len(dataset) == 5 and isinstance(dataset, VisionDataset | MapDataset | Dataset)
    image, label = dataset[3]
    assert image.shape == (28, 28, 1) and image.dtype == np.uint8
    np.testing.assert_array_equal(image[..., 0], images[3])
    assert label == labels[3] and label.dtype == np.int32
    assert dataset.meta["images"] == {"magic": 2051, "imgs": 5, "height": 28, "width": 28}
    assert dataset.order == ("image", "image_category")
    image[:] = 0
    np.testing.assert_array_equal(dataset[3][0][..., 0], images[3])


def test_mnist_feeds_a_loader(tmp_path: Path) -> None:
    write_mnist(tmp_path, 6, test=True)
    dataset = MNIST(tmp_path, train=False, download=False)
    loader = DataLoader(dataset, SequentialSampler(dataset, 3), Compose([Resize(32), ToMode()]))
    for images, labels in loader:
        assert images.shape == (3, 1, 32, 32) and labels.dtype == np.int32


def test_mnist_that_is_missing_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        MNIST(tmp_path / "none", download=False)
    with pytest.raises(DatasetError, match="set download=True"):
        MNIST(tmp_path, download=False)
    write_mnist(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte.gz"
    whole = labels.read_bytes()
    for damaged in (
        whole[:-9],
        gzip.compress(gzip.decompress(whole)[:-1]),
        gzip.compress(b"\0\0\x0d\x01\0\0\0\1\0\0\0\0"),
        b"plain",
        gzip.compress(struct.pack(">II", 2049, 2**31)),
        gzip.compress(struct.pack(">II", 2049, 4) + bytes(4)),
    ):
        labels.write_bytes(damaged)
        with pytest.raises(DatasetError):
            MNIST(tmp_path, download=False)


def test_downloads_are_compared_with_their_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "server"
    source.mkdir()
    write_mnist(source)
    monkeypatch.setattr(MNIST, "url_path", source.as_uri() + "/")
    with pytest.raises(RuntimeError, match="not the file that was asked for"):
        MNIST(tmp_path / "mine")
    assert os.listdir(tmp_path / "mine") == []
    monkeypatch.setattr(MNIST, "url_path", (source / "gone").as_uri() + "/")
    with pytest.raises(RuntimeError, match=r"(?s)download failed.*store it as .*mine/train-images"):
        MNIST(tmp_path / "mine")


def test_the_default_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "megengine" / "MNIST").mkdir(parents=True)
    write_mnist(tmp_path / "megengine" / "MNIST")
    assert len(MNIST(download=False)) == 5


# ── CIFAR ──────────────────────────────────────────────────────────────────────────────────────


def write_cifar(folder: Path, names: tuple[str, ...], keys: tuple[bytes, ...]) -> Array:
    folder.mkdir()
    planes = np.random.RandomState(0).randint(0, 256, (4, 3072), np.uint8)
    for name in names:
        content: dict[bytes, Any] = {b"data": planes, b"batch_label": name.encode()}
        content.update({key: [3, 1, 2, 0] for key in keys})
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    return planes


def test_cifar10(tmp_path: Path) -> None:
    names = (*CIFAR10.train_batch, *CIFAR10.test_batch)
    planes = write_cifar(tmp_path / "cifar-10-batches-py", names, (b"labels",))
    dataset = CIFAR10(tmp_path, download=False)
    assert len(dataset) == 20 and len(CIFAR10(tmp_path, train=False, download=False)) == 4
    image, label = dataset[5]
    assert image.shape == (32, 32, 3) and label == 1 and label.dtype == np.int32
    red = planes[1, :1024].reshape(32, 32)
    np.testing.assert_array_equal(image[..., 2], red)
    meta = {b"label_names": [b"airplane"]}
    (tmp_path / "cifar-10-batches-py" / "batches.meta").write_bytes(pickle.dumps(meta))
    assert dataset.meta == meta


def test_cifar100_has_two_labels(tmp_path: Path) -> None:
    keys = (b"fine_labels", b"coarse_labels")
    write_cifar(tmp_path / "cifar-100-python", ("train", "test"), keys)
    image, fine, coarse = CIFAR100(tmp_path, download=False)[0]
    assert image.shape == (32, 32, 3) and fine == coarse == 3


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch evil",)


@pytest.mark.parametrize(
    "content",
    [
        {b"data": Evil()},
        {b"data": np.array([None, {}])},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]},
        {b"data": np.zeros((2, 5), np.uint8), b"labels": [1, 2]},
        [1],
    ],
)
def test_pickles_that_hold_something_else(
    content: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "test_batch").write_bytes(pickle.dumps(content))
    with pytest.raises(DatasetError):
        CIFAR10(tmp_path, train=False, download=False)
    assert not (tmp_path / "evil").exists()


def test_cifar_that_is_missing_or_cut_off(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="set download=True"):
        CIFAR10(tmp_path, download=False)
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(DatasetError, match="test_batch does not exist"):
        CIFAR10(tmp_path, train=False, download=False)
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps({1: 2})[:-3])
    with pytest.raises(DatasetError, match="damaged"):
        CIFAR10(tmp_path, train=False, download=False)


# ── folders ────────────────────────────────────────────────────────────────────────────────────


def test_image_folder(tmp_path: Path) -> None:
    first = write_image(tmp_path / "cat" / "b.png", noise(seed=1))
    write_image(tmp_path / "cat" / "deep" / "c.bmp", noise(seed=2))
    write_image(tmp_path / "ant" / "a.PNG", noise(seed=3))
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "readme.txt").write_text("no class")
    (tmp_path / "cat" / "loop").symlink_to(tmp_path / "cat")
    dataset = ImageFolder(str(tmp_path))
    assert dataset.class_dict == {"ant": 0, "cat": 1}
    assert [int(label) for _, label in dataset.samples] == [0, 1, 1]
    image, label = dataset[1]
    np.testing.assert_array_equal(image, first)
    assert label == 1 and label.dtype == np.int32
    named = ImageFolder(tmp_path, check_valid_func=lambda p: p.endswith("b.png"), class_name=True)
    assert len(named) == 1 and named[0][1] == "cat"


def test_image_folder_without_classes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING"):
        dataset = ImageFolder(tmp_path)
    assert (len(dataset), dataset.class_dict, dataset.samples) == (0, {}, [])
    assert "has no folders" in caplog.text
    with pytest.raises(DatasetError, match="does not exist"):
        ImageFolder(tmp_path / "none")


def test_a_damaged_image_is_named_by_the_loader(tmp_path: Path) -> None:
    write_image(tmp_path / "cat" / "a.png", noise())
    (tmp_path / "cat" / "b.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(ImageError, match=r"b\.png") as caught:
        list(DataLoader(ImageFolder(tmp_path)))
    assert "raised by dataset[1]" in caught.value.__notes__


# ── COCO ───────────────────────────────────────────────────────────────────────────────────────


def annotation(image: int, box: list[float], category: int = 18, **more: Any) -> dict[str, Any]:
    outline = [[0, 0, 1, 0, 1, 1]]
    entry = {"image_id": image, "bbox": box, "category_id": category, "iscrowd": 0}
    return {**entry, "segmentation": outline, **more}


@pytest.fixture
def coco(tmp_path: Path) -> tuple[Path, Path]:
    write_image(tmp_path / "images" / "5.png", noise(seed=5))
    points = [1.0, 2.0, 2.0] * 17
    content = {
        "images": [
            {"id": 9, "file_name": "9.png", "height": 6, "width": 8, "license": 1},
            {"id": 5, "file_name": "5.png", "height": 6, "width": 8, "coco_url": "x"},
            {"id": 7, "file_name": "7.png", "height": 6, "width": 8},
        ],
        "annotations": [
            annotation(5, [1, 2, 3, 4], 1, keypoints=points),
            annotation(5, [0, 0, 5, 5], 18, keypoints=points),
            annotation(7, [0, 0, 5, 5], iscrowd=1, keypoints=[]),
            annotation(7, [0, 0, 0, 5], keypoints=[]),
        ],
        "categories": [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}],
    }
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(content))
    return tmp_path / "images", path


def test_coco(coco: tuple[Path, Path]) -> None:
    root, file = coco
    order = ("image", "boxes", "boxes_category", "keypoints", "polygons", "info")
    dataset = COCO(root, file, order=order)
    assert dataset.ids == [5, 7, 9] and len(dataset) == 3
    image, boxes, categories, keypoints, polygons, info = dataset[0]
    np.testing.assert_array_equal(image, noise(seed=5))
    np.testing.assert_array_equal(boxes, [[1, 2, 4, 6], [0, 0, 5, 5]])
    assert boxes.dtype == np.float32 and categories.dtype == np.int32
    np.testing.assert_array_equal(categories, [1, 2])
    assert keypoints.shape == (2, 17, 3) and polygons[0][0].shape == (3, 2)
    assert info == [6, 8, "5.png"]
    assert dataset.get_img_info(0) == {"id": 5, "file_name": "5.png", "height": 6, "width": 8}
    assert dataset.contiguous_category_id_to_json_id == {1: 1, 2: 18}
    assert COCO.class_names[17 - 1] == "dog" and COCO.classes_originID["dog"] == 18
    assert len(COCO.class_names) == 80 and len(COCO.keypoint_names) == 17


def test_images_without_instances(coco: tuple[Path, Path]) -> None:
    _, boxes = Objects365(*coco, order=("info", "boxes"))[2]
    assert boxes.shape == (0, 4)
    for kind in (COCO, Objects365):
        assert kind(*coco, True, order=("boxes",)).ids == [5]
    assert COCO(*coco, True, order=("keypoints",)).ids == [5]
    assert not has_valid_annotation([], ("boxes",))
    assert not has_valid_annotation([{"keypoints": [0, 0, 2] * 9}], ("keypoints",))
    assert len(Objects365.class_names) == 365


def test_coco_with_bad_files(coco: tuple[Path, Path]) -> None:
    root, file = coco
    with pytest.raises(NotImplementedError, match="masks is unsupported"):
        COCO(root, file, order=("masks",))
    with pytest.raises(IndexError):
        COCO(root, file)[3]
    with pytest.raises(FileNotFoundError):
        COCO(root, file)[1]
    content = json.loads(file.read_text())
    content["categories"].pop()
    content["annotations"][1].pop("bbox")
    content["annotations"][1]["segmentation"] = {"counts": []}
    file.write_text(json.dumps(content))
    for field in ("boxes", "boxes_category", "polygons"):
        with pytest.raises(DatasetError):
            COCO(root, file, order=(field,))[0]
    for text in ("{", "[]", "{}", '{"images": [{}], "annotations": [], "categories": []}'):
        file.write_text(text)
        with pytest.raises(DatasetError):
            COCO(root, file)


# ── Pascal VOC ─────────────────────────────────────────────────────────────────────────────────

_OBJECT = """<object><name>{}</name><part><name>head</name><bndbox><xmin>9</xmin></bndbox></part>
<bndbox><xmax>7</xmax><xmin>1.5</xmin><ymax>5</ymax><ymin>2</ymin></bndbox></object>"""


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    write_image(tmp_path / "JPEGImages" / "a.jpg", noise())
    write_image(tmp_path / "JPEGImages" / "b.jpg", noise())
    for part in ("Main", "Segmentation"):
        lists = tmp_path / "ImageSets" / part
        lists.mkdir(parents=True)
        (lists / "train.txt").write_text("a\nb\n")
        (lists / "dog_val.txt").write_text("a  1\nb -1\n")
        (lists / "train_aug.txt").write_text("a\n")
    annotations = tmp_path / "Annotations"
    annotations.mkdir()
    objects = _OBJECT.format("dog") + _OBJECT.format(" aeroplane ")
    (annotations / "a.xml").write_text(f"<annotation>{objects}</annotation>")
    (annotations / "b.xml").write_text("<annotation><size/></annotation>")
    mask = np.zeros((6, 8, 3), np.uint8)
    mask[0] = (0, 0, 128)
    mask[1] = (192, 224, 224)
    mask[2] = PascalVOC.class_colors[20]
    write_image(tmp_path / "SegmentationClass" / "a.png", mask)
    write_image(tmp_path / "SegmentationClass_aug" / "a.png", np.full((6, 8), 12, np.uint8))
    return tmp_path


def test_voc_boxes(voc: Path) -> None:
    order = ("image", "boxes", "boxes_category", "info")
    dataset = PascalVOC(str(voc), "train", order=order)
    image, boxes, categories, info = dataset[0]
    assert image.shape == (6, 8, 3) and len(dataset) == 2
    np.testing.assert_array_equal(boxes, [[1.5, 2, 7, 5]] * 2)
    np.testing.assert_array_equal(categories, [12, 1])
    assert info == [6, 8, "a"]
    assert dataset[1][1].shape == (0, 4) and dataset[1][2].shape == (0,)
    assert PascalVOC(voc, "dog_val", order=("boxes",)).file_names == ["a", "b"]
    assert PascalVOC.class_colors[20] == (128, 64, 0)


def test_voc_masks(voc: Path) -> None:
    _, mask = PascalVOC(voc, "train", order=("image", "mask"))[0]
    assert mask.shape == (6, 8, 1) and mask.dtype == np.uint8
    assert [int(row[0, 0]) for row in mask] == [1, 255, 20, 0, 0, 0]
    assert (PascalVOC(voc, "train_aug", order=("mask",))[0][0] == 12).all()


def test_voc_with_bad_files(voc: Path) -> None:
    with pytest.raises(ValueError, match="not both"):
        PascalVOC(voc, "train", order=("boxes", "mask"))
    with pytest.raises(NotImplementedError, match="choose the list"):
        PascalVOC(voc, "train", order=("image",))
    with pytest.raises(DatasetError, match="does not exist"):
        PascalVOC(voc, "none", order=("mask",))
    dataset = PascalVOC(voc, "train", order=("boxes", "boxes_category"))
    for text in (
        "<annotation>",
        f"<annotation>{_OBJECT.format('dragon')}</annotation>",
        "<annotation><object><name>dog</name></object></annotation>",
    ):
        (voc / "Annotations" / "a.xml").write_text(text)
        with pytest.raises(DatasetError):
            dataset[0]


# ── Cityscapes ─────────────────────────────────────────────────────────────────────────────────


def test_cityscapes(tmp_path: Path) -> None:
    for city in ("ulm", "bonn"):
        name = f"{city}_000000_000019"
        image = tmp_path / "leftImg8bit" / "val" / city / f"{name}_leftImg8bit.png"
        write_image(image, noise())
        labels = np.array([[7, 8, 0, 33]], np.uint8).repeat(6, 0).repeat(2, 1)
        write_image(tmp_path / "gtFine" / "val" / city / f"{name}_gtFine_labelIds.png", labels)
    dataset = Cityscapes(tmp_path, "val", "gtFine", order=("image", "mask", "info"))
    assert len(dataset) == 2 and "bonn" in dataset.images[0]
    image_array, mask, info = dataset[0]
    assert mask.shape == (6, 8, 1) and mask[0, :, 0].tolist() == [0, 0, 1, 1, 255, 255, 18, 18]
    assert info == [6, 8, dataset.images[0]] and image_array.shape == (6, 8, 3)
    assert len(Cityscapes.class_names) == len(Cityscapes.label_ids) == 19
    with pytest.raises(ValueError, match="no set 'test' of mode 'gtCoarse'"):
        Cityscapes(tmp_path, "test", "gtCoarse")
    with pytest.raises(DatasetError, match="does not exist"):
        Cityscapes(tmp_path, "train", "gtFine")


def test_orders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="order should be a sequence"):
        VisionDataset(tmp_path, order="image")
    base = VisionDataset("~/x")
    assert base.root == os.path.expanduser("~/x") and base.order == ("image",)
    with pytest.raises(NotImplementedError):
        len(base)
    with pytest.raises(NotImplementedError):
        base[0]


def test_cifar_from_its_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = tmp_path / "server"
    server.mkdir()
    write_cifar(server / "cifar-10-batches-py", CIFAR10.test_batch, (b"labels",))
    archive = server / CIFAR10.raw_file_name
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(server / "cifar-10-batches-py", "cifar-10-batches-py")
    monkeypatch.setattr(CIFAR10, "url_path", server.as_uri() + "/")
    with pytest.raises(DownloadError, match="not the file"):
        CIFAR10(tmp_path / "mine", train=False)
    monkeypatch.setattr(CIFAR10, "raw_file_md5", Digest("md5", "").of(archive))
    assert len(CIFAR10(tmp_path / "mine", train=False)) == 4
    # An archive from elsewhere needs no network.
    (tmp_path / "yours").mkdir()
    archive.rename(tmp_path / "yours" / archive.name)
    assert len(CIFAR10(tmp_path / "yours", train=False, download=False)) == 4
