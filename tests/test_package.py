"""The package itself: names come when they are used, and mean what they always meant."""

from __future__ import annotations

import ast
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import treadle


def fresh(program: str, *arguments: str) -> str:
    """What a program prints in a process of its own."""
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    return ran.stdout.strip()


def test_importing_the_package_imports_hardly_anything() -> None:
    modules = json.loads(fresh("import json, sys, treadle; print(json.dumps(list(sys.modules)))"))
    ours = {name for name in modules if name.startswith("treadle.")}
    assert ours == {
        "treadle.base",
        *(f"treadle.base.{n}" for n in ("env", "late", "tracebacks", "version")),
    }
    assert "numpy" not in modules


def test_training_imports_nothing_that_writes_models() -> None:
    code = "import treadle.module, treadle.optimizer, treadle.jit, treadle.data, sys"
    found = fresh(f"{code}; print(*(n for n in sys.modules if n.startswith('treadle')))").split()
    assert "treadle.jit.trace" in found
    assert not {"treadle.engine.package", "treadle.jit.dump", "treadle.graph.parser"} & {*found}


def test_every_public_name_is_there() -> None:
    missing = [name for name in treadle.__all__ if getattr(treadle, name, None) is None]
    assert missing == []
    assert set(dir(treadle)) == set(treadle.__all__)


def test_type_checkers_are_told_what_names_are() -> None:
    """The imports for type checkers and the table for `__getattr__` say the same."""
    tree = ast.parse(Path(str(treadle.__file__)).read_text(encoding="utf-8"))
    block = next(n for n in tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n))
    named = {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module != "treadle.engine.devices"
        for alias in node.names
    }
    for name, (home, member) in named.items():
        if home == "treadle":
            assert getattr(treadle, name) is importlib.import_module(f"treadle.{member}"), name
        else:
            assert getattr(treadle, name) is getattr(importlib.import_module(home), member), name
    untold = {name for name in treadle.__all__ if name not in named}
    assert {n for n in untold if not isinstance(getattr(treadle, n), ModuleType)} == {"tensor"}


@pytest.mark.parametrize(
    "first",
    [
        "import treadle.tensor",
        "import treadle.backends.registry",
        "import treadle.functional as F",
        "import treadle.lite",
        "from treadle import Tensor",
        "from treadle import *",
    ],
)
def test_names_do_not_depend_on_what_is_imported_first(first: str) -> None:
    program = f"{first}\nimport treadle as mge, treadle.tensor, treadle.backends.api\n"
    program += (
        "print(mge.tensor is mge.Tensor, mge.backends.__name__, (mge.tensor([1]) + 1).item())"
    )
    assert fresh(program) == "True table 2"


def test_names_that_are_not_there() -> None:
    with pytest.raises(AttributeError, match=r"did you mean treadle\.functional"):
        _ = treadle.functionl  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"treadle\.tensor\(data\)"):
        _ = treadle.asarray  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="has no attribute '_nothing'"):
        _ = treadle._nothing  # type: ignore[attr-defined]


_EACH_FIRST = """
import importlib, json, os, sys
import ml_dtypes, numpy
import treadle

failed = []
for layer in json.loads(sys.argv[1]):
    for name in layer:
        child = os.fork()
        if child == 0:
            try:
                importlib.import_module(name)
                os._exit(0)
            except ModuleNotFoundError as error:  # of an extra that is not installed
                os._exit(0 if not str(error.name).startswith("treadle") else 1)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
        if os.waitpid(child, 0)[1]:
            failed.append(name)
    if failed:
        break
    for name in layer:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            pass
print(failed)
"""


def layers() -> list[list[str]]:
    """The packages of each layer, lowest first, by the import contract."""
    tables = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    contracts = tables["tool"]["importlinter"]["contracts"]
    (contract,) = [contract for contract in contracts if contract["id"] == "layers"]
    return [
        [f"treadle.{name}" for name in re.findall(r"\w+", layer)]
        for layer in reversed(contract["layers"])
    ]


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process per package takes too long")
def test_every_package_may_be_the_first() -> None:
    """The first but for the layers below, which by contract know nothing of those above."""
    found = layers()
    there = {info.name for info in pkgutil.iter_modules(treadle.__path__, "treadle.")}
    assert {name for layer in found for name in layer} == there
    assert fresh(_EACH_FIRST, json.dumps(found)) == "[]"
