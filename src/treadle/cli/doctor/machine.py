"""This machine and this process: devices, processor, caches, settings, and a trial of them all."""

from __future__ import annotations

import difflib
import os
import platform
import stat
import sys
from pathlib import Path

import numpy as np

from treadle.backends import registry
from treadle.backends.program import MeasuringCompiler
from treadle.base.env import ALL, cache_directory, home_directory, settings, visible_devices
from treadle.base.errors import TreadleError
from treadle.base.table import size
from treadle.cli.section import Finding, Section
from treadle.engine.devices.names import resolve
from treadle.engine.devices.placement import find_compiler
from treadle.engine.eager.forced import mistakes
from treadle.engine.options import Options
from treadle.jit import compile as jit_compile
from treadle.tensor import Tensor


def devices() -> Section:
    """Every device that can be used: its name, memory, what it is."""
    rows, findings = [], []
    for entry in registry.loaded():
        for number in range(entry.count):
            name = f"{entry.kinds[0]}{number}"
            try:
                opened = resolve(name).open()
                total, free = opened.memory()
                features = ", ".join(opened.info.features)
                rows.append((name, opened.info.name, size(total), size(free), features))
            except TreadleError as error:
                rows.append((name, "cannot be opened", "-", "-", ""))
                fix = error.hint or f"hide it with {visible_devices(entry.name)[0]}"
                findings.append(Finding(f"{name}: {error.problem}", fix))
    return Section("devices", ("name", "what", "memory", "free", "features"), rows, findings)


def processor() -> Section:
    """Versions, the processor, what generated code may use."""
    rows = [
        ("Python", platform.python_version()),
        ("NumPy", np.__version__),
        ("system", platform.platform()),
    ]
    findings = []
    try:
        compiler = find_compiler(Options())
        rows += list(compiler.about().items()) if isinstance(compiler, MeasuringCompiler) else []
    except TreadleError as error:
        findings.append(Finding(f"programs cannot be compiled: {error.problem}", error.hint))
    return Section("machine", ("what", "found"), rows, findings)


def caches() -> Section:
    """Directories that Treadle writes to: size, files, who may write there."""
    rows, findings = [], []
    kept = (("compiled code", cache_directory()), ("hub and data", home_directory()))
    for title, folder in kept:
        files = [p.stat().st_size for p in folder.rglob("*") if p.is_file()]
        state = _access(folder)
        rows.append((title, str(folder), str(len(files)), size(sum(files)), state))
        if state.startswith("not"):
            what = f"{folder} ({title}) is {state}"
            findings.append(Finding(what, "mend its permissions, or name another directory"))
    code = cache_directory()
    for folder in (code, code / "objects"):
        if folder.is_dir() and not _is_private(folder):
            what = f"{folder} is open to others: compiled code is neither kept nor used there"
            findings.append(Finding(what, f"chmod 700 {folder}"))
    return Section("caches", ("what", "directory", "files", "size", "access"), rows, findings)


def _access(folder: Path) -> str:
    """Return whether a directory can be written, or made where it is missing."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not os.access(there, os.W_OK | os.X_OK):
        return "not writable"
    return "writable" if there == folder else "is made when needed"


def _is_private(folder: Path) -> bool:
    """Return whether it is ours and nobody else can write to it."""
    status = folder.stat()
    own = not callable(getattr(os, "getuid", None)) or status.st_uid == os.getuid()
    return own and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def environment() -> Section:
    """Variables that are set, and those that nobody reads."""
    known = {name: v for v in ALL for name in v.names}
    visible = [visible_devices(name)[0] for name in registry.entries()]
    rows, findings = [], [Finding(text, "correct or unset it") for text in mistakes()]
    for name, value in settings().items():
        if name in known:
            rows.append((name, value, known[name].meaning))
        elif name in visible:
            rows.append((name, value, "which devices are seen, and in which order"))
        else:
            near = difflib.get_close_matches(name, [*known, *visible], n=1)
            fix = f"did you mean {near[0]}?" if near else "unset it"
            findings.append(Finding(f"nobody reads {name}", fix, wrong=False))
    return Section("environment", ("variable", "value", "meaning"), rows, findings)


def trial() -> Section:
    """One op on every device, and one compiled program: do they give what they should?"""
    rows, findings = [], []
    names = ["cpux"]
    names += [
        f"{e.kinds[0]}{i}"
        for e in registry.loaded()
        if e.kinds and not e.serves("cpu")
        for i in range(e.count)
    ]
    for name in names:
        for title, run in (("one op", _eager), ("a program", _compiled)):
            try:
                problem = run(name)
            except Exception as error:  # whatever it is, it is what the user meets
                problem = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            rows.append((title, name, problem or "works"))
            if problem:
                fix = "treadle-backend-test tells more" if name != "cpux" else _cpu_advice()
                findings.append(Finding(f"{title} on {name}: {problem}", fix))
    return Section("trial", ("what", "device", "result"), rows, findings)


def _eager(device: str) -> str:
    x = Tensor([1.0, 2.0, 3.0], device=device)
    return _differs((x * 2 + 1).tolist(), [3.0, 5.0, 7.0])


def _compiled(device: str) -> str:
    x = Tensor([1.0, 2.0, 3.0], device=device)
    return _differs(jit_compile(lambda t: t * 2 + 1)(x).tolist(), [3.0, 5.0, 7.0])


def _differs(found: object, wanted: object) -> str:
    return "" if found == wanted else f"{found} instead of {wanted}"


def _cpu_advice() -> str:
    return f"{sys.executable} -m pip install --force-reinstall treadle llvmlite numpy"
