"""Libraries of C that run models of other engines, through MegEngine's interface for them."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.backends.c_loaders import dynamic_parameter
from treadle.base.errors import DTypeError, LoadError, ShapeError, UnsupportedOp
from treadle.lite import LiteGlobal
from treadle.module.external import ExternOprSubgraph
from treadle.tools import load_and_run
from treadle.utils import custom

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
MODEL = np.array([3.0, 0.5], np.float32).tobytes()
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def library(tmp_path_factory: Any) -> str:
    path = tmp_path_factory.mktemp("loaders") / "libloaders.so"
    source = Path(__file__).with_name("loaders.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(path), str(source)], check=True)
    with pytest.raises(UnsupportedOp, match=r"only the engine 'tests\.affine'"):
        affine(mge.tensor(X))
    assert custom.load_engines(path) == ["tests.affine", "tests.stats"]
    return str(path)


def affine(x: mge.Tensor, name: str = "tests.affine", model: bytes = MODEL) -> mge.Tensor:
    (found,) = F.external.extern_opr_subgraph([x], [x.shape], name, model)
    return found


def test_models_of_a_library_run_eager_compiled_and_as_layers(library: str) -> None:
    x = mge.tensor(X)
    for run in (affine, jit.compile(affine), jit.trace(symbolic=True)(affine)):
        np.testing.assert_array_equal(run(x), X * 3 + 0.5)
    layer = ExternOprSubgraph([(2, 3)], "tests.affine:detector", MODEL)
    np.testing.assert_array_equal(layer(x)[0], X * 3 + 0.5)
    np.testing.assert_array_equal(affine(x.T), X.T * 3 + 0.5)
    count, total = F.external.extern_opr_subgraph(
        [x, mge.tensor([100.0])], [(1,), (1,)], "tests.stats", b"", ["int32", "float32"]
    )
    assert (count.tolist(), total.tolist()) == ([6], [115.0])


def test_what_a_library_refuses_is_an_error(library: str) -> None:
    x = mge.tensor(X)
    with pytest.raises(LoadError, match="makes no model of 3 bytes"):
        affine(x, model=b"abc")
    with pytest.raises(DTypeError, match="takes float32, int32"):
        F.external.extern_opr_subgraph([x.astype("int8")], [(2, 3)], "tests.affine", MODEL)
    with pytest.raises(ShapeError, match="gave other results"):
        F.external.extern_opr_subgraph([x], [(3, 2)], "tests.affine", MODEL)
    with pytest.raises(LoadError, match="registers no new loader"):
        custom.load_engines(library)
    with pytest.raises(LoadError, match="not a loader library"):
        custom.load_engines(library, "another_init")
    assert custom.load_engines(library, "later_init") == ["tests.stats"]
    with pytest.raises(LoadError, match="registers no new loader"):
        LiteGlobal.set_loader_lib_path(library)


def test_a_dumped_model_runs_where_the_library_is_given(
    library: str, tmp_path: Path, capsys: Any
) -> None:
    traced = jit.trace(lambda data: affine(data) + 1, capture_as_const=True)
    traced(mge.tensor(X))
    path = tmp_path / "model.mge"
    traced.dump(path, input_data=[X])
    given = "--iter", "1", "--c-opr-lib"
    # In this process the names are taken; another one has to open the library.
    command = [sys.executable, "-m", "treadle.tools.load_and_run", str(path), *given, library]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "passed" in done.stdout, done.stderr
    assert load_and_run.main([str(path), *given, library]) == 1
    assert "registers no new loader" in capsys.readouterr().err
    # With the inputs as a parameter on the library's device, the model of this one adds X[0, 1].
    out = tmp_path / "out"
    more = ("--c-opr-lib-with-param", "--disable-assert-throw", "--bin-out-dump", str(out))
    done = subprocess.run([*command, *more], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "freed 1, 0" in done.stderr, done.stderr
    (written,) = out.glob("*.npy")
    np.testing.assert_array_equal(np.load(written), X * 3 + 2.5)


def test_parameters_on_a_device_need_functions_that_have_its_memory(
    library: str, tmp_path: Path, capsys: Any
) -> None:
    traced = jit.trace(lambda data: data + 1, capture_as_const=True)
    traced(mge.tensor(X))
    path = tmp_path / "model.mge"
    traced.dump(path, input_data=[X])
    for given in ((), ("--c-opr-lib", library, "--lite")):
        with pytest.raises(SystemExit):
            load_and_run.main([str(path), "--c-opr-lib-with-param", *given])
        assert "give --c-opr-lib, and run without --lite" in capsys.readouterr().err
    with (
        pytest.raises(LoadError, match="takes no parameters"),
        dynamic_parameter(ctypes.__file__, []),
    ):
        pass
    with dynamic_parameter(library, [X]):
        np.testing.assert_array_equal(affine(mge.tensor(X)), X * 3 + 1.5)
    np.testing.assert_array_equal(affine(mge.tensor(X)), X * 3 + 0.5)
