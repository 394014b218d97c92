"""Installed parts: backends, compilers, packages of extras."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess

from treadle.backends import registry
from treadle.base.env import C_COMPILER, CXX_COMPILER
from treadle.cli.section import Finding, Section

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_FOR_DEVELOPERS = ("dev", "torch", "bench")


def backends() -> Section:
    """Every backend, how far it came, and what went wrong."""
    header = ("name", "package", "version", "protocol", "state", "devices", "tiers", "ops")
    rows, findings, notes = [], [], []
    for row in registry.table():
        cells = row | {"package": row["distribution"]}
        rows.append(tuple(cells[key] for key in header))
        detail = row["detail"].partition("\n")[0]
        notes += [f"{row['name']}: {detail}"] if detail else []
        entry = registry.entries()[row["name"]]
        if row["state"] == "failed":
            fix = getattr(entry.error, "hint", "") or f"repair or remove {row['distribution']}"
            if row["name"] not in registry.BUILT_IN:
                fix += f"; TREADLE_BACKENDS without {row['name']} leaves it out"
            findings.append(Finding(f"the backend {row['name']} failed: {detail}", fix))
        elif row["state"] == "loaded" and entry.remark:
            findings.append(Finding(f"the backend {row['name']}: {entry.remark}", "", wrong=False))
    return Section("backends", header, rows, findings, notes)


def compilers() -> Section:
    """List what generates and links code: LLVM for kernels, C compilers for custom ops."""
    rows, findings = [], []
    llvmlite = _version("llvmlite")
    rows.append(("llvmlite", llvmlite or "missing", "kernels and programs"))
    if not llvmlite:
        findings.append(
            Finding("llvmlite is missing: everything runs with NumPy", "pip install llvmlite")
        )
    entry = registry.for_kind("gpu")
    versions: dict[str, int] = getattr(entry.backend, "versions", {}) if entry else {}
    rows += [(name, str(number), "NVIDIA GPUs") for name, number in versions.items() if number]
    linker = shutil.which("ld") or shutil.which("ld.lld")
    rows.append(("linker", linker or "missing", "warm starts without LLVM"))
    if not linker:
        text = "no linker: programs in the cache still need LLVM to be loaded"
        findings.append(Finding(text, "install binutils", wrong=False))
    for variable, title in ((C_COMPILER, "C compiler"), (CXX_COMPILER, "C++ compiler")):
        command = variable.get()
        path = shutil.which(command)
        rows.append((title, _banner(path) if path else f"{command}: missing", "custom ops"))
        if path is None and variable.source():
            text = f"{variable.source()}={command!r} is not a program"
            findings.append(Finding(text, "install it, or unset the variable"))
    return Section("compilers", ("what", "found", "for"), rows, findings)


def _banner(path: str) -> str:
    """A compiler's path and the first line it says of itself."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{path}: {error}"
    return f"{path}: {(done.stdout or done.stderr).strip().partition(chr(10))[0]}"


def extras() -> Section:
    """Optional packages, by extra, with the command that installs what is missing."""
    rows = []
    for extra, names in sorted(optional().items()):
        if extra in _FOR_DEVELOPERS:
            continue
        found = {name: _version(name) for name in names}
        there = ", ".join(f"{name} {version}" for name, version in found.items() if version)
        missing = ", ".join(name for name, version in found.items() if not version)
        rows.append((extra, there or "-", missing or "-", f"treadle[{extra}]" if missing else ""))
    findings = []
    if not rows:
        findings.append(
            Finding(
                "treadle's own metadata is missing: it runs from a source tree",
                "pip install -e . in the source tree",
                wrong=False,
            )
        )
    lacking = next((row[3] for row in rows if row[3]), "")
    notes = [f"install one by its name, as in pip install '{lacking}'"] if lacking else []
    header = ("extra", "installed", "missing", "to install")
    return Section("extras", header, rows, findings, notes)


def optional() -> dict[str, list[str]]:
    """Names of packages by extra, as this distribution's metadata has them."""
    try:
        required = importlib.metadata.requires("treadle") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    found: dict[str, list[str]] = {}
    for text in required:
        extra, name = _EXTRA.search(text), _NAME.match(text)
        if extra and name and name[0] != "treadle":
            found.setdefault(extra[1], []).append(name[0])
    return found


def _version(name: str) -> str:
    """A distribution's version, "" where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
