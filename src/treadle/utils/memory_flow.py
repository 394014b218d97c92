"""Memory over time as a picture: the bytes that are held, and the largest arrays as bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, CURVE, BAR, MARGIN = 960, 220, 12, 60
MOST_BARS = 60
COLORS = ("#3b6fb6", "#5a9e6f", "#c98a3d", "#a85a86", "#6d6fa8", "#7a8a99")


@dataclass(slots=True)
class Block:
    """An array that an op made: bytes, and when it came and went, in microseconds."""

    name: str
    nbytes: int
    born: float
    gone: float | None = None


def memory_flow(blocks: Sequence[Block]) -> str:
    """An SVG of arrays over time; times in microseconds."""
    end = max([b.gone or b.born for b in blocks], default=0.0) or 1.0
    points, peak = _curve(blocks, end)
    bars = sorted(blocks, key=lambda b: -b.nbytes)[:MOST_BARS]
    bars = sorted(bars, key=lambda b: b.born)
    height = CURVE + MARGIN * 2 + BAR * len(bars)
    scale = (WIDTH - 2 * MARGIN) / end

    def x(t: float) -> float:
        return MARGIN + t * scale

    def y(held: float) -> float:
        return MARGIN + CURVE - CURVE * held / (peak or 1)

    path = " ".join(f"{x(t):.1f},{y(held):.1f}" for t, held in points)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{MARGIN}" y="{MARGIN - 24}" font-size="14">arrays made by ops: peak '
        f"{_size(peak)}, {len(blocks)} arrays, {end / 1e3:.1f} ms</text>",
        f'<polyline points="{x(0):.1f},{y(0):.1f} {path} {x(end):.1f},{y(0):.1f}" '
        'fill="#dbe6f3" stroke="#3b6fb6"/>',
        f'<text x="4" y="{y(peak) + 4:.1f}">{_size(peak)}</text>',
        f'<text x="4" y="{y(0) + 4:.1f}">0</text>',
    ]
    for row, block in enumerate(bars):
        top = MARGIN + CURVE + 24 + row * BAR
        gone = end if block.gone is None else block.gone
        color = COLORS[sum(map(ord, block.name)) % len(COLORS)]
        text = escape(f"{block.name} {_size(block.nbytes)}")
        parts.append(
            f'<rect x="{x(block.born):.1f}" y="{top}" height="{BAR - 2}" fill="{color}" '
            f'width="{max(1.0, (gone - block.born) * scale):.1f}"><title>{text}</title></rect>'
        )
        late = block.born > 0.8 * end
        at, anchor = (x(block.born) - 3, "end") if late else (x(block.born) + 3, "start")
        parts.append(f'<text x="{at:.1f}" y="{top + BAR - 3}" text-anchor="{anchor}">{text}</text>')
    parts.append("</svg>")
    return "\n".join(parts)


def _curve(blocks: Sequence[Block], end: float) -> tuple[list[tuple[float, int]], int]:
    """Bytes held after each change, and the most."""
    changes = [(b.born, b.nbytes) for b in blocks]
    changes += [(b.gone, -b.nbytes) for b in blocks if b.gone is not None]
    held = peak = 0
    points: list[tuple[float, int]] = [(0.0, 0)]
    for at, change in sorted(changes):
        points.append((at, held))
        held += change
        peak = max(peak, held)
        points.append((at, held))
    points.append((end, held))
    return points, peak


def _size(nbytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} GiB"
