"""Blocks of a contraction: as the model has them, or as they were measured to be best."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product

from treadle.backends.codegen import tuned
from treadle.backends.codegen.contraction.shared.problem import ContractionProblem
from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.target import Target

_NAMES = ("depth", "width", "height")


@dataclass(frozen=True, slots=True)
class TileBlocks:
    """Terms per step, panels per item and rows per item."""

    depth: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class ScratchSizes:
    """Elements of scratch memory: for panels of b (none where they lie ready), and for sums."""

    panels: int
    sums: int
    packed: bool

    def holds(self, blocks: TileBlocks, problem: ContractionProblem, tile: Tile) -> bool:
        """Return whether blocks are of this problem and their data finds room."""
        most = (problem.k, -(-problem.n // tile.width), problem.m)
        sizes = (blocks.depth, blocks.width, blocks.height)
        if not all(1 <= size <= limit for size, limit in zip(sizes, most, strict=True)):
            return False
        split = blocks.depth < problem.k
        panel = blocks.width * tile.width
        if not self.packed and panel * blocks.depth > self.panels:
            return False
        return not split or panel * blocks.height <= self.sums


def best_blocks(
    model: TileBlocks, problem: ContractionProblem, tile: Tile, target: Target, room: ScratchSizes
) -> TileBlocks:
    """The measured blocks of a problem, if there are any that fit, else those of the model."""

    def offers() -> list[tuned.Choice]:
        return [asdict(b) for b in _alternatives(model, problem, tile, room)]

    found = tuned.choice(target, _key(problem, tile, room), offers)
    if found is None or sorted(found) != sorted(_NAMES):
        return model
    blocks = TileBlocks(**found)
    return blocks if room.holds(blocks, problem, tile) else model


def _key(problem: ContractionProblem, tile: Tile, room: ScratchSizes) -> str:
    """Return the facts that decide how fast blocks are; what follows the sums hardly does."""
    a, b = problem.a, problem.b
    lies = ["patches"] if problem.patches else [f"b{b.row == 1:d}{b.column == 1:d}"]
    lies += ["packed"] * room.packed + ["table"] * (a.table or problem.tables)
    sizes = f"{problem.count}x{problem.m}x{problem.n}x{problem.k}"
    types = f"{a.dtype.name} {b.dtype.name} {tile.dtype.name}"
    return f"contraction {sizes} {types} a{a.row == 1:d}{a.column == 1:d} {' '.join(lies)}"


def _alternatives(
    model: TileBlocks, problem: ContractionProblem, tile: Tile, room: ScratchSizes
) -> list[TileBlocks]:
    """Blocks around those of the model, without it."""
    most, m = int(problem.k), int(problem.m)
    widths = {model.width, 1, 2 * model.width, -(-model.width // 2), 8}
    heights = {model.height, m}
    depths = {model.depth, most}
    depths |= {min(most, _whole(model.depth * part, tile.lanes)) for part in (0.5, 2)}
    heights |= {_whole(model.height * part, tile.rows) for part in (0.25, 0.5, 2)}
    every = (
        TileBlocks(*sizes) for sizes in product(sorted(depths), sorted(widths), sorted(heights))
    )
    return [b for b in every if b != model and room.holds(b, problem, tile)]


def _whole(size: float, step: int) -> int:
    """A size rounded up to a multiple."""
    return -(-int(size) // step) * step
