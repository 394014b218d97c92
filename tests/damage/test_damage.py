"""The reader of damaged files itself, and what it has found."""

from __future__ import annotations

import json
import random
import resource
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.damage.__main__ import Run, damaged, equal, limit, make, outcome, process_in
from tests.damage.kinds import KINDS, Kind, flat, there
from tests.damage.mutate import STRANGE, mutated
from tests.deploy.test_offline_damage import parts_of, resealed

from treadle.base.errors import CheckpointError, LoadError
from treadle.base.files.numpy_files import load_array, load_arrays
from treadle.cli.models.inputs import read_arrays
from treadle.engine.package.models import read_models, write_models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sound files of the kinds that are quick to make."""
    made = tmp_path_factory.mktemp("damage")
    kinds = ["checkpoint", "model", "model that lies", "npz", "pickle"]
    assert make(made, kinds) == kinds
    return made


def test_some_files_of_some_kinds(folder: Path, tmp_path: Path) -> None:
    """`make fuzz-files` reads as many as there is time for, of all kinds."""
    kinds = sorted(p.name for p in (folder / "sound").iterdir())
    run = Run(kinds, 0, folder, tmp_path)
    run.go(120, 50, 1)
    assert run.found == {} and sum(run.ends.values()) == 50
    assert any(end == "refused" for _, end in run.ends)


def test_files_repeat_and_differ(folder: Path) -> None:
    for kind in ("npz", "model that lies"):
        one, other = damaged(folder, kind, 3), damaged(folder, kind, 3)
        assert one == other != damaged(folder, kind, 4)
    text = repr(STRANGE)
    for seed in range(50):
        damaged(folder, "model that lies", seed)
    assert repr(STRANGE) == text  # What one file got is not changed for the next.
    sound = bytes(range(200))
    changed = [mutated(sound, random.Random(i)) for i in range(100)]
    assert len(set(changed)) > 90
    assert {len(c) > len(sound) for c in changed} == {True, False}


def outcomes(use: Any, sealed: bool = False) -> str:
    kind = Kind(lambda folder: {}, use, sealed=sealed)
    return outcome(kind, Path("file"), {"": 3.0}).partition("\n")[0]


def test_each_outcome_is_told_apart() -> None:
    def foreign(path: Path) -> None:
        raise KeyError("x")

    def refused(path: Path) -> None:
        raise CheckpointError("file", "it is damaged")

    def greedy(path: Path) -> Any:
        limit(1 << 26)
        try:
            return np.ones(1 << 28)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)

    before = resource.getrlimit(resource.RLIMIT_AS)
    assert outcomes(refused) == "refused"
    assert outcomes(foreign).startswith("! KeyError at test_damage.py:")
    assert "MemoryError" in outcomes(greedy)
    assert outcomes(lambda path: 3.0) == "as before"
    assert outcomes(lambda path: 4.0) == "other"
    assert equal(2**70, 1 << 70) and not equal(2**70, 2.0**70)
    assert outcomes(lambda path: 4.0, sealed=True).startswith("! it gives other numbers")


class Lost:
    """A process that does not answer."""

    def ask(self, line: str, seconds: float) -> dict[str, str]:
        assert json.loads(line)["seed"] == 8
        return {"lost": "the process ended with -11"}


def test_a_crash_is_found_and_its_file_kept(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    run = Run(["npz"], 8, folder, tmp_path, said.append)
    for _ in range(2):  # The same twice is one finding.
        run.take("npz", 8, Lost())  # type: ignore[arg-type]
    assert list(run.found) == ["npz: ! the process ended with -11"] and len(said) == 1
    assert (tmp_path / "npz-8").read_bytes() == damaged(folder, "npz", 8)[1]
    assert "again: python -m tests.damage 'npz' --seed 8 --most 1" in said[0]
    assert run.ends["npz", "found"] == 2


def test_a_worker_outlives_what_it_reads(folder: Path) -> None:
    process = process_in(folder)
    try:
        ends = [
            process.ask(json.dumps({"kind": "npz", "seed": seed}), 60)["end"] for seed in range(4)
        ]
    finally:
        process.stop()
    assert set(ends) <= {"refused", "other", "as before"}


def test_sound_files_of_every_kind_are_read(tmp_path: Path) -> None:
    for name in {"safetensors", "megengine", "cifar", "mnist", "traced"} & set(there()):
        for file, content in KINDS[name].make(tmp_path).items():
            path = tmp_path / file
            path.write_bytes(content)
            assert dict(flat(KINDS[name].use(path))), file


# -- what it found -----------------------------------------------------------------------------


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for name, content in members.items():
            made.writestr(name + ".npy", content)
    return path


def header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


DAMAGED = {
    "tokens": header("{'descr': '<f4', 'shape': (2,"),
    "no syntax": header("{'descr': '<f4', 'shape': (2, 'fortran_order': False}"),
    "too large": header(
        "{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387904,)}"
    ),
    "pickled": header("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}") + b"x",
    "cut off": header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}")[:-3],
    "nothing": b"",
    "text": b"hello",
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_arrays_are_refused(what: str, tmp_path: Path) -> None:
    """Errors of Python's tokenizer, of zipfile and of zlib came out of the readers of inputs."""
    inside, alone = archive(tmp_path / "a.npz", x=DAMAGED[what]), tmp_path / "a.npy"
    alone.write_bytes(DAMAGED[what])
    for read in (load_arrays, read_arrays):
        with pytest.raises(LoadError, match=r"a\.npz: it (cannot be read|holds)"):
            read(inside)
    with pytest.raises(LoadError, match=r"a\.npy: it cannot be read"):
        load_array(alone)


def test_damaged_archives_of_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.arange(500.0))
    content = path.read_bytes()
    at = content.index(b"x.npy") + 40
    cut, changed = content[: len(content) // 2], content[:at] + b"\xff" * 20 + content[at + 20 :]
    for bad in (cut, changed):
        path.write_bytes(bad)
        with pytest.raises(LoadError, match="it cannot be read"):
            read_arrays(path)
    with pytest.raises(LoadError):
        read_arrays(tmp_path / "none.npz")
    np.savez(path, x=np.arange(3))
    np.save(tmp_path / "a.npy", np.arange(3))
    with pytest.raises(LoadError, match="archive of arrays"):
        load_array(path)
    with pytest.raises(LoadError, match="one array without a name"):
        load_arrays(tmp_path / "a.npy")
    np.testing.assert_array_equal(load_arrays(path)["x"], load_array(tmp_path / "a.npy"))


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("options", 3, "its options are not an object"),
        ("options", [1], "its options are not an object"),
        ("inputs", [["x"]], "is not text"),
        ("outputs", [{}], "is not text"),
        ("open", 1.5, "is not text"),
    ],
)
def test_models_that_lie_are_refused(field: str, value: Any, problem: str, tmp_path: Path) -> None:
    """They were taken, and Python's own TypeError came later: of `info`, of `GraphInference`."""
    from tests.deploy.networks import image, traced

    path = tmp_path / "a.tm"
    write_models(path, [traced(lambda x: x + 1, image(2))], "test")
    manifest, entries, data = parts_of(path)
    manifest["models"][0][field] = value
    path.write_bytes(resealed(manifest, entries, data))
    with pytest.raises(CheckpointError, match=problem):
        read_models(path)
