"""Programs written for MegEngine use workers as they always have: without a guard, of any class."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import numpy as np
import megengine
from megengine.data import DataLoader, RandomSampler
from megengine.data.dataset import Dataset
from megengine.data.transform import Compose, Normalize, RandomCrop, ToMode


class Photos(Dataset):
    def __getitem__(self, index):
        return np.full((6, 6, 3), index, np.uint8), index

    def __len__(self):
        return 8


photos = Photos()
chain = Compose([RandomCrop(4), Normalize(mean=[1, 2, 3]), ToMode("CHW")], order=("image",))
loader = DataLoader(photos, RandomSampler(photos, batch_size=4), transform=chain, num_workers=2)
print(*(images.shape for images, labels in loader), sep="\\n")
"""


# Forking a process that has threads is what MegEngine does, too.
@pytest.mark.parametrize("guard", ["", 'if __name__ == "__main__":\n    '])
def test_workers_of_a_megengine_program(guard: str, tmp_path: Path) -> None:
    body, last = PROGRAM.rsplit("\n", 2)[0], PROGRAM.rstrip("\n").rsplit("\n", 1)[1]
    path = tmp_path / "program.py"
    path.write_text(f"{body}\n{guard}{last}\n")
    command = [sys.executable, "-m", "treadle.interop.megengine", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout == "(4, 3, 4, 4)\n" * 2, done.stderr
