"""Choice of the algorithm of a convolution: the direct one, or Winograd's.

3x3 convolutions of stride 1 and their gradients in x become `WinogradConv`, and those in the weight
`WinogradConvGradWeight`, where that is modelled to be faster. Those of bfloat16 are computed in
float32, and rounded: tiles of 4 x 4 save three of four products, instructions for pairs save one of
two. The model counts multiplications and additions, and prices what else is done per number in the
time of as many of them; the prices were measured with this package's kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from treadle.base import dtype as dt
from treadle.base.estimates import estimate
from treadle.engine.cost import RATES
from treadle.engine.optimize.bodies import Trial
from treadle.engine.optimize.kinds import is_static
from treadle.engine.optimize.measured import in_tiles, measured_tile
from treadle.graph.ir import Graph, Node, Value, constant_of, remake
from treadle.graph.regions import map_regions
from treadle.ops.conv import Convolution
from treadle.ops.winograd import TILES, Winograd

FEWEST = 16
"""Channels, on both sides, below which vectors over them are not full on every machine."""
MARGIN = 0.85
"""Share of the direct time from which on the other algorithm is not worth its larger memory."""
TRANSFORM = 32
"""Price of a number that goes through a transform: computed, written and read again."""
READ = 24
"""Price of a weight that is read, from a cache where all is well."""
PACK = 30
"""Price of a weight that is transformed or packed, which is done once where it is frozen."""
SUM = 30
"""Price of a sum of products in a gradient in the weight: written, read again and transformed."""
SLOWER = 1.15
"""Factor by which the products of a gradient in the weight by tiles take longer than the direct
ones: they read columns of the tiles."""
LAUNCH = 400_000
"""Price of the launches that the direct algorithm does without."""

Notes = Counter[tuple[str, str, str]]


@dataclass(frozen=True, slots=True)
class Maps:
    """Extents of a convolution of 3x3 kernels: maps of `inputs` channels to ones of `outputs`."""

    images: int
    inputs: int
    outputs: int
    height: int
    width: int

    @property
    def products(self) -> float:
        """Additions and multiplications of the direct algorithm, whose gradient has as many."""
        cells = self.images * self.height * self.width
        return 2.0 * cells * 9 * self.inputs * self.outputs

    def direct(self, frozen: bool, speed: float = 1.0) -> float:
        """Price of the direct algorithm whose products are so many times as fast."""
        return self.products / speed + self._moved(9 * self.inputs * self.outputs, frozen)

    def winograd(self, m: int, frozen: bool) -> float:
        """Price of the algorithm with tiles of m x m results."""
        points = (m + 2) ** 2
        tiles = self.images * -(-self.height // m) * -(-self.width // m)
        products = 2.0 * points * tiles * self.inputs * self.outputs
        numbers = points * tiles * (self.inputs + self.outputs)
        moved = self._moved(points * self.inputs * self.outputs, frozen)
        return products + TRANSFORM * numbers + moved + LAUNCH

    def winograd_gradient(self, m: int) -> float:
        """Price of the gradient in the weight with tiles of m x m gradients of results."""
        points, pairs = (m + 2) ** 2, self.inputs * self.outputs
        tiles = self.images * -(-self.height // m) * -(-self.width // m)
        numbers = points * tiles * (self.inputs + self.outputs)
        products = 2.0 * SLOWER * points * tiles * pairs
        return products + TRANSFORM * numbers + SUM * points * pairs + LAUNCH

    @staticmethod
    def _moved(weights: int, frozen: bool) -> int:
        return weights * (READ if frozen else READ + PACK)


def choose_algorithms(
    graph: Graph, trial: Trial, largest: int, frozen: Collection[Value] = ()
) -> tuple[Graph, Notes]:
    """The graph with Winograd's algorithm where it is worth it, and what is to be reported.

    Args:
        graph: after differentiation; regions of control flow are treated alike.
        trial: asks the compiler, whose kernels have to know the algorithm.
        largest: tiles of at most so many results per axis.
        frozen: inputs that never change, so that they are transformed once.
    """
    notes: Notes = Counter()

    def chosen(part: Graph) -> Graph:
        part = map_regions(part, chosen)
        renamed: dict[Value, Value] = {}
        nodes: list[Node] = []
        for node in part.nodes:
            found = _winograd(node, trial, largest, frozen)
            inputs = tuple([renamed.get(v, v) for v in node.inputs])
            same = found is None and all(a is b for a, b in zip(inputs, node.inputs, strict=True))
            made = node if same else remake(node, found[0] if found else node.op, inputs)
            if not same:
                renamed.update(zip(node.outputs, made.outputs, strict=True))
            nodes.append(made)
            if found is not None:
                subject = f"{node.op.name} -> {node.output.type}"
                notes[subject, f"{found[0].tile}x{found[0].tile} tiles", found[1]] += 1
        if not renamed:
            return part
        return part.with_nodes(nodes, (renamed.get(v, v) for v in part.outputs))

    return chosen(graph), notes


def _winograd(
    node: Node, trial: Trial, largest: int, frozen: Collection[Value]
) -> tuple[Winograd, str] | None:
    """The op in place of a convolution, and why; None where the convolution stays."""
    op = node.op
    if not isinstance(op, Convolution) or isinstance(op, Winograd) or not _fits(node, op):
        return None
    maps = maps_of(node)
    if min(maps.inputs, maps.outputs) < FEWEST:
        return None
    second = node.inputs[1]
    once = second in frozen or constant_of(second) is not None
    speed = trial.layouts[0].bfloat16 if second.type.dtype is dt.bfloat16 else 1.0
    direct, prices = _prices(maps, op, [m for m in TILES if m <= largest], once, speed)
    best = min(prices, key=lambda m: prices[m], default=0)
    if best and prices[best] > MARGIN * direct:
        best = 0
    measured = measured_tile(node, op, trial, best, once) if prices else None
    best = measured if measured in (0, *prices) else best
    made = in_tiles(op, best)
    if not isinstance(made, Winograd):
        return None
    if not trial(made, [v.type for v in node.inputs]):
        return None
    if best == measured:
        return made, "measured to be the fastest on this machine"
    after, before = (1e3 * price / RATES["cpu"].flops for price in (prices[best], direct))
    return made, f"modelled {after:.3g} ms against {before:.3g} ms, on one core"


def _prices(
    maps: Maps, op: Convolution, tiles: Sequence[int], once: bool, speed: float
) -> tuple[float, Mapping[int, float]]:
    """Prices of the direct algorithm and of the other one by its tiles."""
    if op.side == "weight":
        return maps.products / speed, {m: maps.winograd_gradient(m) for m in tiles}
    return maps.direct(once, speed), {m: maps.winograd(m, once) for m in tiles}


def _fits(node: Node, op: Convolution) -> bool:
    """Return whether a convolution is of the form that the algorithm is for."""
    _, weight, _ = op.roles([v.type for v in node.inputs], node.output.type)
    if not (is_static(node) and weight.is_static):
        return False
    if weight.shape[2:] != (3, 3) or weight.dtype not in Winograd.dtypes:
        return False
    ones = (1, 1)
    if op.strides != ones or op.dilation != ones or op.groups != 1:
        return False
    # A gradient in x is a convolution with a padding of 2 less this one.
    wide = op.side == "input" and max(max(pair) for pair in op.padding) > 2
    return not wide


def maps_of(node: Node) -> Maps:
    """Extents of a convolution, at the hints; for a gradient in x, of that which it is."""
    images, inputs = (estimate(d) for d in node.inputs[0].type.shape[:2])
    is_weight = isinstance(node.op, Convolution) and node.op.side == "weight"
    result = node.inputs[1] if is_weight else node.output
    _, outputs, height, width = (estimate(d) for d in result.type.shape)
    return Maps(images, inputs, outputs, height, width)
