"""Native parts of model files for another processor: each gear, run by an emulator of it.

Installed by `make setup-cross`; run by `make test-cross`.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.cross.test_targets import MACHINES
from tests.deploy.networks import image, network, traced

import treadle as mge
from treadle.backends.cpu.native import LAYOUT
from treadle.backends.cpu.shipped import prefix_of
from treadle.deploy import compile_offline
from treadle.engine.package.models import read_models, write_models
from treadle.engine.package.native_part import NativePart

pytestmark = pytest.mark.cross
SHAPES = [(1, 3, 16, 16), (2, 3, 20, 12)]


def unpacked(part: NativePart, number: int, folder: Path) -> None:
    """A gear's program and what it needs, as `part.c` reads it; its inputs are there already."""
    code, gear, program = part.code, part.gears[number], part.code.programs[number]
    types = (*gear.inputs, *gear.outputs)
    numbers = [
        LAYOUT["POOL_BYTES"],
        LAYOUT["POOL_THREADS"],
        LAYOUT["ARRAY_DATA_WORD"],
        gear.arena,
        len(types),
        len(gear.outputs),
        len(program.places),
        *(t.nbytes for t in types),
    ]
    lines = [prefix_of(code.machine) + "run", " ".join(map(str, numbers)), *code.symbols]
    (folder / "facts").write_text("\n".join(lines))
    (folder / "code.so").write_bytes(code.library)
    (folder / "words").write_bytes(program.words.tobytes())
    (folder / "places").write_bytes(program.places.tobytes())
    (folder / "weights").write_bytes(part.weights.tobytes())
    for i in range(len(gear.inputs), len(types)):
        (folder / f"end{i}").touch()


@pytest.mark.parametrize("target", MACHINES)
def test_gears_give_the_results_of_eager_code(target: str, tmp_path: Path) -> None:
    compiler, emulator = MACHINES[target]
    for program in (compiler[0], *emulator[:1]):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}; see make setup-cross")
    module = network()
    model = traced(module, image(*SHAPES[0]))
    made = compile_offline(model, [{"image": shape} for shape in SHAPES], target=target)
    write_models(tmp_path / "net.tm", [made], "test")
    [read] = read_models(tmp_path / "net.tm", allow_native=True)
    [part] = read.native
    run = tmp_path / "run"
    source = Path(__file__).with_name("part.c")
    subprocess.run([*compiler, "-Wall", "-Werror", str(source), "-o", str(run), "-ldl"], check=True)
    for number, shape in enumerate(SHAPES):
        folder, x = tmp_path / str(number), image(*shape)
        folder.mkdir()
        unpacked(part, number, folder)
        (folder / "end0").write_bytes(x.tobytes())
        subprocess.run([*emulator, str(run), str(folder)], check=True)
        found = np.frombuffer((folder / "out").read_bytes(), np.float32)
        wanted = module(mge.tensor(x)).numpy()
        np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=1e-5)
