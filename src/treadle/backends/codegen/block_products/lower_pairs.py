"""Products in bfloat16 with weights in panels, as launches; gradients are such products, too."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.backends.codegen.block_products.pairs import (
    BLOCK,
    DEPTH,
    HEIGHT,
    MOST,
    ROUTED,
    SUMS,
    BlockPairSpec,
    PairParameters,
    Routes,
    RoutesParameters,
    WordsParameters,
    pairs_kernel,
    routed_kernel,
    routes_kernel,
    words_kernel,
)
from treadle.backends.codegen.block_products.widening import TERMS
from treadle.backends.codegen.contraction.pairs.packed import GROUP, WIDTH, WORDS
from treadle.backends.codegen.target import Target
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base.blocks.panels import LAYOUTS, PanelLayout
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.symbol import Dim, is_identical
from treadle.base.types import TensorType

ROUTES = Routes[Ref, Dim](Ref("workspace", 1), Ref("workspace", 2))
SERIAL = 1 << 17
"""Fewer operations than this are over before other threads have woken up."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """Rows x times W^T, or, `transposed`, times W.

    Attributes:
        format: of the panels.
        x, panels: their types; panels of several matrices have an axis before.
        rows: of W.
        k: elements of a row of W.
        target: where it runs.
        transposed: whether rows of W are terms of the sums, and not columns of the result.
    """

    format: str
    x: TensorType
    panels: TensorType
    rows: int
    k: int
    target: Target
    transposed: bool = False

    @property
    def layout(self) -> PanelLayout:
        """Layout of the format."""
        return LAYOUTS[self.format]

    @property
    def spec(self) -> BlockPairSpec:
        """The kernel's constants."""
        matrices = self.target.matrices and self.target.dot_bfloat16
        return BlockPairSpec(self.layout, self.x.dtype, matrices, self.transposed)

    @property
    def blocks(self) -> int:
        """The number of blocks of a row."""
        return self.k // self.layout.elements

    @property
    def count(self) -> Dim:
        """Panels of a matrix."""
        return self.panels.shape[-2]

    @property
    def terms(self) -> int:
        """The number of terms of a sum."""
        return self.rows if self.transposed else self.k

    @property
    def columns(self) -> int:
        """The number of columns of the result."""
        return self.k if self.transposed else self.rows

    @property
    def steps(self) -> int:
        """The number of steps of a sum."""
        return -(-self.terms // TERMS)

    @property
    def stretches(self) -> Dim:
        """The number of times that columns are widened."""
        return self.blocks * self.layout.pieces if self.transposed else -(-self.count // 2)

    @property
    def depth(self) -> int:
        """Steps of a part of the sums, whole blocks: parts of about the same size."""
        if self.steps <= MOST:
            return self.steps
        block = 1 if self.transposed else max(1, self.layout.elements // TERMS)
        parts = -(-self.steps // DEPTH)
        depth = -(-self.steps // parts)
        return -(-depth // block) * block

    def width(self, height: int, least: int) -> int:
        """Stretches of an item, for so many rows and a number of items that keeps threads busy."""
        pairs = self.layout.span // WIDTH if self.transposed else 1
        stretches = estimate(self.stretches)
        items = -(-stretches // max(1, SUMS // (height * WIDTH * pairs)))
        items = -(-items // least) * least
        return max(1, -(-stretches // items))

    def parameters(
        self, routes: Routes[Ref, Dim] | None, m: Dim, item: tuple[int, int], sharing: Dim | None
    ) -> PairParameters[Ref, Dim]:
        """Return the kernel's parameters for m rows; each item has some rows and stretches."""
        operands = Ref("workspace", 0), Ref("input", 1), Ref("output", 0)
        sizes = m, self.columns, self.blocks, self.count, *item, self.depth
        return PairParameters(*operands, routes, *sizes, sharing)

    def words(self, *, grouped: bool) -> Launch:
        """The launch that makes words of rows."""
        rows, ragged = product(self.x.shape[:-1]), self.terms % TERMS != 0
        terms = self.terms if ragged else None
        return words_kernel(self.x.dtype, grouped=grouped, ragged=ragged).launch(
            WordsParameters(Ref("input", 0), Ref("workspace", 0), self.steps, terms),
            items=rows,
            serial=estimate(rows * self.terms) < SERIAL // 4,
            nbytes=rows * self.terms * (self.x.dtype.itemsize + 2),
        )


def in_pairs(pairing: Pairing) -> Lowered:
    """Words of rows, then the product."""
    m = product(pairing.x.shape[:-1])
    parts = max(1, -(-estimate(m) // HEIGHT))
    height = max(1, -(-estimate(m) // (parts * BLOCK))) * BLOCK
    width = pairing.width(height, 4)
    flops = 2 * m * pairing.rows * pairing.k
    launch = pairs_kernel(pairing.spec, pairing.format, pairing.target.features).launch(
        pairing.parameters(None, m, (height, width), None),
        items=-(-m // height) * -(-pairing.stretches // width),
        serial=estimate(flops) < SERIAL,
        flops=flops,
        nbytes=_nbytes(pairing, m),
        unit="bfloat16",
    )
    groups = -(-m // WORDS)
    words = groups * pairing.steps * GROUP * 4
    return Lowered((pairing.words(grouped=True), launch), workspaces=(words,))


def routed_in_pairs(pairing: Pairing, experts: TensorType) -> Lowered:
    """Words of rows, rows in the order of their experts, then the products."""
    x = pairing.x
    m, source = product(experts.shape), product(x.shape[:-1])
    width = pairing.width(ROUTED, 1)
    matrices = pairing.panels.shape[0]
    routes = routes_of(experts, matrices)
    flops = 2 * m * pairing.rows * pairing.k
    launch = routed_kernel(pairing.spec, pairing.format, pairing.target.features).launch(
        pairing.parameters(ROUTES, m, (ROUTED, width), sharing(x, experts)),
        items=matrices * -(-pairing.stretches // width),
        serial=estimate(flops) < SERIAL,
        flops=flops,
        nbytes=_nbytes(pairing, m),
        unit="bfloat16",
    )
    sizes = source * pairing.steps * WORDS * 4, m * 4, matrices * 4
    return Lowered((pairing.words(grouped=False), routes, launch), workspaces=sizes)


def routes_of(experts: TensorType, matrices: Dim) -> Launch:
    """The launch that puts rows in the order of their experts, as `ROUTES` say."""
    m = product(experts.shape)
    return routes_kernel(experts.dtype).launch(
        RoutesParameters(Ref("input", 2), ROUTES, m, matrices),
        items=1,
        serial=True,
        nbytes=m * 16,
    )


def sharing(x: TensorType, experts: TensorType) -> Dim:
    """Return the number of neighboring rows of the result that share a row of x."""
    return 1 if is_identical(x.shape[1], experts.shape[1]) else experts.shape[1]


def _nbytes(pairing: Pairing, m: Dim) -> Dim:
    return product(pairing.panels.shape) + m * (pairing.k + pairing.rows) * pairing.x.dtype.itemsize
