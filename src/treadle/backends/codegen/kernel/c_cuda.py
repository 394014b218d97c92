"""Kernels as CUDA C++: one thread per work item, vectors in registers, no headers.

The source needs nothing but the compiler NVRTC, whose options must forbid contraction
(`--fmad=false`): what the language fuses, the text fuses. The same text is C++ for a host where a
few words are defined before it (`__global__`, `threadIdx`, ...), which is how it is tested.

Small private arrays are local memory of a thread. Larger ones lie in scratch memory that the
launch passes, a piece for each thread that is started, since local memory is set aside for as many
threads as the device could hold at a time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from treadle.backends.codegen.kernel.c import c_source
from treadle.backends.codegen.kernel.c_dialect import Dialect
from treadle.backends.codegen.kernel.c_instructions import HANDLERS, result_of
from treadle.backends.codegen.kernel.c_printer import Printer
from treadle.backends.codegen.kernel.c_values import PRELUDE, arithmetic, c_type
from treadle.backends.codegen.kernel.ir import Instruction, KernelModule
from treadle.backends.codegen.kernel.language import InstructionOperand, KernelError, Type
from treadle.backends.codegen.target import Target
from treadle.base.dtype import DType

LOCAL = 2 << 10
"""Bytes up to which a private array stays in local memory."""
_ALIGNED = 64
_NOTE = "// scratch"
_NOTES = re.compile(rf"^{_NOTE} (\w+) (\d+)$", re.MULTILINE)
_C_PRELUDE = PRELUDE.partition("/*")
_FUNCTIONS = _C_PRELUDE[1] + _C_PRELUDE[2]
_WORDS = """\
#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
#define INT64_C(x) x##LL
#define UINT64_C(x) x##ULL
#define NAN __int_as_float(0x7fffffff)
#define INFINITY __int_as_float(0x7f800000)
#else
#include <math.h>
#include <stdint.h>
#include <string.h>
#endif
"""
# One instruction each; they round as the functions they stand for, but for the bits of NaN.
_BFLOAT16 = """\
#if __CUDA_ARCH__ >= 800
static __device__ inline uint16_t to_bfloat16(float x) {
  uint16_t h; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x)); return h;
}
#else
"""
_FLOAT16 = """\
#endif
#ifdef __CUDA_ARCH__
static __device__ inline float from_float16(uint16_t h) {
  float x; asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h)); return x;
}
static __device__ inline uint16_t to_float16(float x) {
  uint16_t h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x)); return h;
}
#else
"""


def cuda_source(kernels: Sequence[KernelModule], target: Target) -> str:
    """A translation unit that defines an `extern "C" __global__` function for every kernel.

    Its parameters are those of the kernel, then three 64-bit integers: the number of work items,
    the address of the scratch memory, and its bytes per thread (see `scratch_bytes`).

    Raises:
        KernelError: a kernel is not of the language.
    """
    return c_source(kernels, target, CudaDialect(), _HANDLERS)


def scratch_bytes(source: str) -> Mapping[str, int]:
    """Bytes of scratch memory that a thread of each kernel needs; those without are left out."""
    return {name: int(count) for name, count in _NOTES.findall(source)}


def _prelude() -> str:
    """The C prelude, with conversions of 16-bit floats by hardware where there is some."""
    functions = _FUNCTIONS.replace("static inline", "static __device__ inline")
    for hardware, name in ((_BFLOAT16, "uint16_t to_bfloat16"), (_FLOAT16, "float from_float16")):
        before, declared, rest = functions.partition(f"static __device__ inline {name}")
        functions = f"{before}{hardware}{declared}{rest}"
    return f"{_WORDS}\n{functions}#endif\n{_SCRATCH}"


_SCRATCH = """
/* Where this thread's part of the scratch memory begins; the entry sets it. */
static __shared__ char *scratch_memory;
static __shared__ int64_t scratch_pitch;
static __device__ inline int64_t thread_number() {
  return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}
static __device__ inline char *scratch(int64_t offset) {
  return scratch_memory + thread_number() * scratch_pitch + offset;
}
"""


class CudaDialect(Dialect):
    """CUDA C++ of one translation unit."""

    name = "CUDA C++"
    prelude = _prelude()
    # Inlined everywhere, the functions of a large kernel would take minutes to compile.
    function = "static __device__ __noinline__ void"
    body = "static __device__ __forceinline__ void"
    unroll = "#pragma unroll"

    def __init__(self) -> None:
        self._scratch = 0

    def definition(self, type_: Type) -> str:
        """A struct, which the compiler takes apart into registers."""
        return f"struct {self.vector(type_)} {{ {c_type(type_.dtype)} v[{type_.lanes}]; }};"

    def entry(self, symbol: str, body: str, parameters: Sequence[InstructionOperand]) -> list[str]:
        """Return the entry: a thread does item after item, as many apart as there are threads."""
        given = [
            f"{self.pointer(p.dtype)}p{i}" if p.type.pointer else f"int64_t p{i}"
            for i, p in enumerate(parameters)
        ]
        given += ["int64_t items", "int64_t memory", "int64_t pitch"]
        passed = [f"p{i}" for i in range(len(parameters))] + ["item", "item + 1"]
        lines = [f'extern "C" __global__ void {symbol}({", ".join(given)}) {{']
        if self._scratch:
            lines.insert(0, f"{_NOTE} {symbol} {self._scratch}")
            # All threads of a block write the same.
            lines.append("  scratch_memory = (char *)memory; scratch_pitch = pitch;")
            lines.append("  __syncthreads();")
        self._scratch = 0
        return [
            *lines,
            "  const int64_t threads = (int64_t)gridDim.x * blockDim.x;",
            "  for (int64_t item = thread_number(); item < items; item += threads)",
            f"    {body}({', '.join(passed)});",
            "}",
            "",
        ]

    def stack(self, dtype: DType, declared: str, name: str, count: int) -> list[str]:
        """Local memory, or a piece of scratch memory that no other array of the kernel shares."""
        nbytes, own = count * dtype.itemsize, f"{name}_memory"
        if nbytes <= LOCAL:
            array = f"alignas({_ALIGNED}) {c_type(dtype)} {own}[{count}];"
            return [array, f"{declared} = {own};"]
        offset = self._scratch
        self._scratch += -(-nbytes // _ALIGNED) * _ALIGNED
        return [f"{declared} = ({self.pointer(dtype)})scratch({offset});"]

    def load(self, name: str, type_: Type, place: str) -> str:
        """Element by element: an access of 16 bytes would have to be aligned to as many."""
        if type_.lanes == 1:
            return f"{name} = *({place});"
        return " ".join(f"{name}.v[{i}] = ({place})[{i}];" for i in range(type_.lanes))


def _reduce(p: Printer, instruction: Instruction) -> None:
    """Halves, written out: a loop over lanes would keep them in memory."""
    (x,) = instruction.arguments
    if x.lanes & (x.lanes - 1):
        raise KernelError(f"reduce of {x.type}, lanes are not a power of two")
    result, text = result_of(instruction), p.whole(x)
    p.line(f"{p.declare(result)};")
    p.line(f"{{ {p.type(x.type)} r = {text};")
    half = x.lanes // 2
    while half:
        for i in range(half):
            both = arithmetic(instruction.detail[0], x.dtype, (f"r.v[{i}]", f"r.v[{i + half}]"))
            p.line(f"  r.v[{i}] = {both};")
        half //= 2
    p.line(f"  {p.whole(result)} = r.v[0]; }}")


_HANDLERS = {**HANDLERS, "reduce": _reduce}
