"""Run the Python blocks of one page, top to bottom, as one program.

    python tests/docs/run_page.py docs/tensors.md [oracle] [folder=WHERE]

Blocks that start with `>>>` are compared with the output they show (`...` matches anything);
other blocks must not raise. A block marked `file=name.py` is written to the working directory,
for the blocks after it to import, in any language; one marked `more=name.py` is added to it.
Blocks marked `oracle` need another framework and run only where that argument asks for them. The
working directory is temporary unless one is named.

    python tests/docs/run_page.py --serve

reads requests from standard input, a list of the arguments above and a file for the output per
line as JSON, and answers each with the exit status of a process that has run the page. The
processes are forks of this one, which has imported what most pages import and run nothing.
"""

from __future__ import annotations

import doctest
import gc
import importlib
import json
import os
import re
import sys
import tempfile
import traceback
from pathlib import Path
from types import SimpleNamespace

from pages import ROOT, Block, blocks, name_of

OFTEN_IMPORTED = ("functional", "module", "optimizer", "autodiff", "jit", "jit.compiled")
# Before Python 3.11.4 doctest takes the last note of an exception for its message.
_told = vars(traceback) | {
    "format_exception_only": lambda *error: ["".join(traceback.format_exception_only(*error))]
}
vars(doctest)["traceback"] = SimpleNamespace(**_told)
FLAGS = doctest.ELLIPSIS | doctest.DONT_ACCEPT_TRUE_FOR_1


def run(page: Path, oracle: bool) -> int:
    """Run a page; returns the number of sessions that differ from what they show."""
    failures = 0
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page, None):
        if "oracle" in block.words and not oracle:
            continue
        files = [w.split("=", 1) for w in block.words if w.startswith(("file=", "more="))]
        for word, name in files:
            with open(name, "w" if word == "file" else "a", encoding="utf-8") as file:
                file.write(block.code if word == "file" else "\n" + block.code)
        if files or block.language != "python":
            continue
        if block.is_session:
            failures += _session(page, block, names)
        else:
            # The padding makes line numbers in tracebacks those of the page.
            padded = "\n" * (block.line - 1) + block.code
            exec(compile(padded, name_of(page), "exec"), names)
    return failures


def _session(page: Path, block: Block, names: dict[str, object]) -> int:
    title = name_of(page)
    test = doctest.DocTestParser().get_doctest(block.code, {}, title, title, block.line - 1)
    test.globs = names
    runner = doctest.DocTestRunner(checker=_Checker(), optionflags=FLAGS)
    return runner.run(test, clear_globs=False).failed


class _Checker(doctest.OutputChecker):
    """Compares without the last line of tracebacks, a code and a link, which pages leave out."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        plain = re.sub(r"\n  help: treadle help T\d\d", "", got)
        return super().check_output(want, plain, optionflags)


def main() -> None:
    page = (ROOT / sys.argv[1]).resolve()
    # What a page draws is the same in every run: none fails by chance.
    for name in ("random", "numpy.random", "treadle.random"):
        importlib.import_module(name).seed(0)
    named = [w.removeprefix("folder=") for w in sys.argv[2:] if w.startswith("folder=")]
    with tempfile.TemporaryDirectory() as temporary:
        folder = named[0] if named else temporary
        os.chdir(folder)
        sys.path.insert(0, folder)
        failures = run(page, "oracle" in sys.argv[2:])
        os.chdir(ROOT)
    sys.exit(1 if failures else 0)


def serve() -> bool:
    """Answer requests until there are no more; True in a fork, which has a page to run."""
    for name in OFTEN_IMPORTED:
        importlib.import_module(f"treadle.{name}")
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        arguments, output = json.loads(line)
        child = os.fork()
        if not child:
            _connect(os.open(os.devnull, os.O_RDONLY), 0)
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(file, 2)
            _connect(file, 1)
            sys.argv[1:] = arguments
            return True
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return False


def _connect(opened: int, descriptor: int) -> None:
    os.dup2(opened, descriptor)
    os.close(opened)


if __name__ == "__main__" and (sys.argv[1:] != ["--serve"] or serve()):
    main()
