"""`treadle-lite`: its wheel, installed where there is nothing else but NumPy."""

from __future__ import annotations

import base64
import email.parser
import hashlib
import json
import os
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from tools import lite_wheel
from treadle.base.dtype import as_dtype
from treadle.base.version import VERSION
from treadle.cli import main
from treadle.deploy import compile_offline
from treadle.engine.package.models import read_models, write_models
from treadle.jit import trace

X = np.random.default_rng(0).random((4, 3, 32, 32), np.float32)
GEARS = [{"image": (n, 3, 32, 32)} for n in (4, 1)]
LITE = {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}


def built(folder: Path, *backends: str) -> Path:
    """A wheel."""
    assert lite_wheel.main(["--backends", ",".join(backends), "--out", str(folder)]) == 0
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("wheel"), "cpu")


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel and NumPy."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    found: Path = folder / "bin" / "python"
    [site] = folder.glob("lib/python3*/site-packages")
    installed = Path(np.__file__).parents[1]
    for path in [*installed.glob("numpy"), *installed.glob("numpy[.-]*")]:
        (site / path.name).symlink_to(path)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", found]
    subprocess.run(
        [*pip, "install", "-q", "--no-index", "--no-compile", wheel], check=True
    )  # NumPy is enough
    return found


class MobileNet(M.Module):
    """The blocks of such a network: convolutions over channels alone, and over pixels alone."""

    def __init__(self) -> None:
        super().__init__()
        blocks: list[Any] = []
        for taken, given, stride in ((8, 16, 1), (16, 24, 2), (24, 24, 1)):
            blocks += [M.Conv2d(taken, taken, 3, stride, 1, groups=taken), M.BatchNorm2d(taken)]
            blocks += [M.ReLU(), M.Conv2d(taken, given, 1), M.BatchNorm2d(given), M.ReLU()]
        self.stem, self.blocks = M.Conv2d(3, 8, 3, 2, 1), M.Sequential(*blocks)
        self.head = M.Linear(24, 10)

    def forward(self, image: Any) -> Any:
        return F.softmax(self.head(F.mean(self.blocks(F.relu6(self.stem(image))), (2, 3))), axis=1)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: the network as a graph and with native code, its input, and its result."""
    folder = tmp_path_factory.mktemp("files")
    mge.set_default_device("cpux")
    mge.random.seed(0)
    network = MobileNet()
    network.eval()
    compute = trace(lambda image: network(image), symbolic=True, capture_as_const=True)
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", compute(mge.tensor(X)).numpy())
    compute.dump(folder / "graph.mge", arg_names=["image"], output_names=["label"])
    model = compile_offline(read_models(folder / "graph.mge")[0], GEARS)
    write_models(folder / "native.mge", [model], "test")
    return folder


def run(python: Path, program: str, *words: Any, **settings: str) -> tuple[Any, list[str]]:
    """What a program prints, as JSON, and the lines that it is told."""
    ran = subprocess.run(
        [python, "-c", textwrap.dedent(program), *map(str, words)],
        env={**os.environ, **LITE, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout), ran.stderr.splitlines()


# -- what is in it -------------------------------------------------------------------------------


def contents(wheel: Path) -> tuple[list[str], dict[str, bytes], email.message.Message]:
    """Its modules, the files beside them, and its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    modules = [
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in held
        if name.endswith(".py")
    ]
    about = held[f"treadle_lite-{VERSION}.dist-info/METADATA"].decode()
    return modules, held, email.parser.Parser().parsestr(about)


def test_it_is_small_and_needs_numpy_alone(wheel: Path) -> None:
    assert wheel.stat().st_size < 1_000_000
    modules, held, about = contents(wheel)
    needed = [text for text in about.get_all("Requires-Dist", []) if "extra ==" not in text]
    assert needed == ["numpy>=2.1"]
    assert (about["Name"], about["Version"]) == ("treadle-lite", VERSION)
    packages = {name.split(".")[1] for name in modules if name != "treadle"}
    assert packages == {
        *("backends", "base", "engine", "graph", "inspect", "lite", "ops", "runtime"),
    }
    record = held[f"treadle_lite-{VERSION}.dist-info/RECORD"].decode().splitlines()
    for line in record[:-1]:
        name, digest, size = line.rsplit(",", 2)
        made = base64.urlsafe_b64encode(hashlib.sha256(held[name]).digest()).decode()
        assert (digest, int(size)) == (f"sha256={made.rstrip('=')}", len(held[name]))
    assert len(record) == len(held)


@pytest.mark.long
def test_every_module_can_be_imported(wheel: Path, python: Path) -> None:
    program = """
        import importlib, json, sys
        failed = {}
        for name in json.loads(sys.argv[1]):
            try:
                importlib.import_module(name)
            except Exception as error:
                failed[name] = repr(error)
        others = ("llvmlite", "ml_dtypes", "rich", "typer")
        others = [name for name in others if importlib.util.find_spec(name)]
        print(json.dumps([failed, others]))
    """
    names = contents(wheel)[0]
    assert run(python, program, json.dumps(names)) == ([{}, []], [])


def test_backends_are_chosen_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {}
    for backends in ((), ("opencl", "cpu"), ("openvino",)):
        wheel = built(tmp_path / "-".join(backends), *backends)
        modules, held, about = contents(wheel)
        within = {name.split(".")[2] for name in modules if name.startswith("treadle.backends.")}
        assert within & set(lite_wheel.SWITCHED) == set(backends)
        assert repr(tuple(sorted(backends))) in held["treadle/base/version.py"].decode()
        extras = {"bfloat16", "sign", *backends} - {"cpu"}
        assert set(about.get_all("Provides-Extra", [])) == extras
        sizes[backends] = wheel.stat().st_size
    assert sizes[()] < sizes["openvino",] < sizes["opencl", "cpu"] < 1_420_000
    with pytest.raises(SystemExit):
        lite_wheel.main(["--backends", "cpu,tpu"])
    assert "there is no backend 'tpu'" in capsys.readouterr().err


def test_what_runs_models_may_not_import_what_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = tuple(name for name in lite_wheel.RUNTIME if name != "graph")
    monkeypatch.setattr(lite_wheel, "RUNTIME", apart)
    with pytest.raises(lite_wheel.NotApartError, match=r"imports treadle\.graph"):
        lite_wheel.Sources(lite_wheel.ROOT / "src").needed(["cpu"])


# -- what it does --------------------------------------------------------------------------------

_RUNS = """
    import json, sys, threading
    import numpy as np
    from treadle.lite import LiteNetwork

    folder, name = sys.argv[1:3]
    network = LiteNetwork()
    network.load(f"{folder}/{name}", allow_native={"": None, "yes": True}[sys.argv[3]])
    x, want = np.load(f"{folder}/x.npy"), np.load(f"{folder}/y.npy")

    def differs(network, n):
        network.get_io_tensor("image").set_data_by_copy(x[:n])
        network.forward()
        network.wait()
        return float(abs(network.get_io_tensor("label").to_numpy() - want[:n]).max())

    found, events, others = [differs(network, 4), differs(network, 1)], [], []
    network.set_start_callback(lambda ios: events.append([io.name for io in ios]) or 0)
    network.set_finish_callback(lambda ios: events.append([io.name for io in ios]) or 0)
    network.async_with_callback(lambda: events.append("done") or 0)
    found.append(differs(network, 4))
    clones = [network.clone() for _ in range(2)]
    work = [threading.Thread(target=lambda c=c: others.append(differs(c, 4))) for c in clones]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    print(json.dumps([len(network.gears), found + others, events]))
"""
_EVENTS = [["image"], ["label"], "done"]


@pytest.mark.parametrize("name", ["native.mge", "graph.mge"])
def test_files_give_what_treadle_gives(python: Path, files: Path, name: str) -> None:
    (gears, found, events), told = run(python, _RUNS, files, name, "")
    assert gears == (2 if name == "native.mge" else 0)
    assert len(found) == 5 and max(found) < 1e-6
    assert events == _EVENTS
    if name == "native.mge":
        assert told == []
    else:
        assert len(told) == 1 and "NumPy runs the model, op by op" in told[0]


def test_code_of_strangers_is_left_alone(python: Path, files: Path, tmp_path: Path) -> None:
    theirs = {"TREADLE_CONFIG_DIR": str(tmp_path)}
    (gears, found, events), told = run(python, _RUNS, files, "native.mge", "", **theirs)
    assert (gears, events) == (0, _EVENTS)
    assert max(found) < 1e-6
    assert len(told) == 1
    assert "its machine code is left alone and its graph run by NumPy here" in told[0]
    (gears, found, _), told = run(python, _RUNS, files, "native.mge", "yes", **theirs)
    assert (gears, told) == (2, [])
    assert max(found) < 1e-6


def test_shapes_without_code_are_run_by_numpy(python: Path, files: Path) -> None:
    program = """
        import json, sys
        import numpy as np
        from treadle.lite import LiteNetwork
        network = LiteNetwork()
        network.load(f"{sys.argv[1]}/native.mge")
        network.get_io_tensor("image").set_data_by_copy(np.load(f"{sys.argv[1]}/x.npy")[:3])
        network.forward()
        difference = network.get_io_tensor("label").to_numpy() - np.load(f"{sys.argv[1]}/y.npy")[:3]
        network.enable_profile_performance(f"{sys.argv[2]}/profile.json")
        network.io_txt_dump(f"{sys.argv[2]}/values.txt")
        network.forward()
        print(json.dumps(float(abs(difference).max())))
    """
    found, told = run(python, program, files, files)
    assert found < 1e-6
    assert len(told) == 2
    assert "is run by NumPy: it has no code for inputs of shapes [[3, 3, 32, 32]]" in told[0]
    assert "is run by NumPy: its values and times are looked into" in told[1]
    assert "softmax" in (files / "values.txt").read_text(encoding="utf-8")
    assert json.loads((files / "profile.json").read_text(encoding="utf-8"))["seconds"] > 0


_ERRORS = """
    import json, sys
    found = []
    for line in json.loads(sys.argv[1]):
        try:
            exec(line, {"np": __import__("numpy"), "folder": sys.argv[2]})
            found.append("nothing was raised")
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    print(json.dumps(found))
"""


def errors(python: Path, lines: Sequence[str], folder: Path) -> list[str]:
    """What programs of one line raise."""
    found, _ = run(python, _ERRORS, json.dumps(lines), folder)
    return list(found)


def test_damaged_files_are_refused(python: Path, files: Path, tmp_path: Path) -> None:
    whole = (files / "native.mge").read_bytes()
    middle = len(whole) // 2
    (tmp_path / "short.mge").write_bytes(whole[:middle])
    (tmp_path / "text.mge").write_text("This is no model.")
    for start, name in ((400, "manifest.mge"), (middle, "code.mge")):
        (tmp_path / name).write_bytes(whole[:start] + b"Treadle!" + whole[start + 8 :])
    names = ("short.mge", "text.mge", "manifest.mge", "code.mge")
    load = "from treadle.lite import LiteNetwork; n = LiteNetwork(); n.load(folder + '/%s'); "
    lines = [load % name + "n.forward()" for name in names]
    for name, said in zip(names, errors(python, lines, tmp_path), strict=True):
        assert said.startswith("CheckpointError: "), (name, said)
        assert name in said


def test_what_is_left_out_says_so(python: Path, files: Path) -> None:
    none = "is not in treadle-lite: it runs model files and makes none; install treadle instead"
    cuda = "build it with BACKENDS=cpu,cuda (make lite-wheel), or install treadle instead"
    lite = "from treadle.lite import LiteConfig, LiteDeviceType as D, LiteNetwork as N; "
    expected = {
        "import treadle as mge; mge.module": f"AttributeError: treadle.module {none}",
        "import treadle as mge; mge.Module": f"AttributeError: treadle.Module {none}",
        "import treadle as mge; mge.tensor([1])": f"AttributeError: treadle.tensor {none}",
        "import treadle.functional as F": f"LeftOutError: treadle.functional {none}",
        "from treadle import optimizer": f"LeftOutError: treadle.optimizer {none}",
        "from treadle import Tensor": f"LeftOutError: treadle.Tensor {none}",
        "import treadle.backends.cuda": "LeftOutError: treadle.backends.cuda is not in "
        f"treadle-lite: {cuda}",
        lite + "N(LiteConfig(D.LITE_CUDA))": cuda,
        lite + "N(LiteConfig(D.LITE_OPENCL))": cuda.replace("cuda", "opencl"),
        lite + "N(LiteConfig(D.LITE_NPU))": "hint: install a backend for it, or use LITE_CPU",
        "import treadle as mge; assert not hasattr(mge, 'jit') and mge.lite and mge.__version__; "
        "raise mge.TreadleError('test', 'is there')": "TreadleError: test: is there",
        "import treadle as mge; raise ValueError([r['state'] for r in mge.backends()])": (
            "ValueError: ['loaded', 'disabled', 'not installed', 'not installed', 'not installed']"
        ),
    }
    for line, said in zip(expected, errors(python, list(expected), files), strict=True):
        assert expected[line] in said, line


def test_bfloat16_needs_a_package(python: Path, files: Path, tmp_path: Path) -> None:
    """Ends that are bfloat16 would be two bytes that nothing computes with."""
    compute = trace(
        lambda x: (x.astype("bfloat16") * x.astype("bfloat16")).astype("float32"),
        symbolic=True,
        capture_as_const=True,
    )
    compute(mge.tensor(X[0, 0]))
    compute.dump(tmp_path / "half.mge", arg_names=["x"], output_names=["y"])
    lines = [
        "from treadle.base.dtype import as_dtype; as_dtype('bfloat16')",
        "from treadle.lite import LiteNetwork as N; N().load(folder + '/half.mge')",
    ]
    for said in errors(python, lines, tmp_path):
        assert "bfloat16 needs the package ml_dtypes" in said
    assert as_dtype("bfloat16").itemsize == 2


def test_both_distributions_in_one_place_are_refused(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    (tmp_path / "treadle" / "tensor.py").write_text("")
    ran = subprocess.run(
        [sys.executable, "-c", "import treadle.lite"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "treadle and treadle-lite are both installed" in ran.stderr


def test_a_compiler_that_happens_to_be_there_is_not_used(
    wheel: Path, files: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    (gears, found, _), told = run(
        Path(sys.executable), _RUNS, files, "graph.mge", "", PYTHONPATH=str(tmp_path)
    )
    assert gears == 0 and max(found) < 1e-6
    assert len(told) == 1 and "NumPy runs the model" in told[0]


@pytest.mark.opencl
def test_a_graph_runs_on_a_device_that_was_switched_on(tmp_path: Path) -> None:
    pytest.importorskip("pyopencl", reason="there is no loader of OpenCL's drivers")
    compute = trace(lambda image: F.relu(image) * 2, symbolic=True, capture_as_const=True)
    compute(mge.tensor(X))
    compute.dump(tmp_path / "graph.mge", arg_names=["image"], output_names=["label"])
    [model] = read_models(tmp_path / "graph.mge")
    write_models(tmp_path / "native.mge", [compile_offline(model)], "test")
    with zipfile.ZipFile(built(tmp_path / "wheel", "cpu", "opencl")) as archive:
        archive.extractall(tmp_path)
    program = """
        import json, sys
        import numpy as np
        from treadle.lite import LiteConfig, LiteDeviceType, LiteGlobal, LiteNetwork
        OPENCL = LiteDeviceType.LITE_OPENCL
        if not LiteGlobal.get_device_count(OPENCL):
            print("null")
            sys.exit()
        network = LiteNetwork(LiteConfig(OPENCL))
        network.load(f"{sys.argv[1]}/native.mge")
        network.get_io_tensor("image").set_data_by_copy(np.ones((4, 3, 32, 32), np.float32))
        network.forward()
        network.wait()
        values = np.unique(network.get_io_tensor("label").to_numpy()).tolist()
        print(json.dumps([values, sys.modules["treadle"].__file__]))
    """
    settings = {"PYTHONPATH": str(tmp_path), "TREADLE_OPENCL_OPTIONS": "-cl-opt-disable"}
    found, told = run(Path(sys.executable), program, tmp_path, **settings)
    if found is None:
        pytest.skip("this machine has no OpenCL device")
    assert found[0] == [2] and found[1].startswith(str(tmp_path))
    assert len(told) == 1 and "is compiled: it runs on opencl0" in told[0]


@pytest.mark.onnx
def test_a_model_of_another_framework_runs(python: Path, tmp_path: Path) -> None:
    """As it gets to a board: an ONNX model, `treadle compile` elsewhere, the file and NumPy."""
    onnx: Any = pytest.importorskip("onnx", reason="the extra onnx is not installed")
    runtime: Any = pytest.importorskip("onnxruntime", reason="there is nothing to compare with")
    drawn = np.random.default_rng(1)
    weights = {
        name: onnx.numpy_helper.from_array(drawn.normal(0, 0.3, shape).astype(np.float32), name)
        for name, shape in (("w", (8, 1, 3, 3)), ("v", (12, 8, 1, 1)), ("h", (12, 5)), ("c", (5,)))
    }
    make = onnx.helper.make_node
    nodes = [
        make("Tile", ["image", "repeats"], ["wide"]),
        make("Conv", ["wide", "w"], ["a"], group=8, pads=[1, 1, 1, 1], strides=[2, 2]),
        make("HardSwish", ["a"], ["b"]),
        make("Conv", ["b", "v"], ["d"]),
        make("GlobalAveragePool", ["d"], ["e"]),
        make("Flatten", ["e"], ["f"]),
        make("Gemm", ["f", "h", "c"], ["g"]),
        make("Softmax", ["g"], ["label"], axis=1),
    ]
    repeats = onnx.numpy_helper.from_array(np.array([1, 4, 1, 1], np.int64), "repeats")
    floats = onnx.TensorProto.FLOAT
    ends = [
        [onnx.helper.make_tensor_value_info(name, floats, shape)]
        for name, shape in (("image", [2, 2, 16, 16]), ("label", [2, 5]))
    ]
    graph = onnx.helper.make_graph(nodes, "net", *ends, [*weights.values(), repeats])
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "net.onnx"
    )
    command = ["compile", str(tmp_path / "net.onnx"), "-o", str(tmp_path / "net.mge")]
    assert main(command) == 0
    x = drawn.normal(0, 1, (2, 2, 16, 16)).astype(np.float32)
    [want] = runtime.InferenceSession(tmp_path / "net.onnx").run(None, {"image": x})
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", want)
    program = """
        import json, sys
        import numpy as np
        from treadle.lite import LiteNetwork
        found = []
        for allow_native in (None, False):
            network = LiteNetwork()
            network.load(f"{sys.argv[1]}/net.mge", allow_native=allow_native)
            network.get_io_tensor("image").set_data_by_copy(np.load(f"{sys.argv[1]}/x.npy"))
            network.forward()
            results = network.get_io_tensor("label").to_numpy()
            difference = float(abs(results - np.load(f"{sys.argv[1]}/y.npy")).max())
            found.append([len(network.gears), difference])
        print(json.dumps(found))
    """
    (native, portable), told = run(python, program, tmp_path)
    assert (native[0], portable[0], told) == (1, 0, [])
    assert native[1] < 1e-6 and portable[1] < 1e-6
