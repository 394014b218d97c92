"""Hostile offline models: each lie is named; `tests.damage` tells many more.

Nothing is run: what an intact digest vouches for is trusted as code, and said to be.
"""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.damage.mutate import resealed
from tests.deploy.networks import image, traced

import treadle as mge
import treadle.functional as F
from treadle.base.errors import CheckpointError, LoadError, TreadleError
from treadle.base.files import sealed
from treadle.base.files.container import read_header
from treadle.base.files.source import open_source
from treadle.cli.info.description import described
from treadle.deploy import compile_offline, load_offline
from treadle.engine.package.models import read_models, write_models


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mge.set_default_device("cpux")
    weights = mge.tensor(image(4, 3))
    model = traced(lambda x: F.matmul(x, weights), image(2, 4))
    path = tmp_path_factory.mktemp("damage") / "good.tm"
    write_models(path, [compile_offline(model, [{}, {"image": (5, 4)}])], "test")
    load_offline(path)
    return path


def parts_of(path: Path) -> tuple[dict[str, Any], Any, bytes]:
    with open_source(path) as source:
        header = read_header(source)
        data = source.read(header.data_start, source.size)
    return json.loads(header.metadata[sealed.MANIFEST]), header.entries, data


def lie(manifest: dict[str, Any], *path: Any, to: Any) -> None:
    where = manifest["models"][0]
    for key in path[:-1]:
        where = where[key]
    where[path[-1]] = to


@pytest.mark.parametrize(
    ("path", "to", "problem"),
    [
        (("native", 0, "gears", 0, "arena"), 10**15, "is not a size"),
        (("native", 0, "gears", 0, "arena"), True, "is not a size"),
        (("native", 0, "gears", 0, "words"), 10**6, "are cut off"),
        (("native", 0, "gears", 0, "bases"), 2, "over 2 bases"),
        (("native", 0, "gears", 0, "inputs", 0, 1), [2**30, 2**30], "is not a size"),
        (("native", 0, "gears", 0, "inputs", 0, 0), "float33", "float33"),
        (("native", 0, "gears", 1, "inputs", 0, 1), [2, 4], "two of the same shapes"),
        (("native", 0, "gears", 0, "inputs"), [], "over 5 bases"),
        (("native", 0, "gears"), [], "0 gears"),
        (("native", 0, "gears", 0, "partitions"), 3, "is not a list"),
        (("native", 0, "gears", 0, "partitions"), [3], "is not a list"),
        (("native", 0, "gears", 0, "partitions"), [["cpu", 1, 2]], "not enough values"),
        (("native", 0, "gears", 0, "partitions"), [["cpu", 1, 2, 3, 4]], "too many values"),
        (("native", 0, "gears", 0, "partitions"), [["cpu", -1, 2, 3]], "is not a size"),
        (("native", 0, "gears", 0, "partitions"), [["cpu", 1 << 62, 2, 3]], "is not a size"),
        (("native", 0, "gears", 0, "partitions"), [["x" * 999, 1, 2, 3]], "is not a name"),
        (("native", 0, "gears", 0, "partitions"), [["cpu", 1, 2, True]], "is not a size"),
        (("native", 0, "memory", "code"), 10**6, "code are"),
        (("native", 0, "objects"), [1, 2], "objects of 3 bytes"),
        (("native", 0, "symbols"), [], "a kernel that is not there"),
        (("native", 0, "symbols", 0), "no_such_kernel", "cannot be opened"),
        (("native", 0, "engine"), "reference", "runs no code out of files"),
        (("native", 0, "engine"), "nobody", "no backend called"),
        (("native", 0, "members"), "other", "is missing"),
        (("native", 0), 3, "is not an object"),
        (("inputs",), [], "other inputs or outputs"),
        (("inputs",), [3], "has no name"),
    ],
)
def test_lies_are_named(
    good: Path, tmp_path: Path, path: tuple[Any, ...], to: Any, problem: str
) -> None:
    manifest, entries, data = parts_of(good)
    lie(manifest, *path, to=to)
    bad = tmp_path / "bad.tm"
    bad.write_bytes(resealed(manifest, entries, data))
    with pytest.raises(TreadleError, match=problem):
        load_offline(bad, allow_native=True)


def test_files_from_before_partitions_were_noted_run(good: Path, tmp_path: Path) -> None:
    manifest, entries, data = parts_of(good)
    for gear in manifest["models"][0]["native"][0]["gears"]:
        del gear["partitions"]
    old = tmp_path / "old.tm"
    old.write_bytes(resealed(manifest, entries, data))
    x = np.ones((5, 4), np.float32)
    (now,), (before,) = (
        load_offline(path, allow_native=True).run([x]).values() for path in (good, old)
    )
    np.testing.assert_array_equal(now, before)
    assert [gear["partitions"] for gear in described(old).data["gears"]] == [[], []]


def test_readers_of_graphs_find_the_same_lies(good: Path, tmp_path: Path) -> None:
    manifest, entries, data = parts_of(good)
    lie(manifest, "native", 0, "gears", 0, "words", to=10**6)
    bad = tmp_path / "bad.tm"
    bad.write_bytes(resealed(manifest, entries, data))
    assert len(read_models(bad)) == 1
    with pytest.raises(CheckpointError, match="are cut off"):
        read_models(bad, allow_native=True)


def test_code_that_is_none(good: Path, tmp_path: Path) -> None:
    manifest, entries, data = parts_of(good)
    at = entries["native0.0.code"]
    noise = np.random.default_rng(0).bytes(at.end - at.begin)
    data = data[: at.begin] + noise + data[at.end :]
    manifest["sha256"]["native0.0.code"] = sealed.hashlib.sha256(noise).hexdigest()
    bad = tmp_path / "bad.tm"
    bad.write_bytes(resealed(manifest, entries, data))
    with pytest.raises(LoadError, match="cannot be opened"):
        load_offline(bad, allow_native=True)


@pytest.mark.parametrize(
    ("at", "form", "to"),
    [(64 + 4, "<I", 0), (64 + 32, "<Q", 1 << 40), (56, "<H", 60000), (32, "<Q", 1 << 62)],
)
def test_code_whose_tables_lie(good: Path, tmp_path: Path, at: int, form: str, to: int) -> None:
    """The first two end a process in which the system's loader opens them."""
    manifest, entries, data = parts_of(good)
    if manifest["models"][0]["native"][0]["objects"]:
        pytest.skip("there is no linker here: the code is no shared library")
    code, raw = entries["native0.0.code"], bytearray(data)
    struct.pack_into(form, raw, code.begin + at, to)
    digest = sealed.hashlib.sha256(raw[code.begin : code.end]).hexdigest()
    manifest["sha256"]["native0.0.code"] = digest
    bad = tmp_path / "bad.tm"
    bad.write_bytes(resealed(manifest, entries, bytes(raw)))
    with pytest.raises(LoadError, match=r"cannot be opened: .*: damaged, or not as linkers"):
        load_offline(bad, allow_native=True)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_cut_files(good: Path, tmp_path: Path, share: float) -> None:
    content = good.read_bytes()
    bad = tmp_path / "bad.tm"
    bad.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match="truncated"):
        load_offline(bad)
