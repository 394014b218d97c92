"""OpenCV, or an error that says how to get it."""

from __future__ import annotations

try:
    import cv2
except ImportError as error:
    raise ImportError(
        "images are read and transformed with OpenCV, which is not installed\n"
        "  hint: pip install 'treadle[vision]'",
        name="cv2",
    ) from error

__all__ = ["cv2"]
