"""Targets: what a kernel may assume of the processor it runs on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from treadle.backends.program import MapLayout
from treadle.base.dtype import DType


@dataclass(frozen=True, slots=True)
class Target:
    """One feature set, with the widths and sizes that schedules depend on.

    Attributes:
        name: short name, shown in reports and part of every cache key.
        triple: LLVM's target triple; empty for the host's own.
        cpu: LLVM's processor name; empty for none in particular.
        features: LLVM's feature flags, such as "+avx2".
        vector_bytes: bytes of a vector register.
        registers: number of vector registers.
        fma: whether multiply-add is one instruction (elsewhere the printers split it).
        dot_int8: whether `dot` of bytes is an instruction (VNNI).
        dot_signed: whether `dot` of signed bytes alone is one (Armv8.2's dot products).
        dot_bfloat16: whether `dot` of bfloat16 is an instruction.
        matrices: whether there are registers for matrices of bytes, and of bfloat16 where
            `dot_bfloat16` is set, too (AMX).
        l1, l2: bytes of the caches of one core.
        widest: lanes of the widest vectors that the language of kernels has.
        fine: whether items are threads of a GPU: the more the better, each with little scratch.
        preferred: names of the `layouts` that programs use where nobody asks for others.
    """

    name: str
    triple: str = ""
    cpu: str = ""
    features: tuple[str, ...] = ()
    vector_bytes: int = 16
    registers: int = 16
    fma: bool = False
    dot_int8: bool = False
    dot_signed: bool = False
    dot_bfloat16: bool = False
    matrices: bool = False
    l1: int = 32 << 10
    l2: int = 512 << 10
    widest: int = 64
    fine: bool = False
    preferred: tuple[str, ...] = ("channels-last",)

    @property
    def is_arm(self) -> bool:
        """True where its instructions are those of AArch64."""
        return self.name.startswith(NEON.name)

    @property
    def is_card(self) -> bool:
        """True where items are threads of a graphics card."""
        return self.fine or self.name == "opencl"

    @property
    def layouts(self) -> tuple[MapLayout, ...]:
        """Orders of the axes of maps that kernels take besides row-major, with their speed.

        A tile has two vectors of channels, or one (of 64 bytes: or half of one). The speeds of
        blocked ones were measured with AVX2.
        """
        columns = self.vector_bytes // 2
        known = (
            MapLayout(
                "channels-last",
                columns=columns,
                narrow=min(8, columns // 2),
                bfloat16=(12.0 if self.matrices else 1.9) if self.dot_bfloat16 else 1.0,
            ),
            MapLayout("blocked", 16, dense=0.98, depthwise=1.15, windows=0.7),
            *(
                MapLayout(f"blocked-{n}", n, dense=0.98, depthwise=1.15, windows=0.7)
                for n in BLOCKS
            ),
        )
        return tuple(replace(x, preferred=x.name in self.preferred) for x in known)

    def lanes(self, dtype: DType) -> int:
        """Lanes of a vector of this element type (float16 and bfloat16 count as float32)."""
        size = 4 if dtype.is_float and dtype.itemsize == 2 else dtype.itemsize
        return self.vector_bytes // size


BLOCKS = (4, 8, 32, 64)
"""Channels of blocks that are no wider or narrower for being faster: for who asks for them."""

GENERIC = Target("generic")
AVX2 = Target(
    "avx2",
    cpu="x86-64-v3",
    vector_bytes=32,
    registers=16,
    fma=True,
)
AVX512 = Target(
    "avx512",
    cpu="x86-64-v4",
    vector_bytes=64,
    registers=32,
    fma=True,
    l1=48 << 10,
    l2=1 << 20,
)
NEON = Target(
    "neon",
    triple="aarch64-unknown-linux-gnu",
    cpu="generic",
    vector_bytes=16,
    registers=32,
    fma=True,
    l1=64 << 10,
)

NEON_SDOT = replace(NEON, name="neon-sdot", features=("+dotprod",), dot_signed=True)
"""With sums of four products of signed bytes (Armv8.2; Cortex-A76, Neoverse N1, Apple M1)."""

NEON_DOT = replace(
    NEON,
    name="neon-dot",
    features=("+bf16", "+i8mm"),
    dot_int8=True,
    dot_bfloat16=True,
)
"""With sums of four products of bytes and of two of bfloat16 (Armv8.6; Neoverse V1, N2, V2)."""

WASM = Target(
    "wasm",
    triple="wasm32-unknown-unknown",
    cpu="generic",
    features=("+simd128", "+bulk-memory"),
    vector_bytes=16,
    registers=16,
)
"""WebAssembly with vectors of 128 bits, which every browser has since 2023; addresses have 32."""

TARGETS = {t.name: t for t in (GENERIC, AVX2, AVX512, NEON, NEON_SDOT, NEON_DOT, WASM)}
TRIPLES = {
    "linux": "{}-unknown-linux-gnu",
    "linux-musl": "{}-unknown-linux-musl",
    "macos": "{}-apple-macosx11.0.0",
    "windows": "{}-pc-windows-gnu",
}
"""LLVM's triples of a processor's architecture on the systems that libraries can be written for."""
