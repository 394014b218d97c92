"""ImageNet from folders and from archives like those that are published."""

import io
import tarfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from treadle.base.files.download import Digest
from treadle.data.dataset import ImageNet
from treadle.data.failure import DatasetError

scipy_io = pytest.importorskip("scipy.io", reason="writes MATLAB files; comes with the demo extra")

IDS = {1: "n01", 2: "n02"}
JPEG = bytes(cv2.imencode(".jpg", np.zeros((4, 5, 3), np.uint8))[1])


def tar_of(files: dict[str, bytes], mode: str = "w") -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode=mode) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return target.getvalue()


def mat_file(compressed: bool) -> bytes:
    fields = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("num_children", "O")]
    rows = [(1.0, "n01", "tench, Tinca tinca", 0.0), (2.0, "n02", "goldfish", 0.0)]
    synsets = np.array([*rows, (1001.0, "n09", "fish", 2.0)], dtype=fields).reshape(-1, 1)
    target = io.BytesIO()
    scipy_io.savemat(target, {"other": np.arange(3), "synsets": synsets}, do_compression=compressed)
    return target.getvalue()


def write_archives(root: Path, monkeypatch: pytest.MonkeyPatch, compressed: bool = True) -> None:
    kit = "ILSVRC2012_devkit_t12/data/"
    labels = b"2\n1\n2\n"
    contents = {
        "train": tar_of({f"{name}.tar": tar_of({f"{name}_1.JPEG": JPEG}) for name in IDS.values()}),
        "val": tar_of({f"ILSVRC2012_val_{i}.JPEG": JPEG for i in (1, 2, 3)}),
        "devkit": tar_of(
            {
                f"{kit}meta.mat": mat_file(compressed),
                f"{kit}ILSVRC2012_validation_ground_truth.txt": labels,
            },
            "w:gz",
        ),
    }
    meta = {}
    for part, content in contents.items():
        name = ImageNet.raw_file_meta[part][0]
        (root / name).write_bytes(content)
        meta[part] = (name, Digest("md5", "").of(root / name))
    monkeypatch.setattr(ImageNet, "raw_file_meta", meta)


def test_folders(tmp_path: Path) -> None:
    for name in ("n02", "n01"):
        (tmp_path / "train" / name).mkdir(parents=True)
        (tmp_path / "train" / name / "a.JPEG").write_bytes(JPEG)
    dataset = ImageNet(tmp_path)
    assert len(dataset) == 2 and dataset[1][1] == 1 and dataset[0][0].shape == (4, 5, 3)
    assert ImageNet(str(tmp_path), class_name=True)[1][1] == "n02"


@pytest.mark.parametrize("compressed", [False, True])
def test_archives(compressed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_archives(tmp_path, monkeypatch, compressed)
    train = ImageNet(tmp_path, train=True)
    assert [Path(path).name for path, _ in train.samples] == ["n01_1.JPEG", "n02_1.JPEG"]
    validation = ImageNet(tmp_path, train=False)
    assert [int(label) for _, label in validation.samples] == [0, 1, 1]
    assert Path(validation.samples[0][0]).name == "ILSVRC2012_val_2.JPEG"
    names = {"n01": ("tench", "Tinca tinca"), "n02": ("goldfish",)}
    assert validation.meta == (IDS, names)
    assert validation.valid_ground_truth == [2, 1, 2] and validation.check_raw_file()


def test_archives_that_are_missing_or_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError, match="neither does ILSVRC2012_img_train"):
        ImageNet(tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        ImageNet(tmp_path / "none")
    (tmp_path / "ILSVRC2012_img_train.tar").write_bytes(b"other")
    with pytest.raises(RuntimeError, match="not the file that was asked for"):
        ImageNet(tmp_path)
    write_archives(tmp_path, monkeypatch)
    ImageNet(tmp_path, train=False)
    kit = tmp_path / "ILSVRC2012_devkit_t12" / "data"
    dataset: Any = ImageNet(tmp_path, train=False)
    whole = (kit / "meta.mat").read_bytes()
    for damaged in (whole[:140], whole[: len(whole) // 2], b"", whole[:128], b"\0" * 200):
        (kit / "meta.mat").write_bytes(damaged)
        with pytest.raises(DatasetError, match="table of classes"):
            _ = dataset.meta


def test_an_archive_cannot_write_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "evil.tar").write_bytes(tar_of({"../../evil.JPEG": JPEG}))
    digest = Digest("md5", "").of(root / "evil.tar")
    monkeypatch.setattr(ImageNet, "raw_file_meta", {"train": ("evil.tar", digest)})
    with pytest.raises(DatasetError, match="outside"):
        ImageNet(root)
    assert not list(tmp_path.rglob("*.JPEG")) and not (root / "train").exists()
