"""The host's processor: its `Target`, its cores, its caches.

On Linux all of it is read from /proc and /sys, so that a warm start needs no LLVM; elsewhere LLVM
is asked.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import platform
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path, PurePosixPath

from treadle.backends.codegen.target import (
    AVX2,
    AVX512,
    GENERIC,
    NEON,
    NEON_DOT,
    NEON_SDOT,
    TARGETS,
    Target,
)
from treadle.base.env import BFLOAT16, CPU_TARGET
from treadle.base.errors import DeviceError
from treadle.base.process import RUNTIME

_CPUINFO = Path("/proc/cpuinfo")
_CPUS = Path("/sys/devices/system/cpu")
_CGROUP = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")

_AVX2 = frozenset(("avx2", "fma", "f16c", "bmi1", "bmi2", "movbe"))
_AVX512 = _AVX2 | {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512cd"}
_ARM_DOTS = frozenset(("bf16", "i8mm"))
_MATRICES = frozenset(("amx_tile", "amx_bf16", "amx_int8"))
_VECTORS = (
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "asimd",
    "asimdhp",
    "asimddp",
    "sve",
)
_OPTIONAL = {
    "avx512_vnni": "+avx512vnni",
    "avx512_bf16": "+avx512bf16",
    "avx_vnni": "+avxvnni",
    "amx_tile": "+amx-tile",
    "amx_bf16": "+amx-bf16",
    "amx_int8": "+amx-int8",
    "bf16": "+bf16",
    "i8mm": "+i8mm",
    "asimddp": "+dotprod",
}
"""Features that kernels use where the processor has them: LLVM's flags by the names of
/proc/cpuinfo."""

_DESIGNS = (
    ("znver4", "AuthenticAMD", "25", (*range(0x10, 0x20), *range(0x60, 0x80), *range(0xA0, 0xB0))),
)
"""Microarchitectures that records are shipped for: vendor, family and models by /proc/cpuinfo.

Source: LLVM, TargetParser/Host.cpp, `getAMDProcessorTypeAndSubtype`.
"""


@RUNTIME.cached("environment")
def host_target() -> Target:
    """The best target of the table that this processor can run, or the one the user named.

    Raises:
        DeviceError: `TREADLE_CPU_TARGET` names no target, or one this processor cannot run, or
            `TREADLE_BFLOAT16` is neither "fast" nor "exact".
    """
    found = flags() - ({"avx512_bf16", "bf16"} if _is_exact() else set())
    best = _with_caches(target_for(found, platform.machine()))
    wanted = CPU_TARGET.get()
    if not wanted or wanted == best.name:
        return best
    possible = _lesser(best)
    if wanted not in possible:
        raise DeviceError(
            "cpu",
            f"{CPU_TARGET.source()}={wanted!r} cannot run on this processor",
            hint=f"one of {', '.join(possible)}",
        )
    return _with_caches(TARGETS[wanted])


def _is_exact() -> bool:
    """Return whether the user asked for products of bfloat16 that are made of those of float32."""
    wanted = BFLOAT16.get()
    if wanted not in ("fast", "exact"):
        raise DeviceError("cpu", f"{BFLOAT16.source()}={wanted!r}", hint="fast or exact")
    return wanted == "exact"


def target_for(features: frozenset[str], machine: str) -> Target:
    """The target of a processor with these features, as /proc/cpuinfo spells them."""
    if machine in ("aarch64", "arm64"):
        present = sorted(_ARM_DOTS & features)
        signed = "asimddp" in features and "i8mm" not in present
        present += ["asimddp"] * signed
        return dataclasses.replace(
            NEON_DOT if _ARM_DOTS & features else NEON_SDOT if signed else NEON,
            triple="",
            features=tuple(_OPTIONAL[name] for name in present),
            dot_signed=signed,
            dot_int8="i8mm" in present,
            dot_bfloat16="bf16" in present,
        )
    if machine not in ("x86_64", "AMD64"):
        return GENERIC
    if features >= _AVX512:
        extra = ["avx512_vnni", "avx512_bf16"]
        extra += sorted(_MATRICES) if features >= _MATRICES else []
        found = tuple(_OPTIONAL[name] for name in extra if name in features)
        return dataclasses.replace(
            AVX512,
            features=found,
            dot_int8="+avx512vnni" in found,
            dot_bfloat16="+avx512bf16" in found,
            matrices="+amx-tile" in found,
        )
    if features >= _AVX2:
        vnni = "avx_vnni" in features
        return dataclasses.replace(AVX2, features=("+avxvnni",) if vnni else (), dot_int8=vnni)
    return GENERIC


def required(target: Target) -> tuple[str, ...]:
    """Features that code for a target uses, sorted, as /proc/cpuinfo spells them."""
    base = {AVX2.name: _AVX2, AVX512.name: _AVX512}.get(target.name, frozenset())
    optional = {name for name, flag in _OPTIONAL.items() if flag in target.features}
    return tuple(sorted(base | optional))


def _lesser(best: Target) -> list[str]:
    """Names of the targets a processor can run whose best one is this."""
    for ladder in (["generic", "avx2", "avx512"], ["neon", "neon-sdot", "neon-dot"]):
        if best.name in ladder:
            return ladder[: ladder.index(best.name) + 1]
    return [best.name]


@RUNTIME.cached("environment")
def flags() -> frozenset[str]:
    """Features of the processor that the system also supports, spelled as in /proc/cpuinfo.

    Registers for matrices count if the system lets this process use them, which it is asked for.
    """
    core = _first_core()
    if core is None:
        from treadle.backends.cpu.llvm_compile import host_features

        return frozenset(host_features())
    found = frozenset(core.get("flags", core.get("Features", "")).split())
    return found if _may_use_matrices(found) else found - _MATRICES


@RUNTIME.cached("environment")
def _first_core() -> dict[str, str] | None:
    """Facts of the first core by /proc/cpuinfo's names; None where Linux tells none."""
    found = {}
    try:
        with _CPUINFO.open() as lines:
            for line in takewhile(str.strip, lines):
                name, _, value = line.partition(":")
                found[name.strip()] = value.strip()
    except OSError:
        return None
    return found


def _may_use_matrices(features: frozenset[str]) -> bool:
    """Return whether Linux grants the registers, whose state is too large to be saved for
    everybody.

    Source: "Using XSTATE features in user space applications", the Linux kernel's documentation.
    A granted request holds for all threads and for processes that are forked.
    """
    if not features >= _MATRICES or platform.machine() != "x86_64":
        return False
    arch_prctl, request, matrix_data = 158, 0x1023, 18
    return bool(ctypes.CDLL(None).syscall(arch_prctl, request, matrix_data) == 0)


@RUNTIME.cached("environment")
def processor() -> str:
    """The processor's name for people; its architecture where the system does not tell."""
    named = (_first_core() or {}).get("model name")
    return named or platform.processor() or platform.machine()


@RUNTIME.cached("environment")
def microarchitecture() -> str:
    """LLVM's name of the processor's design if one of `_DESIGNS`, else an empty text."""
    core = _first_core() or {}
    vendor, family, model = (core.get(k, "") for k in ("vendor_id", "cpu family", "model"))
    for name, maker, of_family, models in _DESIGNS:
        if (vendor, family) == (maker, of_family) and any(model == str(m) for m in models):
            return name
    return ""


def _with_caches(target: Target) -> Target:
    sizes = _cache_sizes()
    return dataclasses.replace(target, l1=sizes.get(1, target.l1), l2=sizes.get(2, target.l2))


def _cache_sizes() -> dict[int, int]:
    """Bytes of the first core's data caches by level; what cannot be read is left out."""
    found: dict[int, int] = {}
    for index in range(8):
        folder = _CPUS / "cpu0" / "cache" / f"index{index}"
        try:
            kind = (folder / "type").read_text().strip()
            level = int((folder / "level").read_text())
            size = (folder / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if kind != "Instruction" and size.endswith("K"):
            found[level] = int(size[:-1]) << 10
    return found


def vector_features() -> str:
    """The processor's instructions on vectors and tiles, for people."""
    found = flags()
    wide = sorted(name for name in found if name.startswith(("avx512", "avx10", "amx")))
    return " ".join([*(name for name in _VECTORS if name in found), *wide]) or "none are known"


def cores() -> tuple[int, int]:
    """Return the numbers of cores and hardware threads of the machine."""
    threads = os.cpu_count() or 1
    return len({_siblings(cpu) for cpu in range(threads)}), threads


def last_cache() -> int:
    """Bytes of the largest data cache; 0 where that is not told."""
    return max(_cache_sizes().values(), default=0)


# -- cores -------------------------------------------------------------------------------------


def available_cores() -> int:
    """Cores this process may use: its affinity mask, one thread per core, and its quota."""
    if sys.platform == "linux":
        allowed = os.sched_getaffinity(0)
        cores = len({_siblings(cpu) for cpu in allowed})
    else:
        cores = os.cpu_count() or 1
    return max(1, min([cores, *_quotas()]))


def _siblings(cpu: int) -> str:
    """Return the name of a hardware thread's core; the thread itself where that is not told."""
    try:
        return (_CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _quotas() -> Iterator[int]:
    """Cores that limits of control groups grant, of this process's groups and those around them.

    A part of a core counts as one: two threads that share 1.5 cores do more than one.
    """
    for group in dict.fromkeys(_groups()):
        try:
            quota, period = (group / "cpu.max").read_text().split()
            yield -(-int(quota) // int(period))
        except (OSError, ValueError):  # no such file, or "max"
            pass
        try:
            quota = (group / "cpu.cfs_quota_us").read_text()
            period = (group / "cpu.cfs_period_us").read_text()
            if int(quota) > 0:
                yield -(-int(quota) // int(period))
        except (OSError, ValueError):
            pass


def _groups() -> Iterator[Path]:
    """Folders of this process's control groups, of version 2 and 1, up to the topmost ones.

    Sources: "Control Group v2" and "CPUSETS" of the Linux kernel's documentation, cgroups(7). In a
    container the path may be that of the machine outside: then only the topmost folder is there,
    which is the container's own.
    """
    try:
        lines = _MEMBERSHIP.read_text().splitlines()
    except OSError:
        lines = ["0::/", "1:cpu:/"]
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            roots = [_CGROUP, _CGROUP / "unified"]
        elif "cpu" in controllers.split(","):
            roots = [_CGROUP / "cpu"]
        else:
            continue
        inside = PurePosixPath(path.strip().lstrip("/"))
        for folder in (inside, *inside.parents):
            if ".." not in folder.parts:
                yield from (root / folder for root in roots)


def memory_bytes() -> int:
    """Physical memory of the machine; 8 GiB where the system does not tell."""
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return 8 << 30
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
