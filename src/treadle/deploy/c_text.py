"""Pieces of C that libraries and WebAssembly modules are made of."""

from __future__ import annotations

import json
from collections.abc import Sequence

from treadle.base.array import Array
from treadle.engine.package.native_part import NativeStop


def integers(name: str, values: Array, kind: str = "static const", item: str = "int64_t") -> str:
    """An array of integers; an empty one has a 0."""
    rows = [values[i : i + 16] for i in range(0, len(values), 16)]
    text = ",\n".join(", ".join(str(int(v)) for v in row) for row in rows)
    return f"{kind} {item} {name}[] = {{\n{text or '0'}\n}};"


def kernel_table(symbols: Sequence[str]) -> list[str]:
    """The kernels, by number."""
    return [
        *(f"extern void {s}(const int64_t *, int64_t, int64_t);" for s in symbols),
        "typedef void Kernel(const int64_t *, int64_t, int64_t);",
        f"static Kernel *const kernels[] = {{{', '.join(symbols)}}};",
    ]


def stop_table(stops: Sequence[NativeStop]) -> str:
    """Return the table of places where the program may stop, and what to say then."""
    rows = [f"  {{{s.step}, {s.base}, {s.offset}, {json.dumps(s.op)}, {s.high}}}," for s in stops]
    body = "\n".join(rows) or '  {-1, 0, 0, "", 0},'
    kind = "struct { int64_t step, base, offset; const char *op; int64_t extent; }"
    return f"static const {kind} stops[] = {{\n{body}\n}};"


__all__ = ["integers", "kernel_table", "stop_table"]
