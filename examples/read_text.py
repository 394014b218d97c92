"""Read the text of a picture: lines are found, turned upright, and read, by three ONNX models.

python examples/read_text.py [PICTURE] [--models FOLDER]

The models are PP-OCRv4's, as the package rapidocr_onnxruntime ships them; the folder is where it
is installed, or where `make zoo` puts it. Without a picture one is drawn. Pictures may have any
size: each model is compiled once for every extent that comes up. Needs treadle[onnx,vision].
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np

import treadle as mge
from treadle.interop.onnx import load

Image = np.ndarray[Any, Any]
FOLDER = Path(__file__).resolve().parents[1] / "build/zoo/rapidocr_onnxruntime/models"
HEIGHT, STEP = 48, 32
"""Rows of a line that is read; detectors and readers take multiples of the step."""


class Reader:
    """Three models: where lines are, whether they stand on their heads, what they say."""

    def __init__(self, folder: Path) -> None:
        names = ("ch_PP-OCRv4_det_infer", "ch_ppocr_mobile_v2.0_cls_infer", "ch_PP-OCRv4_rec_infer")
        detect, turn, read = (load(folder / f"{name}.onnx") for name in names)
        for network in (detect, turn, read):
            network.eval()
        self.characters = ["", *read.metadata["character"].splitlines(), " "]
        self.detect, self.turn, self.read = (
            mge.jit.compile(lambda x, network=network: network(x))
            for network in (detect, turn, read)
        )

    def lines(self, picture: Image) -> list[tuple[Image, str, float]]:
        """Corners [4, 2], text and confidence of each line, from the top down."""
        found = []
        for box in self.boxes(picture):
            text, sure = self.text(upright(picture, box), box)
            if sure > 0.5:
                found.append((box, text, sure))
        return found

    def boxes(self, picture: Image) -> list[Image]:
        """Corners of lines: connected regions of what the detector takes for text, widened."""
        height, width = picture.shape[:2]
        scale = max(1.0, 736 / min(height, width))
        size = [max(round(n * scale / STEP), 1) * STEP for n in (width, height)]
        (map_,) = self.detect(batch(cv2.resize(picture, size))).numpy()[0]
        mask = cv2.dilate((map_ > 0.3).astype(np.uint8), np.ones((2, 2)))
        contours = cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)[0]
        boxes = []
        for contour in contours:
            center, (w, h), angle = cv2.minAreaRect(contour)
            if min(w, h) < 3:
                continue
            more = 2 * 1.6 * w * h / (2 * (w + h))
            corners = cv2.boxPoints((center, (w + more, h + more), angle))
            boxes.append(corners * np.array([width / size[0], height / size[1]]))
        return sorted(boxes, key=lambda box: (round(box[:, 1].mean() / 10), box[:, 0].min()))

    def text(self, line: Image, box: Image) -> tuple[str, float]:
        """What a line says, and how sure the reader is."""
        wide = cv2.resize(line, (4 * HEIGHT, HEIGHT))
        if self.turn(batch(wide)).numpy()[0, 1] > 0.9:
            line = line[::-1, ::-1]
        width = max(-(-line.shape[1] * HEIGHT // (line.shape[0] * STEP)) * STEP, 4 * HEIGHT)
        scores = self.read(batch(cv2.resize(line, (width, HEIGHT)))).numpy()[0]
        best = scores.argmax(1)
        # A class per column; 0 stands for none, and repetitions for one.
        kept = (best != 0) & (best != np.concatenate([[0], best[:-1]]))
        text = "".join(self.characters[i] for i in best[kept])
        return text, float(scores.max(1)[kept].mean()) if kept.any() else 0.0


def batch(picture: Image) -> mge.Tensor:
    """A picture [H, W, 3] of bytes as the models take it: [1, 3, H, W] from -1 to 1."""
    numbers = (picture.astype(np.float32) / 255 - 0.5) / 0.5
    return mge.tensor(np.ascontiguousarray(numbers.transpose(2, 0, 1)[None]))


def upright(picture: Image, box: Image) -> Image:
    """What a box shows, its longer side level."""
    order = np.argsort(box[:, 0])
    left = sorted(box[order[:2]], key=lambda p: p[1])
    right = sorted(box[order[2:]], key=lambda p: p[1])
    corners = np.array([left[0], right[0], right[1], left[1]], np.float32)
    width, height = (int(np.linalg.norm(corners[i] - corners[0])) for i in (1, 3))
    target = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    way = cv2.getPerspectiveTransform(corners, target)
    made = cv2.warpPerspective(picture, way, (max(width, 1), max(height, 1)))
    return np.rot90(made) if height > 1.5 * width else made


def drawn() -> Image:
    """A picture with three lines, one of them on its head."""
    picture = np.full((300, 640, 3), 240, np.uint8)
    for i, text in enumerate(("Treadle reads text", "at any size", "2026-11-22")):
        at, dark = (40 + 60 * i, 80 + 85 * i), (40, 30 + 40 * i, 20)
        cv2.putText(picture, text, at, cv2.FONT_HERSHEY_SIMPLEX, 1.4, dark, 3, cv2.LINE_AA)
    picture[100:200] = picture[100:200][::-1, ::-1]
    return picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", nargs="?", type=Path)
    parser.add_argument("--models", type=Path, default=FOLDER)
    chosen = parser.parse_args()
    if not (chosen.models / "ch_PP-OCRv4_det_infer.onnx").exists():
        sys.exit(f"no models in {chosen.models}: run `make zoo`, or pass --models")
    picture = drawn() if chosen.picture is None else cv2.imread(str(chosen.picture))
    if picture is None:
        sys.exit(f"{chosen.picture} is no picture")
    for box, text, sure in Reader(chosen.models).lines(picture):
        left, top = box.min(0)
        print(f"{left:5.0f} {top:5.0f}  {sure:4.0%}  {text}")


if __name__ == "__main__":
    main()
