"""Programs written for MegEngine: every package path, private names, one module object."""

from __future__ import annotations

import importlib
import io
import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.functional.elemwise import _elwise
from treadle.interop.megengine import install, uninstall
from treadle.interop.megengine.__main__ import main
from treadle.interop.megengine.internals import Grad, apply
from treadle.module.module import _access_structure
from treadle.ops.elementwise import Add

PATHS = [
    "amp",
    "autodiff",
    "autodiff.grad_manager",
    "config",
    "core",
    "core._imperative_rt",
    "core._imperative_rt.common",
    "core._imperative_rt.core2",
    "core._imperative_rt.imperative",
    "core._imperative_rt.ops",
    "core._trace_option",
    "core.autodiff.grad",
    "core.ops",
    "core.ops.builtin",
    "core.ops.custom",
    "core.tensor",
    "core.tensor_factory",
    "core.tensor.dtype",
    "data",
    "data.dataloader",
    "data.dataset",
    "data.dataset.meta_dataset",
    "data.sampler",
    "data.transform",
    "data.transform.meta_transform",
    "data.transform.vision",
    "data.transform.vision.transform",
    "device",
    "distributed",
    "distributed.functional",
    "distributed.helper",
    "distributed.launcher",
    "distributions",
    "dtr",
    "functional",
    "functional.debug_param",
    "functional.distributed",
    "functional.elemwise",
    "functional.external",
    "functional.inplace",
    "functional.loss",
    "functional.math",
    "functional.metric",
    "functional.nn",
    "functional.quantized",
    "functional.tensor",
    "functional.utils",
    "functional.vision",
    "hub",
    "jit",
    "jit.dtr_config",
    "jit.graph_opt_config",
    "jit.sublinear_memory_config",
    "jit.tracing",
    "logger",
    "module",
    "module.adaptive_pooling",
    "module.concat",
    "module.external",
    "module.init",
    "module.qat",
    "module.quantized",
    "optimizer",
    "optimizer.lr_scheduler",
    "optimizer.multi_step_lr",
    "quantization",
    "quantization.observer",
    "quantization.qconfig",
    "quantization.fake_quant",
    "random",
    "random.rng",
    "serialization",
    "traced_module",
    "utils",
    "utils.comp_graph_tools",
    "utils.custom_op_tools",
    "utils.module_stats",
    "utils.network",
    "utils.network_node",
]


def test_every_package_path_is_imported_and_is_one_module() -> None:
    lines = [
        "import importlib, sys",
        "from treadle.interop.megengine import install; install()",
        f"for path in {PATHS}:",
        "    try: found = importlib.import_module(f'megengine.{path}')",
        "    except Exception as error: print(path, repr(error)); continue",
        "    if found is not sys.modules[f'megengine.{path}']: print(path, 'is two modules')",
        "import megengine, treadle",
        "assert megengine is treadle and isinstance(megengine.tensor, type)",
        "from megengine.distributed.launcher import launcher",
        "from megengine.jit.tracing import TraceError, trace",
        "from megengine.utils.tuple_function import _pair",
        "assert callable(megengine.distributed.launcher) and _pair(3) == (3, 3)",
        # Programs enter in tables of their own what they find in these packages.
        "assert 'ImageFolder' in vars(megengine.data.dataset)",
        "assert 'Transform' in vars(megengine.data.transform)",
        "print(megengine.core.ops.custom.__name__)",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "treadle.utils.custom\n", f"{done.stdout}{done.stderr}"


SCRIPT = """
import sys
import numpy as np
import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine import Parameter, Tensor, jit, optimizer, tensor
from megengine.autodiff import Function, GradManager
from megengine.core._imperative_rt.core2 import apply
from megengine.core.tensor.dtype import qint8
from megengine.data.transform import Compose
from megengine.functional.distributed import all_reduce_sum

net = M.Sequential(M.Linear(2, 3), M.ReLU(), M.Linear(3, 1))
gm, opt = GradManager(), optimizer.SGD(net.parameters(), lr=0.1)
gm.attach(net.parameters())
with gm:
    loss = F.nn.square_loss(net(tensor(np.ones((4, 2), "float32"))), F.zeros((4, 1)))
    gm.backward(loss)
opt.step().clear_grad()
print(sys.argv[1:], loss.shape, qint8(0.5).name)
"""


def test_a_script_runs_unchanged(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "treadle.interop.megengine", str(script), "--epochs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "['--epochs', '2'] () int8\n", done.stderr


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "treadle.interop.megengine", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def test_arrays_are_loaded_without_opencv(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["cv2"] = None
from treadle.interop.megengine import install
install()
from megengine.data import DataLoader
from megengine.data.dataset import ArrayDataset
import megengine.data.dataset as known, megengine.data.transform as transforms
print(len(DataLoader(ArrayDataset([1, 2]))), "MNIST" in vars(known), "Resize" in vars(transforms))
try:
    transforms.Resize
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[0] == "2 True False", done.stderr
    assert "pip install" in done.stdout


def test_modules_code_and_neighbours_of_a_script_are_found(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "script.py").write_text("import sys, neighbour\nprint(sys.argv[1:])\n")
    (tmp_path / "inner" / "neighbour.py").write_text("import megengine\n")
    (tmp_path / "package.py").write_text(
        "import sys, megengine\nprint(megengine.version.__version__, sys.argv[1:])\n"
    )
    assert run("inner/script.py", "a", cwd=tmp_path).stdout == "['a']\n"
    assert run("-m", "package", "b", cwd=tmp_path).stdout == "1.13.4 ['b']\n"
    code = "import sys, megengine as m; print(m.tensor(1).item(), sys.argv)"
    assert run("-c", code, "c", cwd=tmp_path).stdout == "1 ['-c', 'c']\n"


STARTING = """
import multiprocessing, subprocess, sys
import megengine.functional as F

def child(queue):
    queue.put(F.sum(F.ones((3,))).item())

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    process = spawn.Process(target=child, args=(queue,))
    process.start()
    print(queue.get(timeout=300), flush=True)
    process.join()
    code = "import megengine.module, megengine, treadle; print(megengine is treadle)"
    subprocess.run([sys.executable, "-c", code], check=True)
"""


def test_processes_that_a_program_starts_know_the_alias(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(STARTING)
    done = run("script.py", cwd=tmp_path)
    assert done.stdout == "3.0\nTrue\n", done.stderr


@pytest.mark.parametrize("wrong", [[], ["-m"], ["-x"]], ids=str)
def test_a_command_line_without_a_program_is_told_what_it_takes(
    wrong: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["megengine", *wrong])
    # Python ends such a process with status 1 and the text on standard error.
    with pytest.raises(SystemExit, match=r"^usage: python -m treadle\.interop"):
        main()


def test_unknown_modules_are_ordinary_import_errors() -> None:
    install()
    try:
        with pytest.raises(ModuleNotFoundError, match=r"megengine\.no_such_module"):
            __import__("megengine.no_such_module")
        with pytest.raises(ModuleNotFoundError, match=r"megengine\.core\.nothing"):
            __import__("megengine.core.nothing")
    finally:
        uninstall()


def test_names_that_numpy_has_removed_mean_what_they_did() -> None:
    """Programs of MegEngine's time write `astype(np.float)`; no NumPy of today has it."""
    numpy: Any = np
    install()
    try:
        assert "float" not in vars(numpy) and numpy.float is float
        assert np.array([1.5], numpy.int).tolist() == [1]
        assert numpy.in1d([[1, 2]], [2]).tolist() == [False, True]
        with pytest.raises(AttributeError, match="'nothing'"):
            numpy.nothing
    finally:
        uninstall()
    assert not hasattr(numpy, "float")


def test_arrays_of_one_element_are_numbers() -> None:
    """Programs write `int(F.sum(x).numpy())`, along however many axes; NumPy 2.4 refuses it."""
    install()
    try:
        one = mge.tensor([[7.5]]).numpy()
        assert int(one) == 7 and float(one) == 7.5 and complex(one) == 7.5
        assert [10, 20, 30][mge.tensor([2]).numpy()] == 30
        assert mge.tensor([3]).numpy().__index__() == 3
        assert repr(one) == "array([[7.5]], dtype=float32)"
        more = np.concatenate([one, one])
        assert type(more) is np.ndarray and type(pickle.loads(pickle.dumps(one))) is np.ndarray
        assert type(one[0, 0]) is np.float32 and type(one.sum()) is np.float32
        assert float(one + 1) == 8.5 and math.floor(float(one.reshape(1))) == 7
        with pytest.raises(TypeError):
            int(mge.tensor([1, 2]).numpy())
    finally:
        uninstall()
    assert type(mge.tensor([1.0]).numpy()) is np.ndarray


def test_states_with_parameters_of_one_element_are_saved() -> None:
    """Their arrays are of a class of their own, and files hold plain ones."""
    install()
    try:
        net, file = mge.module.Linear(1, 1), io.BytesIO()
        state = net.state_dict()
        mge.save({"net": state, "quantized": one_of_four_bits()}, file)
        file.seek(0)
        loaded = mge.load(file)
    finally:
        uninstall()
    assert {type(a) for a in loaded["net"].values()} == {np.ndarray}
    assert loaded["net"]["weight"] == state["weight"] and loaded["quantized"].numpy() == 3
    net.load_state_dict(loaded["net"])
    with pytest.raises(TypeError, match="is a recarray, which is not saved"):
        mge.save(np.zeros(1).view(np.recarray), file)


def one_of_four_bits() -> mge.Tensor:
    return mge.tensor([3], dtype=mge.quantization.dtype.quint4(1.0, 0))


def test_core_names_what_it_has() -> None:
    assert mge.core.tensor.dtype.qint8 is mge.quantization.dtype.qint8
    assert mge.core.ops.custom is mge.utils.custom
    assert mge.core.get_option("async_level") == 2
    assert mge.core.set_option("async_level", 0) == 2
    assert mge.config.async_level == 0 and mge.core.set_option("async_level", 2) == 0
    assert mge.core.set_option("other", 1) == 0 and mge.core.get_option("other") == 1
    assert mge.core._trace_option.use_symbolic_shape() is False
    with pytest.raises(AttributeError, match="it has "):
        mge.core.ops.nothing
    assert "dtype" in dir(mge.core.tensor)


def test_shapes_and_vectors_of_the_core() -> None:
    utils = mge.core.tensor.utils
    assert utils.make_shape_tuple([2, mge.tensor([3, 4]), (5,)]) == (2, 3, 4, 5)
    assert utils.astensor1d([[1, 2]], mge.tensor([0.0], device="cpu1")).device == "cpu1"
    assert utils.astensor1d(3, dtype="float32").tolist() == [3.0]


def test_the_old_tape_gives_gradients_to_callbacks() -> None:
    x, y = mge.tensor([1.0, 2.0]), mge.tensor([3.0])
    found: list[list[float]] = []
    with Grad("test") as grad:
        grad.wrt(x, y, callback=lambda g: found.append(g.tolist()))
        z = x * x * y
        grad(z, F.ones_like(z))
    assert found == [[6.0, 12.0], [5.0]]
    assert x.grad is None


def test_the_old_tape_records_from_wrt_on_and_not_while_suppressed() -> None:
    x, found = mge.tensor([1.0, 2.0]), []
    grad = Grad().wrt(x, callback=lambda g: found.append(g.tolist()))
    y = x * 2
    grad.suppress()
    factor = x * 3
    grad.resume()
    z = y * factor
    grad(z, F.ones_like(z))
    assert found == [[6.0, 12.0]]


def test_op_definitions_are_applied_by_hand() -> None:
    ops, x = mge.core.ops.builtin, mge.tensor([[1.0, -2.0, 3.0]])
    assert apply(ops.Elemwise("ADD"), x, x)[0].tolist() == [[2.0, -4.0, 6.0]]
    assert apply(ops.Elemwise(mode="RELU"), x)[0].tolist() == [[1.0, 0.0, 3.0]]
    assert apply(ops.Reduce("SUM", 1), x)[0].tolist() == [[2.0]]
    assert apply(ops.Dimshuffle((1, -1, 0)), x)[0].shape == (3, 1, 1)
    assert apply(ops.TypeCvt("int32"), x)[0].tolist() == [[1, -2, 3]]
    assert apply(ops.Copy("cpu1"), x)[0].device == "cpu1"
    assert apply(ops.Reshape(), x, mge.tensor([3, 1]))[0].shape == (3, 1)
    assert apply(ops.Broadcast(), x, mge.tensor([2, 3]))[0].shape == (2, 3)
    assert apply(ops.Concat(axis=1), x, x)[0].shape == (1, 6)
    assert apply(ops.GetVarShape(), x)[0].tolist() == [1, 3]
    assert apply(ops.GetVarShape(axis=-1), x)[0].tolist() == [3]
    assert apply(ops.MatrixMul(False, True), x, x)[0].tolist() == [[14.0]]
    assert apply(ops.Identity(), x)[0].tolist() == x.tolist()
    with pytest.raises(TypeError, match="Reduce: its parameters are: mode"):
        ops.Reduce(kind="SUM")


def test_apply_gives_a_list() -> None:
    (total,) = apply(Add(), mge.tensor([1.0]), mge.tensor([2.0]))
    assert total.tolist() == [3.0]
    assert apply(F.topk, mge.tensor([[1.0, 2.0]]), 1)[0].tolist() == [[2.0]]


def test_functions_stand_where_early_versions_had_them() -> None:
    install()
    try:
        check_early_places()
    finally:
        uninstall()
    assert not hasattr(mge.functional, "interpolate") and hasattr(mge.functional.nn, "interpolate")


def check_early_places() -> None:
    functional, random = (
        importlib.import_module(f"megengine.{n}") for n in ("functional", "random")
    )
    x = mge.tensor(np.arange(4, dtype="float32").reshape(1, 1, 2, 2))
    assert functional.interpolate(x, scale_factor=2).shape == (1, 1, 4, 4)
    boxes = mge.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]])
    assert functional.nms(boxes, mge.tensor([0.5, 0.75]), 0.5).tolist() == [1]
    rois = mge.tensor([[0.0, 0.0, 0.0, 2.0, 2.0]])
    assert functional.roi_align(x, rois, (1, 1)).shape == (1, 1, 1, 1)
    assert functional.cross_entropy(x[0, 0], mge.tensor([1, 1])).item() == pytest.approx(0.3132617)
    assert functional.square_loss(x, x + 2).item() == 4.0
    drawn = random.gaussian(shape=[1000, 2], mean=3, std=0.5)
    assert drawn.shape == (1000, 2) and abs(drawn.mean().item() - 3) < 0.1


def test_star_imports_bring_what_dir_shows() -> None:
    """Packages built on MegEngine wrap everything that `dir` lists."""
    install()
    try:
        check_stars()
    finally:
        uninstall()
    assert "nms" not in F.__all__


def check_stars() -> None:
    for path in ("functional", "module", "optimizer", "distributed", "random"):
        package = importlib.import_module(f"megengine.{path}")
        brought: dict[str, Any] = {}
        exec(f"from megengine.{path} import *", brought)
        shown = {
            name
            for name in dir(package)
            if name[0] != "_" and callable(found := getattr(package, name)) and found is not Any
        }
        assert shown <= brought.keys() and Any not in vars(package).values()


def test_lists_of_names_stay_as_megengine_has_them() -> None:
    """Programs go through `elemwise.__all__` and call each of them as a function."""
    install()
    try:
        elemwise = importlib.import_module("megengine.functional.elemwise")
        assert elemwise.Elemwise("ADD") is not None and "Elemwise" not in elemwise.__all__
        assert all(hasattr(getattr(elemwise, name), "__code__") for name in elemwise.__all__)
    finally:
        uninstall()


def test_top_level_names_that_programs_use() -> None:
    assert mge.cgtools is mge.utils.comp_graph_tools
    assert isinstance(mge.__version__, str)
    assert mge._full_sync() is None and mge._sync() is None
    assert np.float32 == mge.tensor([1.0]).dtype


def test_exit_runs_handlers_last_one_first() -> None:
    code = (
        "import treadle as mge\n"
        "mge._atexit(lambda: print('first'))\n"
        "@mge._atexit\ndef last(): print('last')\n"
        "mge._exit(3)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "last\nfirst\n"), done.stderr


def test_private_names_that_programs_import() -> None:
    assert _elwise(mge.tensor([1.0]), mge.tensor([2.0]), mode="ADD").tolist() == [3.0]
    net = M.Sequential(M.Linear(1, 1), M.Linear(1, 2))
    net.kept = [{"a": net[1]}]
    assert _access_structure(net, "kept.0.a.weight") is net[1].weight
    found = _access_structure(net, "kept.0.a", lambda holder, key, it: (holder, key, it))
    assert found == (net.kept[0], "a", net[1])
    x = mge.tensor([1.0])
    assert x.__getstate__() == {}
    kept = x.qparams
    assert x.__getstate__() == {"qparams": kept}
