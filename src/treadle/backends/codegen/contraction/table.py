"""The strategies of contractions, in the order in which they are asked.

A convolution goes to the first strategy that claims it and can lower it. Some turn it into a plain
product, or into another convolution, for which the tables are asked again. What the ones before
said against it is kept beside the launches, for reports.
"""

from __future__ import annotations

from dataclasses import replace

from treadle.backends.api import Support, no
from treadle.backends.codegen.contraction.api import (
    Answer,
    ConvolutionStrategy,
    LoweringRequest,
    ProductStrategy,
)
from treadle.backends.codegen.contraction.depthwise import lower as depthwise
from treadle.backends.codegen.contraction.direct import lower as direct
from treadle.backends.codegen.contraction.dots import lower as dots
from treadle.backends.codegen.contraction.integers import lower as integers
from treadle.backends.codegen.contraction.pairs import lower as pairs
from treadle.backends.codegen.contraction.patches import lower as patches
from treadle.backends.codegen.contraction.shared.body import Reading, read_product
from treadle.backends.codegen.contraction.shared.launch import Launches
from treadle.backends.codegen.contraction.tiles import lower as tiles
from treadle.backends.codegen.contraction.weights import lower as weights
from treadle.backends.codegen.contraction.winograd import forward, gradient
from treadle.backends.program import Lowered
from treadle.ops.conv import Conv, ConvGradInput, ConvGradWeight, Convolution, IntConv, WideConv
from treadle.ops.matmul import MatrixProduct
from treadle.ops.winograd import WinogradConv, WinogradConvGradWeight

CONVOLUTIONS = (
    ConvolutionStrategy("winograd", (WinogradConv,), forward.claims, forward.lower),
    ConvolutionStrategy("winograd", (WinogradConvGradWeight,), gradient.claims, gradient.lower),
    ConvolutionStrategy("patches", (Convolution,), patches.claims, patches.lower),
    ConvolutionStrategy("depthwise", (Convolution,), depthwise.claims, depthwise.lower),
    ConvolutionStrategy("weights", (ConvGradWeight,), weights.claims, weights.lower),
    ConvolutionStrategy(
        "direct", (Conv, WideConv, ConvGradInput, IntConv), direct.claims, direct.lower
    ),
)

PRODUCTS = (
    ProductStrategy("dots", dots.claims, dots.lower, mixes=True),
    ProductStrategy("pairs", pairs.claims, pairs.lower),
    ProductStrategy("integers", integers.claims, integers.lower),
    ProductStrategy("tiles", tiles.claims, tiles.lower, mixes=True),
)

Refusals = list[tuple[str, str]]
"""Strategies that were asked in vain, and their reasons."""


def lower(request: LoweringRequest) -> Lowered | Support:
    """The launches of a body around a contraction, or why there are none."""
    refused: Refusals = []
    name, answer = _convolution(request, refused)
    while isinstance(answer, LoweringRequest):
        request = answer
        name, answer = _convolution(request, refused)
    if isinstance(answer, Reading):
        product, made = _product(answer, request, refused)
        name = f"{name}: {product}" if name else product
    else:
        made = answer
    if isinstance(made, Support):
        return made
    return replace(made, strategy=name, refused=tuple(refused))


def _convolution(request: LoweringRequest, refused: Refusals) -> tuple[str, Answer]:
    """The first strategy that lowers a convolution, and its answer; products are read."""
    if isinstance(request.anchor.op, MatrixProduct):
        return "", read_product(request.body, request.anchor)
    last, claimed = no("op", f"no strategy computes {request.anchor.op.name}"), False
    for strategy in CONVOLUTIONS:
        if not isinstance(request.anchor.op, strategy.ops):
            continue
        claim = strategy.claims(request)
        answer = strategy.lower(request) if claim else claim
        if isinstance(answer, LoweringRequest):
            refused.append((strategy.name, answer.why))
        if not isinstance(answer, Support):
            return strategy.name, answer
        refused.append((strategy.name, answer.message))
        if claim or not claimed:  # Who claims it knows better why it cannot be done.
            last, claimed = answer, bool(claim)
    return "", last


def _product(
    reading: Reading, request: LoweringRequest, refused: Refusals
) -> tuple[str, Lowered | Support]:
    """The first strategy that claims a product, and the launches."""
    problem, target = reading.problem.simplified(), request.target
    mixed = not problem.a.integer and problem.a.dtype is not problem.b.dtype
    for strategy in PRODUCTS:
        if mixed and not strategy.mixes:
            continue
        claim = strategy.claims(problem, target)
        if claim:
            launches = Launches(problem, target, reading.constants, request.frozen)
            return strategy.name, strategy.lower(launches)
        refused.append((strategy.name, claim.message))
    return "", no("op", "no strategy multiplies these matrices")
