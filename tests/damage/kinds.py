"""The kinds of file that are read: how sound ones are made, and how they are read and run."""

from __future__ import annotations

import functools
import gzip
import importlib.util
import pickle
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tests.damage.mutate import heads, lying, mutated
from tests.deploy.networks import image, network, traced
from tests.interop.test_dumped import Net as Dumped
from tests.serialization.megengine_pickles import VERSIONS, pickled
from tests.serialization.megengine_pickles import checkpoint as megengine

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import jit, traced_module
from treadle.backends.cpu import tuning_record
from treadle.base.blocks import BlockTensor
from treadle.base.env import cache_directory
from treadle.base.errors import TreadleError
from treadle.cli.info.description import described
from treadle.cli.models.inputs import read_arrays
from treadle.data.dataset.vision.array_pickle import load_arrays
from treadle.data.dataset.vision.mnist import _read_idx
from treadle.data.image_file import read_image
from treadle.deploy import compile_offline, load_offline
from treadle.engine.package.models import read_models, write_models
from treadle.interop.megengine import read_model
from treadle.lite import LiteNetwork
from treadle.lite.packed import pack
from treadle.llm.files import open_checkpoint
from treadle.utils.comp_graph_tools import GraphInference

X = image(1, 3, 8, 8)
Sound = dict[str, bytes]
"""Files by name."""


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        make: writes sound files into a folder, which it may use for other things.
        use: reads a file and runs what it holds; what it gives is compared if it is arrays.
        change: makes a damaged file of a sound one.
        sealed: no content but the sound one may be taken for other numbers.
        needs: a package without which there are none.
    """

    make: Callable[[Path], Sound]
    use: Callable[[Path], Any]
    change: Callable[[bytes, Random], bytes] = mutated
    sealed: bool = False
    needs: str = ""


KINDS: dict[str, Kind] = {}


def flat(value: Any) -> Iterator[tuple[str, Any]]:
    """The arrays in what a file held, by where they were."""
    if isinstance(value, mge.Tensor):
        value = value.numpy()
    if isinstance(value, Mapping):
        value = list(value.items())
    if isinstance(value, list | tuple):
        for i, part in enumerate(value):
            for name, array in flat(part):
                yield f"{i}.{name}", array
    elif isinstance(value, np.ndarray | np.generic | str | bytes | int | float | None):
        yield "", value


def _state() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "weights": {f"layer{i}": mge.tensor(rng.standard_normal((4, 5)), "float32") for i in "ab"},
        "half": mge.tensor([1.5, 2.5], "float16"),
        "tied": [1, 2.5, None, True, "text", b"raw", 2**70, (1, {3})],
        "numbers": np.arange(12, dtype="int32").reshape(3, 4),
    }


# -- checkpoints -------------------------------------------------------------------------------


def _checkpoint(folder: Path) -> Sound:
    mge.save(_state(), folder / "a")
    return {"state.tdl": (folder / "a").read_bytes()}


def _safetensors(folder: Path) -> Sound:
    rng = np.random.default_rng(0)
    arrays = {n: rng.standard_normal((3, 4)).astype(n) for n in ("float32", "float16", "float64")}
    arrays |= {n: rng.integers(0, 99, 7).astype(n) for n in ("int64", "uint8")}
    from tests.serialization.conftest import container

    header, data = {}, b""
    names = {"float32": "F32", "float16": "F16", "float64": "F64", "int64": "I64", "uint8": "U8"}
    for name, array in arrays.items():
        ends = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": names[name], "shape": array.shape, "data_offsets": ends}
        data += array.tobytes()
    return {"model.safetensors": container(header, data)}


def _pickles(folder: Path) -> Sound:
    plain = {k: v.numpy() if isinstance(v, mge.Tensor) else v for k, v in _state().items()}
    plain["weights"] = {k: v.numpy() for k, v in plain["weights"].items()}
    files = {f"{p}.pkl": pickle.dumps(plain, p) for p in (2, 3, 4, 5)}
    return files | {f"megengine-{v}.pkl": pickled(v, megengine) for v in VERSIONS}


def _torch(folder: Path) -> Sound:
    import torch

    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 4)
    tied = {
        "net": layer.state_dict(),
        "half": torch.ones(3).half(),
        "step": 7,
        "t": torch.eye(2).t(),
    }
    torch.save(tied, folder / "a")
    return {"net.pt": (folder / "a").read_bytes()}


KINDS["checkpoint"] = Kind(_checkpoint, mge.load, sealed=True)
KINDS["safetensors"] = Kind(_safetensors, mge.load)
KINDS["pickle"] = Kind(_pickles, mge.load)
KINDS["torch"] = Kind(_torch, mge.load, needs="torch")


# -- models ------------------------------------------------------------------------------------


def _model(folder: Path) -> Sound:
    model = traced(network(), X)
    write_models(folder / "a", [model], "test")
    index = traced(
        lambda x: F.cumsum(F.gather(x, 1, F.argsort(x, descending=True)), 1), image(2, 6)
    )
    write_models(folder / "b", [index], "test")
    return {"net.tm": (folder / "a").read_bytes(), "index.tm": (folder / "b").read_bytes()}


def _input(shape: tuple[Any, ...]) -> Any:
    return X if tuple(shape) == X.shape else image(2, 6)


def _run_model(path: Path) -> Any:
    models = read_models(path)
    described(path)
    found = []
    for model in models:
        given = [_input(v.type.shape) for v in model.graph.inputs]
        found.append(dict(GraphInference(path).run(*given)) if len(models) == 1 else None)
    return found


def _offline(folder: Path) -> Sound:
    write_models(folder / "a", [compile_offline(traced(network(), X))], "test")
    net = network()

    @jit.trace(symbolic=True, capture_as_const=True)
    def label(image: Any) -> Any:
        return net(image)

    label(mge.tensor(X))
    label.dump(folder / "b", arg_names=["image"], output_names=["label"])
    ranges = {"image": [1, 3, (7, 9), 8]}
    write_models(folder / "b", [compile_offline(read_models(folder / "b")[0], ranges=ranges)], "b")
    return {"net.tm": (folder / "a").read_bytes(), "ranged.tm": (folder / "b").read_bytes()}


def _run_offline(path: Path) -> Any:
    return [load_offline(path, allow_native=native).run([X]) for native in (True, False)]


def _open_offline(path: Path) -> Any:
    """Native code that a file's digests vouch for is opened and not run: it can do anything."""
    with suppress(TreadleError):
        load_offline(path, allow_native=True)
    return load_offline(path, allow_native=False).run([X])


def _lite(folder: Path) -> Sound:
    write_models(folder / "a", [compile_offline(traced(network(), X))], "test")
    facts = b'{"name": "net", "valid": true, "options": {"weight_preprocess": false}}'
    pack(
        folder / "b", (folder / "a").read_bytes(), facts, {"q": {"a": 1}}, {"model": "", "info": ""}
    )
    return {"net.lite": (folder / "b").read_bytes()}


def _run_lite(path: Path) -> Any:
    net = LiteNetwork()
    net.load(str(path))
    net.get_io_tensor(net.get_input_name(0)).set_data_by_copy(X)
    net.forward()
    net.wait()
    return [net.get_io_tensor(n).to_numpy() for n in net.get_all_output_name()]


def _traced_module(folder: Path) -> Sound:
    made = traced_module.trace_module(network(), mge.tensor(X))
    mge.save(made, folder / "a")
    return {"net.traced": (folder / "a").read_bytes()}


def _run_traced(path: Path) -> Any:
    made = mge.load(path)
    return made(mge.tensor(X)) if isinstance(made, M.Module) else None


def _run_dumped(path: Path) -> Any:
    model = read_model(path)
    return model(mge.tensor(Dumped().x)) if list(model.inputs.values()) == [(2, 2, 6, 6)] else None


KINDS["model"] = Kind(_model, _run_model, sealed=True)
KINDS["offline"] = Kind(_offline, _run_offline, sealed=True)
KINDS["checkpoint that lies"] = Kind(_checkpoint, mge.load, lying)
KINDS["model that lies"] = Kind(_model, _run_model, lying)
KINDS["offline that lies"] = Kind(_offline, _open_offline, lying)
KINDS["lite"] = Kind(_lite, _run_lite)
KINDS["traced"] = Kind(_traced_module, _run_traced)
KINDS["megengine"] = Kind(
    lambda folder: {"1.mge": Dumped().first(), "2.mge": Dumped().second()}, _run_dumped
)


# -- models of others --------------------------------------------------------------------------


def _onnx(folder: Path) -> Sound:
    from tests.interop.onnx import models

    return {"cnn.onnx": models.small_cnn().SerializeToString()}


def _run_onnx(path: Path) -> Any:
    from treadle.interop import onnx

    return onnx.load(path)(np.ones((1, 3, 8, 8), np.float32))


def _exported(folder: Path) -> Sound:
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    torch.export.save(torch.export.export(net, (torch.ones(2, 3),)), folder / "a.pt2")
    return {"net.pt2": (folder / "a.pt2").read_bytes()}


def _run_exported(path: Path) -> Any:
    from treadle.interop.torch import load_exported

    return load_exported(path, allow_native=True)(mge.tensor(np.ones((2, 3), "float32")))


def _gguf(folder: Path) -> Sound:
    from tests.llm.files.models import MODELS
    from tests.llm.files.test_gguf_checkpoint import TOKENS

    files = {}
    for name, form in (
        ("llama", "Q8_0"),
        ("gemma2", ""),
        ("qwen3moe", "Q4_0"),
        ("gpt-oss", "MXFP4"),
    ):
        model = MODELS[name]()
        files[f"{name}.gguf"] = model.write(folder / "a", form, **TOKENS).read_bytes()
    return files


def _run_gguf(path: Path) -> Any:
    found = open_checkpoint(path)
    tensors = {name: found.tensor(name) for name in found.names()}
    return {n: t.dequantize() if isinstance(t, BlockTensor) else t for n, t in tensors.items()}


KINDS["gguf"] = Kind(_gguf, _run_gguf, heads)
KINDS["onnx"] = Kind(_onnx, _run_onnx, needs="onnx")
KINDS["exported"] = Kind(_exported, _run_exported, needs="torch")


# -- what is kept on disk here -----------------------------------------------------------------


def _function(x: Any) -> Any:
    return F.softmax(F.tanh(x) * 2 + 1, axis=1)


def _entries() -> dict[str, Path]:
    place = cache_directory() / "objects"
    return {p.suffix: p for p in sorted(place.iterdir()) if p.is_file()}


def _cached(folder: Path) -> Sound:
    mge.jit.compile(lambda x: _function(x))(mge.tensor(image(2, 6)))
    return {f"entry{suffix}": path.read_bytes() for suffix, path in _entries().items()}


@functools.cache
def _places() -> dict[str, Path]:
    """Where this process keeps the program and its parts."""
    _cached(Path())
    return _entries()


def _run_cached(path: Path) -> Any:
    place = _places()[path.suffix]
    place.unlink(missing_ok=True)  # What was opened stays as it was.
    place.write_bytes(path.read_bytes())
    return mge.jit.compile(lambda x: _function(x))(mge.tensor(image(2, 6))).numpy()


def _record(folder: Path) -> Sound:
    tuning_record.write({"matmul 1": {"rows": 4, "columns": 2}, "conv": {"block": 8}})
    return {"tuned.json": tuning_record.path().read_bytes()}


def _run_record(path: Path) -> None:
    tuning_record.path().parent.mkdir(parents=True, exist_ok=True)
    tuning_record.path().write_bytes(path.read_bytes())
    tuning_record.read()


KINDS["cache"] = Kind(_cached, _run_cached, sealed=True)
KINDS["record"] = Kind(_record, _run_record)


# -- data --------------------------------------------------------------------------------------


def _arrays(folder: Path) -> Sound:
    np.savez(folder / "a.npz", x=X, y=np.arange(5))
    np.savez_compressed(folder / "b.npz", x=X, y=np.arange(5))
    return {n: (folder / n).read_bytes() for n in ("a.npz", "b.npz")}


def _cifar(folder: Path) -> Sound:
    held = {b"data": np.arange(60, dtype="uint8").reshape(5, 12), b"labels": [1, 2], "x": "text"}
    return {f"batch{p}": pickle.dumps(held, p) for p in (0, 2, 4)}


def _idx(folder: Path) -> Sound:
    raw = struct.pack(">HBB3I", 0, 8, 3, 4, 5, 6) + bytes(range(120))
    return {"images": raw, "images.gz": gzip.compress(raw, mtime=0)}


def _pictures(folder: Path) -> Sound:
    import cv2

    picture = (np.arange(48 * 32 * 3) % 251).astype("uint8").reshape(32, 48, 3)
    forms = (".png", ".jpg", ".bmp", ".webp", ".tiff", ".ppm")
    return {f"a{form}": cv2.imencode(form, picture)[1].tobytes() for form in forms}


KINDS["npz"] = Kind(_arrays, read_arrays)
KINDS["cifar"] = Kind(_cifar, lambda path: load_arrays(str(path)))
KINDS["mnist"] = Kind(_idx, _read_idx)
KINDS["picture"] = Kind(_pictures, read_image, needs="cv2")


def there() -> list[str]:
    """Kinds whose packages are installed."""
    return [n for n, k in KINDS.items() if not k.needs or importlib.util.find_spec(k.needs)]
