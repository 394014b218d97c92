"""OpenCL devices, and what may be assumed of them."""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from typing import Any

import pyopencl as cl

from treadle.backends.codegen.target import AVX2, AVX512, GENERIC, Target
from treadle.base.env import POCL_SPECIALIZATION
from treadle.base.errors import DeviceError
from treadle.runtime.api import DeviceInfo

# PoCL would compile every kernel a second time when it is first launched, for its work group's size
# and grid. Ours have groups of one item, and gain nothing by it.
if not POCL_SPECIALIZATION.get():
    POCL_SPECIALIZATION.set("0")

# Drivers start threads when they are asked for devices, and a fork leaves those behind.
_FORKED: list[int] = []
os.register_at_fork(after_in_child=lambda: _FORKED.append(os.getpid()))

GRAPHICS = Target(
    "opencl",
    vector_bytes=16,
    registers=64,
    fma=True,
    l1=16 << 10,
    l2=64 << 10,
    widest=16,
)
"""Narrow vectors and modest tiles; one thread has no cache of its own to speak of."""

_CARD_LANES = 64
"""Multiply-adds per cycle of a compute unit of a graphics card, which OpenCL does not tell."""
_MEMORY = 16e9
"""Bytes per second that the memory of a desktop processor gives; OpenCL does not tell."""


@functools.cache
def devices() -> tuple[tuple[cl.Device, ...], str]:
    """Devices that are alike, and a remark: why there are none, or what was left out."""
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        return (), f"no OpenCL platform is installed ({error}); see docs/opencl.md"
    found = [d for p in platforms for d in _of(p)]
    if not found:
        return (), "no OpenCL platform has a usable device; see docs/opencl.md"
    first = min(found, key=is_processor)
    alike = [
        d for d in found if d.platform == first.platform and is_processor(d) == is_processor(first)
    ]
    others = ", ".join(sorted({d.platform.name for d in found if d not in alike}))
    said = f"{first.platform.name}: {first.name}"
    return tuple(alike), f"{said}; left out: {others}" if others else said


def context_of(device: cl.Device) -> cl.Context:
    """The context of a device and those like it, which can copy from one another in it."""
    alike, _ = devices()
    return _context(alike if device in alike else (device,))


@functools.cache
def _context(devices: tuple[cl.Device, ...]) -> cl.Context:
    return cl.Context(list(devices))


def forget_contexts() -> None:
    """Make new ones for devices that are opened from now on: in those a device was lost."""
    _context.cache_clear()


def is_forked() -> bool:
    """Return whether drivers were loaded by a process that this one was forked from."""
    return bool(_FORKED)


def check_process() -> None:
    """Refuse a child process: the threads of its parent's driver are not there.

    Raises:
        DeviceError: this is one.
    """
    if _FORKED:
        raise DeviceError(
            "opencl",
            "the driver was loaded by the process that this one was forked from",
            hint="start workers with the method 'spawn', or use OpenCL in them alone",
        )


def _of(platform: cl.Platform) -> list[cl.Device]:
    try:
        found = platform.get_devices()
    except cl.Error:  # a driver without its hardware
        return []
    return [d for d in found if d.available and d.compiler_available and _is_full(d)]


def _is_full(device: cl.Device) -> bool:
    """Return whether it has 64-bit integers and the host's order of bytes."""
    return bool(device.endian_little and device.profile == "FULL_PROFILE")


def is_processor(device: cl.Device) -> bool:
    """Return whether its threads are those of a processor, with caches and stacks of their own."""
    return bool(device.type & cl.device_type.CPU)


def target_of(device: cl.Device, processor: bool) -> Target:
    """Return the target of a device: on a processor that of the host's own backend."""
    fused = bool(device.single_fp_config & cl.device_fp_config.FMA)
    if not processor:
        return replace(GRAPHICS, fma=fused)
    known = {64: AVX512, 32: AVX2}.get(4 * device.native_vector_width_float, GENERIC)
    return replace(known, name=f"opencl-{known.name}", fma=fused and known.fma, widest=16)


def features_of(device: cl.Device) -> tuple[str, ...]:
    """Capabilities that kernels may need."""
    found = []
    if device.double_fp_config:
        found.append("float64")
    if "cl_khr_fp16" in device.extensions.split():
        found.append("float16")
    return tuple(found)


def info_of(device: cl.Device) -> DeviceInfo:
    """The device as the framework shows it."""
    name = f"{device.name.strip()} ({device.platform.name.strip()})"
    lanes = max(int(device.native_vector_width_float), 1) if is_processor(device) else _CARD_LANES
    hertz = int(device.max_clock_frequency) * 1e6
    return DeviceInfo(
        name,
        memory=int(device.global_mem_size),
        bandwidth=_MEMORY if is_processor(device) else 0.0,
        flops=2.0 * lanes * int(device.max_compute_units) * hertz,
        features=features_of(device),
        units=int(device.max_compute_units),
    )


def versions_of(device: cl.Device) -> str:
    """Everything of the device that decides what a source becomes."""
    parts: list[Any] = [
        device.platform.name,
        device.platform.version,
        device.name,
        device.version,
        device.driver_version,
        cl.VERSION_TEXT,
    ]
    return "/".join(str(p).strip() for p in parts)
