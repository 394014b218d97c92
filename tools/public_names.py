"""`docs/public-names.txt`: every public name, so that none vanishes unnoticed.

`python -m tools.public_names` writes it; with `--check` it fails where a name of the file is gone
(`make check`). A name that goes on purpose has warned for a minor version, has a line in the
changelog, and is taken from the file in the same change.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import treadle

PAGE = Path(__file__).resolve().parents[1] / "docs" / "public-names.txt"

PACKAGES = (
    *("amp", "array_api", "autodiff", "data", "deploy", "device", "distributed", "distributions"),
    *("dtr", "functional", "graph", "hub", "jit", "lite"),
    *("module", "optimizer", "quantization", "random", "serialization", "traced_module"),
    *("trainer", "utils"),
)
"""Those that pages tell of and that need no other package; MegEngine's names have a page."""
MEMBERS = (
    *("Tensor", "Trainer", "autodiff.GradManager", "data.DataLoader", "jit.trace"),
    *("module.Module", "optimizer.LRScheduler", "optimizer.Optimizer"),
)
"""Classes whose members are called."""


def names() -> list[str]:
    """All of them, sorted."""
    found = {f"treadle.{name}" for name in treadle.__all__}
    for package in PACKAGES:
        found |= {f"treadle.{name}" for name in _of_package(package)}
    for path in MEMBERS:
        cls = treadle
        for part in path.split("."):
            cls = getattr(cls, part)
        found |= {f"treadle.{path}.{name}" for name in dir(cls) if not name.startswith("_")}
    return sorted(found)


def _of_package(path: str) -> Iterator[str]:
    module = importlib.import_module(f"treadle.{path}")
    yield from (f"{path}.{name}" for name in _public(module))
    for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
        inner = f"{path}.{found.name}"
        if found.name.startswith("_") or not _is_told(module, found.name):
            continue
        yield from (
            f"{inner}.{name}" for name in _public(importlib.import_module(f"treadle.{inner}"))
        )


def _is_told(module: ModuleType, name: str) -> bool:
    """Whether a module inside of a package is a public one."""
    return name in getattr(module, "__all__", ()) or module.__name__ == "treadle.utils"


def _public(module: ModuleType) -> list[str]:
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    ]


def main(arguments: list[str] | None = None) -> int:
    """Write the file, or look for names that are gone; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.public_names", description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where a name is gone")
    if not parser.parse_args(arguments).check:
        PAGE.write_text("\n".join(names()) + "\n", encoding="utf-8")
        return 0
    gone = missing(PAGE.read_text(encoding="utf-8").split(), names())
    for name in gone:
        print(
            f"{name} is gone: keep it with a warning, or see tools/public_names.py", file=sys.stderr
        )
    return 1 if gone else 0


def missing(before: list[str], now: list[str]) -> list[str]:
    """Names that were there and are not."""
    return sorted(set(before) - set(now))


if __name__ == "__main__":
    sys.exit(main())
