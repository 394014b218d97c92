"""Programs written for MegEngine: every package path, private names, one module object."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.interop.megengine import install, uninstall
from treadle.interop.megengine.internals import Grad, apply
from treadle.ops.elementwise import Add

PATHS = [
    "amp",
    "autodiff",
    "autodiff.grad_manager",
    "config",
    "core",
    "core._imperative_rt",
    "core._imperative_rt.core2",
    "core._trace_option",
    "core.autodiff.grad",
    "core.ops",
    "core.ops.custom",
    "core.tensor",
    "core.tensor.dtype",
    "data",
    "data.dataloader",
    "data.dataset",
    "data.sampler",
    "data.transform",
    "data.transform.vision",
    "device",
    "distributed",
    "distributed.functional",
    "distributed.helper",
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
    "logger",
    "module",
    "module.external",
    "module.init",
    "module.qat",
    "module.quantized",
    "optimizer",
    "optimizer.lr_scheduler",
    "quantization",
    "quantization.observer",
    "quantization.qconfig",
    "quantization.fake_quant",
    "random",
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


def test_modules_code_and_neighbours_of_a_script_are_found(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "script.py").write_text("import sys, neighbour\nprint(sys.argv[1:])\n")
    (tmp_path / "inner" / "neighbour.py").write_text("import megengine\n")
    (tmp_path / "package.py").write_text(
        "import sys, megengine\nprint(megengine.version.__version__, sys.argv[1:])\n"
    )
    assert run("inner/script.py", "a", cwd=tmp_path).stdout == "['a']\n"
    assert run("-m", "package", "b", cwd=tmp_path).stdout == f"{mge.__version__} ['b']\n"
    code = "import sys, megengine as m; print(m.tensor(1).item(), sys.argv)"
    assert run("-c", code, "c", cwd=tmp_path).stdout == "1 ['-c', 'c']\n"
    for wrong in ([], ["-m"], ["-x"]):
        done = run(*wrong, cwd=tmp_path)
        assert done.returncode == 1 and "usage: python -m treadle.interop" in done.stderr


def test_unknown_modules_are_ordinary_import_errors() -> None:
    install()
    try:
        with pytest.raises(ModuleNotFoundError, match=r"megengine\.no_such_module"):
            __import__("megengine.no_such_module")
        with pytest.raises(ModuleNotFoundError, match=r"megengine\.core\.nothing"):
            __import__("megengine.core.nothing")
    finally:
        uninstall()


def test_core_names_what_it_has() -> None:
    assert mge.core.tensor.dtype.qint8 is mge.quantization.dtype.qint8
    assert mge.core.ops.custom is mge.utils.custom
    assert mge.core.get_option("async_level") == 2
    assert mge.core.set_option("async_level", 0) == 2
    assert mge.config.async_level == 0 and mge.core.set_option("async_level", 2) == 0
    assert mge.core.set_option("other", 1) == 0 and mge.core.get_option("other") == 1
    assert mge.core._trace_option.use_symbolic_shape() is False
    with pytest.raises(AttributeError, match="it has "):
        mge.core.ops.builtin
    assert "dtype" in dir(mge.core.tensor)


def test_shapes_and_vectors_of_the_core() -> None:
    utils = mge.core.tensor.utils
    assert utils.make_shape_tuple([2, mge.tensor([3, 4]), (5,)]) == (2, 3, 4, 5)
    assert utils.astensor1d([[1, 2]], mge.tensor([0.0], device="cpu1")).device == "cpu1"
    assert utils.astensor1d(3, dtype="float32").tolist() == [3.0]


def test_the_old_tape_gives_gradients_to_callbacks() -> None:
    x, y = mge.tensor([1.0, 2.0]), mge.tensor([3.0])
    found = {}
    with Grad("test") as grad:
        grad.wrt(x, y, callback=lambda t, g: found.update({id(t): g.tolist()}))
        z = x * x * y
        grad(z, F.ones_like(z))
    assert found == {id(x): [6.0, 12.0], id(y): [5.0]}
    assert x.grad is None


def test_apply_gives_a_list() -> None:
    (total,) = apply(Add(), mge.tensor([1.0]), mge.tensor([2.0]))
    assert total.tolist() == [3.0]
    assert apply(F.topk, mge.tensor([[1.0, 2.0]]), 1)[0].tolist() == [[2.0]]


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
