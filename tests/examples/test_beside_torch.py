"""Examples on real data that need the extra `examples`, alone and beside PyTorch."""

from __future__ import annotations

import re
from pathlib import Path

import cv2
import pytest
from tests.examples.test_foreign_models import printed

pytestmark = pytest.mark.oracle


def numbers(pattern: str, text: str) -> list[float]:
    """Numbers that a text has at a pattern's first group, which may not miss it."""
    found = [float(value) for value in re.findall(pattern, text)]
    assert found, text
    return found


def is_a_picture(path: Path) -> bool:
    pixels = cv2.imread(str(path))
    return pixels is not None and min(pixels.shape[:2]) > 300 and pixels.std() > 20


def test_faces_are_told_from_other_pictures(tmp_path: Path) -> None:
    text = printed("faces.py", "--epochs", "12", "--out", str(tmp_path / "faces.png"))
    plain, augmented = numbers(r"augmentation: (\d+)%", text)
    assert augmented > 40 and plain > 20
    assert max(numbers(r"([\d.]+)% of other pieces", text)) < 3
    assert is_a_picture(tmp_path / "faces.png")


def test_a_recurrent_network_forecasts_better_than_a_guess(tmp_path: Path) -> None:
    network, guess = numbers(
        r"([\d.]+)% off", printed("forecast.py", "--out", str(tmp_path / "a.png"))
    )
    assert network < guess / 2 and guess < 15
    assert is_a_picture(tmp_path / "a.png")


def test_a_graph_network_says_who_goes_with_whom(tmp_path: Path) -> None:
    text = printed("karate_graph.py", "--out", str(tmp_path / "club.png"))
    assert numbers(r"(\d+) of the 32 other", text)[0] >= 28
    assert is_a_picture(tmp_path / "club.png")


def test_a_network_reads_a_table_as_well_as_a_regression(tmp_path: Path) -> None:
    text = printed("tumors.py", "--epochs", "30", "--out", str(tmp_path / "curves.png"))
    network, regression = numbers(r"area ([\d.]+)", text)
    assert network > 0.98 and regression > 0.98
    assert is_a_picture(tmp_path / "curves.png")


def test_pytorch_comes_to_the_same(tmp_path: Path) -> None:
    rows = printed("beside_torch.py", "forecast", "karate_graph").splitlines()[1:]
    found = {tuple(row.split()[:2]): float(row.split()[-2]) for row in rows}
    assert abs(found["forecast", "Treadle"] - found["forecast", "PyTorch"]) < 0.03
    assert abs(found["karate_graph", "Treadle"] - found["karate_graph", "PyTorch"]) <= 3
