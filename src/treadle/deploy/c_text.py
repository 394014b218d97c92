"""Pieces of C that libraries and WebAssembly modules are made of."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.base.array import Array


def integers(name: str, values: Array, item: str = "int64_t") -> str:
    """An array of integers; an empty one has a 0."""
    rows = [values[i : i + 16] for i in range(0, len(values), 16)]
    text = ",\n".join(", ".join(str(int(v)) for v in row) for row in rows)
    return f"static const {item} {name}[] = {{\n{text or '0'}\n}};"


def kernel_table(symbols: Sequence[str]) -> list[str]:
    """The kernels, by number."""
    return [
        *(f"extern void {s}(const int64_t *, int64_t, int64_t);" for s in symbols),
        "typedef void Kernel(const int64_t *, int64_t, int64_t);",
        f"static Kernel *const kernels[] = {{{', '.join(symbols)}}};",
    ]


__all__ = ["integers", "kernel_table"]
