"""What needs no OpenCV works without it, and the rest says how to get it."""

import subprocess
import sys

SCRIPT = """
import sys
sys.modules["cv2"] = None
import treadle.data
from treadle.data.dataset import CIFAR10, MNIST, ArrayDataset, VisionDataset
from treadle.data.transform import Compose, CudaTransform, PseudoTransform
for package, name in (("transform", "Resize"), ("transform", "vision"), ("dataset", "COCO")):
    try:
        getattr(getattr(treadle.data, package), name)
    except ImportError as error:
        print(str(error).splitlines()[-1].strip())
"""


def test_without_opencv() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["hint: pip install 'treadle[vision]'"] * 3


def test_names_that_are_none() -> None:
    code = "from treadle.data import transform; transform.Reszie"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "has no attribute 'Reszie'" in done.stderr
