"""Entries of the cache under names of others: never run, and made anew."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROGRAMS = """
    import sys
    import numpy as np
    import treadle as mge
    import treadle.functional as F
    from treadle.backends.cpu.native import toolchain
    mge.set_default_device("cpux")
    x = mge.tensor(np.arange(6, dtype="float32").reshape(2, 3))
    found = [mge.jit.compile(f)(x).numpy().tolist() for f in (
        lambda x: F.exp(x) + x, lambda x: F.relu(x) * 3 - x, lambda x: F.softmax(x * 2, 1),
    )]
    print(found, toolchain().compiled)
"""


def run(cache: Path) -> tuple[str, int]:
    """The results of three programs, and how many kernels were compiled."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAMS)],
        env={**os.environ, "TREADLE_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results, _, compiled = done.stdout.strip().rpartition(" ")
    return results, int(compiled)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A cache that has the programs, and their results."""
    cache = tmp_path_factory.mktemp("warm")
    results, compiled = run(cache)
    assert compiled > 0 and run(cache) == (results, 0)
    return cache, results


@pytest.mark.parametrize("ending", [".program", ".so", ".o"])
def test_rotated_entries_are_made_anew(tmp_path: Path, ending: str, warm: tuple[Path, str]) -> None:
    cache, results = warm
    shutil.copytree(cache, tmp_path, dirs_exist_ok=True)
    entries = sorted((tmp_path / "objects").glob(f"*{ending}"))
    contents = [e.read_bytes() for e in entries]
    assert len(set(contents)) == len(contents) > 1
    for entry, content in zip(entries, [*contents[1:], contents[0]], strict=True):
        entry.write_bytes(content)
    again, _ = run(tmp_path)
    assert again == results
    assert run(tmp_path) == (results, 0)
    if ending == ".program":
        assert [e.read_bytes() for e in entries] == contents
