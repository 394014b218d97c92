"""Directories of weights: what Hugging Face's libraries write, and every trick in the book."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.serialization.conftest import container
from tests.serialization.torch_pickles import whole, written

import treadle as mge
from treadle.base.errors import CheckpointError
from treadle.serialization import load_directory
from treadle.tensor import Tensor

CODES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64"}
INDEX = "model.safetensors.index.json"


def safetensors(metadata: dict[str, str] | None = None, **arrays: np.ndarray[Any, Any]) -> bytes:
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, array in arrays.items():
        offsets = [len(data), len(data) + array.nbytes]
        code = CODES[array.dtype.name]
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    return container(header, data)


A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.ones(4, np.float16)
C = np.array([1, 2], ml_dtypes.bfloat16)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    (tmp_path / "model-1.safetensors").write_bytes(safetensors({"format": "pt"}, a=A))
    (tmp_path / "model-2.safetensors").write_bytes(safetensors(b=B, c=C))
    (tmp_path / "config.json").write_text('{"hidden_size": 3, "layers": [1, 2]}')
    write_index(tmp_path)
    return tmp_path


def write_index(folder: Path, total: Any = A.nbytes + B.nbytes + C.nbytes, **instead: Any) -> None:
    one, two = "model-1.safetensors", "model-2.safetensors"
    mapped = {"a": one, "b": two, "c": two} | instead
    mapped = {k: v for k, v in mapped.items() if v is not None}
    content = {"metadata": {"total_size": total}, "weight_map": mapped}
    (folder / INDEX).write_text(json.dumps(content))


def refused(folder: Path, match: str) -> None:
    with pytest.raises(CheckpointError, match=match):
        load_directory(folder)
    with pytest.raises(CheckpointError, match=match):
        mge.load(folder)


def same(found: Tensor, array: np.ndarray[Any, Any]) -> None:
    assert found.dtype == array.dtype and found.shape == array.shape
    assert found.numpy().tobytes() == array.tobytes()


# -- what is read ------------------------------------------------------------------------------


def test_shards(sharded: Path) -> None:
    weights = load_directory(sharded)
    assert sorted(weights) == ["a", "b", "c"] and len(weights) == 3 and "d" not in weights
    assert weights.config == {"hidden_size": 3, "layers": [1, 2]}
    assert weights.metadata == {"format": "pt"}
    assert weights.files == ("model-1.safetensors", "model-2.safetensors")
    for name, array in (("a", A), ("b", B), ("c", C)):
        same(weights[name], array)
    with pytest.raises(KeyError):
        weights["d"]


def test_load_gives_a_dict_that_modules_take(sharded: Path) -> None:
    net = mge.module.Linear(3, 2, bias=False)
    found = mge.load(sharded, map_location="cpux")
    assert type(found) is dict
    net.load_state_dict({"weight": found["a"]})
    assert net.weight.tolist() == A.tolist()


@pytest.mark.parametrize("name", ["model.safetensors", "unet.fp16.safetensors"])
def test_one_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(safetensors(a=A))
    weights = load_directory(tmp_path)
    assert weights.files == (name,) and weights.config == {}
    same(weights["a"], A)


def test_data_waits_until_it_is_asked_for(sharded: Path) -> None:
    weights = load_directory(sharded)
    (sharded / "model-2.safetensors").unlink()
    same(weights["a"], A)
    with pytest.raises(CheckpointError, match="missing"):
        weights["b"]


def test_a_file_that_was_exchanged_meanwhile_is_not_read(sharded: Path) -> None:
    weights = load_directory(sharded)
    other = sharded / "other"
    other.write_bytes((sharded / "model-1.safetensors").read_bytes())
    os.replace(other, sharded / "model-1.safetensors")
    with pytest.raises(CheckpointError, match="not the one that was opened"):
        weights["a"]


def test_pickles(torch: Any, tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(written({"a": whole(A), "b": whole(B)}))
    weights = load_directory(tmp_path)
    same(weights["a"], A)
    same(weights["b"], B)


def test_shards_of_pickles(torch: Any, tmp_path: Path) -> None:
    tied = whole(A)
    (tmp_path / "pytorch_model-1.bin").write_bytes(written({"a": tied, "tied": tied}))
    (tmp_path / "pytorch_model-2.bin").write_bytes(written({"b": whole(B)}))
    mapped = {"a": "pytorch_model-1.bin", "tied": "pytorch_model-1.bin", "b": "pytorch_model-2.bin"}
    index = tmp_path / "pytorch_model.bin.index.json"
    for total, fits in ((A.nbytes + B.nbytes, True), (10**6, False)):
        index.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": mapped}))
        if fits:
            assert sorted(mge.load(tmp_path)) == ["a", "b", "tied"]
        else:
            refused(tmp_path, "total_size")


def test_links_of_the_cache_of_the_hub(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / ("5a" * 32)).write_bytes(safetensors(a=A))
    (snapshot / "model.safetensors").symlink_to("../../blobs/" + "5a" * 32)
    same(load_directory(snapshot)["a"], A)


def test_an_index_without_sizes_is_enough(sharded: Path) -> None:
    content = json.loads((sharded / INDEX).read_text())
    (sharded / INDEX).write_text(json.dumps({"weight_map": content["weight_map"]}))
    assert len(load_directory(sharded)) == 3


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shard",
    [
        "../model-1.safetensors",
        "/etc/passwd",
        "sub/model-1.safetensors",
        "..",
        "",
        "C:model-1.safetensors",
        "..\\model-1.safetensors",
        "model\0-1.safetensors",
        "config.json",
        "model-1.bin",
        7,
        ["model-1.safetensors"],
    ],
)
def test_shards_with_paths_in_their_names(sharded: Path, shard: Any) -> None:
    (sharded / "sub").mkdir()
    (sharded / "sub" / "model-1.safetensors").write_bytes(safetensors(a=A))
    (sharded.parent / "model-1.safetensors").write_bytes(safetensors(a=A))
    write_index(sharded, a=shard)
    refused(sharded, r"tensor 'a' is said to be in .* file of the directory")


def link(target: Path, name: Path) -> None:
    name.symlink_to(target)


def relative(target: Path, name: Path) -> None:
    name.symlink_to(os.path.relpath(target, name.parent))


@pytest.mark.parametrize(
    ("make", "match"),
    [(link, "symbolic link"), (relative, "symbolic link"), (os.link, "hard link")],
)
@pytest.mark.parametrize("name", ["model-1.safetensors", INDEX, "config.json"])
def test_links(sharded: Path, make: Callable[[Path, Path], None], match: str, name: str) -> None:
    outside = sharded.parent / f"outside-{sharded.name}"
    (sharded / name).rename(outside)
    make(outside, sharded / name)
    refused(sharded, match)


def test_links_like_those_of_the_cache_that_lead_elsewhere(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (tmp_path / "secret").write_bytes(safetensors(a=A))
    (blobs / ("5a" * 32)).symlink_to("../secret")
    (snapshot / "model.safetensors").symlink_to("../../blobs/" + "5a" * 32)
    with pytest.raises(OSError, match="symbolic links"):
        load_directory(snapshot)


def test_pipes_and_directories_do_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    refused(tmp_path, "not a regular file")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").mkdir()
    refused(tmp_path, "not a regular file")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"d": "model-1.safetensors"}, "'model-1.safetensors' lacks 1 tensors"),
        ({"a": "model-2.safetensors"}, "'model-2.safetensors' lacks 1 tensors"),
        ({"a": "model-3.safetensors"}, "model-3.safetensors: the file is missing"),
        ({"total": 7}, "total_size is not the size"),
        ({"total": "23"}, "total_size is not the size"),
        ({"total": -1}, "total_size is not the size"),
    ],
)
def test_an_index_that_does_not_fit(sharded: Path, change: dict[str, Any], match: str) -> None:
    write_index(sharded, **change)
    refused(sharded, match)


def test_a_shard_that_no_entry_names_is_missed_by_its_size(sharded: Path) -> None:
    write_index(sharded, a=None)
    refused(sharded, "total_size is not the size")


def test_a_tensor_in_two_shards(sharded: Path) -> None:
    (sharded / "model-2.safetensors").write_bytes(safetensors(a=A, b=B, c=C))
    refused(sharded, "'model-2.safetensors' also holds 1 tensors")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (b"", "the file is damaged"),
        (b"[]", "not a JSON object"),
        (b"{}", "has no weight_map"),
        (b'{"weight_map": []}', "has no weight_map"),
        (b'{"weight_map": {}}', "has no weight_map"),
        (b'{"weight_map": {"a": "x.safetensors"}, "metadata": 3}', "has no weight_map"),
        (b'{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "duplicate key 'a'"),
        (b'{"weight_map": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested deeper"),
        (b'{"metadata": {"total_size": 1e400}}', "out of range"),
        (b'{"weight_map": "\xff"}', "not UTF-8"),
        (b'{"weight_map": {"a": NaN}}', "not a JSON number"),
    ],
)
def test_a_damaged_index(sharded: Path, text: bytes, match: str) -> None:
    (sharded / INDEX).write_bytes(text)
    refused(sharded, match)


def test_bombs(sharded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (sharded / INDEX).open("r+b") as file:
        file.truncate(2 << 30)  # takes no disk space
    refused(sharded, "too large")
    many = {f"t{i}": f"{i}.safetensors" for i in range(10_001)}
    (sharded / INDEX).write_text(json.dumps({"weight_map": many}))
    refused(sharded, "lists 10001 shards")


@pytest.mark.parametrize("name", [INDEX, "model-1.safetensors", "config.json"])
def test_mutated_files_raise_our_errors_or_load(sharded: Path, name: str) -> None:
    draw = random.Random(7)
    raw = (sharded / name).read_bytes()
    refused_ones = 0
    for _ in range(100):
        damaged = bytearray(raw)
        for _ in range(draw.randint(1, 3)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        (sharded / name).write_bytes(damaged)
        try:
            mge.load(sharded)
        except CheckpointError:
            refused_ones += 1
    assert refused_ones


@pytest.mark.parametrize("name", ["model-1.safetensors", "model-2.safetensors"])
def test_damaged_shards(sharded: Path, name: str) -> None:
    raw = (sharded / name).read_bytes()
    (sharded / name).write_bytes(raw[:-1])
    refused(sharded, f"{name}: truncated")
    (sharded / name).write_bytes(b"")
    refused(sharded, f"{name}: truncated in the header")


def test_element_types_without_counterpart_are_named(tmp_path: Path) -> None:
    header = {"a": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}
    (tmp_path / "model.safetensors").write_bytes(container(header, b"\0\0"))
    refused(tmp_path, r"(?s)'a' has a dtype that cannot be read.*F8_E4M3")


@pytest.mark.parametrize(
    ("raw", "match"),
    [
        (b"\x80\x02}q\x00.", "no file of torch.save"),
        (b"cposix\nsystem\n(S'true'\ntR.", "no file of torch.save"),
        (b"GGUF....", "a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
    ],
)
def test_bin_files_of_other_kinds(tmp_path: Path, raw: bytes, match: str) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(raw)
    refused(tmp_path, match)


def test_pickles_that_hold_code_or_other_things(torch: Any, tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return os.system, ("touch never",)

    (tmp_path / "pytorch_model.bin").write_bytes(written({"a": Hostile()}))
    refused(tmp_path, "names 'posix.system', which is not loaded")
    (tmp_path / "pytorch_model.bin").write_bytes(written({"epoch": 3}))
    refused(tmp_path, "something other than tensors by name")


@pytest.mark.parametrize(
    ("names", "match"),
    [
        ([], "holds no weights\n  saw:  nothing"),
        (["README.md"], r"README.md.*\n.*looked for model.safetensors"),
        (["tf_model.h5"], "TensorFlow's"),
        (["manifest", "part-0"], "load_sharded"),
        (["a.safetensors", "b.safetensors"], "unclear which weights"),
    ],
)
def test_directories_without_weights(tmp_path: Path, names: list[str], match: str) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"")
    refused(tmp_path, match)


def test_a_checkpoint_of_ours_is_loaded_by_its_path(tmp_path: Path) -> None:
    mge.save({"a": Tensor(A)}, str(tmp_path / "model.safetensors"))
    refused(tmp_path, "is a checkpoint of Treadle")
