"""Run a MegEngine program on Treadle, as `python` itself would run it.

python -m treadle.interop.megengine script.py [arguments]
python -m treadle.interop.megengine -m module [arguments]
python -m treadle.interop.megengine -c code [arguments]

Processes that the program starts, by `multiprocessing` or as commands, know the alias as well.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from treadle.base.env import add_python_path
from treadle.interop.megengine.alias import install

_USAGE = "usage: python -m treadle.interop.megengine (script.py | -m module | -c code) [arguments]"


def _tell_children() -> None:
    """Make every Python process from here on find a `megengine` that installs the alias."""
    folder = Path(__file__).parent / "path"
    add_python_path(folder)
    sys.path.append(str(folder))  # `multiprocessing` hands this list to those it spawns.


def main() -> None:
    """Run what the command line names, with the rest as its arguments."""
    arguments = sys.argv[1:]
    flag = arguments.pop(0) if arguments[:1] in (["-m"], ["-c"]) else ""
    if not arguments or (not flag and arguments[0].startswith("-")):
        sys.exit(_USAGE)
    install()
    _tell_children()
    target, *rest = arguments
    if flag == "-c":
        sys.argv = ["-c", *rest]
        sys.path.insert(0, "")
        exec(compile(target, "<string>", "exec"), {"__name__": "__main__"})
    elif flag == "-m":
        sys.argv = [target, *rest]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(target)))
        runpy.run_path(target, run_name="__main__")


if __name__ == "__main__":
    main()
