"""Plans of the real cuDNN on a machine without a GPU; run as a program by `test_cudnn_plans.py`.

The library builds plans from a description of a device. Two things stand in its way here: it is
linked against the driver, and the frontend asks the runtime for the current device. For both there
are stand-ins, libraries of C functions that know nothing and load every kernel with success. So
what is checked is what the library says of our graphs, and its compiler's answer; nothing runs.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from treadle.backends.api import Support
from treadle.backends.cuda.libraries.cudnn import graphs, library
from treadle.backends.cuda.libraries.cudnn.attention import lower_attention
from treadle.backends.cuda.libraries.cudnn.calls import named
from treadle.backends.cuda.libraries.lowering import Offers, lower_product
from treadle.backends.cuda.renderer import TARGET
from treadle.backends.program import Lowered
from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.ops.attention import Attention, AttentionGrad
from treadle.ops.conv import Conv, ConvGradInput, ConvGradWeight

_LOADS = (
    "cuKernelGetFunction",
    "cuLibraryGetKernel",
    "cuLibraryLoadData",
    "cuLibraryLoadFromFile",
    "cuModuleGetFunction",
    "cuModuleLoadData",
)
_DONE = ("cuKernelSetAttribute", "cuLibraryUnload", "cuModuleUnload")
_NOT_THERE = (
    "cuCtxGetCurrent",
    "cuCtxGetLimit",
    "cuCtxPopCurrent",
    "cuCtxPushCurrent",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cuInit",
    "cuLaunchCooperativeKernel",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuLinkAddData",
    "cuLinkComplete",
    "cuLinkCreate",
    "cuLinkDestroy",
    "cuOccupancyMaxPotentialClusterSize",
    "cuStreamGetCtx",
    "cuTensorMapEncodeIm2col",
    "cuTensorMapEncodeTiled",
)
DRIVER = "\n".join(
    (
        *(f"int {name}(void **made) {{ *made = (void *)16; return 0; }}" for name in _LOADS),
        *(f"int {name}(void) {{ return 0; }}" for name in _DONE),
        *(f"int {name}(void) {{ return 100; }}" for name in _NOT_THERE),
        "int cuKernelGetAttribute(int *value) { *value = 0; return 0; }",
    )
)
RUNTIME = """
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaGetDeviceCount(int *count) { *count = 1; return 0; }
int cudaGetLastError(void) { return 0; }
int cudaRuntimeGetVersion(int *version) { *version = 13000; return 0; }
const char *cudaGetErrorString(int code) { return "no device"; }
int cudaDeviceGetAttribute(int *value, int which, int device) {
  *value = which == 75 ? 9 : 0;
  return 0;
}
"""
_SM_90 = {
    "cudaDeviceId": 0,
    "deviceName": "sm_90",
    "deviceVer": 900,
    "driverVer": 13000,
    "isTccDriver": 0,
    "l2CacheSize": 50 << 20,
    "maxBlockSize": [1024, 1024, 64],
    "maxCtasPerSM": 32,
    "maxGridSize": [2147483647, 65535, 65535],
    "maxRegistersPerSM": 65536,
    "maxSharedMemoryPerBlock": 48 << 10,
    "maxSharedMemoryPerBlockOptin": 227 << 10,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048,
    "memClockRateKHz": 2619000,
    "memoryBusWidth": 5120,
    "multiProcessorCount": 132,
    "oversizedSharedMemoryPerBlock": 0,
    "pciDeviceId": 0,
    "regsPerBlock": 65536,
    "reservedSharedMemoryPerBlock": 1024,
    "smClockRateKHz": 1980000,
    "supportCoopLaunch": 1,
    "totalGlobalMem": 80 << 30,
    "warpSize": 32,
}
_SM_80 = {
    "deviceName": "sm_80",
    "deviceVer": 800,
    "l2CacheSize": 40 << 20,
    "maxSharedMemoryPerBlockOptin": 163 << 10,
    "memClockRateKHz": 1215000,
    "multiProcessorCount": 108,
    "smClockRateKHz": 1410000,
}
DEVICES = {"sm_80": _SM_90 | _SM_80, "sm_90": _SM_90}
"""What the library asks about a GPU, for an A100 and an H100."""
MISSING = 77
"""The exit status where the library is not installed."""


def stand_ins(folder: Path) -> Path:
    """Compile both; the driver's is loaded, the path of the runtime's is returned."""
    made = {}
    for name, text in (("libcuda.so.1", DRIVER), ("libcudart.so.13", RUNTIME)):
        source, made[name] = folder / f"{name}.c", folder / name
        source.write_text(text)
        command = ["cc", "-w", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o"]
        subprocess.run([*command, str(made[name]), str(source)], check=True)
    ctypes.CDLL(str(made["libcuda.so.1"]), mode=ctypes.RTLD_GLOBAL)
    return made["libcudart.so.13"]


_ONE, _TWO, _WIDE = ((1, 1), (1, 1)), ((2, 2), (2, 2)), ((3, 3), (3, 3))
CONVOLUTIONS: dict[str, tuple[Any, ...]] = {
    "3x3": ((8, 64, 56, 56), (64, 64, 3, 3), ((1, 1), _ONE, (1, 1), 1)),
    "first": ((8, 3, 224, 224), (64, 3, 7, 7), ((2, 2), _WIDE, (1, 1), 1)),
    "pointwise": ((8, 256, 14, 14), (512, 256, 1, 1), ((2, 2), ((0, 0),) * 2, (1, 1), 1)),
    "depthwise": ((8, 96, 28, 28), (96, 1, 3, 3), ((2, 2), _ONE, (1, 1), 96)),
    "groups": ((8, 128, 14, 14), (128, 4, 3, 3), ((1, 1), _ONE, (1, 1), 32)),
    "dilated": ((2, 64, 33, 33), (64, 64, 3, 3), ((1, 1), _TWO, (2, 2), 1)),
    "uneven": ((8, 16, 28, 28), (32, 16, 3, 3), ((2, 2), ((0, 1), (0, 1)), (1, 1), 1)),
    "line": ((8, 80, 1000), (384, 80, 3), ((1,), ((1, 1),), (1,), 1)),
    "causal line": ((8, 64, 300), (64, 1, 4), ((1,), ((3, 0),), (1,), 64)),
    "volume": ((2, 16, 16, 56, 56), (32, 16, 3, 3, 3), ((1,) * 3, ((1, 1),) * 3, (1,) * 3, 1)),
    "odd": ((3, 5, 29, 28), (7, 5, 3, 2), ((2, 3), ((1, 0), (2, 1)), (2, 1), 1)),
}
"""x, weight, and attributes of convolutions, by what they are."""
ATTENTIONS: dict[str, tuple[Any, ...]] = {
    "heads": (((2, 12, 128, 64),) * 3, None, False),
    "causal": (((2, 12, 128, 64),) * 3, None, True),
    "wide": (((1, 4, 256, 128),) * 3, None, True),
    "few": (((2, 4, 100, 40), (2, 4, 77, 40), (2, 4, 77, 96)), None, False),
    "one query": (((2, 4, 1, 64), (2, 4, 100, 64), (2, 4, 100, 64)), None, False),
    "truth values": (((2, 4, 128, 64),) * 3, ((2, 1, 1, 128), dt.bool_), False),
    "bias": (((2, 4, 100, 64), (2, 4, 77, 64), (2, 4, 77, 64)), ((4, 100, 77), None), False),
    "bias and causal": (((2, 4, 128, 64),) * 3, ((128, 128), None), True),
    "no batch": (((128, 64),) * 3, None, False),
}
"""q, k and v, a mask, and whether it is causal."""


def emitted(accepts: Any) -> Iterator[tuple[str, Any]]:
    """The calls that lowering asks for, each with what it is from."""
    for dtype in (dt.float32, dt.float64, dt.float16, dt.bfloat16):
        for name, (x, weight, attributes) in CONVOLUTIONS.items():
            (made,) = Conv(*attributes).infer(TensorType(dtype, x), TensorType(dtype, weight))
            y = tuple(map(int, made.shape))
            for op, shapes in (
                (Conv(*attributes), (x, weight)),
                (ConvGradInput(*attributes, x[2:]), (y, weight)),
                (ConvGradWeight(*attributes, weight[2:]), (x, y)),
            ):
                types = [TensorType(dtype, s) for s in shapes]
                found = lower_product(op, types, TARGET, Offers(False, accepts))
                yield from _calls(f"{name}: {op.name} {dtype.name}", found)
    for dtype in (dt.float16, dt.bfloat16):
        for name, (shapes, mask, causal) in ATTENTIONS.items():
            types = [TensorType(dtype, s) for s in shapes]
            more = [TensorType(mask[1] or dtype, mask[0])] if mask else []
            (y_type,) = Attention(causal).infer(*types, *more)
            for op, given in (
                (Attention(causal), [*types, *more]),
                (AttentionGrad(causal), [*types, y_type, *more]),
            ):
                found = lower_attention(op, given, accepts, TARGET)
                yield from _calls(f"{name}: {op.name} {dtype.name}", found)


def _calls(name: str, found: Lowered | Support) -> Iterator[tuple[str, Any]]:
    if isinstance(found, Support):
        yield name, found
    else:
        yield from ((name, k) for k in (n.kernel for n in found.launches) if hasattr(k, "symbol"))


def planned(module: Any, call: Any, text: str) -> list[str]:
    """The plans that are built, with and without tensor cores for float32."""
    found = []
    for fast in (False, True) if call.symbol.count('"float32"') > 2 else (False,):
        place = {"device_property": module.create_device_properties(text)}
        graph = graphs.planned(module, call, fast, **place)
        graph.build_plans()
        found.append(graph.get_plan_name_at_index(graph._plan_index))
    return found


def bound(module: Any, call: Any, text: str, count: int) -> str:
    """What the frontend says to `count` addresses of a call's arrays, and no handle."""
    place = {"device_property": module.create_device_properties(text)}
    graph = graphs.planned(module, call, False, **place)
    graph.build_plans()
    try:
        graph.execute({i: 4096 * i for i in range(1, count + 1)}, 4096, handle=None)
    except Exception as error:
        return str(error)
    return ""


def main() -> int:
    """Print, as JSON, what became of every call on every device."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CUDNN_FRONTEND_CUDART_LIB_NAME"] = str(stand_ins(Path(folder)))
        if not library.version():
            return MISSING
        module = library.frontend()
        properties = [module.create_device_properties(json.dumps(d)) for d in DEVICES.values()]
        texts = tuple(p.serialize() for p in properties)
        report: dict[str, Any] = {"plans": [], "refused": []}
        for name, call in emitted(lambda call: library._accepted(call, texts)):
            if isinstance(call, Support):
                report["refused"].append([name, call.message])
                continue
            for device, text in zip(DEVICES, texts, strict=True):
                report["plans"].append([name, device, call.name, planned(module, call, text)])
        arrays = len(named(call))
        report["bound"] = [bound(module, call, texts[1], n) for n in (arrays, arrays - 1)]
        print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
