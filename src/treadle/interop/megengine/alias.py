"""An import finder that serves every `megengine...` module as the Treadle module of that name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_ALIAS, _REAL = "megengine", "treadle"


class _AliasLoader(Loader):
    """Loads `megengine.x` by importing `treadle.x`; both names mean one module object."""

    def __init__(self) -> None:
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(_REAL + spec.name[len(_ALIAS) :])
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """The module was executed under its own name; give it back the spec it had."""
        module.__spec__ = self._spec


class _AliasFinder(MetaPathFinder):
    """Answers for `megengine` and everything below it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _ALIAS and not fullname.startswith(_ALIAS + "."):
            return None
        real = _REAL + fullname[len(_ALIAS) :]
        try:
            found = importlib.import_module(real)
        except ModuleNotFoundError as missing:
            if missing.name == real:
                return None
            raise
        is_package = bool(getattr(found, "__path__", None))
        return ModuleSpec(fullname, _AliasLoader(), is_package=is_package)


_FINDER = _AliasFinder()


def install() -> None:
    """Make `import megengine` mean Treadle in this process.

    Raises:
        RuntimeError: a real MegEngine has been imported already.
    """
    loaded = sys.modules.get(_ALIAS)
    if loaded is not None and loaded.__name__ != _REAL:
        raise RuntimeError("megengine is imported already; install the alias before it")
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    importlib.import_module(_REAL)
    for name in [n for n in sys.modules if n == _REAL or n.startswith(_REAL + ".")]:
        # Known ahead of `import`, which would otherwise bind them anew in their package and so
        # replace the class `treadle.tensor` by the module of that name.
        sys.modules[_ALIAS + name[len(_REAL) :]] = sys.modules[name]


def uninstall() -> None:
    """Forget the alias; modules that were imported through it stay usable."""
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
    for name in [n for n in sys.modules if n == _ALIAS or n.startswith(_ALIAS + ".")]:
        del sys.modules[name]
